"""What the tests' own Docker Engines leave on the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.integration.engine import PREFIX, Engine, remove_left

KILLED = """
import os, signal
from tests.integration.engine import private_engine
with private_engine() as engine:
    bridge = {"com.docker.network.bridge.name": f"net-{engine.bridge[4:]}"}
    engine.api.post("/networks/create", {"Name": "rdm-test-left", "Driver": "bridge", "Options": bridge})
    print(engine.root, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_engine_of_a_killed_run_is_removed_and_no_other(engine: Engine) -> None:
    temporary = tempfile.mkdtemp(prefix="rdm-t-", dir="/tmp")
    run = subprocess.run(
        [sys.executable, "-c", KILLED],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / ".collections"), "TMPDIR": temporary},
        stdout=subprocess.PIPE,
        text=True,
    )
    left = Engine(Path(run.stdout.strip()))
    names = (left.bridge, f"net-{left.bridge[4:]}", engine.bridge)
    bridges = [Path("/sys/class/net", name) for name in names]
    assert left.processes()
    assert [bridge.exists() for bridge in bridges] == [True, True, True]
    remove_left()
    assert not left.processes()
    Path(temporary).rmdir()
    assert [bridge.exists() for bridge in bridges] == [False, False, True]
    assert engine.api.version()


@pytest.mark.parametrize("of_another_user", [0, 1])
def test_a_directory_that_another_user_could_have_made_is_left_alone(of_another_user: int) -> None:
    above = Path(tempfile.mkdtemp(prefix="rdm-t-", dir="/tmp"))
    root = Path(tempfile.mkdtemp(prefix=PREFIX, dir=above))
    os.chown([root, above][of_another_user], 65534, 65534)
    link = above / f"{PREFIX}link"
    link.symlink_to(root)
    try:
        remove_left()
        assert root.is_dir(), "its socket may be a link to an engine with containers"
    finally:
        shutil.rmtree(above)

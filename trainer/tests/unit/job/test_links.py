# SPDX-License-Identifier: GPL-3.0-or-later
"""Paths that are the same on every node lead to what is each node's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rdm_core.errors import TrainerError
from rdm_job.links import Links


def test_the_python_of_the_links_is_that_of_the_environment(tmp_path: Path) -> None:
    """Two nodes with environments and jobs of other paths run the same command."""
    directory = tmp_path / "n1" / "jobs" / "one"
    directory.mkdir(parents=True)
    links = Links("one@mark", tmp_path)
    links.make(directory, directory / ".deepspeed_env")
    if sys.prefix != sys.base_prefix:
        assert links.python == str(
            tmp_path / "rdm-one@mark" / "environment" / "bin" / Path(sys.executable).name
        )
    asked = [links.python, "-c", "import os, sys, rdm_job; print(os.path.realpath(sys.prefix))"]
    done = subprocess.run(asked, check=True, capture_output=True, text=True, cwd="/", timeout=60)
    assert Path(done.stdout.strip()) == Path(sys.prefix).resolve()
    assert links.job.resolve() == directory
    links.make(directory, directory / ".deepspeed_env")
    links.remove()
    assert directory.is_dir()
    assert not links.path.exists()


def test_a_link_that_leads_elsewhere_is_mended(tmp_path: Path) -> None:
    links = Links("one", tmp_path)
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        links.make(tmp_path / name, tmp_path / name / ".deepspeed_env")
    assert links.job.resolve() == tmp_path / "after"


@pytest.mark.parametrize("how", ["open", "file"])
def test_what_somebody_else_may_have_made_is_refused(tmp_path: Path, how: str) -> None:
    links = Links("one", tmp_path)
    if how == "open":
        links.path.mkdir()
        links.path.chmod(0o777)
    else:
        links.path.symlink_to(tmp_path)
    with pytest.raises(TrainerError, match="is not this user's alone; remove it"):
        links.make(tmp_path, tmp_path / ".deepspeed_env")

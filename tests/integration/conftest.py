"""Shared fixtures of the integration tests: a private Docker Engine with a tiny image, and a registry."""

from __future__ import annotations

import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT
from tests.integration.engine import Engine, private_engine
from tests.integration.images import busybox_rootfs, import_image, python_rootfs
from trainer.tests.waiting import wait_until

BUSYBOX = "rdm-test/busybox:1"
PYTHON = "rdm-test/python:1"


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """A private Docker Engine, for the whole run."""
    with private_engine() as engine:
        yield engine


@pytest.fixture(scope="session")
def busybox_image(engine: Engine) -> str:
    """The name of an image of one static busybox, in the private engine."""
    import_image(engine.api, BUSYBOX, busybox_rootfs())
    return BUSYBOX


@pytest.fixture(scope="session")
def python_image(engine: Engine) -> str:
    """The name of an image with python3 and perftest's stand-in, in the private engine."""
    text = (ROOT / "tests/standins/perftest.py").read_text()
    program = text.replace("/usr/bin/env python3", "/bin/python3", 1).encode()
    programs = {f"bin/{name}": program for name in ("ib_write_bw", "ib_write_lat")}
    import_image(engine.api, PYTHON, python_rootfs(programs))
    return PYTHON


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """The address of a registry on this machine."""
    config = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(tmp_path / "registry")}},
        "http": {"addr": "127.0.0.1:0"},
        "log": {"level": "info"},
    }
    (tmp_path / "registry.yml").write_text(yaml.safe_dump(config))
    file = tmp_path / "registry.log"
    with file.open("w") as log:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(tmp_path / "registry.yml")], stdout=log, stderr=log
        )
    try:
        address = wait_until("the registry listens", lambda: listening(file), why=file.read_text)
        wait_until("it answers", lambda: answers(address), why=file.read_text)
        yield address
    finally:
        process.terminate()
        process.wait()


def listening(log: Path) -> str:
    """Return the registry's address, as soon as its log shows it."""
    found = re.search(r"listening on (127\.0\.0\.1:\d+)\b", log.read_text())
    return found[1] if found else ""


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/v2/", timeout=60) as response:
            return bool(response.status == 200)
    except OSError:
        return False


@pytest.fixture
def cable() -> Iterator[str]:
    """The name of an interface with a carrier. A bridge's traffic would pass the machine's firewall."""
    with plugged("ab") as name:
        yield name


@contextmanager
def plugged(letters: str) -> Iterator[str]:
    """Create an interface with a carrier, and its peer; each name ends in its letter."""
    ends = [f"rdmt{os.getpid() % 10**6}{end}" for end in letters]
    subprocess.run(["ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1]], check=True)
    try:
        for end in ends:
            subprocess.run(["ip", "link", "set", end, "up"], check=True)
        yield ends[0]
    finally:
        subprocess.run(["ip", "link", "del", ends[0]], check=True)

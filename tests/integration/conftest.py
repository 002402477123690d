"""Shared fixtures of the integration tests: a private Docker Engine with a tiny image."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.conftest import ROOT
from tests.integration.engine import Engine, private_engine
from tests.integration.images import busybox_rootfs, import_image, python_rootfs

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

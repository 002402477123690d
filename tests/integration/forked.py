"""Run a module as on a node, in a process of its own: a fork of a server that has imported it."""

from __future__ import annotations

import importlib
import io
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing import forkserver
from pathlib import Path

import pytest

from tests.conftest import COLLECTIONS

_SERVER = multiprocessing.get_context("forkserver")


def run_forked(
    module: str, arguments: str, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a module, as ``python -m`` does with captured text.

    Args:
        module: its name; the first call decides what the server imports.
        arguments: its standard input.
        environment: the whole environment.
    """
    # Each fork imports the program that started the tests.
    _SERVER.set_forkserver_preload(["pytest", module])
    with pytest.MonkeyPatch.context() as patch:
        # The server gets no other part of this process's sys.path.
        patch.setenv("PYTHONPATH", str(COLLECTIONS))
        forkserver.ensure_running()
    with tempfile.TemporaryDirectory() as folder:
        streams = Path(folder, "out"), Path(folder, "errors")
        process = _SERVER.Process(target=_main, args=(module, arguments, dict(environment), streams))
        process.start()
        try:
            process.join()
        finally:
            # If the test is interrupted. It does nothing to a process that has ended.
            process.kill()
        assert process.exitcode is not None
        return subprocess.CompletedProcess(
            module, process.exitcode, *(stream.read_text() for stream in streams)
        )


def _main(module: str, arguments: str, environment: dict[str, str], streams: tuple[Path, Path]) -> None:
    assert module in sys.modules, "each process would import it"
    for number, stream in enumerate(streams, 1):
        with stream.open("wb") as file:
            os.dup2(file.fileno(), number)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    sys.argv = [module]
    sys.stdin = io.TextIOWrapper(io.BytesIO(arguments.encode()))
    importlib.import_module(module).main()

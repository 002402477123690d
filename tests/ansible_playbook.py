"""Run Ansible's programs from a server that has imported Ansible, most of a short run's CPU time.

Each run is still a process of its own, with its own arguments, environment, directory and output. Settings
that Ansible reads when it is imported are the server's: each set of them has its own server.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 1200
_PRELOADED = (
    "ansible.cli.inventory",
    "ansible.cli.playbook",
    "ansible.executor.playbook_executor",
    "ansible.executor.module_common",
    "ansible.plugins.action.normal",
    "ansible.plugins.connection.local",
    "ansible.plugins.filter.core",
    "ansible.plugins.filter.mathstuff",
    "ansible.plugins.filter.urls",
    "ansible.plugins.shell.sh",
    "ansible.plugins.strategy.linear",
    "ansible.plugins.test.core",
    "ansible.plugins.test.mathstuff",
)
_READ_LATER = ("ANSIBLE_REMOTE_TEMP",)
"""Variables that Ansible reads when a plugin needs them, not when it is imported."""


def ansible_playbook(
    *arguments: object,
    environment: Mapping[str, str],
    directory: Path | None = None,
    timeout: int = TIMEOUT_S,
) -> subprocess.CompletedProcess[str]:
    """Run ``ansible-playbook``, as ``subprocess.run`` does with captured text.

    Args:
        arguments: The program's arguments.
        environment: The whole environment.
        directory: The working directory; this process's by default.
        timeout: Seconds after which the run is killed.

    Raises:
        subprocess.TimeoutExpired: The run was killed.
    """
    return _run("playbook", arguments, environment, directory, timeout)


def ansible_inventory(
    *arguments: object, environment: Mapping[str, str], timeout: int = TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run ``ansible-inventory`` in the same way."""
    return _run("inventory", arguments, environment, None, timeout)


def _run(
    program: str,
    arguments: Iterable[object],
    environment: Mapping[str, str],
    directory: Path | None,
    timeout: int,
) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in arguments]
    imported = {
        name: value
        for name, value in environment.items()
        if name.startswith("ANSIBLE_") and name not in _READ_LATER
    }
    address = _server(tuple(sorted(imported.items())))
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as connection:
        streams = [f"{folder}/{name}" for name in ("out", "errors")]
        connection.connect(address)
        request = {
            "program": program,
            "words": words,
            "environment": dict(environment),
            "directory": str(directory or Path.cwd()),
            "streams": streams,
            "timeout": timeout,
        }
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile() as answer:
            status = int(answer.readline())
        out, errors = (Path(stream).read_text() for stream in streams)
    if status == -signal.SIGALRM:
        raise subprocess.TimeoutExpired(words, timeout, out, errors)
    return subprocess.CompletedProcess(words, status, out, errors)


class Played(NamedTuple):
    """A run of plays.

    Attributes:
        status: The exit status.
        tasks: The tasks of all plays; C(hosts) of each has what it returned, by host.
        output: All output.
    """

    status: int
    tasks: list[dict[str, Any]]
    output: str


def played(
    *arguments: object, directory: Path | None = None, environment: Mapping[str, str] = os.environ
) -> Played:
    """Run ``ansible-playbook`` with this checkout's collection and settings, and read what tasks returned."""
    settings = {
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".collections"),
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
    }
    done = ansible_playbook(*arguments, environment={**environment, **settings}, directory=directory)
    output = done.stdout + done.stderr
    assert "{" in done.stdout, output
    report = json.loads(done.stdout[done.stdout.index("{") :])
    return Played(done.returncode, [task for play in report["plays"] for task in play["tasks"]], output)


@functools.cache
def _server(imported: Iterable[tuple[str, str]]) -> str:
    """Start a server with these settings, which ends with this process; return its socket."""
    folder = tempfile.TemporaryDirectory()
    address = f"{folder.name}/socket"
    others = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    server = subprocess.Popen(
        [sys.executable, __file__, address],
        env=others | dict(imported),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def end() -> None:
        server.communicate()
        folder.cleanup()

    atexit.register(end)
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n", "the server of Ansible's processes did not start"
    return address


class _Run(socketserver.StreamRequestHandler):
    """One run, in a process of its own; this process waits for it."""

    def handle(self) -> None:
        request = json.loads(self.rfile.readline())
        if not (run := os.fork()):
            status = 250
            try:
                status = _play(request)
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(run, 0)[1])
        self.wfile.write(f"{status}\n".encode())


class _Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    pass


def _play(request: dict[str, Any]) -> int:
    """Become the requested run; return its exit status."""
    from ansible import constants

    # Drop the server's exit handlers.
    atexit._clear()
    signal.alarm(request["timeout"])
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path += filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    for number, path in enumerate((os.devnull, *request["streams"])):
        stream = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(stream, number)
        os.close(stream)
    # The default of this setting is a template with the other.
    home = {"ANSIBLE_HOME": constants.config.get_config_value("ANSIBLE_HOME")}
    constants.DEFAULT_LOCAL_TMP = constants.config.get_config_value("DEFAULT_LOCAL_TMP", variables=home)
    program = request["program"]
    sys.argv = [str(Path(sys.executable).with_name(f"ansible-{program}")), *request["words"]]
    try:
        importlib.import_module(f"ansible.cli.{program}").main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    else:
        status = 0
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _read_plugins() -> None:
    """Read the plugins that every run reads: their documentation in YAML is half of a short run."""
    from ansible.plugins import loader

    for kind in ("become", "callback", "connection", "inventory", "shell"):
        list(getattr(loader, f"{kind}_loader").all(class_only=True))
    for kind, name in (
        ("cache", "memory"),
        ("callback", "ansible.posix.json"),
        ("filter", "ansible.builtin.bool"),
        ("strategy", "linear"),
        ("test", "ansible.builtin.defined"),
    ):
        getattr(loader, f"{kind}_loader").get(name, class_only=True)
    importlib.import_module("ansible_collections.community.docker")


def _serve(address: str) -> None:
    for name in _PRELOADED:
        importlib.import_module(name)
    importlib.import_module("ansible.plugins.loader").init_plugin_loader()
    # A run configures it again.
    warnings.filterwarnings("ignore", "AnsibleCollectionFinder has already been configured")
    importlib.import_module("ansible_collections.rdm.provision.plugins.action.plan")
    _read_plugins()
    gc.freeze()
    with _Server(address, _Run) as server:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while sys.stdin not in select.select([server, sys.stdin], [], [])[0]:
            server.handle_request()


if __name__ == "__main__":
    # Import nothing from this file's directory.
    del sys.path[0]
    _serve(sys.argv[1])

# SPDX-License-Identifier: GPL-3.0-or-later
"""One process of a job: ``python -m rdm_job.rank``, which every launcher starts once per device.

It sends its output to the node's logs, writes a record of itself for the node's agent, and then trains, or
runs the job's program. The output is redirected before torch is loaded, so that nothing is lost.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rdm_core import config as configuration
from rdm_core.config import LauncherConfig, workload_of
from rdm_core.errors import FAILED, TrainerError
from rdm_core.heartbeat import FORMER_VARIABLE, HEARTBEAT_VARIABLE, NODE_VARIABLE
from rdm_job import processes
from rdm_job.culprit import LINES, why_it_ended
from rdm_job.directory import JobDirectory
from rdm_job.environment import adopt_launcher_environment
from rdm_job.marking import Marked
from rdm_job.network import interface_of
from rdm_job.processes import ATTEMPT_VARIABLE, allow_files
from rdm_job.profilers import PROFILED_VARIABLE, PROFILES, wrapped

DIRECTORY_VARIABLE = "RDM_JOB_DIR"
_OF_LAUNCHER = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"),
)
"""Variables that DeepSpeed's launcher of a node always sets itself."""
_POLL_S = 2.0
_KEPT = 32 * 1024
"""How many of the last bytes of a program's errors are kept, to report why it ended."""
_REST_S, _READ_S = 1.0, 10.0
"""After a program's end: how long its children may still write, and how long to read the rest, in seconds."""
_children: list[subprocess.Popen[bytes]] = []


def main(arguments: Sequence[str]) -> int:
    """Run one process of a job.

    Args:
        arguments: The launcher's, such as ``--local_rank=3``; they are passed to a user's own program.

    Returns:
        The process's exit code.
    """
    # Until the trainer installs its own handler: a process that gets SIGTERM did not fail by itself.
    signal.signal(signal.SIGTERM, _terminated)
    directory = _own_directory()
    attempt = int(os.environ.get(ATTEMPT_VARIABLE, "0"))
    if attempt <= directory.ended_attempt:  # such as over an ssh connection that took long
        print(f"Attempt {attempt} of this job was ended before this process began.", file=sys.stderr)
        return FAILED
    request = directory.request()
    node = request.node
    adopt_launcher_environment(os.environ)
    # pdsh and mpirun do not pass it on.
    os.environ.setdefault(NODE_VARIABLE, node)
    _redirect(directory, node)
    try:
        config = configuration.load_job(directory.resolved)
        if config.launcher.kind == "deepspeed":
            _restart_with(config.launcher.env, arguments)
        marked = Marked(int(os.environ["RANK"]), 1, 2) if config.logging.mark_ranks else None
        _restart_profiled(config.launcher, directory, arguments)
    except TrainerError as problem:
        print(f"Error: {problem}", file=sys.stderr, flush=True)
        return problem.exit_code
    faulthandler.enable()
    # A rank has a connection to every other rank, and more open files.
    allow_files()
    # By default Gloo takes the interface that the host's name resolves to, and NCCL any.
    address = next(one.address for one in request.nodes if one.name == node)
    interface = interface_of(address)
    if interface is not None:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, interface)
    rank = int(os.environ["RANK"])
    record: dict[str, Any] = {
        "rank": rank,
        "node": node,
        "pid": os.getpid(),
        "world": int(os.environ["WORLD_SIZE"]),
        "attempt": attempt,
        "state": "running",
        "exit": None,
        "error": "",
        "lines": [],
        "time": time.time(),
    }
    directory.forget_ranks(f"{rank}.*")
    directory.write_rank(rank, record)
    os.environ[HEARTBEAT_VARIABLE] = os.environ[FORMER_VARIABLE] = str(directory.heartbeat(rank))
    threading.Thread(target=_end_with_agent, args=(directory,), daemon=True).start()
    code, error, lines = _outcome(lambda: _work(directory, arguments))
    state = "done" if code == 0 else "failed"
    record.update(state=state, exit=code, error=error, lines=lines, time=time.time())
    if marked is not None:
        # All output must be in the log before the record says that this process has ended.
        sys.stdout.flush()
        sys.stderr.flush()
        marked.end()
    with contextlib.suppress(OSError):
        directory.write_rank(rank, record)
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _own_directory() -> JobDirectory:
    """Return this node's directory of the job; change to it, and put this Python's programs on the PATH."""
    path = Path(os.environ[DIRECTORY_VARIABLE]).resolve()
    os.environ[DIRECTORY_VARIABLE] = str(path)
    os.chdir(path)
    programs, known = str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)
    if programs not in known.split(os.pathsep):
        os.environ["PATH"] = programs + os.pathsep + known
    return JobDirectory(path)


def _restart_with(variables: Mapping[str, str], arguments: Sequence[str]) -> None:
    """Set the job's variables, which its launcher would show to all users, and start this program again.

    The restart is needed because Python reads some of them at start. The launcher's own variables stay.
    """
    missing = {name: value for name, value in variables.items() if name not in _OF_LAUNCHER}
    if missing.items() <= os.environ.items():
        return
    command = [sys.executable, "-m", "rdm_job.rank", *arguments]
    os.execve(sys.executable, command, {**os.environ, **missing})  # noqa: S606  # a list, no shell


def _restart_profiled(launcher: LauncherConfig, directory: JobDirectory, arguments: Sequence[str]) -> None:
    """Replace this process with the rank's profiler, if the job wants one; that starts this program again."""
    if os.environ.pop(PROFILED_VARIABLE, None):
        return
    command = [sys.executable, "-m", "rdm_job.rank", *arguments]
    rank = int(os.environ["RANK"])
    profiled = wrapped(launcher.profiler, launcher.profiler_ranks, rank, directory.path, command)
    if profiled is None:
        return
    (directory.path / PROFILES).mkdir(exist_ok=True)
    os.execvpe(profiled[0], profiled, {**os.environ, PROFILED_VARIABLE: "1"})  # noqa: S606  # a list, no shell


def _redirect(directory: JobDirectory, node: str) -> None:
    """Write to the node's logs from now on, in append mode, so that processes do not mix their lines."""
    for stream, name in ((sys.stdout, "out"), (sys.stderr, "err")):
        stream.flush()
        path = directory.log(node, name)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, stream.fileno())
        os.close(file)
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _end_with_agent(directory: JobDirectory) -> None:
    """End this process when the node's agent is gone: nothing else would end it when others fail."""
    agent = None
    while True:
        time.sleep(_POLL_S)
        # Read once: the file system may be gone when the agent is.
        with contextlib.suppress(OSError):
            agent = agent or directory.agent
        if agent is not None and not processes.is_alive(agent):
            for child in _children:
                child.kill()
            # The log's file system may hang, or be full.
            report = threading.Thread(target=_report_lost_agent, daemon=True)
            report.start()
            report.join(_REST_S)
            os._exit(FAILED)


def _report_lost_agent() -> None:
    with contextlib.suppress(OSError):
        print("The job's agent on this node is gone, so this process ends.", file=sys.stderr, flush=True)


def _terminated(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def _outcome(work: Callable[[], tuple[int, list[str]]]) -> tuple[int, str, list[str]]:
    """Return the exit code and, after a failure, the reason in one line and the last lines of the error."""
    errors: list[str] = []
    try:
        code, errors = work()
    except TrainerError as error:
        print(error, file=sys.stderr)
        return error.exit_code, str(error), str(error).splitlines()[-LINES:]
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
            return FAILED, error.code, [error.code]
        code = error.code or 0
    except BaseException as error:
        traceback.print_exc()
        lines = traceback.format_exc().splitlines()[-LINES:]
        message = str(error).strip().splitlines()
        return FAILED, f"{type(error).__name__}: {message[0]}" if message else type(error).__name__, lines
    return code, why_it_ended(code, errors), errors[-LINES:] if code else []


def _work(directory: JobDirectory, arguments: Sequence[str]) -> tuple[int, list[str]]:
    config = configuration.load_job(directory.resolved)
    command = workload_of(config).command(config, directory.resolved, arguments)
    if command[:2] != [sys.executable, "-m"]:
        return _run(command)
    # Run the module in this process: a second one would cost memory on each device.
    _, _, module, *words = command
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0, []


def _run(command: list[str]) -> tuple[int, list[str]]:
    """Run a user's own program, and forward this process's signals to it.

    Its errors pass through this process, because the node's log mixes them with those of others.

    Returns:
        Its exit code, and the last lines of its errors.
    """
    pending: list[int] = []

    def forward(number: int, _frame: object) -> None:
        if _children:
            _children[-1].send_signal(number)
        else:
            pending.append(number)

    # Install the handlers first: otherwise a signal during the start would not reach the program.
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, forward)
    (read, write), (stop, stop_end) = os.pipe(), os.pipe()
    with subprocess.Popen(command, stderr=write) as process:  # the user's own program, no shell
        os.close(write)
        _children.append(process)
        while pending:
            process.send_signal(pending.pop(0))
        end = bytearray()
        reader = threading.Thread(target=_copy_errors, args=(read, stop, end), daemon=True)
        reader.start()
        code = process.wait()
    # Its children may write for ever: wait only a moment.
    reader.join(_REST_S)
    # Then read only what is already in the pipe, with more time for a busy node.
    os.close(stop_end)
    reader.join(_READ_S)
    lines = [line for line in bytes(end).decode("utf-8", "replace").splitlines() if line.strip()]
    return code if code >= 0 else 128 - code, lines


def _copy_errors(errors: int, stop: int, end: bytearray) -> None:
    """Copy a program's errors to this process's, and keep their end.

    Args:
        errors: The pipe to read to its end.
        stop: A pipe whose other end is closed to stop the reading when ``errors`` is empty.
        end: Receives the last bytes.
    """
    ready = select.poll()
    for pipe in (errors, stop):
        ready.register(pipe, select.POLLIN)
    while errors in dict(ready.poll()) and (block := os.read(errors, 65536)):
        end += block
        del end[:-_KEPT]
        # A full disk must not end the program.
        with contextlib.suppress(OSError):
            while block:
                block = block[os.write(sys.stderr.fileno(), block) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

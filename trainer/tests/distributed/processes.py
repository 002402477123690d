# SPDX-License-Identifier: GPL-3.0-or-later
"""Real processes: a function in a process group, or ``rdm-trainer`` as a launcher starts it.

The processes come from one server that has imported torch, DeepSpeed and what they import later, so a launch
costs well under a second. A launch can run many cases one after the other: building a new engine in the same
processes works.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.waiting import DEADLINE_S

TIMEOUT_S = 1500.0
"""Ranks of a launch that have not answered after these seconds are ended."""
_CONTEXT = multiprocessing.get_context("forkserver")
_PRELOADED = "preloaded"


class RankError(AssertionError):
    """A rank raised, or did not answer in time; the message has its traceback."""


def run(world: int, target: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call ``target(*arguments)`` in the processes of one gloo group.

    Args:
        world: Number of processes.
        target: A function at the top level of a module, in which ``torch.distributed`` is initialised.
        arguments: The function's arguments; they and its result must be picklable.

    Returns:
        What each rank returned.

    Raises:
        RankError: A rank raised, or did not answer within ``TIMEOUT_S``.
    """
    with started(world, target, *arguments) as results:
        return results()


def run_each(target: Callable[..., Any], jobs: Mapping[int, Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Call ``target``, which returns a result for each name, with the named jobs of each number of processes.

    Returns:
        Every rank's results for each job.
    """
    found: dict[str, list[Any]] = {}
    for world, named in jobs.items():
        for answer in run(world, target, named):
            for name, one in answer.items():
                found.setdefault(name, []).append(one)
    return found


@contextlib.contextmanager
def started(world: int, target: Callable[..., Any], *arguments: Any) -> Iterator[Callable[[], list[Any]]]:
    """Start what :func:`run` runs; what is provided waits for it, and returns its results."""
    _start_server()
    with tempfile.TemporaryDirectory() as directory:
        pipes, processes = [], []
        for rank in range(world):
            receiver, sender = _CONTEXT.Pipe(duplex=False)
            process = _CONTEXT.Process(
                target=_rank, args=(rank, world, directory, sender, target, arguments), daemon=True
            )
            process.start()
            sender.close()
            pipes.append(receiver)
            processes.append(process)
        try:
            yield lambda: _answers(pipes)
        finally:
            for process in processes:
                process.kill()
                process.join()


@contextlib.contextmanager
def own_groups() -> Iterator[None]:
    """Destroy the process groups that its block, or a function that it decorates, has created; on all ranks.

    Each group of gloo has a thread that wakes up a hundred times a second. In a launch of many cases there
    would be hundreds, which take more processor time than the cases.
    """
    import torch.distributed as dist

    groups: Any = dist.distributed_c10d._world.pg_map
    before = set(groups)
    yield
    # Another rank may still wait for what this one has sent.
    dist.barrier()
    for group in set(groups) - before:
        dist.destroy_process_group(group)
    gc.collect()


class Command:
    """``rdm-trainer`` with these arguments, in a process of the server; used like a ``subprocess.Popen``.

    Args:
        arguments: After the program's name.
        environment: Its variables; by default those of the server.
        stdin: What it reads.
        largest_file: The most bytes of a file, as on a full disk; no limit by default.
        log: The file to which both its streams are appended; by default, this process reads them.

    Attributes:
        stdout: Its standard output; nothing with a log.
        stderr: Its standard error; nothing with a log.
    """

    def __init__(
        self,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        stdin: str = "",
        largest_file: int | None = None,
        log: Path | None = None,
    ) -> None:
        _start_server()
        pipes = [_CONTEXT.Pipe(duplex=False) for _ in range(2)]
        senders = [sender for _, sender in pipes]
        self._process = _CONTEXT.Process(
            target=_command, args=(*senders, arguments, environment, stdin, largest_file, log), daemon=True
        )
        self._process.start()
        for sender in senders:
            sender.close()
        self.stdout, self.stderr = (os.fdopen(os.dup(receiver.fileno())) for receiver, _ in pipes)

    def __enter__(self) -> Command:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        if kind is not None:
            self._process.kill()
        self._process.join()
        self.stdout.close()
        self.stderr.close()

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code; negative for a signal, none before the end."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code; none before the end."""
        return self.returncode

    def wait(self, timeout: float = DEADLINE_S) -> int:
        """Wait for the end, and return the exit code."""
        self._process.join(timeout)
        assert self.returncode is not None, f"process {self.pid} did not end within {timeout:.0f} s"
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()

    def communicate(self, timeout: float = DEADLINE_S) -> tuple[str, str]:
        """Wait for the end; return the rest of both streams.

        Raises:
            TimeoutError: It did not end in this time, and was killed.
        """
        with ThreadPoolExecutor() as pool:
            read = [pool.submit(stream.read) for stream in (self.stdout, self.stderr)]
            try:
                out, errors = (stream.result(timeout) for stream in read)
            except TimeoutError:
                self._process.kill()
                raise
        self._process.join()
        return out, errors


def run_job_verb(
    *words: str,
    environment: Mapping[str, str],
    request: Mapping[str, Any] | None = None,
    within: Sequence[str] | None = None,
) -> tuple[dict[str, Any], int]:
    """Run a verb of ``rdm-trainer job`` on a node, as rdm-provision does.

    Args:
        words: After ``rdm-trainer job``.
        environment: The node's variables.
        request: What it reads.
        within: The command that starts it, or an empty one: it is then a separate program, started by this
            process, which takes longer. By default, the server starts it.

    Returns:
        The answer, and the exit code.
    """
    stdin = "" if request is None else json.dumps(request)
    if within is not None:
        command = [*within, sys.executable, "-m", "rdm_trainer", "job", *words]
        done = subprocess.run(
            command, env=environment, input=stdin, capture_output=True, text=True, timeout=DEADLINE_S
        )
        out, errors, code = done.stdout, done.stderr, done.returncode
    else:
        with Command("job", *words, environment=environment, stdin=stdin) as process:
            out, errors = process.communicate()
        assert process.returncode is not None
        code = process.returncode
    assert out, errors
    answer: dict[str, Any] = json.loads(out)
    return answer, code


def _command(
    stdout: Connection,
    stderr: Connection,
    arguments: tuple[str, ...],
    environment: Mapping[str, str] | None,
    stdin: str,
    largest_file: int | None,
    log: Path | None,
) -> None:
    from rdm_trainer.cli import main

    assert _PRELOADED in sys.modules, "it would import torch again"
    with contextlib.nullcontext() if log is None else log.open("ab") as both:
        for number, stream in enumerate((stdout, stderr), 1):
            os.dup2((both or stream).fileno(), number)
            stream.close()
    sys.stdin = io.StringIO(stdin)
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
        # The server's may be known already.
        tempfile.tempdir = None
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    main(arguments)


def _start_server() -> None:
    """Start the server unless it runs. Of sys.path, Python passes only the environment's part to it."""
    _CONTEXT.set_forkserver_preload([_PRELOADED])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before


def _answers(pipes: list[Connection]) -> list[Any]:
    answers: dict[int, Any] = {}
    until = time.monotonic() + TIMEOUT_S
    while len(answers) < len(pipes):
        waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in answers]
        ready = wait(waiting, max(0.0, until - time.monotonic()))
        if not ready:
            missing = sorted(set(range(len(pipes))) - set(answers))
            raise RankError(f"ranks {missing} did not answer within {TIMEOUT_S:.0f} s")
        for pipe in ready:
            rank = pipes.index(pipe)  # type: ignore[arg-type]
            try:
                fine, answer = pipe.recv()  # type: ignore[union-attr,call-arg]
            except EOFError:
                raise RankError(f"rank {rank} ended without an answer") from None
            if not fine:
                raise RankError(f"rank {rank}:\n{answer}")
            answers[rank] = answer
    return [answers[rank] for rank in range(len(pipes))]


def _rank(
    rank: int,
    world: int,
    directory: str,
    sender: Connection,
    target: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    import torch
    import torch.distributed as dist

    assert _PRELOADED in sys.modules, "each rank would import the compiler again"
    # Without it, nobody sees where a library aborted.
    faulthandler.enable()
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{Path(directory) / 'meeting'}", rank=rank, world_size=world
        )
        sender.send((True, target(*arguments)))
    except BaseException:
        sender.send((False, traceback.format_exc()))
    # Skip the clean-up at exit: the other ranks may be gone already.
    os._exit(0)

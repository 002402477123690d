# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a function in several real processes with a process group, and get back what each returned.

The processes come from one server that has imported torch and DeepSpeed and what these import later, so a
launch costs well under a second. A launch can take many cases one after the other: building a new engine in
the same processes works.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

__all__ = ["RankError", "run"]

TIMEOUT_S = 600.0
"""After which the ranks of a launch that have not answered are ended, in seconds."""
_CONTEXT = multiprocessing.get_context("forkserver")
_PRELOADED = "preloaded"


class RankError(AssertionError):
    """A rank raised, or did not answer in time; the message has its traceback."""


def run(world: int, target: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call ``target(*arguments)`` in WORLD processes of one gloo group.

    Args:
        world: Number of processes.
        target: A function at the top level of a module, in which ``torch.distributed`` is initialised.
        arguments: Of the function; they and what it returns must be picklable.

    Returns:
        What each rank returned.

    Raises:
        RankError: A rank raised, or did not answer within ``TIMEOUT_S``.
    """
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
            return _answers(pipes)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _start_server() -> None:
    """Start the server unless it runs. Of all paths Python hands it only the environment's."""
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
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{Path(directory) / 'meeting'}", rank=rank, world_size=world
        )
        sender.send((True, target(*arguments)))
    except BaseException:
        sender.send((False, traceback.format_exc()))
    # Not a rank's business at its end: the others may be gone already.
    os._exit(0)

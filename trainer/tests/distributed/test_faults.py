# SPDX-License-Identifier: GPL-3.0-or-later
"""Disks that nodes do not share, full disks, checkpoints with missing parts, kills, and orderly ends."""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import resource
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch.distributed as dist

from rdm_core.errors import TrainerError
from rdm_trainer.checkpoint import distributed, files
from rdm_trainer.distributed.collective import Collective
from rdm_trainer.train import Training
from tests.distributed import processes, resuming, training
from tests.distributed.resuming import GPT, Log, alone, node, parallel

NATIVE = {"engine": "native"}


PIPELINE = training.configure(GPT, parallel(pipeline=2))


SAVES = training.configure(PIPELINE, {"checkpoint.interval": 2})


LIMIT_S = 30.0
"""The limit of an operation: short, but a rank that waits for a core does not count as too late."""


def slow() -> float:
    """Wait for something that takes rank 0 longer than an operation may take; return the seconds."""
    collective = Collective(datetime.timedelta(seconds=LIMIT_S))
    # The clock is the same for all processes of a machine.
    began: float = max(collective.gather(time.monotonic()))

    def done(timeout: float) -> bool:
        never = threading.Event()
        never.wait(timeout)
        return dist.get_rank() != 0 or time.monotonic() - began > LIMIT_S

    collective.wait_until(done)
    return time.monotonic() - began


@pytest.fixture(scope="module", autouse=True)
def waits() -> Iterator[Callable[[], list[float]]]:
    """How long ranks waited for a slow one. They wait while other tests run."""
    with processes.started(2, slow) as seconds:
        yield seconds


def own_disks(root: str) -> dict[str, Any]:
    """Stop, and resume as before, on other disks and in other layouts; no rank sees another's directory."""
    answers: dict[str, Any] = {}
    resuming.train(SAVES, node(root), stop_after=4)
    answers["files"] = sorted(files.measure(node(root) / "checkpoints" / "global_step4"))

    def copy(to: str) -> None:
        shutil.copytree(root, to)

    for name in ("moved", "layout", "half", "lost"):
        alone(copy, f"{root}-{name}")
    answers["same"] = resuming.train(SAVES, node(root)).losses()

    native = training.configure(PIPELINE, NATIVE)
    resuming.train(native, node(f"{root}-native"), stop_after=4)
    other = resuming.train(
        training.configure(native, parallel(pipeline=1, tensor=2)), node(f"{root}-native", 1)
    )
    answers["native"], answers["native says"] = other.losses(), other.find("brought")

    moved = resuming.train(SAVES, node(f"{root}-moved", 1))
    answers["moved"], answers["moved says"] = moved.losses(), moved.find("brought")

    # The second node's pointer names another step, the third node has none.
    checkpoints = [Path(f"{root}-layout") / f"node{rank}" / "checkpoints" for rank in range(4)]
    alone(files.point_to, checkpoints[1], 2)
    alone((checkpoints[2] / "latest").unlink)
    layout = resuming.train(training.configure(GPT, parallel(tensor=2)), node(f"{root}-layout"))
    answers["layout"], answers["layout says"] = layout.losses(), layout.find("repaired")
    answers["layout files"] = sorted(files.measure(node(f"{root}-layout") / "checkpoints" / "global_step4"))

    def damage() -> None:
        part = next((Path(f"{root}-half") / "node1/checkpoints/global_step4").glob("*.distcp"))
        part.write_bytes(part.read_bytes()[:-1])
        (Path(f"{root}-half") / "node2/checkpoints/global_step6.partial").mkdir()

    alone(damage)
    half = resuming.train(SAVES, node(f"{root}-half"))
    answers["half"], answers["half says"] = half.losses(), half.find("iteration 4")

    def lose() -> None:
        shutil.rmtree(Path(f"{root}-lost") / "node3")

    alone(lose)
    try:
        resuming.train(SAVES, node(f"{root}-lost"))
    except TrainerError as error:
        answers["lost"] = str(error)
    return answers


def test_job_resumes_from_disks_that_nodes_do_not_share(tmp_path: Path) -> None:
    root = str(tmp_path / "jobs")
    ranks = processes.run(4, own_disks, root)
    found = ranks[0]
    written = [set(rank["files"]) - {"rng_states.pt"} for rank in ranks]
    assert sum(len(part) for part in written) == len(set().union(*written)), "each file is on one disk"
    assert list(found["same"]) == [5, 6, 7, 8]
    for name in ("moved", "layout", "native"):
        assert found[name] == pytest.approx(found["same"], abs=1e-4)
    assert found["moved says"]
    assert found["native says"]
    assert len(found["layout says"]) == 1
    assert "global_step2" in found["layout says"][0]
    assert "repaired the checkpoint pointers to iteration 4" in found["layout says"][0]
    brought = set(ranks[0]["layout files"]) - set(ranks[0]["files"])
    assert any(file.endswith(".distcp") for file in brought)
    # A file that is one byte short: the previous checkpoint is used.
    assert list(found["half"]) == [3, 4, 5, 6, 7, 8]
    assert any("not complete" in line for line in found["half says"])
    assert not list(Path(f"{root}-half").rglob("*.partial"))
    # A node's disk is gone, and with it a part of every checkpoint.
    assert all("iterations 2, 4, none of them complete" in rank["lost"] for rank in ranks)
    assert not (Path(f"{root}-lost") / "node0/checkpoints/global_step8").exists()
    latest = [path.read_text() for path in Path(f"{root}-layout").rglob("latest")]
    assert latest == ["global_step8"] * 4


FULL: dict[str, dict[str, Any]] = {
    "waiting": {},
    "background": {"checkpoint.asynchronous": True},
    "native": NATIVE,
}


def full_disk(root: str) -> dict[str, Any]:
    """Save at 2, 4, 6 and 8; at 4, rank 1's disk takes only some kilobytes."""

    def prepare(trained: Training) -> None:
        save = trained.checkpoints.save

        def limited(iteration: int, state: Any) -> bool:
            before = resource.getrlimit(resource.RLIMIT_FSIZE)
            if iteration == 4 and dist.get_rank() == 1:
                resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
            try:
                saved = save(iteration, state)
                answers["saved"].append((iteration, saved))
                answers["there"].append(sorted(path.name for path in checkpoints.glob("global_step*")))
                answers["pointer"].append((checkpoints / "latest").read_text())
                trained.checkpoints.finish()
                return saved
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)

        trained.checkpoints.save = limited  # type: ignore[method-assign]

    all_answers = {}
    for name, changes in FULL.items():
        answers: dict[str, Any] = {"saved": [], "there": [], "pointer": []}
        checkpoints = Path(root) / name / "checkpoints"
        files_kept = {"checkpoint.keep": 2, "parallel.zero_stage": 1, "parallel.pipeline": 1}
        config = training.configure(SAVES, {**changes, **files_kept})
        if name == "background":
            # At the first save, there is no pointer to read yet.
            checkpoints.mkdir(parents=True, exist_ok=True)
            alone(lambda directory=checkpoints: (directory / "latest").write_text("nothing"))
        log = resuming.train(config, Path(root) / name, prepare=prepare)
        answers["losses"], answers["says"] = log.losses(), log.find("was not saved")
        answers["left"] = sorted(path.name for path in checkpoints.glob("global_step*"))
        all_answers[name] = answers
    return all_answers


def test_full_disk_loses_no_checkpoint(tmp_path: Path) -> None:
    ranks = processes.run(2, full_disk, str(tmp_path))
    for found in (rank[name] for rank in ranks for name in ("waiting", "native")):
        assert found["saved"] == [(2, True), (4, False), (6, True), (8, True)]
        assert found["there"][1] == ["global_step2"], "nothing half-written stays"
        assert found["pointer"][1] == "global_step2"
    for name in FULL:
        found = ranks[0][name]
        assert len(found["says"]) == 1
        assert "iteration 4 was not saved, the checkpoint of iteration 2 stays" in found["says"][0]
        assert "goes on: rank 1: node " in found["says"][0]
        assert "File too large" in found["says"][0]
        assert list(found["losses"]) == list(range(1, 9)), "training went on"
        assert found["left"] == ["global_step6", "global_step8"], "keep: 2"


# The step at which rank 0 finds the disk full when it writes this file.
FULL_AT = {
    2: "__0_0.distcp",
    3: ".metadata.tmp",
    4: "rng_states.pt",
    5: ".__0_0.distcp.crc32.0.partial",
    6: ".manifest.json.0.partial",
    7: "../.latest.0.partial",
}


UNSYNCED_AT = 8


def unsynced(_: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def full_disk_of_rank_0(root: str) -> dict[str, Any]:
    """Save each of nine steps; return what is there after each."""
    answers: dict[str, Any] = {"saved": [], "there": [], "pointer": []}
    checkpoints = Path(root) / "checkpoints"

    def prepare(trained: Training) -> None:
        write, save = trained.engine.states.save, trained.checkpoints.save

        def on_full_disk(directory: Path, extra: Any) -> None:
            if dist.get_rank() == 0 and trained.iteration in FULL_AT:
                (directory / FULL_AT[trained.iteration]).symlink_to("/dev/full")
            write(directory, extra)

        def saved(iteration: int, state: Any) -> bool:
            fails = dist.get_rank() == 0 and iteration == UNSYNCED_AT
            with contextlib.ExitStack() as patches:
                # So the names of files that are being written are known.
                patches.enter_context(mock.patch.object(secrets, "token_hex", return_value="0"))
                if fails:
                    patches.enter_context(mock.patch.object(os, "fsync", unsynced))
                answers["saved"].append(save(iteration, state))
            answers["there"].append(sorted(path.name for path in checkpoints.glob("global_step*")))
            answers["pointer"].append((checkpoints / "latest").read_text())
            return bool(answers["saved"][-1])

        trained.engine.states.save = on_full_disk  # type: ignore[method-assign]
        trained.checkpoints.save = saved  # type: ignore[method-assign]

    config = training.configure(GPT, {"checkpoint.interval": 1, "optimisation.train_iterations": 9})
    log = resuming.train(config, Path(root), prepare=prepare)
    return {**answers, "losses": log.losses(), "says": log.find("rank 0: ")}


def test_previous_checkpoint_stays_when_rank_0_cannot_write_a_file(tmp_path: Path) -> None:
    for found in processes.run(2, full_disk_of_rank_0, str(tmp_path)):
        assert found["saved"] == [True, *[False] * 5, True, False, True]
        first, seventh, ninth = (f"global_step{step}" for step in (1, 7, 9))
        assert found["there"] == [[first]] * 6 + [[first, seventh]] * 2 + [[first, seventh, ninth]]
        # At the seventh step, it is the pointer that cannot be written.
        assert found["pointer"] == [first] * 8 + [ninth]
        assert list(found["losses"]) == list(range(1, 10)), "training went on"
        for step, line in zip(range(2, 9), found["says"], strict=True):
            what = "the checkpoint pointers could not be written"
            if step != 7:
                stays = 7 if step == UNSYNCED_AT else 1
                what = f"iteration {step} was not saved, the checkpoint of iteration {stays} stays, "
                what += "and training goes on"
            assert line.startswith(f"{what}: rank 0: node ")
            why = "Input/output error" if step == UNSYNCED_AT else "No space left on device"
            assert line.endswith(f": {why}")


class _KilledError(Exception):
    """Ends a training without its last save; ``processes.run`` then kills its process."""


def killed(root: str) -> None:
    """Save at 2 and begin to save at 4, whose files are there when the processes are killed."""
    never = threading.Event()
    write = distributed.write

    def stuck(directory: Path, *arguments: Any) -> None:
        write(directory, *arguments)
        if "global_step4" in directory.name:
            written.set()
            never.wait()

    for engine in ENGINES:
        written = threading.Event()

        def prepare(trained: Training, written: threading.Event = written) -> None:
            save = trained.checkpoints.save

            def saved(iteration: int, state: Any) -> bool:
                began = save(iteration, state)
                if iteration == 4:
                    written.wait()
                    raise _KilledError
                return began

            trained.checkpoints.save = saved  # type: ignore[method-assign]

        config = training.configure(ASYNCHRONOUS, {"engine": engine})
        with mock.patch.object(distributed, "write", stuck), pytest.raises(_KilledError):
            resuming.train(config, Path(root) / engine, prepare=prepare)


def resume_after_kill(root: str) -> dict[str, dict[str, Any]]:
    """Resume what was killed, and train without a stop."""
    found = {}
    for engine in ENGINES:
        config = training.configure(ASYNCHRONOUS, {"engine": engine})
        checkpoints = Path(root) / engine / "checkpoints"
        left = sorted(path.name for path in checkpoints.glob("global_step*"))
        dist.barrier()
        found[engine] = {
            "left": left,
            "losses": resuming.train(config, Path(root) / engine).losses(),
            "unbroken": resuming.train(config, Path(root) / f"{engine}-unbroken").losses(),
            "then": sorted(path.name for path in checkpoints.glob("global_step*")),
        }
    return found


ENGINES = ("deepspeed", "native")


ASYNCHRONOUS = training.configure(GPT, {"checkpoint.asynchronous": True, "checkpoint.interval": 2})


def test_previous_checkpoint_stays_when_ranks_are_killed_during_an_asynchronous_save(tmp_path: Path) -> None:
    processes.run(2, killed, str(tmp_path))
    for resumed in processes.run(2, resume_after_kill, str(tmp_path)):
        for found in resumed.values():
            assert found["left"] == ["global_step2", "global_step4.partial"]
            assert found["losses"] == {step: found["unbroken"][step] for step in range(3, 9)}
            assert found["then"] == [f"global_step{step}" for step in (2, 4, 6, 8)]


class _StopAt:
    """A signal that one rank receives in the middle of a step."""

    def __init__(self) -> None:
        self.training: Training | None = None

    @property
    def received(self) -> signal.Signals | None:
        there = self.training is not None and self.training.iteration >= 3 and dist.get_rank() == 1
        return signal.SIGUSR1 if there else None


def end_for_each_reason(root: str) -> dict[str, Any]:
    """End a training for each possible reason."""
    answers: dict[str, Any] = {}
    log, stop = Log(), _StopAt()
    trained = Training(PIPELINE, Path(root) / "signal", write=log, stop=stop)
    stop.training = trained
    trained.run()
    trained.close()
    answers["signal"] = trained.iteration, trained.reason
    reasons: dict[str, dict[str, Any]] = {
        "duration": {"checkpoint.exit_duration_minutes": 1e-6},
        "interval": {"checkpoint.exit_interval": 3},
    }
    for name, changes in reasons.items():
        trained = Training(training.configure(PIPELINE, changes), Path(root) / name, write=Log())
        trained.run()
        trained.close()
        answers[name] = trained.iteration, trained.reason
    try:
        resuming.train(training.configure(PIPELINE, {"data.mock": False}), Path(root) / "no-data")
    except TrainerError as error:
        answers["no data"] = str(error)
    answers["tokens"] = sorted(path.name for path in Path(root).rglob(".rdm*"))
    return answers


def test_all_ranks_end_at_the_same_step(tmp_path: Path) -> None:
    ranks = processes.run(2, end_for_each_reason, str(tmp_path))
    for name, iteration in {"signal": 4, "duration": 2, "interval": 3}.items():
        assert [rank[name][0] for rank in ranks] == [iteration, iteration]
        assert (tmp_path / name / "checkpoints" / "latest").read_text() == f"global_step{iteration}"
    assert "SIGUSR1" in ranks[1]["signal"][1]
    assert ranks[0]["tokens"] == []


def test_ranks_wait_longer_than_the_operation_timeout(waits: Callable[[], list[float]]) -> None:
    assert min(waits()) > LIMIT_S

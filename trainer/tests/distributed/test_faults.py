# SPDX-License-Identifier: GPL-3.0-or-later
"""Disks that nodes do not share, full disks, checkpoints with missing parts, and orderly ends."""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import re
import resource
import secrets
import shutil
import signal
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch.distributed as dist

from rdm_core.errors import TrainerError
from rdm_trainer.checkpoint import distributed, files
from rdm_trainer.checkpoint.partitions import PartitionReader
from rdm_trainer.checkpoint.storage import Storage
from rdm_trainer.distributed.collective import Collective
from rdm_trainer.train import Training
from tests.distributed import deepspeed_files, processes, resuming, training
from tests.distributed.resuming import GPT, Log, parallel

NATIVE = {"engine": "native"}
PIPELINE = training.configure(GPT, parallel(pipeline=2))
SAVES = training.configure(PIPELINE, {"checkpoint.interval": 2})


def node(root: str, shift: int = 0) -> Path:
    """Return this rank's own disk, or that of the rank ``shift`` further on."""
    return Path(root) / f"node{(dist.get_rank() + shift) % dist.get_world_size()}"


def alone(action: Any, *arguments: Any) -> None:
    """Make rank 0 do something between two runs."""
    if dist.get_rank() == 0:
        action(*arguments)
    dist.barrier()


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
def waiting() -> Iterator[Callable[[], list[float]]]:
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


def test_disks_that_nodes_do_not_share(tmp_path: Path) -> None:
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
            alone(lambda place=checkpoints: (place / "latest").write_text("nothing"))
        log = resuming.train(config, Path(root) / name, prepare=prepare)
        answers["losses"], answers["says"] = log.losses(), log.find("was not saved")
        answers["left"] = sorted(path.name for path in checkpoints.glob("global_step*"))
        all_answers[name] = answers
    return all_answers


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
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


def test_whatever_rank_0_cannot_write_the_checkpoint_before_stays(tmp_path: Path) -> None:
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


def after_the_kill(root: str) -> dict[str, dict[str, Any]]:
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


def test_a_kill_during_an_asynchronous_save_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    processes.run(2, killed, str(tmp_path))
    for said in processes.run(2, after_the_kill, str(tmp_path)):
        for found in said.values():
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


def ends(root: str) -> dict[str, Any]:
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


def test_ends_in_order_at_the_same_step_on_all_ranks(tmp_path: Path) -> None:
    ranks = processes.run(2, ends, str(tmp_path))
    for name, iteration in {"signal": 4, "duration": 2, "interval": 3}.items():
        assert [rank[name][0] for rank in ranks] == [iteration, iteration]
        assert (tmp_path / name / "checkpoints" / "latest").read_text() == f"global_step{iteration}"
    assert "SIGUSR1" in ranks[1]["signal"][1]
    assert ranks[0]["tokens"] == []


def flip(path: Path, *, of_description: bool = False) -> None:
    """Flip the highest bit of an exponent in a file's largest tensor, or a bit of what describes all."""
    content = bytearray(path.read_bytes())
    if path.suffix == ".distcp" or path.name == ".metadata":
        content[len(content) // 2] ^= 0x40
        path.write_bytes(content)
        return
    with zipfile.ZipFile(path) as archive:
        parts = archive.infolist()
        part = max(parts, key=lambda part: part.file_size)
        if of_description:
            (part,) = (part for part in parts if part.filename.endswith("/data.pkl"))
        begin = content.index(archive.read(part), part.header_offset)
    content[begin + 4 * 10 + 3] ^= 0x40
    path.write_bytes(content)


DESCRIBED = parallel(tensor=2)
OPTIMISER = "global_step4/zero_pp_rank_1_mp_rank_00_optim_states.pt"
# (whose files, the file, the layout that resumes)
FLIPPED = {
    "tensors": ("deepspeed", "global_step4/__1_0.distcp", parallel()),
    "random": ("deepspeed", "global_step4/rng_states.pt", parallel()),
    "another layout": ("deepspeed", "global_step4/__1_0.distcp", parallel(zero_stage=2)),
    "another engine": ("deepspeed", "global_step4/.metadata", {**NATIVE, **parallel()}),
    "native": ("native", "global_step4/__1_0.distcp", NATIVE),
    "earlier": ("earlier", OPTIMISER, parallel()),
    "earlier, another engine": ("earlier", OPTIMISER, {**NATIVE, **parallel()}),
    "earlier, random": ("earlier", "global_step4/rng_states.pt", parallel()),
    "description": ("earlier", "global_step4/zero_pp_rank_0_mp_rank_00_optim_states.pt", DESCRIBED),
}


def flipped_bits(root: str) -> dict[str, str]:
    """Resume from a checkpoint with one flipped bit, for each of these files."""
    said = {}
    resuming.train(GPT, Path(root) / "saved-deepspeed", stop_after=4)
    resuming.train(training.configure(GPT, NATIVE), Path(root) / "saved-native", stop_after=4)
    with deepspeed_files.written():
        resuming.train(GPT, Path(root) / "saved-earlier", stop_after=4)
    for name, (saved, file, layout) in FLIPPED.items():
        job_dir = Path(root) / name

        def damage(
            saved: str = saved, file: str = file, job_dir: Path = job_dir, layout: Any = layout
        ) -> None:
            shutil.copytree(Path(root) / f"saved-{saved}", job_dir)
            flip(job_dir / "checkpoints" / file, of_description=layout is DESCRIBED)

        alone(damage)
        try:
            resuming.train(training.configure(GPT, layout), job_dir)
        except TrainerError as error:
            said[name] = str(error)
    said["unreadable"] = unreadable(root)
    return said


def unreadable(root: str) -> str:
    """Resume under another layout where the files cannot be read on the second rank."""
    job_dir = Path(root) / "unreadable"
    alone(shutil.copytree, Path(root) / "saved-earlier", job_dir)
    failure = OSError(errno.EIO, os.strerror(errno.EIO), "a.pt")
    fails = mock.patch.object(PartitionReader, "read_data", side_effect=failure)
    with fails if dist.get_rank() == 1 else contextlib.nullcontext():
        try:
            resuming.train(training.configure(GPT, parallel(tensor=2)), job_dir)
        except TrainerError as error:
            return str(error)
    return ""


def test_a_flipped_bit_is_not_loaded(tmp_path: Path) -> None:
    ranks = processes.run(2, flipped_bits, str(tmp_path))
    for said in ranks:
        assert said.keys() == {*FLIPPED, "unreadable"}
        for name, (_, file, _) in FLIPPED.items():
            folder, _, inner = file.partition("/")
            assert f"checkpoints/{folder} is damaged in {inner}; " in said[name]
        assert "; no earlier checkpoint is left. " in said["tensors"]
        expected = r"/global_step4 cannot be read: rank 1: node .+: a\.pt: Input/output error\.$"
        assert re.search(expected, said["unreadable"])


# What damages the newest of two checkpoints → the line that names it.
DAMAGED: dict[str, tuple[str, str]] = {
    "flipped": ("__1_0.distcp", "{step} is damaged in __1_0.distcp; {instead}"),
    "metadata": (".metadata", "{step} is damaged in .metadata; {instead}"),
    "missing": ("__1_0.distcp", "{incomplete}: __1_0.distcp is missing or has another size"),
    "manifest": (files.MANIFEST, "{incomplete}: its manifest.json is missing or damaged"),
}


def spoil(name: str, step: Path) -> None:
    """Damage a file of a checkpoint in a way of ``DAMAGED``."""
    path = step / DAMAGED[name][0]
    if name == "missing":
        path.unlink()
    elif name == "manifest":
        path.write_text(path.read_text().replace("consumed", "consumee"))
    else:
        flip(path)


def damaged_newest(root: str) -> dict[str, Any]:
    """Resume from checkpoints of iterations 2 and 4 whose newest is damaged."""
    every_two = training.configure(GPT, {"checkpoint.interval": 2, "optimisation.train_iterations": 4})
    saved = Path(root) / "saved"
    answers: dict[str, Any] = {"saved": resuming.train(every_two, saved).losses()}
    alone(shutil.copytree, saved, Path(root) / "all")

    def resume(name: str, job: Any, job_dir: Path) -> None:
        log = resuming.train(job, job_dir)
        answers[name] = log.losses(), log.find("iteration 4 is not") + log.find("damaged")

    for name in DAMAGED:
        alone(shutil.copytree, saved, Path(root) / name)
        alone(spoil, name, Path(root) / name / "checkpoints/global_step4")
        resume(name, every_two, Path(root) / name)
    # Another job's checkpoints are only read.
    alone(spoil, "flipped", saved / "checkpoints/global_step4")
    resume("load", training.configure(every_two, {"checkpoint.load": str(saved)}), Path(root) / "load")
    # Disks that the nodes do not share, with the native engine.
    native = training.configure(every_two, NATIVE)
    resuming.train(native, node(f"{root}/disks"))
    alone(spoil, "flipped", Path(root) / "disks/node1/checkpoints/global_step4")
    resume("disks", native, node(f"{root}/disks"))
    for step in ("global_step2", "global_step4"):
        alone(spoil, "flipped", Path(root) / "all/checkpoints" / step)
    try:
        resuming.train(every_two, Path(root) / "all")
    except TrainerError as error:
        answers["all"] = str(error)
    return answers


def test_the_checkpoint_before_a_damaged_one_is_taken(tmp_path: Path) -> None:
    ranks = processes.run(2, damaged_newest, str(tmp_path))
    found, saved = ranks[0], ranks[0]["saved"]

    def line(name: str, job: str) -> str:
        return DAMAGED[name][1].format(
            step=tmp_path / job / "checkpoints/global_step4",
            instead="the checkpoint of iteration 2 is taken instead",
            incomplete="the checkpoint of iteration 4 is not complete and is not taken",
        )

    for name in DAMAGED:
        losses, lines = found[name]
        assert losses == {step: saved[step] for step in (3, 4)}, name
        checkpoints = tmp_path / name / "checkpoints"
        assert lines[0] == line(name, name)
        aside = checkpoints / "global_step4.aside"
        if "instead" in DAMAGED[name][1]:
            assert lines[1:] == [f"damaged checkpoints are set aside in {checkpoints}: {aside.name}"]
            assert (aside / DAMAGED[name][0]).exists()
        else:
            assert not aside.exists()
        assert sorted(files.complete_steps([files.scan(checkpoints)])) == [2, 4]
        assert files.scan(checkpoints).points_to(4)
    losses, lines = found["load"]
    assert (list(losses), lines) == ([3, 4], [line("flipped", "saved")])
    assert sorted(files.scan(tmp_path / "saved/checkpoints").steps) == [2, 4]
    assert list(found["disks"][0]) == [3, 4]
    for number in range(2):
        checkpoints = tmp_path / f"disks/node{number}/checkpoints"
        assert (checkpoints / "global_step4.aside").is_dir()
        assert files.scan(checkpoints).points_to(4)
    for said in ranks:
        assert "all/checkpoints/global_step2 is damaged in __1_0.distcp; " in said["all"]
    assert sorted(files.scan(tmp_path / "all/checkpoints").steps) == [2, 4]


def refused_by_one(root: str) -> str | None:
    """Let the last rank fail where the others do not."""
    collective = Collective(datetime.timedelta(minutes=5))
    storage = Storage(Path(root), collective, create=False)

    def described() -> int:
        if collective.rank == 1:
            raise ValueError("the files have 8 of 16 elements of 0.weight")
        return collective.rank

    assert storage.all_or_none("global_step4", (), lambda: collective.rank) == collective.rank
    try:
        storage.all_or_none("global_step4", (), described)
    except TrainerError as error:
        return str(error)
    return None


def test_what_one_rank_cannot_read_is_refused_by_all(tmp_path: Path) -> None:
    for said in processes.run(2, refused_by_one, str(tmp_path)):
        assert said is not None
        assert said.startswith(f"{tmp_path}/global_step4 cannot be read: rank 1: node ")
        assert said.endswith(": ValueError: the files have 8 of 16 elements of 0.weight.")


def not_finite(root: str) -> dict[str, Any]:
    """Save at 2, 4, 6 and 8; one of rank 1's numbers becomes infinite or NaN before 6."""
    answers: dict[str, Any] = {}

    def prepare(trained: Training) -> None:
        engine: Any = trained.engine
        step = engine.train_step

        def spoiling(batches: Any) -> Any:
            result = step(batches)
            if trained.iteration == 5 and dist.get_rank() == 1:
                state: Any = next(iter(engine.deepspeed.optimizer.optimizer.state.values()))
                state["exp_avg"][3] = spoiled
            return result

        engine.train_step = spoiling

    for spoiled in (float("nan"), float("inf")):
        job_dir = Path(root) / str(spoiled)
        try:
            resuming.train(training.configure(GPT, {"checkpoint.interval": 2}), job_dir, prepare=prepare)
        except TrainerError as error:
            answers[str(spoiled)] = str(error)

    def unaware(trained: Training) -> None:
        prepare(trained)
        trained.engine.first_not_finite = lambda: None  # type: ignore[method-assign]

    # Earlier releases saved it.
    resuming.train(GPT, Path(root) / "saved", prepare=unaware, stop_after=6)
    try:
        resuming.train(GPT, Path(root) / "saved")
    except TrainerError as error:
        answers["loaded"] = str(error)
    return answers


def test_what_is_not_finite_does_not_become_the_newest(tmp_path: Path) -> None:
    ranks = processes.run(2, not_finite, str(tmp_path))
    for said in ranks:
        for spoiled in ("nan", "inf"):
            assert (
                "After iteration 6 there are values that are not finite (rank 1: part 0 of" in said[spoiled]
            )
            assert "goes on from the checkpoint of iteration 4" in said[spoiled]
            checkpoints = tmp_path / spoiled / "checkpoints"
            assert (checkpoints / "latest").read_text() == "global_step4"
            assert sorted(files.scan(checkpoints).steps) == [2, 4]
        assert "global_step6 has values that are not finite (rank 1: " in said["loaded"]


def test_waiting_has_no_time_limit(waiting: Callable[[], list[float]]) -> None:
    assert min(waiting()) > LIMIT_S

# SPDX-License-Identifier: GPL-3.0-or-later
"""Checkpoints whose files are damaged, cannot be read, or have values that are not finite."""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any
from unittest import mock

import torch.distributed as dist

from rdm_core.errors import TrainerError
from rdm_trainer.checkpoint import files
from rdm_trainer.checkpoint.partitions import PartitionReader
from rdm_trainer.checkpoint.storage import Storage
from rdm_trainer.distributed.collective import Collective
from rdm_trainer.train import Training
from tests.distributed import deepspeed_files, processes, resuming, training
from tests.distributed.resuming import GPT, alone, node, parallel

NATIVE = {"engine": "native"}


def flip(path: Path, *, of_description: bool = False) -> None:
    """Flip the highest bit of an exponent in a file's largest tensor, or a bit of its metadata."""
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
    errors = {}
    resuming.train(GPT, Path(root) / "saved-deepspeed", stop_after=4)
    resuming.train(training.configure(GPT, NATIVE), Path(root) / "saved-native", stop_after=4)
    with deepspeed_files.saving():
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
            errors[name] = str(error)
    errors["unreadable"] = unreadable(root)
    return errors


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


def test_checkpoint_with_a_flipped_bit_is_not_loaded(tmp_path: Path) -> None:
    ranks = processes.run(2, flipped_bits, str(tmp_path))
    for errors in ranks:
        assert errors.keys() == {*FLIPPED, "unreadable"}
        for name, (_, file, _) in FLIPPED.items():
            folder, _, inner = file.partition("/")
            assert f"checkpoints/{folder} is damaged in {inner}; " in errors[name]
        assert "; no earlier checkpoint is left. " in errors["tensors"]
        expected = r"/global_step4 cannot be read: rank 1: node .+: a\.pt: Input/output error\.$"
        assert re.search(expected, errors["unreadable"])


# What damages the newest of two checkpoints → the line that names it.
DAMAGED: dict[str, tuple[str, str]] = {
    "flipped": ("__1_0.distcp", "{step} is damaged in __1_0.distcp; {instead}"),
    "metadata": (".metadata", "{step} is damaged in .metadata; {instead}"),
    "missing": ("__1_0.distcp", "{incomplete}: __1_0.distcp is missing or has another size"),
    "manifest": (files.MANIFEST, "{incomplete}: its manifest.json is missing or damaged"),
}


def damage_file(name: str, step: Path) -> None:
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
        alone(damage_file, name, Path(root) / name / "checkpoints/global_step4")
        resume(name, every_two, Path(root) / name)
    # Another job's checkpoints are only read.
    alone(damage_file, "flipped", saved / "checkpoints/global_step4")
    resume("load", training.configure(every_two, {"checkpoint.load": str(saved)}), Path(root) / "load")
    # Disks that the nodes do not share, with the native engine.
    native = training.configure(every_two, NATIVE)
    resuming.train(native, node(f"{root}/disks"))
    alone(damage_file, "flipped", Path(root) / "disks/node1/checkpoints/global_step4")
    resume("disks", native, node(f"{root}/disks"))
    for step in ("global_step2", "global_step4"):
        alone(damage_file, "flipped", Path(root) / "all/checkpoints" / step)
    try:
        resuming.train(every_two, Path(root) / "all")
    except TrainerError as error:
        answers["all"] = str(error)
    return answers


def test_job_resumes_from_the_checkpoint_before_a_damaged_one(tmp_path: Path) -> None:
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
    for errors in ranks:
        assert "all/checkpoints/global_step2 is damaged in __1_0.distcp; " in errors["all"]
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


def test_checkpoint_that_one_rank_cannot_read_is_refused_by_all(tmp_path: Path) -> None:
    for errors in processes.run(2, refused_by_one, str(tmp_path)):
        assert errors is not None
        assert errors.startswith(f"{tmp_path}/global_step4 cannot be read: rank 1: node ")
        assert errors.endswith(": ValueError: the files have 8 of 16 elements of 0.weight.")


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


def test_checkpoint_with_values_that_are_not_finite_does_not_become_the_newest(tmp_path: Path) -> None:
    ranks = processes.run(2, not_finite, str(tmp_path))
    for errors in ranks:
        for spoiled in ("nan", "inf"):
            assert (
                "After iteration 6 there are values that are not finite (rank 1: part 0 of" in errors[spoiled]
            )
            assert "goes on from the checkpoint of iteration 4" in errors[spoiled]
            checkpoints = tmp_path / spoiled / "checkpoints"
            assert (checkpoints / "latest").read_text() == "global_step4"
            assert sorted(files.scan(checkpoints).steps) == [2, 4]
        assert "global_step6 has values that are not finite (rank 1: " in errors["loaded"]

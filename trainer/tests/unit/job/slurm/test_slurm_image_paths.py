# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that a job's processes would not see in an image are reported before it is submitted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rdm_core import config as configuration
from rdm_core.config.job import SlurmConfig
from rdm_job.slurm import container, image, image_paths
from rdm_trainer.data.indexed_dataset import IndexedWriter


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The nodes' shared file system, with one data set."""
    (tmp_path / "shared/pile").mkdir(parents=True)
    with IndexedWriter(tmp_path / "shared/pile/text", np.uint16) as writer:
        for _ in range(200):
            writer.add([5] * 64)
            writer.end_document()
    return tmp_path / "shared"


def problems(jobs: Path, mounts: list[str], **sections: Any) -> list[str]:
    config = configuration.from_dict(
        {
            "model": {
                "layers": 2,
                "hidden_size": 32,
                "attention_heads": 2,
                "seq_length": 16,
                "vocab_size": 128,
            },
            "optimisation": {"train_iterations": 2},
            **sections,
        }
    )
    return image_paths.problems(config, container.mounted(jobs, mounts))


def data(prefix: str, **more: Any) -> dict[str, Any]:
    return {"data": {"blend": [prefix], "split": "1,0,0", **more}}


def test_paths_are_those_in_the_image(shared: Path, tmp_path: Path) -> None:
    assert problems(tmp_path / "jobs", [f"{shared}/pile:/data"], **data("/data/text")) == []
    assert problems(tmp_path / "jobs", [str(shared)], **data(f"{shared}/pile/text")) == []
    # The directory of the jobs is always mounted.
    assert problems(shared, [], **data(f"{shared}/pile/text")) == []


def test_path_outside_the_mounts_is_named_with_the_mount_to_add(shared: Path, tmp_path: Path) -> None:
    assert problems(tmp_path / "jobs", [f"{shared}/pile:/data"], **data(f"{shared}/pile/text")) == [
        f"data.blend {shared}/pile/text is on the host, but the processes run in an image, which has only "
        f"the directory of the jobs and launcher.slurm.mounts: add {shared}/pile there, and give the path "
        "that it has in the image."
    ]
    # A mount at the same path would hide the jobs.
    hidden = problems(shared / "pile/jobs", [], **data(f"{shared}/pile/text"))
    assert f"add {shared}/pile:/data there" in hidden[0]


def test_no_hint_suggests_mounting_the_root_directory(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path / "jobs", [], data={"mock": True}, checkpoint={"load": "/usr"})
    assert "move it from / into a directory, add that there, and give" in problem


@pytest.fixture
def hidden(tmp_path: Path) -> Iterator[Path]:
    """A directory that this user may not read."""
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield hidden
    os.seteuid(user)
    hidden.chmod(0o700)


def test_paths_that_this_user_may_not_read_are_left_to_the_nodes(hidden: Path) -> None:
    with pytest.raises(PermissionError):
        (hidden / "text.idx").exists()
    assert image_paths.is_there(str(hidden / "text.idx")) is None
    jobs = Path("/nowhere/jobs")
    assert problems(jobs, [], **data(f"{hidden}/text")) == []
    assert problems(jobs, [f"{hidden}/pile:/data"], **data("/data/text")) == []
    assert problems(jobs, ["/:/data"], **data(f"/data{hidden}/text")) == []
    assert image.problems(SlurmConfig(image=str(hidden / "train.sqsh"))) == []


def test_missing_path_behind_a_mount_is_named_inside_and_outside(shared: Path, tmp_path: Path) -> None:
    assert problems(tmp_path / "jobs", [f"{shared}/pile:/data"], **data("/data/wiki")) == [
        f"data.blend /data/wiki is {shared}/pile/wiki on the nodes, by launcher.slurm.mounts, and there is "
        f"no {shared}/pile/wiki.idx."
    ]


def test_innermost_mount_wins(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    mounts = [f"{shared}:/data", f"{tmp_path}/empty:/data/pile"]
    (problem,) = problems(tmp_path / "jobs", mounts, **data("/data/pile/text"))
    assert f"is {tmp_path}/empty/text on the nodes" in problem


def test_data_behind_a_mount_is_checked_like_any_other(shared: Path, tmp_path: Path) -> None:
    (shared / "pile/text.bin").unlink()
    (problem,) = problems(tmp_path / "jobs", [f"{shared}/pile:/data"], **data("/data/text"))
    assert f"{shared}/pile/text.bin is missing" in problem


@pytest.mark.parametrize("path", ["/opt/in-the-image/text", "beside/the-job"])
def test_paths_inside_the_image_or_on_nodes_are_not_checked(path: str, tmp_path: Path) -> None:
    assert problems(tmp_path / "jobs", [], **data(path)) == []
    assert problems(tmp_path / "jobs", ["/nowhere/scratch:/opt"], **data(path)) == []


def test_paths_of_tokenizers_and_checkpoints_are_checked_too(shared: Path, tmp_path: Path) -> None:
    (shared / "vocab.json").write_text("{}")
    (shared / "merges.txt").write_text("")
    tokenizer = {"vocab": f"{shared}/vocab.json", "merges": "/data/merges"}
    found = problems(
        tmp_path / "jobs",
        [f"{shared}:/data"],
        **data("/data/pile/text", tokenizer=tokenizer),
        checkpoint={"load": str(shared)},
    )
    assert [one.split(" ")[0] for one in found] == [
        "data.tokenizer.vocab",
        "data.tokenizer.merges",
        "checkpoint.load",
    ]

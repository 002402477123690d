# SPDX-License-Identifier: GPL-3.0-or-later
"""A job's image by the name that `images_list` has for it."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    sentences,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.jobs.job_image import from_list
from ansible_collections.rdm.provision.plugins.plugin_utils.jobs.job_plan import Slurm, Wanted, plan_job

SHA256 = "a" * 64
IMAGES: list[dict[str, Any]] = [
    {"name": "lab/train:1", "source": "archive", "path": "/shared/train.tar", "sha256": SHA256},
    {"name": "lab/plain", "source": "archive", "path": "/shared/plain.tar"},
    {"name": "lab/mine:1", "source": "archive", "path": "mine.tar", "remote_src": False},
    {"name": "nvcr.io/nvidia/pytorch:25.06-py3", "source": "registry"},
    {"name": "lab/near:1", "source": "archive", "path": "images/near.tar"},
    {"name": "lab/small:1", "source": "archive", "path": "/shared/small.tar.zst", "remote_src": True},
    {"name": "lab/odd:1", "source": "archive", "path": "/shared/odd"},
    {"name": "lab/built:1", "source": "build", "build": {"path": "/src"}},
]


@pytest.mark.parametrize(
    ("image", "overrides"),
    [
        (None, []),
        ("/shared/other.sqsh", []),
        ("docker://busybox", []),
        (
            "lab/train:1",
            ["launcher.slurm.image=/shared/train.tar", f"launcher.slurm.image_sha256={SHA256}"],
        ),
        # As Docker shows it.
        ("docker.io/lab/plain:latest", ["launcher.slurm.image=/shared/plain.tar"]),
        (
            "nvcr.io/nvidia/pytorch:25.06-py3",
            ["launcher.slurm.image=docker://nvcr.io/nvidia/pytorch:25.06-py3"],
        ),
    ],
)
def test_a_name_of_the_list_is_where_its_image_is(image: str | None, overrides: list[str]) -> None:
    assert from_list(image, IMAGES) == (overrides, [])


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (
            "lab/trian:1",
            "launcher.slurm.image lab/trian:1 is no path, no docker://NAME, and not in images_list: did you "
            "mean lab/train:1?",
        ),
        ("lab/mine:1", "is an archive on this machine (mine.tar): copy it to a directory that all nodes see"),
        ("lab/near:1", "is an archive at a relative path (images/near.tar): list its whole path, which all"),
        (
            "lab/small:1",
            "is an archive that is no .tar, .tar.gz, .tgz (/shared/small.tar.zst): unpack it (zstd -d "
            "/shared/small.tar.zst), and list /shared/small.tar",
        ),
        ("lab/odd:1", "is an archive that is no .tar, .tar.gz, .tgz (/shared/odd): rename it"),
        ("lab/built:1", "is built by each node's Docker, which jobs of Slurm do not use: docker save it"),
    ],
)
def test_image_that_slurms_nodes_cannot_read_is_refused(image: str, message: str) -> None:
    overrides, problems = from_list(image, IMAGES)
    assert (overrides, message in sentences(problems)[0]) == ([], True), problems


def test_inventory_without_an_image_list_is_reported() -> None:
    (problem,) = from_list("lab/train:1", [])[1]
    message = "give a path or docker://NAME; that is empty, and images_profiles is for containers alone"
    assert message in problem.sentence


def test_a_digest_of_the_jobs_own_has_to_be_that_of_the_list() -> None:
    assert from_list("lab/train:1", IMAGES, SHA256.upper())[1] == []
    assert from_list("lab/plain", IMAGES, "b" * 64) == (["launcher.slurm.image=/shared/plain.tar"], [])
    overrides, (problem,) = from_list("lab/train:1", IMAGES, "b" * 64)
    message = f"has the sha256 {SHA256} in images_list, and launcher.slurm.image_sha256 is {'b' * 64}: leave"
    assert (overrides, message in problem.sentence) == ([], True)


def plan(*overrides: str, login: str = "login1") -> list[str]:
    text = "launcher: {kind: slurm, slurm: {image: lab/plain}}"
    return plan_job(
        Wanted(text, "gpt.yaml", overrides), [], [login], 1.0, Slurm(login, images=IMAGES)
    ).overrides


def test_a_job_through_slurm_has_the_path_of_its_image() -> None:
    assert plan() == ["launcher.slurm.image=/shared/plain.tar"]
    # The last override counts, and the path is added after it.
    assert plan("launcher.slurm.image=lab/train:1")[1] == "launcher.slurm.image=/shared/train.tar"
    with pytest.raises(PreconditionFailed, match="not in images_list"):
        plan("launcher.slurm.image=lab/none:9")
    with pytest.raises(PreconditionFailed, match=r"in images_list, and launcher\.slurm\.image_sha256 is b"):
        plan("launcher.slurm.image=lab/train:1", f"launcher.slurm.image_sha256={'b' * 64}")

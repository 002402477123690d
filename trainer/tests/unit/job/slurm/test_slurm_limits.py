# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests that the cluster could never fulfil are refused before the job is submitted."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from rdm_core import config as configuration
from rdm_job.slurm import limits
from rdm_job.slurm.script import script

RECORDS = Path(__file__).parent / "records"
PARTITIONS = limits.partitions((RECORDS / "partitions-22.05.txt").read_text())
NODES = limits.nodes((RECORDS / "nodes-22.05.txt").read_text())


def problems(**slurm: Any) -> list[str]:
    config = configuration.from_dict({"launcher": {"kind": "slurm", "slurm": slurm}})
    return limits.problems(config, PARTITIONS, NODES)


def test_scontrol_output_is_parsed() -> None:
    assert [(one.name, one.is_default, one.nodes, one.most_seconds) for one in PARTITIONS] == [
        ("hgx", False, 1, None),
        ("gpu2", True, 2, 86400),
    ]
    assert [(node.name, node.partitions, node.gres, node.cpus, node.mem) for node in NODES] == [
        ("t1", ("hgx",), {"gpu:hgx": 4}, 8, 4000),
        ("t2", ("gpu2",), {"gpu:a10": 4}, 8, 4000),
        ("t3", ("gpu2",), {"gpu:a10": 4}, 8, 4000),
    ]


@pytest.mark.parametrize(
    "slurm",
    [
        {},
        {"nodes": {"hgx": 1, "gpu2": 2}, "gres": "gpu:4", "cpus": 8, "mem": "3G"},
        {"nodes": {"hgx": 1, "gpu2": 2}, "gres": {"hgx": "gpu:hgx:4", "gpu2": "gpu:a10:1"}, "time": "1-0"},
        {"partition": "hgx", "time": "9-0", "gpus_per_node": "hgx:2"},
    ],
)
def test_requests_that_the_cluster_can_fulfil_are_accepted(slurm: dict[str, Any]) -> None:
    assert problems(**slurm) == []


@pytest.mark.parametrize(
    ("slurm", "message"),
    [
        ({"partition": "gpu"}, "Slurm has no partition gpu; did you mean gpu2?"),
        ({"partition": "big"}, "Slurm has no partition big; there are hgx, gpu2."),
        (
            {"nodes": 5},
            "The job requests 5 nodes, but partition gpu2 has 2: Slurm would let it wait for ever.",
        ),
        ({"nodes": {"hgx": 2, "gpu2": 2}}, "The job requests 2 nodes, but partition hgx has 1"),
        ({"gres": "gpu:hgx:4"}, "No node of partition gpu2 has gpu:hgx; they have gpu:a10:4."),
        ({"gres": "tpu:1"}, "No node of partition gpu2 has tpu; they have gpu:a10:4."),
        ({"gres": "gpu:8"}, "A node of partition gpu2 has at most 4 of gpu, and the job requests 8."),
        ({"time": "2-0"}, "launcher.slurm.time 2-0 is more than the 1-00:00:00 of partition gpu2"),
        ({"cpus": 9}, "A node of partition gpu2 has at most 8 CPUs, and the job requests 9."),
        ({"mem": "8G"}, "has at most 4000 MiB of memory, and the job requests 8192."),
        ({"constraint": "ib&nvme"}, "No node of partition gpu2 has the feature ib; they have no features."),
    ],
)
def test_impossible_requests_are_named_with_values_that_work(slurm: dict[str, Any], message: str) -> None:
    assert any(message in problem for problem in problems(**slurm))


def test_enough_nodes_must_have_all_requested_features() -> None:
    text = (RECORDS / "nodes-22.05.txt").read_text().replace("NodeName=t3 ", "NodeName=t3 ").splitlines()
    text[2] = text[2].replace("Gres=gpu:a10:4", "Gres=gpu:a10:2")
    config = configuration.from_dict(
        {"launcher": {"kind": "slurm", "slurm": {"nodes": 2, "gres": "gpu:a10:4"}}}
    )
    (message,) = limits.problems(config, PARTITIONS, limits.nodes("\n".join(text)))
    assert message.startswith("Only 1 of the 2 nodes of partition gpu2 have all that the job requests")


def test_closed_partition_and_partition_of_others_are_refused() -> None:
    text = (RECORDS / "partitions-22.05.txt").read_text()
    text = text.replace("State=UP", "State=DRAIN").replace("AllowAccounts=ALL", "AllowAccounts=chemistry")
    config = configuration.from_dict({"launcher": {"kind": "slurm", "slurm": {"account": "physics"}}})
    assert limits.problems(config, limits.partitions(text), NODES) == [
        "Partition gpu2 is drain.",
        "Partition gpu2 takes no jobs of account physics.",
    ]


def test_job_smaller_than_the_partitions_minimum_is_refused() -> None:
    text = (RECORDS / "partitions-22.05.txt").read_text().replace("MinNodes=0", "MinNodes=2")
    config = configuration.from_dict({"launcher": {"kind": "slurm"}})
    assert limits.problems(config, limits.partitions(text), NODES) == [
        "Jobs of partition gpu2 have at least 2 nodes, and this one requests 1: Slurm would let it wait for "
        "ever."
    ]


@pytest.mark.parametrize(
    ("default", "message"),
    [
        (False, "Slurm has no default partition; give launcher.slurm.partition: hgx or gpu2."),
        (
            None,
            "The default partition is not known; give launcher.slurm.partition: hgx or gpu2.",
        ),
    ],
)
def test_unknown_default_partition_is_not_reported_as_none(default: bool | None, message: str) -> None:
    there = [dataclasses.replace(one, is_default=default) for one in PARTITIONS]
    config = configuration.from_dict({"launcher": {"kind": "slurm"}})
    assert limits.problems(config, there, NODES) == [message]
    named = configuration.from_dict({"launcher": {"kind": "slurm", "slurm": {"partition": "gpu2"}}})
    assert limits.problems(named, there, NODES) == []


CONFIGS = Path(configuration.__file__).parents[2] / "configs"
CLUSTER = (PARTITIONS, NODES)
NO_GRES = (PARTITIONS, [dataclasses.replace(node, gres={}) for node in NODES])


def requests(
    *overrides: str, cluster: Any = CLUSTER, accelerator: str = "cuda"
) -> tuple[list[str], list[str]]:
    """Return the GPU requests of gpt2-xl.yaml, and the problems with them."""
    config = configuration.load(CONFIGS / "gpt2-xl.yaml", ["launcher.kind=slurm", *overrides])
    job = limits.with_gpus(config, accelerator, *cluster)
    lines = script("xl", "/jobs/xl", "/env/bin/python", job).splitlines()
    options = [line.removeprefix("#SBATCH --") for line in lines if re.search("gres|gpus", line)]
    return options, limits.without_gpus(job, accelerator, *cluster)


def test_devices_per_node_alone_requests_as_many_gpus() -> None:
    assert requests() == (["gpus-per-node=4"], [])
    assert requests("launcher.slurm.nodes={hgx: 1, gpu2: 7}") == (["gpus-per-node=4"] * 2, [])
    assert requests("launcher.slurm.nodes={hgx: 1, gpu2: 7}", "launcher.slurm.gres={hgx: gpu:hgx:4}") == (
        ["gres=gpu:hgx:4", "gpus-per-node=4"],
        [],
    )
    assert requests("launcher.slurm.gres=nvme:1") == (["gres=nvme:1", "gpus-per-node=4"], [])


def test_gpus_are_requested_only_where_slurm_has_them_and_ranks_use_them() -> None:
    assert requests(accelerator="cpu") == ([], [])
    assert requests(cluster=NO_GRES) == ([], [])
    assert requests("launcher.slurm.gpus_per_node=a10:8", accelerator="rocm") == (["gpus-per-node=a10:8"], [])


def test_a_job_of_fewer_gpus_than_processes_is_refused() -> None:
    assert requests("launcher.devices_per_node=null")[1] == [
        "The job requests no GPUs of the nodes; give launcher.devices_per_node, "
        "launcher.slurm.gpus_per_node or launcher.slurm.gres."
    ]
    assert requests("launcher.slurm.partition=gpu2", "launcher.slurm.gres=gpu:a10:2")[1] == [
        "launcher.devices_per_node is 4, but the job requests 2 GPUs of each node of partition gpu2; "
        "change launcher.slurm.gres."
    ]

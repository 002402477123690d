# SPDX-License-Identifier: GPL-3.0-or-later
"""Convert ``_00_conf.sh`` of the tdpp document's scripts to a job's configuration.

The file has the settings that change from run to run. The others (sequence length, learning rate, intervals,
fp16) are taken from the script that starts Megatron there (``_01_run_inter.sh``), which never changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rdm_core.config.checks import require
from rdm_core.config.read import from_dict
from rdm_core.errors import ConfigError

_SHAPES = {"xl": (48, 1600), "small": (24, 1024)}
"""Model → layers and width, which the scripts set if the file does not."""
_GPTS = ("xl", "small", "gpt", "gpt2")
_NUMBERS = (
    "NPROC_PER_NODE",
    "NNODES",
    "GLOBAL_BATCH_SIZE",
    "MICRO_BATCH_SIZE",
    "TENSOR_MP_SIZE",
    "PIPELINE_MP_SIZE",
)
_OPTIONAL = ("DP_SIZE", "WORLD_SIZE", "MASTER_PORT", "HIDDEN_SIZE", "NUM_LAYERS")
_SWITCHES = ("HOMOGENEOUS_CLUSTER", "NSYS", "PROFILE", "ZERO", "RELOAD_CONTAINER")
_FOLLOWS = ("PROFILE_ARGS", "ZERO_ARGS", "PIPELINE_MODEL_PARALLEL_SPLIT_RANK", "DP_SIZE", "WORLD_SIZE")
"""Variables that follow from others here, or that only a T5 needs."""


@dataclass(frozen=True)
class Imported:
    """A job, and notes for the user.

    Attributes:
        job: The configuration, with the keys that follow from the file.
        notes: What the configuration lacks, one sentence each.
    """

    job: Mapping[str, Any]
    notes: tuple[str, ...]


def job_of(settings: Mapping[str, str], source: str) -> Imported:
    """Return the job that settings describe.

    Args:
        settings: The variables of ``_00_conf.sh``.
        source: The file's name, for messages.

    Raises:
        ConfigError: A variable is missing or invalid, or the job could not start: the layout does not match
            the world, the batch is not divisible, or the partition does not match the layers.
    """
    model = settings.get("MODEL", "")
    if model.lower() not in _GPTS:
        raise ConfigError(
            [
                f"{source}: MODEL is {model!r}; a GPT is read, as {', '.join(_GPTS)}."
                " For a T5 begin with trainer/configs/t5-11b.yaml."
                if model
                else f"{source} does not set MODEL, so it is no _00_conf.sh."
            ]
        )
    problems: list[str] = []
    numbers = _numbers(settings, source, problems)
    switches = _switches(settings, source, problems)
    if problems:
        raise ConfigError(problems, source=source)
    layers, width = _SHAPES.get(model.lower(), (0, 0))
    layers, width = numbers.get("NUM_LAYERS", layers), numbers.get("HIDDEN_SIZE", width)
    if not layers or not width:
        raise ConfigError([f"{source} sets neither NUM_LAYERS and HIDDEN_SIZE nor a MODEL that has them."])
    world = numbers["NNODES"] * numbers["NPROC_PER_NODE"]
    replicas = numbers.get("DP_SIZE", world // (numbers["TENSOR_MP_SIZE"] * numbers["PIPELINE_MP_SIZE"]))
    if numbers.get("WORLD_SIZE", world) != world:
        raise ConfigError(
            [f"{source}: WORLD_SIZE is {numbers['WORLD_SIZE']}, but NNODES x NPROC_PER_NODE is {world}."]
        )
    job: dict[str, Any] = {
        "name": f"gpt2-{model.lower()}" if model.lower() in _SHAPES else model.lower(),
        "engine": "deepspeed",  # fp16 needs it
        "model": {
            "kind": "gpt",
            "layers": layers,
            "hidden_size": width,
            "attention_heads": 16,
            "seq_length": 1024,
        },
        "parallel": {
            "tensor": numbers["TENSOR_MP_SIZE"],
            "pipeline": numbers["PIPELINE_MP_SIZE"],
            "data": max(replicas, 1),
            "partition": settings.get("PARTITION") or "even",
            "zero_stage": int(switches["ZERO"]),
        },
        "optimisation": {
            "micro_batch_size": numbers["MICRO_BATCH_SIZE"],
            "global_batch_size": numbers["GLOBAL_BATCH_SIZE"],
            "train_iterations": 50,
            "precision": "fp16",
            "lr": 1.5e-4,
            "schedule": "cosine",
            "warmup_fraction": 0.01,
            "decay_iterations": 320_000,
        },
        "data": {"blend": [f"{model}/my-gpt2_text_document"], "split": "100,0,0"},
        "logging": {"interval": 10, "eval_interval": 100, "eval_iterations": 10},
        "checkpoint": {"interval": 100},
        "launcher": {
            "kind": "slurm",
            "nodes": numbers["NNODES"],
            "slurm": {"gpus_per_node": str(numbers["NPROC_PER_NODE"])},
        },
    }
    if switches["PROFILE"]:
        job["logging"]["trace_steps"] = "41-50"
    if switches["RELOAD_CONTAINER"]:
        job["launcher"]["slurm"]["reload_container"] = True
    if switches["NSYS"]:
        job["launcher"]["profiler"] = "nsys"
    if "MASTER_PORT" in numbers:
        job["launcher"]["master_port"] = numbers["MASTER_PORT"]
    require(from_dict(job), world, numbers["NPROC_PER_NODE"])
    return Imported(job, tuple(_notes(settings, switches)))


def _numbers(settings: Mapping[str, str], source: str, problems: list[str]) -> dict[str, int]:
    found = {}
    for name in (*_NUMBERS, *(name for name in _OPTIONAL if settings.get(name))):
        value = settings.get(name, "")
        if value.isascii() and value.isdigit() and len(value) < 10 and int(value):
            found[name] = int(value)
        elif value:
            problems.append(f"{source}: {name} is {value[:60]!r}; it must be a whole number above 0.")
        else:
            problems.append(f"{source} does not set {name}, a whole number above 0.")
    return found


def _switches(settings: Mapping[str, str], source: str, problems: list[str]) -> dict[str, bool]:
    found = {}
    for name in _SWITCHES:
        value = settings.get(name, "true" if name == "HOMOGENEOUS_CLUSTER" else "false")
        if value not in ("true", "false"):
            problems.append(f"{source}: {name} is {value[:60]!r}; it must be true or false.")
        found[name] = value == "true"
    return found


def _notes(settings: Mapping[str, str], switches: Mapping[str, bool]) -> list[str]:
    notes = [
        "Partition, GRES, nodes by name and time are in the #SBATCH lines of _02_homo_job.sh: give them as "
        "launcher.slurm.partition, gres, nodelist and time."
    ]
    if not switches["HOMOGENEOUS_CLUSTER"]:
        notes = [
            "HOMOGENEOUS_CLUSTER is false: in place of launcher.nodes say how many nodes of each partition, "
            "as launcher.slurm.nodes {hgx: 1, gpu2: 7}, with gres for each; no address is needed."
        ]
    if image := settings.get("CONTAINER_IMAGE_PATH"):
        notes.append(
            f"The job runs on the hosts. To run it in an image give that as launcher.slurm.image; it needs "
            f"rdm-trainer, which {image} may lack."
        )
    known = {"MODEL", "PARTITION", "CONTAINER_IMAGE_PATH", *_NUMBERS, *_OPTIONAL, *_SWITCHES, *_FOLLOWS}
    if left := sorted(set(settings) - known):
        notes.append(f"Not taken over: {', '.join(left)}.")
    return notes

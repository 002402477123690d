# SPDX-License-Identifier: GPL-3.0-or-later
"""The requested values of a job, under the names with which programs report theirs. Pure functions.

Upper-case names are those that FASOP's scripts write (``_01_run_inter.sh``); the others are Megatron's
arguments, as it prints them at its start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rdm_core.config import Config, JobConfig, ParallelConfig
from rdm_core.config.command import CommandConfig
from rdm_core.partition import explicit
from rdm_job.protocol import Request
from rdm_log.heads import ARGUMENT_OF

ARGUMENTS = (
    *ARGUMENT_OF.values(),
    *("num_attention_heads", "seq_length", "train_iters", "world_size", "optimizer", "lr"),
)
"""Arguments of Megatron's programs to compare with the values that they print."""
_SHARED = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
    "ds_sequence_parallel_size",
)
"""Arguments whose product divides the world size; the quotient is the number of replicas.

Source: ``validate_args`` of Megatron-LM's and Megatron-DeepSpeed's ``megatron/arguments.py``.
"""


def job_info(request: Request, config: JobConfig) -> dict[str, str]:
    """Return a job's key figures, with those of training if our trainer runs it."""
    world = request.world_size
    info: dict[str, int | str] = {
        "NODE_RANK": request.node_rank,
        "MASTER_ADDR": request.master.address,
        "NNODES": len(request.nodes),
        "WORLD_SIZE": world,
        **(_of_training(config, world) if isinstance(config, Config) else {}),
        "MODEL": config.name,
    }
    return {key: str(value) for key, value in info.items()}


def _of_training(config: Config, world: int) -> dict[str, int | str]:
    parallel, batch, model = config.parallel, config.optimisation, config.model
    return {
        "GLOBAL_BATCH_SIZE": batch.global_batch_size,
        "MICRO_BATCH_SIZE": batch.micro_batch_size,
        "TENSOR_MP_SIZE": parallel.tensor,
        "DP_SIZE": parallel.data or config.data_parallel(world),
        "PIPELINE_MP_SIZE": parallel.pipeline,
        "PARTITION": _blocks_of_stages(parallel),
        "HIDDEN_SIZE": model.hidden_size,
        "NUM_LAYERS": model.layers,
    }


def _blocks_of_stages(parallel: ParallelConfig) -> str:
    """Return the partition by stage: with several chunks per stage, the sum of their numbers."""
    counts, stages = explicit(parallel.partition), parallel.pipeline
    if counts is None or parallel.virtual_pipeline == 1:
        return parallel.partition
    return "-".join(str(sum(counts[stage::stages])) for stage in range(stages))


def requested(request: Request, config: JobConfig) -> dict[str, str]:
    """Return the values that a job's processes should report of themselves, the same on all nodes.

    For another program, these are its given arguments, and values that follow from them and the nodes.
    """
    info = job_info(request, config)
    nodes = {key: info[key] for key in ("NNODES", "WORLD_SIZE")}
    program = config.command if isinstance(config, CommandConfig) else config.launcher.program
    if not program:
        excluded = {"NODE_RANK", "MASTER_ADDR", "MODEL"}
        if explicit(info.get("PARTITION", "")) is None:
            # Not explicit: the trainer chooses the partition.
            excluded.add("PARTITION")
        return {key: value for key, value in info.items() if key not in excluded}
    given = _given(program)
    found = {key: given[key] for key in ARGUMENTS if key in given}
    is_megatron = bool(found)
    found.setdefault("world_size", nodes["WORLD_SIZE"])
    replicas = _replicas(given, int(nodes["WORLD_SIZE"])) if is_megatron else None
    if replicas is not None:
        found.setdefault("data_parallel_size", str(replicas))
    info = {name: found[key] for name, key in ARGUMENT_OF.items() if key in found}
    return {**info, **found, **nodes, **_of_environment(config.launcher.env)}


def _replicas(given: Mapping[str, str], world: int) -> int | None:
    """Return how many replicas Megatron makes of a model; None if another option may change the number.

    Args:
        given: Its options.
        world: How many processes it has. If they are too few for its options, forks of Megatron use less.
    """
    for key, value in given.items():
        # A switch without a value, such as --sequence-parallel, does not change the number.
        if "parallel" in key and key not in _SHARED and value and not value.startswith("--"):
            return None
    try:
        share = math.prod(int(given.get(key, "1")) for key in _SHARED)
    except ValueError:
        return None
    return world // share if share > 0 and world % share == 0 else None


def _given(program: Sequence[str]) -> dict[str, str]:
    """Return the options of a command line, with the names that argparse gives them."""
    found = {}
    for word, following in zip(program, [*program[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            found[name.removeprefix("--").replace("-", "_")] = value if equals else following
    return found


def _of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the values that the job sets in a script's own variables, such as MODEL."""
    return {key: environment[key] for key in ("MODEL", *ARGUMENT_OF) if key in environment}

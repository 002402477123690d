# SPDX-License-Identifier: GPL-3.0-or-later
"""Blocks and loss under the compiler: one graph each, tensor-parallel sums included, and the same losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rdm_core.config import Config
from tests.distributed import processes, training
from tests.distributed.training import GPT, T5, configure

JOBS = {
    f"{name}{precision}": configure(base, {"parallel.tensor": 2, "optimisation.precision": precision})
    for name, base in (("gpt ", GPT), ("t5 ", T5))
    for precision in ("fp32", "bf16")
}
CONTEXT = {"engine": "native", "parallel.tensor": 1, "parallel.context": 2}
JOBS["gpt context fp32"] = configure(JOBS["gpt fp32"], CONTEXT)
SHARDED = {"engine": "native", "parallel.sequence_parallel": True}
JOBS["gpt sequence parallel fp32"] = configure(JOBS["gpt fp32"], SHARDED)


def as_one_graph(jobs: Mapping[str, Config]) -> dict[str, Any]:
    """Train with a compiler that makes one graph or fails, and generates no code."""
    import torch

    compile_anything = torch.compile

    def compile_whole(function: Any, **options: Any) -> Any:
        # The options choose the order of sums and the fusion, which only matter to the code generator.
        options.pop("options", None)
        return compile_anything(function, backend="aot_eager", fullgraph=True, **options)

    torch.compile = compile_whole  # type: ignore[assignment]
    return training.losses(jobs, steps=2)


@pytest.mark.parametrize(
    "names",
    [
        # Both models and both precisions; a compilation takes ten processor seconds.
        ("gpt bf16", "t5 fp32", "gpt context fp32", "gpt sequence parallel fp32"),
        pytest.param(("gpt fp32", "t5 bf16"), marks=pytest.mark.long),
    ],
    ids=" and ".join,
)
def test_each_compiled_part_is_one_graph_and_changes_no_loss(names: tuple[str, str]) -> None:
    jobs = {name: JOBS[name] for name in names}
    compiled = {name: configure(job, {"optimisation.compile": True}) for name, job in jobs.items()}
    found = processes.run(2, as_one_graph, compiled)
    expected = processes.run(2, training.losses, jobs, 2)
    assert found[0] == found[1]
    for name in jobs:
        mine, theirs = ([step["loss"] for step in said[0][name]] for said in (found, expected))
        assert mine == pytest.approx(theirs, abs=1e-4 if "fp32" in name else 0.01), name

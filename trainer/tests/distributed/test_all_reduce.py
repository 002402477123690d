# SPDX-License-Identifier: GPL-3.0-or-later
"""The all-reduce between real processes: correct sums, bandwidths as in nccl-tests, pairs of nodes."""

from __future__ import annotations

import os
from typing import Any

import psutil
import pytest
import torch

from rdm_trainer.tools.all_reduce import LEAST, Bench, measure
from tests.distributed import processes

LONG_S = 3600.0
"""A time limit so long that a busy machine does not skip any size."""
NODES = {0: "n1", 1: "n1", 2: "n2", 3: "n2"}


def reduce(most: int, seconds: float, memory: int | None = None) -> list[dict[str, Any]]:
    """Measure with two ranks on each of two nodes."""
    os.environ["RDM_NODE"] = NODES[int(os.environ["RANK"])]
    if memory is not None:
        known = psutil.virtual_memory()
        psutil.virtual_memory = lambda: known._replace(available=memory)
    return [dict(news) for news in measure(Bench(torch.device("cpu")), most, seconds)]


def test_bandwidths_are_size_by_time_and_links_are_between_nodes() -> None:
    news = processes.run(4, reduce, 4 * LEAST, LONG_S)[0]
    assert [one["phase"] for one in news] == ["all-reduce 1 MiB", "all-reduce 4 MiB", "pairs", "done"]
    result = news[-1]["collective"]
    assert (result["backend"], result["ranks"], result["nodes"]) == ("gloo", 4, ["n1", "n2"])
    assert result["note"] == ""
    assert [one["bytes"] for one in result["sizes"]] == [LEAST, 4 * LEAST]
    for one in result["sizes"]:
        assert one["algbw"] == pytest.approx(one["bytes"] / one["seconds"] / 1e9)
        assert one["busbw"] == pytest.approx(one["algbw"] * 1.5)
    ((first, second, rate),) = result["links_gbit"]
    assert (first, second) == ("n1", "n2")
    assert rate > 0


def test_all_reduce_keeps_its_limits_of_memory_and_time() -> None:
    result = processes.run(2, reduce, 16 * LEAST, LONG_S, 2 * 3 * 5 * LEAST)[0][-1]["collective"]
    assert len(result["sizes"]) == 2
    assert result["note"] == "It ended with 4 MiB of 16 MiB: the memory of a node does not hold more."
    result = processes.run(2, reduce, 16 * LEAST, 0.0)[0][-1]["collective"]
    assert result["note"] == "It ended with the beginning of 16 MiB: the time was up."

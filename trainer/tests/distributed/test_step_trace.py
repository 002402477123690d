# SPDX-License-Identifier: GPL-3.0-or-later
"""A real training in two stages that traces its steps and is profiled."""

from __future__ import annotations

import datetime
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from rdm_core import config as configuration
from rdm_log.report.write import write
from rdm_log.timeline import bubble, of_paths
from rdm_trainer.distributed import clocks
from rdm_trainer.distributed.collective import Collective
from rdm_trainer.distributed.collective_watch import CollectiveWatch
from rdm_trainer.train import Training
from tests.distributed import processes

CONFIGURATION = """
name: small
model: {layers: 2, hidden_size: 64, attention_heads: 4, seq_length: 32, vocab_size: 90}
parallel: {pipeline: 2}
optimisation: {micro_batch_size: 2, global_batch_size: 8, train_iterations: 6, precision: fp32, lr: 0.01}
data: {mock: true, workers: 0}
logging: {interval: 1, trace_steps: 3-4}
launcher: {profiler: torch, profiler_ranks: [1], profiler_steps: 5-5}
checkpoint: {interval: 0}
"""
BATCHES = 4


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a job that was traced in its steps 3 and 4."""
    directory = tmp_path_factory.mktemp("traced")
    (directory / "small.yaml").write_text(CONFIGURATION)
    assert processes.run(2, _train, str(directory)) == ["the training is done"] * 2
    return directory / "job"


def _train(folder: str) -> str:
    """Train as one rank of the job, log into its directory, and return why the training ended."""
    directory = Path(folder)
    output = directory / "job" / "logs" / "n1.out"
    output.parent.mkdir(parents=True, exist_ok=True)

    def write(line: str) -> None:
        with output.open("a") as file:
            file.write(f"{line}\n")

    training = Training(configuration.load(directory / "small.yaml"), directory / "job", write=write)
    training.run()
    training.close()
    return training.reason


def test_every_rank_traces_every_instruction(job: Path) -> None:
    found = of_paths([job])
    assert (sorted(found.spans), found.steps, found.stages) == ([0, 1], [3, 4], {0: 0, 1: 1})
    for rank, other in ((0, "send"), (1, "receive")):
        for step in (3, 4):
            spans = [span for span in found.spans[rank] if span.step == step]
            kinds = [span.kind for span in spans]
            assert kinds.count("forward") == kinds.count("backward") == BATCHES
            assert kinds.count(other) == BATCHES
            assert kinds.count("optimiser") == 1
            assert any(span.kind == "collective" and span.name == "all_reduce" for span in spans)
            batches = [span.micro_batch for span in spans if span.kind == "forward"]
            assert batches == list(range(BATCHES))


DATA_PARALLEL = """
name: small
model: {layers: 2, hidden_size: 64, attention_heads: 4, seq_length: 32, vocab_size: 90}
parallel: {zero_stage: 3}
optimisation: {micro_batch_size: 2, global_batch_size: 8, train_iterations: 3, precision: bf16, lr: 0.01}
data: {mock: true, workers: 0}
logging: {interval: 1, trace_steps: 2-3}
checkpoint: {interval: 0}
"""


def test_zero_3_gathers_and_scatters_are_traced(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(DATA_PARALLEL)
    assert processes.run(2, _train, str(tmp_path)) == ["the training is done"] * 2
    found = of_paths([tmp_path / "job"])
    names = []
    for rank in (0, 1):
        spans = [span for span in found.spans[rank] if span.kind == "collective"]
        # Each waits for the other rank's part, so each takes some time.
        assert all(span.end > span.begin for span in spans)
        names.append([[span.name for span in spans if span.step == step] for step in (2, 3)])
    assert names[0] == names[1], "the ranks take part in the same operations in the same order"
    for step in names[0]:
        assert step.count("all_gather_into_tensor") >= 2
        assert step.count("reduce_scatter_tensor") >= 1


def test_messages_without_an_immediate_wait_are_traced() -> None:
    assert processes.run(2, _exchange) == [EXCHANGED] * 2


EXCHANGED = [("recv", True), ("send", True), ("recv", True), ("send", True)]


def _exchange() -> list[tuple[str, bool]]:
    """Exchange messages in two ways; return each operation's name, and whether waiting for it ended it."""
    other = 1 - dist.get_rank()
    seen: list[list[Any]] = []

    def begin(name: str) -> Callable[[], None]:
        entry: list[Any] = [name, 0]
        seen.append(entry)

        def end() -> None:
            entry[1] += 1

        return end

    sent, received = torch.ones(2), torch.zeros(2)
    # Created earlier, like a batch that is reused in each step.
    batch = [dist.P2POp(dist.irecv, received, other), dist.P2POp(dist.isend, sent, other)]
    with CollectiveWatch(begin, None).watching():
        for work in (dist.irecv(received, other), dist.isend(sent, other)):
            assert work is not None
            work.wait()
        for work in dist.batch_isend_irecv(batch):
            work.wait()
    return [(name, ends == 2) for name, ends in seen]


def test_clocks_agree_and_spans_do_not_overlap(job: Path) -> None:
    found = of_paths([job])

    def of(rank: int, name: str) -> list[Any]:
        return [span for span in found.spans[rank] if span.name == name]

    for sent, received in zip(of(0, "SendActivation"), of(1, "RecvActivation"), strict=True):
        assert sent.begin < received.end
    for sent, received in zip(of(1, "SendGrad"), of(0, "RecvGrad"), strict=True):
        assert sent.begin < received.end
    for spans in found.spans.values():
        outer = [span for span in spans if span.kind != "collective"]
        assert all(one.end <= other.begin + 1.0 for one, other in itertools.pairwise(outer))
    share = bubble(found)
    assert share is not None
    # The schedule alone costs (p - 1) / (m + p - 1); a busy machine adds to that.
    assert 0.1 < share < 1


def test_report_has_the_timeline(job: Path, tmp_path: Path) -> None:
    write([job], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "A step, rank by rank" in page
    assert "stage 1, rank 1" in page


def test_torch_profiler_records_its_steps_and_our_names(job: Path) -> None:
    assert [path.name for path in (job / "profile").iterdir()] == ["rank-00001.json"]
    trace = json.loads((job / "profile" / "rank-00001.json").read_text())
    names = {event.get("name") for event in trace["traceEvents"]}
    assert {"step 5", "ForwardPass", "BackwardPass", "OptimizerStep"} <= names
    assert "step 4" not in names


@given(
    ahead=st.integers(-(10**15), 10**15),
    ways=st.lists(st.tuples(st.integers(1, 10**9), st.integers(0, 10**6), st.integers(1, 10**9)), min_size=1),
)
def test_clock_offset_is_right_within_its_stated_error(ahead: int, ways: list[tuple[int, int, int]]) -> None:
    exchanges, now = [], 0
    for there, thought, back in ways:
        came = now + there
        exchanges.append((now, came + ahead, came + thought + ahead, came + thought + back))
        now += there + thought + back
    found, doubt = clocks.offset(exchanges)
    assert abs(found - ahead) <= doubt + 1
    assert doubt == min(there + back for there, _, back in ways) / 2


def _compare_clocks(ahead_ns: int) -> tuple[float, float]:
    """Compare clocks in a rank on another host, whose clock is ahead."""
    rank = dist.get_rank()

    def clock() -> int:
        return time.perf_counter_ns() + ahead_ns * (rank > 0)

    return clocks.compare(Collective(datetime.timedelta(minutes=5)), f"host {(rank + 1) // 2}", clock)


def test_clock_of_another_host_is_compared_over_the_process_group() -> None:
    ahead = 5_000_000_000
    compared = processes.run(3, _compare_clocks, ahead)
    assert compared[0] == (0.0, 0.0)
    assert compared[1] == compared[2], "the ranks of a host have one clock"
    offset, doubt = compared[1]
    assert abs(offset + ahead) <= doubt

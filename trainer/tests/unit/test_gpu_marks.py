# SPDX-License-Identifier: GPL-3.0-or-later
"""What the step trace and the profilers call on a GPU, tested without one: torch.cuda is a stand-in.

Its device has a clock of its own, and lags behind the host until something waits for it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rdm_core.config import Config, LauncherConfig
from rdm_trainer.distributed import clocks
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.profiler import Profiler
from rdm_trainer.step_trace import StepTrace

AHEAD_NS = 5_000_000


class Gpu:
    """A device on which each operation of a step takes 3 ms; records the calls, in order."""

    def __init__(self) -> None:
        self.now_ms = 100.0
        self.calls: list[str] = []

    def work(self) -> None:
        self.now_ms += 3.0

    def synchronize(self) -> None:
        self.calls.append("wait")

    @contextlib.contextmanager
    def range(self, name: str) -> Iterator[None]:
        self.calls.append(f"begin {name}")
        yield
        self.calls.append(f"end {name}")

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")


class Engine:
    """A step of two micro-batches, a collective, and one that overlaps with the work."""

    device = torch.device("cuda")

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._observers: list[Callable[[str, str], Any]] = []

    @contextlib.contextmanager
    def observed(self, observer: Callable[[str, str], Any]) -> Iterator[None]:
        self._observers.append(observer)
        yield
        self._observers.remove(observer)

    def step(self) -> None:
        for kind, name in (("forward", "ForwardPass"), ("backward", "BackwardPass")) * 2:
            with contextlib.ExitStack() as stack:
                for observer in self._observers:
                    stack.enter_context(observer(kind, name))
                self._gpu.work()
        group: Any = vars(dist)["ProcessGroup"]()
        group.allreduce()
        work = group.broadcast()
        self._gpu.work()
        work.wait()


class Collective:
    """All ranks; their own group is not observed."""

    group = object()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()

    class Event:
        """An event: when the device reached it. Reading that needs a wait first."""

        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at_ms = made.now_ms

        def elapsed_time(self, other: Event) -> float:
            assert made.calls[-1] == "wait"
            return other.at_ms - self.at_ms

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", made.synchronize)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda.nvtx, "range", made.range)
    monkeypatch.setattr(torch.cuda.profiler, "start", made.start)
    monkeypatch.setattr(torch.cuda.profiler, "stop", made.stop)

    class Work:
        def wait(self) -> None:
            made.work()

    class Group:
        """A process group; a work that it returns is waited for on request."""

        def allreduce(self) -> None:
            made.work()

        def broadcast(self) -> Work:
            return Work()

    monkeypatch.setattr(dist, "Work", Work)
    monkeypatch.setattr(dist, "ProcessGroup", Group)
    monkeypatch.setattr(clocks, "compare", lambda _: (AHEAD_NS, 200.0))
    return made


def test_the_step_trace_has_the_device_s_times_and_waits_for_them_once(gpu: Gpu, tmp_path: Path) -> None:
    engine = Engine(gpu)
    trace = StepTrace(range(2, 4), engine, Topology.single(), Collective(), tmp_path)  # type: ignore[arg-type]
    waits = []
    for iteration in range(1, 5):
        with trace.step(iteration):
            before = len(gpu.calls)
            engine.step()
            # Within a step, nothing waits for the device.
            assert len(gpu.calls) == before
        waits.append(gpu.calls.count("wait"))
    assert waits == [0, 2, 3, 3]
    record = json.loads((tmp_path / "trace/rank-00000.json").read_text())
    assert record["clock_uncertainty_us"] == 0.2
    assert [span[:4] for span in record["spans"]] == [
        [kind, name, step, batch]
        for step in (2, 3)
        for kind, name, batch in (
            ("forward", "ForwardPass", 0),
            ("backward", "BackwardPass", 0),
            ("forward", "ForwardPass", 1),
            ("backward", "BackwardPass", 1),
            ("collective", "all_reduce", -1),
            ("collective", "broadcast", -1),
        )
    ]
    # The overlapping collective ends where it was waited for.
    durations = [duration for *_, duration in record["spans"]]
    assert durations == pytest.approx([*[3000.0] * 5, 6000.0] * 2, abs=0.2)
    # The device's first mark is the host's time, on the first node's clock.
    first = (trace._began + AHEAD_NS) / 1e3
    begins = [begin - first for *_, begin, _ in record["spans"]]
    assert begins == pytest.approx([3000.0 * number for number in (*range(6), *range(7, 13))], abs=0.2)
    methods = (dist.ProcessGroup.allreduce, dist.ProcessGroup.broadcast, dist.Work.wait)
    assert [method.__name__ for method in methods] == ["allreduce", "broadcast", "wait"], "as they were"


def test_nsys_records_the_requested_steps_and_our_names(gpu: Gpu, tmp_path: Path) -> None:
    engine = Engine(gpu)
    config = Config(launcher=LauncherConfig(profiler="nsys", profiler_ranks=(1,), profiler_steps="2-3"))
    for rank in (0, 1):
        profiler = Profiler(config, engine, rank, tmp_path)  # type: ignore[arg-type]
        for iteration in range(1, 5):
            with profiler.step(iteration):
                engine.step()
        if rank == 0:
            assert gpu.calls == []
    passes = [f"{word} {name}" for name in ("ForwardPass", "BackwardPass") * 2 for word in ("begin", "end")]
    assert gpu.calls == [
        "start",
        *("begin step 2", *passes, "end step 2"),
        *("begin step 3", *passes, "end step 3"),
        *("wait", "stop"),
    ]
    assert not list(tmp_path.iterdir())

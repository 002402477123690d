# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure how long a job's layers, its optimiser and its links take on these ranks.

The trainer's own engine takes steps with few blocks and with more. The difference is the time of the blocks,
the rest that of the embedding and the head. So a block's time includes everything that the engine does for
it, such as summing its gradients in fp32.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import psutil
import torch
import torch.distributed as dist

from rdm_core import float8
from rdm_core.config import Config
from rdm_core.config.layout_checks import fp8_problems
from rdm_core.cost import flops
from rdm_core.errors import TrainerError
from rdm_planner.profile import LEAST_SECONDS, LayerTimes, Profile, packages_of, shape_of
from rdm_planner.times import Link
from rdm_trainer import models, process
from rdm_trainer.data import loaders
from rdm_trainer.distributed.parameters import initialise
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.engines import create
from rdm_trainer.engines.engine import DTYPES, Engine
from rdm_trainer.tools.all_reduce import join, this_node

_MICRO_BATCHES = 4
"""In each step."""
_WARM_UP, _STEPS = 2, 4
_LEAST_BYTES, _GPU_BYTES, _CPU_BYTES = 4096, 64 << 20, 4 << 20
_REPEATS = 10
_NODE_S = 2.0
"""The least time, in seconds, that each rank computes while nodes are compared."""


@dataclass(frozen=True)
class _Pass:
    """A model's seconds for a micro-batch, and a step's seconds after its last backward pass."""

    forward: float
    backward: float
    optimiser: float


def start(config: Config) -> torch.device:
    """Become a rank; without a launcher, the world size is 1.

    Raises:
        TrainerError: This node's device cannot compute as the job says.
    """
    optimisation, backend = config.optimisation, config.launcher.backend
    process.require_device(optimisation.precision, backend, fp8_recipe=optimisation.fp8_recipe)
    return join(60.0 * config.launcher.distributed_timeout_minutes)


def measure(
    config: Config,
    device: torch.device,
    micro_batches: Iterable[int],
    blocks: tuple[int, int],
    report: Callable[[str], None] = lambda _line: None,
    *,
    checkpointing: bool = True,
) -> Profile:
    """Measure on all ranks together; their devices are of one kind.

    Args:
        config: The job; its layout, its number of blocks and its data are ignored.
        device: This rank's.
        micro_batches: The sizes, ascending. One that does not fit in the memory is reported and left out.
            Those that a tensor degree cannot compute in fp8 are left out; if it can compute none, it takes
            its smallest.
        blocks: How many blocks the two models have: few, and more.
        report: Called with what is measured next.
        checkpointing: Also measure passes that recompute activations.

    Raises:
        torch.OutOfMemoryError: Not even the smallest micro-batch fits.
        TrainerError: No tensor degree of these ranks can compute in fp8, but the job does.
    """
    dist.get_world_size()
    # The ranks that share a layer share a node.
    local = _ranks_here()
    sizes = list(micro_batches)
    heads, shared = config.spec.heads, config.spec.key_value_heads
    layers: dict[int, dict[str, dict[int, LayerTimes]]] = {}
    optimiser, problems = 0.0, list[str]()
    for tensor in range(1, local + 1):
        if local % tensor or heads % tensor or (shared % tensor and tensor % shared):
            continue
        job = _shared(config, tensor)
        least = float8.least_micro_batch(job)
        if (problem := _problem(job, least)) is not None:
            problems.append(problem)
            continue
        possible = [size for size in sizes if size % least == 0] or [least]
        topology = create.create_topology(job)
        saved = ("none", "full") if checkpointing else ("none",)
        layers[tensor], updates = _layers(config, topology, device, possible, blocks, saved, report)
        # The largest degree's time counts: it has the fewest replicas that reduce gradients meanwhile. ZeRO
        # gives each replica its part of the parameters.
        optimiser = updates * (topology.data if config.zero_stage else 1)
    if not layers:
        raise TrainerError(problems[0])
    report("the links")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    known = flops.find_accelerator(name)
    return Profile(
        gpu=known.name if known else name,
        shape=shape_of(config),
        versions={name: metadata.version(name) for name in packages_of(config.engine)},
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        memory_gib=_memory(device) / 2**30,
        optimiser=optimiser,
        layers=layers,
        links=measure_links(device),
    )


def _shared(config: Config, tensor: int) -> Config:
    """Return the job with this tensor degree and no pipeline."""
    parallel = dataclasses.replace(
        config.parallel,
        tensor=tensor,
        sequence_parallel=False,
        pipeline=1,
        virtual_pipeline=1,
        eager_forwards=0,
        expert=1,
        context=1,
    )
    return dataclasses.replace(config, parallel=parallel)


def _problem(job: Config, micro_batch: int) -> str | None:
    """Return why a job cannot compute micro-batches of a size in fp8; None if it can, or need not."""
    optimisation = dataclasses.replace(job.optimisation, micro_batch_size=micro_batch)
    return next(fp8_problems(dataclasses.replace(job, optimisation=optimisation)), None)


def _layers(
    config: Config,
    topology: Topology,
    device: torch.device,
    sizes: list[int],
    blocks: tuple[int, int],
    checkpointing: Sequence[str],
    report: Callable[[str], None],
) -> tuple[dict[str, dict[int, LayerTimes]], float]:
    """Return the times of each kind of layer, and the optimiser's time per parameter of this rank."""
    few, more = blocks
    is_t5 = config.model.kind == "t5"
    counts = {"few": (few, few), "more": (more, few)}
    kinds = {"EncoderBlock" if is_t5 else "Block": "more"}
    if is_t5:
        counts["more of the decoder"] = (few, more)
        kinds["DecoderBlock"] = "more of the decoder"
    passes: dict[tuple[str, str], dict[int, _Pass]] = {}
    for (which, count), saved in itertools.product(counts.items(), checkpointing):
        job = _job(config, topology, count, saved)
        report(f"tensor degree {topology.tensor}, {count[0]} blocks, activation checkpointing {saved}")
        passes[which, saved] = _passes(job, topology, sizes, report)
        # Sizes that do not fit are not tried again.
        sizes = [size for size in sizes if size in passes[which, saved]]
    found: dict[str, dict[int, LayerTimes]] = {}
    added = more - few
    for size in sizes:
        whole = passes["few", "none"][size]
        forward, backward = whole.forward, whole.backward
        again = passes["few", "full"][size].backward if "full" in checkpointing else None
        checkpointed = again
        for kind, which in kinds.items():
            plain = passes[which, "none"][size]
            one = LayerTimes(
                forward=max(LEAST_SECONDS, (plain.forward - whole.forward) / added),
                backward=max(LEAST_SECONDS, (plain.backward - whole.backward) / added),
                checkpointed=None
                if again is None
                else max(LEAST_SECONDS, (passes[which, "full"][size].backward - again) / added),
            )
            found.setdefault(kind, {})[size] = one
            forward -= few * one.forward
            backward -= few * one.backward
            if checkpointed is not None and one.checkpointed is not None:
                checkpointed -= few * one.checkpointed
        ahead, back = _embedding(_job(config, topology, (few, few), "none"), topology, device, size)
        tables = ["Embedding", "DecoderEmbedding"] if is_t5 else ["Embedding"]
        # Measured alone, the embedding may seem to take more time than is left.
        ahead, back = min(ahead, max(0.0, forward) / 3), min(back, max(0.0, backward) / 3)
        for kind in tables:
            found.setdefault(kind, {})[size] = LayerTimes(ahead, back, None if again is None else back)
        found.setdefault("Head", {})[size] = LayerTimes(
            forward=max(LEAST_SECONDS, forward - len(tables) * ahead),
            backward=max(LEAST_SECONDS, backward - len(tables) * back),
            checkpointed=None
            if checkpointed is None
            else max(LEAST_SECONDS, checkpointed - len(tables) * back),
        )
    least = sizes[0]
    parameters = flops.parameters(_job(config, topology, counts["more"], "none").spec)
    return found, passes["more", "none"][least].optimiser * topology.tensor / parameters


def _job(config: Config, topology: Topology, count: tuple[int, int], saved: Any) -> Config:
    """Return the job with some blocks of encoder and decoder, without a pipeline, on random tokens."""
    replace = dataclasses.replace
    layers = {"layers": count[0]} | ({"decoder_layers": count[1]} if config.model.kind == "t5" else {})
    return replace(
        config,
        model=replace(config.model, **layers),
        parallel=replace(
            _shared(config, topology.tensor).parallel,
            data=None,
            partition="even",
            zero_stage=min(1, config.zero_stage),
            activation_checkpointing=saved,
            activation_checkpointing_interval=1,
            activation_checkpointing_blocks=None,
            activation_memory_budget=1.0 if saved == "full" else config.parallel.activation_memory_budget,
        ),
        optimisation=replace(
            config.optimisation, micro_batch_size=1, global_batch_size=_MICRO_BATCHES * topology.data
        ),
        data=replace(config.data, mock=True, blend=(), train=(), valid=(), test=(), workers=0),
    )


def _sized(job: Config, topology: Topology, size: int) -> Config:
    optimisation = dataclasses.replace(
        job.optimisation,
        micro_batch_size=size,
        global_batch_size=size * _MICRO_BATCHES * topology.data,
        train_samples=None,
        train_iterations=10,
    )
    return dataclasses.replace(job, optimisation=optimisation)


def _batches(job: Config, topology: Topology, size: int) -> Iterator[Any]:
    """Yield the same few micro-batches forever: reading data is not measured."""
    job = _sized(job, topology, size)
    train = loaders.build(
        job, data_rank=topology.data_rank, data_size=topology.data, consumed_samples=0
    ).train
    assert train is not None
    return itertools.cycle(list(itertools.islice(iter(train), _MICRO_BATCHES)))


def _passes(
    job: Config, topology: Topology, sizes: Iterable[int], report: Callable[[str], None]
) -> dict[int, _Pass]:
    """Return the times of a model by micro-batch."""
    # Each engine compiles again; torch's cache on the disk makes that fast.
    torch.compiler.reset()
    engine = create.create(job, topology)
    engine.set_lr(1e-4)
    found = {}
    try:
        for size in sizes:
            try:
                found[size] = _timed_steps(engine, _batches(job, topology, size))
            except torch.OutOfMemoryError:
                if not found:
                    raise
                report(f"micro-batch {size} does not fit the memory")
                break
    finally:
        engine.close()
        del engine
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return found


def _timed_steps(engine: Engine, batches: Iterator[Any]) -> _Pass:
    """Return the medians of each step's inner micro-batches, and of what follows its last backward pass.

    After the first micro-batch, the device lags behind the host. Replicas join no blocks in the first and the
    last.
    """
    forward, backward, optimiser = [], [], []
    clock = _Clock(engine.device)
    for step in range(_WARM_UP + _STEPS):
        clock.marks.clear()
        with engine.observed(clock.watch):
            engine.train_step(batches)
        clock.mark("end")
        if step < _WARM_UP:
            continue
        marks = clock.read()
        ahead = [at for kind, at in marks if kind == "forward"]
        back = [at for kind, at in marks if kind == "backward"]
        forward += [end - begin for begin, end in zip(ahead[1:-1], back[1:-1], strict=True)]
        backward += [end - begin for begin, end in zip(back[1:-1], ahead[2:], strict=True)]
        # Whatever comes next begins where the last backward pass ends.
        last = max(place for place, (kind, _) in enumerate(marks) if kind == "backward")
        optimiser.append(marks[-1][1] - marks[last + 1][1])
    ahead_s, back_s, update_s = (statistics.median(times) for times in (forward, backward, optimiser))
    return _Pass(ahead_s, back_s, max(LEAST_SECONDS, update_s))


class _Clock:
    """When the device, or on a CPU the program, reached each part of a step."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.marks: list[tuple[str, Any]] = []

    def mark(self, kind: str) -> None:
        if self.device.type == "cuda":
            at: Any = torch.cuda.Event(enable_timing=True)
            at.record()
        else:
            at = time.perf_counter()
        self.marks.append((kind, at))

    @contextlib.contextmanager
    def watch(self, kind: str, _name: str) -> Iterator[None]:
        """See :data:`rdm_trainer.engines.engine.Observer`."""
        self.mark(kind)
        yield

    def read(self) -> list[tuple[str, float]]:
        """Return the kind and the time of each mark, in seconds."""
        if self.device.type != "cuda":
            return self.marks
        torch.cuda.synchronize(self.device)
        first = self.marks[0][1]
        return [(kind, first.elapsed_time(at) / 1e3) for kind, at in self.marks]


def _embedding(job: Config, topology: Topology, device: torch.device, size: int) -> tuple[float, float]:
    """Return the times of a micro-batch's embedding lookup, forward and backward."""
    layer = models.layers(job, topology)[0]
    module = layer.make()
    initialise(module, layer.prefix(0), job.optimisation.seed)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(job.optimisation.precision, torch.float32)
    for weight in module.parameters():
        weight.data = weight.data.to(device, dtype)
    inputs, _labels = next(_batches(job, topology, size))
    inputs = _on(device, inputs)
    forward, backward = [], []
    clock = _Clock(device)
    for _ in range(_WARM_UP + _REPEATS):
        clock.marks.clear()
        clock.mark("forward")
        states = module(inputs)
        clock.mark("backward")
        states = (
            states if isinstance(states, torch.Tensor) else next(one for one in states if one.requires_grad)
        )
        states.backward(torch.ones_like(states))
        clock.mark("end")
        begin, middle, end = (at for _kind, at in clock.read())
        forward.append(middle - begin)
        backward.append(end - middle)
    return statistics.median(forward), statistics.median(backward)


def measure_nodes(config: Config, device: torch.device) -> dict[str, float]:
    """Return each node's seconds of computing per sample, by name, to compare nodes of one kind.

    All nodes compute at once: each rank runs one block with embedding and head. A node is as slow as its
    slowest rank.

    Args:
        config: The job; its layout, its number of blocks and its data are ignored.
        device: This rank's.
    """
    topology = create.create_topology(_shared(config, 1))
    job = _job(config, topology, (1, 1), "none")
    dtype = DTYPES[job.optimisation.precision]
    model = models.build(job, topology, device=device, dtype=dtype, padding=models.PADDING)
    inputs, labels = _on(device, next(_batches(job, topology, 1)))
    seconds: list[float] = []
    clock = _Clock(device)
    dist.barrier()
    while len(seconds) < _WARM_UP + _REPEATS or sum(seconds) < _NODE_S:
        clock.marks.clear()
        clock.mark("forward")
        model(inputs, labels).backward()
        clock.mark("end")
        begin, end = (at for _kind, at in clock.read())
        seconds.append(end - begin)
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, (this_node(), statistics.median(seconds[_WARM_UP:])))
    slowest: dict[str, float] = {}
    for node, median in found:
        slowest[node] = max(median, slowest.get(node, 0.0))
    return slowest


def _on(device: torch.device, data: Any) -> Any:
    """Return tensors, or tuples of them, on a device."""
    return data.to(device) if isinstance(data, torch.Tensor) else tuple(_on(device, one) for one in data)


def _ranks_here() -> int:
    """Return how many ranks share this node, by counting its name: not every launcher sets the number."""
    nodes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(nodes, this_node())
    return nodes.count(this_node())


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    total: int = psutil.virtual_memory().total
    return total // _ranks_here()


def measure_links(device: torch.device) -> dict[str, dict[str, Link]]:
    """Return the links within this node and across nodes, as far as there are ranks for them."""
    world = dist.get_world_size()
    local = _ranks_here()
    found: dict[str, dict[str, Link]] = {}
    if local > 1:
        groups = [dist.new_group(range(first, first + local)) for first in range(0, world, local)]
        found["within"] = {
            "point_to_point": _link(device, lambda data: _send(data, 1, 1)),
            "all_reduce": _ring(device, groups[dist.get_rank() // local], local),
        }
    if world > local:
        # All ranks of a node send at once, and share its links.
        one = _link(device, lambda data: _send(data, local, local))
        found["across"] = {
            "point_to_point": Link(one.latency, one.bandwidth * local),
            "all_reduce": _ring(device, None, world),
        }
    return found


def _send(data: torch.Tensor, count: int, distance: int) -> None:
    """Let the first ``count`` ranks each send to the rank ``distance`` further on."""
    rank = dist.get_rank()
    if rank < count:
        dist.send(data, rank + distance)
    elif distance <= rank < distance + count:
        dist.recv(data, rank - distance)


def _ring(device: torch.device, group: Any, ranks: int) -> Link:
    once = _link(device, lambda data: dist.all_reduce(data, group=group))
    return Link(once.latency, once.bandwidth * 2 * (ranks - 1) / ranks)


def _link(device: torch.device, move: Callable[[torch.Tensor], object]) -> Link:
    """Return a link, from the slowest rank's times for a small and for a large message."""
    most = _GPU_BYTES if device.type == "cuda" else _CPU_BYTES
    latency, seconds = (_seconds(device, move, size) for size in (_LEAST_BYTES, most))
    return Link(latency, 8 * most / max(seconds - latency, LEAST_SECONDS))


def _seconds(device: torch.device, move: Callable[[torch.Tensor], object], size: int) -> float:
    data = torch.zeros(size // 4, device=device)
    found = []
    for _ in range(_WARM_UP + _REPEATS):
        dist.barrier()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begin = time.perf_counter()
        move(data)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - begin)
    median = torch.tensor([statistics.median(found[_WARM_UP:])], dtype=torch.float64, device=device)
    dist.all_reduce(median, dist.ReduceOp.MAX)
    return float(median)

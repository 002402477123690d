# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the time of a data-parallel step against the bandwidth of the fabric: ours, DDP and FSDP2.

Run `python benchmarks/slow_fabric.py` on a host with two GPUs where `rdm_trainer` is installed, or with
`--alone` on one GPU; it prints a table for docs/training-performance.md. Each way trains the same GPT with
the same micro-batches; its step is compared with its own step on one GPU, which the plain loop's is for DDP
and FSDP2. All ways accumulate gradients without communication until the last micro-batch, and their models
are compiled layer by layer; ours joins layers in the micro-batches without communication.

The fabric is simulated. The collectives of a rank run one after another on a stream of their own, and after
each a host function keeps this stream, but no multiprocessor, waiting for as long as the bytes take at the
bandwidth. A rank sends (n - 1) / n of a buffer when n ranks reduce-scatter or all-gather it, and twice as
much when they all-reduce it. The time on NVLink comes on top, so the fabric is a little slower than its name;
a column shows the bandwidth of an all-gather of 256 MiB.

With `--alone`, rank 0 of any number of ranks trains without the others, in a group of PyTorch's backend
`fake`. Real are its computation, its shard of the optimiser, its buckets, and what overlaps with what.
Simulated is all of the fabric: a collective is the wait, and a local copy where other ranks' data would be
new. There is no NVLink, no NCCL that takes multiprocessors and memory bandwidth, and no slower rank to wait
for. The training's results mean nothing.

`--quick` is a smoke test: a small model on CPU processes, where a thread takes the place of the stream.
"""

from __future__ import annotations

import argparse
import ctypes
import inspect
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "trainer")]

from benchmarks.tables import markdown  # noqa: E402
from benchmarks.train_throughput import our_engine  # noqa: E402
from benchmarks.training_legs import QUICK, SHAPES, SMALL, Layout, Leg  # noqa: E402

BANDWIDTHS = "1.25,5,12.5,25,50,0"
WAYS = {
    "ours": "ours (fp32)",
    "ours-bf16": "ours (bf16)",
    "ddp": "DDP (bf16)",
    "fsdp2": "FSDP2 (fp32)",
    "fsdp2-bf16": "FSDP2 (bf16)",
}
"""The ways on several ranks, and their names in the table, with the type in which gradients are reduced.
On one GPU, ``plain`` is DDP's and FSDP2's."""
TIMEOUT_S = 600.0
_PROBE = 1 << 28
"""Bytes of the all-gather that measures the fabric."""
_COLLECTIVES = {
    # A rank sends so many times (n - 1) / n of the buffer that is this argument.
    "all_reduce": (2, "tensor"),
    "all_gather_into_tensor": (1, "output_tensor"),
    "reduce_scatter_tensor": (1, "input"),
    # The same, from PyTorch 2.13 on.
    "all_gather_single": (1, "output_tensor"),
    "reduce_scatter_single": (1, "input"),
}


class _Sent:
    """A collective on the fabric; it is to its caller what PyTorch's handle is."""

    def __init__(self, wait: Callable[[], object]) -> None:
        self._wait = wait

    def wait(self) -> bool:
        """Let the current stream, or this thread on a CPU, wait for the collective."""
        self._wait()
        return True


class Fabric:
    """Runs collectives at a bandwidth, in place of functions of torch.distributed.

    Args:
        device: Where this rank computes.
        alone: This rank runs its part of a collective without the others.

    Attributes:
        bandwidth: Bytes per second that each rank sends; 0 for no limit.
        sent: Bytes that this rank has sent.
        fills: Alone, an all-gather copies this rank's part to the others' places, which have no values yet.
    """

    bandwidth = sent = 0.0
    fills = False

    def __init__(self, device: Any, alone: bool) -> None:
        import torch
        import torch.distributed as dist

        self._device, self._alone = device, alone
        if device.type == "cuda":
            # As our trainer prefers NCCL's kernels; here they run on this stream.
            self._stream = torch.cuda.Stream(device, priority=-1)
            self._launch = ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc
            self._launch.argtypes = [ctypes.c_void_p] * 3
            self._sleep = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p)
        else:
            self._thread = ThreadPoolExecutor(1)
        for name in _COLLECTIVES:
            if hasattr(dist, name):
                setattr(dist, name, self._slowed(name))

    def _slowed(self, name: str) -> Callable[..., _Sent | None]:
        import torch.distributed as dist

        collective = getattr(dist, name)
        signature = inspect.signature(collective)
        factor, keyword = _COLLECTIVES[name]

        def run(*args: Any, **named: Any) -> _Sent | None:
            given = signature.bind(*args, **named).arguments
            is_asynchronous = given.pop("async_op", False)
            size = dist.get_world_size(given.get("group"))
            sent = factor * given[keyword].nbytes * (size - 1) / size
            part = partial(self._own_part, given, size) if self._alone else partial(collective, **given)
            handle = self.send(part, sent)
            if is_asynchronous:
                return handle
            handle.wait()
            return None

        return run

    def _own_part(self, given: dict[str, Any], size: int) -> None:
        """Do what a collective does to this rank's memory, as if all ranks sent what rank 0 sends."""
        if "output" in given:
            given["output"].copy_(given["input"].chunk(size)[0])
        elif "output_tensor" in given and self.fills:
            given["output_tensor"].view(size, -1)[1:] = given["input_tensor"].flatten()

    def send(self, collective: Callable[[], object], sent: float) -> _Sent:
        """Run a collective that sends a number of bytes, after those before it."""
        import torch

        self.sent += sent
        seconds = sent / self.bandwidth if self.bandwidth else 0.0
        if self._device.type != "cuda":

            def slowly() -> None:
                collective()
                time.sleep(seconds)

            future: Future[None] = self._thread.submit(slowly)
            return _Sent(future.result)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            collective()
            if seconds:
                error = self._launch(self._stream.cuda_stream, self._sleep, round(seconds * 1e6))
                assert error == 0, f"cuLaunchHostFunc returned {error}"
            done = self._stream.record_event()
        return _Sent(lambda: torch.cuda.current_stream().wait_event(done))

    def sum_bucket(self, bucket: Any) -> Any:
        """Average a bucket of DDP over the ranks: its communication hook."""
        import torch
        import torch.distributed as dist

        buffer = bucket.buffer().div_(dist.get_world_size())
        handle = dist.all_reduce(buffer, async_op=True)
        if self._device.type != "cuda":
            summed: Any = torch.futures.Future()
            handle.wait()
            summed.set_result(buffer)
            return summed
        summed = torch.futures.Future(devices=[self._device])
        with torch.cuda.stream(self._stream):
            # It records where the stream is now.
            summed.set_result(buffer)
        return summed

    def drain(self) -> None:
        """Wait for all that the device computes and sends."""
        import torch

        if self._device.type == "cuda":
            torch.cuda.synchronize()
        else:
            self._thread.submit(int).result()

    def measured(self) -> float:
        """Return the bandwidth of an all-gather, in bytes per second."""
        import torch
        import torch.distributed as dist

        size = dist.get_world_size()
        bytes_ = _PROBE if self._device.type == "cuda" else 4096
        own = torch.zeros(bytes_ // size, dtype=torch.uint8, device=self._device)
        whole = own.repeat(size)
        for _ in range(2):
            dist.barrier()
            began = time.perf_counter()
            dist.all_gather_into_tensor(whole, own)
            self.drain()
            took = time.perf_counter() - began
        return own.numel() * (size - 1) / took


# ------------------------------------------------------------------------------------------
# The ways
# ------------------------------------------------------------------------------------------


def plain(way: str, leg: Leg, device: Any, fabric: Fabric) -> Callable[[], object]:
    """Return the step of the plain GPT with fp32 master weights: alone, or under DDP or FSDP2."""
    import torch

    from benchmarks.plain_loop import PlainGPT, attention_kernels

    shape, dtype = leg.shape, torch.bfloat16 if leg.precision == "bf16" else torch.float32
    torch.manual_seed(1)
    model = PlainGPT(shape.layers, shape.hidden, shape.heads, shape.sequence, shape.padded_vocabulary)
    model.to(device)
    if leg.compiled:
        # As a whole, the backward pass would give all gradients at its end.
        for part, function in (*((block, "forward") for block in model.blocks), (model, "head")):
            setattr(part, function, torch.compile(getattr(part, function)))
    before: Callable[[bool], AbstractContextManager[object]] = _nothing
    loss: Any = model
    masters: list[Any] = []
    if way.startswith("fsdp2"):
        fabric.fills = True
        before = _fully_shard(model, dtype, leg)
    else:
        masters = [parameter.detach().clone() for parameter in model.parameters()]
        model.to(dtype)
    if way == "ddp":
        loss = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        # PyTorch would compare annotations.
        loss.register_comm_hook(None, lambda _, bucket: fabric.sum_bucket(bucket))
        before = partial(_unless_last, loss.no_sync)
    parameters = list(model.parameters())
    optimiser = torch.optim.AdamW(masters or parameters, lr=1e-4, weight_decay=0.01, fused=True)
    batches = [_batch(leg, device) for _ in range(leg.accumulation)]

    def step() -> None:
        with attention_kernels(device):
            for number, batch in enumerate(batches, 1):
                with before(number == len(batches)):
                    (loss(*batch) / len(batches)).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for master, parameter in zip(masters, parameters, strict=False):
            master.grad = parameter.grad.float()
        optimiser.step()
        if masters:
            torch._foreach_copy_([parameter.data for parameter in parameters], masters)
            optimiser.zero_grad()
        # DDP's gradients are views of its buckets.
        model.zero_grad(set_to_none=way != "ddp")

    return step


def _nothing(_is_last: bool) -> AbstractContextManager[object]:
    return nullcontext()


def _unless_last(context: Callable[[], AbstractContextManager[object]], is_last: bool) -> Any:
    return nullcontext() if is_last else context()


def _fully_shard(model: Any, dtype: Any, leg: Leg) -> Callable[[bool], AbstractContextManager[object]]:
    """Shard gradients and optimiser states, and the weights only outside of a step: ZeRO 2."""
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    reduce = torch.bfloat16 if leg.overrides["parallel.reduce_dtype"] == "bf16" else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=reduce)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mp_policy=policy, reshard_after_forward=False)

    def last(is_last: bool) -> AbstractContextManager[object]:
        model.set_requires_gradient_sync(is_last)
        model.set_reshard_after_backward(is_last)
        model.set_is_last_backward(is_last)
        return nullcontext()

    return last


def _batch(leg: Leg, device: Any) -> tuple[Any, Any]:
    import torch

    tokens = torch.randint(leg.shape.vocabulary, (leg.micro_batch, leg.shape.sequence + 1), device=device)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


# ------------------------------------------------------------------------------------------
# In the measuring processes
# ------------------------------------------------------------------------------------------


def measure(way: str, leg: Leg, bandwidths: list[float], alone: bool) -> dict[str, Any]:
    """Return this rank's ``steps`` and ``fabric`` (seconds and bytes/s, by bandwidth) and ``sent`` (bytes).

    A step's time is that between the ends of two steps on the device, since what one step sends may overlap
    with the next. The first step at each bandwidth is not counted. Other bytes than :func:`expected_bytes`
    mean that not every collective uses the fabric, and end the measurement.
    """
    import torch
    import torch.distributed as dist

    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    fabric = Fabric(device, alone)
    if alone:
        start_alone(leg.layout.world)
    elif device.type == "cuda":
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    step = our_engine(leg)[0] if way.startswith("ours") else plain(way, leg, device, fabric)

    def end() -> Any:
        if device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    for _ in range(leg.warm_up):
        fabric.sent = 0.0
        step()
    expected = expected_bytes(way, leg)
    assert abs(fabric.sent - expected) <= 0.01 * expected, f"{fabric.sent} bytes sent, not {expected}"
    report: dict[str, Any] = {"steps": {}, "fabric": {}, "sent": fabric.sent}
    for bandwidth in bandwidths:
        fabric.drain()
        fabric.bandwidth = bandwidth * 1e9
        if dist.get_world_size() > 1:
            report["fabric"][f"{bandwidth:g}"] = fabric.measured()
        ends = []
        for _ in range(leg.steps + 1):
            step()
            ends.append(end())
        fabric.drain()
        report["steps"][f"{bandwidth:g}"] = [
            first.elapsed_time(second) / 1000 if device.type == "cuda" else second - first
            for first, second in pairwise(ends)
        ]
    if device.type == "cuda":
        report["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return report


def start_alone(ranks: int) -> None:
    """Make this process rank 0 of a group without the others."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    new_group = dist.new_group
    # Gloo's groups, for checkpoints, would wait for the others.
    setattr(dist, "new_group", lambda *args, **named: new_group(*args, **named | {"backend": "fake"}))  # noqa: B010


def expected_bytes(way: str, leg: Leg) -> float:
    """Return the bytes that a rank sends in a step, but for padding and scalars."""
    import torch.distributed as dist

    from rdm_core import config
    from rdm_core.cost import flops

    ranks, weight = leg.layout.world, 2 if leg.precision == "bf16" else 4
    if way == "ddp":
        # It sums gradients, in the weights' type, on all ranks.
        each = 2 * weight
    else:
        gradient = 2 if leg.overrides["parallel.reduce_dtype"] == "bf16" else 4
        # So does our engine over Gloo. Else each rank gets its part's sum.
        sums = way.startswith("ours") and dist.get_backend() == "gloo"
        each = gradient * (2 if sums else 1) + weight
    return each * flops.parameters(config.from_dict(leg.configuration()).spec) * (ranks - 1) / ranks


# ------------------------------------------------------------------------------------------
# In the parent process
# ------------------------------------------------------------------------------------------


def run(way: str, ranks: int, alone: bool, first_device: int = 0) -> dict[str, Any]:
    """Measure a way in processes of their own, and return the report of rank 0.

    Args:
        way: One of ``WAYS``, or ``plain``.
        ranks: Data-parallel ranks.
        alone: Start only rank 0; otherwise all, one for each device.
        first_device: Their first GPU, of those that this process may see.
    """
    started = 1 if alone else ranks
    all_devices = ",".join(str(device) for device in range(first_device + started))
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", all_devices).split(",")
    environment = {
        "OMP_NUM_THREADS": "1",
        # Streams that share a queue would wait for each other.
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",
        **os.environ,
        "CUDA_VISIBLE_DEVICES": ",".join(devices[first_device : first_device + started]),
    }
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "result.json"
        if alone:
            launcher = []
            environment |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks)}
        else:
            launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", f"--log-dir={directory}"]
            # A free port: another run may have the default one.
            launcher += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
        done = subprocess.run(
            [sys.executable, *launcher, __file__, *sys.argv[1:], "--way", way, "--result", str(result)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{way} on {ranks} failed:\n{done.stderr[-6000:]}")
        report: dict[str, Any] = json.loads(result.read_text())
        return report


def table(reports: dict[str, Any], args: argparse.Namespace) -> str:
    """Return the step times, and their shares of one GPU's speed, as Markdown."""
    rows = [["fabric, GB/s", "measured"]]
    rows[0] += [cell for way in args.ways for cell in (f"{WAYS[way]}, s", "of one GPU")]
    rows.append(["one GPU", "-"])
    ones = {way: statistics.median(reports[_on_one(way)]["steps"]["0"]) for way in args.ways}
    rows[1] += [cell for way in args.ways for cell in (f"{ones[way]:.3f}", "1.000")]
    for bandwidth in args.bandwidths:
        key = f"{bandwidth:g}"
        measured = statistics.median(reports[way]["fabric"][key] for way in args.ways)
        rows.append([key if bandwidth else "no limit", f"{measured / 1e9:.2f}"])
        for way in args.ways:
            took = statistics.median(reports[way]["steps"][key])
            rows[-1] += [f"{took:.3f}", f"{ones[way] / took:.3f}"]
    return markdown(rows)


def _on_one(way: str) -> str:
    """Return the name of a way's report on one GPU."""
    return "ours on one" if way.startswith("ours") else "plain on one"


def _bandwidths(text: str) -> list[float]:
    """Read ``--bandwidths``: GB/s, 0 for no limit."""
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 <= one < float("inf") for one in found):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of GB/s such as 1.25,25,0")
    return found


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--ranks", type=int, default=2, help="data-parallel ranks, each with a device")
    parser.add_argument("--alone", action="store_true", help="measure rank 0 without the others")
    parser.add_argument("--ways", type=lambda text: text.split(","), default=list(WAYS), help=",".join(WAYS))
    parser.add_argument(
        "--bandwidths",
        type=_bandwidths,
        default=BANDWIDTHS,
        help="GB/s that each GPU sends, separated by commas; 0 for no limit",
    )
    parser.add_argument("--shape", default="GPT-1.3B", help="one of train_throughput.py")
    parser.add_argument("--accumulation", type=int, default=8, help="micro-batches in a step")
    parser.add_argument("--steps", type=int, default=1, help="at each bandwidth, after one that is not timed")
    parser.add_argument("--warm-up", type=int, default=2, help="steps before the first bandwidth")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a tiny shape in fp32, on CPU processes")
    parser.add_argument("--json", type=Path, help="write everything measured here")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ranks < 2:
        parser.error(f"--ranks {args.ranks}: a fabric needs at least 2")
    for way in args.ways:
        if way not in WAYS:
            parser.error(f"--ways {way} is unknown; there are {', '.join(WAYS)}")
    if args.shape not in (shapes := SHAPES | SMALL):
        parser.error(f"--shape {args.shape} is unknown; there are {', '.join(shapes)}")
    return args


def leg_of(args: argparse.Namespace, way: str, ranks: int) -> Leg:
    """Return the measurement of a way on a number of ranks."""
    name = "tiny" if args.quick else args.shape
    reduced = "bf16" if way.endswith("bf16") else "fp32"
    return Leg(
        shape_name=name,
        shape=(QUICK if args.quick else SHAPES | SMALL)[name],
        layout=Layout(f"DP {ranks}", data=ranks),
        accumulation=args.accumulation,
        rounds=1,
        steps=args.steps,
        warm_up=args.warm_up,
        precision="fp32" if args.quick else "bf16",
        compiled=not (args.quick or args.no_compile),
        plain=False,
        masters=True,
        overrides={"parallel.reduce_dtype": reduced, **({"data.workers": 0} if args.quick else {})},
        engine="native",
    )


def main() -> int:
    """Measure as the command line says; return an exit code."""
    args = arguments()
    if args.way:
        ranks = int(os.environ["WORLD_SIZE"])
        bandwidths, alone = (args.bandwidths, args.alone) if ranks > 1 else ([0.0], True)
        report = measure(args.way, leg_of(args, args.way, ranks), bandwidths, alone)
        if int(os.environ["RANK"]) == 0:
            args.result.write_text(json.dumps(report))
        return 0
    reports: dict[str, Any] = {}
    ones = sorted({_on_one(way) for way in args.ways})
    devices = 1 if args.alone else args.ranks
    with ThreadPoolExecutor(devices) as pool:
        found = pool.map(lambda n: run(ones[n].split()[0], 1, True, n % devices), range(len(ones)))
        reports.update(zip(ones, found, strict=True))
    for way in args.ways:
        began = time.monotonic()
        reports[way] = run(way, args.ranks, args.alone)
        print(f"{way} ({time.monotonic() - began:.0f} s): {json.dumps(reports[way])}", flush=True)
        if args.json:
            args.json.write_text(json.dumps(reports))
    print(f"\n{table(reports, args)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

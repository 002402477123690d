# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the trainer's speed with a minimal plain PyTorch loop of the same shape in the same run.

Run `python benchmarks/train_throughput.py` where `rdm_trainer` is installed; it prints tables for
docs/training-performance.md. On one device, rounds of our steps and the plain loop's alternate in one
process, so that both have the same clocks and the same load; the figures are medians over the rounds. With
two, four or eight devices, data, tensor and pipeline parallelism and their products follow, each with the
same number of tokens per step and device, and are compared with our figures and the plain loop's on one
device. `--engine deepspeed,native` measures both engines, one after the other, each with a plain loop of its
own; `--rivals megatron-core,torchtitan` then measures those likewise, where they are installed: megatron-core
in the same layouts, torchtitan on one device.

The native engine trains pipelines in two chunks a stage, unless the model has too few blocks or `--set` has
`parallel.virtual_pipeline` or `parallel.eager_forwards`. With two stages, its micro-batches are as large as
one device's. The others train twice as many of half the size, for as small a bubble.

`--together 3` starts three measurements at once. They compile and warm up at the same time, and are then
measured one after the other, while the others wait. There must be memory for all of them.

MFU counts 6N + 12·L·h·s FLOPs per token (N: all parameters, the tied embedding once), against the given or
known peak. `--quick` is a smoke test: small shapes, also on a CPU.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "trainer")]

from benchmarks.tables import markdown  # noqa: E402
from benchmarks.training_legs import LAYOUTS, QUICK, SHAPES, SMALL, Layout, Leg, Shape  # noqa: E402

LEG_TIMEOUT_S = 900.0
ENGINES = ("deepspeed", "native")
RIVALS = {"megatron-core": "0.19.2", "torchtitan": "0.2.2"}  # with the versions that were tried


# ------------------------------------------------------------------------------------------
# In the measuring processes
# ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    """A leg's turn to be measured, which its processes learn from files in its directory."""

    directory: Path
    parent: int = field(default_factory=os.getppid)

    def wait(self) -> None:
        """Say that this rank is ready, and wait for the turn of its leg."""
        (self.directory / f"{os.environ['RANK']}.ready").touch()
        while not self._came.exists():
            if os.getppid() != self.parent:
                sys.exit("The benchmark that started this process has ended.")
            time.sleep(0.02)

    def can_come(self, ranks: int) -> bool:
        """Return whether so many ranks are ready."""
        return len(list(self.directory.glob("*.ready"))) == ranks

    def come(self) -> None:
        """Let the leg's ranks go on."""
        self._came.touch()

    @property
    def _came(self) -> Path:
        return self.directory / "turn"


def measure(leg: Leg, turn: Turn | None = None) -> dict[str, Any]:
    """Measure a leg in this process, one of its ranks, and return the report of rank 0."""
    import torch
    import torch.distributed as dist

    accelerated = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if accelerated else torch.device("cpu")
    if accelerated:
        torch.cuda.set_device(device)

    def synchronise() -> None:
        if accelerated:
            torch.cuda.synchronize()

    def peak() -> float:
        if not accelerated:
            return 0.0
        value = torch.cuda.max_memory_allocated() / 2**30
        torch.cuda.reset_peak_memory_stats()
        return value

    report: dict[str, Any] = {}
    ways: dict[str, Callable[[], object]] = {}
    begin = time.perf_counter()
    way = leg.rival or "ours"
    if accelerated:
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    if leg.rival:
        layout = leg.layout
        # Its ranks count tensor first, then data, then pipeline, as ours do.
        data_rank = dist.get_rank() // layout.tensor % layout.data
        held = hold(leg, device, micro_batches(leg, data_rank, layout.data))
        rival = create_rival(leg, device, held)
        report["about"] = rival.about
        step, loss = rival.step, rival.loss
    elif leg.ours:
        step, batches, loss = our_engine(leg)
        held = hold(leg, device, batches) if leg.plain else []
    else:
        held = hold(leg, device, micro_batches(leg))
    if leg.rival or leg.ours:
        ways[way] = step
        for _ in range(leg.warm_up):
            step()
        synchronise()
        report[f"{way}_warm_up_s"] = time.perf_counter() - begin
        report[f"{way}_peak_gib"] = peak()
    if leg.plain:
        begin = time.perf_counter()
        resident = torch.cuda.memory_allocated() / 2**30 if accelerated else 0.0
        loop = plain_loop(leg, device, held)
        ways["plain"] = loop.step
        for _ in range(leg.warm_up):
            loop.step()
        synchronise()
        report["plain_warm_up_s"] = time.perf_counter() - begin
        report["plain_peak_gib"] = peak() - resident
    if turn:
        turn.wait()
        dist.barrier()
    rates: dict[str, list[float]] = {name: [] for name in ways}
    tokens = {name: leg.samples(name) * leg.shape.sequence * leg.steps for name in ways}
    for _ in range(leg.rounds):
        for name, step in ways.items():
            synchronise()
            begin = time.perf_counter()
            for _ in range(leg.steps):
                step()
            synchronise()
            rates[name].append(tokens[name] / (time.perf_counter() - begin) / leg.layout.world)
    report["tokens_per_second"] = rates
    if ways.keys() != {"plain"}:
        report["loss"] = loss()
    if leg.profile:
        profile(leg, ways)
    return report


def micro_batches(leg: Leg, data_rank: int = 0, data_size: int = 1) -> Iterator[Any]:
    """Return the trainer's micro-batches of a data-parallel rank, on the host."""
    from rdm_core import config as configuration
    from rdm_trainer.data import loaders

    train = loaders.build(
        configuration.from_dict(leg.configuration()),
        data_rank=data_rank,
        data_size=data_size,
        consumed_samples=0,
    ).train
    assert train is not None
    return iter(train)


def hold(leg: Leg, device: Any, batches: Iterator[Any]) -> list[tuple[Any, Any]]:
    """Return the tokens and labels of a step's micro-batches on the device."""
    held = []
    for _ in range(leg.accumulation):
        tokens, (labels, _mask) = next(batches)
        held.append((tokens.to(device), labels.to(device)))
    return held


def our_engine(leg: Leg) -> tuple[Callable[[], object], Iterator[Any], Callable[[], float]]:
    """Return our engine's step, an iterator of micro-batches of the same data, and the last loss."""
    from rdm_core import config as configuration
    from rdm_trainer.engines import create

    config = configuration.from_dict(leg.configuration())
    topology = create.create_topology(config)
    engine = create.create(config, topology)
    engine.set_lr(1e-4)
    data = micro_batches(leg, topology.data_rank, topology.data)
    last: list[Any] = []

    def step() -> None:
        # As in training, the loss stays on the device until a line is logged.
        last[:] = [engine.train_step(data)]

    return step, micro_batches(leg, topology.data_rank, topology.data), lambda: float(last[0].loss)


def create_rival(leg: Leg, device: Any, held: list[tuple[Any, Any]]) -> Any:
    """Return the rival on a device, with the micro-batches of a step."""
    from benchmarks.rivals import RIVALS as TRAINERS
    from benchmarks.rivals import Training
    from rdm_core.partition import stage_bounds

    layout = leg.layout
    bounds = stage_bounds(
        ["Block"] * leg.shape.layers, None, leg.shape.partition(layout.pipeline), layout.pipeline
    )
    training = Training(
        shape=leg.shape,
        batches=held,
        accumulation=leg.micro_batches,
        device=device,
        mixed=leg.precision == "bf16",
        compiled=leg.compiled,
        tensor=layout.tensor,
        data=layout.data,
        stages=[end - begin for begin, end in pairwise(bounds)],
    )
    return TRAINERS[str(leg.rival)](training)


def plain_loop(leg: Leg, device: Any, held: list[tuple[Any, Any]]) -> Any:
    """Return the plain loop on a device, with the micro-batches of a step."""
    import torch

    from benchmarks.plain_loop import PlainGPT, PlainLlama, PlainLoop

    shape = leg.shape
    ends = (shape.sequence, shape.padded_vocabulary)
    model: PlainGPT | PlainLlama
    if shape.groups and shape.ffn:
        model = PlainLlama(shape.layers, shape.hidden, shape.heads, shape.groups, shape.ffn, *ends)
    else:
        model = PlainGPT(shape.layers, shape.hidden, shape.heads, *ends)
    model = model.to(device, torch.bfloat16 if leg.precision == "bf16" else torch.float32)
    return PlainLoop(model, held, leg.accumulation, compiled=leg.compiled, masters=leg.masters)


def profile(leg: Leg, ways: dict[str, Callable[[], object]]) -> None:
    """Write a table of each step's kernels on the device to the leg's directory."""
    import torch
    from torch.profiler import ProfilerActivity

    if int(os.environ["RANK"]) != 0:
        for step in ways.values():
            step()
        return
    for name, step in ways.items():
        with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as result:
            step()
            torch.cuda.synchronize()
        table = result.key_averages().table(
            sort_by="self_device_time_total", row_limit=45, max_name_column_width=90
        )
        which = leg.engine if name == "ours" else name
        file = Path(str(leg.profile)) / f"profile-{leg.shape_name}-{leg.layout.name}-{which}.txt".replace(
            " ", "_"
        )
        file.write_text(table)


# ------------------------------------------------------------------------------------------
# In the parent process
# ------------------------------------------------------------------------------------------


class Running:
    """The processes of a leg, from their start on.

    Args:
        leg: what they measure.
        directory: an empty one for their files.
    """

    def __init__(self, leg: Leg, directory: Path) -> None:
        self.leg = leg
        self.turn = Turn(directory)
        self._directory = directory
        self._begin = time.monotonic()
        self._deadline = self._begin + LEG_TIMEOUT_S
        self._end: float | None = None
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        environment = dict(os.environ)
        environment |= {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(leg.layout.world),
        }
        environment.setdefault("OMP_NUM_THREADS", "1")
        if leg.rival == "megatron-core" and leg.layout.tensor > 1:
            # As its training program demands: a collective then starts before the kernels that hide it.
            environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
        self._processes = []
        for rank in range(leg.layout.world):
            with (directory / f"{rank}.log").open("w") as log:
                self._processes.append(
                    subprocess.Popen(
                        [
                            sys.executable,
                            __file__,
                            "--leg",
                            json.dumps(asdict(leg)),
                            "--directory",
                            str(directory),
                        ],
                        env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )

    @property
    def seconds(self) -> float:
        """Since the start, until the end."""
        return (self._end or time.monotonic()) - self._begin

    @property
    def is_ready(self) -> bool:
        """Whether all its ranks wait for the leg's turn."""
        return self.turn.can_come(len(self._processes))

    def measure(self) -> None:
        """Let its ranks measure; that they waited for the turn of their leg does not count as their time."""
        self._deadline = time.monotonic() + LEG_TIMEOUT_S
        self.turn.come()

    def has_ended(self) -> bool:
        """Return whether all processes have ended, and end those that would wait for one that failed."""
        if self._end is None:
            codes = [process.poll() for process in self._processes]
            if any(codes) or time.monotonic() > self._deadline:
                self.kill()
            elif None in codes:
                return False
            self._end = time.monotonic()
        return True

    def kill(self) -> None:
        """End the processes that still run."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def report(self) -> dict[str, Any]:
        """Return the report of rank 0, or why there is none."""
        failed = [rank for rank, process in enumerate(self._processes) if process.returncode > 0]
        result = self._directory / "result.json"
        if failed or not result.exists():
            written = (self._directory / f"{failed[0] if failed else 0}.log").read_text()
            return {"error": written[-4000:]}
        report: dict[str, Any] = json.loads(result.read_text())
        return report


def run_legs(legs: Sequence[Leg], directory: Path) -> Generator[Running, None, None]:
    """Start the processes of all legs, let one leg after the other measure, and yield each that has ended."""
    running: list[Running] = []
    try:
        for leg in legs:
            running.append(Running(leg, Path(tempfile.mkdtemp(dir=directory))))
        # Nothing is measured while a leg still compiles.
        while not all(one.is_ready or one.has_ended() for one in running):
            time.sleep(0.2)
        for one in running:
            one.measure()
            while not one.has_ended():
                time.sleep(0.2)
            yield one
    finally:
        for one in running:
            one.kill()


def machine() -> dict[str, Any]:
    """Return the machine's devices and versions."""
    import torch

    accelerated = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if accelerated else platform.processor() or platform.machine(),
        "devices": torch.cuda.device_count() if accelerated else os.cpu_count() or 1,
        "accelerated": accelerated,
        "torch": torch.__version__,
        "deepspeed": importlib.metadata.version("deepspeed"),
        "python": platform.python_version(),
    }


def machine_in_a_process() -> dict[str, Any]:
    """Return the same without a device context, which would take memory on the first device."""
    output = subprocess.run(
        [sys.executable, __file__, "--machine"], check=True, capture_output=True, text=True
    ).stdout
    facts: dict[str, Any] = json.loads(output.splitlines()[-1])
    return facts


def tables(results: list[dict[str, Any]], peak_tflops: float) -> str:
    """Return the tables of the results, as Markdown."""
    one_rows = [
        ["shape", "way", "micro-batch", "tokens/s", "spread", "MFU %", "of plain", "peak GiB"],
    ]
    two_rows = [
        [
            "shape",
            "layout",
            "micro-batches",
            "tokens/s each",
            "spread",
            "MFU %",
            "of ours on one",
            "of plain on one",
        ],
    ]
    singles: dict[tuple[str, str], dict[str, float]] = {}
    for result in results:
        leg, report = result["leg"], result["report"]
        if "error" in report:
            continue
        name, layout, engine = leg["shape_name"], leg["layout"]["name"], leg["engine"]
        medians = {way: statistics.median(rates) for way, rates in report["tokens_per_second"].items()}

        def mfu(rate: float, flops: float = result["flops_per_token"]) -> str:
            return f"{100 * rate * flops / (peak_tflops * 1e12):.1f}" if peak_tflops else "-"

        def spread(way: str, report: dict[str, Any] = report, medians: dict[str, float] = medians) -> str:
            rates = report["tokens_per_second"][way]
            return f"{100 * (max(rates) - min(rates)) / medians[way]:.1f} %"

        if layout == "one":
            if {"plain"} <= medians.keys() <= {"ours", "plain"}:
                singles[name, engine] = medians
            for way in medians:
                ratio = f"{medians[way] / medians['plain']:.3f}" if "plain" in medians else "-"
                one_rows.append(
                    [
                        name,
                        engine if way == "ours" else way,
                        result["micro_batches"][way],
                        f"{medians[way]:,.0f}",
                        spread(way),
                        mfu(medians[way]),
                        ratio,
                        f"{report[f'{way}_peak_gib']:.0f}",
                    ]
                )
        else:
            ((way, rate),) = medians.items()
            base = singles.get((name, engine), {})
            two_rows.append(
                [
                    name,
                    f"{layout}, {engine if way == 'ours' else way}",
                    result["micro_batches"][way],
                    f"{rate:,.0f}",
                    spread(way),
                    mfu(rate),
                    f"{rate / base['ours']:.3f}" if "ours" in base else "-",
                    f"{rate / base['plain']:.3f}" if base else "-",
                ]
            )
    parts = [markdown(rows, words=2) for rows in (one_rows, two_rows) if len(rows) > 1]
    parts += dict.fromkeys(result["report"]["about"] for result in results if "about" in result["report"])
    return "\n\n".join(parts)


def _positive(text: str) -> int:
    """Return a number that argparse refuses below 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


_positive.__name__ = "int"  # for argparse's message about what is no number


def _overrides(entries: Sequence[str]) -> dict[str, Any]:
    """Return the values of `--set` by key; ValueError for what is no SECTION.KEY=JSON of a configuration."""
    from rdm_core import config
    from rdm_core.errors import TrainerError

    found = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        section, dot, name = key.partition(".")
        if not (equals and dot):
            raise ValueError(f"{entry} is not SECTION.KEY=JSON, such as parallel.reduce_dtype='\"bf16\"'")
        try:
            found[key] = json.loads(value)
        except ValueError:
            raise ValueError(f"{value} in {entry} is not JSON; text needs quotes, as '\"bf16\"'") from None
        try:
            config.from_dict({section: {name: found[key]}})
        except TrainerError as error:
            raise ValueError(str(error)) from None
    return found


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--shapes", help="names, separated by commas; all")
    parser.add_argument("--layouts", default=LAYOUTS, help="those for which there are devices; all up to 8")
    parser.add_argument("--engine", default="deepspeed", help="deepspeed, native, or both with a comma")
    parser.add_argument("--rivals", default="", help=f"measured as well: {', '.join(RIVALS)}")
    parser.add_argument(
        "--accumulation", type=_positive, default=8, help="micro-batches in a step on one device"
    )
    parser.add_argument("--blocks", type=_positive, help="blocks of the model, instead of the shape's")
    parser.add_argument("--sequence", type=_positive, help="tokens of a sample, instead of the shape's")
    parser.add_argument(
        "--micro-batch", type=_positive, help="samples of it on one device, instead of the shape's"
    )
    parser.add_argument("--rounds", type=_positive, default=5)
    parser.add_argument("--steps", type=_positive, default=1, help="in a round")
    parser.add_argument("--warm-up", type=int, default=2, help="steps before the clock starts")
    parser.add_argument("--peak-tflops", type=float, help="of one device; known for some")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--no-plain", action="store_true", help="leave the plain loop out")
    parser.add_argument("--no-ours", action="store_true", help="leave our engine out")
    parser.add_argument("--masters", action="store_true", help="the plain loop has fp32 master weights too")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=JSON", help="for our engine"
    )
    parser.add_argument("--quick", action="store_true", help="a small shape in fp32, to see that all works")
    parser.add_argument("--json", type=Path, help="write everything measured here")
    parser.add_argument("--profile", type=Path, help="write tables of what a step costs into this directory")
    parser.add_argument("--together", type=_positive, default=1, help="measurements that are started at once")
    parser.add_argument("--leg", help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--machine", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.json and not args.json.resolve().parent.is_dir():
        parser.error(f"--json: the directory {args.json.parent} does not exist")
    try:
        args.layouts = [Layout.parse(name) for name in args.layouts.split(",")]
    except ValueError as error:
        parser.error(f"--layouts: {error}")
    args.rivals = [name for name in args.rivals.split(",") if name]
    for name in args.rivals:
        if name not in RIVALS:
            parser.error(f"--rivals {name} is unknown; {' and '.join(RIVALS)} can be measured")
    shapes = QUICK if args.quick else SHAPES | SMALL
    args.shapes = args.shapes.split(",") if args.shapes else list(QUICK if args.quick else SHAPES)
    for name in args.shapes:
        if name not in shapes:
            parser.error(f"--shapes {name} is unknown; there are {', '.join(shapes)}")
    args.engine = args.engine.split(",")
    for name in args.engine:
        if name not in ENGINES:
            parser.error(f"--engine {name} is unknown; there are {' and '.join(ENGINES)}")
    try:
        args.overrides = _overrides(args.set)
    except ValueError as error:
        parser.error(f"--set: {error}")
    return args


def missing(rival: str) -> str | None:
    """Return why a rival cannot be measured here, if it is not installed."""
    try:
        importlib.metadata.version(rival)
    except importlib.metadata.PackageNotFoundError:
        return f"{rival} is not installed here; `pip install {rival}=={RIVALS[rival]}` installs it"
    return None


def unfit(trainer: str, shape: Shape, layout: Layout, accelerated: bool) -> str | None:
    """Return why an engine or an installed rival cannot train a shape in a layout on this machine, if so."""
    if trainer == "deepspeed" and layout.context > 1:
        return "context parallelism needs --engine native"
    if trainer == "megatron-core" and not accelerated:
        return "megatron-core trains on GPUs only"
    if trainer == "torchtitan" and not shape.groups:
        return "torchtitan has no GPT with learned positions; a Llama's shape works"
    if trainer == "torchtitan" and layout.world > 1:
        return "torchtitan is measured on one device only"
    if trainer == "megatron-core" and layout.context > 1:
        return "megatron-core's context parallelism needs Transformer Engine"
    return None


def legs(args: argparse.Namespace, devices: int, accelerated: bool) -> Iterator[Leg]:
    """Yield the wanted legs for which there are enough devices, and print why others are left out."""
    rivals = []
    for rival in args.rivals:
        reason = missing(rival)
        if reason:
            print(f"Left out: {reason}.", flush=True)
        else:
            rivals.append(rival)
    shapes = QUICK if args.quick else SHAPES | SMALL
    for name in args.shapes:
        shape = replace(
            shapes[name],
            layers=args.blocks or shapes[name].layers,
            sequence=args.sequence or shapes[name].sequence,
            micro_batch=args.micro_batch or shapes[name].micro_batch,
        )
        if args.blocks:
            name = f"{name.partition(' x ')[0]} x {args.blocks}"
        for layout in args.layouts:
            if layout.world > devices:
                continue
            if shape.heads % layout.tensor:
                print(
                    f"{name}, {layout.name}: left out, {layout.tensor} cannot divide {shape.heads} heads",
                    flush=True,
                )
                continue
            wanted: list[tuple[str, str | None]] = [(engine, None) for engine in args.engine]
            wanted += [(args.engine[0], rival) for rival in rivals]
            for engine, rival in wanted:
                reason = unfit(rival or engine, shape, layout, accelerated)
                if reason:
                    print(f"{name}, {layout.name}: left out, {reason}.", flush=True)
                    continue
                leg = Leg(
                    shape_name=name,
                    shape=shape,
                    layout=layout,
                    accumulation=args.accumulation,
                    rounds=args.rounds,
                    steps=args.steps,
                    warm_up=args.warm_up,
                    precision="bf16",
                    compiled=not args.no_compile,
                    plain=layout.world == 1 and not args.no_plain,
                    masters=args.masters,
                    overrides=args.overrides,
                    engine=engine,
                    profile=str(args.profile.resolve()) if args.profile else None,
                    ours=not args.no_ours,
                    rival=rival,
                )
                if args.quick:
                    leg = replace(
                        leg, rounds=2, steps=1, warm_up=1, precision="fp32", compiled=False, profile=None
                    )
                if leg.ours or leg.plain or leg.rival:
                    yield leg


def main() -> int:
    """Measure as the command line says; return an exit code."""
    args = arguments()
    if args.machine:
        print(json.dumps(machine()))
        return 0
    if args.leg:
        report = measure(Leg.from_json(args.leg), Turn(args.directory))
        if int(os.environ["RANK"]) == 0:
            (args.directory / "result.json").write_text(json.dumps(report))
        return 0

    facts = machine_in_a_process()
    from rdm_core import config
    from rdm_core.cost import flops

    peak = args.peak_tflops or flops.peak_tflops(facts["device"]) or 0.0
    print(json.dumps(facts), flush=True)
    results: list[dict[str, Any]] = []
    if args.profile:
        args.profile.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        wanted = legs(args, facts["devices"], facts["accelerated"])
        for some in iter(lambda: list(islice(wanted, args.together)), []):
            for running in run_legs(some, Path(directory)):
                leg, report = running.leg, running.report()
                results.append(
                    {
                        "leg": asdict(leg),
                        "micro_batches": {
                            way: "{} x {}".format(*leg.batch(way))
                            for way in report.get("tokens_per_second", ())
                        },
                        "flops_per_token": flops.flops_per_token(config.from_dict(leg.configuration()).spec),
                        "report": report,
                    }
                )
                print(
                    f"{leg.shape_name}, {leg.layout.name}, {leg.rival or leg.engine} "
                    f"({running.seconds:.0f} s): {json.dumps(report)}",
                    flush=True,
                )
                if args.json:
                    args.json.write_text(
                        json.dumps({"machine": facts, "peak_tflops": peak, "results": results})
                    )
    if not results:
        print(
            "Nothing was measured: these options leave no trainer, or no layout for these devices.",
            file=sys.stderr,
        )
        return 2
    print()
    print(f"{facts}, against {peak or 'no known'} TFLOP/s\n")
    print(tables(results, peak))
    return 1 if any("error" in result["report"] for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())

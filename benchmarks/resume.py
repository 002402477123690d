# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure a resume in another layout: time, bandwidth and peak memory of saving and of loading.

Run `python benchmarks/resume.py --blocks 16 --from "TP 2" --to "PP 2"` where `rdm_trainer` is installed; it
prints tables for docs/training-performance.md. Ranks in the first layout train, save, and train on. New ranks
in the second layout load that checkpoint and train on. They must take the same samples, and their losses may
differ from those of the uninterrupted training by a small share of what these steps change. A checkpoint has
12 bytes for each parameter. Its files are read right after they are written, so they may come from memory.
Memory is that of the rank with most.
`--blocks 32` is Llama 3 8B, and `--shape tiny` a smoke test, also on a CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "trainer")]

from benchmarks.layout_accuracy import launch  # noqa: E402
from benchmarks.tables import markdown  # noqa: E402
from benchmarks.training_legs import QUICK, SHAPES, SMALL, Layout, Leg, Shape  # noqa: E402

STEPS = 3
"""Steps before the save, and again after it and after the load."""
TIMEOUT_S = 600.0
RATE = 0.02
"""Learning rate times width: low enough for the loss to fall steadily, so that rounding does not grow."""
TOLERANCE = 0.02
"""How much losses may differ, as a share of what the steps after the save change."""


def resident(name: str) -> int:
    """Return this process's resident bytes: VmRSS now, or VmHWM at most since they were last reset."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith(name))


def measured(device: Any, work: Callable[[], object]) -> dict[str, float]:
    """Do work on all ranks; return its seconds and the memory of the rank with most, in bytes."""
    import torch
    import torch.distributed as dist

    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins again
    own: dict[str, float] = {"host_before": resident("VmRSS")}
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        own["device_before"] = torch.cuda.memory_allocated()
    dist.barrier()
    begin = time.perf_counter()
    work()
    dist.barrier()
    own |= {"seconds": time.perf_counter() - begin, "host_peak": resident("VmHWM")}
    if device.type == "cuda":
        own["device_peak"] = torch.cuda.max_memory_allocated()
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    return {name: max(one[name] for one in every) for name in own}


def train(leg: Leg, directory: Path) -> dict[str, Any]:
    """Train in this process, one of the leg's ranks: from a checkpoint, or up to it and on.

    Args:
        leg: what is trained.
        directory: of checkpoints; it has none the first time.

    Returns:
        What was measured, and the losses.
    """
    import torch.distributed as dist

    from rdm_core import config as configuration
    from rdm_trainer.checkpoint.store import Checkpoints, find
    from rdm_trainer.data import loaders
    from rdm_trainer.distributed.collective import Collective
    from rdm_trainer.engines import create
    from rdm_trainer.tools.all_reduce import join

    device = join(TIMEOUT_S)
    config = configuration.from_dict(leg.configuration())
    topology = create.create_topology(config)
    collective = Collective(datetime.timedelta(seconds=TIMEOUT_S))
    found = find(config, directory, collective, print)
    engine = create.create(config, topology)
    engine.set_lr(RATE / leg.shape.hidden)
    checkpoints = Checkpoints(config, engine, topology, collective, directory, print)
    data = loaders.build(
        config,
        data_rank=topology.batch_rank,
        data_size=topology.batch_ranks,
        consumed_samples=found.manifest.state["consumed_samples"] if found else 0,
    ).train
    assert data is not None
    taken: set[int] = set()

    def recorded() -> Iterator[Any]:
        for inputs, labels in data:
            taken.add(zlib.crc32(inputs.numpy().tobytes()))
            yield inputs, labels

    batches = recorded()

    def steps() -> list[float]:
        return [float(engine.train_step(batches).loss) for _ in range(STEPS)]

    report: dict[str, Any] = {}
    if found:
        report["load"] = measured(device, lambda: checkpoints.resume(found))
    else:
        report["before"] = steps()
        taken_samples = STEPS * config.optimisation.global_batch_size
        state = {"iteration": STEPS, "consumed_samples": taken_samples, "skipped": 0}
        report["save"] = measured(device, lambda: checkpoints.save(STEPS, state))
        if checkpoints.newest is None:
            raise SystemExit("The checkpoint was not saved.")
        taken.clear()
    report["losses"] = steps()
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, taken)
    report["samples"] = sorted(set().union(*every))
    engine.close()
    dist.barrier()
    dist.destroy_process_group()
    return report


def leg_of(args: argparse.Namespace, layout: Layout) -> Leg:
    """Return what the ranks of a layout train: micro-batches of one sample, as many in all in each layout."""
    shape: Shape = (SHAPES | SMALL | QUICK)[args.shape]
    shape = replace(shape, layers=args.blocks or shape.layers)
    return Leg(
        shape_name=args.shape,
        shape=replace(shape, sequence=args.sequence or shape.sequence),
        layout=layout,
        accumulation=1,
        rounds=1,
        steps=STEPS,
        warm_up=0,
        precision="fp32" if args.shape in QUICK else "bf16",
        compiled=False,
        plain=False,
        masters=False,
        overrides={
            "optimisation.micro_batch_size": 1,
            "optimisation.global_batch_size": args.samples,
            "parallel.virtual_pipeline": 1,
            "data.workers": 0,
        },
        engine=args.engine,
    )


def tables(layouts: Sequence[str], saved: dict[str, Any], loaded: dict[str, Any], bytes_saved: int) -> str:
    """Return the tables of both layouts' reports as Markdown."""
    first, second = layouts
    rows = [["work", "layout", "GB", "s", "GB/s", "host GiB", "at its peak", "GPU GiB", "at its peak"]]
    for what, layout, one in (("save", first, saved["save"]), ("load", second, loaded["load"])):
        memory = [one.get(name) for name in ("host_before", "host_peak", "device_before", "device_peak")]
        rows.append(
            [
                what,
                layout,
                f"{bytes_saved / 1e9:.1f}",
                f"{one['seconds']:.1f}",
                f"{bytes_saved / one['seconds'] / 1e9:.2f}",
                *("-" if size is None else f"{size / 2**30:.1f}" for size in memory),
            ]
        )
    losses = [["step", f"loss, {first}", f"loss, resumed with {second}", "difference"]]
    losses += [[f"{number}", f"{loss:.4f}", "", ""] for number, loss in enumerate(saved["before"], 1)]
    losses += [
        [f"{number}", f"{one:.4f}", f"{other:.4f}", f"{100 * (other / one - 1):+.3f} %"]
        for number, (one, other) in enumerate(zip(saved["losses"], loaded["losses"], strict=True), STEPS + 1)
    ]
    return f"{markdown(rows, words=2)}\n\n{markdown(losses, words=0)}"


def difference(saved: dict[str, Any], loaded: dict[str, Any]) -> str | None:
    """Return how a resumed training differs from the uninterrupted one; None if it goes on alike."""
    if saved["samples"] != loaded["samples"]:
        return "The resumed training took other samples."
    one, other = saved["losses"], loaded["losses"]
    change = max(one) - min(one)
    shares = [abs(b - a) / change for a, b in zip(one, other, strict=True)]
    if all(share <= TOLERANCE for share in shares):
        return None
    return f"Losses differ by up to {max(shares):.1%} of their change; {TOLERANCE:.0%} may be rounding."


def main() -> int:
    """Measure as the command line says; return an exit code."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument(
        "--shape", default="Llama-3 8B x 6", choices=SHAPES | SMALL | QUICK, help="of train_throughput.py"
    )
    parser.add_argument("--blocks", type=int, help="blocks of the model, instead of the shape's")
    parser.add_argument("--sequence", type=int, help="tokens of a sample, instead of the shape's")
    parser.add_argument("--from", dest="first", default="TP 2", help="the layout that saves, such as 'TP 2'")
    parser.add_argument("--to", dest="second", default="PP 2", help="the layout that loads")
    parser.add_argument("--samples", type=int, default=8, help="in a step of either layout")
    parser.add_argument("--engine", choices=("deepspeed", "native"), default="native")
    parser.add_argument("--directory", type=Path, help="for the checkpoint; a temporary one by default")
    parser.add_argument("--leg", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.leg:
        report = train(Leg.from_json(args.leg), args.directory)
        if os.environ["RANK"] == "0":
            args.result.write_text(json.dumps(report))
        return 0
    from rdm_core import config as configuration
    from rdm_core.errors import TrainerError

    try:
        layouts = [Layout.parse(name) for name in (args.first, args.second)]
        for layout in layouts:
            config = configuration.from_dict(leg_of(args, layout).configuration())
            configuration.require(config, layout.world, layout.world)
    except (ValueError, TrainerError) as error:
        parser.error(str(error))
    reports = []
    with tempfile.TemporaryDirectory(dir=args.directory) as temporary:
        directory = Path(temporary) / "checkpoints"
        result = Path(temporary) / "result.json"
        for layout in layouts:
            options = ["--directory", str(directory), "--result", str(result)]
            launch(layout.world, [__file__, *options, "--leg", json.dumps(asdict(leg_of(args, layout)))])
            reports.append(json.loads(result.read_text()))
            print(f"{layout.name}: {json.dumps(reports[-1])}", flush=True)
        bytes_saved = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    saved, loaded = reports
    print(f"\n{tables((args.first, args.second), saved, loaded, bytes_saved)}")
    if problem := difference(saved, loaded):
        print(f"\n{problem}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure how well the planner predicts layouts, micro-batches and models that were not profiled.

Run `python benchmarks/layout_accuracy.py --output DIR` where `rdm_trainer` can be imported. It profiles the
layers of a GPT on one, two, four or eight devices of this host (`rdm-trainer profile`, micro-batches 1, 2, 4
and 8, models of 2 and of 6 blocks), predicts steps of other models, micro-batches, global batches and layouts
from that, runs those steps with the trainer's engine, and compares. The shape is that of Llama 7B's blocks,
4,096 wide on 2,048 tokens: with narrower ones a GPU waits for the CPU, whose times vary more than the errors
to be measured. A step's time is the median over rounds, without the first steps. `--smoke` is a smoke test: a
small shape, also on a CPU.

`--measured FILE... --profile FILE...` trains nothing: it predicts the steps of our engine that
`train_throughput.py --json` measured, each with its own cut, from the profile of its layers, and says whether
the fastest layout of a model, a number of GPUs and a batch was predicted as the fastest.
"""

from __future__ import annotations

import argparse
import collections
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "trainer")]

from benchmarks.tables import markdown  # noqa: E402
from benchmarks.training_legs import Layout, Leg  # noqa: E402

TIMEOUT_S = 1800.0
WARM_UP, ROUNDS = 3, 5


@dataclass(frozen=True)
class Combination:
    """What is trained.

    Args:
        layout: Name of a layout of training_legs.py.
        layers: Blocks of the model.
        micro_batch: Samples in a micro-batch.
        micro_batches: Micro-batches of a step, for each replica.
        checkpointing: Activations are recomputed.
    """

    layout: str
    layers: int
    micro_batch: int
    micro_batches: int
    checkpointing: bool = False


ONE = [
    Combination("one", 8, 3, 4),
    Combination("one", 8, 6, 3, True),
    Combination("one", 5, 4, 6),
    Combination("one", 4, 6, 4),
    Combination("one", 10, 1, 8),
    Combination("one", 10, 3, 4, True),
]
MORE_ON_ONE = [
    Combination("one", 8, 8, 3, True),
    Combination("one", 4, 2, 8),
    Combination("one", 3, 6, 4),
    Combination("one", 7, 4, 4, True),
    Combination("one", 5, 6, 3),
    Combination("one", 3, 3, 8, True),
]
TWO = [
    Combination("DP 2", 8, 3, 4),
    Combination("DP 2", 8, 6, 3, True),
    Combination("DP 2", 4, 4, 4),
    Combination("TP 2", 8, 4, 6),
    Combination("TP 2", 8, 6, 4, True),
    Combination("TP 2", 5, 8, 4),
    Combination("PP 2", 8, 4, 8),
    Combination("PP 2", 8, 2, 12),
    Combination("PP 2", 5, 6, 6, True),
]
FOUR = [
    Combination("DP 4", 8, 3, 4),
    Combination("DP 4", 8, 6, 3, True),
    Combination("DP 4", 4, 4, 4),
    Combination("TP 4", 8, 8, 4),
    Combination("TP 4", 8, 8, 6, True),
    Combination("TP 4", 12, 4, 6),
    Combination("PP 4", 8, 4, 8),
    Combination("PP 4", 12, 2, 16),
    Combination("PP 4", 8, 2, 12, True),
    Combination("TP 2 DP 2", 8, 4, 4),
    Combination("TP 2 DP 2", 8, 6, 4, True),
    Combination("TP 2 PP 2", 8, 4, 8),
    Combination("TP 2 PP 2", 12, 4, 8, True),
    Combination("PP 2 DP 2", 8, 4, 6),
    Combination("PP 2 DP 2", 8, 2, 12),
]
"""Every layout of four devices."""
EIGHT = [
    Combination("DP 8", 16, 2, 4),
    Combination("DP 8", 16, 4, 2),
    Combination("TP 8", 16, 8, 8),
    Combination("PP 8", 16, 2, 32),
    Combination("PP 8", 16, 4, 16),
    Combination("TP 2 DP 4", 16, 4, 4),
    Combination("TP 2 DP 4", 16, 8, 2),
    Combination("TP 4 DP 2", 16, 8, 4),
    Combination("PP 2 DP 4", 16, 2, 8),
    Combination("PP 2 DP 4", 16, 1, 16),
    Combination("PP 4 DP 2", 16, 2, 16),
    Combination("PP 4 DP 2", 16, 4, 8),
    Combination("TP 2 PP 4", 16, 4, 16),
    Combination("TP 4 PP 2", 16, 8, 8),
    Combination("TP 2 PP 2 DP 2", 16, 4, 8),
    Combination("TP 2 PP 2 DP 2", 16, 2, 16),
]
"""One model and one batch in every layout of eight devices, so that the fastest can be compared."""
ON = {1: [*ONE, *MORE_ON_ONE], 2: [*ONE, *TWO], 4: FOUR, 8: EIGHT}
"""What is measured on so many devices."""
SMOKE = [Combination("one", 3, 1, 2), Combination("one", 4, 3, 2, True), Combination("one", 6, 2, 2)]


def configuration(combination: Combination, engine: str, *, smoke: bool) -> Any:
    """Return the job of a combination."""
    from rdm_core import config

    layout = Layout.parse(combination.layout)
    small = {"hidden_size": 64, "attention_heads": 4, "seq_length": 64, "vocab_size": 500}
    large = {"hidden_size": 4096, "attention_heads": 32, "seq_length": 2048, "vocab_size": 50257}
    return config.from_dict(
        {
            "name": "accuracy",
            "engine": engine,
            "model": {"layers": combination.layers, **(small if smoke else large)},
            "parallel": {
                "tensor": layout.tensor,
                "pipeline": layout.pipeline,
                "activation_checkpointing": "full" if combination.checkpointing else "none",
            },
            "optimisation": {
                "micro_batch_size": combination.micro_batch,
                "global_batch_size": combination.micro_batch * combination.micro_batches * layout.data,
                "train_iterations": 1_000_000,
                "precision": "fp32" if smoke else "bf16",
                "compile": not smoke,
            },
            "data": {"mock": True},
        }
    )


def measure(combinations: Sequence[Combination], engine_name: str, *, smoke: bool) -> list[list[float]]:
    """Return this rank's seconds of some steps of each combination; all have the same layout."""
    import torch
    import torch.distributed as dist

    from rdm_trainer.data import loaders
    from rdm_trainer.distributed.topology import quiet
    from rdm_trainer.engines import create
    from rdm_trainer.tools.all_reduce import join

    device = join(TIMEOUT_S)
    topology = create.create_topology(configuration(combinations[0], engine_name, smoke=smoke))
    found = []
    for combination in combinations:
        config = configuration(combination, engine_name, smoke=smoke)
        torch.compiler.reset()
        engine = create.create(config, topology)
        engine.set_lr(1e-4)
        train = loaders.build(
            config, data_rank=topology.data_rank, data_size=topology.data, consumed_samples=0
        ).train
        assert train is not None
        batches = iter(train)
        seconds = []
        for _ in range(WARM_UP + ROUNDS):
            dist.barrier()
            if device.type == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
            engine.train_step(batches)
            if device.type == "cuda":
                torch.cuda.synchronize()
            dist.barrier()
            seconds.append(time.perf_counter() - begin)
        found.append(seconds[WARM_UP:])
        del batches, train
        with quiet():
            engine.close()
        del engine
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    dist.barrier()
    dist.destroy_process_group()
    return found


def predict(profile: Any, config: Any, axes: Layout) -> Any:
    """Return the planner's prediction for a job with its own micro-batch, chunks, cut and eager passes."""
    from rdm_planner import layouts
    from rdm_planner.job import Job
    from rdm_planner.nodes import NodeKind
    from rdm_planner.profile import MeasuredTimes
    from rdm_planner.search_space import SearchSpace
    from rdm_planner.trainer_model import TrainerModel
    from rdm_trainer.engine_step import engine_step

    layout = layouts.Layout(
        axes.tensor,
        axes.data,
        axes.pipeline,
        config.optimisation.micro_batch_size,
        config.parallel.activation_checkpointing == "full",
        config.zero_stage,
        virtual_pipeline=config.parallel.virtual_pipeline,
        context=axes.context,
        eager_forwards=config.parallel.eager_forwards,
    )
    # The embedding and the head count, too.
    cut = config.stage_blocks()
    cut[0] += 1
    cut[-1] += 1
    # Its links between nodes and its memory do not matter here.
    node = NodeKind(profile.gpu, axes.world, 1e11, 1e12, profile.memory_gib)
    job = Job(SearchSpace(config), MeasuredTimes({profile.gpu: profile}, {profile.gpu: node}), engine_step)
    return TrainerModel(job, (node,)).estimate(layout, cut)


def predicted_legs(
    results: Iterable[tuple[Leg, dict[str, Any]]], profiles: Sequence[Any]
) -> Iterator[dict[str, Any]]:
    """Yield what was measured and what is predicted for the steps of our engine, and print what is left out.

    Args:
        results: What train_throughput.py measured, with its reports.
        profiles: One for the layers of each model.
    """
    from rdm_core import config as configuration
    from rdm_planner.profile import shape_of

    for leg, report in results:
        name = leg.layout.name
        config = configuration.from_dict(leg.configuration())
        shape = shape_of(config)
        profile = next((one for one in profiles if shape == {key: one.shape.get(key) for key in shape}), None)
        if "ours" not in report.get("tokens_per_second", {}):
            reason = "our engine has no figures"
        elif profile is None:
            reason = "no profile has its layers"
        elif leg.layout.tensor not in profile.layers:
            reason = f"its profile has no tensor degree {leg.layout.tensor}"
        else:
            reason = ""
        if reason:
            print(f"{leg.shape_name}, {name}: left out, {reason}.", flush=True)
            continue
        if leg.virtual_pipeline > 1:
            name += f", {leg.virtual_pipeline} chunks"
        if config.parallel.eager_forwards:
            name += f", {config.parallel.eager_forwards} eager"
        estimate = predict(profile, config, leg.layout)
        samples = leg.samples("ours")
        rate = statistics.median(report["tokens_per_second"]["ours"]) * leg.layout.world
        yield {
            "shape": leg.shape_name,
            "layout": name,
            "micro_batches": "{} x {}".format(*leg.batch("ours")),
            "trained": f"{leg.shape_name}, {leg.shape.layers} blocks, {leg.layout.world} GPUs, "
            f"{samples} x {leg.shape.sequence} tokens",
            "predicted": estimate.seconds,
            "parts": dict(estimate.parts),
            "measured": samples * leg.shape.sequence / rate,
        }


def winners(results: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return a row for each model, number of GPUs and batch of several layouts, after a heading."""
    from rdm_planner.tune.validation import compared

    groups = collections.defaultdict(list)
    for result in results:
        groups[result["trained"]].append(result)
    rows = [["trained", "predicted winner", "fastest", "layouts", "slower by"]]
    for trained, group in groups.items():
        if len(group) > 1:
            named, fastest = (min(group, key=lambda one: one[key]) for key in ("predicted", "measured"))
            excess = f"{100 * compared(group)['winner_excess']:.1f} %"
            rows.append([trained, named["layout"], fastest["layout"], str(len(group)), excess])
    return rows


def launch(ranks: int, arguments: Sequence[str]) -> None:
    """Start a program's ranks and wait for them."""
    environment = dict(os.environ)
    paths = [str(ROOT), str(ROOT / "trainer"), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    environment.setdefault("OMP_NUM_THREADS", "1")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    subprocess.run([*launcher, *arguments], env=environment, check=True, timeout=TIMEOUT_S)


def devices() -> int:
    """Return the number of GPUs, without a context on the first."""
    program = "import torch; print(torch.cuda.device_count())"
    return int(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout)


def summary(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the errors of the predictions, and of the winner if all train the same model on one batch."""
    from rdm_planner.tune.validation import compared

    errors = [abs(result["predicted"] / result["measured"] - 1) for result in results]
    found = {**compared(results), "largest_error": max(errors)}
    if len({result["trained"] for result in results}) > 1:
        del found["winner_excess"]
    return found


def table(results: Sequence[dict[str, Any]]) -> str:
    """Return the results as Markdown."""
    rows = [["layout", "blocks", "micro-batches", "checkpointing", "predicted ms", "measured ms", "error"]]
    for result in results:
        one = result["combination"]
        rows.append(
            [
                one["layout"],
                str(one["layers"]),
                f"{one['micro_batch']} x {one['micro_batches']}",
                "full" if one["checkpointing"] else "",
                *_compared(result),
            ]
        )
    return markdown(rows, words=1)


def table_of_legs(results: Sequence[dict[str, Any]]) -> str:
    """Return the results of :func:`predicted_legs` as Markdown."""
    keys = ("shape", "layout", "micro_batches")
    heading = ["shape", "layout", "micro-batches", "predicted ms", "measured ms", "error"]
    return markdown([heading, *([*(one[key] for key in keys), *_compared(one)] for one in results)], words=2)


def _compared(result: dict[str, Any]) -> list[str]:
    predicted, measured = result["predicted"], result["measured"]
    error = f"{100 * (predicted / measured - 1):+.1f} %"
    return [f"{1e3 * predicted:,.1f}", f"{1e3 * measured:,.1f}", error]


def sentence(found: dict[str, Any], what: str) -> str:
    """Return a sentence on a :func:`summary`."""
    rank = found["rank_correlation"]
    return (
        f"{found['layouts']} {what}: mean absolute error {100 * found['mean_absolute_error']:.1f} %, "
        f"largest {100 * found['largest_error']:.1f} %, "
        f"rank correlation {'undefined' if rank is None else f'{rank:.3f}'}"
    )


def main() -> int:
    """Measure as the command line says; return an exit code."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--output", type=Path, help="write the profile and all results into this directory")
    parser.add_argument(
        "--profile",
        type=Path,
        nargs="+",
        help="predict from it instead of measuring one; with --measured several",
    )
    parser.add_argument(
        "--measured",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="of train_throughput.py --json; trains nothing",
    )
    parser.add_argument(
        "--layout", action="append", metavar="NAME", help="take steps of this one alone; may be repeated"
    )
    parser.add_argument("--engine", choices=("deepspeed", "native"), default="deepspeed")
    parser.add_argument("--smoke", action="store_true", help="a small shape on one device, or a CPU")
    parser.add_argument("--combinations", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.combinations:
        combinations = [Combination(**one) for one in json.loads(args.combinations)]
        measured = measure(combinations, args.engine, smoke=args.smoke)
        if os.environ["RANK"] == "0":
            args.result.write_text(json.dumps(measured))
        return 0

    from rdm_core import config
    from rdm_core.errors import TrainerError
    from rdm_planner.profile import Profile

    try:
        profiles = [Profile.read(file) for file in args.profile or ()]
    except TrainerError as error:
        parser.error(f"--profile: {error}")
    if args.measured:
        if not profiles:
            parser.error("--measured needs --profile")
        if args.output or args.layout or args.smoke:
            parser.error("--measured cannot be combined with --output, --layout or --smoke")
        steps = []
        for file in args.measured:
            try:
                steps += [
                    (Leg.from_json(json.dumps(one["leg"])), one["report"])
                    for one in json.loads(file.read_text())["results"]
                ]
            except OSError as error:
                parser.error(f"--measured {file} cannot be read: {error.strerror}")
            except (ValueError, KeyError, TypeError):
                parser.error(f"--measured {file} is not what train_throughput.py --json writes")
        try:
            legs = list(predicted_legs(steps, profiles))
        except TrainerError as error:
            parser.error(str(error))
        if not legs:
            parser.error("--measured has no step that the profiles predict")
        print(table_of_legs(legs))
        print(f"\n{sentence(summary(legs), 'steps')}\n")
        print(markdown(winners(legs), words=3))
        return 0
    if len(profiles) > 1:
        parser.error("--profile takes several files only with --measured")

    world = 1 if args.smoke else max(count for count in ON if count <= max(1, devices()))
    chosen = SMOKE if args.smoke else ON[world]
    names = list(dict.fromkeys(one.layout for one in chosen))
    if unknown := set(args.layout or []) - set(names):
        parser.error(f"--layout {unknown.pop()} is not measured here; choose of {', '.join(names)}")
    chosen = [one for one in chosen if not args.layout or one.layout in args.layout]
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        output = args.output or Path(temporary)
        output.mkdir(parents=True, exist_ok=True)
        file = args.profile[0] if args.profile else output / "profile.json"
        if not args.profile:
            job = Path(temporary) / "accuracy.yaml"
            job.write_text(config.dump(configuration(chosen[0], args.engine, smoke=args.smoke)))
            largest, blocks = ("2", ("1", "2")) if args.smoke else ("8", ("2", "6"))
            sizes = ["--micro-batch", largest, "--blocks", *blocks]
            launch(world, ["-m", "rdm_trainer", "profile", str(job), "--output", str(file), *sizes])
            print(f"The profile took {time.perf_counter() - begin:.0f} s.", flush=True)
        profile = Profile.read(file)
        results: list[dict[str, Any]] = []
        for name in dict.fromkeys(one.layout for one in chosen):
            group = [one for one in chosen if one.layout == name]
            result = Path(temporary) / "result.json"
            requested = json.dumps([asdict(one) for one in group])
            smoke = ["--smoke"] if args.smoke else []
            options = ["--engine", args.engine, *smoke]
            launch(
                Layout.parse(name).world,
                [__file__, "--combinations", requested, "--result", str(result), *options],
            )
            for combination, seconds in zip(group, json.loads(result.read_text()), strict=True):
                job_of_it = configuration(combination, args.engine, smoke=args.smoke)
                estimate = predict(profile, job_of_it, Layout.parse(name))
                samples = combination.micro_batch * combination.micro_batches * Layout.parse(name).data
                results.append(
                    {
                        "combination": asdict(combination),
                        "trained": f"{combination.layers} blocks, {samples} samples",
                        "predicted": estimate.seconds,
                        "parts": dict(estimate.parts),
                        "measured": statistics.median(seconds),
                        "seconds": seconds,
                    }
                )
                print(json.dumps(results[-1]), flush=True)
            written = {
                "gpu": profile.gpu,
                "versions": dict(profile.versions),
                "date": profile.date,
                "engine": args.engine,
            }
            # Written after each layout, so that an interrupted run keeps its results.
            (output / "layout_accuracy.json").write_text(
                json.dumps({**written, "summary": summary(results), "results": results}, indent=1)
            )
    found = summary(results)
    print(f"\n{profile.gpu}, {dict(profile.versions)}, {time.perf_counter() - begin:.0f} s\n")
    print(table(results))
    print(f"\n{sentence(found, 'combinations')}")
    if "winner_excess" in found:
        print(f"The best prediction took {100 * found['winner_excess']:.1f} % longer than the fastest.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

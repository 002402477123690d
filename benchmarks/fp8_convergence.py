# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the losses of a training in fp8 with those of the same training in bf16.

Run `python benchmarks/fp8_convergence.py --data PREFIX` where `rdm_trainer` can be imported; PREFIX.bin and
PREFIX.idx are text as GPT-2's tokens, as `rdm-trainer preprocess` writes them. It trains a GPT of 303 M
parameters twice with `rdm-trainer train`, with the same seed and data, at the same time where there are two
devices. The table has the mean training loss since the line before and the validation loss, for every 250
steps. `--smoke` is a smoke test: a small shape and no data, also on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "trainer")]

from benchmarks.tables import markdown  # noqa: E402

LARGE = {"layers": 8, "hidden_size": 1536, "attention_heads": 12, "seq_length": 512, "vocab_size": 50257}
SMALL = {"layers": 2, "hidden_size": 32, "attention_heads": 4, "ffn_hidden_size": 2048, "seq_length": 16}


def configuration(
    recipe: str, prefix: str | None, steps: int, interval: int, directory: Path
) -> dict[str, Any]:
    """Return the job with a recipe.

    Args:
        recipe: ``none`` for bf16.
        prefix: The data; None for a smoke test.
        steps: Steps of the training.
        interval: Steps between lines of the log.
        directory: The job's directory.
    """
    data = {"mock": True} if prefix is None else {"blend": [{"prefix": prefix}], "split": "95,5,0"}
    return {
        "name": f"fp8-{recipe}",
        "engine": "native",
        "model": {"kind": "gpt", **({**SMALL, "vocab_size": 98} if prefix is None else LARGE)},
        "optimisation": {
            "micro_batch_size": 8,
            "global_batch_size": 8,
            "train_iterations": steps,
            "precision": "bf16",
            "fp8_recipe": recipe,
            "lr": 3e-4,
            "min_lr": 3e-5,
            "warmup_iterations": steps // 20,
            "weight_decay": 0.1,
            "adam_beta2": 0.95,
            "compile": prefix is not None,
        },
        "data": {**data, "index_cache": str(directory / "maps"), "workers": 1},
        "logging": {
            "interval": interval,
            "eval_interval": interval,
            "eval_iterations": 20,
            "tensorboard": False,
        },
        "checkpoint": {"interval": 0},
    }


def start(job: dict[str, Any], directory: Path, device: int) -> subprocess.Popen[bytes]:
    """Start a training on a device; its log is ``log`` in the directory."""
    directory.mkdir()
    (directory / "job.yaml").write_text(json.dumps(job))
    paths = [str(ROOT / "trainer"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": str(device)}
    command = [sys.executable, "-m", "rdm_trainer", "train", str(directory / "job.yaml"), "--job-dir"]
    with (directory / "log").open("wb") as log:
        return subprocess.Popen(
            [*command, str(directory / "job")], env=environment, stdout=log, stderr=subprocess.STDOUT
        )


def read(log: Path) -> tuple[dict[int, float], dict[int, float], float]:
    """Return the training and validation losses by step, and the last milliseconds of a step."""
    from rdm_log import lines, records

    training, validation, milliseconds = {}, {}, 0.0
    for line in log.read_bytes().splitlines():
        for record in lines.parse(line):
            if isinstance(record, records.Step):
                training[record.iteration] = record.values["lm loss"]
                milliseconds = record.values[lines.MILLISECONDS]
            elif isinstance(record, records.Evaluation) and record.where.startswith("iteration "):
                validation[int(record.where.split()[1])] = record.values["lm loss value"]
    return training, validation, milliseconds


def main() -> int:
    """Train twice, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--data", metavar="PREFIX", help="the tokens")
    which.add_argument("--smoke", action="store_true", help="a smoke test")
    parser.add_argument("--recipe", choices=["tensorwise", "rowwise"], default="tensorwise")
    parser.add_argument("--steps", type=int, default=3000, help="steps of a training (%(default)s)")
    parser.add_argument("--interval", type=int, default=250, help="steps between lines (%(default)s)")
    options = parser.parse_args()

    import torch

    prefix = None if options.smoke else str(Path(options.data).resolve())
    devices = torch.cuda.device_count()
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        running: list[tuple[Path, subprocess.Popen[bytes]]] = []
        for index, recipe in enumerate(("none", options.recipe)):
            directory = Path(scratch, recipe)
            job = configuration(recipe, prefix, options.steps, options.interval, directory)
            running.append((directory, start(job, directory, index % max(1, devices))))
            if devices < 2:
                running[-1][1].wait()
        for directory, process in running:
            if process.wait():
                print((directory / "log").read_text()[-4000:], file=sys.stderr)
                return 1
            found.append(read(directory / "log"))
    bf16, fp8 = found
    rows = [["step", "bf16", "fp8", "fp8 - bf16", "bf16, validation", "fp8, validation", "fp8 - bf16"]]
    for step in bf16[0]:
        row = [f"{step:,}"]
        for ours, theirs in zip(bf16[:2], fp8[:2], strict=True):
            row += [f"{ours[step]:.4f}", f"{theirs[step]:.4f}", f"{theirs[step] - ours[step]:+.4f}"]
        rows.append(row)
    name = torch.cuda.get_device_name() if devices else "CPU"
    print(f"{name}, PyTorch {torch.__version__}, {options.recipe}\n")
    print(markdown(rows))
    print(f"\nTime of a step: bf16 {bf16[2]:.1f} ms, fp8 {fp8[2]:.1f} ms.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

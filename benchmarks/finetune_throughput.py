# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the speed of `rdm-trainer finetune` with trl's trainer in a short script that torchrun starts.

Run `python benchmarks/finetune_throughput.py` where `rdm-trainer[finetune]` is installed; it prints a table
for docs/training-performance.md. Both tune all weights of a model of Qwen3-0.6B's shape with random weights,
on the same rows, with DeepSpeed's ZeRO-2. Their rounds alternate. A round is measured after its first steps,
and the figures are medians over the rounds. `--quick` is a smoke test: a tiny model, also on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "trainer")]

from benchmarks.tables import markdown  # noqa: E402

ROUND_TIMEOUT_S = 600.0
UNCOUNTED_STEPS = 5
# Qwen3-0.6B, as its published config.json has it.
QWEN3 = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}
SCRIPT = """
import json, sys, time
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import SFTConfig, SFTTrainer

given = json.load(open(sys.argv[1]))

class Times(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and "loss" in logs:
            with open(given["metrics"], "a") as file:
                record = {"iteration": state.global_step, "time": time.time()}
                file.write(json.dumps({**record, "num_tokens": logs["num_tokens"]}) + "\\n")

arguments = SFTConfig(**given["arguments"])
SFTTrainer(
    model=AutoModelForCausalLM.from_pretrained(given["model"], dtype=given["dtype"]),
    args=arguments,
    train_dataset=load_dataset("json", data_files=given["rows"], split="train"),
    processing_class=AutoTokenizer.from_pretrained(given["model"]),
    callbacks=[Times()],
).train()
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=2, help="of each (default: 2)")
    parser.add_argument("--steps", type=int, default=30, help="of a round (default: 30)")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024, help="tokens of a row (default: 1024)")
    parser.add_argument("--output", type=Path, help="a directory for the figures as JSON")
    parser.add_argument("--quick", action="store_true", help="a tiny model, few steps")
    given = parser.parse_args()
    if given.quick:
        given.steps, given.rounds, given.micro_batch, given.length = 8, 1, 1, 64
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        make_model(work, given)
        rates: dict[str, list[float]] = {"trl, torchrun": [], "rdm-trainer finetune": []}
        for number in range(given.rounds):
            rates["trl, torchrun"].append(plain(work, given, number))
            rates["rdm-trainer finetune"].append(ours(work, given, number))
    medians = {name: statistics.median(found) for name, found in rates.items()}
    base = medians["trl, torchrun"]
    rows = [["way", "tokens/s", "of the plain script", "rounds"]]
    for name, median in medians.items():
        each = ", ".join(f"{rate:,.0f}" for rate in rates[name])
        rows.append([name, f"{median:,.0f}", f"{median / base:.3f}", each])
    print(markdown(rows))
    if given.output:
        (given.output / "finetune_throughput.json").write_text(json.dumps(rates, indent=1))


def make_model(work: Path, given: argparse.Namespace) -> None:
    """Write a model, and rows of the maximum sequence length."""
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    from rdm_trainer.finetune import tiny

    tiny.write(work)
    model = work / "model"
    if not given.quick:
        tokenizer = AutoTokenizer.from_pretrained(model)
        torch.manual_seed(1234)
        shape = Qwen3Config(
            **QWEN3,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
        )
        Qwen3ForCausalLM(shape).to(torch.bfloat16).save_pretrained(model)
    count = given.steps * given.micro_batch * given.devices
    rows = ""
    for number, row in enumerate(tiny.rows(count)):
        # The tokenizer's tokens have at most four of these characters.
        answer = " ".join(f"{number} and {step}" for step in range(given.length))
        rows += json.dumps({"prompt": row["prompt"], "completion": f" {answer}"}) + "\n"
    (work / "rows.jsonl").write_text(rows)


def ours(work: Path, given: argparse.Namespace, number: int) -> float:
    """Return the tokens per second of a round of `rdm-trainer finetune`."""
    config = work / "config.yaml"
    config.write_text(
        textwrap.dedent(f"""
            name: throughput
            workload: finetune
            model: {{path: {work / "model"}}}
            data: {{train: [{work / "rows.jsonl"}], max_length: {given.length}}}
            optimisation:
              micro_batch_size: {given.micro_batch}
              train_iterations: {given.steps}
              precision: {precision()}
              activation_checkpointing: full
            zero: {{stage: 2}}
            checkpoint: {{interval: 0}}
            evaluation: {{interval: 0}}
            logging: {{interval: 1, tensorboard: false}}
            """)
    )
    job = work / f"ours-{number}"
    start(given, ["-m", "rdm_trainer", "finetune", str(config), "--job-dir", str(job)])
    return rate(job / "metrics.jsonl")


def plain(work: Path, given: argparse.Namespace, number: int) -> float:
    """Return the tokens per second of a round of the script."""
    from rdm_core import config as configuration
    from rdm_core.config.finetune import FinetuneConfig
    from rdm_trainer.finetune.deepspeed_json import deepspeed_json

    script, settings, metrics = (work / name for name in ("plain.py", "plain.json", f"plain-{number}.jsonl"))
    script.write_text(SCRIPT)
    overrides = [f"model.path={work / 'model'}", f"data.train=[{work / 'rows.jsonl'}]", "zero.stage=2"]
    config = work / "document.yaml"
    config.write_text("name: document\nworkload: finetune\nmodel: {path: x}\ndata: {train: [x]}\n")
    zero = deepspeed_json(configuration.load_as(FinetuneConfig, config, overrides), 600_000_000)
    is_bf16 = precision() == "bf16"
    settings.write_text(
        json.dumps(
            {
                "model": str(work / "model"),
                "dtype": "bfloat16" if is_bf16 else "float32",
                "rows": str(work / "rows.jsonl"),
                "metrics": str(metrics),
                "arguments": {
                    "output_dir": str(work / f"plain-{number}"),
                    "per_device_train_batch_size": given.micro_batch,
                    "max_steps": given.steps,
                    "max_length": given.length,
                    "bf16": is_bf16,
                    "gradient_checkpointing": True,
                    "learning_rate": 1e-5,
                    "lr_scheduler_type": "cosine",
                    "logging_steps": 1,
                    "save_strategy": "no",
                    "report_to": "none",
                    "disable_tqdm": True,
                    "use_cpu": not is_bf16,
                    "deepspeed": zero,
                },
            }
        )
    )
    start(given, [str(script), str(settings)])
    return rate(metrics)


def precision() -> str:
    """Return the precision of both: bf16 on a GPU."""
    import torch

    return "bf16" if torch.cuda.is_available() else "fp32"


def start(given: argparse.Namespace, words: list[str]) -> None:
    """Start a process for each device, and wait for their end."""
    torchrun = ["-m", "torch.distributed.run", f"--nproc-per-node={given.devices}", "--standalone"]
    command = [sys.executable, *torchrun, *words]
    paths = [str(ROOT / "trainer"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command,
        env=environment,
        timeout=ROUND_TIMEOUT_S,
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}")


def rate(metrics: Path) -> float:
    """Return the tokens per second, from the metrics of a round."""
    lines: list[dict[str, Any]] = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [line for line in lines if "num_tokens" in line and line["iteration"] >= UNCOUNTED_STEPS]
    return float((steps[-1]["num_tokens"] - steps[0]["num_tokens"]) / (steps[-1]["time"] - steps[0]["time"]))


if __name__ == "__main__":
    main()

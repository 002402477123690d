# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the memory of `rdm-trainer export` with the size of the weights that it writes.

Run `python benchmarks/weights_memory.py`; it prints a table for docs/models.md. A Llama with random weights
is converted from Hugging Face's format to Megatron's and back, each time in a process of its own, whose
memory is sampled. Anonymous pages are counted separately from pages of files, which the kernel can reclaim.
`--layers 2 --hidden 256` is a smoke test.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "trainer")]

import torch  # noqa: E402

from benchmarks.tables import markdown  # noqa: E402
from rdm_core.config import (  # noqa: E402
    ModelConfig,
    TokenizerConfig,
)
from rdm_trainer import models  # noqa: E402
from rdm_trainer.weights import directory as hugging_face  # noqa: E402
from rdm_trainer.weights.megatron import writing as megatron  # noqa: E402
from rdm_trainer.weights.sources import open_source  # noqa: E402


class Drawn:
    """Random weights, one at a time."""

    where = Path("drawn")
    dtype = "bfloat16"
    tokenizer: TokenizerConfig | None = None

    def __init__(self, model: ModelConfig) -> None:
        self.model = model
        self._shard_specs = models.shard_specs(model)

    def whole(self, name: str) -> torch.Tensor:
        """Return a whole parameter."""
        return torch.randn(self._shard_specs[name].shape, dtype=torch.bfloat16)


def peaks(work: Callable[[], object]) -> tuple[int, int]:
    """Call a function in a process of its own.

    Returns:
        The process's peak memory in bytes: anonymous pages, and all resident pages.
    """
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    status = Path(f"/proc/{process.pid}/status")
    most = {"RssAnon": 0, "VmHWM": 0}
    while process.is_alive():
        for line in status.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key in most:
                most[key] = max(most[key], int(value.split()[0]) * 1024)
        time.sleep(0.02)
    if process.exitcode:
        raise SystemExit("A conversion failed.")
    return most["RssAnon"], most["VmHWM"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--shard-size", type=float, default=0.2, help="GB; as of rdm-trainer export")
    parser.add_argument("--directory", type=Path, help="for the files; a temporary one by default")
    options = parser.parse_args()
    # A forked process would wait for the threads of its parent.
    torch.set_num_threads(1)
    model = ModelConfig(
        layers=options.layers,
        hidden_size=options.hidden,
        attention_heads=16,
        query_groups=4,
        seq_length=2048,
        position_embedding="rope",
        norm="rmsnorm",
        activation="swiglu",
        biases="none",
        tied_embeddings=False,
        vocab_size=32000,
    )
    shard = int(options.shard_size * 1e9)
    rows = [["conversion", "weights, GB", "own memory, GB", "with pages of files, GB"]]

    def measured(what: str, work: Callable[[], object]) -> None:
        rows.append([what, *(f"{found / 1e9:.2f}" for found in (size, *peaks(work)))])

    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        directory = Path(name)
        size = hugging_face.write(Drawn(model), directory / "hf", shard_bytes=shard)
        measured("nothing: Python with torch", lambda: time.sleep(0.2))
        hugging = open_source(directory / "hf")
        measured(
            "Hugging Face to Hugging Face",
            lambda: hugging_face.write(hugging, directory / "again", shard_bytes=shard),
        )
        layouts: dict[str, dict[str, int]] = {
            "tensor 1": {},
            "tensor 4": {"tensor": 4},
            "2 stages of 2 chunks": {"pipeline": 2, "virtual": 2},
        }
        for what, layout in layouts.items():
            target = directory / what
            measured(
                f"Hugging Face to Megatron, {what}",
                lambda: megatron.write(hugging, target, **layout),  # noqa: B023
            )
        for what in list(layouts)[1:]:
            measured(
                f"Megatron, {what}, to Hugging Face",
                lambda: hugging_face.write(
                    open_source(directory / what),  # noqa: B023
                    directory / f"back from {what}",  # noqa: B023
                    shard_bytes=shard,
                ),
            )
    print(markdown(rows))


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: GPL-3.0-or-later
"""How programs other than Megatron write a step: a table with an entry for each.

Some write Megatron's lines with other names; others have lines of their own. Whatever they call a field,
whoever reads records finds it under Megatron's name. A program that is read wrongly, or not at all, belongs
into the table, and with it into the tests' corpus (``trainer/tests/unit/log/corpus/lines.txt``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = [
    "BAR",
    "GRAD_NORM",
    "GRAMMARS",
    "MEMORY",
    "MILLISECONDS",
    "NAMES",
    "OWN",
    "SECONDS",
    "Grammar",
]

MILLISECONDS = "elapsed time per iteration (ms)"
"""The field with the time of a step, whichever unit its program writes."""
SECONDS = "elapsed time per iteration (s)"
"""The field of programs that write seconds."""
GRAD_NORM = "grad norm"
TFLOPS = "TFLOPs"
TOKENS = "tokens per gpu per second (tgs)"
_BATCH, _CONSUMED, _RATE = "global batch size", "consumed samples", "learning rate"
_MFU = "MFU (%)"

MEMORY: Mapping[str, str] = {
    "max_memory_allocated": "max allocated",
    "peak_memory_usage": "max allocated",
    "max_memory_reserved": "max reserved",
    "memory_allocated": "allocated",
}
"""Fields of training lines that are bytes of memory: what a memory line of Megatron's calls them."""

# The groups of a field: its name, its number and its unit.
_PAIR = re.compile(rb"  ([a-z][\w ]{0,40}): +([^\s(%]{1,40}?)(s|GiB)?(?=[\s(%]|$)")
_ENTRY = re.compile(
    rb"""(?:'(?=[^'"]+')|"(?=[^'"]+"))([^'"]{1,80})['"]: ['"]?([^\s'",{}\[\]]{1,40})['"]?()(?=[,}])"""
)


class Line(NamedTuple):
    """One kind of lines of a program.

    Attributes:
        word: Each of them has it: a search for it is faster than one for the pattern.
        pattern: How they look.
    """

    word: bytes
    pattern: re.Pattern[bytes]

    def search(self, line: bytes) -> re.Match[bytes] | None:
        """Return what a line has of it."""
        return self.pattern.search(line) if self.word in line else None


@dataclass(frozen=True)
class Grammar:
    """What a program writes.

    Attributes:
        program: Its name.
        names: What it calls fields: Megatron's name of each.
        step: A line of its own for a step, with the groups ``step``, where its line tells it, and ``fields``;
            None where it writes Megatron's ``iteration N/M |``.
        pair: A field of such a line, with groups for its name, its number and its unit.
        evaluation: The same for an evaluation; the group ``where`` tells where it was, if not the step does.
        total: What tells the number of all steps, at the head of its output.
        done: What it writes when it is done, with its loss.
        is_open: Stands before ``iteration N/M |`` where there is no ``|`` behind the line's last field.
    """

    program: str
    names: Mapping[str, str] = field(default_factory=dict)
    step: Line | None = None
    pair: re.Pattern[bytes] = _PAIR
    evaluation: Line | None = None
    total: re.Pattern[str] | None = None
    done: Line | None = None
    is_open: re.Pattern[bytes] | None = None


GRAMMARS = (
    Grammar("several", {"lr": _RATE, "learning_rate": _RATE, "grad_norm": GRAD_NORM}),
    Grammar(
        # It has ``throughput`` in its first lines, until there is an average.
        "Primus",
        {
            "compute per GPU (TFLOP/s/GPU)": "throughput per GPU (TFLOP/s/GPU)",
            "tokens/s/GPU inst/harmonic mean": TOKENS,
            "tokens per GPU (tokens/s/GPU)": TOKENS,
        },
    ),
    Grammar(
        "NVIDIA NeMo",
        {
            "global_batch_size": _BATCH,
            "consumed_samples": _CONSUMED,
            "train_step_timing in s": SECONDS,
            "tokens_per_sec_per_gpu": TOKENS,
            "TFLOPS_per_GPU": TFLOPS,
        },
        is_open=re.compile(rb"epoch \d+, $"),
    ),
    Grammar("GPT-NeoX", {"approx flops per GPU": TFLOPS, "samples/sec": "samples per second"}),
    Grammar(
        "torchtitan",
        {"tps": TOKENS, "tflops": TFLOPS, "mfu": _MFU, "elapsed_time_per_step": SECONDS},
        step=Line(
            b"step: ", re.compile(rb"(?<!validate )\bstep: +(?P<step>\d{1,15})(?P<fields>  [a-z][^\n]*)")
        ),
        evaluation=Line(
            b"validate step: ",
            re.compile(rb"\bvalidate step: +(?P<step>\d{1,15})(?P<fields>  [a-z][^\n]*)"),
        ),
        total=re.compile(r"Trainer is initialized with .{1,400}total steps (\d{1,15})"),
    ),
    Grammar(
        # Axolotl, trl and most others that fine-tune have its lines. A progress bar tells their step.
        "Hugging Face's Trainer",
        {"train_speed(s/it)": SECONDS},
        step=Line(
            b"epoch",
            re.compile(rb"(?P<fields>\{(?=[^{}]*['\"]loss['\"]: )(?=[^{}]*['\"]epoch['\"]: )[^{}]*\})"),
        ),
        pair=_ENTRY,
        evaluation=Line(
            b"eval_loss",
            re.compile(
                rb"(?P<fields>\{(?=[^{}]*['\"]eval_loss['\"]: )[^{}]*"
                rb"['\"](?P<where>epoch['\"]: ['\"]?[\d.]+)[^{}]*\})"
            ),
        ),
        done=Line(b"train_runtime", re.compile(rb"\{['\"]train_runtime['\"]: ")),
    ),
)
"""The programs that are read beside Megatron's and DeepSpeed's own."""

OWN = tuple(one for one in GRAMMARS if one.step is not None)
"""Those with lines of their own."""
NAMES = {theirs: ours for one in GRAMMARS for theirs, ours in one.names.items()}
"""Megatron's names of all their fields."""
BAR = re.compile(
    rb"(?:^|\n)[ \t]*(?:\[[^\]\n]{1,60}\]:? ?|\d{1,6}: ?)?(?:Train(?:ing)?: )? *\d{1,3}%\|[^|\n]*\|"
    rb" *(\d{1,15})/(\d{1,15}) \[[^<\n]{1,20}<[^,\]\n]{1,20}, *(\d+\.?\d*)(s/it|it/s)"
)
"""A progress bar of tqdm that counts steps: the step, all of them, and how long one takes."""

# SPDX-License-Identifier: GPL-3.0-or-later
"""How programs other than Megatron log a step: a table with an entry for each program.

Some write Megatron's lines with other field names; others have a line format of their own. Records always
have Megatron's field names. To support another program, add an entry here and its lines to the tests' corpus
(``trainer/tests/unit/log/corpus/lines.txt``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

MILLISECONDS = "elapsed time per iteration (ms)"
"""The field with the time of a step, converted from whatever unit the program writes."""
SECONDS = "elapsed time per iteration (s)"
"""The same field in programs that write seconds."""
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
"""Fields of training lines that are bytes of memory → their names in Megatron's memory lines."""

# Groups: a field's name, its number and its unit.
_PAIR = re.compile(rb"  ([a-z][\w ]{0,40}): +([^\s(%]{1,40}?)(s|GiB)?(?=[\s(%]|$)")
_ENTRY = re.compile(
    rb"""(?:'(?=[^'"]+')|"(?=[^'"]+"))([^'"]{1,80})['"]: ['"]?([^\s'",{}\[\]]{1,40})['"]?()(?=[,}])"""
)


class Line(NamedTuple):
    """One kind of line that a program writes.

    Attributes:
        word: Text in every such line. Searching for it first is faster than matching the pattern.
        pattern: What the line matches.
    """

    word: bytes
    pattern: re.Pattern[bytes]

    def search(self, line: bytes) -> re.Match[bytes] | None:
        """Return the match in a line, or None."""
        return self.pattern.search(line) if self.word in line else None


@dataclass(frozen=True)
class Grammar:
    """The log format of a program.

    Attributes:
        program: Its name.
        names: Its field names → Megatron's.
        step: Its own line for a step, with the groups ``fields`` and, if the line has the number, ``step``;
            None when it writes Megatron's ``iteration N/M |``.
        pair: A field of such a line, with groups for its name, its number and its unit.
        evaluation: The same for an evaluation, with a group ``step`` or ``where`` for its place in the run.
        total: The line at the head of its output with the total number of steps.
        done: The line that it writes at the end of the training.
        is_open: What it writes before ``iteration N/M |`` when the line's last field has no ``|`` after it.
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
        # Its first lines, before there is an average, have ``throughput``, too.
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
        # Axolotl, trl and most other fine-tuning programs write its lines. The step is in the progress bar.
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
"""The programs whose logs are read in addition to Megatron's and DeepSpeed's."""

OWN = tuple(one for one in GRAMMARS if one.step is not None)
"""Programs with their own line for a step."""
NAMES = {theirs: ours for one in GRAMMARS for theirs, ours in one.names.items()}
"""Other programs' field names → Megatron's."""
BAR = re.compile(
    rb"(?:^|\n)[ \t]*(?:\[[^\]\n]{1,60}\]:? ?|\d{1,6}: ?)?(?:Train(?:ing)?: )? *\d{1,3}%\|[^|\n]*\|"
    rb" *(\d{1,15})/(\d{1,15}) \[[^<\n]{1,20}<[^,\]\n]{1,20}, *(\d+\.?\d*)(s/it|it/s)"
)
"""A tqdm progress bar that counts steps: the step, the total, the speed and its unit."""

# SPDX-License-Identifier: GPL-3.0-or-later
"""What a program says of itself at the head of its output, once. Pure but for ``head``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rdm_log.grammars import GRAMMARS
from rdm_log.scan import regular

__all__ = ["ARGUMENT_OF", "HEAD", "head", "info_of", "info_of_job", "steps_of", "vocabulary_of"]

ARGUMENT_OF = {
    "NUM_LAYERS": "num_layers",
    "HIDDEN_SIZE": "hidden_size",
    "MICRO_BATCH_SIZE": "micro_batch_size",
    "GLOBAL_BATCH_SIZE": "global_batch_size",
    "TENSOR_MP_SIZE": "tensor_model_parallel_size",
    "PIPELINE_MP_SIZE": "pipeline_model_parallel_size",
    "DP_SIZE": "data_parallel_size",
    "PARTITION": "balance",
}
"""Which of Megatron's arguments, as it prints them, a name of the job info speaks of."""
HEAD = 256 * 1024
"""In so many bytes at its beginning a program says what it runs."""
_INFO = re.compile(r"^(?:NODE_RANK: \d+)(?:\n[A-Z][A-Z_]*: .*){0,13}", re.MULTILINE)
_VOCABULARY = re.compile(r"> padded vocab \(size: \d+\) with \d+ dummy tokens \(new size: (\d+)\)")


def head(path: Path) -> str:
    """Return the first bytes of a log, as many as ``HEAD``.

    Raises:
        OSError: It cannot be read.
    """
    with regular(path).open("rb") as file:
        return file.read(HEAD).decode("utf-8", "replace")


def info_of(text: str) -> dict[str, str]:
    """Return the ``KEY: value`` lines that FASOP's scripts write of a job; nothing where there are none."""
    match = _INFO.search(text)
    pairs = (line.partition(": ") for line in match[0].splitlines()) if match else ()
    return {key: value for key, _, value in pairs}


def info_of_job(infos: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return what the script's node wrote of a job: that of the second node, or of the only one that did."""
    return next((dict(one) for one in (*infos[1:2], *infos[:1]) if one), {})


def vocabulary_of(text: str) -> int | None:
    """Return the entries of the vocabulary, padded, as Megatron writes it; None where it does not.

    Source: ``_vocab_size_with_padding`` in Megatron-LM's ``megatron/tokenizer/tokenizer.py``.

    >>> vocabulary_of(" > padded vocab (size: 50257) with 47 dummy tokens (new size: 50304)")
    50304
    """
    match = _VOCABULARY.search(text)
    return int(match[1]) if match else None


def steps_of(text: str) -> int:
    """Return the number of all steps, of programs whose lines of steps do not say it; 0 where they do not."""
    found = (one.total.search(text) for one in GRAMMARS if one.total is not None)
    return next((int(match[1]) for match in found if match), 0)

# SPDX-License-Identifier: GPL-3.0-or-later
"""What a program writes about itself at the head of its output. Pure except for ``head``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rdm_log.grammars import GRAMMARS
from rdm_log.scan import regular

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
"""Keys of the job info → Megatron's arguments, as it prints them."""
HEAD = 256 * 1024
"""The bytes at the beginning of an output in which a program describes itself."""
_INFO = re.compile(r"^(?:NODE_RANK: \d+)(?:\n[A-Z][A-Z_]*: .*){0,13}", re.MULTILINE)
_VOCABULARY = re.compile(r"> padded vocab \(size: \d+\) with \d+ dummy tokens \(new size: (\d+)\)")


def head(path: Path) -> str:
    """Return the first ``HEAD`` bytes of a log.

    Raises:
        OSError: It cannot be read.
    """
    with regular(path).open("rb") as file:
        return file.read(HEAD).decode("utf-8", "replace")


def info_of(text: str) -> dict[str, str]:
    """Return the ``KEY: value`` lines that FASOP's scripts write about a job; empty if there are none."""
    match = _INFO.search(text)
    pairs = (line.partition(": ") for line in match[0].splitlines()) if match else ()
    return {key: value for key, _, value in pairs}


def info_of_job(infos: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the job info of the second node, which the script uses, or else of the first."""
    return next((dict(one) for one in (*infos[1:2], *infos[:1]) if one), {})


def vocabulary_of(text: str) -> int | None:
    """Return the padded size of the vocabulary, as Megatron writes it; None if it is not there.

    Source: ``_vocab_size_with_padding`` in Megatron-LM's ``megatron/tokenizer/tokenizer.py``.

    >>> vocabulary_of(" > padded vocab (size: 50257) with 47 dummy tokens (new size: 50304)")
    50304
    """
    match = _VOCABULARY.search(text)
    return int(match[1]) if match else None


def steps_of(text: str) -> int:
    """Return the total number of steps, which some programs write only at the head; 0 if it is not there."""
    found = (one.total.search(text) for one in GRAMMARS if one.total is not None)
    return next((int(match[1]) for match in found if match), 0)

# SPDX-License-Identifier: GPL-3.0-or-later
"""What a program says of itself at the head of its output, once. Pure but for ``head``."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["head", "info_of", "vocabulary_of"]

_HEAD = 1024 * 1024
_INFO = re.compile(r"^(?:NODE_RANK: \d+)(?:\n[A-Z][A-Z_]*: .*){0,13}", re.MULTILINE)
_VOCABULARY = re.compile(r"> padded vocab \(size: \d+\) with \d+ dummy tokens \(new size: (\d+)\)")


def head(path: Path) -> str:
    """Return the first mebibyte of a log.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        return file.read(_HEAD).decode("utf-8", "replace")


def info_of(text: str) -> dict[str, str]:
    """Return the ``KEY: value`` lines that FASOP's scripts write of a job; nothing where there are none."""
    match = _INFO.search(text)
    pairs = (line.partition(": ") for line in match[0].splitlines()) if match else ()
    return {key: value for key, _, value in pairs}


def vocabulary_of(text: str) -> int | None:
    """Return the entries of the vocabulary, padded, as Megatron writes it; None where it does not.

    Source: ``_vocab_size_with_padding`` in Megatron-LM's ``megatron/tokenizer/tokenizer.py``.

    >>> vocabulary_of(" > padded vocab (size: 50257) with 47 dummy tokens (new size: 50304)")
    50304
    """
    match = _VOCABULARY.search(text)
    return int(match[1]) if match else None

# SPDX-License-Identifier: GPL-3.0-or-later
"""Tokenizers that encode many texts in one call."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rdm_core.config import TokenizerConfig
from rdm_core.errors import TrainerError
from rdm_trainer.tokenizers.bpe import GPT2Encoder
from rdm_trainer.tokenizers.special_tokens import (
    SpecialTokens,
    existing,
    read_wordpieces,
    special_tokens,
)


class Tokenizer:
    """An encoder and the ids of its special tokens."""

    def __init__(self, encoder: GPT2Encoder | _Library, special: SpecialTokens) -> None:
        """Combine an encoder with its special tokens."""
        self.encode = encoder.encode
        self.decode = encoder.decode
        self.special = special


class _Library:
    """A tokenizer of the tokenizers library, which knows many kinds."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def encode(self, texts: list[str]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Return the tokens of all texts, without special tokens around them, and how many each has."""
        for text in texts:
            text.encode()  # the library's own error about half a surrogate pair is not specific
        ids = [encoding.ids for encoding in self._library.encode_batch_fast(texts, add_special_tokens=False)]
        counts = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.fromiter((i for text in ids for i in text), np.int32, int(counts.sum())), counts

    def decode(self, ids: list[int]) -> str:
        """Return the text of token ids."""
        text: str = self._library.decode(ids, skip_special_tokens=False)
        return text


def load(files: TokenizerConfig) -> Tokenizer:
    """Load a tokenizer.

    Returns:
        The tokenizer. It lower-cases word pieces if and only if the vocabulary has no capital letter.

    Raises:
        TrainerError: A file is missing or is not what it should be.
    """
    # Processes share the work; the library's threads would only compete with them.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    special = special_tokens(files, 0)
    if files.kind == "gpt2":
        return Tokenizer(
            GPT2Encoder(existing(files.vocab, "vocab"), existing(files.merges, "merges")), special
        )
    if files.kind == "wordpiece":
        from tokenizers import BertWordPieceTokenizer

        pieces = read_wordpieces(existing(files.vocab, "vocab"))
        library = BertWordPieceTokenizer(pieces, lowercase=is_lower_case(pieces))._tokenizer
        return Tokenizer(_Library(library), special)
    return Tokenizer(_Library(_from_file(existing(files.file, "file"))), special)


def is_lower_case(pieces: Iterable[str]) -> bool:
    """Return whether a vocabulary of word pieces has no capital letter outside of special tokens."""
    return not any(re.search("[A-Z]", piece) for piece in pieces if not re.fullmatch(r"\[.*\]", piece))


def _from_file(path: Path) -> Any:
    from tokenizers import Tokenizer as Library

    try:
        library = Library.from_file(str(path))
    except Exception as error:  # the library raises nothing more specific
        raise TrainerError(f"{path} is not a tokenizer.json ({error}).") from error
    library.no_truncation()
    library.no_padding()
    return library

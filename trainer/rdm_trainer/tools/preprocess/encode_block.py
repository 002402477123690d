# SPDX-License-Identifier: GPL-3.0-or-later
"""From lines of JSON to the bytes of a data set: the work of a process on one block."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rdm_core.errors import TrainerError
from rdm_trainer.tokenizers.load import Tokenizer
from rdm_trainer.tools.preprocess.sentences import sentences
from rdm_trainer.tools.preprocess.text_input import Block


@dataclass(frozen=True)
class Recipe:
    """How each document is encoded.

    Attributes:
        keys: Keys of the JSON objects; each makes a data set.
        append_eod: Append the end-of-document token to each document.
        split_sentences: Make a sequence of each sentence, otherwise of the document.
        dtype: Type of the tokens.
    """

    keys: tuple[str, ...]
    append_eod: bool
    split_sentences: bool
    dtype: np.dtype[np.generic]


@dataclass(frozen=True)
class Encoded:
    """What one block adds to one data set.

    Attributes:
        tokens: The tokens, as they go into the ``.bin``.
        sizes: Tokens of each sequence, int32 as bytes.
        documents: Sequences of each document, int64 as bytes.
    """

    tokens: bytes
    sizes: bytes
    documents: bytes


def encode_block(tokenizer: Tokenizer, recipe: Recipe, block: Block) -> list[Encoded]:
    """Encode the documents of a block.

    Args:
        tokenizer: The tokenizer.
        recipe: How to encode them.
        block: Lines, each a JSON object; empty ones are skipped.

    Returns:
        For each key, what goes to its data set. A document without a token is left out.

    Raises:
        TrainerError: A line is not such an object; names the file and the line.
    """
    texts: list[list[str]] = [[] for _ in recipe.keys]
    lines: list[int] = []
    for number, line in enumerate(block.data.split(b"\n"), block.line):
        if line.strip():
            for texts_of_key, text in zip(texts, _texts(line, recipe.keys, block.path, number), strict=True):
                texts_of_key.append(text)
            lines.append(number)
    encoded = []
    for key, documents in zip(recipe.keys, texts, strict=True):
        try:
            encoded.append(_encode(tokenizer, recipe, documents))
        except UnicodeEncodeError:
            bad = next(number for number, text in zip(lines, documents, strict=True) if not _is_text(text))
            raise TrainerError(
                f"{block.path}, line {bad}: the text under {key!r} has half of a surrogate pair (\\ud800 to "
                "\\udfff), which is no character."
            ) from None
    return encoded


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _texts(line: bytes, keys: Sequence[str], path: Path, number: int) -> list[str]:
    """Return the texts under some keys of one line."""
    try:
        document = _document(line)
    except RecursionError:
        raise TrainerError(f"{path}, line {number}: its JSON is nested too deeply to be read.") from None
    except ValueError as error:
        shown = line[:40].decode(errors="replace") + ("…" if len(line) > 40 else "")
        raise TrainerError(f"{path}, line {number}: {shown!r} is not JSON ({error}).") from None
    if not isinstance(document, dict):
        raise TrainerError(
            f"{path}, line {number}: a JSON object is wanted on each line, as "
            f'{{"text": "…"}}, not a {type(document).__name__}.'
        )
    found = []
    for key in keys:
        text = document.get(key)
        if key not in document:
            raise TrainerError(
                f"{path}, line {number}: there is no {key!r}, only "
                f"{', '.join(map(repr, document)) or 'nothing'}; name the key of the text with --json-keys."
            )
        if not isinstance(text, str):
            raise TrainerError(f"{path}, line {number}: what {key!r} holds is no text but {text!r:.40}.")
        found.append(text)
    return found


def _document(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError:
        # An integer of more digits than Python reads. It is no text, so its value does not matter.
        return json.loads(line, parse_int=float)


def _encode(tokenizer: Tokenizer, recipe: Recipe, documents: list[str]) -> Encoded:
    """Encode the texts of one key."""
    if recipe.split_sentences:
        parts = [sentences(text) for text in documents]
        per_document = np.fromiter(map(len, parts), np.int64, len(parts))
        tokens, sizes = tokenizer.encode([sentence for part in parts for sentence in part])
    else:
        per_document = np.ones(len(documents), np.int64)
        tokens, sizes = tokenizer.encode(documents)

    owner = np.repeat(np.arange(len(per_document)), per_document)
    kept = sizes > 0
    owner, sizes = owner[kept], sizes[kept]
    counts = np.bincount(owner, minlength=len(per_document))
    counts = counts[counts > 0]
    if recipe.append_eod and len(counts):
        last = np.cumsum(counts) - 1
        tokens = _with_eod(tokens, np.cumsum(sizes)[last], tokenizer.special.end_of_document)
        sizes = sizes.copy()
        sizes[last] += 1
    return Encoded(
        tokens.astype(recipe.dtype).tobytes(), sizes.astype("<i4").tobytes(), counts.astype("<i8").tobytes()
    )


def _with_eod(
    tokens: npt.NDArray[np.int32], ends: npt.NDArray[np.int64], end_of_document: int
) -> npt.NDArray[np.int32]:
    """Return the tokens with the end-of-document token inserted at each of ``ends``."""
    result = np.empty(len(tokens) + len(ends), np.int32)
    places = ends + np.arange(len(ends))
    mask = np.ones(len(result), bool)
    mask[places] = False
    result[places] = end_of_document
    result[mask] = tokens
    return result

# SPDX-License-Identifier: GPL-3.0-or-later
"""Report what a data set holds, and what is odd about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rdm_trainer.data.index_maps.t5 import LONG_SENTENCE
from rdm_trainer.data.indexed_dataset import IndexedDataset, paths
from rdm_trainer.tokenizers.load import Tokenizer

_PERCENTILES = (0, 5, 25, 50, 75, 95, 100)
# The number of runs of tokens that are searched for the highest and the lowest.
_RUNS = 256
_FIRST = 32


@dataclass
class Report:
    """What a data set holds.

    Attributes:
        prefix: Prefix of its files.
        dtype: Type of the tokens.
        bytes: Size of the ``.bin`` and the ``.idx`` together.
        documents: Number of documents.
        sequences: Number of sequences; that of documents unless sentences are split.
        tokens: Number of tokens.
        tokens_per_sequence: Percentile to tokens.
        tokens_per_document: Percentile to tokens.
        lowest: The lowest token (of a sample of them in large data sets).
        highest: The highest token.
        ends_documents: Share of the documents that end with the tokenizer's end-of-document token; None
            without a tokenizer.
        first_tokens: The first tokens of the first sequence that has any.
        first_text: Their text; None without a tokenizer.
        problems: One sentence each.
    """

    prefix: str
    dtype: str
    bytes: int
    documents: int
    sequences: int
    tokens: int
    tokens_per_sequence: dict[str, int]
    tokens_per_document: dict[str, int]
    lowest: int | None = None
    highest: int | None = None
    ends_documents: float | None = None
    first_tokens: list[int] = field(default_factory=list)
    first_text: str | None = None
    problems: list[str] = field(default_factory=list)


def inspect(prefix: Path, tokenizer: Tokenizer | None = None) -> Report:
    """Inspect a data set.

    Args:
        prefix: Prefix of its files, without suffix.
        tokenizer: The one that made it, to decode the first tokens.

    Raises:
        TrainerError: A file is missing or damaged.
    """
    data = IndexedDataset(prefix)
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(data.sizes, dtype=np.int64)))
    per_document = np.diff(before[data.document_index])
    report = Report(
        prefix=str(prefix),
        dtype=data.dtype.name,
        bytes=sum(path.stat().st_size for path in paths(prefix)),
        documents=data.documents,
        sequences=len(data),
        tokens=data.tokens,
        tokens_per_sequence=_percentiles(data.sizes),
        tokens_per_document=_percentiles(per_document),
    )
    if not data.tokens:
        report.problems.append("it has no token.")
        return report
    report.lowest, report.highest = data.extremes(_RUNS)
    report.first_tokens = [int(token) for token in data.get(int(np.argmax(data.sizes > 0)), 0, _FIRST)]
    _evaluate(report, data, per_document)
    if tokenizer is not None:
        _compare(report, data, tokenizer)
    return report


def _evaluate(
    report: Report, data: IndexedDataset, per_document: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> None:
    """Add what is odd about the data set itself."""
    if data.dtype.kind not in "iu":
        report.problems.append(f"it holds {data.dtype.name}, which are no tokens.")
    elif report.lowest is not None and report.lowest < 0:
        report.problems.append(f"it holds the negative token {report.lowest}.")
    if empty := int((per_document == 0).sum()):
        report.problems.append(f"{empty} of {report.documents} documents are empty.")
    split = bool((np.diff(data.document_index) > 1).any())
    if split and (long := int((data.sizes > LONG_SENTENCE).sum())):
        report.problems.append(
            f"{long} sentences have more than {LONG_SENTENCE} tokens; a T5 leaves their documents out."
        )


def _compare(report: Report, data: IndexedDataset, tokenizer: Tokenizer) -> None:
    """Compare the data set with its tokenizer."""
    special = tokenizer.special
    if report.highest is not None and report.highest >= special.size:
        report.problems.append(
            f"it holds the token {report.highest}, but the tokenizer has only {special.size} tokens: another "
            "one made it."
        )
        return
    report.first_text = tokenizer.decode(report.first_tokens)
    ends = data.document_index[1:][np.diff(data.document_index) > 0] - 1
    ends = ends[data.sizes[ends] > 0]
    if len(ends):
        last = data.pointers[ends] // data.dtype.itemsize + data.sizes[ends] - 1
        report.ends_documents = float((data.flat()[last] == special.end_of_document).mean())
        if 0 < report.ends_documents < 1:
            report.problems.append(
                f"only {report.ends_documents:.1%} of the documents end with the end-of-document token "
                f"{special.end_of_document}."
            )


def _percentiles(lengths: np.ndarray[tuple[int], np.dtype[np.integer]]) -> dict[str, int]:
    """Return tokens by percentile."""
    if not len(lengths):
        return {}
    values = np.percentile(lengths, _PERCENTILES, method="nearest")
    return {str(p): int(value) for p, value in zip(_PERCENTILES, values, strict=True)}

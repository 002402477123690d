# SPDX-License-Identifier: GPL-3.0-or-later
"""Vocabularies and data sets that several tests use."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import hypothesis
import numpy as np
import pytest

from rdm_core.config import TokenizerConfig
from rdm_trainer.data.indexed_dataset import IndexedWriter
from rdm_trainer.tools.download import corpora

# No deadlines: other work on the machine must not fail a test.
hypothesis.settings.register_profile("data", deadline=None)
hypothesis.settings.load_profile("data")

TEXT = (
    "It's the East, and Juliet is the sun. We'll not kill the envious moon, who's already sick and pale with "
    "grief! They've 1597 reasons; I'd say 42, or 3.14.\n\n  But soft:   what light?\t"
    "Tis naïve — 東京 100 %.\n"
)

MakeDataset = Callable[..., Path]


@pytest.fixture(scope="session")
def small_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> TokenizerConfig:
    """Byte pairs of 300 tokens, trained here, so that no file must be fetched."""
    from tokenizers import ByteLevelBPETokenizer

    folder = tmp_path_factory.mktemp("vocabulary")
    library = ByteLevelBPETokenizer()
    library.train_from_iterator(
        [TEXT] * 3, vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False
    )
    library.save_model(str(folder))
    return TokenizerConfig("gpt2", str(folder / "vocab.json"), str(folder / "merges.txt"))


@pytest.fixture(scope="session")
def gpt2_vocabulary() -> TokenizerConfig:
    """GPT-2's own, fetched once for this machine."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rdm-trainer" / "tests"
    vocab, merges = corpora.download("gpt2-vocab", cache, mirror=None, checksums={}, report=lambda _: None)
    return TokenizerConfig("gpt2", str(vocab), str(merges))


@pytest.fixture
def make_dataset(tmp_path: Path) -> MakeDataset:
    """Write documents, each a list of sequences of tokens, to a data set of that name."""

    def make(name: str, documents: Sequence[Sequence[Sequence[int]]], dtype: type = np.uint16) -> Path:
        prefix = tmp_path / name
        with IndexedWriter(prefix, dtype) as writer:
            for document in documents:
                for sequence in document:
                    writer.add(sequence)
                writer.end_document()
        return prefix

    return make

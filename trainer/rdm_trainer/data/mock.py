# SPDX-License-Identifier: GPL-3.0-or-later
"""A fixed pattern of tokens that needs no file, for tests and for measuring speed.

A model can learn it: each token has one successor, on a ring of up to 256 tokens that are spread over the
vocabulary. Only a sample's first token is random.
"""

from __future__ import annotations

import numpy as np

from rdm_trainer.data.datasets import Arrays
from rdm_trainer.data.span_corruption import SpanCorruption

_RING = 256


class _Ring:
    def __init__(self, samples: int, vocab_size: int, seed: int) -> None:
        self._samples = samples
        self._seed = seed
        size = min(_RING, vocab_size)
        self._ring = np.random.RandomState(seed % 2**32).permutation(size) * (vocab_size // size)

    def __len__(self) -> int:
        """The number of samples."""
        return self._samples

    def _random(self, number: int) -> np.random.RandomState:
        return np.random.RandomState([self._seed % 2**32, number])

    def _walk(self, random: np.random.RandomState, tokens: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        start = int(random.randint(len(self._ring)))
        return self._ring[(start + np.arange(tokens)) % len(self._ring)].astype(np.int64)


class MockGPT(_Ring):
    """Samples for a GPT."""

    def __init__(self, samples: int, vocab_size: int, seed: int, seq_length: int) -> None:
        """Provide ``samples`` samples of ``seq_length + 1`` tokens below ``vocab_size``."""
        super().__init__(samples, vocab_size, seed)
        self._tokens = seq_length + 1

    def __getitem__(self, number: int) -> Arrays:
        """Tokens int64 [seq_length + 1]."""
        return (self._walk(self._random(number), self._tokens),)


class MockT5(_Ring):
    """Samples for a T5."""

    def __init__(self, samples: int, vocab_size: int, seed: int, spans: SpanCorruption) -> None:
        """Provide ``samples`` samples with masked spans, of tokens below ``vocab_size``."""
        super().__init__(samples, vocab_size, seed)
        self._spans = spans

    def __getitem__(self, number: int) -> Arrays:
        """Encoder ids int64 [s_e], decoder ids int64 [s_d], labels int64 [s_d], loss mask float32 [s_d]."""
        random = self._random(number)
        return self._spans(self._walk(random, self._spans.encoder_length), random)

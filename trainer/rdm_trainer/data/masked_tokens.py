# SPDX-License-Identifier: GPL-3.0-or-later
"""BERT's masked tokens: some of a text's tokens are hidden, and the model predicts them.

Source: J. Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding"
(2019), section 3.1; samples are runs of tokens across documents, as in Y. Liu et al., "RoBERTa" (2019), and
which tokens are masked follows from the seed and the sample's number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rdm_trainer.data.datasets import Arrays, SampleSource

AROUND = 2
"""Tokens that a sample adds to its text: the first and the last."""


@dataclass(frozen=True)
class TokenMasking:
    """How text becomes a sample.

    Special tokens within the text, which end documents, are never chosen, as in BERT's own data. Of the
    chosen tokens, eight in ten are replaced by ``mask``, one in ten by any token, and one in ten stays as it
    is.

    Attributes:
        probability: Share of the text, without special tokens, that is chosen.
        vocab_size: Tokens that a replacement is drawn from.
        mask: The token that hides another.
        begin: The first token of a sample; special.
        end: The last token of a sample, which also ends documents; special.
    """

    probability: float
    vocab_size: int
    mask: int
    begin: int
    end: int

    def __call__(self, text: npt.NDArray[np.int64], random: np.random.RandomState) -> Arrays:
        """Make a sample.

        Args:
            text: int64 [s - 2].
            random: The source of randomness.

        Returns:
            Tokens int64 [s], labels int64 [s] (the tokens as they were), loss mask float32 [s].
        """
        labels = np.concatenate(([self.begin], text, [self.end])).astype(np.int64)
        maskable = np.flatnonzero((text != self.begin) & (text != self.end))
        count = min(max(1, round(len(maskable) * self.probability)), len(maskable))
        chosen = 1 + maskable[random.permutation(len(maskable))[:count]]
        drawn = random.random_sample(count)
        anything = random.randint(self.vocab_size, size=count)
        tokens = labels.copy()
        tokens[chosen] = np.where(drawn < 0.8, self.mask, np.where(drawn < 0.9, anything, labels[chosen]))
        mask = np.zeros(len(labels), np.float32)
        mask[chosen] = 1.0
        return tokens, labels, mask


class MaskedTokens:
    """Samples with masked tokens, each a pure function of its number."""

    def __init__(self, texts: SampleSource, masking: TokenMasking, seed: int) -> None:
        """Mask texts.

        Args:
            texts: Each of one array, tokens int64 [s - 2].
            masking: Which tokens are masked.
            seed: Seed of the masking.
        """
        self._texts = texts
        self._masking = masking
        self._seed = seed

    def __len__(self) -> int:
        """The number of samples."""
        return len(self._texts)

    def __getitem__(self, number: int) -> Arrays:
        """Tokens int64 [s], labels int64 [s], loss mask float32 [s]."""
        (text,) = self._texts[number]
        random = np.random.RandomState([self._seed % 2**32, number % 2**32])
        return self._masking(text.astype(np.int64), random)

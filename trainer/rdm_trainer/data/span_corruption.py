# SPDX-License-Identifier: GPL-3.0-or-later
"""T5's span corruption: runs of tokens are cut out of the encoder's text, and the decoder predicts them.

Source: C. Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer"
(2020), section 3.1.4; the layout of encoder and decoder is that of NVIDIA Megatron-LM's ``T5Dataset``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SpanCorruption:
    """How text becomes a sample.

    The encoder sees the text with each masked span replaced by a sentinel, in order. The decoder's labels are
    each sentinel followed by its span, and the end token; its input is the begin token and the labels without
    the end token.

    Attributes:
        encoder_length: Tokens of the encoder, s_e.
        decoder_length: Tokens of the decoder, s_d.
        probability: Part of the tokens that is masked.
        mean_length: Average tokens of a span.
        sentinels: Their ids.
        begin: The decoder's first token.
        end: The last label.
        padding: Fills both up to their lengths.
    """

    encoder_length: int
    decoder_length: int
    probability: float
    mean_length: float
    sentinels: Sequence[int]
    begin: int
    end: int
    padding: int

    def plan(self, tokens: int) -> tuple[int, int]:
        """Return how much of a text is masked.

        Returns:
            Masked tokens and spans. They are fewer than wanted if the decoder or the sentinels do not
            suffice. Of a text with two tokens or more, at least one stays and one is masked.
        """
        if tokens < 2:
            return 0, 0
        masked = min(max(round(tokens * self.probability), 1), tokens - 1)
        while True:
            # Every span follows a token that stays.
            most = min(len(self.sentinels), masked, tokens - masked)
            spans = min(max(round(masked / self.mean_length), 1), most)
            # The end token follows the spans and their sentinels.
            surplus = masked + spans + 1 - self.decoder_length
            if surplus <= 0 or masked == 1:
                return (masked, spans) if surplus <= 0 and spans else (0, 0)
            masked = max(masked - surplus, 1)

    def __call__(
        self, tokens: _Ids, random: np.random.RandomState
    ) -> tuple[_Ids, _Ids, _Ids, npt.NDArray[np.float32]]:
        """Make a sample.

        Args:
            tokens: int64, the text.
            random: The source of randomness.

        Returns:
            Encoder ids int64 [s_e], decoder ids int64 [s_d], labels int64 [s_d], loss mask float32 [s_d]. The
            labels under padding are padding.
        """
        tokens = tokens[: self.encoder_length]
        masked, spans = self.plan(len(tokens))
        kept_lengths = _parts(len(tokens) - masked, spans, random)
        masked_lengths = _parts(masked, spans, random)
        # Kept and masked runs alternate, a kept one first.
        lengths = np.stack((kept_lengths, masked_lengths), axis=1).reshape(-1)
        ends = np.cumsum(lengths)
        encoder, labels = [], []
        for span in range(spans):
            sentinel = np.array([self.sentinels[span]])
            begin, middle, end = ends[2 * span] - lengths[2 * span], ends[2 * span], ends[2 * span + 1]
            encoder += [tokens[begin:middle], sentinel]
            labels += [sentinel, tokens[middle:end]]
        if not spans:
            encoder = [tokens]
        labels.append(np.array([self.end]))
        source = _padded(np.concatenate(encoder), self.encoder_length, self.padding)
        target = np.concatenate(labels)
        mask = np.zeros(self.decoder_length, np.float32)
        mask[: len(target)] = 1.0
        shifted = np.concatenate((np.array([self.begin]), target[:-1]))
        return (
            source,
            _padded(shifted, self.decoder_length, self.padding),
            _padded(target, self.decoder_length, self.padding),
            mask,
        )


def _parts(total: int, parts: int, random: np.random.RandomState) -> _Ids:
    """Cut a length into this many parts of at least 1, every way equally likely."""
    if not parts:
        return np.empty(0, np.int64)
    cuts = np.sort(random.permutation(total - 1)[: parts - 1]) + 1
    bounds = np.concatenate((np.zeros(1, np.int64), cuts, np.full(1, total, np.int64)))
    return bounds[1:] - bounds[:-1]


def _padded(ids: _Ids, length: int, padding: int) -> _Ids:
    """The ids filled up to a length."""
    result = np.full(length, padding, np.int64)
    result[: len(ids)] = ids
    return result

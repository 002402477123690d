# SPDX-License-Identifier: GPL-3.0-or-later
"""Which tokens of a BERT's text are masked."""

from __future__ import annotations

import numpy as np
import pytest

from rdm_trainer.data.masked_tokens import TokenMasking

BEGIN, END, MASK = 2, 3, 4


@pytest.mark.parametrize("probability", [0.15, 1.0])
def test_special_tokens_are_never_masked(probability: float) -> None:
    masking = TokenMasking(probability, 100, MASK, BEGIN, END)
    text = np.array([BEGIN, 10, 11, END, 12, END, 13, 14, BEGIN, 15])
    given_back = np.zeros(len(text))
    for seed in range(200):
        tokens, labels, mask = masking(text, np.random.RandomState(seed))
        assert labels.tolist() == [BEGIN, *text, END]
        assert (tokens == labels)[mask == 0].all()
        assert mask.sum() == round(6 * probability)
        given_back += mask[1:-1].astype(float)
    assert ((given_back > 0) == (text >= 10)).all()


def test_a_text_of_special_tokens_alone_is_left_as_it_is() -> None:
    text = np.full(5, END)
    tokens, labels, mask = TokenMasking(0.15, 100, MASK, BEGIN, END)(text, np.random.RandomState(0))
    assert tokens.tolist() == labels.tolist() == [BEGIN, *text, END]
    assert mask.sum() == 0

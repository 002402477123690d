# SPDX-License-Identifier: GPL-3.0-or-later
"""What can be known about a job's data before anything starts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rdm_core.config import Config
from rdm_core.errors import TrainerError
from rdm_trainer.data.indexed_dataset import IndexedDataset
from rdm_trainer.data.splits import SPLITS, bounds
from rdm_trainer.tokenizers.special_tokens import special_tokens

# A T5's samples are this much shorter than its sequence, as Megatron's are.
ADDED_TOKENS = 2
# The number of runs of tokens that are compared with the vocabulary.
_RUNS = 64


def checks(config: Config) -> list[str]:
    """Check a job's data.

    Returns:
        What is wrong, one sentence each; empty when all is well.
    """
    if config.data.mock:
        return []
    problems = list(_tokenizer(config))
    data = config.data
    if config.model.kind == "t5" and data.tokenizer is not None:
        problems += _spans(config)
    if config.model.kind == "bert" and data.tokenizer is not None:
        problems += _mask(config)
    splits = [(data.blend, None)] if data.blend else [(data.train, 0), (data.valid, 1), (data.test, 2)]
    if not data.blend and not data.train:
        problems.append("the job has no data: give data.blend or data.train, or set data.mock to true.")
    seen: dict[str, IndexedDataset] = {}
    for blends, number in splits:
        for blend in blends:
            try:
                if blend.prefix not in seen:
                    seen[blend.prefix] = IndexedDataset(blend.prefix)
                    problems += _content(config, seen[blend.prefix])
                problems += _enough(config, seen[blend.prefix], number)
            except TrainerError as error:
                problems += error.problems
    return list(dict.fromkeys(problems))


def _tokenizer(config: Config) -> Iterator[str]:
    """Compare the tokenizer with the model."""
    model, tokenizer = config.model, config.data.tokenizer
    if tokenizer is None:
        return
    try:
        special = special_tokens(tokenizer, model.vocab_size)
    except TrainerError as error:
        yield f"data.tokenizer: {error}"
        return
    if special.size > model.vocab_size:
        yield (
            f"model.vocab_size is {model.vocab_size}, but the tokenizer has {special.size} tokens: set it to "
            f"{special.size}."
        )
    elif special.size < model.vocab_size and config.checkpoint.init_from is None:
        # Published models have padded vocabularies.
        yield (
            f"model.vocab_size is {model.vocab_size}, but the tokenizer has only {special.size} tokens: "
            f"another tokenizer made the configuration, or model.vocab_size should be {special.size}."
        )


def _spans(config: Config) -> Iterator[str]:
    """Compare the number of extra ids, and the decoder's length, with the spans of a full sample."""
    model, data = config.model, config.data
    masked = round((model.seq_length - ADDED_TOKENS) * data.mask_probability)
    spans = min(round(masked / data.mean_span_length), model.seq_length - ADDED_TOKENS - masked)
    # Each span follows its sentinel, and an end token follows all.
    if (labels := masked + spans + 1) > model.decoder_length:
        yield (
            f"model.decoder_seq_length is {model.decoder_length}, but {data.mask_probability:g} of a sample "
            f"in spans of {data.mean_span_length:g} make {labels} labels: set it to {labels} or more, or "
            "lower data.mask_probability."
        )
    try:
        own = len(special_tokens(data.tokenizer, model.vocab_size).sentinels)
    except TrainerError:
        # Another check has reported it.
        return
    if own:
        if spans > own:
            yield (
                f"The tokenizer has {own} sentinels, but {data.mask_probability:g} of a sample in spans of "
                f"{data.mean_span_length:g} make {spans} spans, each with one of its own: take a shorter "
                "model.seq_length, or a longer data.mean_span_length."
            )
        return
    if spans > model.vocab_extra_ids:
        yield (
            f"model.vocab_extra_ids is {model.vocab_extra_ids}, but {data.mask_probability:g} of a sample in "
            f"spans of {data.mean_span_length:g} make {spans} spans, each with an id of its own: set it to "
            f"{spans} or more."
        )


def _mask(config: Config) -> Iterator[str]:
    """Check that the tokenizer has what a BERT needs."""
    try:
        if special_tokens(config.data.tokenizer, config.model.vocab_size).mask is None:
            yield "The tokenizer has no [MASK] or <mask>, which hides a BERT's tokens; take one of BERT's."
    except TrainerError:
        # Another check has reported it.
        return


def _content(config: Config, dataset: IndexedDataset) -> Iterator[str]:
    """Compare a data set's tokens with the model's vocabulary."""
    if dataset.dtype.kind not in "iu":
        yield f"{dataset.prefix} holds {dataset.dtype.name}, which are no tokens; tokens are uint16 or int32."
        return
    if not dataset.tokens:
        yield f"{dataset.prefix} is empty: it has no token."
        return
    lowest, highest = dataset.extremes(_RUNS)
    size = config.model.vocab_size
    if lowest < 0 or highest >= size:
        yield (
            f"{dataset.prefix} holds the token {lowest if lowest < 0 else highest}, but model.vocab_size is "
            f"{size}: the data was made with another tokenizer."
        )


def _enough(config: Config, dataset: IndexedDataset, number: int | None) -> Iterator[str]:
    """Compare a data set's size with the sequence length."""
    if config.model.kind != "t5":
        count = len(dataset)
        cuts = bounds(config.data.split, count)
        parts = [(SPLITS[number], 0, count)] if number is not None else [("train", cuts[0], cuts[1])]
        for name, first, last in parts:
            tokens = int(dataset.sizes[first:last].sum(dtype=np.int64))
            if not tokens:
                yield f"{dataset.prefix} has nothing for {name} under the split {config.data.split}."
            elif tokens <= config.model.seq_length:
                yield (
                    f"{dataset.prefix} has {tokens} tokens for {name}, fewer than one sample of "
                    f"{config.model.seq_length} (model.seq_length) and its label."
                )
    elif not dataset.documents:
        yield f"{dataset.prefix} is empty: it has no document."

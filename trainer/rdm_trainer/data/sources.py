# SPDX-License-Identifier: GPL-3.0-or-later
"""From a configuration to the samples of train, valid and test. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rdm_core.config import Blend, Config
from rdm_core.errors import TrainerError
from rdm_trainer.data.checks import ADDED_TOKENS
from rdm_trainer.data.datasets import Blended, Chained, GPTDataset, SampleSource, T5Dataset, WindowDataset
from rdm_trainer.data.index_maps import gpt as gpt_index
from rdm_trainer.data.index_maps import t5 as t5_index
from rdm_trainer.data.index_maps import windows
from rdm_trainer.data.index_maps.blend import load_or_build as load_or_build_blend
from rdm_trainer.data.index_maps.blend import normalise
from rdm_trainer.data.index_maps.maker import MapMaker
from rdm_trainer.data.indexed_dataset import IndexedDataset
from rdm_trainer.data.masked_tokens import AROUND, MaskedTokens, TokenMasking
from rdm_trainer.data.mock import MockGPT, MockT5
from rdm_trainer.data.order import Order
from rdm_trainer.data.span_corruption import SpanCorruption
from rdm_trainer.data.splits import SPLITS, bounds, share
from rdm_trainer.tokenizers.special_tokens import of_job

_Samples = tuple[SampleSource | None, SampleSource | None, SampleSource | None]


def span_corruption(config: Config) -> SpanCorruption:
    """A T5's masking.

    Raises:
        TrainerError: The tokenizer's files are missing or wrong.
    """
    model = config.model
    special = of_job(config)
    return SpanCorruption(
        encoder_length=model.seq_length,
        decoder_length=model.decoder_length,
        probability=config.data.mask_probability,
        mean_length=config.data.mean_span_length,
        # A tokenizer may have its own.
        sentinels=special.sentinels or range(model.vocab_size, model.vocab_size + model.vocab_extra_ids),
        begin=special.begin,
        end=special.end,
        padding=special.padding,
    )


def _masking(config: Config) -> TokenMasking:
    """A BERT's masking.

    Raises:
        TrainerError: The tokenizer's files are missing or wrong, or it has no token that masks.
    """
    special = of_job(config)
    if special.mask is None:
        raise TrainerError("data.tokenizer has no [MASK] or <mask>, which hides a BERT's tokens.")
    return TokenMasking(
        probability=config.data.mask_probability,
        vocab_size=config.model.vocab_size,
        mask=special.mask,
        begin=special.first,
        end=special.end_of_document,
    )


def _run(config: Config) -> int:
    """Return the tokens of a sample's text, without the one that a GPT adds as its last label."""
    length = config.model.seq_length
    return length - AROUND - 1 if config.model.kind == "bert" else length


def sources(config: Config, *, maps: MapMaker, order: Order) -> _Samples:
    """Open the data of a training.

    Returns:
        The samples of train, valid and test; None for a split that is empty or not wanted.

    Raises:
        TrainerError: A file is missing or damaged, or does not fit.
    """
    spans = span_corruption(config) if config.model.kind == "t5" else None
    if config.data.mock:
        return _mock(config, order, spans)
    opened = _DataSets(config, maps, order, spans)
    data = config.data
    if data.blend:
        blends, whole = (data.blend, data.blend, data.blend), False
    else:
        blends, whole = (data.train, data.valid, data.test), True
    train, valid, test = (
        opened.mixture(blend, number, samples, whole)
        for number, (blend, samples) in enumerate(zip(blends, order.samples, strict=True))
    )
    return train, valid, test


def _mock(config: Config, order: Order, spans: SpanCorruption | None) -> _Samples:
    model, seed = config.model, config.optimisation.seed
    result: list[SampleSource | None] = []
    for number, (*_, samples) in enumerate(order.samples):
        if not samples:
            result.append(None)
        elif spans is None:
            texts = MockGPT(samples, model.vocab_size, seed + number, _run(config))
            is_bert = model.kind == "bert"
            result.append(MaskedTokens(texts, _masking(config), seed + number) if is_bert else texts)
        else:
            result.append(MockT5(samples, model.vocab_size, seed + number, spans))
    return result[0], result[1], result[2]


class _DataSets:
    """The data sets of a configuration, each opened once.

    Args:
        config: The job.
        maps: Makes the index maps that are missing.
        order: The order of the samples.
        spans: A T5's masking; None for a GPT.
    """

    def __init__(self, config: Config, maps: MapMaker, order: Order, spans: SpanCorruption | None) -> None:
        self._config = config
        self._order = order
        self._maps = maps
        self._spans = spans
        self._seed = config.optimisation.seed
        self._cache = Path(config.data.index_cache) if config.data.index_cache else None
        self._opened: dict[str, IndexedDataset] = {}

    def mixture(
        self, blends: Sequence[Blend], number: int, samples: Sequence[int], whole: bool
    ) -> SampleSource | None:
        """Return a split of a blend, for the numbers of samples that an order has."""
        if not blends or not samples[-1]:
            return None
        if len(blends) == 1:
            return self._one(blends[0].prefix, number, samples, whole)
        weights = normalise([blend.weight for blend in blends])
        shares = zip(*(share(count, weights) for count in samples), strict=True)
        parts = [
            self._one(blend.prefix, number, part, whole) for blend, part in zip(blends, shares, strict=True)
        ]
        if all(part is None for part in parts):
            return None
        present: list[SampleSource] = []
        for blend, part in zip(blends, parts, strict=True):
            if part is None:
                raise TrainerError(
                    f"{blend.prefix} has no document for {SPLITS[number]} under the split "
                    f"{self._config.data.split}, though others of the blend have: "
                    "it is too small for the split."
                )
            present.append(part)
        directory = self._cache or Path(blends[0].prefix).parent
        return Blended(present, *load_or_build_blend(weights, samples[-1], directory, self._maps))

    def _one(self, prefix: str, number: int, samples: Sequence[int], whole: bool) -> SampleSource | None:
        """Return a split of the data set with this prefix, or all of it."""
        if prefix not in self._opened:
            self._opened[prefix] = IndexedDataset(prefix)
        data = self._opened[prefix]
        count = len(data) if self._spans is None else data.documents
        cuts = bounds(self._config.data.split, count)
        first, last = (0, count) if whole else (cuts[number], cuts[number + 1])
        if last <= first:
            return None
        parts: list[SampleSource] = []
        held = 0
        for wanted in samples:
            if wanted <= held:
                continue
            if parts and number == 0 and self._order.grown and wanted == samples[-1]:
                self._maps.log(
                    f"{prefix}: the order of the first {held} samples stays, and the {wanted - held} behind "
                    "them are drawn again from all of its training data"
                )
            # Each part has an order of its own.
            seed = (self._seed + len(parts)) % 2**32
            if self._spans is None:
                part: SampleSource | None = self._gpt(data, SPLITS[number], first, last, wanted - held, seed)
            else:
                part = self._t5(data, SPLITS[number], first, last, wanted - held, seed, self._spans)
            if part is None:
                return None
            parts.append(part)
            held += len(part)
        return parts[0] if len(parts) == 1 else Chained(parts)

    def _gpt(
        self, data: IndexedDataset, split: str, first: int, last: int, samples: int, seed: int
    ) -> SampleSource:
        model, run = self._config.model, _run(self._config)
        index = gpt_index.load_or_build(
            data.prefix,
            split,
            data.sizes,
            np.arange(first, last, dtype=np.int32),
            samples,
            run,
            seed,
            directory=self._cache,
            maps=self._maps,
        )
        texts = GPTDataset(data, index, run, model.vocab_size)
        return MaskedTokens(texts, _masking(self._config), seed) if model.kind == "bert" else texts

    def _t5(
        self,
        data: IndexedDataset,
        split: str,
        first: int,
        last: int,
        samples: int,
        seed: int,
        spans: SpanCorruption,
    ) -> SampleSource | None:
        longest = self._config.model.seq_length - ADDED_TOKENS
        name = f"{data.prefix}, split {split}"
        arguments = (samples, longest, self._config.data.short_sequence_probability, seed)
        if windows.are_needed(data.sizes, data.document_index, longest):
            begin, end = data.document_index[[first, last]].tolist()
            if end <= begin:
                return None
            sequences = np.arange(begin, end)
            table = self._maps.table(
                name,
                windows.map_path(data.prefix, split, *arguments, self._cache),
                lambda _: windows.build(data.sizes, sequences, *arguments),
                lambda table: windows.fits(table, data.sizes, sequences, samples, longest),
            )
            return WindowDataset(data, table, spans, seed, self._config.model.vocab_size)
        documents = data.document_index[first : last + 1]
        table = self._maps.table(
            name,
            t5_index.map_path(data.prefix, split, *arguments, self._cache),
            lambda progress: t5_index.build(data.sizes, documents, *arguments, progress),
            lambda table: t5_index.fits(table, documents, samples, longest),
        )
        return T5Dataset(data, table, spans, seed, self._config.model.vocab_size)

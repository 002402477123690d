# SPDX-License-Identifier: GPL-3.0-or-later
"""Micro-batches as torch tensors, read ahead by threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from rdm_core.batch_ramp import BatchRamp
from rdm_core.config import Config
from rdm_trainer.data.datasets import SampleSource
from rdm_trainer.data.index_maps.maker import MapMaker
from rdm_trainer.data.order import Order
from rdm_trainer.data.sampler import Sampler
from rdm_trainer.data.sources import sources
from rdm_trainer.tokenizers import special_tokens

# A GPT's: (tokens [b, s], (labels [b, s], loss mask [b, s])); with documents' starts, (tokens, starts [b, s])
# instead of the tokens.
# A BERT's: (tokens [b, s], (labels [b, s], loss mask [b, s])).
# A T5's: ((encoder ids [b, s_e], decoder ids [b, s_d]), (labels [b, s_d], loss mask [b, s_d])).
MicroBatch = tuple[torch.Tensor | tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]

# Micro-batches that each thread keeps ready.
_AHEAD = 2


@dataclass(frozen=True)
class Documents:
    """How a GPT treats the ends of documents.

    Attributes:
        end: The last token of a document.
        masks_loss: The token after it is not predicted.
        passes_starts: The model gets the start of each token's document.
    """

    end: int
    masks_loss: bool
    passes_starts: bool


class MicroBatches(Iterator[MicroBatch]):
    """The micro-batches of one split for one data rank.

    Ends after the last whole global batch, unless the sampler is cyclic. Nothing is read, and no thread runs,
    before the first micro-batch is needed: a pipeline stage that needs no data costs nothing.
    """

    def __init__(
        self,
        source: SampleSource,
        sampler: Sampler,
        threads: int,
        consumed_samples: int = 0,
        *,
        documents: Documents | None = None,
    ) -> None:
        """Read samples.

        Args:
            source: The samples.
            sampler: Their order.
            threads: How many read ahead; 0: the caller reads.
            consumed_samples: As for :meth:`restart`.
            documents: How a GPT treats the ends of documents; None: as other tokens.
        """
        self._documents = documents
        self._source = source
        self._sampler = sampler
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: deque[Future[MicroBatch]] = deque()
        self._pin = torch.cuda.is_available()
        self.restart(consumed_samples)

    def restart(self, consumed_samples: int = 0) -> None:
        """Continue after the first samples.

        Args:
            consumed_samples: How many to skip, of all ranks together.
        """
        for future in self._ahead:
            future.cancel()
        self._ahead.clear()
        self._numbers = self._sampler.micro_batches(consumed_samples)

    def __len__(self) -> int:
        """The number of samples in the split."""
        return self._sampler.samples

    def __iter__(self) -> MicroBatches:
        """Return this iterator at its current position."""
        return self

    def __next__(self) -> MicroBatch:
        """Return the next micro-batch."""
        if not self._threads:
            return self._read(next(self._numbers))
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="data")
        while len(self._ahead) < _AHEAD * self._threads:
            numbers = next(self._numbers, None)
            if numbers is None:
                break
            self._ahead.append(self._pool.submit(self._read, numbers))
        if not self._ahead:
            raise StopIteration
        return self._ahead.popleft().result()

    def close(self) -> None:
        """End the threads."""
        self.restart()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _read(self, numbers: npt.NDArray[np.int64]) -> MicroBatch:
        """Make the micro-batch of the samples with these numbers, [b]."""
        samples = [self._source[number] for number in numbers.tolist()]
        columns = [torch.from_numpy(np.stack(column)) for column in zip(*samples, strict=True)]
        if len(columns) == 1:
            text = columns[0]
            tokens, labels = text[:, :-1].contiguous(), text[:, 1:].contiguous()
            mask, documents = torch.ones(labels.shape), self._documents
            if documents is not None and documents.masks_loss:
                mask = (tokens != documents.end).float()
            targets = self._placed(labels), self._placed(mask)
            if documents is not None and documents.passes_starts:
                return (self._placed(tokens), self._placed(starts_of(tokens, documents.end))), targets
            return self._placed(tokens), targets
        *inputs, labels, mask = (self._placed(column) for column in columns)
        return (inputs[0] if len(inputs) == 1 else (inputs[0], inputs[1])), (labels, mask)

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor, pinned if there is a GPU, so that the GPU can compute while it is copied."""
        return tensor.pin_memory() if self._pin else tensor


def starts_of(tokens: torch.Tensor, end_of_document: int) -> torch.Tensor:
    """Return for each token where its document begins in the sample, int64 [batch, sequence].

    Args:
        tokens: int64 [batch, sequence]. The token that ends a document belongs to it.
        end_of_document: That token.
    """
    places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    begins = torch.zeros_like(tokens, dtype=torch.bool)
    begins[:, 1:] = tokens[:, :-1] == end_of_document
    return torch.where(begins, places, 0).cummax(dim=1).values


@dataclass(frozen=True)
class Loaders:
    """What a training reads. A split is None if it is empty or not wanted."""

    train: MicroBatches | None
    valid: MicroBatches | None
    test: MicroBatches | None

    def close(self) -> None:
        """End all threads."""
        for loader in (self.train, self.valid, self.test):
            if loader is not None:
                loader.close()


def build(
    config: Config,
    *,
    data_rank: int,
    data_size: int,
    consumed_samples: int,
    maps: MapMaker | None = None,
    order: Order | None = None,
) -> Loaders:
    """Open the data of a training for one rank.

    Args:
        config: The job.
        data_rank: This rank's number among those that share a step.
        data_size: How many share it.
        consumed_samples: Training samples that were taken before, by all ranks together.
        maps: Makes the index maps that are missing; None: this process makes them for itself.
        order: The order of the samples; None: that of a new training.

    Returns:
        The micro-batches of train, valid and test.

    Raises:
        TrainerError: A file is missing or damaged, or does not fit.
    """
    opened = sources(config, maps=maps or MapMaker(), order=order or Order.of(config))
    optimisation = config.optimisation
    documents = None
    if config.knows_documents or config.data.eod_mask_loss:
        end = special_tokens.of_job(config).end_of_document
        documents = Documents(end, config.data.eod_mask_loss, config.knows_documents)
    loaders: list[MicroBatches | None] = []
    for number, source in enumerate(opened):
        if source is None:
            loaders.append(None)
            continue
        training = number == 0
        sampler = Sampler(
            samples=len(source),
            batches=config.batches if training else BatchRamp.constant(optimisation.global_batch_size),
            micro_batch_size=optimisation.micro_batch_size,
            data_rank=data_rank,
            data_size=data_size,
            # Evaluation may go through a small split several times, always in the same order.
            cyclic=training and config.data.sampler == "cyclic",
            seed=optimisation.seed,
        )
        loaders.append(
            MicroBatches(
                source,
                sampler,
                config.data.workers,
                consumed_samples if training else 0,
                documents=documents,
            )
        )
    return Loaders(*loaders)

# SPDX-License-Identifier: GPL-3.0-or-later
"""The order in which a training takes its samples, kept in its checkpoints. No torch here.

The index maps depend on the number of samples that they are made for: another number may reorder all epochs,
so that a training sees samples again. A resumed training therefore keeps the number that it began with, and a
greater number extends the order after the samples of the first maps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdm_core.config import Config
from rdm_trainer.data.splits import evaluations


def samples_wanted(
    config: Config, iteration: int | None = None, consumed_samples: int = 0
) -> tuple[int, int, int]:
    """Return how many samples of train, valid and test the training takes.

    Args:
        config: The job.
        iteration: Steps taken before, perhaps with another global batch size; None: with the same one.
        consumed_samples: Training samples that they took.
    """
    batch = config.optimisation.global_batch_size
    valid, test = evaluations(
        config.train_iterations, config.logging.eval_interval, config.logging.eval_iterations
    )
    if iteration is None:
        iteration = consumed_samples // batch
    left = max(0, config.train_iterations - iteration) * batch
    train = config.optimisation.train_samples or max(config.train_iterations * batch, consumed_samples + left)
    return train, valid * batch, test * batch


@dataclass(frozen=True)
class Order:
    """What determines the order of the samples.

    Attributes:
        samples: For each of train, valid and test: the number that the order was made for, then each greater
            number that it was extended to.
        settings: What else determines it, by the configuration's names, as JSON values.
        grown: The number of training samples has grown.
        note: A line for the log, if the checkpoint's order is unknown or changes.
    """

    samples: tuple[tuple[int, ...], ...]
    settings: Mapping[str, Any]
    grown: bool = False
    note: str | None = None

    @classmethod
    def of(
        cls,
        config: Config,
        kept: Mapping[str, Any] | None = None,
        *,
        iteration: int | None = None,
        consumed_samples: int = 0,
    ) -> Order:
        """Return the order of a training that begins or is resumed.

        Args:
            config: The job.
            kept: What :meth:`state` gave to the checkpoint; None if that has none.
            iteration: As for :func:`samples_wanted`.
            consumed_samples: As for :func:`samples_wanted`.
        """
        wanted = samples_wanted(config, iteration, consumed_samples)
        fresh = tuple((number,) for number in wanted)
        settings = _settings(config)
        if not consumed_samples:
            return cls(fresh, settings)
        if kept is None:
            if config.data.mock:
                return cls(fresh, settings)
            return cls(
                fresh,
                settings,
                note="the checkpoint does not say how many samples its data were put in order for: if "
                "train_iterations or the batch changed, samples that were consumed may come again",
            )
        changed = [key for key in settings if settings[key] != kept["settings"].get(key)]
        if changed:
            return cls(
                fresh,
                settings,
                note=f"{' and '.join(changed)} changed since the checkpoint: the samples come in another "
                "order, and those that were consumed may come again",
            )
        samples = []
        for split, (number, before) in enumerate(zip(wanted, kept["samples"], strict=True)):
            # A cyclic sampler never runs out of samples.
            goes_round = split == 0 and config.data.sampler == "cyclic"
            samples.append((*before, number) if number > before[-1] and not goes_round else tuple(before))
        return cls(tuple(samples), settings, grown=len(samples[0]) > len(kept["samples"][0]))

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {"samples": [list(numbers) for numbers in self.samples], "settings": dict(self.settings)}


def _settings(config: Config) -> dict[str, Any]:
    """Return what determines the order of the training's samples, except their number."""
    data = config.data
    settings: dict[str, Any] = {
        "model.seq_length": config.model.seq_length,
        "optimisation.seed": config.optimisation.seed,
        "data.sampler": data.sampler,
    }
    for key, blend in (("data.blend", data.blend), ("data.train", data.train)):
        # A data set that was moved is the same one.
        settings[key] = [[Path(part.prefix).name, part.weight] for part in blend]
    if data.blend:
        settings["data.split"] = data.split
    if config.model.kind == "t5":
        settings["data.short_sequence_probability"] = data.short_sequence_probability
    return settings

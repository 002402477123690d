# SPDX-License-Identifier: GPL-3.0-or-later
"""DeepSpeed's states for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rdm_core.config import Config
from rdm_trainer import models
from rdm_trainer.checkpoint import deepspeed_keys as keys
from rdm_trainer.checkpoint import identity
from rdm_trainer.checkpoint.distributed import Saved
from rdm_trainer.checkpoint.files import Manifest
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.engines.deepspeed import restore, universal
from rdm_trainer.engines.deepspeed.writer import RankWriter

__all__ = ["DeepSpeedStates"]


class DeepSpeedStates:
    """The states of DeepSpeed's engine; see :class:`rdm_trainer.engines.engine.States`.

    Args:
        config: The job.
        engine: DeepSpeed's engine.
        topology: This rank's place.
    """

    def __init__(self, config: Config, engine: Any, topology: Topology) -> None:
        self._config, self._engine, self._topology = config, engine, topology
        self._vocabulary = config.spec.vocabulary
        self._writer = RankWriter(asynchronous=config.checkpoint.asynchronous)
        self._layout = identity.layout_of(config, topology.world_size)
        engine.checkpoint_engine = self._writer

    @property
    def files(self) -> Mapping[Path, int]:
        """The files that this rank wrote last, with their bytes."""
        return self._writer.files

    @property
    def error(self) -> str | None:
        """Why writing failed; None if it did not."""
        return self._writer.error

    def save(self, directory: Path, name: str, state: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
        """See :class:`rdm_trainer.engines.engine.States`."""
        self._engine.save_checkpoint(
            str(directory),
            tag=name,
            client_state={
                "iteration": state["iteration"],
                "consumed_samples": state["consumed_samples"],
                "configuration": identity.fingerprint(self._config),
                keys.UNIVERSAL_CHECKPOINT_INFO: universal.merging(self._config),
                **self._optimiser_names(),
            },
            save_latest=False,
        )
        for file, content in extra.items():
            self._writer.save(content, str(directory / name / file))
        self._writer.start()

    def wait(self, seconds: float) -> bool:
        """See :class:`rdm_trainer.engines.engine.States`."""
        return self._writer.wait(seconds)

    def can_load(self, layout: Mapping[str, Any]) -> bool:
        """See :class:`rdm_trainer.engines.engine.States`; DeepSpeed loads its files in the same layout."""
        return identity.same_layout(layout, self._layout)

    def needed_files(self, manifest: Manifest, saved: Saved | None) -> set[str]:
        """See :class:`rdm_trainer.engines.engine.States`."""
        if saved is None:
            return restore.needed_files(manifest, self._engine, self._topology)
        parts = restore.parts(self._engine, self._topology, self._vocabulary, torch.zeros(1))
        return saved.needed_files(parts)

    def load(self, directory: Path, name: str, manifest: Manifest, saved: Saved | None) -> set[str]:
        """See :class:`rdm_trainer.engines.engine.States`."""
        if saved is None:
            restore.load_same_layout(self._engine, directory, name)
            return self._writer.damaged
        restore.load_parts(self._engine, self._topology, saved, self._vocabulary, manifest)
        return set()

    def _optimiser_names(self) -> dict[str, Any]:
        """Return the names of the optimiser's parameters if DeepSpeed does not record them: without ZeRO."""
        if self._config.zero_stage:
            return {}
        groups = [group["params"] for group in self._engine.optimizer.param_groups]
        names = {parameter: name for name, parameter in self._engine.module.named_parameters()}
        layers = models.layers(self._config, self._topology)
        return {
            "optimizer_parameters": [[names.get(parameter) for parameter in group] for group in groups],
            "tied_layers": {str(index): layer.tied for index, layer in enumerate(layers) if layer.tied},
        }

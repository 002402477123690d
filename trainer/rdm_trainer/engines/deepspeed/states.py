# SPDX-License-Identifier: GPL-3.0-or-later
"""DeepSpeed's states for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rdm_core.config import Config
from rdm_trainer import models
from rdm_trainer.checkpoint import identity, universal
from rdm_trainer.checkpoint.files import Manifest
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.engines.deepspeed import restore
from rdm_trainer.engines.deepspeed.writer import RankWriter

__all__ = ["DeepSpeedStates"]


class DeepSpeedStates:
    """The states of DeepSpeed's engine; see :class:`rdm_trainer.engines.engine.States`.

    Args:
        config: The job.
        engine: DeepSpeed's engine.
        topology: This rank's place.
        names: Names of this rank's parameters.
    """

    def __init__(self, config: Config, engine: Any, topology: Topology, names: list[str]) -> None:
        self._config, self._engine, self._topology = config, engine, topology
        self._names = names
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
                "universal_checkpoint_info": universal.merging(self._config),
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
        """See :class:`rdm_trainer.engines.engine.States`; DeepSpeed's own files fit only one layout."""
        return identity.same_layout(layout, self._layout)

    def needed_files(self, manifest: Manifest, directory: Path) -> set[str]:  # noqa: ARG002
        """See :class:`rdm_trainer.engines.engine.States`."""
        return restore.needed_files(manifest, self._engine, self._topology)

    def load(self, directory: Path, name: str, manifest: Manifest) -> set[str]:  # noqa: ARG002
        """See :class:`rdm_trainer.engines.engine.States`."""
        restore.load_same_layout(self._engine, directory, name)
        return self._writer.damaged

    def needed_universal_files(self, manifest: Manifest) -> set[str]:
        """See :class:`rdm_trainer.engines.engine.States`."""
        return universal.needed_files(manifest, self._names)

    def load_universal(self, folder: Path, manifest: Manifest) -> None:
        """See :class:`rdm_trainer.engines.engine.States`."""
        restore.load_universal(self._engine, folder, self._topology, manifest)

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

# SPDX-License-Identifier: GPL-3.0-or-later
"""Checkpoints in DeepSpeed's own files, as releases until 0.5 wrote them, for tests of reading them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import torch.distributed as dist

from rdm_core.config import Config
from rdm_trainer import models
from rdm_trainer.checkpoint import writing
from rdm_trainer.engines.deepspeed.states import DeepSpeedStates


class _States(DeepSpeedStates):
    def __init__(self, config: Config, *arguments: Any) -> None:
        super().__init__(config, *arguments)
        self._config = config

    def counters(self) -> Mapping[str, Any]:
        return {}

    def save(self, directory: Path, extra: Mapping[str, Any]) -> None:
        if not self._updates():
            # DeepSpeed created the states at the first update.
            self._base.state.clear()
        self._engine.save_checkpoint(
            str(directory.parent), tag=directory.name, client_state=self._names(), save_latest=False
        )
        for name, content in extra.items():
            writing.write(content, directory / name)
        dist.barrier()
        self.files = {path: path.stat().st_size for path in directory.glob("*.pt")}

    def _names(self) -> dict[str, Any]:
        """Return the names of the optimiser's parameters, which DeepSpeed records only with ZeRO."""
        if self._zero_stage:
            return {}
        names = {weight: name for name, weight in self._engine.module.named_parameters()}
        layers = enumerate(models.layers(self._config, self._topology))
        return {
            "optimizer_parameters": [
                [names.get(weight) for weight in group["params"]] for group in self._base.param_groups
            ],
            "tied_layers": {str(index): layer.tied for index, layer in layers if layer.tied},
        }


@contextlib.contextmanager
def saving() -> Iterator[None]:
    """Let the engines that are created in this context save DeepSpeed's files, if DeepSpeed trains."""
    with mock.patch("rdm_trainer.engines.deepspeed.engine.DeepSpeedStates", _States):
        yield

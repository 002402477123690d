# SPDX-License-Identifier: GPL-3.0-or-later
"""The native engine's states for checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch

from rdm_core.config import Config
from rdm_trainer.checkpoint.files import Manifest
from rdm_trainer.checkpoint.fragments import Fragment
from rdm_trainer.engines.native.sharded_adamw import ShardedAdamW
from rdm_trainer.engines.states import States


class _Engine(Protocol):
    config: Config
    sharded: ShardedAdamW
    steps: int


class NativeStates(States):
    """The states of the native engine."""

    def __init__(self, engine: _Engine) -> None:
        super().__init__(engine.config)
        self._engine = engine

    def _fragments(self) -> Iterable[Fragment]:
        return self._engine.sharded.fragments()

    def _is_written(self, fragment: Fragment) -> bool:
        return self._engine.sharded.is_counted(fragment.name, fragment.weight)

    def _updates(self) -> torch.Tensor:
        return self._engine.sharded.steps.reshape(1)

    def _loaded(self, updates: float, manifest: Manifest) -> None:
        self._engine.sharded.steps = updates
        self._engine.sharded.publish()
        self._engine.steps = int(manifest.state["iteration"])

# SPDX-License-Identifier: GPL-3.0-or-later
"""DeepSpeed's states for checkpoints: the flat fp32 partitions of ZeRO, as fragments of the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from rdm_core.config import Config
from rdm_trainer.checkpoint.files import Manifest
from rdm_trainer.checkpoint.fragments import STATES, Fragment
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.engines.states import States

_LOSS_SCALER = "loss_scaler"
# The state of a dynamic loss scaler; its other attributes are settings.
_SCALE_STATE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


class DeepSpeedStates(States):
    """The states of DeepSpeed's engine.

    Args:
        config: The job.
        engine: DeepSpeed's engine, just initialised.
        topology: This rank's place.
        counts: Returns whether this rank counts a weight; one rank per replica does.
    """

    def __init__(
        self, config: Config, engine: Any, topology: Topology, counts: Callable[[nn.Parameter], bool]
    ) -> None:
        super().__init__(config)
        self._engine, self._topology, self._counts = engine, topology, counts
        self._optimiser = engine.optimizer
        # Without ZeRO, this is torch's optimiser.
        self._base = getattr(self._optimiser, "optimizer", self._optimiser)
        self._zero_stage = config.zero_stage
        for master, group in self._masters():
            # Create all states now, so that a checkpoint needs no step before it.
            on_device = group.get("fused") or group.get("capturable")
            self._base.state[master].update(
                step=torch.zeros((), device=master.device if on_device else "cpu"),
                **{state: torch.zeros_like(master) for state in STATES[1:]},
            )

    def counters(self) -> Mapping[str, Any]:
        """See :class:`rdm_trainer.engines.states.States`; fp16's loss scale."""
        scaler = self._dynamic_scaler()
        if scaler is None:
            return {}
        return {_LOSS_SCALER: {key: vars(scaler)[key] for key in _SCALE_STATE}}

    def _fragments(self) -> Iterable[Fragment]:
        if self._zero_stage == 0:
            return self._whole()
        return self._partitioned_weights() if self._zero_stage == 3 else self._partitioned_groups()

    def _is_written(self, fragment: Fragment) -> bool:
        # Without ZeRO, all replicas have the same.
        return self._counts(fragment.weight) and (self._zero_stage > 0 or self._topology.replica == 0)

    def _updates(self) -> torch.Tensor:
        step: torch.Tensor = self._base.state[self._masters()[0][0]]["step"]
        return step.reshape(1)

    def _loaded(self, updates: float, manifest: Manifest) -> None:
        for master, _ in self._masters():
            self._base.state[master]["step"].fill_(updates)
        if self._zero_stage == 3:
            self._publish_partitions()
        elif self._zero_stage:
            self._optimiser.update_lp_params()
        state = manifest.state
        self._engine.global_steps = int(state["iteration"])
        self._engine.global_samples = int(state["consumed_samples"])
        self._engine.skipped_steps = int(state["skipped"])
        scaler = self._dynamic_scaler()
        if scaler is not None and manifest.layout.get("precision") == "fp16":
            # Checkpoints of earlier releases, and those with a fixed scale, have only the scale.
            vars(scaler).update(state.get(_LOSS_SCALER, {"cur_scale": state["loss_scale"]}))

    def _masters(self) -> list[tuple[torch.Tensor, Mapping[str, Any]]]:
        """Return the tensors that torch's optimiser updates, each with its group."""
        if self._zero_stage == 3:
            group = self._optimiser.param_groups[0]
            return [(master, group) for master in self._optimiser.fp32_partitioned_groups_flat]
        return [(master, group) for group in self._base.param_groups for master in group["params"]]

    def _states_of(self, master: torch.Tensor) -> dict[str, torch.Tensor]:
        states = self._base.state[master]
        return {STATES[0]: master.detach(), **{state: states[state] for state in STATES[1:]}}

    def _whole(self) -> Iterator[Fragment]:
        """No ZeRO, fp32 only: torch's optimiser and the weights themselves."""
        for name, weight in self._engine.module.named_parameters():
            flat = {state: value.view(-1) for state, value in self._states_of(weight).items()}
            yield Fragment(name, weight, 0, weight.numel(), flat)

    def _partitioned_groups(self) -> Iterator[Fragment]:
        """ZeRO 1 and 2: a flat tensor per group, of which each data rank has an equal part."""
        for name, weight in self._engine.module.named_parameters():
            mapping = weight._hp_mapping
            if mapping is None:
                continue
            own, flat = mapping.lp_fragment_address, mapping.hp_fragment_address
            (master,) = self._base.param_groups[mapping.param_group_index]["params"]
            values = {
                state: value.narrow(0, flat.start, flat.numel)
                for state, value in self._states_of(master).items()
            }
            yield Fragment(name, weight, own.start, own.start + own.numel, values)

    def _partitioned_weights(self) -> Iterator[Fragment]:
        """ZeRO 3: each data rank has an equal part of each weight, padded at the end."""
        for name, weight in self._engine.module.named_parameters():
            begin = weight.ds_tensor.numel() * self._topology.replica
            end = min(begin + weight.ds_tensor.numel(), weight.ds_numel)
            values = {}
            for state in STATES:
                key = None if state == STATES[0] else state
                part, _ = self._optimiser._get_fp32_opt_state_partition(weight, False, key)
                values[state] = part.detach()[: max(0, end - begin)]
            yield Fragment(name, weight, begin, end, values)

    @torch.no_grad()
    def _publish_partitions(self) -> None:
        """ZeRO 3: copy the weights from fp32."""
        optimiser = self._optimiser
        optimiser.checkpoint_event_prologue()
        for number, master in enumerate(optimiser.fp32_partitioned_groups_flat):
            flat = optimiser.fp16_partitioned_groups_flat[number]
            flat.data.copy_(master.data)
            updated = optimiser.unflatten(flat, optimiser.fp16_partitioned_groups[number])
            for partition, value in zip(optimiser.fp16_partitioned_groups[number], updated, strict=True):
                partition.data = value.data
        if optimiser.persistent_parameters:
            optimiser.persistent_parameters[0].partition(optimiser.persistent_parameters)
        optimiser.checkpoint_event_epilogue()

    def _dynamic_scaler(self) -> Any:
        """Return fp16's loss scaler; None if the scale is fixed, or there is none."""
        scaler = getattr(self._optimiser, _LOSS_SCALER, None)
        return scaler if scaler is not None and scaler.dynamic else None

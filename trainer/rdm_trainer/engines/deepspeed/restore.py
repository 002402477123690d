# SPDX-License-Identifier: GPL-3.0-or-later
"""Loading of a checkpoint's states into an engine: its own files as they are, or parts of any others."""

from __future__ import annotations

import contextlib
import copy
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from rdm_trainer.checkpoint.boxes import Box
from rdm_trainer.checkpoint.distributed import Saved
from rdm_trainer.checkpoint.files import Manifest
from rdm_trainer.checkpoint.fragments import STATES, STEP, Fragment, boxes_of
from rdm_trainer.distributed.topology import Topology

__all__ = ["load_parts", "load_same_layout", "needed_files", "parts"]

_ZERO = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_(optim|model)_states\.pt")
_LAYER = re.compile(r"layer_(\d+)(?:-model_(\d+))?-model_states\.pt")


def needed_files(manifest: Manifest, engine: Any, topology: Topology) -> set[str]:
    """Return the files that this rank reads if the layout is the saved one."""
    place = topology.pipeline_rank * topology.model + topology.model_rank
    module: Any = engine.module
    needed = set()
    for name in manifest.files:
        if zero := _ZERO.fullmatch(name):
            replica, owner = int(zero[1]) == topology.replica, int(zero[2]) == place
            # DeepSpeed counts the model files of all tensor ranks.
            if replica and (owner or zero[3] == "model"):
                needed.add(name)
        elif layer := _LAYER.fullmatch(name):
            is_own = int(layer[2] or 0) == topology.model_rank
            if is_own and module._local_start <= int(layer[1]) < module._local_stop:
                needed.add(name)
        else:
            needed.add(name)
    return needed


def load_same_layout(engine: Any, directory: Path, tag: str) -> None:
    """Let DeepSpeed load files of the same layout."""
    # DeepSpeed prints a debugging line to standard output.
    with _settings_kept(engine), Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        engine.load_checkpoint(str(directory), tag=tag, load_lr_scheduler_states=False)


def load_parts(engine: Any, topology: Topology, saved: Saved, vocabulary: int, manifest: Manifest) -> None:
    """Read this rank's parts of a checkpoint of another layout or engine.

    Args:
        engine: DeepSpeed's engine; its weights and optimiser are replaced.
        topology: This rank's place.
        saved: The checkpoint's tensors.
        vocabulary: Number of tokens.
        manifest: The checkpoint's manifest, with its counters and the layout that saved it.
    """
    optimiser, is_partitioned = engine.optimizer, engine.zero_optimization_stage() == 3
    if is_partitioned:
        optimiser.checkpoint_event_prologue()
    step = torch.zeros(1)
    saved.load(parts(engine, topology, vocabulary, step))
    base = getattr(optimiser, "optimizer", optimiser)
    for master, group in _masters(optimiser):
        base.state[master]["step"] = _counted(step[0], master, group)
    if is_partitioned:
        _publish_partitions(optimiser)
        optimiser.checkpoint_event_epilogue()
    elif base is not optimiser:
        optimiser.update_lp_params()
    state = manifest.state
    engine.global_steps = int(state["iteration"])
    engine.global_samples = int(state["consumed_samples"])
    engine.skipped_steps = int(state["skipped"])
    if manifest.layout.get("precision") == "fp16":
        _set_loss_scale(optimiser, state.get("loss_scale"))


def parts(engine: Any, topology: Topology, vocabulary: int, step: torch.Tensor) -> list[Box]:
    """Return this rank's parts of all states; their values are views of the optimiser's.

    Args:
        engine: DeepSpeed's engine.
        topology: This rank's place.
        vocabulary: Number of tokens.
        step: Receives the number of updates, shape [1].
    """
    optimiser = engine.optimizer
    base = getattr(optimiser, "optimizer", optimiser)
    for master, _ in _masters(optimiser):
        for state in STATES[1:]:
            # DeepSpeed creates the states at the first step.
            if state not in base.state[master]:
                base.state[master][state] = torch.zeros_like(master)
    if engine.zero_optimization_stage() == 3:
        fragments = _weight_fragments(engine, topology)
    elif base is not optimiser:
        fragments = _partition_fragments(engine)
    else:
        fragments = _whole_fragments(engine)
    found = [part for fragment in fragments for part in boxes_of(fragment, vocabulary)]
    return [*found, Box(STEP, (1,), (0,), step)]


def _masters(optimiser: Any) -> list[tuple[torch.Tensor, Mapping[str, Any]]]:
    """Return the tensors that torch's optimiser updates, each with its group."""
    if hasattr(optimiser, "fp32_partitioned_groups_flat"):
        return [(master, optimiser.param_groups[0]) for master in optimiser.fp32_partitioned_groups_flat]
    base = getattr(optimiser, "optimizer", optimiser)
    return [(master, group) for group in base.param_groups for master in group["params"]]


def _whole_fragments(engine: Any) -> Iterator[Fragment]:
    """No ZeRO, fp32 only: torch's optimiser and the weights themselves."""
    states = engine.optimizer.state
    for name, weight in engine.module.named_parameters():
        values = {STATES[0]: weight, **{state: states[weight][state] for state in STATES[1:]}}
        flat = {state: value.detach().view(-1) for state, value in values.items()}
        yield Fragment(name, weight, 0, weight.numel(), flat)


def _partition_fragments(engine: Any) -> Iterator[Fragment]:
    """ZeRO 1 and 2: a flat tensor per group, of which each data rank has an equal part."""
    optimiser = engine.optimizer
    for name, parameter in engine.module.named_parameters():
        weight: Any = parameter
        mapping = weight._hp_mapping
        if mapping is None:
            continue
        own, flat = mapping.lp_fragment_address, mapping.hp_fragment_address
        (master,) = optimiser.optimizer.param_groups[mapping.param_group_index]["params"]
        values = {
            STATES[0]: master,
            **{state: optimiser.optimizer.state[master][state] for state in STATES[1:]},
        }
        yield Fragment(
            name,
            weight,
            own.start,
            own.start + own.numel,
            {state: value.detach().narrow(0, flat.start, flat.numel) for state, value in values.items()},
        )


def _weight_fragments(engine: Any, topology: Topology) -> Iterator[Fragment]:
    """ZeRO 3: each data rank has an equal part of each weight, padded at the end."""
    for name, parameter in engine.module.named_parameters():
        weight: Any = parameter
        begin = weight.ds_tensor.numel() * topology.replica
        end = min(begin + weight.ds_tensor.numel(), weight.ds_numel)
        values = {}
        for state in STATES:
            key = None if state == STATES[0] else state
            part, _ = engine.optimizer._get_fp32_opt_state_partition(weight, False, key)
            values[state] = part.detach()[: max(0, end - begin)]
        yield Fragment(name, weight, begin, end, values)


def _publish_partitions(optimiser: Any) -> None:
    """ZeRO 3: copy the weights from fp32."""
    for number, master in enumerate(optimiser.fp32_partitioned_groups_flat):
        flat = optimiser.fp16_partitioned_groups_flat[number]
        flat.data.copy_(master.data)
        updated = optimiser.unflatten(flat, optimiser.fp16_partitioned_groups[number])
        for partition, value in zip(optimiser.fp16_partitioned_groups[number], updated, strict=True):
            partition.data = value.data
    if optimiser.persistent_parameters:
        optimiser.persistent_parameters[0].partition(optimiser.persistent_parameters)


class _settings_kept:  # noqa: N801  # a context manager reads as a verb
    """Keep the configured settings of the optimiser while a checkpoint with other settings loads.

    Loading may change the settings in place, or replace the dictionaries and objects that hold them.
    """

    def __init__(self, engine: Any) -> None:
        self._optimiser: Any = engine.optimizer

    def __enter__(self) -> None:
        optimiser = self._optimiser
        self._groups = [
            {key: value for key, value in group.items() if key not in ("params", "step")}
            for group in optimiser.param_groups
        ]
        self._single = {
            name: getattr(optimiser, name)
            for name in ("clip_grad", "dynamic_loss_scale")
            if name in vars(optimiser)
        }
        self._scalers = {name: copy.copy(scaler) for name, scaler in _scalers(optimiser).items()}

    def __exit__(self, *_: object) -> None:
        optimiser = self._optimiser
        for group, configured in zip(optimiser.param_groups, self._groups, strict=True):
            group.update(configured)
        for name, value in self._single.items():
            setattr(optimiser, name, value)
        for name, scaler in self._scalers.items():
            loaded = getattr(optimiser, name)
            if _is_dynamic(scaler) and _is_dynamic(loaded):
                state = vars(loaded)
                vars(scaler).update({key: state[key] for key in _SCALE_STATE if key in state})
            setattr(optimiser, name, scaler)


# The state of a dynamic loss scaler; its other attributes are settings.
_SCALE_STATE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


def _scalers(optimiser: Any) -> dict[str, Any]:
    """Return the loss scalers by attribute name, which differs between DeepSpeed's optimisers."""
    return {
        name: vars(optimiser)[name]
        for name in ("loss_scale_config", "loss_scaler")
        if name in vars(optimiser)
    }


def _is_dynamic(scaler: Any) -> bool:
    return bool(getattr(scaler, "dynamic", False) or getattr(scaler, "dynamic_loss_scale", False))


def _counted(step: Any, weight: torch.Tensor, group: Mapping[str, Any]) -> torch.Tensor:
    """Return a weight's own copy of a step count; torch's fused optimisers keep it on the device."""
    on_device = group.get("fused") or group.get("capturable")
    count = torch.as_tensor(step, dtype=torch.float32)
    return count.to(weight.device if on_device else "cpu", copy=True)


def _set_loss_scale(optimiser: Any, scale: float | None) -> None:
    """Restore fp16's loss scale, unless the configuration fixes it."""
    for scaler in _scalers(optimiser).values():
        if scale is not None and _is_dynamic(scaler):
            scaler.cur_scale = scale

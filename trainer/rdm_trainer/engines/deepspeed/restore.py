# SPDX-License-Identifier: GPL-3.0-or-later
"""Loading of a checkpoint's states into an engine: as they are, or from the universal copy."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from rdm_trainer.checkpoint import reading
from rdm_trainer.checkpoint.files import Manifest
from rdm_trainer.checkpoint.universal import STATES, parameter_folder
from rdm_trainer.distributed.parameters import shard_spec_of
from rdm_trainer.distributed.topology import Topology

__all__ = ["load_same_layout", "load_universal", "needed_files"]

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


def load_universal(engine: Any, folder: Path, topology: Topology, manifest: Manifest) -> None:
    """Read a universal copy.

    DeepSpeed loads ZeRO 1 and 2, and bf16 in a pipeline. Its ZeRO 3 does not split parameters over tensor
    ranks, and without ZeRO it has no loader, so both are done here.

    Args:
        engine: DeepSpeed's engine; its weights and optimiser are replaced.
        folder: The copy, ``global_stepN_universal``.
        topology: This rank's place.
        manifest: The manifest of the checkpoint, with its counters and the configuration that saved it.
    """
    with _settings_kept(engine):
        if engine.zero_optimization_stage() == 3:
            _load_partitioned(engine, folder, topology)
        elif hasattr(engine.optimizer, "load_hp_checkpoint_state_from_checkpoint_dir"):
            if topology.expert > 1:
                _take_tensor_parts(engine, topology)
            with reading.as_data(of_deepspeed=True):
                engine.optimizer.load_state_dict(None, checkpoint_folder=str(folder))
            engine.optimizer.update_lp_params()
            _place_steps(engine.optimizer.optimizer)
        else:
            _load_replicated(engine, folder)
    state = manifest.state
    engine.global_steps = int(state["iteration"])
    engine.global_samples = int(state["consumed_samples"])
    engine.skipped_steps = int(state["skipped"])
    if manifest.layout.get("precision") == "fp16":
        _set_loss_scale(engine.optimizer, state.get("loss_scale"))


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


def _place_steps(optimiser: torch.optim.Optimizer) -> None:
    """Move the loaded step counts to the devices where torch expects them, which DeepSpeed omits."""
    for group in optimiser.param_groups:
        for weight in group["params"]:
            state = optimiser.state.get(weight, {})
            if "step" in state:
                state["step"] = _counted(state["step"], weight, group)


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


def _part(folder: Path, name: str, state: str, weight: torch.nn.Parameter) -> torch.Tensor:
    """Read one state of a parameter, and return this tensor rank's part."""
    shard_spec = shard_spec_of(weight)
    whole: torch.Tensor = reading.load_mapped(parameter_folder(folder, name) / f"{state}.pt")["param"]
    if shard_spec.vocabulary:
        # The padding depends on the number of tensor ranks.
        whole = torch.nn.functional.pad(whole, (0, 0, 0, shard_spec.shape[0] - whole.shape[0]))
    return shard_spec.part(whole)


def _take_tensor_parts(engine: Any, topology: Topology) -> None:
    """Let DeepSpeed's loader split non-expert parameters over the tensor axis only.

    It would split everything over the model-parallel ranks, which include the expert axis.
    """
    for weight in engine.module.parameters():
        if not shard_spec_of(weight).experts:
            weight.load_hp_checkpoint_state = functools.partial(
                _load_tensor_part, weight.load_hp_checkpoint_state, topology
            )


def _load_tensor_part(
    load: Callable[..., Any], topology: Topology, folder: str, _rank: int, _ranks: int, **options: Any
) -> Any:
    return load(folder, topology.tensor_rank, topology.tensor, **options)


def _load_replicated(engine: Any, folder: Path) -> None:
    """No ZeRO, fp32 only: load torch's optimiser and the weights themselves."""
    optimiser = engine.optimizer
    names = {parameter: name for name, parameter in engine.module.named_parameters()}
    for group in optimiser.param_groups:
        for weight in group["params"]:
            name = names[weight]
            values = {state: _part(folder, name, state, weight) for state in STATES}
            with torch.no_grad():
                weight.copy_(values["fp32"])
            step = reading.load_mapped(parameter_folder(folder, name) / "step.pt")
            optimiser.state[weight] = {
                "step": _counted(step, weight, group),
                **{state: values[state].to(weight.device, weight.dtype, copy=True) for state in STATES[1:]},
            }


def _load_partitioned(engine: Any, folder: Path, topology: Topology) -> None:
    """ZeRO 3: load each data rank's slice of each parameter, then copy the weights from fp32."""
    from deepspeed.utils import safe_set_local_fp32_param, safe_set_local_optimizer_state

    optimiser = engine.optimizer
    optimiser.checkpoint_event_prologue()
    for master in optimiser.fp32_partitioned_groups_flat:
        # The states do not exist before the first step.
        for state in STATES[1:]:
            optimiser.optimizer.state[master][state] = torch.zeros_like(master)
    step: Any = None
    for name, parameter in engine.module.named_parameters():
        weight: Any = parameter
        size = weight.ds_tensor.numel()
        for state in STATES:
            # A view if possible, so that only this rank's slice of the mapped file is read.
            flat = _part(folder, name, state, weight).reshape(-1)
            own = flat[size * topology.replica :][:size]
            own = torch.nn.functional.pad(own, (0, size - own.numel())).to(engine.device)
            if state == "fp32":
                safe_set_local_fp32_param(weight, own)
            else:
                safe_set_local_optimizer_state(weight, own, state)
        step = reading.load_mapped(parameter_folder(folder, name) / "step.pt")
    for number, master in enumerate(optimiser.fp32_partitioned_groups_flat):
        optimiser.optimizer.state[master]["step"] = _counted(step, master, optimiser.param_groups[0])
        flat = optimiser.fp16_partitioned_groups_flat[number]
        flat.data.copy_(master.data)
        updated = optimiser.unflatten(flat, optimiser.fp16_partitioned_groups[number])
        for partition, value in zip(optimiser.fp16_partitioned_groups[number], updated, strict=True):
            partition.data = value.data
    if optimiser.persistent_parameters:
        optimiser.persistent_parameters[0].partition(optimiser.persistent_parameters)
    optimiser.checkpoint_event_epilogue()

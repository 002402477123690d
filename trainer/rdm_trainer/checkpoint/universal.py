# SPDX-License-Identifier: GPL-3.0-or-later
"""Conversion of a step to DeepSpeed's universal checkpoint, which does not depend on the layout.

Each parameter becomes a directory with its full fp32 weights and optimiser states, whichever ranks held them
before. Every layout then loads its part. DeepSpeed's ``ds_to_universal`` makes the same files from ZeRO 1 and
2 (a test compares them). From ZeRO 3 it makes other files, which its ZeRO 1 and 2 cannot read; from a run
without ZeRO it makes none. It also writes every fragment of every parameter to disk first. This conversion
maps the checkpoint's files instead, and merges and writes one parameter at a time.

The ranks that see the files share the parameters. Each rank starts ``python -m
rdm_trainer.checkpoint.universal DIRECTORY ITERATION PART PARTS``. It is a separate process, so that its
memory is freed and the ranks can wait without a time limit.
"""

from __future__ import annotations

import contextlib
import heapq
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from rdm_core.config import Config, from_dict
from rdm_core.errors import FAILED, TrainerError
from rdm_trainer import models
from rdm_trainer.checkpoint import damage, distributed, files
from rdm_trainer.checkpoint import deepspeed_keys as keys
from rdm_trainer.checkpoint.files import Manifest
from rdm_trainer.checkpoint.names import present_name
from rdm_trainer.checkpoint.reading import load_mapped
from rdm_trainer.distributed.parameters import ShardSpec, shard_spec_of
from rdm_trainer.distributed.topology import Topology

__all__ = [
    "EXPERT_PATTERNS",
    "STATES",
    "WholeWeights",
    "abandon",
    "begin",
    "convert",
    "convert_part",
    "finish",
    "merging",
    "needed_files",
    "parameter_folder",
    "shares",
]

EXPERT_PATTERNS = "expert_parameter_patterns"
"""A key in addition to DeepSpeed's: patterns of the parameters sharded over the expert axis."""

STATES = ("fp32", "exp_avg", "exp_avg_sq")

# DeepSpeed reads as many parameter groups as the first stage had; other stages may have more.
_GROUPS = 16


# A parameter of a layer's submodule, as in blocks.
_IN_BLOCK = re.compile(r"[0-9]+\.\w+\.")


def merging(config: Config) -> dict[str, Any]:
    """Return the information in DeepSpeed's universal checkpoints for merging tensor-parallel parts.

    Every pattern matches at least one parameter of the whole model, as the conversion requires.

    Args:
        config: The job with the model.
    """
    whole, rows, vocabulary, tied, experts = [], [], [], [], []
    for name, shard_spec, shared in _shard_specs(config):
        pattern = "^" + re.escape(name) + "$"
        if _IN_BLOCK.match(name):
            # One pattern covers all blocks. Names of other layers are too similar: an untied embedding's and
            # the last norm's differ only in the number.
            pattern = re.sub(r"^\^[0-9]+", r"^[0-9]+", pattern)
        if shard_spec.vocabulary:
            vocabulary.append(pattern)
        elif shard_spec.dimension is None:
            whole.append(pattern)
        elif shard_spec.dimension == 1:
            rows.append(pattern)
        if shared:
            tied.append(pattern)
        if shard_spec.experts:
            experts.append(pattern)
    return {
        keys.UNIVERSAL_CHECKPOINT_VERSION_KEY: keys.UNIVERSAL_CHECKPOINT_VERSION_VALUE,
        keys.ORIGINAL_VOCAB_SIZE: config.model.vocab_size + config.model.vocab_extra_ids,
        keys.TP_REPLICATED_PARAMETER_PATTERNS: sorted(set(whole)),
        keys.PARAMETER_WITH_ROW_PARALLELISM_PATTERNS: sorted(set(rows)),
        keys.VOCABULARY_PARAMETER_PATTERNS: sorted(set(vocabulary)),
        keys.PIPELINE_REPLICATED_PARAMETER_PATTERNS: sorted(set(tied)),
        **({EXPERT_PATTERNS: sorted(set(experts))} if experts else {}),
    }


def _shard_specs(config: Config) -> Iterator[tuple[str, ShardSpec, bool]]:
    """Yield the name of every parameter of the whole model, its shard spec, and whether layers share it."""
    seen = set()
    for index, layer in enumerate(models.layers(config, Topology.single())):
        with torch.device("meta"):
            module = layer.make()
        for name, weight in module.named_parameters():
            full = layer.prefix(index) + name
            if full not in seen:
                seen.add(full)
                yield full, shard_spec_of(weight), layer.tied is not None


@dataclass(frozen=True)
class _Piece:
    """One model rank's part of a parameter: the data ranks' flat fragments in order, and its shape."""

    name: str
    shape: torch.Size
    states: Mapping[str, list[torch.Tensor]]
    step: Any

    def whole(self, state: str) -> torch.Tensor:
        """Return one state, joined over data ranks, without padding, in the parameter's shape."""
        return torch.cat(self.states[state])[: self.shape.numel()].view(self.shape)


def needed_files(manifest: Manifest, names: Iterable[str]) -> set[str]:
    """Return the files of a universal copy to read for some parameters.

    Args:
        manifest: The copy's manifest.
        names: The parameters' names.
    """
    own = {f"zero/{name}" for name in names}
    return {
        name
        for name in manifest.files
        if name.rpartition("/")[0] in own or name.rpartition("/")[0] in ("", "zero")
    }


def parameter_folder(universal: Path, name: str) -> Path:
    """Return a parameter's directory in a universal checkpoint."""
    return universal / "zero" / name


class _Source:
    """The files of one step, by pipeline rank and by rank on the tensor and expert axes."""

    def __init__(self, directory: Path, layout: Mapping[str, Any]) -> None:
        self.directory = directory
        self.tensor, self.pipeline = int(layout["tensor"]), int(layout["pipeline"])
        expert = int(layout.get("expert", 1))
        self.model = self.tensor * expert
        self.data, self.stage = int(layout["data"]) // expert, int(layout["zero_stage"])

    def model_state(self, pipe: int, part: int) -> dict[str, Any]:
        """Read what data rank 0 of this place wrote apart from the optimiser."""
        number = pipe * self.model + part
        prefix = "zero_pp_rank_0_" if self.stage == 3 else ""
        state: dict[str, Any] = load_mapped(
            self.directory / f"{prefix}mp_rank_{number:02d}_model_states.pt", of_deepspeed=True
        )
        return state

    def optimiser_states(self, pipe: int, part: int) -> list[dict[str, Any]]:
        """Read the optimiser of each data rank of this place."""
        number = pipe * self.model + part
        states = []
        for replica in range(self.data):
            name = f"zero_pp_rank_{replica}_mp_rank_{number:02d}_optim_states.pt"
            path = self.directory / name
            if not path.exists():
                path = self.directory / f"bf16_{name}"
            states.append(load_mapped(path, of_deepspeed=True)[keys.OPTIMIZER_STATE_DICT])
        return states

    def pieces(self, pipe: int, part: int) -> Iterator[_Piece]:
        """Yield the parameters of one place."""
        if self.stage == 3:
            return self._partitioned_weights(pipe, part)
        if self.stage > 0:
            return self._partitioned_optimiser(pipe, part)
        return self._replicated(pipe, part)

    def _partitioned_optimiser(self, pipe: int, part: int) -> Iterator[_Piece]:
        """ZeRO 1 and 2: one flat tensor per group, split over data ranks regardless of parameters."""
        shapes: dict[str, torch.Size] = {}
        for group in self.model_state(pipe, part)[keys.PARAM_SHAPES]:
            shapes.update(group)
        replicas = self.optimiser_states(pipe, part)
        for number in range(len(replicas[0][keys.SINGLE_PARTITION_OF_FP32_GROUPS])):
            found: dict[str, dict[str, list[torch.Tensor]]] = {}
            step = None
            for replica in replicas:
                base = replica[keys.BASE_OPTIMIZER_STATE]["state"][number]
                flat = {
                    "fp32": replica[keys.SINGLE_PARTITION_OF_FP32_GROUPS][number],
                    "exp_avg": base["exp_avg"],
                    "exp_avg_sq": base["exp_avg_sq"],
                }
                step = base["step"] if step is None else step
                for name, fragment in replica[keys.PARAM_SLICE_MAPPINGS][number].items():
                    states = found.setdefault(name, {state: [] for state in STATES})
                    for state in STATES:
                        states[state].append(flat[state].narrow(0, fragment.start, fragment.numel))
            for name, states in found.items():
                yield _Piece(name, shapes[name], states, step)

    def _partitioned_weights(self, pipe: int, part: int) -> Iterator[_Piece]:
        """ZeRO 3: each parameter split evenly over data ranks, padded at the end."""
        groups = self.model_state(pipe, part)[keys.PARAM_SHAPES]
        replicas = self.optimiser_states(pipe, part)
        for number, shapes in enumerate(groups):
            offset = 0
            for name, shape in shapes.items():
                size = -(-shape.numel() // self.data)
                states: dict[str, list[torch.Tensor]] = {state: [] for state in STATES}
                step = None
                for replica in replicas:
                    base = replica[keys.OPTIMIZER_STATE_DICT]["state"][number]
                    step = base["step"] if step is None else step
                    states["fp32"].append(replica["fp32_flat_groups"][number].narrow(0, offset, size))
                    for state in STATES[1:]:
                        states[state].append(base[state].narrow(0, offset, size))
                offset += size
                yield _Piece(name, shape, states, step)

    def _replicated(self, pipe: int, part: int) -> Iterator[_Piece]:
        """No ZeRO, fp32 only: the optimiser is torch's, and all replicas have the same state."""
        model = self.model_state(pipe, part)
        names: list[list[str]] = model["optimizer_parameters"]
        optimiser = model["optimizer"]
        weights = self._weights(part, model)
        for group, saved in zip(names, optimiser["param_groups"], strict=True):
            for name, key in zip(group, saved["params"], strict=True):
                state, weight = optimiser["state"][key], weights[name]
                states = {
                    "fp32": [weight.detach().flatten()],
                    **{kind: [state[kind].flatten()] for kind in STATES[1:]},
                }
                yield _Piece(name, weight.shape, states, state["step"])

    def _weights(self, part: int, model: dict[str, Any]) -> dict[str, torch.Tensor]:
        if isinstance(model.get("module"), dict):
            return dict(model["module"])
        found: dict[str, torch.Tensor] = {}
        tied: Mapping[str, str] = model["tied_layers"]
        for path in sorted(self.directory.glob("layer_*-model_states.pt")):
            match = re.match(r"layer_(\d+)(?:-model_(\d+))?-model_states", path.name)
            if match and int(match[2] or 0) == part:
                number = str(int(match[1]))
                prefix = f"tied_modules.{tied[number]}." if number in tied else f"{number}."
                weights = load_mapped(path, of_deepspeed=True)
                found.update({prefix + name: value for name, value in weights.items()})
        return found


class WholeWeights:
    """The fp32 weights of a step, whichever layout wrote them; only requested weights are read.

    Args:
        directory: The step's directory.
        layout: The layout in its manifest.
    """

    def __init__(self, directory: Path, layout: Mapping[str, Any]) -> None:
        self._directory, self._metadata = directory, None
        if layout.get("engine") == "native":
            self._metadata = distributed.read_metadata(directory)
            return
        self._source = _Source(directory, layout)
        self._info = self._source.model_state(0, 0)[keys.UNIVERSAL_CHECKPOINT_INFO]
        self._pieces = {present_name(name): (name, pieces) for name, pieces in _by_name(self._source).items()}

    def whole(self, name: str) -> torch.Tensor:
        """Return a whole parameter, without padding of the vocabulary.

        Raises:
            KeyError: There is no parameter with this name.
        """
        if self._metadata is not None:
            return distributed.read_whole(self._directory, self._metadata, f"{STATES[0]}.{name}")
        saved, pieces = self._pieces[name]
        merged: torch.Tensor = _merge([piece.whole("fp32") for piece in pieces], saved, self._info)[
            keys.PARAM
        ]
        return merged


def _by_name(source: _Source) -> dict[str, list[_Piece]]:
    """Return the ranks' pieces of each parameter; for a tied one, those of its first stage."""
    whole: dict[str, list[_Piece]] = {}
    experts = source.model_state(0, 0)[keys.UNIVERSAL_CHECKPOINT_INFO].get(EXPERT_PATTERNS, ())
    for pipe in range(source.pipeline):
        ranks = [{piece.name: piece for piece in source.pieces(pipe, rank)} for rank in range(source.model)]
        for name in ranks[0]:
            # The experts are sharded over the expert axis; all else is replicated there.
            shared = any(re.match(pattern, name) for pattern in experts)
            whole.setdefault(name, [pieces[name] for pieces in (ranks if shared else ranks[: source.tensor])])
    return whole


def _merge(parts: list[torch.Tensor], name: str, info: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the tensor ranks' parts of one state into the form that DeepSpeed's loader splits again."""

    def matches(kind: str) -> bool:
        return any(re.match(pattern, name) for pattern in info.get(kind, ()))

    if matches(keys.TP_REPLICATED_PARAMETER_PATTERNS) and not (
        # Until 0.1.0, the pattern of the last norm also matched an untied vocabulary.
        matches(keys.VOCABULARY_PARAMETER_PATTERNS) and not torch.equal(parts[0], parts[-1])
    ):
        return {keys.PARAM: parts[0].clone()}
    axis = 1 if matches(keys.PARAMETER_WITH_ROW_PARALLELISM_PATTERNS) else 0
    merged: dict[str, Any] = {keys.CAT_DIM: axis}
    whole = torch.cat(parts, dim=axis)
    if matches(keys.VOCABULARY_PARAMETER_PATTERNS):
        # The padding depends on the number of tensor ranks.
        whole = whole[: info[keys.ORIGINAL_VOCAB_SIZE]].clone()
        merged[keys.VOCAB_TENSOR] = True
    return {keys.PARAM: whole, **merged}


def _save(value: Any, path: Path) -> None:
    with path.open("wb") as file:
        torch.save(value, file)


def convert(directory: Path, iteration: int) -> Path:
    """Make the universal copy of a step; it gets its name in one rename at the end.

    Args:
        directory: The checkpoints directory, with all files of the step.
        iteration: The step.

    Returns:
        The copy's directory, ``global_stepN_universal``.

    Raises:
        TrainerError: The step is incomplete or damaged, or the disk is full.
    """
    begin(directory, iteration)
    try:
        convert_part(directory, iteration, 0, 1)
        return finish(directory, iteration)
    except TrainerError:
        abandon(directory, iteration)
        raise


def begin(directory: Path, iteration: int) -> None:
    """Prepare a copy, so that several processes can each make a part of it.

    Raises:
        TrainerError: The step is incomplete, or the directory cannot be written.
    """
    manifest = Manifest.read(directory / files.tag(iteration))
    if manifest is None or files.missing(manifest, [files.scan(directory).steps.get(iteration)]):
        raise TrainerError(
            f"{directory / files.tag(iteration)} is not a complete checkpoint; see "
            "`rdm-trainer checkpoint list`."
        )
    abandon(directory, iteration)
    with _conversion_errors(directory, iteration):
        (_partial(directory, iteration) / "zero").mkdir(parents=True)


def convert_part(directory: Path, iteration: int, part: int, parts: int) -> None:
    """Convert one part of the parameters, after :func:`begin`.

    Args:
        directory: The checkpoints directory.
        iteration: The step.
        part: The part's number, from 0.
        parts: The number of parts.

    Raises:
        TrainerError: The step is damaged, or the disk is full.
    """
    step_directory = directory / files.tag(iteration)
    manifest = Manifest.read(step_directory)
    assert manifest is not None
    # All processes map all files, but only one process checks each file's checksums.
    damage.refuse(step_directory, shares(manifest.files, parts)[part])
    with _conversion_errors(directory, iteration), damage.naming(step_directory, manifest.files):
        _convert(manifest, step_directory, _partial(directory, iteration), part, parts)


def finish(directory: Path, iteration: int) -> Path:
    """Give a copy with all its parts its final name, and return its directory."""
    manifest = Manifest.read(directory / files.tag(iteration))
    assert manifest is not None
    name = files.universal_tag(iteration)
    with _conversion_errors(directory, iteration):
        contents = files.measure(_partial(directory, iteration))
        files.commit(
            directory,
            name,
            Manifest(iteration, contents, manifest.model, {"universal": True}, manifest.state),
        )
    return directory / name


def abandon(directory: Path, iteration: int) -> None:
    """Remove an unfinished copy."""
    shutil.rmtree(_partial(directory, iteration), ignore_errors=True)


def _partial(directory: Path, iteration: int) -> Path:
    return directory / f"{files.universal_tag(iteration)}{files.PARTIAL}"


@contextlib.contextmanager
def _conversion_errors(directory: Path, iteration: int) -> Iterator[None]:
    """Turn a failure into an error of one sentence."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        raise TrainerError(
            f"{directory / files.tag(iteration)} could not be converted for another layout: {reason}.",
            exit_code=FAILED,
        ) from error


def shares(sizes: Mapping[str, int], parts: int) -> list[set[str]]:
    """Distribute names so that all parts are about the same size, placing the largest first.

    Args:
        sizes: Size of each name's data.
        parts: The number of parts.
    """
    found: list[set[str]] = [set() for _ in range(parts)]
    loads = [(0, part) for part in range(parts)]
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        load, part = heapq.heappop(loads)
        found[part].add(name)
        heapq.heappush(loads, (load + sizes[name], part))
    return found


def _convert(manifest: Manifest, step_directory: Path, target: Path, part: int, parts: int) -> None:
    kind = _NativeStep if manifest.layout.get("engine") == "native" else _DeepSpeedStep
    source = kind(step_directory, manifest)
    own = shares(source.sizes, parts)[part]
    for name in source.sizes:
        if name not in own:
            continue
        folder = parameter_folder(target, present_name(name))
        folder.mkdir(parents=True)
        for state in STATES:
            _save(source.merged(name, state), folder / f"{state}.pt")
        _save(_plain_step(source.step(name)), folder / "step.pt")
    if part == 0:
        _save(source.common(), target / "zero" / "optimizer_state.pt")
        _save({**source.rest(), "module": None, "optimizer": None}, target / "mp_rank_00_model_states.pt")


class _DeepSpeedStep:
    """A step as DeepSpeed wrote it, one whole parameter at a time."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self._source = _Source(directory, manifest.layout)
        self._first = self._source.model_state(0, 0)
        self._info = self._first[keys.UNIVERSAL_CHECKPOINT_INFO]
        # The files are mapped, so other processes' parts are not read.
        self._pieces = _by_name(self._source)
        self.sizes = {name: pieces[0].shape.numel() for name, pieces in self._pieces.items()}

    def merged(self, name: str, state: str) -> dict[str, Any]:
        """Return a parameter's merged state in the form that DeepSpeed's loader splits again."""
        return _merge([piece.whole(state) for piece in self._pieces[name]], name, self._info)

    def step(self, name: str) -> Any:
        """Return the number of updates of a parameter."""
        return self._pieces[name][0].step

    def common(self) -> dict[str, Any]:
        """Return what DeepSpeed stores once for the whole optimiser."""
        return _common(self._source, self._first)

    def rest(self) -> dict[str, Any]:
        """Return what else DeepSpeed stores."""
        dropped = {"module", "optimizer", keys.PARAM_SHAPES, "frozen_param_shapes", "frozen_param_fragments"}
        return {key: value for key, value in self._first.items() if key not in dropped}


class _NativeStep:
    """A step as the native engine wrote it, one whole parameter at a time."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self._directory = directory
        self._metadata = distributed.read_metadata(directory)
        self._info = merging(from_dict(manifest.state["config"]))
        first = f"{STATES[0]}."
        self.sizes = {
            key.removeprefix(first): saved.size.numel()
            for key, saved in self._metadata.state_dict_metadata.items()
            if key.startswith(first) and isinstance(saved, TensorStorageMetadata)
        }
        self._step = distributed.read_whole(directory, self._metadata, "step")[0]

    def merged(self, name: str, state: str) -> dict[str, Any]:
        """Return a parameter's merged state in the form that DeepSpeed's loader splits again."""
        whole = distributed.read_whole(self._directory, self._metadata, f"{state}.{name}")
        return _merge([whole], name, self._info)

    def step(self, name: str) -> torch.Tensor:  # noqa: ARG002
        """Return the number of updates of a parameter."""
        return self._step

    def common(self) -> dict[str, Any]:
        """Return what DeepSpeed expects once for the whole optimiser; the configuration has the settings."""
        return {keys.DS_VERSION: version("deepspeed"), keys.PARAM_GROUPS: [{"params": []}] * _GROUPS}

    def rest(self) -> dict[str, Any]:
        """Return what else DeepSpeed expects."""
        return {keys.UNIVERSAL_CHECKPOINT_INFO: self._info}


def _plain_step(step: Any) -> Any:
    return step.clone() if isinstance(step, torch.Tensor) else step


def _common(source: _Source, first: Mapping[str, Any]) -> dict[str, Any]:
    """Return what DeepSpeed stores once for the whole optimiser: the loss scale and the groups' settings."""
    if source.stage > 0:
        saved = source.optimiser_states(0, 0)[0]
        base = saved[keys.OPTIMIZER_STATE_DICT if source.stage == 3 else keys.BASE_OPTIMIZER_STATE]
        sharded = {
            keys.BASE_OPTIMIZER_STATE,
            keys.PARAM_SLICE_MAPPINGS,
            keys.SINGLE_PARTITION_OF_FP32_GROUPS,
            keys.OPTIMIZER_STATE_DICT,
            "fp32_flat_groups",
        }
        common = {key: value for key, value in saved.items() if key not in sharded}
    else:
        saved = first["optimizer"]
        base = saved
        common = {}
    group = {key: value for key, value in base["param_groups"][0].items() if key != "params"}
    return {
        **common,
        keys.DS_VERSION: first[keys.DS_VERSION],
        keys.PARAM_GROUPS: [{**group, "params": []} for _ in range(_GROUPS)],
    }


def main(arguments: list[str]) -> int:
    """Convert a part; print a failure as one sentence on stderr."""
    directory, *numbers = arguments
    try:
        convert_part(Path(directory), *map(int, numbers))
    except TrainerError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

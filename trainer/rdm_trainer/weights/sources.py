# SPDX-License-Identifier: GPL-3.0-or-later
"""Where weights come from: a checkpoint of ours under any layout, Hugging Face's files, or Megatron's.

A source gives whole parameters by our names, one at a time, from files that are mapped: however many ranks
read, no process ever holds more than its own part and one parameter.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from rdm_core.config import Config, ModelConfig, TokenizerConfig, from_dict
from rdm_core.errors import FAILED, TrainerError
from rdm_trainer import models
from rdm_trainer.checkpoint import damage, files, partitions
from rdm_trainer.checkpoint.distributed import METADATA, Saved, read_metadata
from rdm_trainer.checkpoint.files import Manifest
from rdm_trainer.checkpoint.fragments import STATES
from rdm_trainer.checkpoint.identity import differences, model_of
from rdm_trainer.distributed.parameters import shard_spec_of
from rdm_trainer.weights import families
from rdm_trainer.weights.mapped import with_rows
from rdm_trainer.weights.megatron import reading, torch_dist

CONFIG, INDEX = "config.json", "model.safetensors.index.json"
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja", "generation_config.json"),
)


_DTYPES = {torch.float32, torch.bfloat16, torch.float16, torch.float64}


class Source(Protocol):
    """A model's weights, by our names of the whole model."""

    where: Path
    model: ModelConfig
    tokenizer: TokenizerConfig | None
    dtype: str
    """Type of the stored weights, such as ``bfloat16``."""

    def whole(self, name: str) -> torch.Tensor:
        """Return a whole parameter; a vocabulary's without padding.

        Raises:
            KeyError: There is none with this name.
        """


def open_source(where: Path, iteration: int | None = None, *, verify: bool = False) -> Source:
    """Open weights.

    Args:
        where: A job's directory, its checkpoints directory, a Hugging Face directory, or one of Megatron's.
        iteration: The checkpoint's iteration; that of the newest complete one by default.
        verify: Compare a checkpoint of ours with its checksums first, which reads all of it.

    Raises:
        TrainerError: There are none, their model is not known here, or a file is damaged.
    """
    return open_published(where, iteration) or CheckpointSource(where, iteration, verify=verify)


def open_published(
    where: Path, iteration: int | None = None
) -> HuggingFaceSource | reading.MegatronSource | torch_dist.TorchDistSource | None:
    """Open weights that are no checkpoint of ours; arguments and errors as for :func:`open_source`.

    Returns:
        None: There is neither a ``config.json`` nor a checkpoint of Megatron's.
    """
    source: HuggingFaceSource | reading.MegatronSource | torch_dist.TorchDistSource
    if (where / CONFIG).is_file():
        if iteration is not None:
            raise TrainerError(
                f"{where} is a model in Hugging Face's format, which has no iteration {iteration}; leave it "
                "out."
            )
        source = HuggingFaceSource(where)
    elif reading.is_checkpoint(where):
        step = reading.step_directory(where, iteration)
        is_new = torch_dist.is_checkpoint(step)
        source = torch_dist.TorchDistSource(step) if is_new else reading.MegatronSource(step)
    else:
        return None
    for name, shard_spec in models.shard_specs(source.model).items():
        found, wanted = source.shape(name), shard_spec.shape
        if found != wanted:
            raise TrainerError(
                f"{source.where} has {name} of shape {found}, and by its configuration it is {wanted}; the "
                "two are not of one model."
            )
    if isinstance(source, HuggingFaceSource):
        source.require_tied()
    return source


class HuggingFaceSource:
    """A directory with ``config.json`` and safetensors files.

    Attributes:
        ignored: The quantisation in ``config.json`` that no tensor has; usually empty.

    Raises:
        TrainerError: The family is not known, the files are not complete, or a tensor is quantised.
    """

    def __init__(self, where: Path) -> None:
        self.where = where
        found = _json(where / CONFIG)
        self.model = families.model_config(found, str(where / CONFIG))
        tokenizer = where / "tokenizer.json"
        self.tokenizer = TokenizerConfig("huggingface", file=str(tokenizer)) if tokenizer.is_file() else None
        self._mapped = {one.ours: one for one in families.mapping(self.model)}
        self._open: dict[Path, Any] = {}
        self.ignored = families.quantization(found)
        try:
            self._find(found)
            for name in self._mapped if self.ignored else ():
                self.shape(name)
        except TrainerError as error:
            if not self.ignored or error.exit_code == FAILED:
                raise
            # Quantised tensors have other types or shapes, and scales beside them.
            raise TrainerError(
                f"{where / CONFIG} has {self.ignored}, and quantised weights are not read; take the model "
                "that they were made from."
            ) from None
        # The configuration may name another type than the files have.
        self.dtype = str(self._empty(self._name(self._embedding)).dtype).removeprefix("torch.")

    @property
    def _embedding(self) -> str:
        """The embedding's name there."""
        (name,) = next(iter(self._mapped.values())).theirs
        return name

    def _find(self, found: dict[str, Any]) -> None:
        """Find the file of each tensor, and require that all are there, and no others."""
        where = self.where
        self._files = {name: where / file for name, file in self._listed().items()}
        needed = [name for one in self._mapped.values() for name in one.theirs]
        if missing := [name for name in needed if self._name(name) not in self._files]:
            raise TrainerError(f"{where} lacks {_names(missing)} of a {found['model_type']}.")
        others = sorted(self._files.keys() - {self._name(name) for name in needed})
        self._copies = [name for name in others if families.is_copy(name, self.model)]
        if unknown := [name for name in others if name not in self._copies and not families.is_unused(name)]:
            raise TrainerError(
                f"{where} has {_names(unknown)}, which a {found['model_type']} with its {CONFIG} does not "
                "have; the two are not of one model."
            )

    def _listed(self) -> dict[str, str]:
        """Return the file of each tensor."""
        index = self.where / INDEX
        if index.is_file():
            files_of = _json(index).get("weight_map")
            if not isinstance(files_of, dict) or not all(isinstance(file, str) for file in files_of.values()):
                raise TrainerError(f"{index} has no weight_map that names the file of each tensor.")
            files.require_below(files_of.values(), index)
            return files_of
        single = self.where / "model.safetensors"
        if not single.is_file():
            raise TrainerError(
                f"{self.where} has neither model.safetensors nor {INDEX}; only safetensors files are read."
            )
        with _reading(single), safe_open(str(single), framework="pt") as opened:
            return dict.fromkeys(opened.keys(), single.name)

    def _name(self, name: str) -> str:
        """Return a tensor's name in the files: those of a saved base model have no prefix."""
        return name if name in self._files else name.partition(".")[2]

    def whole(self, name: str) -> torch.Tensor:
        """Return a whole parameter."""
        return self._joined(name, self._tensor)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a whole parameter without reading it."""
        return tuple(self._joined(name, self._empty).shape)

    def require_tied(self) -> None:
        """Reject a head or an embedding of its own where ``config.json`` ties it. This reads them.

        Raises:
            TrainerError: Two of them differ.
        """
        embedding = self._embedding
        for name in self._copies:
            if torch.equal(self._tensor(name), self._tensor(self._name(embedding))):
                continue
            if name != "lm_head.weight":
                raise TrainerError(
                    f"{self.where} has {name} and {embedding}, which differ; a T5 here has one embedding for "
                    "its encoder and its decoder."
                )
            raise TrainerError(
                f"{self.where / CONFIG} ties {name} to {embedding}, but the two differ in the files; if the "
                "model has a head of its own, set tie_word_embeddings to false there."
            )

    def _joined(self, name: str, read: Callable[[str], torch.Tensor]) -> torch.Tensor:
        one = self._mapped[name]
        parts = {theirs: read(self._name(theirs)) for theirs in one.theirs}
        for theirs, part in parts.items():
            if part.dtype not in _DTYPES:
                raise TrainerError(
                    f"{self.where} has {theirs} in {str(part.dtype).removeprefix('torch.')}; weights of "
                    "float32, bfloat16, float16 and float64 are read."
                )
        try:
            return one.join(list(parts.values()))
        except (IndexError, RuntimeError):
            shapes = {tuple(part.shape): theirs for theirs, part in parts.items()}
            listed = ", ".join(f"{theirs} of shape {shape}" for shape, theirs in shapes.items())
            raise TrainerError(
                f"{self.where} has {listed}, which do not fit together or its {CONFIG}."
            ) from None

    def _empty(self, name: str) -> torch.Tensor:
        """Return a tensor's shape and type, without reading it."""
        path = self._files[name]
        with _reading(path):
            found = self._opened(path).get_slice(name)
            shape = found.get_shape()
            # A tensor without dimensions has no slices.
            dtype = (found[:0] if shape else self._opened(path).get_tensor(name)).dtype
            return torch.empty(shape, dtype=dtype, device="meta")

    def _tensor(self, name: str) -> torch.Tensor:
        path = self._files[name]
        with _reading(path):
            tensor: torch.Tensor = self._opened(path).get_tensor(name)
            return tensor

    def _opened(self, path: Path) -> Any:
        if path not in self._open:
            self._open[path] = safe_open(str(path), framework="pt")
        return self._open[path]


class CheckpointSource:
    """A complete checkpoint of ours; all its files must be here.

    Attributes:
        sizes: Bytes of each file.

    Raises:
        TrainerError: There is none, it does not say what its model is, or a file is damaged.
    """

    def __init__(self, where: Path, iteration: int | None = None, *, verify: bool = False) -> None:
        directory = files.checkpoints_of(where)
        steps = files.complete_steps([files.scan(directory)])
        if not steps:
            raise TrainerError(
                f"{where} has neither a complete checkpoint nor a config.json; give a job's directory (see "
                "`rdm-trainer checkpoint list`), or a model's in Hugging Face's format."
            )
        chosen = max(steps) if iteration is None else iteration
        if chosen not in steps:
            raise TrainerError(
                f"{where} has no complete checkpoint of iteration {chosen}, but of "
                f"{', '.join(map(str, sorted(steps)))}; take one of them."
            )
        self.where = directory / files.tag(chosen)
        self.iteration = chosen
        saved = steps[chosen].state.get("config")
        if saved is None:
            raise TrainerError(
                f"{self.where} was written by a release that did not say in it what the model is; go on with "
                "its training for a step, which writes a new one."
            )
        config = from_dict(saved)
        self._config, self._manifest = config, steps[chosen]
        self.model, self.tokenizer = config.model, config.data.tokenizer
        precision = str(steps[chosen].layout["precision"])
        self.dtype = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[precision]
        self.sizes = steps[chosen].files
        if verify:
            damage.refuse(self.where, self.sizes)

    @functools.cached_property
    def saved(self) -> Saved:
        """The tensors in the files. The files' descriptions are read at the first use."""
        return _saved(self.where, self._manifest, self._config)

    def whole(self, name: str) -> torch.Tensor:
        """Return a whole parameter, float32."""
        with damage.naming(self.where, self.sizes):
            return self.saved.whole(f"{STATES[0]}.{name}")


def _saved(directory: Path, manifest: Manifest, config: Config) -> Saved:
    """Return the tensors of a checkpoint of any layout and engine; all its files must be here."""
    if METADATA in manifest.files:
        return Saved(directory, read_metadata(directory))
    described = partitions.described_files(manifest)
    pieces = [piece for name in described for piece in partitions.describe(directory, name, manifest)]
    shard_specs = models.shard_specs(config.model)
    tensors = partitions.Partitions(pieces, manifest.layout, shard_specs, config.spec.vocabulary)
    return Saved(directory, tensors)


def require_model(source: Source, config: Config) -> None:
    """Reject weights of another model than the job's. A head without a bias has one of zeros.

    Raises:
        TrainerError: The shapes differ.
    """
    model = source.model
    if config.model.lm_head_bias:
        model = dataclasses.replace(model, lm_head_bias=True)
    saved = model_of(from_dict({"model": _plain(model)}).spec)
    found = differences(saved, config)
    if found:
        raise TrainerError(
            f"The weights of {source.where} are of another model: {', '.join(found)}; configure that model."
        )


def fill(source: Source) -> Callable[[nn.Module, str], None]:
    """Return a function that fills a layer with its weights.

    It takes the layer, on the CPU, and the prefix of its parameters' names in the whole model.
    """

    def filled(module: nn.Module, prefix: str) -> None:
        for name, weight in module.named_parameters():
            if name == "head_bias" and not source.model.lm_head_bias:
                weight.data.zero_()
                continue
            shard_spec = shard_spec_of(weight)
            whole = source.whole(prefix + name)
            # The padding depends on this layout.
            if (
                shard_spec.vocabulary
                and whole.shape[0] == source.model.vocab_size + source.model.vocab_extra_ids
            ):
                whole = with_rows(whole, shard_spec.shape[0])
            if tuple(whole.shape) != shard_spec.shape:
                raise TrainerError(
                    f"{prefix}{name} of {source.where} is {tuple(whole.shape)}, and here {shard_spec.shape}.",
                    exit_code=FAILED,
                )
            weight.data.copy_(shard_spec.part(whole))
            # Both are NaN if one value is. In one pass, and twenty times as fast as isfinite().all().
            if not torch.stack(torch.aminmax(weight.data)).isfinite().all():
                raise TrainerError(
                    f"{prefix}{name} of {source.where} has a value that is NaN or infinite, or beyond "
                    f"{str(weight.dtype).removeprefix('torch.')}; take another checkpoint.",
                    exit_code=FAILED,
                )

    return filled


def _plain(model: ModelConfig) -> dict[str, Any]:
    plain: dict[str, Any] = Config(model=model).to_dict()["model"]
    return plain


def _names(tensors: Sequence[str]) -> str:
    others = len(tensors) - 1
    more = "" if not others else " and 1 other tensor" if others == 1 else f" and {others} other tensors"
    return f"{tensors[0]}{more}"


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TrainerError(f"{path} cannot be read: {error}.") from None
    if not isinstance(found, dict):
        raise TrainerError(f"{path} cannot be read: it must hold a JSON object.")
    return found


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise TrainerError(f"{path} cannot be read: {error}.", exit_code=FAILED) from None

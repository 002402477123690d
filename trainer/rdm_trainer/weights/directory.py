# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes a Hugging Face directory a shard at a time; it appears under its name when it is complete."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from rdm_core.atomic_file import PARTIAL
from rdm_core.config import TokenizerConfig
from rdm_core.errors import FAILED, TrainerError
from rdm_trainer import models
from rdm_trainer.tokenizers.special_tokens import special_tokens
from rdm_trainer.weights import families
from rdm_trainer.weights.sources import CONFIG, INDEX, TOKENIZER_FILES, Source

SHARD_BYTES = 5 * 10**9
"""Size of a file, and about the most that is in memory at once."""


def write(source: Source, target: Path, *, dtype: str | None = None, shard_bytes: int = SHARD_BYTES) -> int:
    """Write weights, and the other files that transformers needs.

    Args:
        source: The weights.
        target: A directory that does not exist yet.
        dtype: Type of the tensors, such as ``bfloat16``; the source's by default.
        shard_bytes: The largest size of a file, unless one tensor is larger.

    Returns:
        The bytes of all tensors.

    Raises:
        TrainerError: There is no family for the model, or the directory cannot be written.
    """
    dtype = dtype or source.dtype
    special = None
    if source.tokenizer is not None:
        special = special_tokens(source.tokenizer, source.model.vocab_size)
    end = special.end_of_document if special else None
    config = families.config_json(source.model, dtype=dtype, end_of_text=end)
    if special and source.model.kind == "t5":
        config |= {
            "decoder_start_token_id": special.begin,
            "eos_token_id": special.end,
            "pad_token_id": special.padding,
        }
    _refuse_head_bias(source)
    if target.exists():
        raise TrainerError(f"{target} is there already; name a directory that is not, or remove it.")
    partial = target.with_name(target.name + PARTIAL)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        size = _write_tensors(source, partial, getattr(torch, dtype), shard_bytes)
        (partial / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        if source.tokenizer is not None:
            _carry_tokenizer(source.tokenizer, partial, end)
        partial.rename(target)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise TrainerError(f"{target} cannot be written: {error.strerror}.", exit_code=FAILED) from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return size


def _refuse_head_bias(source: Source) -> None:
    """Reject a learned bias of the head, which no family has; one of zeros may be left out."""
    for name in models.shard_specs(source.model):
        if name.endswith(".head_bias") and source.whole(name).any():
            raise TrainerError(
                f"{source.where} has learned {name} (model.lm_head_bias true), which Hugging Face's T5 has "
                "not; export it with --format megatron."
            )


def _tensors(source: Source, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    for one in families.mapping(source.model):
        whole = source.whole(one.ours).to(dtype)
        for name, tensor in zip(one.theirs, one.split(whole), strict=True):
            yield name, tensor.contiguous()
    for name, shape in families.zeros(source.model).items():
        yield name, torch.zeros(shape, dtype=dtype)


def _write_tensors(source: Source, directory: Path, dtype: torch.dtype, shard_bytes: int) -> int:
    shards: list[list[str]] = []
    shard: dict[str, torch.Tensor] = {}
    held = total = 0

    def flush() -> None:
        path = directory / f"{len(shards)}"
        path.touch()
        mode = path.stat().st_mode
        save_file(shard, str(path), metadata={"format": "pt"})
        # The library makes the file readable by its owner only.
        path.chmod(mode)
        shards.append(list(shard))
        shard.clear()

    for name, tensor in _tensors(source, dtype):
        if shard and held + tensor.nbytes > shard_bytes:
            flush()
            held = 0
        shard[name] = tensor
        held += tensor.nbytes
        total += tensor.nbytes
    flush()
    if len(shards) == 1:
        (directory / "0").rename(directory / "model.safetensors")
        return total
    files = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        (directory / str(number)).rename(directory / file)
        files.update(dict.fromkeys(names, file))
    index = {"metadata": {"total_size": total}, "weight_map": files}
    (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return total


def _carry_tokenizer(tokenizer: TokenizerConfig, target: Path, end: int | None) -> None:
    """Copy a tokenizer's files under the names that transformers expects, and the files next to them.

    If none of them says which token ends a text, add that: scoring a text without a beginning needs it.
    """
    for given, name in (
        (tokenizer.file, "tokenizer.json"),
        (tokenizer.vocab, "vocab.json" if tokenizer.kind == "gpt2" else "vocab.txt"),
        (tokenizer.merges, "merges.txt"),
    ):
        if given is not None:
            shutil.copyfile(given, target / name)
            for other in TOKENIZER_FILES:
                neighbour = Path(given).with_name(other)
                if neighbour.is_file() and not (target / other).exists():
                    shutil.copyfile(neighbour, target / other)
    settings = target / "tokenizer_config.json"
    if not settings.exists():
        kinds = {"gpt2": "GPT2Tokenizer", "wordpiece": "BertTokenizer"}
        kind = kinds.get(tokenizer.kind, "PreTrainedTokenizerFast")
        content: dict[str, str | None] = {"tokenizer_class": kind}
        if tokenizer.file is not None and end is not None:
            content["eos_token"] = Tokenizer.from_file(tokenizer.file).id_to_token(end)
        settings.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

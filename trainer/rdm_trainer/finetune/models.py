# SPDX-License-Identifier: GPL-3.0-or-later
"""Loads the model and the tokenizer of a fine-tuning, and merges an adapter at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from rdm_core.config.finetune import FinetuneConfig
from rdm_core.errors import TrainerError


def load_tokenizer(config: FinetuneConfig, *, is_chat: bool, has_turns: bool) -> Any:
    """Return the model's tokenizer.

    Args:
        config: The fine-tuning.
        is_chat: Its chat template turns messages into text.
        has_turns: The template must mark the answers.

    Raises:
        TrainerError: There is none, or it has no template that suits the rows.
    """
    path = _source(config)
    try:
        # Both are small: load them first, so that errors show before the weights are fetched.
        AutoConfig.from_pretrained(path, revision=config.model.revision)
        tokenizer = AutoTokenizer.from_pretrained(path, revision=config.model.revision)
    except (OSError, ValueError, ImportError) as error:
        raise TrainerError(f"model.path {config.model.path} cannot be loaded: {_first(error)}") from None
    if tokenizer.eos_token is None:
        raise TrainerError(
            f"The tokenizer of {config.model.path} has no eos_token, which ends an answer; set it in its "
            "tokenizer_config.json."
        )
    if is_chat and not tokenizer.chat_template:
        raise TrainerError(
            f"The tokenizer of {config.model.path} has no chat template, which messages need; add "
            "chat_template.jinja to its directory, or give columns of prompts and completions."
        )
    if has_turns and not _marks_answers(tokenizer):
        raise TrainerError(
            f"The chat template of {config.model.path} does not mark answers with {{% generation %}}, which "
            "rows with several answers need; mark them in chat_template.jinja, or give rows with one answer, "
            "at the end."
        )
    return tokenizer


def _marks_answers(tokenizer: Any) -> bool:
    """Return whether trl finds the answers of a conversation; it knows well-known models' templates."""
    from trl.chat_template_utils import get_training_chat_template, has_generation_markers

    if has_generation_markers(tokenizer.chat_template):
        return True
    try:
        return get_training_chat_template(tokenizer) is not None
    except ValueError:
        return False


def count_parameters(config: FinetuneConfig) -> int:
    """Return how many weights the model has, without loading them."""
    return sum(weights.numel() for weights in _without_weights(config).parameters())


def check_targets(config: FinetuneConfig) -> None:
    """Reject a name in ``lora.targets`` that no layer has: peft ignores it if another name matches.

    Raises:
        TrainerError: The model has no layer of that name.
    """
    if not config.lora.rank or config.lora.targets == ("all-linear",):
        return
    layers = dict(_without_weights(config).named_modules())
    for target in config.lora.targets:
        # peft compares them the same way.
        if not any(f".{name}".endswith(f".{target}") for name in layers):
            weights = {name: getattr(layer, "weight", None) for name, layer in layers.items()}
            known = {
                name.rpartition(".")[2] for name, one in weights.items() if one is not None and one.ndim == 2
            }
            raise TrainerError(
                f"lora.targets names {target}, and no layer of {config.model.path} is called so; it has "
                f"{', '.join(sorted(known))}."
            )


def _without_weights(config: FinetuneConfig) -> Any:
    with torch.device("meta"):
        shape = AutoConfig.from_pretrained(_source(config), revision=config.model.revision)
        return AutoModelForCausalLM.from_config(shape)


def load_model(config: FinetuneConfig) -> Any:
    """Return the model with its weights.

    Raises:
        TrainerError: It cannot be loaded.
    """
    # DeepSpeed keeps fp32 copies of bf16 weights, and an adapter is fp32 anyway.
    keeps_copies = config.zero.stage > 0 or config.lora.rank > 0
    is_bf16 = config.optimisation.precision == "bf16" and keeps_copies
    attention = config.model.attention
    more = {} if attention == "auto" else {"attn_implementation": attention}
    try:
        model = AutoModelForCausalLM.from_pretrained(
            _source(config),
            revision=config.model.revision,
            dtype=torch.bfloat16 if is_bf16 else torch.float32,
            **more,
        )
    except (OSError, ValueError, ImportError) as error:
        raise TrainerError(f"model.path {config.model.path} cannot be loaded: {_first(error)}") from None
    model.config.use_cache = False
    return model


def adapter_of(config: FinetuneConfig) -> Any:
    """Return peft's configuration of the adapter; None when all weights are trained."""
    lora = config.lora
    if not lora.rank:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha if lora.alpha is not None else 2 * lora.rank,
        lora_dropout=lora.dropout,
        target_modules="all-linear" if lora.targets == ("all-linear",) else list(lora.targets),
        task_type="CAUSAL_LM",
    )


def merge(config: FinetuneConfig, adapter: Path, to: Path) -> None:
    """Merge an adapter on the disk into the model, and write the result.

    Args:
        config: The fine-tuning; its model is loaded again.
        adapter: The adapter's directory.
        to: The merged model's directory; it is created.
    """
    from peft import PeftModel

    dtype = torch.bfloat16 if config.optimisation.precision == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(_source(config), revision=config.model.revision, dtype=dtype)
    PeftModel.from_pretrained(model, adapter).merge_and_unload().save_pretrained(to)


def _source(config: FinetuneConfig) -> str:
    """Return a directory, or a name on the hub."""
    path = Path(config.model.path)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise TrainerError(
                f"model.path {config.model.path} has no config.json, so it is no model's directory."
            )
        return str(path)
    if path.is_absolute() or config.model.path.startswith((".", "~")) or len(path.parts) > 2:
        raise TrainerError(f"model.path {config.model.path} is no directory.")
    return config.model.path


def _first(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0]

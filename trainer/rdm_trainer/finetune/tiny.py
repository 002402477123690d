# SPDX-License-Identifier: GPL-3.0-or-later
"""A model of a few thousand weights, its tokenizer and some rows, to try fine-tuning on any machine.

``python -m rdm_trainer.finetune.tiny DIRECTORY`` writes ``model``, ``train.jsonl``, ``valid.jsonl`` and
``pairs.jsonl`` (for DPO) into a directory. The model has Qwen3's architecture and random weights.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SHAPE: Mapping[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_TEMPLATE = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.role == 'assistant' %}{% generation %}{{ message.content + '<|im_end|>' }}"
    "{% endgeneration %}{{ '\\n' }}"
    "{%- else %}{{ message.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)


def rows(count: int) -> Iterator[dict[str, str]]:
    """Yield questions, each with a right and a wrong answer; the right ones differ in length."""
    names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    for number in range(count):
        first, second = number % 10, number // 10 % 10
        total = first + second
        counted = " ".join(names[: 1 + first])
        yield {
            "prompt": f"What is {names[first]} and {names[second]}?",
            "completion": f" We count {counted}: it is {total}.",
            "rejected": f" It is {total + 1}.",
        }


def write(directory: Path, *, shape: Mapping[str, Any] = SHAPE, seed: int = 1234) -> None:
    """Write a model with random weights and files for it.

    Args:
        directory: Where they go; it is created.
        shape: Keys of a Qwen3 configuration.
        seed: Seed of the weights.
    """
    directory.mkdir(parents=True, exist_ok=True)
    some = list(rows(100))
    tokenizer = _tokenizer([text for row in some for text in row.values()])
    tokenizer.save_pretrained(directory / "model")
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        **shape,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory / "model")
    examples = [{"prompt": row["prompt"], "completion": row["completion"]} for row in some]
    pairs = [
        {"prompt": row["prompt"], "chosen": row["completion"], "rejected": row["rejected"]} for row in some
    ]
    for name, lines in (("train", examples[:80]), ("valid", examples[80:]), ("pairs", pairs)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (directory / f"{name}.jsonl").write_text(text, encoding="utf-8")


def _tokenizer(texts: Sequence[str]) -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=_SPECIAL[2], pad_token=_SPECIAL[0], model_max_length=512
    )
    made.chat_template = _TEMPLATE
    return made


if __name__ == "__main__":
    write(Path(sys.argv[1]))

# SPDX-License-Identifier: GPL-3.0-or-later
"""The ids of special tokens, read from a tokenizer's files without the tokenizer itself."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdm_core.errors import TrainerError

if TYPE_CHECKING:
    from rdm_core.config import Config, TokenizerConfig

END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of special tokens.

    Attributes:
        size: Size of the vocabulary, special tokens included, unpadded.
        end_of_document: Follows each document that was prepared with ``--append-eod``.
        begin: First token of a T5's decoder.
        end: Last label of a T5's decoder.
        padding: Fills sequences up.
        first: First token of a BERT's sample.
        mask: Hides a BERT's tokens; None if the tokenizer has none.
        sentinels: The tokenizer's own tokens for a T5's masked spans, in order.
    """

    size: int
    end_of_document: int
    begin: int
    end: int
    padding: int
    first: int
    mask: int | None
    sentinels: tuple[int, ...] = ()


def special_tokens(tokenizer: TokenizerConfig | None, vocab_size: int) -> SpecialTokens:
    """Find the special ids.

    Args:
        tokenizer: The tokenizer of the data; None if there is none.
        vocab_size: The model's, without extra ids; only used without a tokenizer.

    Returns:
        The ids. GPT-2 has one special token, which serves as all four. Without a tokenizer the last token of
        the vocabulary ends documents and sequences, the one before it masks, and 0 is padding.

    Raises:
        TrainerError: A file is missing or is not what it should be.
    """
    if tokenizer is None:
        last = vocab_size - 1
        return SpecialTokens(vocab_size, last, last, last, 0, last, last - 1)
    if tokenizer.kind == "gpt2":
        return _gpt2(tokenizer)
    if tokenizer.kind == "wordpiece":
        return _wordpiece(tokenizer)
    return _huggingface(tokenizer)


def of_job(config: Config) -> SpecialTokens:
    """Return the special ids of a job's data.

    Args:
        config: The job. Mock data has no tokenizer.

    Raises:
        TrainerError: The tokenizer's files are missing or wrong.
    """
    return special_tokens(None if config.data.mock else config.data.tokenizer, config.model.vocab_size)


def _gpt2(tokenizer: TokenizerConfig) -> SpecialTokens:
    path = existing(tokenizer.vocab, "vocab")
    vocabulary = read_json(path)
    if not isinstance(vocabulary, dict) or not all(isinstance(n, int) for n in vocabulary.values()):
        raise TrainerError(f"{path} is not a vocabulary of GPT-2's kind: it must map tokens to numbers.")
    if END_OF_TEXT not in vocabulary:
        raise TrainerError(f"{path} has no {END_OF_TEXT}, the token that ends a document.")
    end = int(vocabulary[END_OF_TEXT])
    return SpecialTokens(max(vocabulary.values()) + 1, end, end, end, end, end, None)


def _wordpiece(tokenizer: TokenizerConfig) -> SpecialTokens:
    ids = read_wordpieces(existing(tokenizer.vocab, "vocab"))
    # Megatron appends [BOS] and [EOS] to a vocabulary that lacks them. A repeated line takes a number, too,
    # so there may be fewer pieces than numbers.
    begin = ids.setdefault("[BOS]", max(ids.values()) + 1)
    end = ids.setdefault("[EOS]", max(ids.values()) + 1)
    size = max(ids.values()) + 1
    return SpecialTokens(size, ids["[SEP]"], begin, end, ids["[PAD]"], ids["[CLS]"], ids["[MASK]"])


def read_wordpieces(path: Path) -> dict[str, int]:
    """Return the word pieces of a ``vocab.txt``, one per line, and their numbers.

    Raises:
        TrainerError: It cannot be read, or lacks one of BERT's special tokens.
    """
    try:
        lines = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise TrainerError(f"{path} cannot be read as a vocabulary of word pieces ({error}).") from error
    if lines and not lines[-1]:
        lines.pop()
    ids = {line.rstrip("\r"): number for number, line in enumerate(lines)}
    lacking = [name for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if name not in ids]
    if lacking:
        raise TrainerError(f"{path} is not a vocabulary of word pieces: it lacks {', '.join(lacking)}.")
    return ids


def _huggingface(tokenizer: TokenizerConfig) -> SpecialTokens:
    path = existing(tokenizer.file, "file")
    content = read_json(path)
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict) or "vocab" not in model:
        raise TrainerError(f"{path} is not a tokenizer.json: it has no model with a vocabulary.")
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        ids = {str(token): int(number) for token, number in vocabulary.items()}
    else:  # Unigram: pairs of token and score
        ids = {str(pair[0]): number for number, pair in enumerate(vocabulary)}
    for added in content.get("added_tokens") or ():
        ids[str(added["content"])] = int(added["id"])

    def first(names: tuple[str, ...]) -> int | None:
        return next((ids[name] for name in names if name in ids), None)

    end = first((END_OF_TEXT, "</s>", "<|end_of_text|>", "<eos>", "[EOS]", "[SEP]"))
    if end is None:
        raise TrainerError(
            f"{path} has none of the tokens that end a document: {END_OF_TEXT}, </s>, <|end_of_text|>, "
            "<eos>, [EOS] or [SEP]."
        )
    begin = first(("<s>", "<|begin_of_text|>", "<bos>", "[BOS]", "[CLS]"))
    padding = first(("<pad>", "[PAD]", "<|pad|>"))
    padding = end if padding is None else padding
    sentinels = tuple(
        ids[f"<extra_id_{number}>"]
        for number in itertools.takewhile(lambda number: f"<extra_id_{number}>" in ids, itertools.count())
    )
    if sentinels and begin is None:
        # The decoders of published T5 begin with padding.
        begin = padding
    begin = end if begin is None else begin
    mask = first(("[MASK]", "<mask>"))
    return SpecialTokens(max(ids.values()) + 1, end, begin, end, padding, begin, mask, sentinels)


def existing(name: str | None, key: str) -> Path:
    """Return a file of the tokenizer.

    Raises:
        TrainerError: It is not given or does not exist.
    """
    if name is None:
        option = "--tokenizer-file" if key == "file" else f"--{key}"
        raise TrainerError(
            f"the tokenizer's {key} is not given; set data.tokenizer.{key}, or `{option}` of `rdm-trainer "
            "preprocess` or `data info`."
        )
    path = Path(name)
    if not path.is_file():
        raise TrainerError(f"{path}, the tokenizer's {key}, is not there.")
    return path


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        TrainerError: It cannot be read.
    """
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise TrainerError(f"{path} is not a JSON file ({error}).") from error

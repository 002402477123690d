# SPDX-License-Identifier: GPL-3.0-or-later
"""The rows of a fine-tuning: what the files must hold, and the columns that trl gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdm_core.config.finetune import DataConfig, FinetuneConfig
from rdm_core.errors import TrainerError

if TYPE_CHECKING:
    from datasets import Dataset


class Rows:
    """Rows of the training and of the evaluation; their columns have trl's names.

    Args:
        train: The training's.
        valid: The evaluation's, if there is one.
        is_chat: They hold messages, for the tokenizer's chat template.
        has_turns: Rows have several answers, so the template must mark answers.
    """

    def __init__(self, train: Dataset, valid: Dataset | None, *, is_chat: bool, has_turns: bool) -> None:
        self.train, self.valid = train, valid
        self.is_chat, self.has_turns = is_chat, has_turns


def read(config: FinetuneConfig, world_size: int) -> Rows:
    """Read the files of a fine-tuning.

    Raises:
        TrainerError: A file is missing, cannot be read, or does not hold what it must.
    """
    data = config.data
    sets = [_load(files, key) for key, files in (("data.train", data.train), ("data.valid", data.valid))]
    train = sets[0]
    assert train is not None
    is_messages = config.method == "sft" and _has_messages(data, train)
    make = _preferences if config.method == "dpo" else _conversations if is_messages else _completions
    made = [None if rows is None else make(data, rows, key) for key, rows in zip(_KEYS, sets, strict=True)]
    assert made[0] is not None
    step = config.global_batch_size(world_size)
    if len(made[0]) < step:
        raise TrainerError(
            f"data.train has {len(made[0])} rows, fewer than the {step} of one step; give more, or a smaller "
            "batch."
        )
    first = made[0][0]
    is_chat = any(isinstance(first.get(name), list) for name in ("messages", "prompt", "chosen"))
    return Rows(made[0], made[1], is_chat=is_chat, has_turns="messages" in first)


_KEYS = ("data.train", "data.valid")


def prompt_of(row: Mapping[str, Any]) -> Any:
    """Return the prompt of a row of :func:`read`: text or messages."""
    if "messages" in row:
        return row["messages"][:-1]
    return row["prompt"] if "prompt" in row else row["chosen"][:-1]


def _load(files: Sequence[str], key: str) -> Dataset | None:
    import datasets

    if not files:
        return None
    for file in files:
        if not Path(file).is_file():
            raise TrainerError(f"{key} names {file}, which is no file.")
    kind = "parquet" if files[0].endswith(".parquet") else "json"
    try:
        rows = datasets.load_dataset(kind, data_files=[*files], split="train")
    except Exception as error:  # the library's errors are of many kinds
        cause = error.__cause__ or error
        if isinstance(cause, StopIteration):
            raise TrainerError(f"{key} has no row in {', '.join(files)}.") from None
        reason = str(cause).strip().splitlines() or [type(cause).__name__]
        raise TrainerError(f"{key} cannot be read from {', '.join(files)}: {reason[0]}.") from None
    return rows


def _has_messages(data: DataConfig, rows: Dataset) -> bool:
    columns = rows.column_names
    if {data.prompt, data.completion} <= set(columns):
        return False
    if data.messages in columns:
        return True
    raise TrainerError(
        f"data.train has no columns {data.prompt!r} and {data.completion!r}, and none {data.messages!r}; it "
        f"has {_names(columns)}: name them in data.prompt and data.completion, or data.messages."
    )


def _require(key: str, rows: Dataset, columns: Mapping[str, str]) -> None:
    missing = {name: column for name, column in columns.items() if column not in rows.column_names}
    for name, column in missing.items():
        raise TrainerError(
            f"{key} has no column {column!r}; it has {_names(rows.column_names)}: name it in data.{name}."
        )


def _completions(data: DataConfig, rows: Dataset, key: str) -> Dataset:
    columns = {"prompt": data.prompt, "completion": data.completion}
    _require(key, rows, columns)
    _texts(key, rows, columns.values())

    def made(row: Mapping[str, Any]) -> dict[str, Any]:
        prompt, completion = row[data.prompt], row[data.completion]
        if not data.chat:
            return {"prompt": prompt, "completion": completion}
        return {
            "prompt": [{"role": "user", "content": prompt}],
            "completion": [{"role": "assistant", "content": completion}],
        }

    return _mapped(rows, made)


def _conversations(data: DataConfig, rows: Dataset, key: str) -> Dataset:
    """Return rows of messages, or of prompt and completion if each row has one answer, at its end."""
    _require(key, rows, {"messages": data.messages})
    has_turns = False
    for number, messages in enumerate(rows[data.messages], 1):
        if not isinstance(messages, list) or not all(
            isinstance(message, dict) and isinstance(message.get("role"), str) and "content" in message
            for message in messages
        ):
            raise TrainerError(
                f"{key}, row {number}: {data.messages} must be a list of role and content each."
            )
        answers = [message["role"] == "assistant" for message in messages]
        if len(answers) < 2 or not answers[-1]:
            raise TrainerError(
                f"{key}, row {number}: the last of at least two messages must be an assistant's."
            )
        has_turns |= sum(answers) > 1

    def made(row: Mapping[str, Any]) -> dict[str, Any]:
        messages = row[data.messages]
        if has_turns:
            return {"messages": messages}
        return {"prompt": messages[:-1], "completion": messages[-1:]}

    return _mapped(rows, made)


def _preferences(data: DataConfig, rows: Dataset, key: str) -> Dataset:
    columns = {"prompt": data.prompt, "chosen": data.chosen, "rejected": data.rejected}
    _require(key, rows, columns)
    _texts(key, rows, columns.values())

    def made(row: Mapping[str, Any]) -> dict[str, Any]:
        prompt, *answers = (row[column] for column in columns.values())
        if not data.chat:
            return {"prompt": prompt, "chosen": answers[0], "rejected": answers[1]}
        chosen, rejected = ([{"role": "assistant", "content": answer}] for answer in answers)
        return {
            "prompt": [{"role": "user", "content": prompt}],
            "chosen": chosen,
            "rejected": rejected,
        }

    return _mapped(rows, made)


def _texts(key: str, rows: Dataset, columns: Any) -> None:
    for column in columns:
        for number, value in enumerate(rows[column], 1):
            if not isinstance(value, str) or not value:
                found = "no text" if not value else f"{type(value).__name__} instead of text"
                raise TrainerError(f"{key}, row {number}: {column} has {found}.")


def _mapped(rows: Dataset, made: Any) -> Dataset:
    return rows.map(made, remove_columns=rows.column_names)


def _names(columns: Sequence[str]) -> str:
    return ", ".join(map(repr, columns))

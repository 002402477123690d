# SPDX-License-Identifier: GPL-3.0-or-later
"""Which parts of a configuration a report shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from rdm_log.report.configuration import flat, read, without_secrets


def test_secrets_are_hidden_in_every_place() -> None:
    program = ["train.py", "--wandb-key", "1a2b", "--tokenizer-type", "GPT2", "--api_token=3c4d", "--lr", "1"]
    shown = without_secrets(
        flat({"launcher": {"program": program, "env": {"HF": "5e6f"}}, "wandb": {"api_key": "7a8b"}})
    )
    assert shown["launcher.program"].split(", ") == [
        *("train.py", "--wandb-key", "(not shown)", "--tokenizer-type", "GPT2"),
        *("--api_token=(not shown)", "--lr", "1"),
    ]
    assert not any(secret in " ".join(shown.values()) for secret in ("1a2b", "3c4d", "5e6f", "7a8b"))


@pytest.mark.parametrize("text", ["a: 2024-99-99", "a: " + "[" * 5000, "a: [", "- 1", "a: \x01"])
def test_invalid_configuration_is_shown_as_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / "resolved.yaml").write_text(text)
    assert read(tmp_path / "resolved.yaml") == {}

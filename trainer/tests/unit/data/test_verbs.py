# SPDX-License-Identifier: GPL-3.0-or-later
"""The verbs as a user sees them: what they print, and how they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rdm_core.config import TokenizerConfig
from tests.waiting import DEADLINE_S

TRAINER = Path(__file__).resolve().parents[3]


def run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run rdm-trainer in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "rdm_trainer", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(TRAINER), **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.fixture
def options(small_vocabulary: TokenizerConfig) -> list[str]:
    return [
        "--vocab",
        str(small_vocabulary.vocab),
        "--merges",
        str(small_vocabulary.merges),
        "--workers",
        "2",
    ]


def test_text_is_preprocessed_and_shown_by_info(tmp_path: Path, options: list[str]) -> None:
    lines = [json.dumps({"text": f"Juliet is the sun {n}.", "title": "Act"}) for n in range(50)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    command = [
        "preprocess",
        "in.jsonl",
        "--output-prefix",
        "d/x",
        "--append-eod",
        "--json-keys",
        "text,title",
    ]
    done = run(*command, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == [
        "d/x_text_document.bin and .idx",
        "d/x_title_document.bin and .idx",
    ]
    assert done.stdout.splitlines()[2].startswith("100 documents, ")
    # No progress bar without a terminal.
    assert "\r" not in done.stderr
    names = sorted(path.name for path in (tmp_path / "d").iterdir())
    assert names == [f"x_{key}_document.{suffix}" for key in ("text", "title") for suffix in ("bin", "idx")]
    info = run("data", "info", "d/x_text_document", "--json", *options[:4], cwd=tmp_path)
    report = json.loads(info.stdout)
    assert (report["documents"], report["ends_documents"], report["problems"]) == (50, 1.0, [])
    assert report["first_text"].startswith("Juliet is the sun 0.")
    again = run(*command, *options, cwd=tmp_path)
    assert again.returncode == 3
    assert "are there already" in again.stderr
    assert "Traceback" not in again.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["preprocess", "none.jsonl", "--output-prefix", "x"], "none.jsonl cannot be read"),
        (["preprocess", "in.jsonl", "--output-prefix", "x", "--json-keys", ","], "names no key"),
        (["preprocess", "in.jsonl"], "--output-prefix"),
        (["data", "info", "none"], "none.bin and none.idx are missing"),
        (["data", "merge", "none", "--output-prefix", "m"], "none.bin and none.idx are missing"),
        (["data", "info", "."], ". is a directory, not the prefix of a data set"),
        (["data", "merge", "none", "--output-prefix", ""], ". is a directory, not the prefix of a data set"),
        (["data", "merge", "none", "--output-prefix", "/"], "/ is a directory, not the prefix of a data set"),
        (["data", "info", "n" * 300], f"{'n' * 300}.bin cannot be read: File name too long"),
        (["data", "download", "demo", "--directory", "d"], "demo"),
        (["data", "download", "oscar", "--directory", "d", "--sha256", "x=1"], "64 hexadecimal digits"),
        (["data", "download", "oscar", "--directory", "d", "--mirror", "ftp://x"], "must begin with http"),
    ],
)
def test_user_errors_are_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, options: list[str]
) -> None:
    (tmp_path / "in.jsonl").write_text("{}")
    done = run(*arguments, *(options if arguments[0] == "preprocess" else []), cwd=tmp_path)
    assert done.returncode == 3
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_neither_verb_imports_torch(tmp_path: Path) -> None:
    modules = [
        "data.checks",
        "data.index_maps.gpt",
        "data.index_maps.t5",
        "data.indexed_dataset",
        "data.sources",
        "tools.download.corpora",
        "tools.inspect",
        "tools.preprocess.run",
    ]
    code = "import sys\n" + "".join(f"import rdm_trainer.{name}\n" for name in modules)
    code += "assert 'torch' not in sys.modules and 'deepspeed' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TRAINER)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr

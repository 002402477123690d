# SPDX-License-Identifier: GPL-3.0-or-later
"""Preparing text: the same bytes however it is done, and nothing half done."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import json
import lzma
import multiprocessing
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard

from rdm_trainer.config import TokenizerConfig
from rdm_trainer.data.indexed_dataset import IndexedDataset
from rdm_trainer.errors import TrainerError
from rdm_trainer.tokenizers import load as tokenizers
from rdm_trainer.tools.preprocess import run as module
from rdm_trainer.tools.preprocess import text_input
from rdm_trainer.tools.preprocess.run import Progress, Settings, preprocess
from rdm_trainer.tools.preprocess.sentences import sentences
from tests.waiting import DEADLINE_S, wait_until

WORDS = ["It's", "the", "East", "and", "Juliet", "is", "sun", "moon.", "Who?", "naïve", "東京", "1597", "\n"]


def documents(count: int, seed: int = 0) -> list[str]:
    choices = random.Random(seed)
    return [" ".join(choices.choices(WORDS, k=choices.randint(0, 60))) for _ in range(count)]


def write_lines(path: Path, texts: list[str]) -> Path:
    path.write_text(
        "".join(json.dumps({"text": text, "id": number}) + "\n" for number, text in enumerate(texts))
    )
    return path


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_input, "BLOCK", 2000)


@pytest.fixture
def settings(tmp_path: Path, small_vocabulary: TokenizerConfig) -> Settings:
    lines = write_lines(tmp_path / "in.jsonl", documents(200))
    return Settings((lines,), tmp_path / "out" / "p", small_vocabulary, append_eod=True)


def quiet(_: Progress) -> None:
    pass


def content(settings: Settings) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(settings.output_prefix.parent.iterdir())}


def test_tokens_are_those_of_each_document_by_itself(
    settings: Settings, small_vocabulary: TokenizerConfig
) -> None:
    from tokenizers import ByteLevelBPETokenizer

    library = ByteLevelBPETokenizer(small_vocabulary.vocab, small_vocabulary.merges)
    end = tokenizers.load(small_vocabulary).special.end_of_document
    done = preprocess(settings, quiet)
    data = IndexedDataset(settings.output_prefix.with_name("p_text_document"))
    expected = [[*library.encode(text).ids, end] for text in documents(200) if text]
    assert [data[i].tolist() for i in range(len(data))] == expected
    assert data.dtype == np.uint16
    assert data.document_index.tolist() == list(range(len(expected) + 1))
    assert (done.documents, done.tokens) == (len(expected), sum(map(len, expected)))
    assert done.read == done.total


def test_bytes_do_not_depend_on_processes_or_compression(settings: Settings, tmp_path: Path) -> None:
    preprocess(settings, quiet)
    expected = content(settings)
    assert sorted(expected) == ["p_text_document.bin", "p_text_document.idx"]
    raw = settings.inputs[0].read_bytes()
    half = raw.index(b"\n", len(raw) // 2) + 1
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(raw))
    (tmp_path / "a.jsonl.xz").write_bytes(lzma.compress(raw))
    pack = zstandard.ZstdCompressor().compress
    (tmp_path / "a.jsonl.zst").write_bytes(pack(raw[:half]) + pack(raw[half:]))
    (tmp_path / "one.jsonl").write_bytes(raw[:half])
    (tmp_path / "two.jsonl").write_bytes(raw[half:].rstrip(b"\n"))
    ways = {"a.jsonl.gz": 1, "a.jsonl.xz": 2, "a.jsonl.zst": 3, "one.jsonl two.jsonl": 2}
    for number, (names, workers) in enumerate(ways.items()):
        other = dataclasses.replace(
            settings,
            inputs=tuple(tmp_path / name for name in names.split()),
            output_prefix=tmp_path / f"way{number}" / "p",
            workers=workers,
        )
        preprocess(other, quiet)
        assert content(other) == expected, names


def test_sentences_and_keys(settings: Settings, tmp_path: Path) -> None:
    lines = [{"a": "The sun. The moon.", "b": "One."}, {"a": " ", "b": "Two. Three."}, {"a": "End", "b": ""}]
    path = tmp_path / "in2.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    preprocess(dataclasses.replace(settings, inputs=(path,), keys=("a", "b"), split_sentences=True), quiet)
    a, b = (IndexedDataset(settings.output_prefix.with_name(f"p_{key}_sentence")) for key in "ab")
    assert a.document_index.tolist() == [0, 2, 3]
    assert b.document_index.tolist() == [0, 1, 3]
    tokenizer = tokenizers.load(settings.tokenizer)
    end = tokenizer.special.end_of_document
    assert tokenizer.decode(a[0].tolist()) == "The sun."
    assert end not in a[0]
    assert a[1][-1] == end
    assert b[2][-1] == end


class _InterruptedError(Exception):
    pass


@pytest.mark.parametrize("workers", [1, 2])
def test_interrupted_at_any_block_it_goes_on(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    preprocess(settings, quiet)
    expected = content(settings)
    other = dataclasses.replace(settings, output_prefix=tmp_path / "other" / "p", workers=workers)
    monkeypatch.setattr(module, "JOURNAL_EVERY", 0.0)
    worked: list[int] = []
    seen = 0

    def interrupt(progress: Progress) -> None:
        nonlocal seen
        worked.append(progress.read)
        seen += 1
        if seen % 4 == 0:
            raise _InterruptedError

    for _ in range(100):
        try:
            done = preprocess(other, interrupt)
            break
        except _InterruptedError:
            assert not list(other.output_prefix.parent.glob("*.idx"))
            assert not list(other.output_prefix.parent.glob("*.bin"))
    assert content(other) == expected
    assert done.resumed
    # A block whose journal was not yet written is done again, and no other.
    assert len(worked) < 1.5 * len(set(worked))


def _die_at(settings: Settings, block: int) -> None:
    os.setsid()
    module.JOURNAL_EVERY = 0.0
    blocks = 0

    def report(_: Progress) -> None:
        nonlocal blocks
        blocks += 1
        if blocks == block:
            os.kill(os.getpid(), signal.SIGKILL)

    preprocess(settings, report)


def _alive(session: int) -> list[int]:
    """The processes of a session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def test_killed_it_goes_on(settings: Settings, tmp_path: Path) -> None:
    preprocess(settings, quiet)
    expected = content(settings)
    other = dataclasses.replace(settings, output_prefix=tmp_path / "other" / "p", workers=2)
    for block in (3, 2, 5):
        process = multiprocessing.get_context("fork").Process(target=_die_at, args=(other, block))
        process.start()
        process.join(DEADLINE_S)
        assert process.exitcode == -signal.SIGKILL
        look = functools.partial(_alive, process.pid or 0)
        wait_until("its processes have ended, too", look, lambda left: not left)
        assert [path.name for path in other.output_prefix.parent.iterdir()] == ["p.partial"]
    done = preprocess(other, quiet)
    assert done.resumed
    assert content(other) == expected


def test_killed_between_the_names_it_goes_on(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preprocess(settings, quiet)
    expected = content(settings)
    other = dataclasses.replace(settings, output_prefix=tmp_path / "other" / "p")
    replace = Path.replace

    def fail(self: Path, target: Path) -> Path:
        if str(target).endswith(".idx"):
            raise _InterruptedError
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(_InterruptedError):
        preprocess(other, quiet)
    monkeypatch.undo()
    preprocess(other, quiet)
    assert content(other) == expected


def test_other_settings_begin_anew(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "JOURNAL_EVERY", 0.0)

    def interrupt(progress: Progress) -> None:
        if progress.read > progress.total / 2:
            raise _InterruptedError

    with pytest.raises(_InterruptedError):
        preprocess(settings, interrupt)
    changed = dataclasses.replace(settings, append_eod=False)
    assert preprocess(changed, quiet).resumed is None
    one = content(settings)
    preprocess(dataclasses.replace(changed, overwrite=True), quiet)
    assert content(settings) == one


def test_what_is_there_is_not_replaced_unasked(settings: Settings) -> None:
    preprocess(settings, quiet)
    before = content(settings)
    with pytest.raises(TrainerError, match=r"p_text_document\.bin and .* are there already"):
        preprocess(settings, quiet)
    assert content(settings) == before
    preprocess(dataclasses.replace(settings, overwrite=True, append_eod=False), quiet)
    assert content(settings) != before


def test_two_at_once_are_refused(settings: Settings) -> None:
    def second(_: Progress) -> None:
        with pytest.raises(TrainerError, match="another process prepares"):
            preprocess(settings, quiet)

    preprocess(settings, second)


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_is_one_sentence(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_work_on", _die)
    with pytest.raises(TrainerError, match="was killed, perhaps for want of memory") as raised:
        preprocess(dataclasses.replace(settings, workers=2), quiet)
    assert raised.value.exit_code == 1


def line(text: str) -> Callable[[list[str]], list[str]]:
    return lambda lines: [*lines[:7], text, *lines[7:]]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (line("{not json"), r"in\.jsonl, line 8: '\{not json' is not JSON"),
        (line('["a"]'), r"line 8: a JSON object is wanted .* not a list"),
        (line('{"body": "x"}'), r"line 8: there is no 'text', only 'body'; .*--json-keys"),
        (line('{"text": 5}'), r"line 8: what 'text' holds is no text but 5"),
        (line('{"text": "\\ud800"}'), r"line 8: the text under 'text' has half of a surrogate pair"),
        (lambda _: [""], r"p_text_document would be empty"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_bad_lines_are_named(
    settings: Settings, spoil: Callable[[list[str]], list[str]], said: str, workers: int
) -> None:
    lines = settings.inputs[0].read_text().splitlines()
    settings.inputs[0].write_text("\n".join(spoil(lines)))
    with pytest.raises(TrainerError, match=said):
        preprocess(dataclasses.replace(settings, workers=workers), quiet)
    assert not list(settings.output_prefix.parent.glob("*.bin"))


def test_empty_lines_are_passed_over(settings: Settings) -> None:
    preprocess(settings, quiet)
    expected = content(settings)
    raw = settings.inputs[0].read_bytes()
    settings.inputs[0].write_bytes(raw.replace(b"\n", b"\n\n  \n"))
    preprocess(dataclasses.replace(settings, overwrite=True), quiet)
    assert content(settings) == expected


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, zstandard.ZstdCompressor().compress])
@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_damaged_compression_is_named(
    settings: Settings, pack: Callable[[bytes], bytes], damage: str
) -> None:
    packed = bytearray(pack(random.Random(1).randbytes(5000).hex().encode()))
    if damage == "cut":
        del packed[len(packed) // 2 :]
    else:
        packed[12:300] = bytes(288)
    settings.inputs[0].write_bytes(packed)
    with pytest.raises(TrainerError, match=r"in\.jsonl(, line 1| is damaged near offset \d+): "):
        list(text_input.blocks(settings.inputs))


def test_a_missing_file_is_named(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match=r"none\.jsonl cannot be read: there is no such file"):
        preprocess(dataclasses.replace(settings, inputs=(tmp_path / "none.jsonl",)), quiet)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n", []),
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        (
            "Mr. Smith, e.g. John Q. Public, left. He ran.",
            ["Mr. Smith, e.g. John Q. Public, left.", "He ran."],
        ),
        ('"Stop!" He said. (Now.) Go', ['"Stop!"', "He said.", "(Now.)", "Go"]),
        ("pi is 3.14 and rising. see below", ["pi is 3.14 and rising. see below"]),
        ("Title\n\nText begins. It ends.", ["Title", "Text begins.", "It ends."]),
        ("春はあけぼの。夏は夜。", ["春はあけぼの。", "夏は夜。"]),
        ("It is I. You know.", ["It is I.", "You know."]),
    ],
)
def test_sentence_rules(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected

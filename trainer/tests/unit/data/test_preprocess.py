# SPDX-License-Identifier: GPL-3.0-or-later
"""Preparing text: always the same bytes, and never half a data set."""

from __future__ import annotations

import bz2
import dataclasses
import errno
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
from typing import NoReturn

import numpy as np
import pytest
import zstandard

from rdm_core.config import TokenizerConfig
from rdm_core.errors import TrainerError
from rdm_trainer.data.indexed_dataset import IndexedDataset
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


def test_documents_are_tokenized_independently(settings: Settings, small_vocabulary: TokenizerConfig) -> None:
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
    # A skippable frame, as pzstd writes it, and a window beyond the library's own limit.
    long = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=28)
    ).compressobj()
    skipped = b"\x5f\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"abc"
    (tmp_path / "long.zst").write_bytes(skipped + long.compress(raw) + long.flush())
    (tmp_path / "padded.xz").write_bytes(lzma.compress(raw[:half]) + bytes(8) + lzma.compress(raw[half:]))
    (tmp_path / "two.bz2").write_bytes(bz2.compress(raw[:half]) + bz2.compress(raw[half:]))
    ways = {
        "a.jsonl.gz": 1,
        "a.jsonl.xz": 2,
        "a.jsonl.zst": 3,
        "one.jsonl two.jsonl": 2,
        "long.zst": 1,
        "padded.xz": 1,
        "two.bz2": 1,
    }
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
def test_preprocessing_interrupted_at_any_block_continues(
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
    # Only a block whose journal was not yet written is done again.
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


def test_killed_preprocessing_continues(settings: Settings, tmp_path: Path) -> None:
    preprocess(settings, quiet)
    expected = content(settings)
    other = dataclasses.replace(settings, output_prefix=tmp_path / "other" / "p", workers=2)
    for block in (3, 2, 5):
        process = multiprocessing.get_context("fork").Process(target=_die_at, args=(other, block))
        process.start()
        process.join(DEADLINE_S)
        assert process.exitcode == -signal.SIGKILL
        find = functools.partial(_alive, process.pid or 0)
        wait_until("its processes have ended, too", find, lambda left: not left)
        assert [path.name for path in other.output_prefix.parent.iterdir()] == ["p.partial"]
    done = preprocess(other, quiet)
    assert done.resumed
    assert content(other) == expected


def test_preprocessing_killed_between_renames_continues(
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


def test_other_settings_restart_preprocessing(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_existing_data_set_is_not_replaced_without_the_option(settings: Settings) -> None:
    preprocess(settings, quiet)
    before = content(settings)
    with pytest.raises(TrainerError, match=r"p_text_document\.bin and .* are there already"):
        preprocess(settings, quiet)
    assert content(settings) == before
    preprocess(dataclasses.replace(settings, overwrite=True, append_eod=False), quiet)
    assert content(settings) != before


def test_second_preprocessing_of_the_same_output_is_refused(settings: Settings) -> None:
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
    ("change", "message"),
    [
        (line("{not json"), r"in\.jsonl, line 8: '\{not json' is not JSON"),
        (line('["a"]'), r"line 8: a JSON object is wanted .* not a list"),
        (line('{"body": "x"}'), r"line 8: there is no 'text', only 'body'; .*--json-keys"),
        (line('{"text": 5}'), r"line 8: what 'text' holds is no text but 5"),
        (
            line('{"text": "x", "other": ' + "[" * 100_000 + "]" * 100_000 + "}"),
            "line 8: its JSON is nested too deeply",
        ),
        (line('{"text": ' + "1" * 5000 + "}"), "line 8: what 'text' holds is no text"),
        (line('{"text": "\\ud800"}'), r"line 8: the text under 'text' has half of a surrogate pair"),
        (lambda _: [""], r"p_text_document would be empty"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_bad_lines_are_named(
    settings: Settings, change: Callable[[list[str]], list[str]], message: str, workers: int
) -> None:
    lines = settings.inputs[0].read_text().splitlines()
    settings.inputs[0].write_text("\n".join(change(lines)))
    with pytest.raises(TrainerError, match=message):
        preprocess(dataclasses.replace(settings, workers=workers), quiet)
    # Nothing is left to resume from.
    assert not list(settings.output_prefix.parent.iterdir())


def test_other_json_keys_are_ignored(settings: Settings) -> None:
    preprocess(settings, quiet)
    expected = content(settings)
    lines = settings.inputs[0].read_text().splitlines()
    lines[7] = lines[7][:-1] + ', "n": ' + "1" * 5000 + "}"
    settings.inputs[0].write_text("\n".join(lines))
    preprocess(dataclasses.replace(settings, overwrite=True), quiet)
    assert content(settings) == expected


@pytest.mark.parametrize(
    ("prefix", "keys", "message"),
    [
        ("p", ("a/b",), "--json-keys names 'a/b', which cannot be part of a file's name"),
        ("p", ("a\0b",), "without U\\+0000"),
        ("p" * 300, ("text",), "have a name of 318 bytes, and a file system takes 255"),
        (".", ("text",), "--output-prefix is '.', which names no file; give .* as corpus"),
        ("/", ("text",), "--output-prefix is '/', which names no file; give .* as /corpus"),
        ("..", ("text",), "--output-prefix is '..', which names no file"),
    ],
)
def test_invalid_file_names_are_refused_before_any_file_is_made(
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prefix: str,
    keys: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(TrainerError, match=message):
        preprocess(dataclasses.replace(settings, output_prefix=Path(prefix), keys=keys), quiet)
    assert sorted(tmp_path.iterdir()) == before


def test_empty_lines_are_skipped(settings: Settings) -> None:
    preprocess(settings, quiet)
    expected = content(settings)
    raw = settings.inputs[0].read_bytes()
    settings.inputs[0].write_bytes(raw.replace(b"\n", b"\n\n  \n"))
    preprocess(dataclasses.replace(settings, overwrite=True), quiet)
    assert content(settings) == expected


PACKS = [gzip.compress, bz2.compress, lzma.compress, zstandard.ZstdCompressor().compress]
# Each damages a whole file.
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda packed: packed[: len(packed) // 2],
    "changed": lambda packed: packed[:12] + bytes(288) + packed[300:],
    "second header": lambda packed: packed + packed[:1] + b"?" + packed[2:],
    "second cut": lambda packed: packed + packed[: len(packed) // 2],
    "garbage behind": lambda packed: packed + b"more",
    "padding and garbage behind": lambda packed: packed + bytes(4) + b"more",
    "cut within the first bytes": lambda packed: packed[: 5 if packed.startswith(b"\xfd") else 2],
}


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_compression_is_named(
    settings: Settings, pack: Callable[[bytes], bytes], damage: Callable[[bytes], bytes]
) -> None:
    settings.inputs[0].write_bytes(damage(pack(random.Random(1).randbytes(5000).hex().encode())))
    with pytest.raises(TrainerError, match=r"in\.jsonl is damaged(: it ends| near offset \d+: )"):
        list(text_input.blocks(settings.inputs))


def test_invalid_xz_padding_is_damage(settings: Settings) -> None:
    settings.inputs[0].write_bytes(lzma.compress(b"{}") + bytes(3))
    with pytest.raises(TrainerError, match="3 zeros follow a stream, which is no multiple of 4"):
        list(text_input.blocks(settings.inputs))


@pytest.mark.parametrize(
    ("begin", "message"),
    [(b"PK\x03\x04", "a zip archive"), (b"PAR1", "a Parquet file"), (b"\x04\x22\x4d\x18", "with lz4")],
)
def test_invalid_utf_8_is_named(settings: Settings, begin: bytes, message: str) -> None:
    settings.inputs[0].write_bytes(begin + bytes(100))
    with pytest.raises(TrainerError, match=rf"in\.jsonl is .*{message}; give JSON lines"):
        preprocess(settings, quiet)


def test_disk_error_is_not_reported_as_damage(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(text_input, "_decompressed", fail)
    with pytest.raises(TrainerError, match=r"in\.jsonl cannot be read: Input/output error"):
        list(text_input.blocks(settings.inputs))


def test_a_missing_file_is_named(settings: Settings, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    inputs = (tmp_path / "none.jsonl", tmp_path / "pipe", tmp_path, tmp_path / ("x" * 300), Path("-"))
    with pytest.raises(TrainerError) as raised:
        preprocess(dataclasses.replace(settings, inputs=inputs), quiet)
    for message in (
        "none.jsonl cannot be read: there is no such file;",
        "pipe is a pipe or a device, which cannot be read again after an interruption: write its content",
        "is a directory: name the files in it",
        "xxx cannot be read: File name too long",
        "- cannot be read: there is no such file (standard input is not read: write it to a file first)",
    ):
        assert message in str(raised.value)
    assert not settings.output_prefix.parent.exists()


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

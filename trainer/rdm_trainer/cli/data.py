# SPDX-License-Identifier: GPL-3.0-or-later
"""``rdm-trainer data``: look into data sets, put them together, and fetch texts and vocabularies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from rdm_trainer.tools.download.fetch import Transfer
    from rdm_trainer.tools.inspect import Report


@click.group()
def data() -> None:
    """Inspect, merge and download data sets."""


@data.command()
@click.argument("prefix", type=click.Path(path_type=Path))
@click.option(
    "--tokenizer",
    "kind",
    type=click.Choice(["gpt2", "wordpiece", "huggingface"]),
    help="The tokenizer that made it, to decode its beginning.",
)
@click.option("--vocab", metavar="FILE", help="vocab.json of gpt2, vocab.txt of wordpiece.")
@click.option("--merges", metavar="FILE", help="merges.txt of gpt2.")
@click.option("--tokenizer-file", metavar="FILE", help="tokenizer.json of huggingface.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def info(
    prefix: Path,
    kind: Literal["gpt2", "wordpiece", "huggingface"] | None,
    vocab: str | None,
    merges: str | None,
    tokenizer_file: str | None,
    as_json: bool,
) -> None:
    """Print what a data set (PREFIX.bin, PREFIX.idx) contains, and warnings."""
    import dataclasses
    import json

    from rdm_core.config import TokenizerConfig
    from rdm_trainer.tokenizers.load import load
    from rdm_trainer.tools.inspect import inspect

    if kind is None and (vocab is not None or merges is not None):
        kind = "gpt2"
    if kind is None and tokenizer_file is not None:
        kind = "huggingface"
    if kind is not None:
        require_files_of(kind, vocab, merges, tokenizer_file)
    tokenizer = None if kind is None else load(TokenizerConfig(kind, vocab, merges, tokenizer_file))
    if prefix.suffix in (".bin", ".idx"):
        prefix = prefix.with_suffix("")
    report = inspect(prefix, tokenizer)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
    else:
        _print(report)


def require_files_of(
    kind: Literal["gpt2", "wordpiece", "huggingface"],
    vocab: str | None,
    merges: str | None,
    tokenizer_file: str | None,
) -> None:
    """Refuse files that a tokenizer of this kind does not read."""
    reads = {"gpt2": ("--vocab", "--merges"), "wordpiece": ("--vocab",), "huggingface": ("--tokenizer-file",)}
    given = {"--vocab": vocab, "--merges": merges, "--tokenizer-file": tokenizer_file}
    for option, file in given.items():
        if file is not None and option not in reads[kind]:
            raise click.UsageError(f"{option} is not for {kind}, which reads {' and '.join(reads[kind])}.")


def _print(report: Report) -> None:
    names = {"0": "min", "25": "25%", "50": "median", "75": "75%", "100": "max"}

    def spread(lengths: dict[str, int]) -> str:
        return ", ".join(f"{name} {lengths[p]:,}" for p, name in names.items() if p in lengths) or "none"

    rows = [
        ("data set", report.prefix),
        ("size", f"{report.bytes:,} bytes, tokens of {report.dtype}"),
        ("documents", f"{report.documents:,}"),
        ("sequences", f"{report.sequences:,}"),
        ("tokens", f"{report.tokens:,}"),
        ("per document", spread(report.tokens_per_document)),
        ("per sequence", spread(report.tokens_per_sequence)),
    ]
    if report.highest is not None:
        rows.append(("lowest, highest", f"{report.lowest:,}, {report.highest:,}"))
    if report.ends_documents is not None:
        rows.append(("with end token", f"{report.ends_documents:.1%} of the documents"))
    rows.append(("begins", " ".join(map(str, report.first_tokens))))
    if report.first_text is not None:
        rows.append(("", repr(report.first_text)))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"{name:<{width}}  {value}")
    for problem in report.problems:
        click.echo(f"problem: {problem}")


def prefix_of_files(_context: click.Context, _option: click.Parameter, value: str) -> Path:
    """Return a prefix as a path.

    A path drops the slash at the end of a directory's name, so that files would be written beside it.

    Raises:
        click.BadParameter: It ends in a slash.
    """
    if value.endswith("/"):
        raise click.BadParameter(
            f"{value} is a directory, not the prefix of a data set; give one such as {value}corpus."
        )
    return Path(value)


@data.command()
@click.argument("prefixes", metavar="PREFIX...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--output-prefix", required=True, type=click.Path(), callback=prefix_of_files, metavar="PREFIX")
def merge(prefixes: tuple[Path, ...], output_prefix: Path) -> None:
    """Concatenate data sets."""
    from rdm_trainer.data.indexed_dataset import IndexedDataset
    from rdm_trainer.data.indexed_dataset import merge as put_together

    put_together(prefixes, output_prefix)
    merged = IndexedDataset(output_prefix)
    click.echo(f"{output_prefix}: {merged.documents:,} documents, {merged.tokens:,} tokens")


def _checksum(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Read NAME=HEX."""
    checksums = {}
    for value in values:
        name, _, digits = value.partition("=")
        if len(digits) != 64 or set(digits.lower()) - set("0123456789abcdef"):
            raise click.BadParameter(f"{value!r} is not NAME=64 hexadecimal digits")
        checksums[name] = digits.lower()
    return checksums


@data.command()
@click.argument(
    "name", metavar="NAME", type=click.Choice(["demo-corpus", "gpt2-vocab", "bookcorpus", "oscar"])
)
@click.option("--directory", required=True, type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
@click.option("--mirror", metavar="URL", help="Take the files from under this address.")
@click.option(
    "--sha256",
    "checksums",
    multiple=True,
    metavar="NAME=HEX",
    callback=_checksum,
    help="A checksum for a file that nobody publishes one for.",
)
def download(name: str, directory: Path, mirror: str | None, checksums: dict[str, str]) -> None:
    """Download a text, a data set or a vocabulary. After an interruption it resumes.

    \b
    demo-corpus  Shakespeare's and Milton's works as JSON lines, 11 MB
    gpt2-vocab   GPT-2's vocabulary and merges, 1.5 MB
    bookcorpus   BookCorpus as a data set of GPT-2 tokens
    oscar        a part of OSCAR as JSON lines, 1 GB of text in xz
    """
    from rdm_trainer.tools.download.corpora import download as get

    bar: Any = None

    def report(transfer: Transfer) -> None:
        nonlocal bar
        if not sys.stderr.isatty():
            return
        from tqdm import tqdm

        if bar is None or bar.desc != f"{transfer.name}: ":
            if bar is not None:
                bar.close()
            bar = tqdm(
                desc=transfer.name,
                total=transfer.total,
                initial=transfer.done,
                unit="B",
                unit_scale=True,
                leave=False,
                file=sys.stderr,
            )
        bar.update(transfer.done - bar.n)

    try:
        files = get(name, directory, mirror=mirror, checksums=checksums, report=report)
    finally:
        if bar is not None:
            bar.close()
    for path in files:
        click.echo(str(path))

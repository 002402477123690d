# SPDX-License-Identifier: GPL-3.0-or-later
"""``rdm-trainer preprocess``: turn text into the tokens that training reads."""

from __future__ import annotations

import sys
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Literal

import click

from rdm_trainer.cli.data import prefix_of_files, require_files_of

if TYPE_CHECKING:
    from rdm_trainer.tools.preprocess.run import Progress

# Seconds between lines where there is no terminal.
_LINE_EVERY = 10.0


@click.command(
    epilog="""\b
For GPT-2's vocabulary (rdm-trainer data download gpt2-vocab --directory .):
  rdm-trainer preprocess corpus.jsonl --output-prefix corpus --append-eod \\
    --vocab gpt2-vocab.json --merges gpt2-merges.txt
Then in the job: data.blend=[corpus_text_document]
"""
)
@click.argument(
    "inputs", metavar="INPUT...", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False)
)
@click.option(
    "--output-prefix",
    required=True,
    type=click.Path(),
    callback=prefix_of_files,
    metavar="PREFIX",
    help="Write PREFIX_KEY_document.bin and .idx (PREFIX_KEY_sentence with --split-sentences).",
)
@click.option(
    "--tokenizer",
    "kind",
    type=click.Choice(["gpt2", "wordpiece", "huggingface"]),
    default="gpt2",
    show_default=True,
    help="Byte pairs of GPT-2, word pieces of BERT, or any tokenizer.json.",
)
@click.option("--vocab", metavar="FILE", help="vocab.json of gpt2, vocab.txt of wordpiece.")
@click.option("--merges", metavar="FILE", help="merges.txt of gpt2.")
@click.option("--tokenizer-file", metavar="FILE", help="tokenizer.json of huggingface.")
@click.option("--json-keys", default="text", show_default=True, help="Keys of the text, separated by commas.")
@click.option("--append-eod", is_flag=True, help="Put the end-of-document token behind each document.")
@click.option("--split-sentences", is_flag=True, help="Make a sequence of each sentence, as a T5 wants.")
@click.option(
    "--workers", type=click.IntRange(min=1), help="Processes; as many as there are processors by default."
)
@click.option("--overwrite", is_flag=True, help="Replace data sets of that name.")
def preprocess(
    inputs: tuple[Path, ...],
    output_prefix: Path,
    kind: Literal["gpt2", "wordpiece", "huggingface"],
    vocab: str | None,
    merges: str | None,
    tokenizer_file: str | None,
    json_keys: str,
    append_eod: bool,
    split_sentences: bool,
    workers: int | None,
    overwrite: bool,
) -> None:
    """Turn text into the tokens that training reads.

    INPUT has a JSON object on each line, {"text": "..."}, plain or compressed with gzip, bzip2, xz or zstd.
    After an interruption, the same command resumes.
    """
    import os

    from rdm_core.config import TokenizerConfig
    from rdm_trainer.tools.preprocess import run as work

    require_files_of(kind, vocab, merges, tokenizer_file)
    settings = work.Settings(
        inputs=inputs,
        output_prefix=output_prefix,
        tokenizer=TokenizerConfig(kind, vocab, merges, tokenizer_file),
        keys=tuple(dict.fromkeys(key.strip() for key in json_keys.split(",") if key.strip())),
        append_eod=append_eod,
        split_sentences=split_sentences,
        workers=workers or len(os.sched_getaffinity(0)),
        overwrite=overwrite,
    )
    if not settings.keys:
        raise click.BadParameter("names no key", param_hint="--json-keys")
    begun = monotonic()
    with _Bar() if sys.stderr.isatty() else _Lines() as view:
        done = work.preprocess(settings, view.show)
    seconds = monotonic() - begun
    for prefix in work.output_prefixes(settings):
        click.echo(f"{prefix}.bin and .idx")
    if done.resumed is not None:
        click.echo(
            f"Earlier work was taken up: {done.resumed / max(done.total, 1):.0%} of the input was done."
        )
    click.echo(f"{done.documents:,} documents, {done.tokens:,} tokens, {seconds:.1f} s")


class _Bar:
    """A bar on a terminal."""

    def __enter__(self) -> _Bar:
        from tqdm import tqdm

        # No thread of its own: processes are forked from here.
        tqdm.monitor_interval = 0
        self._bar = tqdm(unit="B", unit_scale=True, unit_divisor=1024, leave=False, file=sys.stderr)
        return self

    def show(self, progress: Progress) -> None:
        """Draw the progress."""
        if self._bar.total is None:
            self._bar.reset(progress.total)
            self._bar.initial = progress.resumed or 0
            self._bar.n = self._bar.initial
        self._bar.set_postfix_str(f"{progress.tokens:,} tokens", refresh=False)
        self._bar.update(progress.read - self._bar.n)

    def __exit__(self, *_: object) -> None:
        self._bar.close()


class _Lines:
    """A line every few seconds where there is no terminal."""

    def __enter__(self) -> _Lines:
        self._printed_at = monotonic()
        return self

    def show(self, progress: Progress) -> None:
        """Print the progress when it is time."""
        if monotonic() - self._printed_at >= _LINE_EVERY:
            self._printed_at = monotonic()
            part = progress.read / max(progress.total, 1)
            click.echo(
                f"{part:6.1%} | {progress.tokens:,} tokens | {progress.documents:,} documents", err=True
            )

    def __exit__(self, *_: object) -> None:
        return None

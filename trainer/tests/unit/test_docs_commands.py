# SPDX-License-Identifier: GPL-3.0-or-later
"""The program accepts every command of its own that the guides show."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from rdm_core import config as configuration
from rdm_core.config.finetune import FinetuneConfig
from rdm_core.config.workloads import WORKLOADS
from rdm_job.rendezvous.workers import SPECS
from rdm_trainer.cli import cli

ROOT = Path(__file__).resolve().parents[3]
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```(?:console|bash|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of ours in a shell's text."""
    lexer = shlex.shlex(re.sub(r"\\\n", " ", text), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.whitespace = " \t\r"
    words: list[str] = []
    for word in [*lexer, "\n"]:
        if set(word) <= set("();<>|&\n"):
            yield from _ours(words)
            words = []
        else:
            words.append(word)


def _ours(words: list[str]) -> Iterator[list[str]]:
    for at, word in enumerate(words):
        if word == "rdm-trainer" or words[at : at + 2] == ["-m", "rdm_trainer"]:
            yield words[at + (1 if word == "rdm-trainer" else 2) :]
            return


def shown() -> list[tuple[str, list[str]]]:
    """The commands of all guides, with the file of each."""
    found = []
    for guide in GUIDES:
        for block in _BLOCK.findall(guide.read_text(encoding="utf-8")):
            # In a console block, keep what is typed; the rest is output.
            typed = re.sub(r"\\\n", " ", block)
            if re.search(r"^\$ ", typed, re.MULTILINE):
                typed = "".join(f"{line[2:]}\n" for line in typed.splitlines() if line.startswith("$ "))
            found += [(guide.name, words) for line in typed.splitlines() for words in commands(line)]
    return found


def parse(words: list[str]) -> None:
    """Have the program read a command line, and do nothing.

    Raises:
        click.ClickException: The program does not accept it.
    """
    command: click.Command = cli
    context = click.Context(cli, info_name="rdm-trainer")
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        command, context = found, click.Context(found, context, info_name=name)
    read = command.make_context("rdm-trainer", words)
    inner = list(read.params["command"]) if command.name == "rendezvous" else []
    if inner and inner[0] in WORKLOADS:
        parse(inner)


@pytest.mark.parametrize(
    ("guide", "words"), [pytest.param(*one, id=" ".join(one[1])[:60]) for one in shown()]
)
def test_program_accepts_each_command_of_the_guides(
    guide: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert guide
    # Options before the command, as variables.
    monkeypatch.setenv("ROLE", "launcher")
    monkeypatch.setenv("RDZV_ID", "shown")
    # --version exits like this.
    with contextlib.suppress(click.exceptions.Exit):
        parse(words)


def test_the_guides_commands_are_found() -> None:
    found = shown()
    assert len([words for guide, words in found if guide == "rendezvous.md"]) >= 6
    assert len([words for guide, words in found if guide == "finetune.md"]) >= 8
    with pytest.raises(click.UsageError):
        parse(["rendezvous", "--rank", "name", "--", "true"])


def test_program_accepts_the_commands_in_spec_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLE", "launcher")
    monkeypatch.setenv("RDZV_ID", "shown")
    for spec in SPECS.glob("*.j2"):
        head = "".join(re.findall(r"^#  +(.*\n)", spec.read_text(), re.MULTILINE))
        (words,) = commands(head.replace("…", "x"))
        parse(words)


def test_the_configurations_that_the_guide_writes_are_sound() -> None:
    guide = (ROOT / "docs/finetune.md").read_text(encoding="utf-8")
    written = re.findall(r"<<'END'\n(.*?)^END$", guide, re.MULTILINE | re.DOTALL)
    assert len(written) == 2
    for text in written:
        given = {"workload": "finetune", **yaml.safe_load(text)}
        config = configuration.load_text(yaml.safe_dump(given))
        assert isinstance(config, FinetuneConfig)
        assert configuration.check(config, 2) == []


def test_the_output_that_the_guide_of_tune_shows_is_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    block = _BLOCK.findall((ROOT / "docs/tune.md").read_text(encoding="utf-8"))[0]
    command, *lines = block.splitlines()
    (words,) = commands(command.removeprefix("$ "))
    result = CliRunner().invoke(cli, words)
    shown = [line.strip() for line in lines if line.strip(" …")]
    assert len(shown) > 15
    assert [line for line in shown if line not in map(str.strip, result.output.splitlines())] == []

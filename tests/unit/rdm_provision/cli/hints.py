"""Commands of ours in code, roles and pages, and whether the program accepts them."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import click
import yaml

from rdm_provision.cli import cli
from tests.conftest import ROOT
from tests.printed_hints import PROSE

SOURCES = (
    "rdm_provision",
    "plugins",
    "rdm_lab",
    "rdm_sriov",
    "trainer/rdm_core",
    "trainer/rdm_job",
    "trainer/rdm_log",
    "trainer/rdm_trainer",
)
PAGES = ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "roles/*/README.md")
COMMAND = re.compile(r"(?<![\w/.-])rdm-provision +((?:[\w-][^\s`,;:()\"]* *)+)")
GAP = "VALUE"
"""Stands for a value to fill in."""


class Hint(NamedTuple):
    """A command that appears in a text.

    Attributes:
        where: the file, and the line if known.
        words: the words after the program's name.
        in_message: whether it is in a message, not in a page or ``--help``.
    """

    where: str
    words: list[str]
    in_message: bool


def texts(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Yield every string of a program except docstrings; values become GAP, and flags nothing.

    Yields:
        The line, the text, and whether it is outside ``--help``.
    """
    helps = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg in ("epilog", "help")
        for part in ast.walk(node.value)
    }
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if node.body and isinstance(node.body[0], ast.Expr)
    }
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            filled = [
                str(part.value)
                if isinstance(part, ast.Constant)
                else ""
                if "flag" in ast.unparse(part)
                else GAP
                for part in node.values
            ]
            yield node.lineno, "".join(filled), id(node) not in helps
        elif isinstance(node, ast.Constant) and id(node) not in documentation | parts:
            yield node.lineno, re.sub(r"\{\w*\}", GAP, str(node.value)), id(node) not in helps


def strings(data: Any) -> Iterator[str]:
    """Yield every string of a YAML file."""
    if isinstance(data, str):
        yield data
    for item in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from strings(item)


@functools.cache
def hints() -> tuple[Hint, ...]:
    """Return every command of ours in the code, the roles and the pages."""
    found: list[tuple[str, str, bool]] = []
    for source in SOURCES:
        for path in sorted((ROOT / source).rglob("*.py")):
            source_text, name = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
            if "rdm-provision" not in source_text:
                continue
            tree = ast.parse(source_text)
            keys = name.startswith("trainer/rdm_core/config/")
            found += [(f"{name}:{line}", text, message and not keys) for line, text, message in texts(tree)]
    for path in sorted([*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("playbooks/**/*.yml")]):
        read = yaml.safe_load(path.read_text(encoding="utf-8"))
        found += [(str(path.relative_to(ROOT)), text, True) for text in strings(read)]
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                found += [(f"{path.relative_to(ROOT)}:{number}", line, False)]
    named: list[Hint] = []
    for where, text, message in found:
        if text == "rdm-provision lab":
            continue  # in the history of the lab's images
        for match in COMMAND.finditer(text):
            words = re.split(r" +", match[1].split("\n")[0].partition(" #")[0].strip())
            if words[0].rstrip(".") not in PROSE:
                named.append(Hint(where, words, message))
    return tuple(named)


def wrong(words: list[str]) -> str:
    """Return why the program would refuse a command, whatever else follows it in the sentence."""
    command: click.Command = cli
    ctx = click.Context(cli)
    while isinstance(command, click.Group) and words:
        name, *words = words
        # A value right after a word stands for options.
        name = name.partition(GAP)[0].rstrip(".'")
        if name in ("", "--help", "--version", "VERB"):
            return ""
        known = command.get_command(ctx, name)
        if known is None:
            return f"there is no {command.name} {name}"
        command = known
    if isinstance(command, click.Group):
        return f"{command.name} needs a verb"
    known_options = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
    for word in words:
        if word in ("--", "&&", "||", "|", "…"):
            break
        option = re.match(r"-[a-zA-Z]$|--[a-z][a-z-]*", word)
        if option and option[0] not in known_options | {"--help"}:
            return f"{command.name} has no option {option[0]}"
    return ""

# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the variables that a shell file sets, without a shell: nothing of the file is ever run.

It knows what files of settings are made of: assignments, quotes, ``$NAME``, ``$((2 * NODES))``, ``if`` over
what was set before, and ``echo``, which it passes over. Anything else is refused with its line.
"""

from __future__ import annotations

import ast
import difflib
import operator
import re
import typing
from dataclasses import dataclass

from rdm_core.errors import ConfigError

__all__ = ["variables"]

_LONGEST = 10_000
"""Characters of one value, so that none can double itself line by line."""
_OUTSIDE = ("HOME", "USER", "UID")
"""Known to every shell; they stay as they are written, because the job may run elsewhere."""
_SPACE = re.compile(r"(?:[ \t\r]|\\\r?\n)+")
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)=")
_PIECE = re.compile(
    r"""'(?P<single>[^']*)'
    | (?P<quote>")
    | \$\(\((?P<sum>[^()`\n]*)\)\)
    | \$(?P<bare>[A-Za-z_][A-Za-z0-9_]*) | \$\{(?P<braced>[A-Za-z_][A-Za-z0-9_]*)\}
    | \\(?P<escaped>.|\r?\n)
    | (?P<plain>[^\s;'"\\$`<>|&()]+)""",
    re.VERBOSE,
)
_QUOTED = re.compile(
    r"""\$\(\((?P<sum>[^()`\n]*)\)\)
    | \$(?P<bare>[A-Za-z_][A-Za-z0-9_]*) | \$\{(?P<braced>[A-Za-z_][A-Za-z0-9_]*)\}
    | \\(?P<escaped>["\\$`]|\r?\n)
    | (?P<plain>[^"\\$`]+|\\)""",
    re.VERBOSE,
)
# Without what the shell and Python read differently, as 010 and A++. No part is ever cut into two, so that
# what is no sum is refused at once.
_SUM = re.compile(
    r"[ \t]*+(?:(?:\$?[A-Za-z_][A-Za-z0-9_]*+|0|[1-9][0-9]{0,18}+|[*/%+]|-(?!-))(?![0-9])[ \t]*+){1,100}+",
    re.ASCII,
)
_PATTERN = re.compile(r"[*?\[\\(]")
"""What makes a pattern of a text without quotes to the right of ``==`` in ``[[``."""
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,18})", re.ASCII)
_SUMS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    ast.Mod: lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1),
}


def variables(text: str, source: str) -> dict[str, str]:
    """Return what settings set, name to value, each value as the shell would have it.

    Args:
        text: The file's text.
        source: The file's name, for what is said.

    Raises:
        ConfigError: The first line that is no setting.
    """
    return _Reader(text, source).read()


@dataclass
class _Branch:
    """An ``if`` that is open: whether its lines count now, and whether a part of it has counted."""

    live: bool
    taken: bool
    outer: bool


@dataclass(frozen=True)
class _Word:
    """A word.

    Attributes:
        text: As the shell would have it.
        sets: The name, if it is an assignment.
        plain: It is written without quotes or ``$``.
        matches: It is a pattern where the shell compares with one.
    """

    text: str
    sets: str = ""
    plain: bool = True
    matches: bool = False

    def says(self, *words: str) -> bool:
        return self.plain and self.text in words


class _Reader:
    def __init__(self, text: str, source: str) -> None:
        self._text, self._source = text, source
        self._at = 0
        self._set: dict[str, str] = {}
        self._branches: list[_Branch] = []
        self._said = ""

    @property
    def _live(self) -> bool:
        return not self._branches or self._branches[-1].live

    def read(self) -> dict[str, str]:
        while self._at < len(self._text):
            start = self._at
            if words := self._statement():
                self._obey(words, start)
        if self._branches:
            raise ConfigError([f"{self._source} ends within an if."])
        return self._set

    def _statement(self) -> list[_Word]:
        """Return the words up to the end of a line or a semicolon, which is passed."""
        words: list[_Word] = []
        only_sets = True
        while self._at < len(self._text):
            if space := _SPACE.match(self._text, self._at):
                self._at = space.end()
            elif self._text[self._at] == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif self._text[self._at] in "\n;":
                self._at += 1
                return words
            else:
                word = self._word()
                words.append(word)
                only_sets = only_sets and bool(word.sets)
                if only_sets and self._live:
                    # What comes next in the line sees it already; behind export it does not.
                    self._set[word.sets] = word.text
                if len(words) == 1 and self._branches:
                    # What comes next in the line may count where what stands before does not.
                    if words[0].says("then", "else", "fi"):
                        return words
                    if words[0].says("elif"):
                        branch = self._branches[-1]
                        branch.live = branch.outer and not branch.taken
        return words

    def _word(self) -> _Word:
        start = self._at
        assignment = _ASSIGNMENT.match(self._text, start)
        if assignment:
            self._at = assignment.end()
        parts: list[str] = []
        plain, matches = True, False
        while piece := _PIECE.match(self._text, self._at):
            here, self._at = self._at, piece.end()
            plain = plain and piece["plain"] is not None
            if piece["quote"]:
                parts.append(self._quoted(here))
            else:
                parts.append(piece["single"] if piece["single"] is not None else self._part(piece, here))
                if piece["plain"] or piece["bare"] or piece["braced"]:
                    matches = matches or bool(_PATTERN.search(parts[-1]))
        if self._at == start:
            self._refuse(start)
        text = "".join(parts)
        if len(text) > _LONGEST:
            self._refuse(start, f"the value is longer than {_LONGEST} characters")
        return _Word(text, assignment["name"] if assignment else "", plain, matches)

    def _quoted(self, start: int) -> str:
        """Return what stands between the quotes, the first of which has been passed."""
        parts: list[str] = []
        while piece := _QUOTED.match(self._text, self._at):
            here, self._at = self._at, piece.end()
            parts.append(self._part(piece, here))
        if self._at >= len(self._text):
            self._refuse(start, "the quotes that begin there do not end")
        if self._text[self._at] != '"':
            self._refuse(self._at)
        self._at += 1
        return "".join(parts)

    def _part(self, piece: re.Match[str], at: int) -> str:
        if piece["plain"] is not None:
            return piece["plain"]
        if piece["escaped"] is not None:
            return "" if piece["escaped"].endswith("\n") else piece["escaped"]
        if not self._live:
            return ""
        if piece["sum"] is not None:
            return str(self._sum(piece["sum"], at))
        return self._value(piece["bare"] or piece["braced"], at)

    def _value(self, name: str, at: int) -> str:
        if name in self._set:
            return self._set[name]
        if name in _OUTSIDE:
            return f"${name}"
        near = difflib.get_close_matches(name, self._set, n=1)
        return self._refuse(at, f"{name} is not set before{f'; did you mean {near[0]}?' if near else ''}")

    def _sum(self, text: str, at: int) -> int:
        try:
            if not _SUM.fullmatch(text):
                raise ValueError
            # The shell has $NODES and NODES for the same there.
            return self._number(ast.parse(text.replace("$", "").strip(), mode="eval").body, at)
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError, KeyError):
            return self._refuse(at, f"$(({_short(text)})) is no sum of whole numbers")

    def _number(self, tree: ast.expr, at: int) -> int:
        match tree:
            case ast.Constant(value=int(number)):
                result = number
            case ast.Name(id=name):
                value = self._value(name, at)
                if not _WHOLE.fullmatch(value):
                    raise ValueError
                result = int(value)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                result = -self._number(inner, at)
            case ast.BinOp(left=left, op=op, right=right):
                result = _SUMS[type(op)](self._number(left, at), self._number(right, at))
            case _:
                raise ValueError
        if not -(2**63) <= result < 2**63:
            raise ValueError
        return result

    def _obey(self, words: list[_Word], start: int) -> None:
        first, rest = words[0], words[1:]
        if first.says("if", "elif"):
            self._condition(first.text, rest, start)
        elif first.says("else", "fi", "then") and self._branches:
            branch = self._branches[-1]
            if first.text == "fi":
                self._branches.pop()
            elif first.text == "else":
                branch.live, branch.taken = branch.outer and not branch.taken, True
        elif first.says("echo", "set", ":"):
            if first.text == "echo" and self._live:
                self._said = " ".join(word.text for word in rest)
        elif first.says("return", "exit"):
            if self._live:
                self._refuse(start, f"the file ends itself there: {_short(self._said)!r}")
        else:
            exported = first.says("export", "readonly")
            for word in rest if exported else words:
                if not word.sets and not (exported and word.plain):
                    self._refuse(start)
                if exported and word.sets and self._live:
                    self._set[word.sets] = word.text

    def _condition(self, kind: str, words: list[_Word], start: int) -> None:
        if kind == "if":
            self._branches.append(_Branch(live=self._live, taken=False, outer=self._live))
        if not self._branches:
            self._refuse(start)
        branch = self._branches[-1]
        match [word.text for word in words]:
            case ["true" | "false" as answer]:
                holds = answer == "true"
            case ["[" | "[[", left, "=" | "==" | "!=" as comparison, right, "]" | "]]"]:
                if branch.live and words[0].text == "[[" and words[3].matches:
                    self._refuse(
                        start, f"{_short(right)!r} is a pattern there; put what is compared in quotes"
                    )
                holds = (left == right) != (comparison == "!=")
            case _ if branch.live:
                self._refuse(start, "an if compares two texts, or has true or false")
            case _:
                holds = False
        branch.live = branch.outer and not branch.taken and holds
        branch.taken = branch.taken or branch.live

    def _refuse(self, at: int, why: str = "") -> typing.NoReturn:
        # A statement may begin after lines that it does not stand on.
        while at < len(self._text) and self._text[at].isspace():
            at += 1
        line = self._text.count("\n", 0, at) + 1
        written = self._text[at:].partition("\n")[0].strip()
        why = why or f"{_short(written)!r} is no setting; NAME=value is read, and nothing is run"
        raise ConfigError([f"{self._source} (line {line}): {why}{'' if why.endswith('?') else '.'}"])


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."

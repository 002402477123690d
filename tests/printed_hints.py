"""The commands of ours that a message names, and following them as its reader would."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from typing import TypeVar

PROSE = {
    "MY_IP",
    "and",
    "authors",
    "brings",
    "by",
    "developers",
    "for",
    "has",
    "in",
    "is",
    "of",
    "on",
    "that",
    "wrote",
}
"""What follows the program's name in sentences about it."""
# The purpose of a command stands behind three spaces.
_COMMAND = re.compile(r"(?<![\w/.-])rdm-provision ((?:'[^']*'|[^'\n])+?)(?=   |[`;),]|\.?$)", re.MULTILINE)
_GOES_ON = re.compile(
    r" (?:does that|lists|inspects|makes?|recreates?|saves a checkpoint|shows|takes|restores it)\b.*",
    re.DOTALL,
)
"""How a sentence goes on behind a command."""

Result = TypeVar("Result")


def only_the_command(text: str) -> str:
    """Return a command without what its sentence says after it."""
    return _GOES_ON.sub("", text)


def commands(message: str) -> Iterator[list[str]]:
    """The commands that a message names, each as a shell would read it."""
    for found in _COMMAND.finditer(message):
        words = shlex.split(only_the_command(found[1]))
        if words[0] not in PROSE:
            yield words


def follow(message: str, hint: str, run: Callable[..., Result], *more: str, **filled: str) -> Result:
    """Follow a hint of a message, as a user does who has read it; fail when the message does not give it.

    Args:
        message: what was printed.
        hint: how the command begins, behind the name of the program.
        run: is called with the command's words, and runs it.
        more: further words, which the reader adds.
        filled: what the reader puts in the place of a word, such as ``JOB``.
    """
    begins = hint.split()
    for words in commands(message):
        if words[: len(begins)] == begins:
            return run(*(filled.get(word, word) for word in words), *more)
    raise AssertionError(f"no hint to run rdm-provision {hint} in: {message}")

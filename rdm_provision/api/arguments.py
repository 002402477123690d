# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of arguments that verbs have in common."""

from __future__ import annotations

from collections.abc import Iterable

from rdm_provision.errors import InputError


def words(name: str, given: Iterable[str]) -> list[str]:
    """Return an argument that takes a list of words.

    Raises:
        InputError: it is a string, which list() would split into letters.
    """
    if isinstance(given, str):
        raise InputError(f"{name} {given!r} is a string, not a list", hint=f"{name}=[{given!r}]")
    return list(given)

# SPDX-License-Identifier: GPL-3.0-or-later
"""Merge the results of several rails. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def faulty(verdicts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the reason of each faulty node.

    Args:
        verdicts: of a result: node -> `ok` and `reason`.
    """
    return {node: one["reason"] for node, one in verdicts.items() if not one["ok"]}


def of_rails(evaluated: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the results of several rails as one.

    Figures are those of the first rail. Sentences come from all rails, and name the rail unless all rails
    have them; `rails` has each result.

    Args:
        evaluated: the result of each rail as plain data, the first rail first; the name "" means that there
            is only one rail.
    """
    first = next(iter(evaluated.values()))
    if "" in evaluated:
        return dict(first)
    reasons = {
        name: "; ".join(
            _sentences_of(
                {
                    rail: [one["verdicts"][name]["reason"]]
                    for rail, one in evaluated.items()
                    if not one["verdicts"].get(name, {"ok": True})["ok"]
                },
                len(evaluated),
            )
        )
        for name in first["verdicts"]
    }
    merged = {
        what: _sentences_of({rail: one[what] for rail, one in evaluated.items()}, len(evaluated))
        for what in ("findings", "warnings")
    }
    slow = {name for one in evaluated.values() for name in one.get("slow", ())}
    return {
        **first,
        **merged,
        "ok": not any(reasons.values()),
        "verdicts": {name: {"ok": not reason, "reason": reason} for name, reason in reasons.items()},
        **({"slow": [name for name in first["nodes"] if name in slow]} if "slow" in first else {}),
        "rails": dict(evaluated),
    }


def _sentences_of(rails: Mapping[str, Sequence[str]], count: int) -> list[str]:
    """Return the sentences of each rail with its name; a sentence of all `count` rails once, without name."""
    common = set.intersection(*map(set, rails.values())) if len(rails) == count > 1 else set()
    output = [
        sentence if sentence in common else f"rail {rail}: {sentence}"
        for rail, sentences in rails.items()
        for sentence in sentences
    ]
    return list(dict.fromkeys(output))

# SPDX-License-Identifier: GPL-3.0-or-later
"""Put together what was found on each rail. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def of_rails(evaluated: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the results on several rails as one.

    Figures are those of the first rail. What is said of nodes is said of all rails, and names the rail unless
    it is the same on each; `rails` has them one by one.

    Args:
        evaluated: the result on each rail as plain data, the first one first; one with the name "" is the
            only one.
    """
    first = next(iter(evaluated.values()))
    if "" in evaluated:
        return dict(first)
    reasons = {
        name: "; ".join(
            _said_by(
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
    said = {
        what: _said_by({rail: one[what] for rail, one in evaluated.items()}, len(evaluated))
        for what in ("findings", "warnings")
    }
    slow = {name for one in evaluated.values() for name in one.get("slow", ())}
    return {
        **first,
        **said,
        "ok": not any(reasons.values()),
        "verdicts": {name: {"ok": not reason, "reason": reason} for name, reason in reasons.items()},
        **({"slow": [name for name in first["nodes"] if name in slow]} if "slow" in first else {}),
        "rails": dict(evaluated),
    }


def _said_by(rails: Mapping[str, Sequence[str]], count: int) -> list[str]:
    """Return the sentences on each rail, those that are the same on all `count` once and without its name."""
    common = set.intersection(*map(set, rails.values())) if len(rails) == count > 1 else set()
    output = [
        sentence if sentence in common else f"rail {rail}: {sentence}"
        for rail, sentences in rails.items()
        for sentence in sentences
    ]
    return list(dict.fromkeys(output))

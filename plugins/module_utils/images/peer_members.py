# SPDX-License-Identifier: GPL-3.0-or-later
"""The peers of a transfer, as its source knows them.

This runs on nodes (Python 3.8 or newer, standard library).
"""

from __future__ import annotations

import random
import threading
import time
from typing import Any, Dict, Optional

from ansible_collections.rdm.provision.plugins.module_utils.images.peer_schedule import (
    TURN_S,
    announce_every_s,
    neighbours,
    silent_after_s,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.pieces import PieceList, numbers

DIRECT = 8
"""Pieces that nodes fetch from the source at a time; the other nodes get its pieces from them.

Each of these nodes is the only one with its pieces for a while, and sends them to all others. With few such
nodes their links are the bottleneck.
"""
_STILL_S = 2.0
"""A source whose loop pauses for longer stood still."""
_ANNOUNCED = {
    "name": str,
    "port": int,
    "have": str,
    "wanted": int,
    "missing": int,
    "error": str,
    "trouble": dict,
    "fetched": int,
    "ended": bool,
}


class Members:
    """The peers, as the source knows them."""

    def __init__(self, pieces: PieceList) -> None:
        self.known: Dict[str, Dict[str, Any]] = {}
        self.began = self.heard = self._listened = time.monotonic()
        self.finish = False
        self.lock = threading.Lock()
        self._sent_to: Dict[int, str] = {}
        self._all = pieces.wanted()

    @property
    def every_s(self) -> float:
        """Seconds between two announcements of a node."""
        return announce_every_s(len(self.known))

    def announce(self, address: str, announced: Dict[str, Any]) -> Dict[str, Any]:
        """Record a node's progress, and return the neighbours that it may fetch from.

        Raises:
            KeyError, TypeError, ValueError: the announcement is malformed; nothing is recorded.
        """
        announced = {key: kind(announced[key]) for key, kind in _ANNOUNCED.items()}
        announced.update(address=address, at=time.monotonic(), have=int(announced["have"], 16) & self._all)
        name = announced["name"]
        with self.lock:
            self.known[name] = announced
            alive = self._alive()
            turn = int((time.monotonic() - self.began) / max(TURN_S, self.every_s))
            chosen = [self.known[other] for other in neighbours(list(alive), name, turn)]
            fetching = [other for other, one in alive.items() if one["missing"]][:DIRECT]
            direct = name in fetching and bool(self._unsent(alive))
            return {
                "neighbours": [[one["name"], one["address"], one["port"]] for one in chosen],
                "direct": DIRECT // len(fetching) if direct else 0,
                "finish": self.finish,
                "every_s": self.every_s,
            }

    def listen(self) -> None:
        """Record that this process runs. While it stood still, no other was silent."""
        with self.lock:
            now = time.monotonic()
            gap = now - self._listened
            if gap > _STILL_S:
                for one in self.known.values():
                    one["at"] = min(one["at"] + gap, now)
            self._listened = now

    def _alive(self) -> Dict[str, Dict[str, Any]]:
        """Return the nodes that still take part; pieces that only others have are sent again."""
        since = self._listened - silent_after_s(self.every_s)
        return {
            name: one
            for name, one in self.known.items()
            if one["at"] > since and not one["error"] and not one["ended"]
        }

    def _unsent(self, alive: Dict[str, Dict[str, Any]]) -> int:
        """Return the pieces that were sent to none of these nodes, and that fewer than two of them have.

        A single announcement is not enough: if it were false, all nodes would wait for that piece.
        """
        have = twice = 0
        for one in alive.values():
            twice |= have & one["have"]
            have |= one["have"]
        left = self._all & ~twice
        for number, name in self._sent_to.items():
            if name in alive:
                left &= ~(1 << number)
        return left

    def next_piece(self, name: str, have: int, available: int) -> Optional[int]:
        """Return a piece that neither this node nor others have, and record that it is sent."""
        with self.lock:
            fresh = numbers(self._unsent(self._alive()) & available & ~have)
            if not fresh:
                return None
            number = random.choice(fresh[: 4 * DIRECT])  # noqa: S311  # no secret
            self._sent_to[number] = name
            return number

    def take_back(self, number: int) -> None:
        """Record that a piece did not arrive."""
        with self.lock:
            self._sent_to.pop(number, None)

    def status(self) -> Dict[str, Any]:
        """Return each node's progress and its reports about others, and renew the controller's lease."""
        self.heard = time.monotonic()
        with self.lock:
            return {
                name: {
                    **{key: one[key] for key in ("wanted", "error", "trouble", "fetched")},
                    # A node may have more than it needs, from an earlier run.
                    "have": one["wanted"] - one["missing"],
                    "done": not one["missing"],
                    "silent_s": round(max(0.0, self._listened - one["at"]), 1),
                }
                for name, one in self.known.items()
            }

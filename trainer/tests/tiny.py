# SPDX-License-Identifier: GPL-3.0-or-later
"""The tiny GPT that many tests train, and its losses. The end-to-end tests read the same file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FILE = json.loads(Path(__file__).with_name("tiny_gpt.json").read_text())

CONFIG: dict[str, Any] = _FILE["config"]
LOSSES: dict[int, float] = dict(_FILE["losses"])
"""Of each step of one process on its own. The first ones do not depend on how many there are."""

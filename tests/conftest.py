"""What every test shares: the repository is importable as the collection `rdm.provision`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLLECTIONS = ROOT / ".collections"

sys.path[:0] = [str(COLLECTIONS), str(ROOT)]

"""The plugin rdm-sriov with the lab's stand-ins, which have PCI addresses as real VFs do."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / ".collections"), str(ROOT)]
LAB: dict[str, Any] = runpy.run_path(str(ROOT / "roles/lab/files/sriov-plugin"))


StandIns: Any = LAB["StandIns"]


class Addressed(StandIns):  # type: ignore[misc]
    """Macvlan interfaces; the first has the address 0000:41:00.1."""

    def virtual(self, parent: str) -> list[Any]:
        return [one._replace(key=f"0000:41:00.{one.number + 1}") for one in super().virtual(parent)]

    def interface(self, vf: Any) -> str:
        name: str = super().interface(vf._replace(key=f"{vf.pf}v{vf.number}"))
        return name


if __name__ == "__main__":
    vfs = Addressed()
    try:
        sys.exit(LAB["plugin"].main(sys.argv[1:], vfs))
    finally:
        vfs.remove()

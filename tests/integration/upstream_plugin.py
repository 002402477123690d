"""A stand-in for rdma/sriov-plugin: the same protocol, spoken by rdm-sriov, and its way with VFs.

    python upstream_plugin.py FILE [options of rdm-sriov]

FILE is the sriov_numvfs of the physical function. With its first network it makes all VFs there can be, where
there are none; with its last one it takes all away.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

# In an image it is a packed program, with fewer parent directories.
sys.path.extend(str(checkout / ".collections") for checkout in Path(__file__).resolve().parents[2:3])

from ansible_collections.rdm.provision.plugins.module_utils.docker.plugin_client import CREATE_NETWORK
from ansible_collections.rdm.provision.rdm_sriov import plugin
from ansible_collections.rdm.provision.rdm_sriov.driver import Driver

# Without KVM it takes many seconds to load a driver and find seven VFs.
DRIVER_S = 120.0


def make_all(number: Path) -> None:
    """Create the maximum number of VFs, and wait for their driver to create the interfaces."""
    number.write_text(number.with_name("sriov_totalvfs").read_text())
    vfs = list(number.parent.glob("virtfn*"))
    deadline = time.monotonic() + DRIVER_S
    while not all(any(vf.glob("net/*")) for vf in vfs) and time.monotonic() < deadline:
        time.sleep(0.1)


class Upstream(Driver):
    """See above."""

    def answer(self, call: str, request: dict[str, Any]) -> dict[str, Any]:
        """Answer one call of the engine."""
        number = Path(sys.argv[1])
        if call == CREATE_NETWORK and int(number.read_text()) == 0:
            make_all(number)
        answer = super().answer(call, request)
        if call == "NetworkDriver.DeleteNetwork" and not self._state.networks:
            number.write_text("0")
        return answer


if __name__ == "__main__":
    setattr(plugin, "Driver", Upstream)  # noqa: B010  # mypy takes the name for the import's
    sys.exit(plugin.main(sys.argv[2:]))

"""Duplicate addresses are detected over a real cable in a network namespace."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.conftest import COLLECTIONS

QUERY = """
import json, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from ansible_collections.rdm.provision.plugins.module_utils.network import arp
# As long as sysfs is the host's, it has the host's interfaces.
subprocess.run(["mount", "-t", "sysfs", "sysfs", "/sys"], check=True)
for line in (
    "link add ib0 type veth peer name other",
    "link set other address 02:00:00:00:00:02",
    "link set ib0 up",
    "link set other up",
    "address add 192.169.16.100/24 dev other",
):
    subprocess.run(["ip", *line.split()], check=True)
def in_use(last, pause):
    arp._Wire.probe = lambda wire: (probe(wire), time.sleep(pause))
    return arp.in_use({"ib0": f"192.169.16.{last}"})
probe = arp._Wire.probe
print(json.dumps([in_use(100, 0), in_use(100, arp.LIMIT_S), in_use(101, 0)]))
"""


def test_owner_of_an_address_is_found_and_none_where_it_is_free() -> None:
    """Also on a machine that stands still after the probe for longer than answers are waited for."""
    done = subprocess.run(
        ["unshare", "--net", "--mount", sys.executable, "-c", QUERY, str(COLLECTIONS)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    taken = {"interface": "ib0", "address": "192.169.16.100", "mac": "02:00:00:00:00:02"}
    assert json.loads(done.stdout) == [[taken], [taken], []]

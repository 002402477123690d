# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter hosts_of_play."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import COLLECTIONS

CHOOSES = """
import sys
sys.path.insert(0, sys.argv[1])
from ansible.plugins.loader import init_plugin_loader
init_plugin_loader()
from ansible_collections.rdm.provision.plugins.filter.hosts_of_play import hosts_of_play
lookup = "ansible_collections.rdm.provision.plugins.lookup.desired"
before = lookup in sys.modules
print(hosts_of_play({"plays": {"images": ["n1"]}}, "images"), before, lookup in sys.modules)
"""


def test_workers_of_the_play_inherit_the_desired_state() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHOOSES, str(COLLECTIONS)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["['n1']", "False", "True"]

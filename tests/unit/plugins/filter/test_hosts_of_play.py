# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter hosts_of_play."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.conftest import COLLECTIONS

CHOOSES = """
import sys
sys.path.insert(0, sys.argv[1])
from ansible.plugins.loader import init_plugin_loader
init_plugin_loader()
from ansible_collections.rdm.provision.plugins.filter.hosts_of_play import hosts_of_play
lookup = "ansible_collections.rdm.provision.plugins.lookup.desired"
before = lookup in sys.modules
print(hosts_of_play(*eval(sys.argv[2])), before, lookup in sys.modules)
"""


@pytest.mark.parametrize(
    ("arguments", "hosts"),
    [(({"plays": {"images": ["n1"]}}, "images"), "['n1']"), (("master:workers",), "master:workers")],
)
def test_workers_of_the_play_inherit_the_desired_state(arguments: tuple[Any, ...], hosts: str) -> None:
    command = [sys.executable, "-c", CHOOSES, str(COLLECTIONS), repr(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [hosts, "False", "True"]

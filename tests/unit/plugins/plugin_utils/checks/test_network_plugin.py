"""Checks of the network plugin: each problem names the value and what would work."""

from __future__ import annotations

import pytest

from tests.unit.plugins.node_reports import container, report
from tests.unit.plugins.plugin_utils.checks.findings import (
    problems,
    warnings,
)

PLUGIN = {"rdm.provision.cluster": "rdm", "rdm.provision.role": "plugin"}


@pytest.mark.parametrize(
    ("served_by", "unit_of", "state", "labels", "refused"),
    [
        ("", None, "", {}, False),
        ("another", None, "", {}, True),
        ("rdm-sriov", None, "", {}, True),
        ("rdm-sriov", "rdm", "", {}, False),
        ("rdm-sriov", "theirs", "", {}, True),
        ("another", "rdm", "", {}, True),
        ("another", None, "running", PLUGIN, False),
        ("rdm-sriov", None, "running", PLUGIN, False),
        ("another", None, "exited", PLUGIN, True),
        ("another", None, "running", {**PLUGIN, "rdm.provision.cluster": "theirs"}, True),
    ],
)
def test_a_socket_that_is_taken_is_refused_before_anything_is_changed(
    served_by: str, unit_of: str | None, state: str, labels: dict[str, str], refused: bool
) -> None:
    seen = {"unit": unit_of is not None, "cluster": unit_of or "", "socket": "/run/p.sock"}
    others = [{**container("p"), "labels": labels, "state": state}] if state else []
    found = report(network_plugin={**seen, "served_by": served_by}, docker_containers=others)
    messages = [
        line
        for line in problems(found, network_driver="sriov", plugin="rdm-sriov")
        if line.startswith("sriov_socket")
    ]
    assert messages == refused * [
        "sriov_socket /run/p.sock is served by something else already: stop it, or leave it to that "
        "(sriov_enabled: false)"
    ]
    assert not any("sriov_socket" in line for line in problems(found, plugin=""))


def test_an_engine_that_makes_the_upstream_plugin_destructive_refuses_this_one_only() -> None:
    [sentence] = problems(report(), network_driver="sriov", plugin="upstream")
    assert sentence == (
        "sriov_plugin upstream forgets all its networks when it is restarted here: it queries the engine in "
        "API version 1.12, and Docker Engine 27.4.1 refuses those below 1.24: use sriov_plugin: rdm-sriov, "
        "or Docker Engine 24 or older"
    )
    assert problems(report(docker_min_api_version="1.12"), network_driver="sriov", plugin="upstream") == []
    for plugin in ("", "rdm-sriov"):
        assert problems(report(), network_driver="sriov", plugin=plugin) == []
        assert warnings(report(), network_driver="sriov", plugin=plugin) == []

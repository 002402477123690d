"""The digest of a role's part differs exactly when the part, or its version, does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.rdm.provision.plugins.plugin_utils.desired import state
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables

from tests.unit.plugins.desired_states import digest as digest_of

ENTRY = PlanEntry(
    "n1",
    subnet="10.1.0.0/24",
    gateway="10.1.0.1",
    my_ip="10.1.0.101",
    master_addr="10.1.0.100",
    address_map="n1 10.1.0.101\n",
    hostfile="10.1.0.100 slots=8\n",
)


def variables(**given: Any) -> NodeVariables:
    given = {"network_driver": "macvlan", **given}
    return NodeVariables(given, given.__getitem__)


def digest(entry: PlanEntry = ENTRY, **given: Any) -> str:
    return digest_of("network", variables(**given), entry)


@pytest.mark.parametrize(
    "given",
    [
        {"network_vlan": "0"},  # the default, of another type
        {"network_subnet": "10.1.0.0/24"},  # what is planned
        {"container_env": {"A": "1"}, "their_own": 1},
        {"network_replace": True},  # how a run may get there, not where it ends
    ],
)
def test_unchanged_part_keeps_its_digest(given: dict[str, Any]) -> None:
    assert digest(**given) == digest()


@pytest.mark.parametrize("given", [{"network_name": "mine"}, {"rdm_cluster": "other"}])
def test_another_part_has_another_digest(given: dict[str, Any]) -> None:
    assert digest(**given) != digest()
    assert digest(ENTRY._replace(gateway="10.1.0.254")) != digest()


def test_another_version_has_another_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest()
    part = state.PARTS["network"]
    monkeypatch.setattr(state, "PARTS", {**state.PARTS, "network": part._replace(version=part.version + 1)})
    was, now = before.split("-"), digest().split("-")
    assert was[0] != now[0]
    assert was[1] == now[1]


@pytest.mark.parametrize("role", state.PARTS)
def test_a_part_is_of_plain_types(role: str) -> None:
    given = {"container_image": "x:1", "images_list": [{"name": "x:1", "source": "registry"}]}
    part = state.desired(role, variables(**given), ENTRY)
    assert json.loads(json.dumps(part)) == part


def test_parts_are_of_roles_that_change_nodes_in_the_order_of_their_plays() -> None:
    root = Path(__file__).parents[5]
    site = [one["vars"] for one in yaml.safe_load((root / "playbooks/site.yml").read_text(encoding="utf-8"))]
    plays = [one["__work"] for one in site if "__work" in one and one.get("__tasks") != "inspect"]
    assert list(state.PARTS) == list(state.Parts.__annotations__) == plays
    for role in state.PARTS:
        text = (root / "roles" / role / "vars/main.yml").read_text(encoding="utf-8")
        assert f"__{role}_desired: \"{{{{ lookup('rdm.provision.desired', '{role}') }}}}\"" in text

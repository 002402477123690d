"""The desired files of MY_IP and the hostfile of a node, and their removal."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state import desired

from tests.unit.plugins.desired_states import digest, variables

ENTRY = PlanEntry(
    "n1",
    my_ip="10.1.0.101",
    master_addr="10.1.0.100",
    address_map="n0 10.1.0.100\nn1 10.1.0.101\n",
    hostfile="10.1.0.100 slots=8\n",
)
ALONE: dict[str, Any] = {
    "my_ip_address": "10.2.0.1",
    "my_ip_master_addr": "10.2.0.9",
    "my_ip_address_map": "n1 10.2.0.1\n",
}


def made(role: str, entry: PlanEntry = ENTRY, absent: bool = False, **given: Any) -> dict[str, Any]:
    return desired(role, variables(given), entry, absent=absent)


def paths(part: dict[str, Any], kind: str = "files") -> list[str]:
    return [one["path"] for one in part[kind]]


def test_my_ip_as_the_plan_says_it() -> None:
    part = made("my_ip")
    assert part["owner_marker"] == {"path": "/etc/rdm/cluster", "name": "rdm"}
    assert part["files"] == [
        {"path": "/etc/rdm/nodes", "content": ENTRY.address_map},
        {"path": "/etc/rdm/env", "content": "MY_IP=10.1.0.101\nMASTER_ADDR=10.1.0.100\n"},
    ]
    assert {"/etc/environment", "/etc/profile.d/rdm.sh"} & set(paths(part, "blocks"))
    assert part["repairs"] == []


def test_my_ip_without_a_plan_and_without_root() -> None:
    given: dict[str, Any] = {**ALONE, "rdm_become": "no", "my_ip_csh": True, "my_ip_repair_strays": "yes"}
    part = made("my_ip", PlanEntry("n1"), **given)
    assert paths(part) == ["~/.rdm/%n/nodes", "~/.rdm/%n/env"]
    assert all(path.startswith("~/") for path in paths(part, "blocks"))
    assert part["repairs"] == [{"variable": "MY_IP", "value": "10.2.0.1", "system": False}]


@pytest.mark.parametrize("missing", ALONE)
def test_values_that_need_a_plan_are_named(missing: str) -> None:
    given: dict[str, Any] = {name: value for name, value in ALONE.items() if name != missing}
    with pytest.raises(ValueError, match=f"set {missing}, or run the role preflight before"):
        made("my_ip", PlanEntry("n1"), **given)


def test_the_hostfile_goes_to_the_directory_that_was_found() -> None:
    seen = ENTRY._replace(observed={"config_dir": "/home/u/.rdm/host"})
    assert made("hostfile", seen)["files"] == [
        {"path": "/home/u/.rdm/host/job/hostfile", "content": ENTRY.hostfile}
    ]
    assert paths(made("hostfile", seen, hostfile_config_dir="/srv/rdm")) == ["/srv/rdm/job/hostfile"]


@pytest.mark.parametrize("role", ["my_ip", "hostfile"])
def test_exactly_the_written_files_are_removed_without_a_plan_too(role: str) -> None:
    gone = made(role, PlanEntry("n1"), absent=True)
    for kind in ("files", "directories"):
        assert paths(gone, kind) == paths(made(role), kind)
        assert {one["state"] for one in gone[kind]} == {"absent"}
    # Files that are written only if a shell is installed are always removed.
    assert set(paths(made(role), "blocks")) <= set(paths(gone, "blocks"))


@pytest.mark.parametrize("role", ["my_ip", "hostfile"])
def test_facts_leave_the_digest(role: str) -> None:
    seen = ENTRY._replace(observed={"config_dir": "/home/u/.rdm/host", "shells": {"csh": True}})
    assert digest(role, variables({}), seen) == digest(role, variables({}), ENTRY)
    others = ENTRY._replace(address_map="n0 10.1.0.100\n", hostfile="10.1.0.100 slots=4\n")
    assert digest(role, variables({}), others) != digest(role, variables({}), ENTRY)


@pytest.mark.parametrize(
    ("given", "directory"),
    [({}, "/etc/rdm"), ({"rdm_become": "no"}, "~/.rdm/%n"), ({"rdm_config_dir": "/srv/rdm"}, "/srv/rdm")],
)
def test_the_state_file_has_one_place_with_and_without_facts(given: dict[str, Any], directory: str) -> None:
    seen = ENTRY._replace(observed={"config_dir": "/home/u/.rdm/host"})
    for entry in (ENTRY, seen):
        part = made("state_file", entry, **given)
        assert (part["directory"], part["config_dir"]) == (directory, directory)
    assert made("state_file", **given, container_config_dir="/c")["directory"] == "/c"

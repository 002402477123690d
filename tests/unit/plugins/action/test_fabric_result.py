"""`rdm.provision.fabric_result` as ansible-playbook runs it, with given measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ansible_playbook import played

PLAY = """
- name: Evaluate the fabric
  hosts: all
  gather_facts: false
  tasks:
    - name: Evaluate
      rdm.provision.fabric_result:
        nodes: "n1 10.0.0.1\\nn2 10.0.0.2\\nn3 10.0.0.3\\n"
        measurements: measured
        work: "{{ work | default({}) }}"
      run_once: true
"""


def measured(*peers: str, up: bool = True, refused_by: str = "") -> dict[str, Any]:
    """Return a node's measurement; each peer is a line of the probe's result, and one may refuse a login."""
    return {
        "measured": {
            "measured": True,
            "reason": "",
            "container_state": "running",
            "method": "icmp",
            "note": "",
            "link": {"name": "eth0", "up": up},
            "rtt_us": "".join(f"{peer}\n" for peer in peers),
            "loss": {},
            "errors": {},
            "ssh": {},
            "login": {refused_by: "Permission denied"} if refused_by else {},
        }
    }


CUT = {
    "n1": measured("n2 90 80", "n3 -"),
    "n2": measured("n3 -", "n1 90 80"),
    "n3": measured("n1 -", "n2 -", up=False),
}


def evaluated(directory: Path, *options: str, hosts: dict[str, Any] = CUT) -> dict[str, Any]:
    (directory / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}, sort_keys=False))
    (directory / "play.yml").write_text(PLAY)
    (task,) = played("--inventory=hosts.yml", "--check", "play.yml", *options, directory=directory).tasks
    result: dict[str, Any] = task["hosts"]["n1"]
    return result


def test_run_without_changes_fails_nodes_that_are_off_the_fabric(tmp_path: Path) -> None:
    result = evaluated(tmp_path)
    assert list(result["faulty"]) == ["n3"]
    assert result["faulty"]["n3"] == result["fabric"]["verdicts"]["n3"]["reason"]
    assert "no link" in result["faulty"]["n3"]


@pytest.mark.parametrize(
    ("work", "results", "faulty"),
    [
        # Its container is recreated, or will be by a role that could not check yet.
        (["my_ip", "container"], {"__container_run": {"changed": True}}, []),
        (["container"], {}, []),
        # As after an upgrade: all roles check, and find nothing to change.
        (["images", "network", "my_ip", "container"], {"__container_run": {"changed": False}}, ["n3"]),
        (["hostfile"], {"__container_run": {"changed": True}}, ["n3"]),
        (
            ["sriov", "container"],
            {"__sriov_vfs": {"changed": True}, "__container_run": {"changed": False}},
            [],
        ),
    ],
)
def test_only_nodes_about_to_change_are_reported_without_failing(
    tmp_path: Path, work: list[str], results: dict[str, Any], faulty: list[str]
) -> None:
    hosts = {**CUT, "n3": {**CUT["n3"], **results}}
    options = json.dumps({"work": {"n3": {role: ["it was made from another version"] for role in work}}})
    result = evaluated(tmp_path, "-e", options, hosts=hosts)
    assert list(result["faulty"]) == faulty
    assert result["fabric"]["verdicts"]["n3"]["ok"] is False


def test_refusal_by_a_changing_node_is_no_fault_of_its_peer(tmp_path: Path) -> None:
    # n2 answers n1, so n3 is cut off and not n1, though its interface is up.
    hosts = {
        "n1": measured("n2 90 80", "n3 -", refused_by="n2"),
        "n2": measured("n3 -", "n1 90 80", refused_by="n2"),
        "n3": measured("n1 -", "n2 -"),
    }
    result = evaluated(tmp_path, "-e", '{"work": {"n2": {"container": ["a key has changed"]}}}', hosts=hosts)
    assert list(result["faulty"]) == ["n3"]

"""`rdm.provision.protect_jobs` as ansible-playbook runs it, on hosts that are never reached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.ansible_playbook import played

PLAY = """
- name: Protect jobs
  hosts: all
  gather_facts: false
  tasks:
    - name: Protect
      rdm.provision.protect_jobs:
        jobs: gathered
      run_once: true
    - name: Go on
      ansible.builtin.debug:
"""
REGISTERED = {
    "idle": {"gathered": {"running": []}},
    "busy": {"gathered": {"running": ["one", "two"]}},
    "gone": {"gathered": {"unreachable": True}},
    "not-queried": {},
    "busy-too": {"gathered": {"running": ["one"]}},
}


def protect(directory: Path, *options: str) -> tuple[int, dict[str, Any], list[str]]:
    """Return the exit status, the result, and the hosts on which the play continued."""
    (directory / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": REGISTERED}}, sort_keys=False))
    (directory / "play.yml").write_text(PLAY)
    rc, (protected, *after), _ = played("--inventory=hosts.yml", "play.yml", *options, directory=directory)
    (result,) = protected["hosts"].values()
    return rc, result, [host for task in after for host in task["hosts"]]


def test_every_job_is_named_and_no_host_continues(tmp_path: Path) -> None:
    rc, result, after = protect(tmp_path)
    assert (rc, result["rdm_refused"], result["changed"], after) == (2, "nodes", False, [])
    assert [(one["node"], one["value"]) for one in result["problems"]] == [
        ("busy", "the job one"),
        ("busy", "the job two"),
        ("busy-too", "the job one"),
    ]
    assert result["msg"].startswith(
        "Refused before a container was touched, because of 2 problems:\n- busy, "
    )


def test_check_mode_only_warns(tmp_path: Path) -> None:
    rc, result, after = protect(tmp_path, "--check")
    assert (rc, after) == (0, sorted(REGISTERED))
    assert [warning[:42] for warning in result["warnings"]] == [
        "This would be refused: busy, busy-too: the",
        "This would be refused: busy: the job two r",
    ]


def test_hosts_without_jobs_go_on(tmp_path: Path) -> None:
    assert protect(tmp_path, "--limit=idle,gone,not-queried")[0] == 0

"""A renamed variable still works in a role that is used alone."""

from __future__ import annotations

from pathlib import Path

from tests.integration.plays import run_plays


def test_role_used_alone_accepts_a_former_name_with_a_notice(tmp_path: Path) -> None:
    role = {"name": "Export", "ansible.builtin.include_role": {"name": "rdm.provision.my_ip"}}
    played = run_plays(
        tmp_path,
        [{"tasks": [role]}],
        "--check",
        "--diff",
        my_ip_address="10.9.9.9",
        my_ip_config_dir=str(tmp_path / "config"),
        my_ip_dictionary="node1 10.9.9.9\n",
        my_ip_master_addr="10.9.9.9",
    )
    assert played.status == 0, played.output
    assert "node1 10.9.9.9" in str([result.get("diff") for result in played.results.values()])
    assert "The variable my_ip_dictionary is called my_ip_address_map now" in played.output

"""What an installed wheel brings: the command, the collection and its playbooks."""

from __future__ import annotations

from tests.e2e.conftest import Installed


def test_the_collection_comes_with_the_wheel(installed: Installed) -> None:
    listed = installed.run("ansible-galaxy", "collection", "list", "rdm.provision").stdout
    assert "rdm.provision" in listed
    roles = installed.run("ansible-doc", "--type", "role", "--list").stdout
    for role in (
        "preflight",
        "images",
        "sriov",
        "network",
        "my_ip",
        "container",
        "hostfile",
        "verify",
        "lab",
    ):
        assert f"rdm.provision.{role}" in roles


def test_every_playbook_is_found_by_its_full_name(installed: Installed) -> None:
    (installed.directory / "hosts.yml").write_text(
        "all: {children: {master: {hosts: {a: }}, workers: {hosts: {b: }}}}\n", encoding="utf-8"
    )
    for playbook in ("site", "preflight", "verify", "clean", "lab_up", "lab_down"):
        name = f"rdm.provision.{playbook}"
        installed.run("ansible-playbook", name, "--inventory", "hosts.yml", "--list-tasks")


def test_modules_are_documented_in_the_wheel(installed: Installed) -> None:
    for module in ("node_facts", "image_archive", "plan", "node_files", "fabric_probe", "lab"):
        assert installed.run("ansible-doc", f"rdm.provision.{module}").stdout.strip()


def test_the_command_knows_its_version_and_its_verbs(installed: Installed) -> None:
    assert "0.1.0" in installed.rdm("--version").stdout
    shown = installed.rdm("--help").stdout
    for verb in ("lab", "plan", "check", "up", "verify", "status", "exec", "down", "doctor"):
        assert verb in shown


def test_a_typing_error_is_answered_with_the_nearest_verb(installed: Installed) -> None:
    assert "check" in installed.rdm("chek", expect=3).stderr

"""The environment of Ansible's programs: safe and fast by default, and what the user chose stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from rdm_provision import environment
from rdm_provision.errors import InputError, ToolMissingError


def test_defaults_are_safe_and_fast() -> None:
    env = environment.ansible_environment({})
    assert env["ANSIBLE_HOST_KEY_CHECKING"] == "True"
    assert env["ANSIBLE_PIPELINING"] == "True"
    assert "ControlPersist" in env["ANSIBLE_SSH_ARGS"]
    assert env["ANSIBLE_INJECT_FACT_VARS"] == "False"


def test_host_keys_are_checked_with_any_user_settings() -> None:
    env = environment.ansible_environment({"ANSIBLE_HOST_KEY_CHECKING": "False"})
    assert env["ANSIBLE_HOST_KEY_CHECKING"] == "True"


def test_the_users_own_settings_stay() -> None:
    Path("ansible.cfg").write_text("[ssh_connection]\nssh_args = -o ProxyJump=gate\n", encoding="utf-8")
    env = environment.ansible_environment({"ANSIBLE_TIMEOUT": "99"})
    assert "ANSIBLE_SSH_ARGS" not in env
    assert "ANSIBLE_TIMEOUT" not in env
    assert env["ANSIBLE_PIPELINING"] == "True"


def test_the_configuration_that_the_environment_names_comes_first(tmp_path: Path) -> None:
    Path("ansible.cfg").write_text("[defaults]\ntimeout = 5\n", encoding="utf-8")
    other = tmp_path / "other.cfg"
    other.write_text("[defaults]\npipelining = false\n", encoding="utf-8")
    env = environment.ansible_environment({"ANSIBLE_CONFIG": str(other)})
    assert "ANSIBLE_PIPELINING" not in env
    assert env["ANSIBLE_TIMEOUT"] == "20"


def test_a_configuration_that_ansible_does_not_take_is_refused() -> None:
    with pytest.raises(InputError, match=r"ANSIBLE_CONFIG is /dev/null.*\.cfg") as error:
        environment.ansible_environment({"ANSIBLE_CONFIG": "/dev/null"})
    assert "unset it" in error.value.hint
    environment.ansible_environment({"ANSIBLE_CONFIG": "/no/such/file"})  # Ansible looks elsewhere


def test_a_broken_configuration_is_left_to_ansible() -> None:
    Path("ansible.cfg").write_text("no section = here\n", encoding="utf-8")
    assert environment.ansible_environment({})["ANSIBLE_PIPELINING"] == "True"


def test_collections_of_the_user_are_still_found() -> None:
    env = environment.ansible_environment({"ANSIBLE_COLLECTIONS_PATH": "/srv/collections"})
    paths = env["ANSIBLE_COLLECTIONS_PATH"].split(":")
    assert Path(paths[0], "ansible_collections/rdm/provision").exists()
    assert paths[1:] == ["/srv/collections"]


def test_callbacks_of_the_user_stay() -> None:
    env = environment.ansible_environment({"ANSIBLE_CALLBACKS_ENABLED": "timer, profile_tasks"})
    assert env["ANSIBLE_CALLBACKS_ENABLED"].split(",") == [
        "timer",
        "profile_tasks",
        "rdm.provision.module_cache",
        "rdm.provision.template_cache",
    ]
    Path("ansible.cfg").write_text("[defaults]\ncallbacks_enabled = timer\n", encoding="utf-8")
    assert environment.ansible_environment({})["ANSIBLE_CALLBACKS_ENABLED"].startswith("timer,")


def test_programs_of_this_python_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert Path(environment.program("ansible-playbook")).is_file()
    with pytest.raises(ToolMissingError, match="no-such-program"):
        environment.program("no-such-program")


def test_playbooks_by_name_and_by_path(tmp_path: Path) -> None:
    assert environment.playbook("site").endswith("playbooks/site.yml")
    assert environment.playbook(str(tmp_path / "x.yml")) == str(tmp_path / "x.yml")
    with pytest.raises(ToolMissingError, match="nonsense"):
        environment.playbook("nonsense")

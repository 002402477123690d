"""The content of an installed wheel: the command, its completion, the collection and its playbooks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT
from tests.e2e.product import Product

VERSION = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))["version"]

VERBS = ("lab", "doctor", "plan", "check", "up", "verify", "status", "exec", "down")
PLAYBOOKS = ("site", "preflight", "verify", "clean", "lab_up", "lab_down")
ROLES = (
    *("preflight", "docker_engine", "images", "sriov", "network"),
    *("my_ip", "container", "hostfile", "verify", "lab"),
)
MODULES = ("node_facts", "image_archive", "plan", "node_files", "fabric_probe", "lab")


@pytest.fixture(scope="module")
def two(product: Product) -> str:
    """An inventory of two hosts that may not exist."""
    text = "all: {children: {master: {hosts: {a: }}, workers: {hosts: {b: }}}}\n"
    (product.directory / "two.yml").write_text(text, encoding="utf-8")
    return "two.yml"


def test_wheel_has_the_collection(product: Product) -> None:
    listed = product.run("ansible-galaxy", "collection", "list", "rdm.provision").stdout
    assert f"rdm.provision {VERSION}" in listed
    listing = ("ansible-doc", "--type", "role", "--list", "--json", "rdm.provision")
    roles = json.loads(product.run(*listing).stdout)
    assert [role for role in ROLES if "main" not in roles[f"rdm.provision.{role}"]["entry_points"]] == []
    documented = product.run("ansible-doc", "--json", *(f"rdm.provision.{name}" for name in MODULES)).stdout
    assert set(json.loads(documented)) == {f"rdm.provision.{name}" for name in MODULES}


def test_the_wheel_can_be_installed_with_others(product: Product) -> None:
    program = "import importlib.metadata as m; print(*m.requires('rdm-provision'), sep='\\n')"
    needs = product.run("python", "-c", program).stdout.splitlines()
    assert len(needs) > 5
    assert [one for one in needs if "==" in one.partition(";")[0]] == []


def test_every_playbook_is_found_by_its_full_name(product: Product, two: str) -> None:
    names = [f"rdm.provision.{playbook}" for playbook in PLAYBOOKS]
    shown = product.run("ansible-playbook", *names, "--inventory", two, "--list-hosts").stdout
    found = [line.partition(": ")[2] for line in shown.splitlines() if line.startswith("playbook: ")]
    playbooks = Path("ansible_collections", "rdm", "provision", "playbooks")
    assert [Path(*Path(path).parts[-5:]) for path in found] == [
        playbooks / f"{name}.yml" for name in PLAYBOOKS
    ]
    assert all(path.startswith(str(product.bin.parent)) for path in found)


def test_the_command_knows_its_version_and_its_verbs(product: Product) -> None:
    assert f"rdm-provision {VERSION}" in product.rdm("--version").stdout
    shown = product.rdm("--help").stdout
    assert [verb for verb in VERBS if f"  {verb} " not in shown] == []


def test_misspelt_verb_gets_the_nearest_one(product: Product) -> None:
    assert "did you mean check?" in product.rdm("chek", expect=3).stderr


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("rdm-provision ver", ["verify"]),
        ("rdm-provision lab st", ["start", "status", "stop"]),
        ("rdm-provision up --li", ["--limit"]),
        ("rdm-provision up -i two.yml --limit ''", ["a", "b", "master", "workers"]),
    ],
)
def test_bash_completes(product: Product, two: str, line: str, offered: list[str]) -> None:
    """Bash's completions of a line, after it has read our script."""
    script = (
        'source <(rdm-provision completion bash) && COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) '
        "&& _rdm_provision_completion rdm-provision && printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    words = ["" if word == "''" else word for word in line.split()]
    assert sorted(product.run("bash", "-c", script, "bash", *words).stdout.split()) == offered


def test_doctor_examines_this_machine(product: Product) -> None:
    result = json.loads(product.rdm("doctor", "--json").stdout)
    assert result["ok"]
    checks = {check["name"]: check for check in result["checks"]}
    assert checks["ansible-core"]["ok"]
    assert str(product.bin) in checks["ansible-core"]["detail"]
    assert str(product.bin.parent) in checks["collection rdm.provision"]["detail"]
    assert checks["docker engine"] == checks["docker engine"] | {"ok": True, "needed_for": "lab"}

"""Bad input gets a sentence that names the value and what would work, and nothing has changed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.conftest import Installed, Lab

TWO = {"master": {"hosts": {"a": {}}}, "workers": {"hosts": {"b": {}}}}


def inventory(children: dict[str, Any], **variables: Any) -> dict[str, Any]:
    return {"all": {"vars": {"rdm_accelerator": "cpu", **variables}, "children": children}}


OFFLINE = {
    "no master": (inventory({"workers": {"hosts": {"b": {}}}}), ["master"]),
    "two masters": (inventory({"master": {"hosts": {"a": {}, "b": {}}}}), ["a", "b", "master"]),
    "master and worker": (
        inventory({"master": {"hosts": {"a": {}}}, "workers": {"hosts": {"a": {}}}}),
        ["a", "worker"],
    ),
    "same host twice": (
        inventory(
            {
                "master": {"hosts": {"a": {"ansible_host": "10.9.9.9"}}},
                "workers": {"hosts": {"b": {"ansible_host": "10.9.9.9"}}},
            }
        ),
        ["a", "b", "10.9.9.9"],
    ),
    "unknown accelerator": (inventory(TWO, rdm_accelerator="tpu"), ["tpu", "rocm", "cuda", "cpu"]),
    "malformed subnet": (inventory(TWO, rdm_subnet="10.1.2.0/33"), ["10.1.2.0/33"]),
    "host bits": (inventory(TWO, rdm_subnet="10.1.2.3/24"), ["10.1.2.3/24", "10.1.2.0/24"]),
    "too small": (inventory(TWO, rdm_subnet="10.1.2.0/31"), ["10.1.2.0/31"]),
    "pin outside": (
        inventory({"master": {"hosts": {"a": {"my_ip": "10.0.0.1"}}}}),
        ["a", "10.0.0.1", "192.169.16.0/24"],
    ),
    "pin used twice": (
        inventory(
            {
                "master": {"hosts": {"a": {"my_ip": "192.169.16.7"}}},
                "workers": {"hosts": {"b": {"my_ip": "192.169.16.7"}}},
            }
        ),
        ["a", "b", "192.169.16.7"],
    ),
    "unknown driver": (inventory(TWO, network_driver="sriovv"), ["sriovv", "macvlan"]),
}


@pytest.mark.parametrize("case", OFFLINE)
@pytest.mark.parametrize("verb", ["plan", "up"])
def test_an_inventory_that_is_wrong_is_bad_input(
    installed: Installed, tmp_path: Path, case: str, verb: str
) -> None:
    data, words = OFFLINE[case]
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(data), encoding="utf-8")
    done = installed.rdm(verb, "--inventory", str(tmp_path), expect=3)
    for word in words:
        assert word in done.stderr + done.stdout, f"{word} is not named"
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "address_plan.cfg").exists()


def test_the_same_words_from_ansible_playbook(installed: Installed, tmp_path: Path) -> None:
    data, words = OFFLINE["two masters"]
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(data), encoding="utf-8")
    done = installed.run("ansible-playbook", "rdm.provision.site", "--inventory", tmp_path, expect=2)
    assert all(word in done.stdout + done.stderr for word in words)


def test_an_inventory_that_is_not_there(installed: Installed) -> None:
    assert "nowhere" in installed.rdm("up", "--inventory", "nowhere", expect=3).stderr


def test_a_limit_that_matches_nothing(lab: Lab) -> None:
    assert "n9" in lab.rdm("up", "--limit", "n9", expect=3).stderr


@pytest.fixture
def changed_inventory(lab: Lab, tmp_path: Path) -> Iterator[Path]:
    """A copy of the lab's inventory, keys included, to which a test may add variables."""
    copy = tmp_path / "inventory"
    shutil.copytree(lab.inventory, copy)
    (copy / "address_plan.cfg").unlink(missing_ok=True)
    yield copy
    assert lab.on("n1", "sh", "-c", "ls -d /etc/rdm 2>/dev/null || true").strip() == "", (
        "a refusal changed a node"
    )


ON_NODES = {
    "interface that does not exist": ({"network_parent": "ib7"}, ["ib7", "ib0"]),
    "collision with a Docker network": ({"rdm_subnet": "172.17.0.0/16"}, ["172.17.0.0/16", "bridge"]),
    "archive that is missing": (
        {"images_list": [{"name": "x:1", "source": "archive", "path": "/srv/none.tar", "remote_src": True}]},
        ["/srv/none.tar"],
    ),
}


@pytest.mark.parametrize("case", ON_NODES)
def test_what_the_nodes_do_not_allow_is_refused_for_all_at_once(
    lab: Lab, changed_inventory: Path, case: str
) -> None:
    variables, words = ON_NODES[case]
    (changed_inventory / "group_vars").mkdir()
    (changed_inventory / "group_vars" / "all.yml").write_text(yaml.safe_dump(variables), encoding="utf-8")
    done = lab.product.rdm("up", "--inventory", str(changed_inventory), expect=2)
    shown = done.stdout + done.stderr
    for word in [*words, "n1", "n2", "n3"]:
        assert word in shown, f"{word} is not named"
    assert "Traceback" not in shown


def test_values_with_quotes_and_newlines_reach_no_shell(lab: Lab, changed_inventory: Path) -> None:
    value = 'x\' "y" $(touch /tmp/pwned) `touch /tmp/pwned`\nz'
    (changed_inventory / "group_vars").mkdir()
    (changed_inventory / "group_vars" / "all.yml").write_text(
        yaml.safe_dump({"container_env": {"NOTE": value}}), encoding="utf-8"
    )
    lab.product.rdm("up", "--inventory", str(changed_inventory))
    shown = lab.product.json("exec", "--inventory", str(changed_inventory), "--", "printenv", "NOTE")
    assert {out["stdout"] for out in shown["nodes"].values()} == {value + "\n"}
    for node in ("n1", "n2", "n3"):
        assert lab.on(node, "sh", "-c", "ls /tmp/pwned 2>/dev/null || true") == ""
    lab.product.rdm("down", "--inventory", str(changed_inventory))

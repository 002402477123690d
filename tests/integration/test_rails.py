"""A container on two rails: the plan's two networks, made by the roles on a real engine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.engine import Engine, net
from tests.integration.plays import HOST, Played, run_plays

RAILS = [f"rl{os.getpid()}{end}" for end in "ab"]
NET, NEXT, ANOTHER, THIRD = map(net, range(2, 6))
CLUSTER = "rails"


@pytest.fixture
def parents() -> Iterator[list[str]]:
    """Two interfaces, the rails of this node; the other end of each is up."""
    for name in RAILS:
        link = ["ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}x"]
        subprocess.run(link, check=True)
        for end in (name, f"{name}x"):
            subprocess.run(["ip", "link", "set", end, "up"], check=True)
    yield RAILS
    for name in RAILS:
        subprocess.run(["ip", "link", "del", name], check=True)


@pytest.fixture
def bare(engine: Engine) -> Iterator[Engine]:
    """An engine without containers and networks of these tests."""
    yield engine
    engine.clear()


def tasks(*roles: tuple[str, str]) -> list[dict[str, Any]]:
    return [
        {
            "name": f"Run {role} {name}",
            "ansible.builtin.include_role": {"name": f"rdm.provision.{role}", "tasks_from": name},
        }
        for role, name in roles
    ]


def play(directory: Path, engine: Engine, image: str, *roles: tuple[str, str], **variables: Any) -> Played:
    """Plan from the inventory and from what the node reports, then run the roles."""
    plan = [
        {
            "name": "Gather",
            "rdm.provision.node_facts": {"docker_socket": engine.socket},
            "register": "preflight_facts",
        },
        {
            "name": "Plan",
            "rdm.provision.plan": {"stage": "nodes", "facts": "preflight_facts", "state_files": True},
            "register": "preflight_plan",
        },
    ]
    (directory / "group_vars").mkdir(exist_ok=True)
    return run_plays(
        directory,
        [{"tasks": [*plan, *tasks(*roles)]}],
        docker_host=f"unix://{engine.socket}",
        rdm_cluster=CLUSTER,
        rdm_accelerator="cpu",
        rdm_subnet=f"{NET}.0/24",
        container_ssh_key_dir=str(directory / "keys"),
        rdm_config_dir=str(directory / "config"),
        container_job_directory=str(directory / "jobs"),
        container_image=image,
        container_sshd=False,
        container_stop_timeout=0,
        container_memlock_required=False,
        network_driver="macvlan",
        network_parent=RAILS[0],
        **variables,
    )


UP = (("network", "present"), ("container", "present"))
DOWN = (("container", "absent"), ("network", "absent"))


def networks(engine: Engine) -> dict[str, str]:
    """The cluster's networks, and the interface below each."""
    filters = {"label": [f"rdm.provision.cluster={CLUSTER}"]}
    found = engine.api.get("/networks", filters=filters)
    return {one["Name"]: one["Options"]["parent"] for one in found}


def test_container_is_on_both_rails_and_networks_are_removed_with_it(
    bare: Engine, busybox_image: str, parents: list[str], tmp_path: Path
) -> None:
    def run(*roles: tuple[str, str], **more: Any) -> Played:
        played = play(tmp_path, bare, busybox_image, *roles, container_rails=parents, **more)
        assert played.status == 0, played.output
        return played

    first = run(*UP)
    assert networks(bare) == {"ibnet": parents[0], "ibnet-1": parents[1]}
    made = bare.api.get("/containers/rdm/json")
    ends = {name: end["IPAddress"] for name, end in made["NetworkSettings"]["Networks"].items()}
    assert ends == {"ibnet": f"{NET}.100", "ibnet-1": f"{NEXT}.100"}
    assert {f"MY_IP={NET}.100", f"MY_IP_1={NEXT}.100"} <= set(made["Config"]["Env"])
    shown = bare.api.exec(made["Id"], ["ip", "-4", "-o", "addr"], timeout=240).stdout.decode()
    lines = {line.split()[1]: line.split()[3] for line in shown.splitlines()}
    assert lines == {"lo": "127.0.0.1/8", "eth0": f"{NET}.100/24", "eth1": f"{NEXT}.100/24"}
    # Each rail answers only for its own addresses, even if both share a link.
    for name, value in (("arp_ignore", b"1"), ("arp_announce", b"2")):
        path = f"/proc/sys/net/ipv4/conf/all/{name}"
        assert bare.api.exec(made["Id"], ["cat", path], timeout=240).stdout.strip() == value
    inputs = first.results["Plan"]["state_files"][HOST]["inputs"]

    again = run(*UP)
    assert again.changes == [0]
    assert bare.api.get("/containers/rdm/json")["Id"] == made["Id"]
    assert again.results["Plan"]["state_files"][HOST]["inputs"] == inputs

    # A container that was disconnected from a rail is connected again.
    bare.api.post("/networks/ibnet-1/disconnect", {"Container": "rdm", "Force": True})
    run(*UP)
    after = bare.api.get("/containers/rdm/json")["NetworkSettings"]["Networks"]
    assert {name: end["IPAddress"] for name, end in after.items()} == ends

    refused = play(tmp_path, bare, busybox_image, *UP)
    assert refused.status != 0
    assert "the Docker network ibnet-1 is of a rail that container_rails no longer has" in refused.output

    run(*DOWN)
    assert networks(bare) == {}
    assert bare.api.get("/containers/json", all=True) == []


def test_changed_network_of_a_rail_is_replaced_on_request(
    bare: Engine, busybox_image: str, parents: list[str], tmp_path: Path
) -> None:
    given = {"container_rails": parents, "container_rail_subnets": [f"{ANOTHER}.0/24"]}
    assert play(tmp_path, bare, busybox_image, *UP, **given).status == 0
    given["container_rail_subnets"] = [f"{THIRD}.0/24"]
    refused = play(tmp_path, bare, busybox_image, *UP, **given)
    assert refused.status != 0
    assert f"subnet is {ANOTHER}.0/24, not {THIRD}.0/24" in refused.output
    replaced = play(tmp_path, bare, busybox_image, *UP, network_replace=True, **given)
    assert replaced.status == 0, replaced.output
    found = bare.api.get("/containers/rdm/json")["NetworkSettings"]["Networks"]
    assert found["ibnet-1"]["IPAddress"] == f"{THIRD}.100"
    assert found["ibnet"]["IPAddress"] == f"{NET}.100"

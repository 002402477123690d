"""A container for each of several nodes, on one network of an engine, and the role verify on them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import remove_container

from tests.ansible_playbook import played
from tests.integration.engine import Engine

NETWORK = "rdm-test-fabric"


@contextmanager
def containers(
    engine: Engine, parent: str, addresses: Mapping[str, str], specification: Callable[[str], dict[str, Any]]
) -> Iterator[None]:
    """Run a container rdm-NODE for each node on a macvlan network, and remove all of them.

    Args:
        engine: where.
        parent: the interface below the network.
        addresses: of the nodes' containers, in one /24.
        specification: returns that of a node's container, without what the network needs.
    """
    subnet = next(iter(addresses.values())).rpartition(".")[0] + ".0/24"
    network = {"Name": NETWORK, "Driver": "macvlan", "Options": {"parent": parent}}
    engine.api.post("/networks/create", {**network, "IPAM": {"Config": [{"Subnet": subnet}]}})
    try:
        for node, address in addresses.items():
            spec = specification(node)
            host = {"NetworkMode": NETWORK, "Init": True, **spec.get("HostConfig", {})}
            ends = {"EndpointsConfig": {NETWORK: {"IPAMConfig": {"IPv4Address": address}}}}
            made = {**spec, "HostConfig": host, "NetworkingConfig": ends}
            engine.api.post("/containers/create", made, name=f"rdm-{node}")
            engine.api.post(f"/containers/rdm-{node}/start")
        yield
    finally:
        for node in addresses:
            remove_container(engine.api, f"rdm-{node}")
        engine.api.delete(f"/networks/{NETWORK}")


def verified(
    what: str,
    directory: Path,
    environment: Mapping[str, str],
    addresses: Mapping[str, str],
    *words: object,
    tasks_from: str = "main",
    **variables: Any,
) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Run the role verify; return the exit code, the evaluation, and the reasons of failed nodes.

    Args:
        what: the evaluation's name in the result of its task.
        directory: for the inventory and the playbook.
        environment: of ansible-playbook; the engine's.
        addresses: of the nodes' containers.
        words: arguments of ansible-playbook.
        tasks_from: which of the role's tasks run.
        variables: of all nodes.
    """
    master, *workers = addresses
    inventory = {
        "vars": {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "verify_container": "rdm-{{ inventory_hostname }}",
            "verify_nodes": "".join(f"{name} {address}\n" for name, address in addresses.items()),
            **variables,
        },
        "children": {
            "master": {"hosts": {master: {}}},
            "workers": {"hosts": {name: {} for name in workers}},
        },
    }
    play = {
        "hosts": "master:workers",
        "gather_facts": False,
        "environment": {"DOCKER_HOST": environment["DOCKER_HOST"]},
        "tasks": [{"import_role": {"name": "rdm.provision.verify", "tasks_from": tasks_from}}],
    }
    (directory / "hosts.yml").write_text(yaml.safe_dump({"all": inventory}))
    (directory / "play.yml").write_text(yaml.safe_dump([play]))
    arguments = ("-i", directory / "hosts.yml", directory / "play.yml", *words)
    rc, tasks, output = played(*arguments, environment=environment)
    found = [host[what] for task in tasks for host in task["hosts"].values() if host.get(what)]
    assert found, output
    failed = {
        name: host["msg"] for task in tasks for name, host in task["hosts"].items() if host.get("failed")
    }
    return rc, found[-1], failed

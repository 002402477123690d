# SPDX-License-Identifier: GPL-3.0-or-later
"""Make or remove a lab on this machine: its files, its objects in the engine, and its processes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.base.file_diff import difference
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import socket_path
from ansible_collections.rdm.provision.rdm_lab import spec
from ansible_collections.rdm.provision.rdm_lab.builder import sweep_builders
from ansible_collections.rdm.provision.rdm_lab.engine import (
    LabEngine,
    bounding_capabilities,
)
from ansible_collections.rdm.provision.rdm_lab.files import Files, read
from ansible_collections.rdm.provision.rdm_lab.interrupted_start import end_interrupted_start, starting
from ansible_collections.rdm.provision.rdm_lab.spec import LabProblem
from ansible_collections.rdm.provision.rdm_lab.vm import machine
from ansible_collections.rdm.provision.rdm_lab.work import sweep


def present(
    engine: LabEngine, desired: Mapping[str, Any], made: Mapping[str, str], directory: Path, check: bool
) -> dict[str, Any]:
    """Make the lab; return the action's result.

    Args:
        engine: of this machine.
        desired: the variables of the role lab.
        made: what it is made from, see `names` of :class:`rdm_lab.images.Wanted`.
        directory: of its inventory.
        check: change nothing.
    """
    wanted = spec.node_names(spec.checked_nodes(desired["lab_nodes"]))
    spec.checked_rails(desired["lab_rails"], desired["lab_driver"])
    if desired["lab_hardware"] == "vm":
        machine.checked_request(desired["lab_driver"], desired["lab_trainer"])
    known = engine.directory()
    if known and Path(known) != directory:
        raise LabProblem(
            f"lab {engine.name!r} exists with its inventory in {known}: take it down first, or choose "
            "another name"
        )
    files = Files(engine.name, directory)
    files.check_free()
    if check:
        return _present(engine, desired, made, files, wanted, check)
    with files.locked():
        return _present(engine, desired, made, files, wanted, check)


def node_bodies(
    engine: LabEngine,
    desired: Mapping[str, Any],
    made: Mapping[str, str],
    files: Files,
    addresses: Mapping[str, str],
) -> dict[str, dict[str, Any]]:
    """Return the specification of each node's container."""
    info = engine.docker.info()
    common: dict[str, Any] = {
        "lab": engine.name,
        "network": spec.object_name(engine.name),
        "directory": str(files.directory),
        "archives": made["archives"],
        "cgroup_driver": str(info.get("CgroupDriver", "")),
    }
    if desired["lab_hardware"] == "vm":
        common.update(
            image=made["machine_image"],
            machine=made["machine"],
            kvm=os.path.exists(machine.KVM),
            rails=desired["lab_rails"],
        )
        return {
            node: machine.machine_body(machine.MachineSpec(name=node, address=address, **common))
            for node, address in addresses.items()
        }
    common.update(
        image=made["node_image"],
        capabilities=bounding_capabilities(socket_path()),
        cgroup_version=str(info.get("CgroupVersion", "1")),
        slurm=desired["lab_slurm"],
        podman=desired["lab_engine"] == spec.PODMAN,
    )
    return {
        node: spec.node_body(spec.NodeSpec(name=node, address=address, **common))
        for node, address in addresses.items()
    }


def _present(
    engine: LabEngine,
    desired: Mapping[str, Any],
    made: Mapping[str, str],
    files: Files,
    wanted: list[str],
    check: bool,
) -> dict[str, Any]:
    actions: list[str] = []

    def note(what: str, nodes: list[str]) -> list[str]:
        """Record an action on nodes, done or in check mode to be done; return the nodes."""
        if nodes:
            actions.append(f"{what} {', '.join(nodes)}")
        return nodes

    containers = engine.containers()
    found = engine.nodes()
    if not engine.network():
        actions.append("make the management network")
    subnet = engine.wanted_network(str(files.directory), check)
    addresses = {node: spec.node_address(subnet, node) for node in wanted}
    bodies = node_bodies(engine, desired, made, files, addresses)
    lacking = files.lacking_keys(wanted)
    beyond = note("remove", [node for node in found if node not in wanted])
    changed = [n for n in wanted if n in found and (n in lacking or spec.stale(found[n], bodies[n]))]
    note("recreate", changed)
    new = note("make", [node for node in wanted if node not in found])
    off = note(
        "start", [n for n in wanted if n in found and n not in changed and found[n]["State"] != "running"]
    )
    switch = containers.get("switch")
    switch_is_right = not spec.stale(
        switch, spec.switch_body(engine.name, made["node_image"], desired["lab_rails"])
    )
    switch_runs = switch is not None and switch_is_right and switch["State"] == "running"
    if not switch_runs:
        actions.append("make the switch")
    if desired["lab_hardware"] == "vm":
        # Running nodes have their memory already; recreated ones free theirs first.
        meminfo = Path("/proc/meminfo").read_text(encoding="ascii")
        running = [node for node in (*beyond, *changed) if found[node]["State"] == "running"]
        freed = sum(machine.MEMORY_NEEDED_MIB for node in running if machine.is_machine(found[node]))
        machine.checked_memory(len(changed) + len(new) + len(off), machine.available_memory(meminfo) + freed)
    ports = engine.ports() if switch_runs else {}
    fresh = {*changed, *new, *off}
    loose = note(
        "plug in",
        [n for n in wanted if n not in fresh and not spec.is_plugged(n, ports, desired["lab_rails"])],
    )
    cut = note(
        "heal the cable of",
        [n for n in wanted if n not in fresh and not all(ports[one] for one in spec.ports_of(n, ports))],
    )

    if not check:
        files.make_keys(lacking)
        files.make_control_path()
        engine.remove_nodes([*beyond, *changed])
        for node in beyond:
            shutil.rmtree(str(files.own / node), ignore_errors=True)
        if not switch_runs:
            engine.remove_switch()
            engine.make_switch(made["node_image"], desired["lab_rails"])
        engine.make_nodes({node: bodies[node] for node in (*changed, *new)})
        engine.start_nodes(off)
        engine.plug(sorted({*fresh, *loose}))
        for node in cut:
            engine.set_cable(node, True)
    texts = files.texts(addresses, desired, made)
    before = read(files.directory / "hosts.yml")
    note("write", [str(path.relative_to(files.directory)) for path in files.differing(texts)])
    if not check:
        for path in files.differing(texts):
            files.write(path, texts[path])
        engine.wait(sorted({*fresh, *loose}), desired["lab_timeout"])
    virtualisation = engine.virtualisation(wanted[0]) if desired["lab_hardware"] == "vm" and not check else ""
    return {
        "changed": bool(actions),
        "actions": actions,
        "inventory": str(files.directory),
        "nodes": [{"name": node, "address": addresses[node]} for node in wanted],
        "virtualisation": virtualisation,
        "diff": [
            difference(
                f"lab {engine.name}",
                "",
                "".join(f"{action}\n" for action in actions),
            ),
            difference("hosts.yml", before, texts[files.directory / "hosts.yml"]),
        ],
    }


def absent(engine: LabEngine, directory: Path, check: bool) -> dict[str, Any]:
    """Remove the lab, and its inventory from `directory` and where it was made; return the result."""
    directories = {directory, *(Path(path).absolute() for path in [engine.directory()] if path)}
    actions = [f"remove {what}" for what in engine.leftovers()]
    all_files = [Files(engine.name, directory) for directory in sorted(directories)]
    actions += [f"remove {files.directory}" for files in all_files if files.own.is_dir()]
    if check:
        actions += [f"end process {pid}" for pid in sorted(starting(engine.name, all_files))]
        return {"changed": bool(actions), "actions": actions}
    if end_interrupted_start(engine.name, all_files):
        actions.append("end an interrupted start")
    sweep()
    sweep_builders(engine.docker)
    for files in all_files:
        files.close_connections()
    engine.remove()
    for files in all_files:
        files.remove()
    return {"changed": bool(actions), "actions": actions}

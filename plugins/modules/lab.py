#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a lab on this machine, or take it away."""

from __future__ import annotations

DOCUMENTATION = r"""
module: lab
short_description: Make a miniature cluster on this machine, or take it away
description:
  - A lab node is a container, or a virtual machine within one,
    with sshd and its own Docker Engine, on a management network, with a second
    interface C(ib0) plugged into a switch that lives in a network namespace of its own.
  - Besides the inventory directory, everything of a lab is an object of this machine's Docker Engine with the
    label C(rdm.provision.lab).
  - Runs on the control machine, as root or as a user that may use the engine.
author:
  - The rdm-provision developers
extends_documentation_fragment: rdm.provision.attributes.changes
attributes:
  diff_mode:
    support: full
    description: Shows what happens to the nodes and the lines of the inventory that change.
options:
  name:
    description: The lab's name, up to 30 lower-case letters, digits and hyphens.
    type: str
    required: true
  state:
    description: Whether the lab is there, with all nodes running and plugged in.
    type: str
    choices: [present, absent]
    default: present
  nodes:
    description: The number of nodes. Nodes beyond it are removed, missing ones are added.
    type: int
    default: 3
  directory:
    description:
      - The directory of the inventory. It belongs to the lab and goes away with it.
      - With O(state=absent) it may be left out; the lab knows where it is.
    type: path
  hardware:
    description:
      - What a node is. C(container) is a container that is as much of a host as this machine allows.
        C(vm) is a virtual machine with a network card that has virtual functions, in a container of its own.
    type: str
    choices: [container, vm]
    default: container
  machine_image:
    description: The image of the containers that virtual machines run in.
    type: str
  machine:
    description: The directory with disk, kernel and initrd of virtual machines.
    type: path
  driver:
    description: The driver of the container network that the inventory asks for.
    type: str
    choices: [macvlan, bridge, ipvlan, sriov]
    default: macvlan
  node_image:
    description: The image of the nodes, in this machine's engine.
    type: str
  archives:
    description: The directory with the image archives that the nodes see.
    type: path
  train_archive:
    description:
      - The name of the training image's archive in O(archives). Then the cluster's containers run this image.
      - Empty means the CPU image, which has no trainer.
    type: str
    default: ""
  slurm:
    description:
      - Whether the nodes are to be a Slurm cluster. They share a directory C(/shared) then, have device
        files that stand in for GPUs, and the inventory says which partition each is in.
      - O(node_image) has to be one with Slurm's packages.
    type: bool
    default: false
  podman:
    description: Whether the nodes' engine is Podman. O(node_image) has to be one with it.
    type: bool
    default: false
    version_added: 0.6.0
  packages:
    description:
      - The name of the directory in O(archives) with the trainer's packages, from which the nodes of a Slurm
        cluster make their Python environment. Empty means that they ask the indexes.
    type: str
    default: ""
  torch:
    description: The requirement of the torch in O(packages).
    type: str
    default: ""
  extras:
    description: What else than a training O(packages) are for.
    type: list
    elements: str
    default: []
  rails:
    description:
      - How many interfaces each node has on the fabric, C(ib0), C(ib1) and so on, each on its own switch.
        Of a virtual machine, each is a network card with virtual functions of its own.
    type: int
    default: 1
  timeout:
    description: Seconds within which new nodes have to be ready.
    type: int
    default: 120
"""

EXAMPLES = r"""
- name: Make a lab of three nodes
  rdm.provision.lab:
    name: lab
    nodes: 3
    directory: "{{ lookup('env', 'PWD') }}/inventory/lab"
    node_image: "{{ __lab_images.node_image }}"
    archives: "{{ __lab_images.archives }}"

- name: Take it away
  rdm.provision.lab:
    name: lab
    state: absent
"""

RETURN = r"""
inventory:
  description: The inventory directory.
  returned: when O(state=present)
  type: str
nodes:
  description: The nodes, each with C(name) and C(address).
  returned: when O(state=present)
  type: list
  elements: dict
virtualisation:
  description: >-
    C(kvm) where the processor runs the nodes' instructions, C(tcg) where QEMU translates them, which takes
    some twenty times as long. Empty for nodes that are containers.
  returned: when O(state=present)
  type: str
actions:
  description: What was done, or would be done, one sentence each.
  returned: always
  type: list
  elements: str
"""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Set

import yaml
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import write_whole
from ansible_collections.rdm.provision.plugins.module_utils.base.file_diff import difference
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import (
    DockerAPI,
    DockerProblem,
)
from ansible_collections.rdm.provision.plugins.module_utils.lab import spec
from ansible_collections.rdm.provision.plugins.module_utils.lab.builder import sweep_builders
from ansible_collections.rdm.provision.plugins.module_utils.lab.engine import (
    LabEngine,
    bounding_capabilities,
)
from ansible_collections.rdm.provision.plugins.module_utils.lab.spec import LabProblem
from ansible_collections.rdm.provision.plugins.module_utils.lab.vm import machine
from ansible_collections.rdm.provision.plugins.module_utils.lab.work import sweep

ARGUMENT_SPEC: Dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "nodes": {"type": "int", "default": 3},
    "directory": {"type": "path"},
    "hardware": {"type": "str", "choices": list(spec.HARDWARE), "default": "container"},
    "machine_image": {"type": "str"},
    "machine": {"type": "path"},
    "driver": {"type": "str", "choices": list(spec.DRIVERS), "default": "macvlan"},
    "node_image": {"type": "str"},
    "archives": {"type": "path"},
    "train_archive": {"type": "str", "default": ""},
    "slurm": {"type": "bool", "default": False},
    "podman": {"type": "bool", "default": False},
    "packages": {"type": "str", "default": ""},
    "torch": {"type": "str", "default": ""},
    "extras": {"type": "list", "elements": "str", "default": []},
    "rails": {"type": "int", "default": 1},
    "timeout": {"type": "int", "default": 120},
}

# In the environment of all that `lab up` starts, so that `lab down` can end what an interrupted one left.
MARKER = "RDM_LAB_UP"
END_TIMEOUT_S = 60.0
POLL_S = 0.05
HEADER = "# Written by rdm-provision lab up; goes away with the lab.\n"


# --- files ----------------------------------------------------------------------------------------------


class Files:
    """The inventory directory of a lab and what lies in it."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
        self.own = directory / spec.FILES_AT
        where = hashlib.sha256("{0}\0{1}".format(name, directory).encode()).hexdigest()[:12]
        # Short, because the path of a unix socket has at most 107 bytes.
        self.control_path = Path(tempfile.gettempdir()) / "rdm-lab-{0}-{1}".format(os.geteuid(), where)

    def check_free(self) -> None:
        """Refuse a directory that is somebody else's."""
        if self.own.is_dir() or not self.directory.exists():
            return
        if not self.directory.is_dir() or any(self.directory.iterdir()):
            raise LabProblem(
                "{0} exists and is not a lab's: give the lab another name or directory".format(self.directory)
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let only one process make this lab at a time; the lock dies with its holder."""
        self.own.mkdir(parents=True, exist_ok=True)
        for path in (self.own.parent, self.own):
            path.chmod(0o700)
        self.write(self.own.parent / ".gitignore", "*\n")
        with (self.own / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LabProblem(
                    "lab {0!r} is just being made by another process".format(self.name)
                ) from error
            yield

    def lacking_keys(self, nodes: List[str]) -> Set[str]:
        """Return the nodes that have no keys yet."""
        if not (self.own / "id_ed25519.pub").is_file():
            return set(nodes)
        names = (spec.HOST_KEY, spec.HOST_KEY + ".pub", "authorized_keys")
        return {node for node in nodes if not all((self.own / node / name).is_file() for name in names)}

    def make_keys(self, nodes: Set[str]) -> None:
        """Make the keys of nodes, and the key of the user who logs in to them."""
        if not nodes:
            return
        key = self.own / "id_ed25519"
        if not key.with_suffix(".pub").is_file():
            generate_key(key, "rdm-lab-{0}".format(self.name))
        for node in sorted(nodes):
            (self.own / node).mkdir(mode=0o700, exist_ok=True)
            generate_key(self.own / node / spec.HOST_KEY, node)
            self.write(
                self.own / node / "authorized_keys", key.with_suffix(".pub").read_text(encoding="ascii")
            )

    def texts(self, addresses: Mapping[str, str], given: Mapping[str, Any]) -> Dict[Path, str]:
        """Return the files of the inventory: path -> text."""
        keys = {}
        for node in addresses:
            public = self.own / node / (spec.HOST_KEY + ".pub")
            keys[node] = public.read_text(encoding="ascii") if public.is_file() else "(made by the run)"
        inventory = spec.inventory(
            self.name,
            addresses,
            given["driver"],
            str(self.control_path),
            given["train_archive"],
            machines=given["hardware"] == "vm",
            rails=given["rails"],
            podman=given["podman"],
        )
        if given["slurm"]:
            packages = (
                spec.NodePackages(
                    given["packages"], str(Path(given["archives"])), given["torch"], given["extras"]
                )
                if given["packages"]
                else None
            )
            inventory = spec.slurm_inventory(inventory, packages)
        return {
            self.directory / "hosts.yml": HEADER + yaml.safe_dump(inventory, sort_keys=False, width=120),
            self.own / "known_hosts": spec.known_hosts(addresses, keys),
            self.own / "ssh_config": spec.ssh_config(addresses, str(self.directory)),
        }

    def differing(self, texts: Mapping[Path, str]) -> List[Path]:
        """Return the files that are not as they should be."""
        return [path for path, text in texts.items() if read(path) != text]

    def make_control_path(self) -> None:
        """Make the directory of ssh's shared connections, which nobody else may own."""
        self.control_path.mkdir(mode=0o700, exist_ok=True)
        found = self.control_path.lstat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o077 or self.control_path.is_symlink():
            raise LabProblem("{0} is not private: remove it".format(self.control_path))

    def close_connections(self) -> None:
        """End ssh's shared connections to the nodes, which would stay for minutes."""
        if not self.control_path.is_dir() or self.control_path.is_symlink():
            return
        for path in self.control_path.iterdir():
            subprocess.run(
                ["ssh", "-o", "ControlPath={0}".format(path), "-O", "exit", "node"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )
        shutil.rmtree(str(self.control_path), ignore_errors=True)

    def remove(self) -> None:
        """Remove the directory and what was made above it."""
        if self.own.is_dir():
            shutil.rmtree(str(self.directory))
            if self.directory.parent.name == "inventory" and not any(self.directory.parent.iterdir()):
                self.directory.parent.rmdir()

    @staticmethod
    def write(path: Path, text: str) -> None:
        """Write a private file in one step."""
        write_whole(str(path), text.encode(), 0o600)


def read(path: Path) -> str:
    """Return a file's text; nothing when there is no file."""
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def generate_key(path: Path, comment: str) -> None:
    """Make an ssh key pair, anew when half of one is there."""
    for old in (path, path.with_name(path.name + ".pub")):
        if old.exists():
            old.unlink()
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except FileNotFoundError as error:
        raise LabProblem("ssh-keygen is missing: install the package openssh-client") from error
    if done.returncode:
        raise LabProblem("ssh-keygen failed: {0}".format(done.stdout.decode("utf-8", "replace").strip()))


# --- an interrupted start -------------------------------------------------------------------------------


def marker(name: str) -> str:
    """Return what the environment of everything that starts this lab holds."""
    return "{0}={1}/{2}".format(MARKER, os.environ.get("DOCKER_HOST", ""), name)


def marked_processes(name: str) -> List[int]:
    """Return the processes that an interrupted start of this lab left running."""
    wanted = marker(name).encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended, or is another user's
    return found


def end_interrupted_start(name: str) -> bool:
    """End what an interrupted start of this lab left running; return whether there was something."""
    deadline = time.monotonic() + END_TIMEOUT_S
    found = marked_processes(name)
    had = bool(found)
    while found:
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            raise LabProblem(
                "another start of lab {0!r} does not end: processes {1}".format(
                    name, ", ".join(map(str, found))
                )
            )
        time.sleep(POLL_S)
        found = marked_processes(name)
    return had


# --- states ---------------------------------------------------------------------------------------------


class Change:
    """What is done, or in check mode would be done."""

    def __init__(self) -> None:
        self.actions: List[str] = []

    def note(self, what: str, nodes: List[str]) -> List[str]:
        """Note an action about nodes; return the nodes."""
        if nodes:
            self.actions.append("{0} {1}".format(what, ", ".join(nodes)))
        return nodes


def present(engine: LabEngine, given: Dict[str, Any], check: bool) -> Dict[str, Any]:
    """Make the lab as asked for; return the module's result."""
    wanted = spec.node_names(spec.checked_nodes(given["nodes"]))
    spec.checked_rails(given["rails"], given["driver"])
    if given["hardware"] == "vm":
        machine.checked_request(given["driver"], bool(given["train_archive"]))
    known = engine.directory()
    directory = Path(given["directory"]).absolute()
    if known and Path(known) != directory:
        raise LabProblem(
            "lab {0!r} exists with its inventory in {1}: take it down first, or choose another name".format(
                engine.name, known
            )
        )
    files = Files(engine.name, directory)
    files.check_free()
    if check:
        return _present(engine, given, files, wanted, check)
    with files.locked():
        return _present(engine, given, files, wanted, check)


def node_bodies(
    engine: LabEngine, given: Dict[str, Any], files: Files, addresses: Mapping[str, str]
) -> Dict[str, Dict[str, Any]]:
    """Return what makes each node."""
    told = engine.api.get("/info")
    common: Dict[str, Any] = {
        "lab": engine.name,
        "network": spec.object_name(engine.name),
        "directory": str(files.directory),
        "archives": given["archives"],
        "cgroup_driver": str(told.get("CgroupDriver", "")),
    }
    if given["hardware"] == "vm":
        common.update(
            image=given["machine_image"],
            machine=given["machine"],
            kvm=os.path.exists(machine.KVM),
            rails=given["rails"],
        )
        return {
            node: machine.machine_body(machine.MachineSpec(name=node, address=address, **common))
            for node, address in addresses.items()
        }
    common.update(
        image=given["node_image"],
        capabilities=bounding_capabilities(engine.api),
        cgroup_version=str(told.get("CgroupVersion", "1")),
        slurm=given["slurm"],
        podman=given["podman"],
    )
    return {
        node: spec.node_body(spec.NodeSpec(name=node, address=address, **common))
        for node, address in addresses.items()
    }


def _present(
    engine: LabEngine, given: Dict[str, Any], files: Files, wanted: List[str], check: bool
) -> Dict[str, Any]:
    change = Change()
    containers = engine.containers()
    found = engine.nodes()
    if not engine.network():
        change.actions.append("make the management network")
    subnet = engine.wanted_network(str(files.directory), check)
    addresses = {node: spec.node_address(subnet, node) for node in wanted}
    bodies = node_bodies(engine, given, files, addresses)
    lacking = files.lacking_keys(wanted)
    beyond = change.note("remove", [node for node in found if node not in wanted])
    changed = [n for n in wanted if n in found and (n in lacking or spec.stale(found[n], bodies[n]))]
    change.note("make anew", changed)
    new = change.note("make", [node for node in wanted if node not in found])
    off = change.note(
        "start", [n for n in wanted if n in found and n not in changed and found[n]["State"] != "running"]
    )
    switch = containers.get("switch")
    switch_is_right = not spec.stale(
        switch, spec.switch_body(engine.name, given["node_image"], given["rails"])
    )
    switch_runs = switch is not None and switch_is_right and switch["State"] == "running"
    if not switch_runs:
        change.actions.append("make the switch")
    if given["hardware"] == "vm":
        # Those that run have their memory; those that are made anew give it back first.
        meminfo = Path("/proc/meminfo").read_text(encoding="ascii")
        running = [node for node in (*beyond, *changed) if found[node]["State"] == "running"]
        freed = sum(machine.MEMORY_NEEDED_MIB for node in running if machine.is_machine(found[node]))
        machine.checked_memory(len(changed) + len(new) + len(off), machine.available_memory(meminfo) + freed)
    ports = engine.ports() if switch_runs else {}
    fresh = {*changed, *new, *off}
    loose = change.note(
        "plug in",
        [n for n in wanted if n not in fresh and not spec.is_plugged(n, ports, given["rails"])],
    )
    cut = change.note(
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
            engine.make_switch(given["node_image"], given["rails"])
        engine.make_nodes({node: bodies[node] for node in (*changed, *new)})
        engine.start_nodes(off)
        engine.plug(sorted({*fresh, *loose}))
        for node in cut:
            engine.set_cable(node, True)
    texts = files.texts(addresses, given)
    before = read(files.directory / "hosts.yml")
    change.note("write", [str(path.relative_to(files.directory)) for path in files.differing(texts)])
    if not check:
        for path in files.differing(texts):
            files.write(path, texts[path])
        engine.wait(sorted({*fresh, *loose}), given["timeout"])
    virtualisation = engine.virtualisation(wanted[0]) if given["hardware"] == "vm" and not check else ""
    return {
        "changed": bool(change.actions),
        "actions": change.actions,
        "inventory": str(files.directory),
        "nodes": [{"name": node, "address": addresses[node]} for node in wanted],
        "virtualisation": virtualisation,
        "diff": [
            difference(
                "lab {0}".format(engine.name),
                "",
                "".join("{0}\n".format(action) for action in change.actions),
            ),
            difference("hosts.yml", before, texts[files.directory / "hosts.yml"]),
        ],
    }


def absent(engine: LabEngine, given: Dict[str, Any], check: bool) -> Dict[str, Any]:
    """Take the lab away; return the module's result."""
    directories = {Path(path).absolute() for path in (given["directory"], engine.directory()) if path}
    actions = ["remove {0}".format(what) for what in engine.leftovers()]
    places = [Files(engine.name, directory) for directory in sorted(directories)]
    actions += ["remove {0}".format(files.directory) for files in places if files.own.is_dir()]
    if check:
        actions += ["end process {0}".format(pid) for pid in marked_processes(engine.name)]
        return {"changed": bool(actions), "actions": actions}
    if end_interrupted_start(engine.name):
        actions.append("end an interrupted start")
    sweep()
    sweep_builders(engine.api)
    for files in places:
        files.close_connections()
    engine.remove()
    for files in places:
        files.remove()
    return {"changed": bool(actions), "actions": actions}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec=ARGUMENT_SPEC,
        supports_check_mode=True,
        required_if=[
            ("state", "present", ["directory", "node_image", "archives"]),
            ("hardware", "vm", ["machine_image", "machine"]),
        ],
    )
    given = module.params
    try:
        engine = LabEngine(DockerAPI(), given["name"])
        state = present if given["state"] == "present" else absent
        result = state(engine, given, module.check_mode)
    except (LabProblem, DockerProblem, OSError) as problem:
        module.fail_json(msg=str(problem))
    module.exit_json(**result)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: GPL-3.0-or-later
"""Make or remove a lab on this machine: its files, its objects in the engine, and its processes."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import write_whole
from ansible_collections.rdm.provision.plugins.module_utils.base.file_diff import difference
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import socket_path
from ansible_collections.rdm.provision.rdm_lab import inventory, spec
from ansible_collections.rdm.provision.rdm_lab.builder import sweep_builders
from ansible_collections.rdm.provision.rdm_lab.engine import (
    LabEngine,
    bounding_capabilities,
)
from ansible_collections.rdm.provision.rdm_lab.spec import LabProblem
from ansible_collections.rdm.provision.rdm_lab.vm import machine
from ansible_collections.rdm.provision.rdm_lab.work import sweep

# In the environment of all processes of `lab up`, so that `lab down` can end those of an interrupted run.
MARKER = "RDM_LAB_UP"
END_TIMEOUT_S = 60.0
POLL_S = 0.05
HEADER = "# Written by rdm-provision lab up; goes away with the lab.\n"


# --- files ----------------------------------------------------------------------------------------------


class Files:
    """The inventory directory of a lab and its files."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
        self.own = directory / spec.FILES_AT
        where = hashlib.sha256(f"{name}\0{directory}".encode()).hexdigest()[:12]
        # Short, because the path of a Unix socket has at most 107 bytes.
        self.control_path = Path(tempfile.gettempdir()) / f"rdm-lab-{os.geteuid()}-{where}"

    def check_free(self) -> None:
        """Refuse a directory that is not this lab's."""
        if self.own.is_dir() or not self.directory.exists():
            return
        if not self.directory.is_dir() or any(self.directory.iterdir()):
            raise LabProblem(
                f"{self.directory} exists and is not a lab's: give the lab another name or directory"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let one process at a time make this lab; the lock ends with its holder."""
        self.own.mkdir(parents=True, exist_ok=True)
        for path in (self.own.parent, self.own):
            path.chmod(0o700)
        self.write(self.own.parent / ".gitignore", "*\n")
        with (self.own / "lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LabProblem(f"lab {self.name!r} is just being made by another process") from error
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            yield

    def makers(self) -> list[int]:
        """Return the process that makes this lab at the moment, if there is one."""
        try:
            with (self.own / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return []
        except BlockingIOError:
            return [int(pid) for pid in read(self.own / "lock").split()]
        return []

    def lacking_keys(self, nodes: list[str]) -> set[str]:
        """Return the nodes that have no keys yet."""
        if not (self.own / "id_ed25519.pub").is_file():
            return set(nodes)
        names = (spec.HOST_KEY, spec.HOST_KEY + ".pub", "authorized_keys")
        return {node for node in nodes if not all((self.own / node / name).is_file() for name in names)}

    def make_keys(self, nodes: set[str]) -> None:
        """Make the keys of nodes, and the key for logging in to them."""
        if not nodes:
            return
        key = self.own / "id_ed25519"
        if not key.with_suffix(".pub").is_file():
            generate_key(key, f"rdm-lab-{self.name}")
        for node in sorted(nodes):
            (self.own / node).mkdir(mode=0o700, exist_ok=True)
            generate_key(self.own / node / spec.HOST_KEY, node)
            self.write(
                self.own / node / "authorized_keys", key.with_suffix(".pub").read_text(encoding="ascii")
            )

    def texts(
        self, addresses: Mapping[str, str], desired: Mapping[str, Any], made: Mapping[str, str]
    ) -> dict[Path, str]:
        """Return the files of the inventory: path -> text."""
        keys = {}
        for node in addresses:
            public = self.own / node / (spec.HOST_KEY + ".pub")
            keys[node] = public.read_text(encoding="ascii") if public.is_file() else "(made by the run)"
        hosts = inventory.cluster_inventory(
            self.name,
            addresses,
            desired["lab_driver"],
            str(self.control_path),
            made.get("train_archive", ""),
            machines=desired["lab_hardware"] == "vm",
            rails=desired["lab_rails"],
            podman=desired["lab_engine"] == spec.PODMAN,
        )
        if desired["lab_slurm"]:
            extras = desired["lab_trainer_extras"]
            packages = (
                inventory.NodePackages(made["packages"], made["archives"], made["torch"], extras)
                if "packages" in made
                else None
            )
            hosts = inventory.slurm_inventory(hosts, packages)
        return {
            self.directory / "hosts.yml": HEADER + yaml.safe_dump(hosts, sort_keys=False, width=120),
            self.own / "known_hosts": inventory.known_hosts(addresses, keys),
            self.own / "ssh_config": inventory.ssh_config(addresses, str(self.directory)),
        }

    def differing(self, texts: Mapping[Path, str]) -> list[Path]:
        """Return the files whose content differs."""
        return [path for path, text in texts.items() if read(path) != text]

    def make_control_path(self) -> None:
        """Make the directory of ssh's shared connections, or refuse one that another user owns."""
        self.control_path.mkdir(mode=0o700, exist_ok=True)
        found = self.control_path.lstat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o077 or self.control_path.is_symlink():
            raise LabProblem(f"{self.control_path} is not private: remove it")

    def close_connections(self) -> None:
        """End ssh's shared connections to the nodes, which would last for minutes."""
        if not self.control_path.is_dir() or self.control_path.is_symlink():
            return
        for path in self.control_path.iterdir():
            subprocess.run(
                ["ssh", "-o", f"ControlPath={path}", "-O", "exit", "node"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )
        shutil.rmtree(str(self.control_path), ignore_errors=True)

    def remove(self) -> None:
        """Remove the directory, and a parent `inventory` that is then empty."""
        if self.own.is_dir():
            shutil.rmtree(str(self.directory))
            if self.directory.parent.name == "inventory" and not any(self.directory.parent.iterdir()):
                self.directory.parent.rmdir()

    @staticmethod
    def write(path: Path, text: str) -> None:
        """Write a private file in one step."""
        write_whole(str(path), text.encode(), 0o600)


def read(path: Path) -> str:
    """Return a file's text; empty if there is no file."""
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def generate_key(path: Path, comment: str) -> None:
    """Make an ssh key pair; replace one if half of it is missing."""
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
        raise LabProblem(f"ssh-keygen failed: {done.stdout.decode('utf-8', 'replace').strip()}")


# --- an interrupted start -------------------------------------------------------------------------------


def marker(name: str) -> str:
    """Return the environment variable of all processes that start this lab."""
    return f"{MARKER}={os.environ.get('DOCKER_HOST', '')}/{name}"


def marked_processes(name: str) -> list[int]:
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
            continue  # it has ended, or belongs to another user
    return found


def starting(name: str, all_files: Iterable[Files]) -> set[int]:
    """Return the processes that start this lab, whether of rdm-provision or of ansible-playbook alone."""
    return {*marked_processes(name), *(pid for files in all_files for pid in files.makers())}


def end_interrupted_start(name: str, all_files: Iterable[Files]) -> bool:
    """End the processes of an interrupted start of this lab; return whether there were any."""
    deadline = time.monotonic() + END_TIMEOUT_S
    found = starting(name, all_files)
    had = bool(found)
    while found:
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            raise LabProblem(
                f"another start of lab {name!r} does not end: processes {', '.join(map(str, sorted(found)))}"
            )
        time.sleep(POLL_S)
        found = starting(name, all_files)
    return had


# --- states ---------------------------------------------------------------------------------------------


class Change:
    """What was done, or in check mode would be done."""

    def __init__(self) -> None:
        self.actions: list[str] = []

    def note(self, what: str, nodes: list[str]) -> list[str]:
        """Record an action on nodes; return the nodes."""
        if nodes:
            self.actions.append(f"{what} {', '.join(nodes)}")
        return nodes


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
    change = Change()
    containers = engine.containers()
    found = engine.nodes()
    if not engine.network():
        change.actions.append("make the management network")
    subnet = engine.wanted_network(str(files.directory), check)
    addresses = {node: spec.node_address(subnet, node) for node in wanted}
    bodies = node_bodies(engine, desired, made, files, addresses)
    lacking = files.lacking_keys(wanted)
    beyond = change.note("remove", [node for node in found if node not in wanted])
    changed = [n for n in wanted if n in found and (n in lacking or spec.stale(found[n], bodies[n]))]
    change.note("recreate", changed)
    new = change.note("make", [node for node in wanted if node not in found])
    off = change.note(
        "start", [n for n in wanted if n in found and n not in changed and found[n]["State"] != "running"]
    )
    switch = containers.get("switch")
    switch_is_right = not spec.stale(
        switch, spec.switch_body(engine.name, made["node_image"], desired["lab_rails"])
    )
    switch_runs = switch is not None and switch_is_right and switch["State"] == "running"
    if not switch_runs:
        change.actions.append("make the switch")
    if desired["lab_hardware"] == "vm":
        # Running nodes have their memory already; recreated ones free theirs first.
        meminfo = Path("/proc/meminfo").read_text(encoding="ascii")
        running = [node for node in (*beyond, *changed) if found[node]["State"] == "running"]
        freed = sum(machine.MEMORY_NEEDED_MIB for node in running if machine.is_machine(found[node]))
        machine.checked_memory(len(changed) + len(new) + len(off), machine.available_memory(meminfo) + freed)
    ports = engine.ports() if switch_runs else {}
    fresh = {*changed, *new, *off}
    loose = change.note(
        "plug in",
        [n for n in wanted if n not in fresh and not spec.is_plugged(n, ports, desired["lab_rails"])],
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
            engine.make_switch(made["node_image"], desired["lab_rails"])
        engine.make_nodes({node: bodies[node] for node in (*changed, *new)})
        engine.start_nodes(off)
        engine.plug(sorted({*fresh, *loose}))
        for node in cut:
            engine.set_cable(node, True)
    texts = files.texts(addresses, desired, made)
    before = read(files.directory / "hosts.yml")
    change.note("write", [str(path.relative_to(files.directory)) for path in files.differing(texts)])
    if not check:
        for path in files.differing(texts):
            files.write(path, texts[path])
        engine.wait(sorted({*fresh, *loose}), desired["lab_timeout"])
    virtualisation = engine.virtualisation(wanted[0]) if desired["lab_hardware"] == "vm" and not check else ""
    return {
        "changed": bool(change.actions),
        "actions": change.actions,
        "inventory": str(files.directory),
        "nodes": [{"name": node, "address": addresses[node]} for node in wanted],
        "virtualisation": virtualisation,
        "diff": [
            difference(
                f"lab {engine.name}",
                "",
                "".join(f"{action}\n" for action in change.actions),
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

# SPDX-License-Identifier: GPL-3.0-or-later
"""The inventory directory of a lab: its files, its keys, and its lock."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import write_whole
from ansible_collections.rdm.provision.rdm_lab import inventory, spec
from ansible_collections.rdm.provision.rdm_lab.spec import LabProblem

HEADER = "# Written by rdm-provision lab up; goes away with the lab.\n"


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
        # The lab's inventory does not belong in commits, and its keys even less.
        self.write(self.directory / ".gitignore", "*\n")
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

"""Check the control machine for what runs and labs need. Changes nothing."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rdm_provision import environment
from rdm_provision.errors import RdmError
from rdm_provision.runner.run_spec import MAX_FORKS
from rdm_provision.wording import size_text

MIB_PER_FORK = 60
"""Memory of one of Ansible's forks, in MiB; 30 to 80 were measured."""
_GIB = 1 << 30
_NEEDED_COLLECTIONS = {"community.docker": (4, 8)}


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check.

    Attributes:
        name: what was checked.
        ok: it passed.
        detail: what was found, or what to do, in one line.
        needed_for: ``runs``, or ``lab`` if only the miniature cluster needs it.
    """

    name: str
    ok: bool
    detail: str
    needed_for: str = "runs"


def examine(inventory: Path | None = None) -> Iterator[Check]:
    """Yield one check after the other. A check that fails says so; it never raises.

    Args:
        inventory: the inventory to check; default: the one that a run would take.
    """
    checks: list[tuple[str, str, Callable[[], tuple[bool, str]]]] = [
        ("python", "runs", _python),
        ("ansible-core", "runs", _ansible_core),
        ("collection rdm.provision", "runs", _own_collection),
        *((f"collection {name}", "runs", _collection(name)) for name in _NEEDED_COLLECTIONS),
        ("ssh", "runs", _ssh),
        ("ssh-keygen", "lab", _ssh_keygen),
        ("disk", "runs", _disk),
        ("temporary folder", "runs", lambda: _writable(Path(tempfile.gettempdir()))),
        ("current folder", "runs", lambda: _writable(Path.cwd())),
        ("memory", "runs", _memory),
        ("inventory", "runs", lambda: _inventory(inventory)),
        ("docker engine", "lab", _docker),
        ("mmdebstrap", "lab", _mmdebstrap),
        ("network tools", "lab", _network_tools),
    ]
    for name, needed_for, check in checks:
        try:
            ok, detail = check()
        except Exception as error:
            ok, detail = False, f"cannot be checked: {type(error).__name__}: {error}"
        yield Check(name, ok, detail, needed_for)


def _python() -> tuple[bool, str]:
    version = ".".join(map(str, sys.version_info[:3]))
    return True, f"{version} at {sys.executable}"


def _ansible_core() -> tuple[bool, str]:
    try:
        version = importlib.metadata.version("ansible-core")
    except importlib.metadata.PackageNotFoundError:
        return False, "not installed: pip install rdm-provision"
    return True, f"{version} at {environment.program('ansible-playbook')}"


def _own_collection() -> tuple[bool, str]:
    try:
        root = environment.collection()
    except RdmError as error:
        return False, f"{error}: {error.hint}"
    return True, f"{'checkout' if environment.checkout() else 'installed'} at {root}"


def _collection(name: str) -> Callable[[], tuple[bool, str]]:
    def check() -> tuple[bool, str]:
        wanted = _NEEDED_COLLECTIONS[name]
        minimum = ".".join(map(str, wanted))
        paths = [Path(entry) for entry in sys.path if entry]
        paths += [Path("~/.ansible/collections").expanduser(), Path("/usr/share/ansible/collections")]
        for path in paths:
            manifest = path.joinpath("ansible_collections", *name.split("."), "MANIFEST.json")
            if not manifest.is_file():
                continue
            version = str(json.loads(manifest.read_text(encoding="utf-8"))["collection_info"]["version"])
            if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < wanted:
                return False, f"{version} is too old: {minimum} or newer is needed"
            return True, f"{version} at {manifest.parent}"
        return False, f"not found: pip install ansible, or ansible-galaxy collection install {name}"

    return check


def _ssh() -> tuple[bool, str]:
    path = shutil.which("ssh")
    if path is None:
        return False, "not installed: install the package openssh-client"
    output = subprocess.run([path, "-V"], capture_output=True, text=True, check=False, timeout=60).stderr
    return True, f"{output.split(',')[0].strip() or 'found'} at {path}"


def _ssh_keygen() -> tuple[bool, str]:
    path = shutil.which("ssh-keygen")
    return (True, path) if path else (False, "not installed: install the package openssh-client")


def _disk() -> tuple[bool, str]:
    free = shutil.disk_usage(Path.cwd()).free
    return free >= _GIB, f"{size_text(free)} free here" + ("" if free >= _GIB else ": 1 GiB is needed")


def _writable(folder: Path) -> tuple[bool, str]:
    if os.access(folder, os.W_OK | os.X_OK):
        return True, f"{folder} can be written to"
    return False, f"{folder} cannot be written to: plans and records are kept beside the inventory"


def _memory() -> tuple[bool, str]:
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    if found is None:
        return True, "unknown"
    free = int(found.group(1)) // 1024
    forks = max(1, free // MIB_PER_FORK)
    if forks < MAX_FORKS:
        return forks >= 5, f"{free} MiB available: use --forks {forks} at most"
    return True, f"{free} MiB available, enough for {MAX_FORKS} nodes at once"


def _inventory(inventory: Path | None) -> tuple[bool, str]:
    from rdm_provision.api.cluster import Cluster
    from rdm_provision.runner.inventory import find_inventory

    if inventory is None:
        try:
            inventory = find_inventory()
        except RdmError as error:
            return True, f"{str(error).removeprefix('no inventory: ')}; {error.hint}"
    try:
        cluster = Cluster.load(inventory)
    except RdmError as error:
        return False, f"{error}" + (f": {error.hint}" if error.hint else "")
    return True, f"{inventory}: cluster {cluster.name}, {len(cluster.nodes)} nodes"


def _docker() -> tuple[bool, str]:
    environment.make_importable()
    from ansible_collections.rdm.provision.plugins.module_utils.docker.api import (
        DockerAPI,
        DockerForbidden,
        DockerProblem,
    )

    try:
        engine = DockerAPI(timeout=30)  # long, for a busy machine
    except DockerProblem as problem:
        return False, f"DOCKER_HOST: {problem}; the lab needs an engine on this machine"
    try:
        version = engine.version().get("Version", "of unknown version")
    except DockerForbidden as problem:
        return False, f"{problem}, then log in again"
    except DockerProblem as problem:
        return _installable(str(problem), "" if Path(engine.socket).exists() else "docker.io")
    return True, f"{version} at {engine.socket}"


def _installable(what: str, package: str) -> tuple[bool, str]:
    if os.geteuid() == 0:
        return True, f"{what}: `rdm-provision lab up` sees to it"
    wanted = f"install the package {package}, or " if package else ""
    return False, f"{what}: {wanted}run `rdm-provision lab up` as root once"


def _mmdebstrap() -> tuple[bool, str]:
    if path := shutil.which("mmdebstrap"):
        return True, path
    return _installable("not installed (needed where no container registry is reachable)", "mmdebstrap")


def _network_tools() -> tuple[bool, str]:
    missing = [program for program in ("ip", "nsenter") if shutil.which(program) is None]
    if missing:
        return _installable(f"{' and '.join(missing)} missing", "iproute2 and util-linux")
    return True, "ip, nsenter"

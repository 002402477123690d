# SPDX-License-Identifier: GPL-3.0-or-later
"""What a lab's virtual machines are made of. Pure decisions.

There are two root file systems, both of one release of Debian, whatever this machine runs: the machines' own,
which becomes their disk, and that of their containers, with QEMU. The release's QEMU has a network card with
virtual functions (since version 8), and its kernel has the card's drivers. Only the machines' Docker Engine
and kernel may come from other releases.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ansible_collections.rdm.provision.rdm_lab.recipe import (
    LEFT_OUT,
    NOT_IN_ARCHIVE,
    file_content,
)
from ansible_collections.rdm.provision.rdm_lab.spec import PODMAN, LabProblem

SUITE = "trixie"
REPOSITORY = "rdm-lab/machine"
RECIPE_LABEL = "rdm.provision.lab.machine"
DISK = "disk.img"
KERNEL = "vmlinuz"
INITRD = "initrd"
DISK_SIZE = "8G"  # sparse

# Raised when the code below changes what it makes.
FORMAT = 1

CONTAINER_PACKAGES = ("iproute2", "python3-minimal", "qemu-system-x86", "qemu-utils")
GUEST_PACKAGES = (
    "busybox-static",
    "ca-certificates",
    "cpio",
    "ethtool",
    "ibverbs-providers",
    "ibverbs-utils",
    "infiniband-diags",
    "iproute2",
    "iptables",
    "iputils-ping",
    "kmod",
    "libnss-myhostname",
    "openssh-client",
    "openssh-server",
    "perftest",
    "procps",
    "python3",
    "python3-requests",
    "rdma-core",
    "sudo",
    "systemd-sysv",
    "udev",
    "xz-utils",
    "zstd",
)


class Engine(NamedTuple):
    """Where a Docker Engine comes from.

    Attributes:
        release: the release of Debian that has it.
        packages: what to install from there.
    """

    release: str
    packages: tuple[str, ...]


ENGINES = {
    # Where the kernel has AppArmor, it starts no container without a parser. It has its own client.
    "20.10": Engine("bookworm", ("apparmor", "docker.io")),
    "26.1": Engine(SUITE, ("docker-cli", "docker.io")),
    # Debian's newest: 28.5 when this was written.
    "newest": Engine("sid", ("docker-cli", "docker.io")),
}
DEFAULT_ENGINE = "26.1"
# Each with the release of Debian that has it.
KERNELS = {
    "6.12": SUITE,
    # The newest of the backports: 7.3 when this was written. Its soft RoCE knows network namespaces.
    "newest": f"{SUITE}-backports",
}
DEFAULT_KERNEL = "6.12"


class Choice(NamedTuple):
    """How the disks of one recipe differ.

    Attributes:
        engine: one of `ENGINES`.
        kernel: one of `KERNELS`.
    """

    engine: str = DEFAULT_ENGINE
    kernel: str = DEFAULT_KERNEL


GUEST_FILES = ("node-setup.sh", "rdm-lab", "strip.sh")
FILES = ("engine.sh", "guest.sh", "init", "rdm-lab")  # of the directory vm


def checked_architecture(machine: str) -> None:
    """Refuse a machine that cannot have such nodes.

    Args:
        machine: as `uname -m` prints it.

    Raises:
        LabProblem: its packages are for another processor than the nodes'.
    """
    if machine != "x86_64":
        raise LabProblem(
            f"nodes that are virtual machines need an x86_64 machine, and this is {machine}: "
            "--hardware container works here"
        )


def checked_engine(engine: str, machines: bool) -> str:
    """Return the machines' engine.

    Args:
        engine: one of `ENGINES`; empty for the default.
        machines: the nodes are virtual machines.

    Raises:
        LabProblem: there is no such engine, or the nodes are containers, which have none of these.
    """
    if engine == PODMAN and not machines:
        return engine
    if engine and not machines:
        raise LabProblem(
            "nodes that are containers have the Docker Engine of this machine's release, or podman: "
            f"--engine {engine} goes with --hardware vm"
        )
    if engine and engine not in ENGINES:
        raise LabProblem(f"virtual machines have no engine {engine!r}: it is one of {', '.join(ENGINES)}")
    return engine or DEFAULT_ENGINE


def checked_kernel(kernel: str, machines: bool) -> str:
    """Return the machines' kernel.

    Args:
        kernel: one of `KERNELS`; empty for the default.
        machines: the nodes are virtual machines.

    Raises:
        LabProblem: there is no such kernel, or the nodes are containers, which have this machine's.
    """
    if kernel and not machines:
        raise LabProblem(
            f"nodes that are containers have the kernel of this machine: --kernel {kernel} goes with "
            "--hardware vm"
        )
    if kernel and kernel not in KERNELS:
        raise LabProblem(f"virtual machines have no kernel {kernel!r}: it is one of {', '.join(KERNELS)}")
    return kernel or DEFAULT_KERNEL


def version(files: Path) -> str:
    """Return 12 hex digits that change if the machines would be made differently."""
    digest = hashlib.sha256(
        json.dumps(
            [
                *(FORMAT, SUITE, DISK_SIZE, CONTAINER_PACKAGES, GUEST_PACKAGES, ENGINES, KERNELS),
                *(LEFT_OUT, NOT_IN_ARCHIVE),
            ]
        ).encode()
    )
    for name in GUEST_FILES:
        digest.update(name.encode() + b"\0" + file_content(files, name))
    for name in FILES:
        digest.update(name.encode() + b"\0" + (files / "vm" / name).read_bytes())
    return digest.hexdigest()[:12]


def sources(own: Iterable[str], distribution: str, suite: str) -> list[str]:
    """Return the package sources of the machines' release, from the mirrors of this machine.

    An empty list means mmdebstrap's default.

    Args:
        own: this machine's sources of its release, one-line entries.
        distribution: of this machine, as /etc/os-release names it. Only Debian's mirrors have the packages.
        suite: this machine's release.
    """
    if distribution != "debian" or not suite:
        return []
    changed = (re.sub(rf" {re.escape(suite)}(-updates|-security)? ", rf" {SUITE}\1 ", line) for line in own)
    return list(dict.fromkeys(changed))


def container_command(
    packages: Iterable[str], program: Path, target: Path, options: Iterable[str]
) -> list[str]:
    """Return the command that makes the root file system of the container.

    Args:
        packages: the package sources.
        program: what the container runs.
        target: the tar to make.
        options: of apt, such as a proxy.
    """
    hooks = [
        f'install -D --mode=0755 {_quoted(str(program))} "$1/usr/local/sbin/rdm-lab"',
    ]
    return _mmdebstrap(CONTAINER_PACKAGES, hooks, packages, target, options)


def guest_command(
    made_of: Choice, packages: Iterable[str], files: Path, boot: Path, target: Path, options: Iterable[str]
) -> list[str]:
    """Return the command that makes the root file system of the machines.

    Args:
        made_of: engine and kernel.
        packages: the package sources.
        files: the directory with the lab's files.
        boot: the directory for kernel and initrd.
        target: the tar to make.
        options: of apt, such as a proxy.
    """
    engine = ENGINES[made_of.engine]
    arguments = " ".join((SUITE, engine.release, *engine.packages))
    releases = f"{SUITE} {KERNELS[made_of.kernel]}"
    hooks = [
        f'install -D --mode=0755 {_quoted(str(files / "rdm-lab"))} "$1/usr/local/sbin/rdm-lab"',
        f'install -D --mode=0644 {_quoted(str(files / "vm/init"))} "$1/tmp/rdm-lab/init"',
        f'chroot "$1" /bin/sh -s -- {arguments} <{_quoted(str(files / "vm/engine.sh"))}',
        f'chroot "$1" /bin/sh <{_quoted(str(files / "node-setup.sh"))}',
        f'chroot "$1" /bin/sh -s -- {releases} <{_quoted(str(files / "vm/guest.sh"))}',
        f'mv "$1/boot/{KERNEL}" "$1/boot/{INITRD}" {_quoted(str(boot))}',
        f'chroot "$1" /bin/sh <{_quoted(str(files / "strip.sh"))}',
    ]
    return _mmdebstrap(GUEST_PACKAGES, hooks, packages, target, options)


def _mmdebstrap(
    include: Iterable[str],
    hooks: Iterable[str],
    packages: Iterable[str],
    target: Path,
    options: Iterable[str],
) -> list[str]:
    return [
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        *(f"--dpkgopt=path-exclude={path}" for path in LEFT_OUT),
        *(f"--aptopt={option}" for option in options),
        f"--include={','.join(include)}",
        *(f"--customize-hook={hook}" for hook in hooks),
        SUITE,
        str(target),
        *packages,
    ]


def disk_commands(root_tar: Path, root: Path, disk: Path) -> list[list[str]]:
    """Return the commands that turn a root file system into a disk."""
    exclude = [f"--exclude=./{path}" for path in NOT_IN_ARCHIVE]
    return [
        ["tar", "--extract", "--numeric-owner", *exclude, f"--directory={root}", f"--file={root_tar}"],
        ["mke2fs", "-q", "-t", "ext4", "-m", "0", "-d", str(root), str(disk), DISK_SIZE],
    ]


def image_labels(recipe: str) -> dict[str, str]:
    """Return the labels of the container's image."""
    return {RECIPE_LABEL: recipe}


def _quoted(word: str) -> str:
    import shlex

    return shlex.quote(word)

# SPDX-License-Identifier: GPL-3.0-or-later
"""Contents and formats of the lab's images. Decisions only: no engine is touched.

There are three images. The cluster's containers run from the CPU image. The SR-IOV plugin's image is the same
with one more file, the plugin with stand-ins for virtual functions. Both reach the lab nodes as archives. The
nodes themselves run from the node image, which stays in this machine's engine.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.base.zip_program import packed_program

CPU_IMAGE = "rdm-lab/cpu:1"
SRIOV_IMAGE = "rdm-lab/sriov-plugin:1"
NODE_REPOSITORY = "rdm-lab/node"
CPU_ARCHIVE = "cpu.tar"
SRIOV_ARCHIVE = "sriov-plugin.tar"
RECIPE_LABEL = "rdm.provision.lab.recipe"

# Raised when the code below changes what it makes.
FORMAT = 1

CPU_PACKAGES = (
    "ca-certificates",
    "iproute2",
    "iputils-ping",
    "openssh-client",
    "openssh-server",
    "perftest",
    "procps",
    "python3",
)
NODE_PACKAGES = ("docker.io", "iptables", "kmod", "python3-requests", "sudo", "zstd")
# A third of the image that labs do not need.
LEFT_OUT = (
    "/usr/share/doc/*",
    "/usr/share/info/*",
    "/usr/share/locale/*",
    "/usr/share/man/*",
    "/usr/share/zoneinfo/*",
    "/usr/lib/*/gconv/*",
)
# What strip.sh removes, and the kernel's mounts.
NOT_IN_ARCHIVE = (
    "dev/*",
    "etc/ssh/ssh_host_*",
    "proc/*",
    "run/*",
    "sys/*",
    "tmp/*",
    "var/cache/apt/*",
    "var/lib/apt/lists/*",
    "var/log/*.log",
    "var/log/apt",
)
PLUGIN = "sriov-plugin"
FILES = ("node-setup.sh", "rdm-lab", "slim.sh", PLUGIN, "strip.sh")

PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le"}
_BLOCK = 1024 * 1024


class Layer(NamedTuple):
    """One layer of an image: an uncompressed tar and its sha256 (the diff_id).

    Attributes:
        path: the file with the tar.
        digest: of the tar, in hexadecimal.
        offset: where the tar begins in the file, in bytes.
        size: of the tar, in bytes; -1 means the whole file.
    """

    path: Path
    digest: str
    offset: int = 0
    size: int = -1


def file_content(files: Path, name: str) -> bytes:
    """Return the content of one of ``FILES``; the network plugin is packed with its imports."""
    content = (files / name).read_bytes()
    return packed_program(files.parents[2], content.decode()) if name == PLUGIN else content


def recipe_version(files: Path, base: str) -> str:
    """Return 12 hex digits that change if the images would be made differently.

    Args:
        files: the directory with ``FILES``.
        base: what the images are made from: a distribution's release, or an image in a registry.
    """
    digest = hashlib.sha256(
        json.dumps([FORMAT, base, CPU_PACKAGES, NODE_PACKAGES, LEFT_OUT, NOT_IN_ARCHIVE]).encode()
    )
    for name in FILES:
        digest.update(name.encode() + b"\0" + file_content(files, name))
    return digest.hexdigest()[:12]


# --- the distribution's packages -------------------------------------------------------------------------


def apt_sources(texts: Mapping[str, str], suite: str) -> list[str]:
    """Return the machine's own package sources of one release, as one-line entries.

    Sources of other releases and of third parties are left out.

    Args:
        texts: file name -> content, of sources.list and sources.list.d.
        suite: the release's code name.
    """
    entries: list[str] = []
    for name, text in texts.items():
        found = _deb822(text) if name.endswith(".sources") else _one_line(text)
        for uri, pocket, components, signed_by in found:
            if pocket not in (suite, f"{suite}-updates", f"{suite}-security"):
                continue
            options = f"[signed-by={signed_by}] " if signed_by.startswith("/") else ""
            entries.append(f"deb {options}{uri} {pocket} {' '.join(components)}")
    return list(dict.fromkeys(entries))


def _one_line(text: str) -> Iterator[tuple[str, str, list[str], str]]:
    for line in text.splitlines():
        match = re.match(r"deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s+([^#]+)", line.strip())
        if match:
            signed = re.search(r"signed-by=(\S+)", match[1] or "")
            yield match[2], match[3], match[4].split(), signed[1] if signed else ""


def _deb822(text: str) -> Iterator[tuple[str, str, list[str], str]]:
    for paragraph in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        last = ""
        for line in paragraph.splitlines():
            if line.startswith("#"):
                continue
            if line[:1].isspace():
                fields[last] = f"{fields.get(last, '')} {line.strip()}"
            elif ":" in line:
                last, _, value = line.partition(":")
                last = last.strip().lower()
                fields[last] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() == "no":
            continue
        for uri in fields.get("uris", "").split():
            for pocket in fields.get("suites", "").split():
                yield uri, pocket, fields.get("components", "").split(), fields.get("signed-by", "")


def mmdebstrap_command(
    suite: str, sources: Iterable[str], files: Path, cpu_tar: Path, node_tar: Path, apt_options: Iterable[str]
) -> list[str]:
    """Return the command that makes both root file systems in one run.

    Args:
        suite: the release's code name.
        sources: one-line package sources; none means the distribution's own.
        files: the directory with ``FILES``.
        cpu_tar: where the CPU image's root file system goes.
        node_tar: where the node image's root file system goes.
        apt_options: options of apt for this run, such as a proxy.
    """
    skip = [f"--exclude=./{path}" for path in NOT_IN_ARCHIVE]
    tar = ["tar", "--one-file-system", "--numeric-owner", "--sort=name", *skip]
    # $1 is the root directory.
    hooks = [
        'chroot "$1" apt-get update -qq',
        _inside(files / "slim.sh"),
        f'{_quoted(tar)} --directory="$1" --create --file={_quoted([str(cpu_tar)])} .',
        f'chroot "$1" apt-get install -qq --yes --no-install-recommends {_quoted(NODE_PACKAGES)} >/dev/null',
        f'cp {_quoted([str(files / "rdm-lab")])} "$1/usr/local/sbin/rdm-lab"',
        'chmod 0755 "$1/usr/local/sbin/rdm-lab"',
        _inside(files / "node-setup.sh"),
        _inside(files / "strip.sh"),
    ]
    return [
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        *(f"--dpkgopt=path-exclude={path}" for path in LEFT_OUT),
        *(f"--aptopt={option}" for option in apt_options),
        f"--include={','.join(CPU_PACKAGES)}",
        *(f"--customize-hook={hook}" for hook in hooks),
        suite,
        str(node_tar),
        *sources,
    ]


def _inside(script: Path) -> str:
    """Return mmdebstrap's hook that runs a script inside the root file system."""
    return f'chroot "$1" /bin/sh <{_quoted([str(script)])}'


def _quoted(words: Iterable[str]) -> str:
    import shlex

    return " ".join(shlex.quote(word) for word in words)


# --- a registry ------------------------------------------------------------------------------------------


def dockerfile(base: str) -> str:
    """Return the Dockerfile, on Debian or Ubuntu, with a stage for each of the three images."""
    exclude = "".join(f"path-exclude={path}\\n" for path in LEFT_OUT)
    install = "apt-get update -qq && apt-get install -qq --yes --no-install-recommends"
    return f"""\
FROM {base} AS cpu
COPY strip.sh /tmp/strip.sh
RUN printf '{exclude}' >/etc/dpkg/dpkg.cfg.d/rdm-lab \\
 && export DEBIAN_FRONTEND=noninteractive && {install} {" ".join(CPU_PACKAGES)} \\
 && sh /tmp/strip.sh && rm /tmp/strip.sh

FROM cpu AS sriov-plugin
COPY sriov-plugin /usr/local/bin/sriov-plugin
CMD ["/usr/local/bin/sriov-plugin"]

FROM cpu AS node
COPY strip.sh node-setup.sh /tmp/
COPY rdm-lab /usr/local/sbin/rdm-lab
RUN export DEBIAN_FRONTEND=noninteractive && {install} {" ".join(NODE_PACKAGES)} \\
 && sh /tmp/node-setup.sh && sh /tmp/strip.sh && rm /tmp/strip.sh /tmp/node-setup.sh
"""


def build_context(files: Path, base: str) -> bytes:
    """Return the tar of the build context."""
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as tar:
        add_file(tar, "Dockerfile", dockerfile(base).encode(), 0o644)
        for name in FILES:
            add_file(tar, name, file_content(files, name), 0o755)
    return output.getvalue()


# --- image archives --------------------------------------------------------------------------------------


def plugin_layer(files: Path, target: Path) -> Layer:
    """Write the layer that turns the CPU image into the stand-in plugin's image."""
    with tarfile.open(str(target), "w") as tar:
        add_file(tar, "usr/local/bin/sriov-plugin", file_content(files, PLUGIN), 0o755)
    return measured(target)


def measured(path: Path) -> Layer:
    """Return a tar as a layer."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while True:
            block = file.read(_BLOCK)
            if not block:
                return Layer(path, digest.hexdigest())
            digest.update(block)


def write_archive(
    target: IO[bytes],
    name: str,
    layers: Iterable[Layer],
    command: list[str],
    created: str,
    environment: Iterable[str] = (PATH,),
) -> None:
    """Write an image archive as `docker save` does, in constant memory.

    Args:
        target: the file.
        name: the image's name with tag.
        layers: from the bottom up.
        command: the default command of its containers.
        created: the image's time stamp, RFC 3339.
        environment: of its containers, NAME=VALUE each.
    """
    layers = list(layers)
    config = {
        "architecture": ARCHITECTURES.get(os.uname().machine, os.uname().machine),
        "os": "linux",
        "created": created,
        "config": {"Env": list(environment), "Cmd": command},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer in layers]},
        "history": [{"created": created, "created_by": "rdm-provision lab"} for _ in layers],
    }
    encoded = json.dumps(config, sort_keys=True).encode()
    config_name = f"{hashlib.sha256(encoded).hexdigest()}.json"
    manifest = [
        {
            "Config": config_name,
            "RepoTags": [name],
            "Layers": [f"{layer.digest}/layer.tar" for layer in layers],
        }
    ]
    with tarfile.open(fileobj=target, mode="w") as tar:
        add_file(tar, config_name, encoded, 0o644)
        add_file(tar, "manifest.json", json.dumps(manifest).encode(), 0o644)
        for layer in layers:
            entry = tarfile.TarInfo(f"{layer.digest}/layer.tar")
            entry.size = layer.path.stat().st_size if layer.size < 0 else layer.size
            entry.mode = 0o644
            with layer.path.open("rb") as file:
                file.seek(layer.offset)
                tar.addfile(entry, file)


def add_file(tar: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    """Add a file owned by root to a tar."""
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    entry.mode = mode
    tar.addfile(entry, io.BytesIO(content))


def import_changes(labels: Mapping[str, str]) -> list[str]:
    """Return the Dockerfile lines that label an imported root file system and set its PATH."""
    return [f"ENV {PATH}", *(f"LABEL {key}={value}" for key, value in labels.items())]

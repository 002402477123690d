# SPDX-License-Identifier: GPL-3.0-or-later
"""Sets mirrors of any registry, in hosts.toml files, for Docker Engines with the containerd image store.

From version 28.0 on, such an engine reads /etc/docker/certs.d/REGISTRY/hosts.toml at each pull, so it needs
neither a reload nor a restart (daemon/hosts.go in moby). The format is containerd's:
https://github.com/containerd/containerd/blob/main/docs/hosts.md. The first line of a file says that it is
ours, and for which engine; other files are left alone.

This runs on nodes, unsupported() and entries() also on the controller (Python 3.8 or newer).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from typing import Any, Dict, Iterable, List, Mapping, Sequence
from urllib.parse import urlsplit

from ansible_collections.rdm.provision.plugins.module_utils.base import host
from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import write_whole
from ansible_collections.rdm.provision.plugins.module_utils.base.file_diff import difference
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI
from ansible_collections.rdm.provision.plugins.module_utils.docker.engine_facts import (
    image_store,
    security_options,
)
from ansible_collections.rdm.provision.plugins.module_utils.docker.registry_mirrors import (
    CERTIFICATES,
    is_mirror,
    split,
)

NAME = "hosts.toml"
_MARKER = "# Written by rdm-provision for the engine at {0}. It replaces and removes this file."
OLDEST_ENGINE = (28, 0)
FOREIGN = "was not written by rdm-provision for this engine"
_ENTRY = "# images_mirror: "

Json = Dict[str, Any]


def unsupported(version: str, store: str, options: Iterable[str]) -> str:
    """Return why an engine does not read our hosts.toml files, as a part of a sentence; "" if it does.

    Args:
        version: of the Docker Engine.
        store: its image store, classic or containerd.
        options: its security options.
    """
    if "rootless" in options:
        return "needs an engine that root runs, and the node's is rootless"
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if store == "containerd" and numbers >= OLDEST_ENGINE:
        return ""
    return (
        "needs Docker Engine {0} or newer with the containerd image store, and the node has {1} with the "
        "{2} one"
    ).format(".".join(map(str, OLDEST_ENGINE)), version, store)


def marker(socket: str) -> str:
    """Return the first line of the files that are for the engine with this socket."""
    return _MARKER.format(os.path.realpath(socket))


def hosts_toml(
    first_line: str, registry: str, mirrors: Sequence[str], certificates: Mapping[str, Sequence[str]]
) -> str:
    """Return the text of a registry's hosts.toml: its mirrors in this order, and then the registry itself.

    Args:
        first_line: says that the file is ours.
        registry: host or host:port, as in the names of images.
        mirrors: their URLs. A path precedes the names of repositories there, like a project of Harbor.
        certificates: host or host:port -> the lines for its certificates.
    """
    lines = [first_line, *("{0}{1}={2}".format(_ENTRY, registry, url) for url in mirrors)]
    # With this file, the engine does not look for the registry's certificates itself.
    lines += certificates.get(registry, ())
    for url in mirrors:
        parts = urlsplit(url)
        root = "{0}://{1}".format(parts.scheme, parts.netloc)
        lines += ["", '[host."{0}{1}"]'.format(root, "/v2" + parts.path if parts.path else "")]
        lines.append('  capabilities = ["pull", "resolve"]')
        if parts.path:
            lines.append("  override_path = true")
        # With certificates, the engine would try https first.
        if parts.scheme == "https":
            lines += ["  " + line for line in certificates.get(parts.netloc, ())]
    return "\n".join(lines) + "\n"


def entries(texts: Iterable[str]) -> List[str]:
    """Return the entries of images_mirror for which these hosts.toml files were written."""
    lines = (line for text in texts for line in text.splitlines())
    return [line[len(_ENTRY) :] for line in lines if line.startswith(_ENTRY)]


def wanted_files(socket: str, mirrors: Iterable[str], root: str = CERTIFICATES) -> Dict[str, str]:
    """Return the hosts.toml files that an engine needs, path -> text.

    Args:
        socket: the engine's.
        mirrors: entries of images_mirror. Those without a registry, and wrong ones, are left out.
        root: the engine's directory of registries.
    """
    of: Dict[str, List[str]] = {}
    for one in mirrors:
        registry, url = split(one)
        if registry and is_mirror(one) and url not in of.setdefault(registry, []):
            of[registry].append(url)
    files = {}
    for registry, urls in of.items():
        hosts = [registry, *(urlsplit(url).netloc for url in urls)]
        certificates = {one: _certificates(_directory(one, root)) for one in hosts}
        files[_path(registry, root)] = hosts_toml(marker(socket), registry, urls, certificates)
    return files


def own_files(socket: str, root: str = CERTIFICATES) -> Dict[str, str]:
    """Return the hosts.toml files that we have written for an engine, path -> text."""
    texts = {path: host.read_text(path) for path in (os.path.join(root, one, NAME) for one in _names(root))}
    return {path: text for path, text in texts.items() if text.startswith(marker(socket) + "\n")}


def lacking(socket: str, mirrors: Iterable[str], root: str = CERTIFICATES) -> List[str]:
    """Return the entries of images_mirror whose hosts.toml file is not as it should be."""
    own = own_files(socket, root)
    return entries(
        text for path, text in wanted_files(socket, mirrors, root).items() if own.get(path) != text
    )


def foreign_files(socket: str, mirrors: Iterable[str], root: str = CERTIFICATES) -> Dict[str, str]:
    """Return the hosts.toml files of others for registries in images_mirror: registry -> path."""
    own = own_files(socket, root)
    found = {}
    for one in mirrors:
        registry = split(one)[0]
        if registry and is_mirror(one):
            path = _path(registry, root)
            if os.path.lexists(path) and path not in own:
                found[registry] = path
    return found


def configure(api: DockerAPI, mirrors: Sequence[str], change: bool, root: str = CERTIFICATES) -> Json:
    """Write the hosts.toml files for mirrors of registries, and remove our others.

    Args:
        api: the engine.
        mirrors: entries of images_mirror. Those without a registry are left out.
        change: False for check mode.
        root: the engine's directory of registries.

    Returns:
        `changed`; `after`, the entries with a registry; and `diffs`, one of each file.

    Raises:
        NodeError: the engine does not read these files, or one of others is in the way.
        DockerProblem: the engine does not answer.
    """
    wrong = [one for one in mirrors if split(one)[0] and not is_mirror(one)]
    if wrong:
        raise NodeError("{0} is not a mirror".format(wrong[0]), "write REGISTRY=http(s)://host[:port][/path]")
    own, wanted = own_files(api.socket, root), wanted_files(api.socket, mirrors, root)
    if wanted:
        info = api.get("/info")
        why = unsupported(str(api.version().get("Version", "")), image_store(info), security_options(info))
        if why:
            raise NodeError(
                "images_mirror {0} {1}".format(entries(wanted.values())[0], why),
                "write the mirror into the image's name",
            )
    for path in foreign_files(api.socket, mirrors, root).values():
        raise NodeError("{0} {1}".format(path, FOREIGN), "name the mirror in it, or remove the file")
    changes = [path for path in {**wanted, **own} if wanted.get(path) != own.get(path)]
    if change:
        try:
            for path in changes:
                _write(path, wanted.get(path, ""))
        except OSError as error:
            raise NodeError(
                "{0}: {1}".format(error.filename, error.strerror), "let root do this (rdm_become: true)"
            ) from None
    return {
        "changed": bool(changes),
        "after": entries(wanted.values()),
        "diffs": [difference(path, own.get(path, ""), wanted.get(path, "")) for path in changes],
    }


def _write(path: str, text: str) -> None:
    """Write one of our files; without a text, remove it, and its directory if that is empty then."""
    if text:
        write_whole(path, text.encode(), 0o644)
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    # With an empty directory left, the engine would not look into _default.
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(path))


def _path(registry: str, root: str) -> str:
    return os.path.join(_directory(registry, root), NAME)


def _directory(registry: str, root: str) -> str:
    """Return a registry's directory: the first one that the engine finds, or the usual one."""
    name, colon, port = registry.rpartition(":")
    first = os.path.join(root, "{0}_{1}_".format(name, port))
    return first if colon and os.path.isdir(first) else os.path.join(root, registry)


def _certificates(directory: str) -> List[str]:
    """Return the lines for the certificates in a directory: authorities, and pairs of certificate and key."""
    names = _names(directory)
    authorities = [os.path.join(directory, one) for one in names if one.endswith(".crt")]
    stems = [os.path.join(directory, one[: -len(".cert")]) for one in names if one.endswith(".cert")]
    pairs = [[stem + ".cert", stem + ".key"] for stem in stems]
    # A JSON list of texts is one of TOML, too.
    found = (("ca", authorities), ("client", pairs))
    return ["{0} = {1}".format(key, json.dumps(values)) for key, values in found if values]


def _names(directory: str) -> List[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []

# SPDX-License-Identifier: GPL-3.0-or-later
"""The ssh keys of a cluster: two files on the controller, and what each node gets from them.

* `id_ed25519` is the one with which root in a container logs in to another.
* `host_ca` signs the containers' host keys. Those are derived from it, so that there is nothing else to keep,
  and everybody who has these two files comes to the same keys for every node.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from typing import NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import write_whole
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    Problem,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.ssh.key_formats import (
    derived,
    fingerprint,
    host_certificate,
    private_text,
    public_line,
)
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

LOGIN = "id_ed25519"
AUTHORITY = "host_ca"
FILES = (LOGIN, "authorized_keys", "ssh_host_ed25519_key", "ssh_host_ed25519_key-cert.pub", "known_hosts")
"""What each node has of them."""

_NEW = "set preflight_new_ssh_keys=true for one run, which makes new keys, and with them every container anew"
_CLOSE = "chmod 600, and if somebody may have read it"
_ONCE_SHARED = "ssh_host_ed25519_key"  # by all containers, in versions before


class Keys(NamedTuple):
    """The cluster's keys.

    Attributes:
        login: with which containers log in to each other.
        authority: which signs their host keys.
    """

    login: Ed25519PrivateKey
    authority: Ed25519PrivateKey

    @property
    def fingerprints(self) -> dict[str, str]:
        """What `ssh-keygen -l` says of each, by the name of its file."""
        return {LOGIN: fingerprint(self.login), AUTHORITY: fingerprint(self.authority)}


def read(directory: str) -> Keys | None:
    """Return the keys in a directory; None where one of them is missing.

    Raises:
        PreconditionFailed: with each file that cannot be used.
    """
    found = {}
    problems = []
    for name in (LOGIN, AUTHORITY):
        path = os.path.join(directory, name)
        try:
            found[name] = _read(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(Problem(None, path, f"cannot be read: {error.strerror}", "let this user read it"))
        except _OpenError:
            problems.append(Problem(None, path, "can be read by others than its owner", f"{_CLOSE} {_NEW}"))
        except (TypeError, ValueError, UnsupportedAlgorithm):
            reason = "is no ed25519 key without a passphrase"
            problems.append(Problem(None, path, reason, f"restore it, or {_NEW}"))
    if problems:
        raise PreconditionFailed(problems)
    return Keys(found[LOGIN], found[AUTHORITY]) if len(found) == 2 else None


def make(directory: str, cluster: str, renew: bool = False) -> Keys:
    """Make the keys that are missing, or all of them, and return them all.

    Raises:
        OSError: they cannot be written.
        PreconditionFailed: one that is there cannot be used.
    """
    os.makedirs(directory, exist_ok=True)
    os.chmod(directory, 0o700)
    write_whole(os.path.join(directory, ".gitignore"), b"*\n", 0o600)
    for name, comment in (
        (LOGIN, f"root in the containers of {cluster}"),
        (AUTHORITY, f"signs the host keys of the containers of {cluster}"),
    ):
        path = os.path.join(directory, name)
        if renew or not os.path.exists(path):
            key = Ed25519PrivateKey.generate()
            write_whole(path, private_text(key, comment).encode(), 0o600)
            write_whole(f"{path}.pub", f"{public_line(key)} {comment}\n".encode(), 0o600)
    for name in (_ONCE_SHARED, f"{_ONCE_SHARED}.pub"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, name))
    keys = read(directory)
    if keys is None:
        raise FileNotFoundError(2, "No such file or directory", directory)
    return keys


def of_node(keys: Keys, cluster: str, node: str, my_ip: str) -> dict[str, str]:
    """Return what a node has of the keys: the text of each of its files, by name."""
    name = f"{node} of {cluster}"
    host = derived(keys.authority, f"host key of {name}")
    texts = (
        private_text(keys.login, f"root in the containers of {cluster}"),
        f"{public_line(keys.login)} root in the containers of {cluster}\n",
        private_text(host, name),
        # ssh connects to MY_IP, whatever name the user gave.
        f"{host_certificate(host, keys.authority, name, [my_ip])} {name}\n",
        f"@cert-authority * {public_line(keys.authority)} {cluster}\n",
    )
    return dict(zip(FILES, texts, strict=True))


def problems(directory: str, keys: Keys | None, known: Mapping[str, str], plan_file: str) -> list[Problem]:
    """Return what is wrong with the keys: they are not those that the plan file knows.

    Args:
        directory: where they are.
        keys: those that are there.
        known: the fingerprints in the plan file, by the name of the key's file; empty for none.
        plan_file: its path.
    """
    if not known or (keys is not None and keys.fingerprints == known):
        return []
    what = "lacks keys" if keys is None else "has other keys than those"
    reason = f"{what} that {plan_file} knows by their fingerprints"
    hint = f"copy {LOGIN} and {AUTHORITY} there from where the cluster was made, or {_NEW}"
    return [Problem(None, f"container_ssh_key_dir {directory}", reason, hint)]


class _OpenError(Exception):
    """A key is not only its owner's."""


def _read(path: str) -> Ed25519PrivateKey:
    with open(path, "rb") as stream:
        if stat.S_IMODE(os.fstat(stream.fileno()).st_mode) & 0o077:
            raise _OpenError
        key = load_ssh_private_key(stream.read(), None)
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(path)
    return key

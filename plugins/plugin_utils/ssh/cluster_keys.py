# SPDX-License-Identifier: GPL-3.0-or-later
"""The ssh keys of a cluster: two files on the controller, and the files that each node gets from them.

* root uses `id_ed25519` to log in from one container to another.
* `host_ca` signs the containers' host keys, and they are derived from it: everybody who has these two files
  derives the same keys for every node, and nothing else needs to be kept.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from typing import NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import write_whole
from ansible_collections.rdm.provision.plugins.module_utils.constants import STATE_DIR
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
"""The files on each node."""

_NEW = "set preflight_new_ssh_keys=true for one run, which makes new keys and recreates every container"
_CLOSE = "chmod 600, and if somebody may have read it"
_ONCE_SHARED = "ssh_host_ed25519_key"  # by all containers, in versions before


class Keys(NamedTuple):
    """The cluster's keys.

    Attributes:
        login: logs in from one container to another.
        authority: signs the containers' host keys.
    """

    login: Ed25519PrivateKey
    authority: Ed25519PrivateKey

    @property
    def fingerprints(self) -> dict[str, str]:
        """The fingerprint of each, as `ssh-keygen -l` prints it, by file name."""
        return {LOGIN: fingerprint(self.login), AUTHORITY: fingerprint(self.authority)}


def directory_of(given: str, inventory: str) -> str:
    """Return the directory of a cluster's keys.

    Args:
        given: `container_ssh_key_dir`; empty for the default.
        inventory: the inventory's directory, where a relative path begins.
    """
    return os.path.join(inventory, os.path.expanduser(given) or os.path.join(STATE_DIR, "ssh"))


def read(directory: str) -> Keys | None:
    """Return the keys in a directory; None if one is missing.

    Raises:
        PreconditionFailed: files that cannot be used, all of them.
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
    """Make the missing keys, or all keys if `renew` is set, and return both.

    Raises:
        OSError: the keys cannot be written.
        PreconditionFailed: an existing key cannot be used.
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
    """Return the text of each key file of a node, by file name."""
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
    """Return a problem if the keys differ from those that the plan file records.

    Args:
        directory: the keys' directory.
        keys: the keys in it; None if one is missing.
        known: the fingerprints in the plan file, by the key's file name; empty for none.
        plan_file: the path of the plan file.
    """
    if not known or (keys is not None and keys.fingerprints == known):
        return []
    what = "lacks keys" if keys is None else "has other keys than those"
    reason = f"{what} that {plan_file} knows by their fingerprints"
    hint = f"copy {LOGIN} and {AUTHORITY} there from where the cluster was made, or {_NEW}"
    return [Problem(None, f"container_ssh_key_dir {directory}", reason, hint)]


class _OpenError(Exception):
    """Others than its owner can read a key."""


def _read(path: str) -> Ed25519PrivateKey:
    with open(path, "rb") as stream:
        if stat.S_IMODE(os.fstat(stream.fileno()).st_mode) & 0o077:
            raise _OpenError
        key = load_ssh_private_key(stream.read(), None)
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(path)
    return key

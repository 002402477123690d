# SPDX-License-Identifier: GPL-3.0-or-later
"""Find variables that Ansible Vault encrypts and that cannot be decrypted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ansible.constants import INTERNAL_STATIC_VARS
from ansible.errors import AnsibleError
from ansible.parsing.vault import EncryptedString
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem

# Variables that Ansible sets: they repeat others, and users do not encrypt them.
_MAGIC = INTERNAL_STATIC_VARS | {"vars"}


def undecryptable(hosts: Mapping[str, Mapping[str, Any]]) -> list[Problem]:
    """Return a problem for each encrypted variable that cannot be decrypted.

    Ansible reports this only when a variable is used, and without its name. Decryption takes milliseconds, so
    if one value can be decrypted, others with the same vault ID are assumed to be readable.

    Args:
        hosts: host -> its unevaluated variables.
    """
    readable: set[str] = set()
    known: dict[str, str] = {}
    found = []
    for host, variables in hosts.items():
        for name, value in variables.items():
            for secret in _secrets(value) if name not in _MAGIC else ():
                text = secret._ciphertext
                vault_id = text.partition("\n")[0]
                if vault_id in readable:
                    continue
                if text not in known:
                    known[text] = _why_not(secret)
                if not known[text]:
                    readable.add(vault_id)
                    continue
                reason = f"is encrypted and cannot be read: {known[text]}"
                hint = "give its password with --ask-vault-pass or --vault-password-file FILE"
                found.append(Problem(host, name, reason, hint))
    return found


def _why_not(secret: EncryptedString) -> str:
    try:
        str(secret)
    except AnsibleError as error:
        return error.message.rstrip(". ")
    return ""


def _secrets(value: Any) -> Iterator[EncryptedString]:
    if isinstance(value, EncryptedString):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _secrets(item)
    elif isinstance(value, list):
        for item in value:
            yield from _secrets(item)

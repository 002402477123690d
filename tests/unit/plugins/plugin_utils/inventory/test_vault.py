"""Encrypted variables that cannot be read are named."""

from __future__ import annotations

import pytest
from ansible.parsing.vault import EncryptedString, VaultSecretsContext
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.vault import undecryptable

SECRET = EncryptedString(ciphertext="$ANSIBLE_VAULT;1.1;AES256\n6161\n")


def test_ansibles_own_variables_hold_others_once_more_and_are_not_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(VaultSecretsContext, "_current", VaultSecretsContext([]))
    own = {"token": SECRET, "container_env": {"T": SECRET}}
    magic = {"vars": own, "hostvars": {"n1": own}, "groups": {"all": [SECRET]}}
    found = undecryptable({"n1": {**magic, **own}})
    assert [(problem.node, problem.value) for problem in found] == [("n1", "token"), ("n1", "container_env")]

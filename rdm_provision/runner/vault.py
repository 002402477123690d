"""The password of encrypted variables, on its way to Ansible's programs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rdm_provision.errors import InputError

__all__ = ["password_file", "password_in_memory", "vault_arguments", "vault_environment"]

_IN_MEMORY = "/proc/"


def password_file(path: str | Path) -> str:
    """Return the absolute path of a file that holds a password, or of a program that prints it.

    Raises:
        InputError: there is none.
    """
    found = Path(path).expanduser()
    if not found.is_file() or not os.access(found, os.R_OK):
        raise InputError(f"there is no vault password file {path} that can be read", hint="check its path")
    return str(found.absolute())


def password_in_memory(password: str) -> str:
    """Return the path of a file that holds a password, in memory: it goes with this process."""
    file = os.memfd_create("vault", os.MFD_CLOEXEC)
    # Ansible would run an executable file.
    os.fchmod(file, 0o600)
    os.write(file, password.encode())
    return f"{_IN_MEMORY}{os.getpid()}/fd/{file}"


def vault_environment(path: str) -> Mapping[str, str]:
    """Return the variable that tells Ansible's programs where the password is, if there is one."""
    return {"ANSIBLE_VAULT_PASSWORD_FILE": path} if path else {}


def vault_arguments(path: str) -> list[str]:
    """Return what a user of ansible-playbook would write instead."""
    if path.startswith(_IN_MEMORY):
        return ["--ask-vault-pass"]
    return ["--vault-password-file", path] if path else []

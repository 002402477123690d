"""Pass the password of encrypted variables to Ansible's programs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rdm_provision.errors import InputError

_IN_MEMORY = "/proc/"


def password_file(path: str | Path) -> str:
    """Return the absolute path of a file that holds a password, or of a program that prints it.

    Raises:
        InputError: there is no such file.
    """
    found = Path(path).expanduser()
    if not found.is_file() or not os.access(found, os.R_OK):
        raise InputError(f"there is no vault password file {path} that can be read", hint="check its path")
    return str(found.absolute())


def password_in_memory(password: str) -> str:
    """Return the path of a file in memory that holds a password, and ends with this process."""
    file = os.memfd_create("vault", os.MFD_CLOEXEC)
    # Ansible would run an executable file.
    os.fchmod(file, 0o600)
    os.write(file, password.encode())
    return f"{_IN_MEMORY}{os.getpid()}/fd/{file}"


def vault_environment(path: str) -> Mapping[str, str]:
    """Return the environment variable with the path of the password file, if there is one."""
    return {"ANSIBLE_VAULT_PASSWORD_FILE": path} if path else {}


def vault_arguments(path: str) -> list[str]:
    """Return the equivalent option of ansible-playbook."""
    if path.startswith(_IN_MEMORY):
        return ["--ask-vault-pass"]
    return ["--vault-password-file", path] if path else []

"""Where the collection lies, and the environment in which Ansible's programs run."""

from __future__ import annotations

import configparser
import locale
import os
import shlex
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from rdm_provision.errors import InputError, ToolMissingError

_SYSTEM_COLLECTIONS = "~/.ansible/collections:/usr/share/ansible/collections"
COLLECTION = Path("ansible_collections", "rdm", "provision")
CALLBACKS = "rdm.provision.module_cache,rdm.provision.template_cache"
"""The callbacks that cache packed modules between runs and compile each template once."""

_PACKAGE = Path(__file__).resolve().parent

# Setting → (its variable, its places in ansible.cfg, our value). What the user has set stays.
_DEFAULTS: tuple[tuple[str, tuple[tuple[str, str], ...], str], ...] = (
    (
        "ANSIBLE_PIPELINING",
        (("defaults", "pipelining"), ("connection", "pipelining"), ("ssh_connection", "pipelining")),
        "True",
    ),
    (
        "ANSIBLE_SSH_ARGS",
        (("ssh_connection", "ssh_args"),),
        "-o ControlMaster=auto -o ControlPersist=5m -o ServerAliveInterval=10 -o ServerAliveCountMax=3",
    ),
    ("ANSIBLE_TIMEOUT", (("defaults", "timeout"),), "20"),
    ("ANSIBLE_GATHERING", (("defaults", "gathering"),), "explicit"),
    ("ANSIBLE_INJECT_FACT_VARS", (("defaults", "inject_facts_as_vars"),), "False"),
    ("ANSIBLE_PYTHON_INTERPRETER", (("defaults", "interpreter_python"),), "auto_silent"),
    ("ANSIBLE_DEPRECATION_WARNINGS", (("defaults", "deprecation_warnings"),), "False"),
)


@cache
def checkout() -> Path | None:
    """Return the root of the checkout that this package runs from, or None if it is installed."""
    root = _PACKAGE.parent
    return root if (root / "galaxy.yml").is_file() and (root / "playbooks").is_dir() else None


@cache
def collection() -> Path:
    """Return the folder of the collection ``rdm.provision``.

    Raises:
        ToolMissingError: it is neither beside this package nor on Python's path.
    """
    if root := checkout():
        return root
    for entry in (_PACKAGE.parent, *map(Path, sys.path)):
        if (entry / COLLECTION / "playbooks").is_dir():
            return entry / COLLECTION
    raise ToolMissingError(
        "the collection rdm.provision is not installed beside the package rdm_provision",
        hint="reinstall it: pip install --force-reinstall rdm-provision",
    )


def collections_root() -> Path:
    """Return the folder of ``ansible_collections`` that Python finds the collection in."""
    return collections_path() or collection().parents[2]


def collections_path() -> Path | None:
    """Return the folder to add to Ansible's collection path, or None if Ansible searches it anyway."""
    root = checkout()
    return root / ".collections" if root else None


def make_importable() -> None:
    """Make ``ansible_collections.rdm.provision`` importable in this process, as Ansible does in its own."""
    path = collections_path()
    if path and str(path) not in sys.path:
        link = path / COLLECTION
        if not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(collection(), target_is_directory=True)
        sys.path.insert(0, str(path))


def make_planner_importable() -> None:
    """Make those packages of the trainer importable that need no torch. The collection carries them.

    They come last on Python's path, since folders beside them have common names, such as ``tests``.
    """
    home = str(collection() / "trainer")
    if home not in sys.path:
        sys.path.append(home)


def playbook(name: str) -> str:
    """Return the name of a playbook of the collection for ansible-playbook.

    In a checkout it is the file, in an installed collection ``rdm.provision.NAME``.

    Args:
        name: without a suffix; a path is returned as it is.
    """
    if "/" in name or name.endswith((".yml", ".yaml")):
        return str(Path(name).resolve())
    file = collection() / "playbooks" / f"{name}.yml"
    if not file.is_file():
        raise ToolMissingError(f"the collection rdm.provision has no playbook {name!r} ({file} is missing)")
    return str(file) if checkout() else f"rdm.provision.{name}"


def program(name: str) -> str:
    """Return the path of a program, preferring the one installed with this Python.

    Raises:
        ToolMissingError: it is not installed.
    """
    import shutil

    if found := shutil.which(name, path=_path()):
        return found
    raise ToolMissingError(f"{name} is not installed", hint="run: rdm-provision doctor")


def _path() -> str:
    ours = str(Path(sys.executable).parent)
    entries = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(entries if ours in entries else [ours, *entries])


def ansible_environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables to set for Ansible's programs, on top of the caller's environment.

    The user's settings, in the environment or in the ``ansible.cfg`` that Ansible would read, stay. But ssh
    host keys are always checked, and output has no colours, because it is parsed.

    Args:
        base: the environment; default: this process's.

    Raises:
        InputError: ANSIBLE_CONFIG names a file that Ansible refuses.
    """
    base = os.environ if base is None else base
    configured = _ansible_cfg(base)
    env = {
        variable: value
        for variable, options, value in _DEFAULTS
        if variable not in base and not any(configured.has_option(*option) for option in options)
    }
    env |= {
        "ANSIBLE_HOST_KEY_CHECKING": "True",
        "ANSIBLE_SSH_HOST_KEY_CHECKING": "True",
        "ANSIBLE_INVENTORY_UNPARSED_FAILED": "True",
        "ANSIBLE_FORCE_COLOR": "False",
        "ANSIBLE_NOCOLOR": "True",
        "PATH": _path(),
    }
    callbacks = base.get("ANSIBLE_CALLBACKS_ENABLED") or configured.get(
        "defaults", "callbacks_enabled", fallback=""
    )
    enabled = [name.strip() for name in str(callbacks).split(",") if name.strip()]
    env["ANSIBLE_CALLBACKS_ENABLED"] = ",".join(dict.fromkeys([*enabled, *CALLBACKS.split(",")]))
    if ours := collections_path():
        theirs = base.get("ANSIBLE_COLLECTIONS_PATH") or configured.get(
            "defaults", "collections_path", fallback=_SYSTEM_COLLECTIONS
        )
        entries = [str(ours), *(entry for entry in str(theirs).split(":") if Path(entry) != ours)]
        env["ANSIBLE_COLLECTIONS_PATH"] = ":".join(dict.fromkeys(entries))
    if locale.getpreferredencoding(do_setlocale=False).lower().replace("-", "") != "utf8":
        env["LC_ALL"] = "C.UTF-8"
    return env


def _ansible_cfg(base: Mapping[str, str]) -> configparser.RawConfigParser:
    """Read the ansible.cfg that Ansible would read from here."""
    parser = configparser.RawConfigParser(strict=False, inline_comment_prefixes=(";",))
    candidates = [
        Path.cwd() / "ansible.cfg",
        Path("~/.ansible.cfg").expanduser(),
        Path("/etc/ansible/ansible.cfg"),
    ]
    if chosen := base.get("ANSIBLE_CONFIG"):
        given = Path(chosen).expanduser()
        candidates.insert(0, given / "ansible.cfg" if given.is_dir() else given)
        if candidates[0].exists() and candidates[0].suffix not in (".cfg", ".ini"):
            raise InputError(
                f"ANSIBLE_CONFIG is {chosen}, and Ansible takes only a file whose name ends in .cfg or .ini",
                hint="unset it; or, for Ansible's defaults, name an empty file such as empty.cfg",
            )
    for candidate in candidates:
        if candidate.is_file():
            try:
                parser.read(candidate, encoding="utf-8")
            except (configparser.Error, OSError, UnicodeError):
                # Ansible will report the error.
                return configparser.RawConfigParser()
            break
    return parser


def shell_line(argv: list[str], env: Mapping[str, str]) -> str:
    """Return a command as a line to paste into a shell."""
    settings = [f"{name}={shlex.quote(value)}" for name, value in env.items()]
    return " ".join([*settings, shlex.join(argv)])

"""Read an inventory as Ansible does, or report in one sentence why it cannot be read."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rdm_provision import environment
from rdm_provision.errors import InputError, InventoryError
from rdm_provision.runner.translator import error_sentence, plain
from rdm_provision.runner.vault import vault_environment

_VAULT = b"$ANSIBLE_VAULT;"
_LIMIT_S = 300.0
"""Seconds that an inventory may take, such as one that queries a cloud or a database."""
_PLANNED = Path(__file__).with_name("_planned_inventory.py")
_VARIABLES = ("group_vars", "host_vars")
_INVENTORY_SUFFIXES = (".yml", ".yaml", ".json", ".ini", ".toml")
_GROUPS = ("master", "workers", "login")
_GROUP_KEYS = ("hosts", "children", "vars")
# Ansible goes on without them.
_SKIPPED = re.compile(
    r"""Skipping (?:(unexpected )?key [("]((?!x-).+?)[)"] in group [("](.+?)[)"]|'(.+?)' as)"""
)


def find_inventory(start: Path | None = None) -> Path:
    """Return the default inventory: ``inventory/lab``, or the only one in ``inventory/``.

    Args:
        start: the folder that has ``inventory/``; default: the current one.

    Raises:
        InputError: there is none, or more than one.
    """
    folder = (start or Path.cwd()) / "inventory"
    if (folder / "lab").is_dir() and _holds_hosts(folder / "lab"):
        return folder / "lab"
    found = _inventories(folder)
    if len(found) == 1:
        return found[0]
    if not found:
        raise InputError(
            "no inventory: there is none in ./inventory",
            hint="name yours with -i PATH, or make a lab: rdm-provision lab up",
        )
    names = ", ".join(f"inventory/{path.name}" for path in found)
    raise InputError(f"which inventory? There are {names}", hint="name one with -i PATH or RDM_INVENTORY")


def require_one(path: Path) -> None:
    """Raise an InventoryError if a path is only a folder of inventories.

    Ansible would read all of them, as one cluster, whose plan and lock would lie in different folders. With
    variables of its own the folder is one cluster, whose groups are in several folders.
    """
    inside = _inventories(path)
    if inside and not any(map(_is_read, path.iterdir())):
        raise InventoryError(
            f"{path} is a folder of inventories", hint=f"name one of them: {', '.join(map(str, inside))}"
        )


def _is_read(entry: Path) -> bool:
    """Return whether an entry of a folder is a file that Ansible reads, or has variables of the folder."""
    if entry.is_dir():
        return entry.name in _VARIABLES
    return not entry.name.startswith(".") and entry.suffix not in (".cfg", ".md", ".rst", ".txt")


def _inventories(folder: Path) -> list[Path]:
    return sorted(filter(_holds_hosts, folder.iterdir())) if folder.is_dir() else []


def _holds_hosts(path: Path) -> bool:
    hidden = path.name.startswith(".") or path.name in _VARIABLES
    return path.is_dir() and not hidden and any(path.glob("hosts*"))


def similar_inventories(path: Path) -> str:
    """Return a hint for the path of an inventory that does not exist."""
    with contextlib.suppress(OSError):
        neighbours = [entry.name for entry in path.parent.iterdir() if not entry.name.startswith(".")]
        if close := difflib.get_close_matches(path.name, neighbours, n=1):
            return f"did you mean {path.parent / close[0]}?"
    return (
        "make a lab with: rdm-provision lab up"
        if path.name == "lab"
        else "check the path after -i, or RDM_INVENTORY"
    )


def read_inventory(path: Path, vault: str = "") -> dict[str, Any]:
    """Return what ``ansible-inventory --list`` prints.

    Args:
        path: of the inventory.
        vault: file with the password of encrypted files, if any.

    Raises:
        InventoryError: a part of it cannot be read.
    """
    return _read(path, vault, [environment.program("ansible-inventory")])[0]


def read_with_plan(path: Path, vault: str = "") -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the same, and what the action ``plan`` returns without touching a node.

    The plan is None if something is wrong with it; the action in a run of its own reports what.
    """
    environment.program("ansible-inventory")
    listing, rest = _read(path, vault, [sys.executable, "-I", str(_PLANNED)])
    return listing, json.loads(rest) if rest else None


def _read(path: Path, vault: str, program: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Return what a program lists, and the text after that; see :func:`read_inventory`."""
    argv = [*program, "-i", str(path.resolve()), "--list"]
    env = {**os.environ, **environment.ansible_environment(), **vault_environment(vault)}
    try:
        done = _bounded(argv, env, _LIMIT_S)
    except subprocess.TimeoutExpired:
        raise InventoryError(
            f"{path} cannot be read: ansible-inventory has not ended within {_LIMIT_S:.0f} s",
            hint=f"see what it waits for: ansible-inventory -i {path} --list",
        ) from None
    unparsed = list(_unparsed(plain(done.stderr)))
    if done.returncode != 0:
        output = _parse_error(*unparsed[0]) if unparsed else _other_error(done.stderr, path)
        if "decrypt" in output.lower() and (encrypted := next(_encrypted(path), None)):
            what = f"{path} cannot be read: {encrypted} is encrypted: {output.rstrip('.')}"
            hint = "give its password: --ask-vault-pass or --vault-password-file FILE"
            raise InventoryError(what, hint="check the password" if vault else hint)
        empty = path.is_dir() and not any(path.iterdir())
        hint = (
            f"put the hosts into {path / 'hosts.yml'}, or make a lab: rdm-provision lab up" if empty else ""
        )
        raise InventoryError(f"{path} {'is empty' if empty else f'cannot be read: {output}'}", hint=hint)
    for file, complaints in unparsed:
        # Ansible would go on without the nodes of this file. Other files in the folder do not matter.
        if file.is_file() and (file.suffix in _INVENTORY_SUFFIXES or file.stem == "hosts"):
            raise InventoryError(f"{path} cannot be read: {_parse_error(file, complaints)}")
    hint = "a group has the keys hosts, children and vars"
    for mapping, key, group, scalar in _SKIPPED.findall(" ".join(plain(done.stderr).split())):
        if group in _GROUPS or (_is_misspelt(key) and (mapping or group == "all")):
            hint += "; one that begins with x- is left out"
            raise InventoryError(f"{path} cannot be read: the group {group} has the key {key}", hint=hint)
        if scalar in _GROUPS:
            raise InventoryError(f"{path} cannot be read: the group {scalar} is no dictionary", hint=hint)
    output = done.stdout.strip()
    listing, end = json.JSONDecoder().raw_decode(output)
    return listing, output[end:].strip()


def _is_misspelt(key: str) -> bool:
    """Return whether a key of a group may hold hosts that Ansible leaves out.

    Others may be a user's YAML anchors, or belong to a file in the folder that is no inventory.
    """
    near = difflib.get_close_matches(key.lower(), _GROUP_KEYS + _GROUPS, n=1, cutoff=0.75)
    return key[:1].isalpha() and bool(near)


def _bounded(argv: Sequence[str], env: Mapping[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a program; after a timeout, end it and what it started, such as an inventory script.

    It stays in this process's session, since a script may prompt for a password on the terminal.

    Raises:
        subprocess.TimeoutExpired: it took too long.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        argv, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            output = process.communicate(timeout=seconds)
        except BaseException:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            with contextlib.suppress(OSError):
                for pid in children.read_text().split():
                    os.kill(int(pid), signal.SIGTERM)
            process.kill()
            raise
    return subprocess.CompletedProcess(argv, process.returncode, *output)


def _unparsed(stderr: str) -> Iterator[tuple[Path, str]]:
    """Yield each file that no inventory plugin could read, with the plugins' messages about it."""
    begin = 0
    for found in re.finditer(r"Unable to parse (.+) as an inventory source", stderr):
        yield Path(found.group(1)), stderr[begin : found.start()]
        begin = found.end()


def _parse_error(file: Path, complaints: str) -> str:
    """Return the one useful sentence among the errors of all inventory plugins for a file.

    Every plugin that gives up reports an error; only that of the plugin for the kind of file counts. Only the
    plugin ``auto`` names the line of a YAML error.
    """
    output = {
        plugin: (" ".join(message.split()).rstrip("."), origin)
        for plugin, message, origin in re.findall(
            r"Failed to parse inventory with '(\w+)' plugin: (.+?)\n\n.+?Origin: ([^\n]+)",
            complaints,
            re.DOTALL,
        )
    }
    message, origin = output.get("auto", ("", ""))
    if not message.startswith("YAML parsing failed"):
        plugin = "yaml" if file.suffix in (".yml", ".yaml", ".json") else "ini"
        message, origin = output.get(plugin, (message, ""))
    message = message.removeprefix("Failed to parse inventory: ")
    # Ansible names its own class of the value.
    what = "a list" if "List'>" in message else "a single value"
    if "invalid structure" in message:
        message = f"it is {what}, and an inventory has groups, such as master: {{hosts: {{node1: }}}}"
    if found := re.match(r'Invalid "(\w+)" entry for "(.+)" group', message):
        example = {"hosts": "node1: ", "children": "rack1: ", "vars": "rdm_slots: 8"}.get(found[1], "")
        message = f"{found[1]} of the group {found[2]} is {what}, not a dictionary such as {{{example}}}"
    if message.startswith("Invalid data from file"):
        message = "the variables of a host are no dictionary"
    if "values to unpack" in message:
        message = "a line is neither a [group], a host nor a variable"
    where = origin if re.search(r":\d+:\d+$", origin) else str(file)
    return f"{message or 'it is no inventory'} ({where})"


def _other_error(stderr: str, path: Path) -> str:
    sentence = error_sentence(stderr) or "ansible-inventory does not say why"
    where = _bad_yaml(path) if sentence.startswith("YAML parsing failed") else ""
    return f"{sentence.rstrip('.')} ({where})" if where else sentence


def _encrypted(path: Path) -> Iterator[Path]:
    """Yield the encrypted files of an inventory; Ansible does not name the one that it could not read."""
    home = path if path.is_dir() else path.parent
    for file in sorted(home.rglob("*")):
        with contextlib.suppress(OSError):
            if file.is_file() and file.open("rb").read(len(_VAULT)) == _VAULT:
                yield file


def _bad_yaml(path: Path) -> str:
    """Return file, line and column of the first YAML error in the variables beside an inventory.

    Ansible does not report them.
    """
    import yaml

    home = path if path.is_dir() else path.parent
    for folder in _VARIABLES:
        for file in sorted((home / folder).rglob("*")):
            if not file.is_file() or file.suffix not in ("", ".yml", ".yaml", ".json"):
                continue
            try:
                for _ in yaml.parse(file.read_text(encoding="utf-8")):
                    pass
            except yaml.MarkedYAMLError as error:
                mark = error.problem_mark
                return f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else str(file)
            except (OSError, UnicodeError, yaml.YAMLError):
                return str(file)
    return ""


def members_of(group: str, listing: Mapping[str, Any], seen: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Return the hosts of a group and of the groups in it.

    Args:
        group: its name.
        listing: what ``ansible-inventory --list`` prints.
        seen: the groups above, to stop at groups that contain each other.
    """
    if group in seen:
        return ()
    entry = listing.get(group) or {}
    hosts = list(entry.get("hosts", ()))
    for child in entry.get("children", ()):
        hosts += members_of(child, listing, seen | {group})
    return tuple(dict.fromkeys(hosts))

# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run does: playbook, inventory and options, and the equivalent ansible-playbook line."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rdm_provision import environment
from rdm_provision.runner.vault import vault_arguments

MAX_FORKS = 50
"""Ansible gets no faster beyond this on one machine, and each fork takes some 50 MB."""
_YAML_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """What to run.

    Attributes:
        verb: the run's name in messages and records.
        playbook: a name in the collection (``site``), or a path.
        inventory: path of the inventory, or a comma-separated host list such as ``localhost,``.
        nodes: its nodes, in the inventory's order; for progress and the default of ``forks``.
        limit: Ansible's ``--limit`` pattern; empty for all.
        tags: only tasks with one of these tags; empty for all.
        extra_vars: extra variables, with their types. They go through a private file, not the command line.
        literal_vars: the same for lists of words that are never templated.
        check: change nothing, report what would change.
        diff: show what changes inside files.
        forks: how many nodes at once; 0 for min(50, nodes).
        verbosity: ansible-playbook's number of ``-v``.
        home: folder of the inventory, for the record and the lock; None for neither.
        exclusive: take the cluster's lock; other runs that need it are refused meanwhile.
        observes_from: the play from which on the run only observes; it releases the lock there.
        keep: modules whose results the caller needs in ``RunResult.returned``.
        env: more environment variables.
        vault: file with the password of encrypted variables; empty for the user's own settings.
        become: the sudo password on the nodes; empty for the user's own settings.
    """

    verb: str
    playbook: str
    inventory: str
    nodes: tuple[str, ...] = ()
    limit: str = ""
    tags: str = ""
    extra_vars: Mapping[str, Any] = field(default_factory=dict)
    literal_vars: Mapping[str, list[str]] = field(default_factory=dict)
    check: bool = False
    diff: bool = False
    forks: int = 0
    verbosity: int = 0
    home: Path | None = None
    exclusive: bool = False
    observes_from: str = ""
    keep: frozenset[str] = frozenset()
    env: Mapping[str, str] = field(default_factory=dict)
    vault: str = ""
    become: str = field(default="", repr=False)

    @property
    def effective_forks(self) -> int:
        """The number of nodes at a time."""
        return self.forks or max(1, min(MAX_FORKS, len(self.nodes) or 5))

    def command(self, *, show_values: bool = True) -> str:
        """Return the equivalent ansible-playbook line, ready to paste into a shell here."""
        env = dict(self.env)
        book = environment.playbook(self.playbook)
        root = environment.checkout()
        cwd = Path.cwd()
        if root is not None and cwd != root:
            env["ANSIBLE_CONFIG"] = str(root / "ansible.cfg")
            env["ANSIBLE_COLLECTIONS_PATH"] = str(root / ".collections")
        argv = ["ansible-playbook", "-i", _short(self.inventory, cwd), _short(book, cwd)]
        argv += [
            part
            for flag, value in (("--limit", self.limit), ("--tags", self.tags))
            if value
            for part in (flag, value)
        ]
        argv += [flag for flag, wanted in (("--check", self.check), ("--diff", self.diff)) if wanted]
        argv += ["--forks", str(self.effective_forks), *vault_arguments(self.vault)]
        argv += ["--ask-become-pass"] if self.become else []
        if self.verbosity:
            argv.append("-" + "v" * self.verbosity)
        if variables := self.variables(show_values=show_values):
            argv += ["-e", variables]
        return environment.shell_line(argv, env)

    def variables(self, *, show_values: bool = True) -> str:
        """Return the extra variables as YAML for Ansible's ``-e``; empty if there are none."""
        items = [(name, _flow_yaml(value)) for name, value in self.extra_vars.items()]
        # The tag covers everything in a list. On a scalar, it would turn "010" into a number.
        items += [(name, f"!unsafe {_flow_yaml(values)}") for name, values in self.literal_vars.items()]
        if not show_values:
            items = [(name, '"…"') for name, _ in items]
        pairs = ", ".join(f"{_flow_yaml(name)}: {value}" for name, value in items)
        return f"{{{pairs}}}" if items else ""


def _flow_yaml(value: Any) -> str:
    """Return a value as YAML on one line."""
    # JSON is YAML, except for characters that YAML wants escaped, and surrogate pairs, which it refuses.
    return _YAML_ESCAPED.sub(lambda m: f"\\u{ord(m.group()):04x}", json.dumps(value, ensure_ascii=False))


def _short(path: str, cwd: Path) -> str:
    """Return a path relative to the working directory if it is under it."""
    with contextlib.suppress(ValueError):
        if Path(path).is_absolute():
            return str(Path(path).relative_to(cwd))
    return path

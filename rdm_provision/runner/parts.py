"""The tags of a playbook, for ``--tags``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rdm_provision import environment
from rdm_provision.errors import InputError
from rdm_provision.nearest import did_you_mean

_ROLE = "rdm.provision."
_OF_ANSIBLE = ("all", "tagged", "untagged", "always", "never")


def check_tags(playbook: str, tags: str) -> None:
    """Refuse tags that select nothing: Ansible would run nothing and report success.

    Args:
        playbook: name of a playbook of the collection, such as ``site``.
        tags: the value of ``--tags``, with commas.

    Raises:
        InputError: there is no tag, or the playbook lacks one; the message names the nearest.
    """
    known = tags_of(playbook)
    parts = f"the parts are {', '.join(known)}"
    if not named(tags):
        raise InputError("--tags is empty: leave it out for all parts", hint=parts)
    for tag in named(tags):
        if tag not in known and tag not in _OF_ANSIBLE:
            raise InputError(f"--tags: there is no part {tag!r}", hint=did_you_mean(tag, known, parts))


def named(tags: str) -> list[str]:
    """Return the tags in the value of the option."""
    return [tag for tag in (one.strip() for one in tags.split(",")) if tag]


def tags_of(playbook: str) -> tuple[str, ...]:
    """Return the tags of a playbook of the collection and of the roles in it, in the order of the run."""
    import yaml

    def load(path: Path) -> Any:
        return yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None

    root = environment.collection()
    found: list[str] = []

    def collect(path: Path, variables: Mapping[str, str]) -> None:
        """Collect the tags of a playbook, which is imported with these variables."""
        for item in _tasks(load(path)):
            found.extend(_tags(item))
            if imported := item.get("ansible.builtin.import_playbook"):
                collect(path.parent / imported, item.get("vars") or {})
            if role := item.get("ansible.builtin.import_role"):
                name, tasks = role["name"].removeprefix(_ROLE), role.get("tasks_from", "main")
                if "{{" in name:
                    # parts/on_nodes.yml has both from its importer.
                    name = variables.get("__role") or variables["__work"]
                    tasks = variables.get("__tasks", "present")
                for inner in _tasks(load(root / "roles" / name / "tasks" / f"{tasks}.yml")):
                    found.extend(_tags(inner))

    collect(root / "playbooks" / f"{playbook}.yml", {})
    return tuple(dict.fromkeys(tag for tag in found if tag not in _OF_ANSIBLE))


def _tasks(items: Any) -> Iterator[dict[str, Any]]:
    """Yield the plays and tasks of a file, those in blocks included."""
    for item in items or ():
        yield item
        for inside in ("tasks", "block", "rescue", "always"):
            yield from _tasks(item.get(inside))


def _tags(task: dict[str, Any]) -> list[str]:
    given = task.get("tags") or []
    return [given] if isinstance(given, str) else given

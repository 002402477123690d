"""Run plays on this machine, as ansible-playbook does, and return what they changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rdm_provision.environment import CALLBACKS
from tests.ansible_playbook import ansible_playbook

ROOT = Path(__file__).resolve().parents[2]
HOST = "node1"


@dataclass
class Played:
    """The result of plays.

    Attributes:
        status: the exit status of ansible-playbook.
        changes: for each play, how many of its tasks changed something.
        output: all that was printed.
        by_play: for each play, and each of its tasks that was not skipped, by name, what it returned.
    """

    status: int
    changes: list[int]
    output: str
    by_play: list[dict[str, dict[str, Any]]]

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """What the tasks of the last play returned."""
        return self.by_play[-1]


def run_plays(
    directory: Path,
    plays: list[dict[str, Any]],
    *flags: str,
    docker_host: str = "",
    inside: list[str] | None = None,
    others: tuple[str, ...] = (),
    **variables: Any,
) -> Played:
    """Run plays against this machine under the name of HOST.

    Args:
        directory: where the playbook and everything else goes.
        plays: without hosts.
        flags: of ansible-playbook.
        docker_host: address of the engine; empty means that there is only the machine's own.
        inside: a command that runs its arguments as a command.
        others: more names of this machine.
        variables: extra variables.
    """
    hosts = "".join(f"{name} ansible_connection=local\n" for name in (HOST, *others))
    (directory / "inventory").write_text(f"[master]\n{hosts}")
    (directory / "play.yml").write_text(
        yaml.safe_dump([{"hosts": "all", "gather_facts": False, **play} for play in plays])
    )
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".collections"),
        "ANSIBLE_CONFIG": str(Path(__file__).with_name("no_settings.cfg")),
        "ANSIBLE_CALLBACKS_ENABLED": CALLBACKS,
        "ANSIBLE_REMOTE_TEMP": str(directory / "remote"),
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
    }
    environment.pop("DOCKER_HOST", None)
    if docker_host:
        environment["DOCKER_HOST"] = docker_host
    words = [
        f"--inventory={directory / 'inventory'}",
        f"--extra-vars={json.dumps(variables)}",
        str(directory / "play.yml"),
        *flags,
    ]
    if inside:
        program = [*inside, str(Path(sys.executable).with_name("ansible-playbook"))]
        done = subprocess.run(
            [*program, *words], env=environment, capture_output=True, text=True, check=False
        )
    else:
        done = ansible_playbook(*words, environment=environment)
    output = done.stdout + done.stderr
    assert "{" in done.stdout, output
    report = json.loads(done.stdout[done.stdout.index("{") :])
    changes = [
        sum(bool(task["hosts"].get(HOST, {}).get("changed")) for task in play["tasks"])
        for play in report["plays"]
    ]
    by_play = [
        {
            task["task"]["name"]: task["hosts"][HOST]
            for task in play["tasks"]
            if not task["hosts"].get(HOST, {"skipped": True}).get("skipped")
        }
        for play in report["plays"]
    ]
    return Played(done.returncode, changes, output, by_play)

# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that Slurm's controller needs before the daemons start."""

from __future__ import annotations

import getpass
import pwd
import socket
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.slurm import daemons


@pytest.fixture
def slurm_user(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = pwd.getpwnam(getpass.getuser())
    monkeypatch.setattr(pwd, "getpwnam", lambda name: {"slurm": entry}[name])


@pytest.mark.usefixtures("slurm_user")
def test_the_key_of_tokens_is_made_once_for_its_user_alone(tmp_path: Path) -> None:
    key = tmp_path / "jwt.key"
    assert daemons.make_key(str(key), True) == [f"make the key of tokens {key}"]
    assert not key.exists()
    assert daemons.make_key(str(key), False) == [f"make the key of tokens {key}"]
    made = key.read_bytes()
    assert (len(made), key.stat().st_mode & 0o777) == (32, 0o600)
    assert daemons.make_key(str(key), False) == []
    assert key.read_bytes() == made
    assert [path.name for path in tmp_path.iterdir()] == ["jwt.key"]


def test_without_slurms_user_there_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pwd, "getpwnam", lambda name: {}[name])
    with pytest.raises(NodeError, match="the user slurm is missing"):
        daemons.make_key(str(tmp_path / "jwt.key"), False)


class Running:
    """Services, each with a process."""

    def pids(self, name: str) -> list[int]:
        """Return a service's process."""
        del name
        return [1]


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "[::1]")])
def test_daemon_with_an_address_is_up_when_it_listens(
    family: socket.AddressFamily, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemons, "last_words", lambda name: f"{name}: cannot bind")
    running: Any = Running()
    with socket.socket(family) as server:
        server.bind((host.strip("[]"), 0))
        address = f"{host}:{server.getsockname()[1]}"
        with pytest.raises(NodeError, match=r"slurmrestd does not answer .* ends with: .* bind"):
            daemons.wait_for("slurmrestd", running, 0.0, address)
        server.listen()
        daemons.wait_for("slurmrestd", running, 30.0, address)


def test_last_message_of_a_daemon_comes_from_its_log_or_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "slurmd.log"
    log.write_text("error: one\nfatal: two\n")
    monkeypatch.setitem(daemons.LOGS, "slurmd", str(log))
    queried: list[list[str]] = []

    def journal(command: list[str], _: float) -> str:
        queried.append(command)
        return "fatal: three\n"

    monkeypatch.setattr(daemons, "run_program", journal)
    assert daemons.last_words("slurmd") == "fatal: two"
    assert queried == []
    assert daemons.last_words("slurmrestd") == "fatal: three"
    assert queried[0][:4] == ["journalctl", "--quiet", "--unit", "slurmrestd"]


@pytest.mark.parametrize(
    ("states", "hint"),
    [
        ({"n1": "drained", "n2": "idle", "n3": "draining"}, "scontrol update nodename=n1,n3 state=resume"),
        ({"n1": "drained", "n2": "down*"}, "see /var/log/slurm/slurmd.log there"),
    ],
)
def test_drained_node_is_resumed_by_hand(
    states: dict[str, str], hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [{"node": node, "state": state, "reason": "none"} for node, state in states.items()]
    monkeypatch.setattr(daemons, "nodes", lambda: found)
    with pytest.raises(NodeError, match=hint):
        daemons.wait_for_nodes(list(states), 0.0)

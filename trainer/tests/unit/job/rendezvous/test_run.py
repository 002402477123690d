# SPDX-License-Identifier: GPL-3.0-or-later
"""A member's address, secret, command and port."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from rdm_core import config as configuration
from rdm_core.config import LauncherConfig
from rdm_core.config.command import CommandConfig
from rdm_core.errors import TrainerError
from rdm_job.rendezvous import fabric
from rdm_job.rendezvous.fabric import Fabric
from rdm_job.rendezvous.roster import Member
from rdm_job.rendezvous.run import Plan, launch, own_member, read_secret, session_key


@pytest.fixture
def debian(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host on which every name resolves to 127.0.1.1, like the host's own in Debian's /etc/hosts."""

    def resolve(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
    monkeypatch.setattr(fabric, "rdma_ports", lambda sysfs: [])


@pytest.mark.usefixtures("debian")
def test_launcher_whose_name_is_loopback_advertises_a_reachable_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fabric, "outward_address", lambda: "10.1.2.3")
    member, _ = own_member(None, "", "", 1, 1.0, {})
    assert (member.address, member.name) == ("10.1.2.3", f"{member.host}@10.1.2.3")


@pytest.mark.usefixtures("debian")
def test_worker_on_the_launchers_host_does_not_advertise_loopback() -> None:
    with pytest.raises(TrainerError, match=r"127\.0\.\d\.1, which other hosts cannot reach.*--interface"):
        own_member(None, "", "the-launcher", 1, 1.0, {})


def test_a_secret_that_cannot_be_used_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrainerError, match=r"kee cannot be read: No such file or directory\.$"):
        read_secret(tmp_path / "kee", is_insecure=False)
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(TrainerError, match="empty is empty; write a secret"):
        read_secret(tmp_path / "empty", is_insecure=True)
    monkeypatch.setenv("RDZV_SECRET", "a secret of tests, long enough")
    with pytest.raises(TrainerError, match="--insecure means no secret, but RDZV_SECRET has one"):
        read_secret(None, is_insecure=True)


def test_jobs_of_different_names_derive_different_secrets() -> None:
    secret = "a secret of tests, long enough"
    assert session_key("alpaca-17", secret) != session_key("alpaca-18", secret)


def _plan(command: tuple[str, ...], **more: Any) -> Plan:
    member, fabric = Member("n0", "n0", "127.0.0.1", 1), Fabric("eth7", "127.0.0.1")
    return Plan(command, member, fabric, 0, b"a secret of tests", timeout=240.0, lost_after=240.0, **more)


def test_configured_environment_wins_over_the_detected_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    own = {"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "ib7", "NODE_RANK": "5"}
    command = ("sh", "-c", f"echo $NCCL_DEBUG $NCCL_SOCKET_IFNAME $NODE_RANK > {tmp_path}/said")
    config = CommandConfig(name="test", command=command, launcher=LauncherConfig(kind="torchrun", env=own))
    assert launch(_plan(command, config=configuration.dump(config)), 1, "name") == 0
    assert (tmp_path / "said").read_text() == "INFO ib7 0\n"


def test_configured_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        plan = _plan(("touch", str(tmp_path / "ran")), master_port=port)
        with pytest.raises(TrainerError, match=f"launcher.master_port {port} is in use on n0"):
            launch(plan, 1, "name")
    assert launch(plan, 1, "name") == 0
    assert (tmp_path / "ran").exists()

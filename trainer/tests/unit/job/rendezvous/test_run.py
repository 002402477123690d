# SPDX-License-Identifier: GPL-3.0-or-later
"""What a member says of itself."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from rdm_core.errors import TrainerError
from rdm_job.rendezvous import fabric
from rdm_job.rendezvous.run import own_member


@pytest.fixture
def debian(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host on which every name, its own too, resolves as Debian's /etc/hosts has the host's own."""

    def resolve(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
    monkeypatch.setattr(fabric, "rdma_ports", lambda sysfs: [])


@pytest.mark.usefixtures("debian")
def test_a_launcher_whose_own_name_is_the_loopbacks_gives_out_an_address_that_others_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fabric, "outward_address", lambda: "10.1.2.3")
    member, _ = own_member(None, "", "", 1, 1.0)
    assert (member.address, member.name) == ("10.1.2.3", f"{member.host}@10.1.2.3")


@pytest.mark.usefixtures("debian")
def test_a_worker_on_the_launchers_host_does_not_give_out_the_loopback() -> None:
    with pytest.raises(TrainerError, match=r"127\.0\.\d\.1, which other hosts cannot reach.*--interface"):
        own_member(None, "", "the-launcher", 1, 1.0)

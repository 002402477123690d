# SPDX-License-Identifier: GPL-3.0-or-later
"""What archives hold, and nodes that transfer them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.images import peer_client, peer_server
from ansible_collections.rdm.provision.plugins.module_utils.images.peer import Peer

from tests.image_archives import MadeImage, layer
from tests.unit.plugins.module_utils.images.peers import LONG_S, MIB, source_of


@pytest.fixture
def image() -> MadeImage:
    return MadeImage([layer("one", 5000), layer("two")], ["example/app:1"])


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "archive"
    path.write_bytes(os.urandom(12 * MIB + 17))
    return path


@pytest.fixture
def source(archive: Path) -> Peer:
    """A fresh source."""
    return source_of(archive)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections stay open while a machine stands still."""
    monkeypatch.setattr(peer_client, "QUIET_S", LONG_S)
    monkeypatch.setattr(peer_server, "QUIET_S", LONG_S)


@pytest.fixture
def blobs(tmp_path: Path) -> Path:
    """The directory in which an engine keeps layers, empty."""
    (tmp_path / "blobs").mkdir()
    return tmp_path / "blobs"

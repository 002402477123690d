"""Whether systemd runs is decided by what it creates at start, not by its programs."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base import systemd


def test_it_runs_where_its_directory_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "system"
    monkeypatch.setattr(systemd, "DIRECTORY", str(directory))
    assert not systemd.systemd_runs()
    directory.mkdir()
    assert systemd.systemd_runs()

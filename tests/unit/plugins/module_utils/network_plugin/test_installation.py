"""The message about a plugin that does not start."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.network_plugin.installation import (
    Paths,
    control,
    remove,
)

# journalctl(1): --unit adds systemd's messages about a unit; _SYSTEMD_UNIT selects only its processes'.
JOURNALCTL = """#!/bin/sh
echo ModuleNotFoundError
case "$*" in *_SYSTEMD_UNIT=rdm-sriov.service*) ;; *) echo "Main process exited" ;; esac
"""
SYSTEMCTL = """#!/bin/sh
echo "Job failed."
exit 1
"""


def test_plugins_own_last_line_is_reported_and_not_systemds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("journalctl", JOURNALCTL), ("systemctl", SYSTEMCTL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(NodeError, match=r"Job failed\.; its last output: ModuleNotFoundError$"):
        control("restart", "rdm-sriov.service")


def test_rest_of_a_killed_write_is_removed(tmp_path: Path) -> None:
    paths = Paths(*(str(tmp_path / name) for name in ("lib/program", "unit", "socket", "state")))
    for name in ("lib/program", "state/state.json", "state/.rdm-provision-x1"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert len(remove(paths)) == 3
    assert list(tmp_path.iterdir()) == []

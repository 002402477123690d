"""A node without `ip`, or with an old version."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base import iproute2


@pytest.mark.parametrize(
    ("printed", "status", "reason"),
    [
        (b"1: lo: <LOOPBACK>", 0, "no JSON output"),
        (b"", 255, 'ip -j addr failed: Option "-j" is unknown'),
    ],
)
def test_an_old_ip(monkeypatch: pytest.MonkeyPatch, printed: bytes, status: int, reason: str) -> None:
    def run(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess([], status, printed, b'Option "-j" is unknown, try "ip -help".\n')

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(iproute2.IpMissing, match=reason):
        iproute2.ip_json("addr")


def test_no_ip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(iproute2, "_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(iproute2.IpMissing, match=r"the ip command \(package iproute2\) is missing"):
        iproute2.ip_json("addr")

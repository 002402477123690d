from __future__ import annotations

import time

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.progress import (
    EVERY_S,
    Progress,
    hosts_answered,
)


def test_hosts_are_printed_now_and_then_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    lines: list[str] = []
    reports = Progress(lines.append, own="n1")
    for name in ("n1", "n2", "n3", "n4"):
        reports.add(name)
    assert list(map(hosts_answered, lines)) == [["n2"]]
    now += EVERY_S
    reports.add("n5")
    reports.flush()
    reports.add("n6")
    reports.flush()
    reports.flush()
    assert list(map(hosts_answered, lines)) == [["n2"], ["n3", "n4", "n5"], ["n6"]]


def test_another_line_names_no_hosts() -> None:
    assert hosts_answered("<n1> ESTABLISH SSH CONNECTION FOR USER: root") == []

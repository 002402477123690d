"""Values that processes of a run share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ansible import constants
from ansible_collections.rdm.provision.plugins.plugin_utils.controller import run_cache


@pytest.fixture(autouse=True)
def directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "DEFAULT_LOCAL_TMP", str(tmp_path))


@pytest.mark.parametrize("value", [{"images": []}, None])
def test_a_value_is_computed_once(value: object) -> None:
    calls: list[int] = []

    def compute() -> object:
        calls.append(1)
        return value

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _number: run_cache.once("value", compute), range(32)))
    assert found == [value] * 32
    assert len(calls) == 1


def test_a_value_that_one_process_could_not_compute_is_computed_by_the_next() -> None:
    with pytest.raises(ZeroDivisionError):
        run_cache.once("value", lambda: 1 / 0)
    assert run_cache.once("value", lambda: 2) == 2

# SPDX-License-Identifier: GPL-3.0-or-later
"""What is reduced, and which nodes exchange data."""

from __future__ import annotations

import argparse
from itertools import combinations
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rdm_trainer.tools.all_reduce import link_rate, parse_size, partner, sizes

MIB = 1024**2


@pytest.mark.parametrize(
    ("text", "size"),
    [("1M", MIB), ("256m", 256 * MIB), ("1G", 1024 * MIB), ("2048K", 2 * MIB), ("1GB", 1024 * MIB)],
)
def test_a_size_may_have_a_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "1T", "-1M", "512K", "1.5G"])
def test_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no size from 1M up"):
        parse_size(text)


def test_sizes_grow_fourfold_and_end_with_the_largest() -> None:
    assert [size // MIB for size in sizes(1024 * MIB)] == [1, 4, 16, 64, 256, 1024]
    assert [size // MIB for size in sizes(100 * MIB)] == [1, 4, 16, 64, 100]
    assert sizes(MIB) == [MIB]


@given(st.integers(2, 60))
def test_every_pair_is_scheduled_once_without_overlap(count: int) -> None:
    met: list[tuple[int, int]] = []
    for number in range(count - 1 + count % 2):
        for node in range(count):
            other = partner(node, count, number)
            if other is not None:
                assert partner(other, count, number) == node != other
                if node < other:
                    met.append((node, other))
    assert sorted(met) == list(combinations(range(count), 2))


def test_the_links_rate_is_the_interfaces_or_of_all_usable_rdma_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    cpu, cuda = torch.device("cpu"), torch.device("cuda", 0)
    assert link_rate(cpu, tmp_path) is None
    interface = tmp_path / "sys/class/net/eth0"
    interface.mkdir(parents=True)
    (interface / "speed").write_text("25000\n")
    assert link_rate(cpu, tmp_path) == link_rate(cuda, tmp_path) == 25.0
    for number, state in enumerate(["4: ACTIVE", "1: DOWN", "4: ACTIVE", "4: ACTIVE"]):
        port = tmp_path / f"sys/class/infiniband/mlx5_{number}/ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text(state)
        (port / "rate").write_text("200 Gb/sec (4X HDR)\n")
        verbs = tmp_path / f"sys/class/infiniband_verbs/uverbs{number}"
        verbs.mkdir(parents=True)
        (verbs / "ibdev").write_text(f"mlx5_{number}\n")
        if number != 3:
            (tmp_path / "dev/infiniband").mkdir(parents=True, exist_ok=True)
            (tmp_path / f"dev/infiniband/uverbs{number}").touch()
    assert link_rate(cuda, tmp_path) == 400.0
    (interface / "speed").write_text("-1\n")
    assert link_rate(cpu, tmp_path) is None

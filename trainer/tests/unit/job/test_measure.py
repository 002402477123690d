# SPDX-License-Identifier: GPL-3.0-or-later
"""What is measured of a node, from files of its kernel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rdm_job.measure import measure


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("version", "files"),
    [
        ("0::/", {"cpu.max": "50000 100000", "cpu.stat": "usage_usec 9\nnr_periods 70\nnr_throttled 40"}),
        (
            "5:cpu,cpuacct:/docker/abc",
            {
                "cpu,cpuacct/cpu.cfs_quota_us": "50000",
                "cpu,cpuacct/cpu.cfs_period_us": "100000",
                "cpu,cpuacct/cpu.stat": "nr_periods 70\nnr_throttled 40\nthrottled_time 9",
            },
        ),
    ],
)
def test_the_quota_of_both_versions_of_cgroups(tmp_path: Path, version: str, files: dict[str, str]) -> None:
    put(tmp_path, {"proc/self/cgroup": version})
    put(tmp_path / "sys/fs/cgroup", files)
    found = measure(1.0, tmp_path, {7: os.getpid()}, root=tmp_path)
    assert (found.quota, found.periods, found.throttled) == (0.5, 70, 40)
    assert found.cpu_s[7] > 0
    assert found.processors
    for name in files:
        if name.endswith(("max", "quota_us")):
            put(tmp_path / "sys/fs/cgroup", {name: "max 100000" if name == "cpu.max" else "-1"})
    assert measure(1.0, tmp_path, {}, root=tmp_path).quota is None


def test_retransmitted_segments_are_read_by_column_name(tmp_path: Path) -> None:
    """The text is from a real kernel: columns are inserted, and other protocols have similar lines."""
    put(
        tmp_path,
        {
            "proc/self/net/snmp": "Ip: Forwarding OutSegs RetransSegs\nIp: 1 9 9\n"
            "Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens AttemptFails EstabResets "
            "CurrEstab InSegs OutSegs RetransSegs InErrs OutRsts InCsumErrors\n"
            "Tcp: 1 200 120000 -1 318 201 7 12 4 90210 81234 56 0 31 0\n"
            "Udp: InDatagrams OutSegs\nUdp: 5 8"
        },
    )
    found = measure(1.0, tmp_path, {}, root=tmp_path)
    assert (found.segments, found.resent) == (81234, 56)
    for broken in ("Tcp: OutSegs RetransSegs", "Tcp: OutSegs RetransSegs\nTcp: 1", "Tcp: OutSegs\nTcp: many"):
        put(tmp_path, {"proc/self/net/snmp": broken})
        found = measure(1.0, tmp_path, {}, root=tmp_path)
        assert (found.segments, found.resent) == (None, None), broken


def test_errors_of_each_interface_and_of_each_infiniband_port_are_counted(tmp_path: Path) -> None:
    net, ports = "sys/class/net", "sys/class/infiniband/mlx5_0/ports"
    put(
        tmp_path,
        {
            f"{net}/ib0/statistics/rx_errors": "3",
            f"{net}/ib0/statistics/tx_errors": "4",
            f"{net}/ib0/statistics/rx_dropped": "1000",
            f"{net}/lo/statistics/rx_errors": "9",
            f"{ports}/1/counters/symbol_error": "1",
            f"{ports}/1/counters/link_downed": "2",
            f"{ports}/1/counters/port_rcv_errors": "4",
            f"{ports}/1/counters/local_link_integrity_errors": "8",
            f"{ports}/1/counters/port_xmit_data": "123456789",
            f"{ports}/1/hw_counters/packet_seq_err": "16",
            f"{ports}/1/hw_counters/local_ack_timeout_err": "32",
            f"{ports}/1/hw_counters/out_of_sequence": "1000",
            # A counter that the firmware does not support, and a port without hw_counters.
            f"{ports}/2/counters/symbol_error": "N/A",
            f"{ports}/2/counters/link_downed": "64",
        },
    )
    found = measure(1.0, tmp_path, {}, root=tmp_path)
    assert found.interfaces == {"ib0": 7, "mlx5_0/1": 63, "mlx5_0/2": 64}
    # A node without interfaces reports none.
    assert measure(1.0, tmp_path, {}, root=tmp_path / "absent").interfaces == {}


@pytest.mark.parametrize(
    ("line", "files"),
    [
        (
            "0::/job",
            {
                "job/memory.current": "500",
                "job/memory.events": "low 0\nhigh 8\nmax 21\noom 4\noom_kill 3\noom_group_kill 1",
                # The host's counters include other jobs.
                "memory.current": "900",
                "memory.events": "oom 9\noom_kill 99",
            },
        ),
        # In a container, where the cgroup's own path is not visible.
        ("0::/docker/0123", {"memory.current": "500", "memory.events": "oom 4\noom_kill 3"}),
        (
            "5:memory:/job\n4:cpu,cpuacct:/",
            {
                "memory/job/memory.usage_in_bytes": "500",
                "memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3",
                "memory/memory.usage_in_bytes": "900",
                "memory/memory.oom_control": "oom_kill 99",
            },
        ),
    ],
)
def test_oom_kills_are_counted_in_the_own_cgroup(tmp_path: Path, line: str, files: dict[str, str]) -> None:
    put(tmp_path, {"proc/self/cgroup": line})
    put(tmp_path / "sys/fs/cgroup", files)
    assert measure(1.0, tmp_path, {}, root=tmp_path).killed == 3
    # Without the kernel's counter the number is unknown, not 0.
    for name in files:
        if name.endswith(("events", "oom_control")):
            put(tmp_path / "sys/fs/cgroup", {name: "under_oom 0"})
    assert measure(1.0, tmp_path, {}, root=tmp_path).killed is None


def test_memory_is_that_of_the_scope_with_less_left(tmp_path: Path) -> None:
    """Not that with the larger used share: a small container that grows would be noticed too late."""
    meminfo = "MemTotal: 25000000 kB\nMemAvailable: 15000000 kB"
    put(tmp_path, {"proc/self/cgroup": "0::/", "proc/meminfo": meminfo})
    put(tmp_path / "sys/fs/cgroup", {"memory.current": "500000000", "memory.max": "3000000000"})
    found = measure(1.0, tmp_path, {}, root=tmp_path)
    assert (found.memory_used, found.memory_limit) == (500_000_000, 3_000_000_000)
    put(tmp_path, {"proc/meminfo": meminfo.replace("15000000", "1000000")})
    assert measure(1.0, tmp_path, {}, root=tmp_path).memory_limit == 25_600_000_000

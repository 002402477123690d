# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures a node's disk, processors, memory and network, from statvfs, cgroups, /proc and /sys."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from rdm_job.processes import usage_with_children
from rdm_log.samples import Device, Sample

_ROOT = Path("/")
_UNLIMITED = 1 << 60
_IB = (
    *("symbol_error", "link_downed", "port_rcv_errors", "local_link_integrity_errors"),
    *("packet_seq_err", "local_ack_timeout_err"),
)


def measure(
    now: float,
    directory: Path,
    ranks: Mapping[int, int],
    devices: tuple[Device, ...] = (),
    root: Path = _ROOT,
) -> Sample:
    """Return a sample of the node.

    Args:
        now: Seconds since 1970.
        directory: The job's, whose file system is measured.
        ranks: The process of each rank.
        devices: The GPUs.
        root: Where ``proc`` and ``sys`` are.
    """
    free = None
    with contextlib.suppress(OSError):
        status = os.statvfs(directory)
        free = status.f_bavail * status.f_frsize
    # A user's own program is a child of the rank's process.
    sizes = usage_with_children(ranks.values())
    used, limit, killed = _memory(root)
    segments, resent = _tcp(root)
    quota, periods, throttled = _quota(root)
    return Sample(
        time=now,
        disk_free=free,
        processors=len(os.sched_getaffinity(0)),
        quota=quota,
        periods=periods,
        throttled=throttled,
        cpu_s={rank: sizes[process][0] for rank, process in ranks.items() if process in sizes},
        memory_used=used,
        memory_limit=limit,
        killed=killed,
        ranks={rank: sizes[process][1] for rank, process in ranks.items() if process in sizes},
        segments=segments,
        resent=resent,
        interfaces=dict(_interfaces(root)),
        devices=devices,
    )


def _memory(root: Path) -> tuple[int | None, int | None, int | None]:
    """Return the used memory and the limit, of the cgroup or host with the least left, and the OOM kills."""
    memory = _fields(root / "proc/meminfo", ":")
    limits: list[tuple[int, int]] = []
    if "MemTotal" in memory and "MemAvailable" in memory:
        limits.append((1024 * (memory["MemTotal"] - memory["MemAvailable"]), 1024 * memory["MemTotal"]))
    killed = None
    for group in _groups(root, "memory"):
        for current, most, events in (
            ("memory.current", "memory.max", "memory.events"),
            ("memory.usage_in_bytes", "memory.limit_in_bytes", "memory.oom_control"),
        ):
            used, limit = _number(group / current), _number(group / most)
            if used is None:
                continue
            count = _fields(group / events).get("oom_kill")
            killed = killed if count is None else (killed or 0) + count
            if limit is not None and limit < _UNLIMITED:
                stat = _fields(group / "memory.stat")
                # Cached files do not count: the kernel reclaims them when memory is needed.
                kinds = ("inactive_file", "active_file")
                cached = sum(stat.get(f"total_{kind}", stat.get(kind, 0)) for kind in kinds)
                limits.append((max(0, used - cached), limit))
    if not limits:
        return None, None, killed
    used, limit = min(limits, key=lambda pair: pair[1] - pair[0])
    return used, limit, killed


def _quota(root: Path) -> tuple[float | None, int | None, int | None]:
    """Return how many processors the cgroup may use, its periods so far, and how many of them were throttled.

    Source: ``cpu.max`` and ``cpu.stat`` (Documentation/admin-guide/cgroup-v2.rst); for cgroup v1
    ``cpu.cfs_quota_us`` (Documentation/scheduler/sched-bwc.rst).
    """
    for group in _groups(root, "cpu"):
        cpu = _fields(group / "cpu.stat")
        periods, throttled = cpu.get("nr_periods"), cpu.get("nr_throttled")
        with contextlib.suppress(OSError, ValueError):
            quota, period = (group / "cpu.max").read_text().split()
            return int(quota) / int(period), periods, throttled
        most, length = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
        if most is not None and most > 0 and length:
            return most / length, periods, throttled
    return None, None, None


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the cgroups of this process, or the topmost visible one in a container that hides its own."""
    base = root / "sys/fs/cgroup"
    found: dict[Path, None] = {}
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or controller in controllers.split(","):
                top = base / controllers
                own = top / path.strip("/")
                found[own if own.is_dir() else top] = None
    yield from found


def _tcp(root: Path) -> tuple[int | None, int | None]:
    """Return how many TCP segments were sent and resent (RFC 4022: tcpOutSegs, tcpRetransSegs)."""
    with contextlib.suppress(OSError, ValueError):
        names, values = (
            line.split()[1:]
            for line in (root / "proc/self/net/snmp").read_text().splitlines()
            if line.startswith("Tcp:")
        )
        counters = dict(zip(names, map(int, values), strict=True))
        return counters.get("OutSegs"), counters.get("RetransSegs")
    return None, None


def _interfaces(root: Path) -> Iterator[tuple[str, int]]:
    """Yield the error count of each interface and each InfiniBand port."""
    for path in sorted((root / "sys/class/net").glob("*/statistics")):
        if path.parent.name != "lo":
            counts = [_number(path / name) for name in ("rx_errors", "tx_errors")]
            yield path.parent.name, sum(count or 0 for count in counts)
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        counts = [_number(port / folder / name) for folder in ("counters", "hw_counters") for name in _IB]
        yield f"{port.parent.parent.name}/{port.name}", sum(count or 0 for count in counts)


def _number(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def _fields(path: Path, mark: str = "") -> dict[str, int]:
    """Return the numbers in lines such as ``oom_kill 0`` and ``MemTotal:  24 kB``, by name."""
    with contextlib.suppress(OSError):
        found = re.findall(rf"^(\S+?){mark}\s+(\d+)", path.read_text(), re.MULTILINE)
        return {name: int(value) for name, value in found}
    return {}

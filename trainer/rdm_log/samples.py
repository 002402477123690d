# SPDX-License-Identifier: GPL-3.0-or-later
"""What an agent measures of a node and its GPUs at one moment."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_DRIVERS_SHARE = 0.02
_DRIVERS_MOST = 1024**3
"""A driver alone uses at most this share of a GPU's memory, and at most these bytes."""


@dataclass(frozen=True)
class Device:
    """A GPU at one moment, without values that its vendor's library does not report.

    Attributes:
        index: Its index on the node.
        name: The product's name.
        celsius: Its temperature.
        celsius_limit: The temperature at which it is slowed down.
        percent: Its utilisation.
        used: Bytes of its memory in use.
        total: Bytes of its memory.
        watts: Its power draw.
        watts_limit: Its power limit.
        clocks: MHz by domain: ``sm``, ``memory``.
        throttled: Why its clocks are lowered, such as ``sw_thermal``.
        ecc: Memory errors since the driver was loaded: ``corrected``, ``uncorrected``.
        xids: The driver's error numbers (Xid) since the agent began.
        processes: Bytes by process.
    """

    index: int
    name: str
    celsius: float | None = None
    percent: float | None = None
    used: int | None = None
    total: int | None = None
    watts: float | None = None
    watts_limit: float | None = None
    clocks: Mapping[str, int] = field(default_factory=dict)
    throttled: tuple[str, ...] = ()
    ecc: Mapping[str, int] = field(default_factory=dict)
    xids: tuple[int, ...] = ()
    processes: Mapping[int, int] = field(default_factory=dict)
    celsius_limit: float | None = None

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Device:
        """Return the device in JSON data."""
        lists = {key: tuple(data[key]) for key in ("throttled", "xids") if key in data}
        processes = {int(process): size for process, size in data.get("processes", {}).items()}
        return cls(**{**data, **lists, "processes": processes})

    @property
    def is_in_use(self) -> bool:
        """Whether a program uses it: a process is listed, or more memory is in use than a driver needs.

        In a container a driver may list no process, but it reports the memory.
        """
        of_driver = min(_DRIVERS_SHARE * (self.total or 0), _DRIVERS_MOST)
        return bool(self.processes) or (self.used or 0) > of_driver

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Sample:
    """A node at one moment. An unknown value is None, and rules skip it.

    Attributes:
        time: Seconds on any monotonic clock.
        disk_free: Free bytes on the file system of the job's directory.
        memory_used: Bytes in use that cannot be reclaimed, in the container or on the host.
        memory_limit: Bytes of memory.
        killed: Processes that the kernel has killed for lack of memory.
        ranks: Resident bytes by rank, with its child processes.
        segments: TCP segments sent.
        resent: TCP segments sent again.
        interfaces: Packets with errors, by interface or port.
        devices: The GPUs.
        processors: The number of processors that the job's processes may run on.
        quota: The number of processors that their cgroup may use, if it has a limit.
        periods: The cgroup's scheduling periods so far.
        throttled: The periods in which the cgroup used up its quota.
        cpu_s: CPU seconds by rank, with its child processes.
    """

    time: float
    disk_free: int | None = None
    memory_used: int | None = None
    memory_limit: int | None = None
    killed: int | None = None
    ranks: Mapping[int, int] = field(default_factory=dict)
    segments: int | None = None
    resent: int | None = None
    interfaces: Mapping[str, int] = field(default_factory=dict)
    devices: tuple[Device, ...] = ()
    processors: int | None = None
    quota: float | None = None
    periods: int | None = None
    throttled: int | None = None
    cpu_s: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Sample:
        """Return the sample in JSON data, ignoring unknown keys.

        Raises:
            TypeError: The data is not a sample, or a device in it is invalid.
            KeyError: It has no time.
        """
        names = {one.name for one in dataclasses.fields(cls)} & data.keys()
        known = {key: data[key] for key in names}
        for key in ("ranks", "cpu_s"):
            known[key] = {int(rank): value for rank, value in data.get(key, {}).items()}
        devices = tuple(Device.of(one) for one in data.get("devices", ()))
        return cls(**{**known, "time": data["time"], "devices": devices})

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return dataclasses.asdict(self)

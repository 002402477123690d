# SPDX-License-Identifier: GPL-3.0-or-later
"""Readings of GPUs beyond sysfs, from AMD's library amdsmi where it is installed; it comes with ROCm."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

_MIB = 1024 * 1024
_MICRO = 10_000
"""A power limit above this is in uW, not in W: versions of the library differ."""
_VIOLATIONS = {
    "active_ppt_pwr": "sw_power_cap",
    "active_prochot_thrm": "hw_thermal",
    "active_socket_thrm": "sw_thermal",
    "active_vr_thrm": "sw_thermal",
    "active_hbm_thrm": "sw_thermal",
}
"""The library's reasons for lower clocks, with nvidia-smi's names."""


class Library:
    """The library; if it is not installed, there are no readings."""

    def __init__(self) -> None:
        self._smi: Any = None
        # The import loads libamd_smi.so; without that or the driver it raises errors of many types.
        with contextlib.suppress(Exception):
            import amdsmi

            amdsmi.amdsmi_init()
            self._smi = amdsmi

    def readings(self) -> dict[str, dict[str, Any]]:
        """Return the known fields of ``Device``, by the GPU's PCI address."""
        if self._smi is None:
            return {}
        found = {}
        for handle in self._query("amdsmi_get_processor_handles") or ():
            address = self._query("amdsmi_get_gpu_device_bdf", handle)
            if address:
                found[str(address).lower()] = dict(self._fields(handle))
        return found

    def _query(self, function: str, *arguments: Any) -> Any:
        # Products, drivers and versions support different queries.
        with contextlib.suppress(Exception):
            return getattr(self._smi, function)(*arguments)
        return None

    def _fields(self, handle: Any) -> Iterator[tuple[str, Any]]:
        def number(function: str, *keys: str) -> float | None:
            """Return the first known value of some fields: unknown ones are "N/A" or the highest number."""
            fields = self._query(function, handle)
            values = [fields.get(key) for key in keys] if isinstance(fields, Mapping) else []
            known = (float(one) for one in values if isinstance(one, int | float) and one not in _UNKNOWN)
            return next(known, None)

        limit = number("amdsmi_get_power_info", "power_limit")
        vram = [number("amdsmi_get_gpu_vram_usage", key) for key in ("vram_used", "vram_total")]
        used, total = (None if size is None else int(size) * _MIB for size in vram)
        errors = {
            "corrected": number("amdsmi_get_gpu_total_ecc_count", "correctable_count"),
            "uncorrected": number("amdsmi_get_gpu_total_ecc_count", "uncorrectable_count"),
        }
        violations = self._query("amdsmi_get_violation_status", handle)
        asic = self._query("amdsmi_get_gpu_asic_info", handle)
        power = ("socket_power", "current_socket_power", "average_socket_power")
        for name, value in (
            ("name", asic.get("market_name") if isinstance(asic, Mapping) else None),
            ("percent", number("amdsmi_get_gpu_activity", "gfx_activity")),
            ("used", used),
            ("total", total),
            ("watts", number("amdsmi_get_power_info", *power)),
            ("watts_limit", limit / 1e6 if limit is not None and limit > _MICRO else limit),
            ("ecc", {word: int(count) for word, count in errors.items() if count is not None}),
            ("throttled", tuple(_throttled(violations)) if isinstance(violations, Mapping) else ()),
            ("processes", dict(_processes(self._query("amdsmi_get_gpu_process_list", handle)))),
        ):
            if value not in (None, "", "N/A", {}, ()):
                yield name, value


_UNKNOWN = (0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)


def _throttled(violations: Mapping[str, Any]) -> Iterator[str]:
    yield from dict.fromkeys(reason for key, reason in _VIOLATIONS.items() if violations.get(key) is True)


def _processes(listed: Any) -> Iterator[tuple[int, int]]:
    for one in listed or ():
        memory = one.get("memory_usage") if isinstance(one, Mapping) else None
        with contextlib.suppress(KeyError, TypeError, ValueError):
            yield int(one["pid"]), int((memory or {}).get("vram_mem") or one.get("mem") or 0)

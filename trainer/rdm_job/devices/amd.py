# SPDX-License-Identifier: GPL-3.0-or-later
"""AMD's GPUs, read from sysfs, as the kernel documents its driver (gpu/amdgpu: thermal, driver-misc).

Where amdsmi is installed, its readings take precedence.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rdm_job.devices.amd_smi import Library
from rdm_job.devices.visible import Lists, chosen
from rdm_log.samples import Device

_AMD = "0x1002"
_ERRORS = re.compile(r"^(ue|ce): (\d+)", re.MULTILINE)


def count(lists: Lists = (), root: Path = Path("/")) -> int:
    """Return how many GPUs may be used here.

    Args:
        lists: The visible ones; see ``visible.lists_of``.
        root: Where ``sys`` and ``dev`` are.
    """
    if not (root / "dev/kfd").exists():
        return 0
    folders = list(_folders(root))
    # In some containers sysfs does not show the GPUs.
    uuids = [_uuid(folder) for folder in folders] or ["" for _ in (root / "dev/dri").glob("renderD*")]
    return len(chosen(uuids, lists))


class Reader:
    """Reads the GPUs that this container, or host, may use.

    Args:
        root: Where ``sys`` and ``dev`` are.

    Attributes:
        missing: Why nothing is read, in one sentence; empty otherwise.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._library = Library()
        self.missing = "" if any(_folders(root)) else "sysfs shows no GPU of the amdgpu driver to watch."

    def devices(self, lists: Lists = ()) -> tuple[Device, ...]:
        """Return the GPUs as they are now."""
        folders, readings = list(_folders(self._root)), self._library.readings()
        return tuple(
            replace(_device(index, folders[index]), **readings.get(folders[index].resolve().name.lower(), {}))
            for index in chosen([_uuid(folder) for folder in folders], lists)
        )


def _folders(root: Path) -> Iterator[Path]:
    cards = (root / "sys/class/drm").glob("card[0-9]*")
    for card in sorted(cards, key=lambda card: (len(card.name), card.name)):
        device = card / "device"
        renders = [path.name for path in (device / "drm").glob("renderD*")]
        mine = [name for name in renders if (root / "dev/dri" / name).exists()]
        if "-" not in card.name and mine and _read(device / "vendor") == _AMD:
            yield device


def _uuid(device: Path) -> str:
    """Return a GPU's name in ROCR_VISIBLE_DEVICES."""
    return f"GPU-{_read(device / 'unique_id').removeprefix('0x')}"


def _device(index: int, device: Path) -> Device:
    sensors = next(iter(sorted(device.glob("hwmon/hwmon*"))), device / "hwmon")
    heat, hottest = _number(sensors / "temp1_input"), _number(sensors / "temp1_crit")
    watts = _number(sensors / "power1_average") or _number(sensors / "power1_input")
    limit = _number(sensors / "power1_cap")
    clocks = {"sm": _number(sensors / "freq1_input"), "memory": _number(sensors / "freq2_input")}
    errors = dict(_ERRORS.findall(_read(device / "ras/umc_err_count")))
    used, total = _number(device / "mem_info_vram_used"), _number(device / "mem_info_vram_total")
    return Device(
        index,
        _read(device / "product_name") or "AMD GPU",
        celsius=None if heat is None else heat / 1000,
        celsius_limit=None if hottest is None else hottest / 1000,
        percent=_number(device / "gpu_busy_percent"),
        used=None if used is None else int(used),
        total=None if total is None else int(total),
        watts=None if watts is None else watts / 1e6,
        watts_limit=None if limit is None else limit / 1e6,
        clocks={word: int(hertz / 1e6) for word, hertz in clocks.items() if hertz is not None},
        ecc={
            word: int(errors[key])
            for word, key in (("corrected", "ce"), ("uncorrected", "ue"))
            if key in errors
        },
    )


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip()
    return ""


def _number(path: Path) -> float | None:
    with contextlib.suppress(ValueError):
        return float(_read(path))
    return None

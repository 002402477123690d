# SPDX-License-Identifier: GPL-3.0-or-later
"""Signs of problems on a node, from its agent's samples. Pure functions.

Each sign names its node, and the rank if it concerns one. A *note* is reported, but makes no job suspect:
healthy jobs have it, too.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rdm_log.samples import Device, Sample
from rdm_log.wording import size_text

WINDOW_S = 600.0
"""For how long an agent keeps its samples."""
_GIB = 1024.0**3
_FULL = 0.95
"""The share of its memory that a node may use."""
_SOON_S = 120.0
"""Memory that will be full within this time, at its present growth, is close to its limit."""
_SURELY_S = 10.0
"""The shortest time over which growth is measured."""
_HORIZON_S = 3600.0
"""How far ahead a disk's use is predicted…"""
_UNPLANNED_S = 600.0
"""… and for a training that saves no checkpoints."""
_LATELY = 6
"""The number of last samples that give the disk's present speed of filling."""
_LEFT_S = 60.0
"""A disk that will be full within this time is reported at once, if it has lately lost more than…"""
_MORE = 1.1
"""… this multiple of a checkpoint's size."""
_RETRANSMITTED = 0.01
_TOO_MANY = 0.05
"""The shares of TCP segments sent again that are a note and a fault, given at least this many segments:"""
_SEGMENTS = 1000
_RESENT = 100
_NETWORK_S = 60.0
_BAD_PACKETS = 100
"""The most packets with errors per minute that an interface may have."""
_HELD_S = 20.0
"""The window for a node's own limits. They hold back its ranks if these…"""
_HELD = 0.5
"""… were throttled in this share of the periods, or…"""
_ALL = 0.9
"""… used this share of their processors."""
_HOT_FOR = 3
"""A GPU counts as throttled if it was so in this many last samples."""
_NEAR_K = 5.0
"""A GPU is reported as hot from this much below its limit."""
_GPU_FULL = 0.97
"""A GPU's memory is noted as full from this share on. torch's cache may fill more, and frees it if needed."""
_HEAT = ("hw_thermal", "sw_thermal")
_POWER = ("hw_power_brake", "hw_slowdown")
"""Reasons for lower clocks. NVML also reports ``hw_slowdown`` together with ``hw_thermal`` when heat is the
only cause (nvml.h, nvmlClocksEventReasonHwSlowdown)."""


@dataclass(frozen=True)
class Sign:
    """A sign of a fault.

    Attributes:
        kind: An identifier for programs: ``disk``, ``slow``, ``nan``…
        text: One sentence that names the node.
        node: The node.
        rank: The rank, if it concerns one.
        is_note: It makes no job suspect.
    """

    kind: str
    text: str
    node: str = ""
    rank: int | None = None
    is_note: bool = False

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Sign:
        """Return the sign in plain data."""
        return cls(**data)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return dataclasses.asdict(self)


def of_node(
    node: str,
    samples: Sequence[Sample],
    *,
    ranks: Sequence[int] = (),
    checkpoint_s: float | None = None,
    checkpoint_bytes: int = 0,
    whole_bytes: int = 0,
    is_saving: bool = False,
) -> list[Sign]:
    """Return the signs of problems on a node.

    Args:
        node: Its name.
        samples: Its samples, the oldest first.
        ranks: Its ranks, in the order of their devices; there may be more devices than ranks.
        checkpoint_s: Seconds until the next checkpoint; None if there will be none.
        checkpoint_bytes: The part of it that is written to this node's disk, by all nodes that share it.
        whole_bytes: What all nodes write, perhaps to the same disk; 0 if unknown.
        is_saving: A checkpoint is being written now, which explains why the disk fills.
    """
    if not samples:
        return []
    found = list(_memory(node, samples))
    if not is_saving:
        found += _disk(node, samples, checkpoint_s, checkpoint_bytes, whole_bytes)
    return [*found, *_network(node, samples), *_devices(node, samples, ranks)]


def held_back(samples: Sequence[Sample]) -> str:
    """Return which limit of a node keeps its ranks from the processors, in words; empty if none does.

    With such a limit, load from other programs is not the cause.

    Args:
        samples: The node's samples, the oldest first.
    """
    recent = [one for one in samples if one.time >= samples[-1].time - _HELD_S]
    if not recent or recent[-1].time - recent[0].time < _SURELY_S:
        return ""
    first, last = recent[0], recent[-1]
    if None not in (last.quota, last.periods, last.throttled, first.periods, first.throttled):
        periods = (last.periods or 0) - (first.periods or 0)
        if (last.throttled or 0) - (first.throttled or 0) >= _HELD * max(1, periods):
            quota = last.quota or 0.0
            return f"its quota is {quota:.0f}" if quota >= 100 else f"its quota is {quota:.3g}"
    if last.processors:
        used = sum(max(0.0, seconds - first.cpu_s.get(rank, seconds)) for rank, seconds in last.cpu_s.items())
        if used >= _ALL * last.processors * (last.time - first.time):
            return f"it has {last.processors}"
    return ""


def _disk(
    node: str, samples: Sequence[Sample], next_s: float | None, wanted: int, whole: int
) -> Iterator[Sign]:
    free = samples[-1].disk_free
    if free is None:
        return
    horizon = _UNPLANNED_S if next_s is None else min(next_s, _HORIZON_S)
    # A burst, such as a checkpoint, must not count: a disk that really fills does so all the time.
    now = _loss_per_s(samples[-_LATELY:])
    speed = min(_loss_per_s(samples), now)
    # A burst larger than a checkpoint that goes on as fast is not a checkpoint.
    taken = (samples[-_LATELY:][0].disk_free or free) - free
    if 0 < whole < taken / _MORE and free - now * _LEFT_S < wanted:
        speed = now
    if free == 0:
        yield Sign("disk", f"The disk of {node} is full.", node)
    elif free < wanted:
        text = (
            f"The disk of {node} has {size_text(free)} free, and what the next checkpoint writes there takes"
        )
        yield Sign("disk", f"{text} {size_text(wanted)}.", node)
    elif speed > 0 and free - speed * horizon < wanted:
        when = free / speed
        before = "within ten minutes" if next_s is None else f"before the next checkpoint in {next_s:.0f} s"
        text = (
            f"The disk of {node} fills by {size_text(speed)}/s: its {size_text(free)} are full in "
            f"{when:.0f} s, {before}."
            if when < horizon
            else f"The disk of {node} fills by {size_text(speed)}/s: the next checkpoint's "
            f"{size_text(wanted)} will not fit in {next_s or 0:.0f} s."
        )
        yield Sign("disk", text, node)


def _loss_per_s(samples: Sequence[Sample]) -> float:
    """Return how fast a disk fills in bytes/s, as the median over pairs of samples; 0 if unknown."""
    known = [one for one in samples if one.disk_free is not None]
    if len(known) < 3 or known[-1].time - known[0].time < _SURELY_S:
        return 0.0
    steps = itertools.pairwise(known)
    losses = [((a.disk_free or 0) - (b.disk_free or 0)) / max(b.time - a.time, 1e-3) for a, b in steps]
    return statistics.median(losses)


def _memory(node: str, samples: Sequence[Sample]) -> Iterator[Sign]:
    last = samples[-1]
    killed = [one.killed for one in samples if one.killed is not None]
    if killed and killed[-1] > killed[0]:
        yield Sign("memory", f"The kernel has killed a process on {node} for want of memory.", node)
    if not last.memory_limit or last.memory_used is None:
        return
    largest, rank = _grown_rank(samples)
    share = last.memory_used / last.memory_limit
    if share >= _FULL:
        yield Sign("memory", f"The memory of {node} is {100 * share:.0f} % full{largest}.", node, rank)
        return
    # Samples with another limit are of another cgroup, or of the host.
    same = [one for one in samples if one.memory_limit == last.memory_limit and one.memory_used is not None]
    recent = [one for one in same if one.time >= last.time - 60]
    seconds = last.time - recent[0].time
    grown = last.memory_used - (recent[0].memory_used or 0)
    # Only from half full on: a training's memory also grows fast at its start.
    if seconds >= _SURELY_S and grown > 0 and share > 0.5:
        left = (last.memory_limit - last.memory_used) / (grown / seconds)
        if left < _SOON_S:
            yield Sign(
                "memory",
                f"The memory of {node} is {100 * share:.0f} % full, and full in {left:.0f} s at its growth "
                f"of {size_text(grown / seconds)}/s{largest}.",
                node,
                rank,
            )


def _grown_rank(samples: Sequence[Sample]) -> tuple[str, int | None]:
    """Return the rank that has grown far more than the node's others, or is far larger; in words, too."""
    last = samples[-1].ranks
    first = next((one.ranks for one in samples if one.ranks), {})
    for sizes in ({rank: size - first.get(rank, size) for rank, size in last.items()}, dict(last)):
        ordered = sorted(sizes.items(), key=lambda item: item[1], reverse=True)
        if not ordered or ordered[0][1] < 64 * 1024**2:
            continue
        others = ordered[1][1] if len(ordered) > 1 else 0
        if ordered[0][1] > 1.5 * max(others, 0):
            rank = ordered[0][0]
            return f"; rank {rank} has {last[rank] / _GIB:.1f} GiB of it", rank
    return "", None


def _network(node: str, samples: Sequence[Sample]) -> Iterator[Sign]:
    recent = [one for one in samples if one.time >= samples[-1].time - _NETWORK_S]
    first, last = recent[0], recent[-1]
    counts = (first.segments, first.resent, last.segments, last.resent)
    if all(count is not None for count in counts):
        sent, resent = (last.segments or 0) - (first.segments or 0), (last.resent or 0) - (first.resent or 0)
        if sent >= _SEGMENTS and resent >= _RESENT and resent > _RETRANSMITTED * sent:
            text = f"TCP on {node} sends {100 * resent / sent:.1f} % of its segments again."
            yield Sign("network", text, node, is_note=resent <= _TOO_MANY * sent)
    for name, count in last.interfaces.items():
        errors = count - first.interfaces.get(name, count)
        if errors > 0:
            many = errors > _BAD_PACKETS
            text = f"{name} of {node} has counted {errors} errors in the last minute."
            yield Sign("network", text, node, is_note=not many)


def _devices(node: str, samples: Sequence[Sample], ranks: Sequence[int]) -> Iterator[Sign]:
    with_devices = [one for one in samples if one.devices]
    if not with_devices:
        return
    began = {device.index: device for device in with_devices[0].devices}
    for position, device in enumerate(with_devices[-1].devices):
        rank, name = ranks[position] if position < len(ranks) else None, f"GPU {device.index} of {node}"
        new = device.ecc.get("uncorrected", 0) - began.get(device.index, device).ecc.get("uncorrected", 0)
        if new > 0:
            yield Sign("ecc", f"{name} has {new} uncorrectable memory errors (ECC).", node, rank)
        if device.xids:
            numbers = ", ".join(map(str, sorted(set(device.xids))))
            yield Sign("xid", f"The driver reports errors of {name}: Xid {numbers}.", node, rank)
        recent = [
            other
            for one in with_devices[-_HOT_FOR:]
            for other in one.devices
            if other.index == device.index and len(with_devices) >= _HOT_FOR
        ]
        clock = f"{device.clocks['sm']} MHz" if "sm" in device.clocks else "lower clocks"
        heat = f" at {device.celsius:.0f}'C" if device.celsius is not None else ""
        for reasons, why in ((_HEAT, f"by heat{heat}"), (_POWER, "by its power supply")):
            if recent and all(set(reasons).intersection(_causes(other)) for other in recent):
                yield Sign("throttled", f"{name} is throttled {why}, to {clock}.", node, rank)
        if not set(_HEAT).intersection(device.throttled):
            yield from _hot(name, recent, node, rank)
    full = [one for one in with_devices[-1].devices if one.total and (one.used or 0) >= _GPU_FULL * one.total]
    if full:
        indexes = ", ".join(str(one.index) for one in full)
        many = f"GPUs {indexes}" if len(full) > 1 else f"GPU {indexes}"
        text = f"The memory of {many} of {node} is over {100 * _GPU_FULL:.0f} % full."
        yield Sign("memory", text, node, is_note=True)


def _hot(name: str, recent: Sequence[Device], node: str, rank: int | None) -> Iterator[Sign]:
    """Yield a sign if a GPU was, in each of its last samples, at or near its temperature limit."""
    left = [one.celsius_limit - one.celsius for one in recent if one.celsius and one.celsius_limit]
    if left and len(left) == len(recent) and max(left) <= _NEAR_K:
        text = (
            f"{name} has {recent[-1].celsius:.0f}'C, and is slowed down at {recent[-1].celsius_limit:.0f}'C."
        )
        yield Sign("heat", text, node, rank, is_note=max(left) > 0)


def _causes(device: Device) -> set[str]:
    """Return why a device's clocks are lowered, without reasons that only follow from another."""
    reasons = set(device.throttled)
    return reasons - {"hw_slowdown"} if "hw_thermal" in reasons else reasons

# SPDX-License-Identifier: GPL-3.0-or-later
"""Signs of a fault from what a node measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdm_log.samples import Device, Sample
from rdm_log.signs import held_back, of_node

GIB = 1024**3
GPU = Device(3, "NVIDIA A10", 60, 98, 20 * GIB, 24 * GIB, clocks={"sm": 1200}, ecc={"uncorrected": 0})
WELL = Sample(0, 100 * GIB, 8 * GIB, 32 * GIB, 0, {4: GIB, 5: GIB}, 10**6, 10, {"ib0": 0}, (GPU,))


def samples(**last: Any) -> list[Sample]:
    """Return the samples of a minute, the last of them changed."""
    times = [replace(WELL, time=5.0 * n, segments=10**6 + 5000 * n) for n in range(13)]
    return [*times[:-1], replace(times[-1], **last)]


def test_healthy_node_has_no_sign() -> None:
    assert of_node("n2", samples()) == []
    assert of_node("n2", []) == []
    assert of_node("n2", [Sample(0)]) == []


@pytest.mark.parametrize(
    ("last", "kind", "rank", "words"),
    [
        (
            {"disk_free": GIB},
            "disk",
            None,
            "1.1 GB free, and what the next checkpoint writes there takes 5.0 GB",
        ),
        (
            {"memory_used": 31 * GIB, "ranks": {4: GIB, 5: 23 * GIB}},
            "memory",
            5,
            "97 % full; rank 5 has 23.0",
        ),
        ({"killed": 1}, "memory", None, "killed a process on n2"),
        ({"resent": 6010, "segments": 1_060_000}, "network", None, "sends 10.0 % of its segments again"),
        ({"interfaces": {"ib0": 400}}, "network", None, "ib0 of n2 has counted 400 errors"),
        ({"devices": (replace(GPU, ecc={"uncorrected": 2}),)}, "ecc", 4, "2 uncorrectable memory errors"),
        ({"devices": (replace(GPU, xids=(79,)),)}, "xid", 4, "GPU 3 of n2: Xid 79"),
    ],
)
def test_each_fault_is_named(last: dict[str, Any], kind: str, rank: int | None, words: str) -> None:
    (sign,) = of_node("n2", samples(**last), ranks=(4, 5), checkpoint_s=600, checkpoint_bytes=5 * 10**9)
    assert (sign.kind, sign.node, sign.rank, sign.is_note) == (kind, "n2", rank, False)
    assert words in sign.text


def test_notes_make_no_job_suspect() -> None:
    found = of_node("n2", samples(resent=1210, segments=1_060_000, interfaces={"ib0": 3}))
    assert [sign.is_note for sign in found] == [True, True]


def test_a_disk_that_fills_is_reported_before_the_next_checkpoint_and_a_burst_is_not() -> None:
    fills = [replace(WELL, time=5.0 * n, disk_free=20 * GIB - n * GIB // 2) for n in range(13)]
    (sign,) = of_node("n2", fills, checkpoint_s=600, checkpoint_bytes=GIB)
    assert "fills by 107.4 MB/s: its 15.0 GB are full in 140 s, before the next checkpoint" in sign.text
    assert of_node("n2", fills, checkpoint_s=60, checkpoint_bytes=GIB) == []
    assert of_node("n2", fills, checkpoint_s=600, checkpoint_bytes=GIB, is_saving=True) == []
    burst = [replace(WELL, time=5.0 * n, disk_free=(40 if n < 6 else 10) * GIB) for n in range(13)]
    assert of_node("n2", burst, checkpoint_s=600, checkpoint_bytes=GIB) == []
    # An hour of rest does not hide a disk that will be full in a minute, whatever fills it.
    rests = [replace(WELL, time=5.0 * n - 3600, disk_free=20 * GIB) for n in range(720)]
    last = rests + [replace(one, disk_free=(one.disk_free or 0) - 10 * GIB) for one in fills]
    (sign,) = of_node("n2", last, checkpoint_s=600, checkpoint_bytes=GIB, whole_bytes=2 * GIB)
    assert "its 4.3 GB are full in 40 s, before the next checkpoint in 600 s" in sign.text
    # But a checkpoint of all nodes, or a user's own program, may have written that much.
    for whole in (3 * GIB, 0):
        assert of_node("n2", last, checkpoint_s=600, checkpoint_bytes=GIB, whole_bytes=whole) == []


@pytest.mark.parametrize(
    ("quota", "throttled", "busy", "limit"),
    [
        (0.5, 60, 0.2, "its quota is 0.5"),
        (12.5, 60, 0.2, "its quota is 12.5"),
        (128.0, 60, 0.2, "its quota is 128"),
        (1024.0, 60, 0.2, "its quota is 1024"),
        (0.5, 10, 0.2, ""),
        (0.5, 0, 0.95, "it has 2"),
    ],
)
def test_a_node_s_own_limits_differ_from_others_work(
    quota: float, throttled: int, busy: float, limit: str
) -> None:
    """Of a hundred periods, ``throttled`` were; the two ranks used the share ``busy`` of two processors."""
    measured = [
        replace(
            WELL,
            time=5.0 * n,
            processors=2,
            quota=quota,
            periods=100 * n,
            throttled=throttled * n,
            cpu_s={4: 5.0 * n * busy, 5: 5.0 * n * busy},
        )
        for n in range(13)
    ]
    assert held_back(measured) == limit
    # One sample shows nothing, and neither does a node that counts nothing.
    assert held_back(measured[:2]) == held_back(samples()) == ""


def test_memory_that_grows_fast_is_reported_before_it_is_full() -> None:
    grows = [
        replace(WELL, time=5.0 * n, memory_used=(16 + n) * GIB, ranks={4: GIB, 5: (1 + n) * GIB})
        for n in range(13)
    ]
    (sign,) = of_node("n2", grows)
    assert (sign.kind, sign.rank) == ("memory", 5)
    assert "full in 20 s at its growth of 214.7 MB/s" in sign.text
    limited = [replace(one, memory_limit=256 * GIB, memory_used=200 * GIB) for one in grows[:6]]
    (sign,) = of_node("n2", limited + grows[6:])
    assert "full in 20 s" in sign.text


def test_gpu_that_is_hot_for_a_moment_is_not_throttled() -> None:
    hot = replace(GPU, throttled=("sw_thermal",), celsius=91)
    assert of_node("n2", samples(devices=(hot,))) == []
    always = [replace(one, devices=(hot,)) for one in samples()]
    (sign,) = of_node("n2", always)
    assert sign.text == "GPU 3 of n2 is throttled by heat at 91'C, to 1200 MHz."
    capped = [replace(one, devices=(replace(GPU, throttled=("sw_power_cap",)),)) for one in samples()]
    assert of_node("n2", capped) == []


@pytest.mark.parametrize(
    ("reasons", "why"),
    [
        # What NVML says of a GPU that is too hot.
        (("hw_slowdown", "hw_thermal"), ["by heat at 60'C"]),
        (("hw_slowdown", "hw_power_brake"), ["by its power supply"]),
        (("hw_slowdown",), ["by its power supply"]),
        (("hw_power_brake", "sw_thermal"), ["by heat at 60'C", "by its power supply"]),
    ],
)
def test_heat_is_not_reported_as_the_power_supply_s_fault(reasons: tuple[str, ...], why: list[str]) -> None:
    found = of_node("n2", [replace(one, devices=(replace(GPU, throttled=reasons),)) for one in samples()])
    assert [sign.text for sign in found] == [
        f"GPU 3 of n2 is throttled {words}, to 1200 MHz." for words in why
    ]


def test_a_gpu_beyond_the_ranks_has_no_rank() -> None:
    """Its index would give the number of a rank on the next node."""
    devices = (replace(GPU, index=0), replace(GPU, index=1, xids=(79,)), replace(GPU, index=5, xids=(79,)))
    found = of_node("n2", samples(devices=devices), ranks=(4, 5))
    assert [(sign.rank, sign.text) for sign in found] == [
        (5, "The driver reports errors of GPU 1 of n2: Xid 79."),
        (None, "The driver reports errors of GPU 5 of n2: Xid 79."),
    ]


@pytest.mark.parametrize(
    ("celsius", "limit", "is_note"),
    [(98, 98, False), (103, 98, False), (94, 98, True), (92, 98, None), (98, None, None), (None, 98, None)],
)
def test_gpu_at_its_slowdown_temperature_is_reported(
    celsius: float | None, limit: float | None, is_note: bool | None
) -> None:
    hot = replace(GPU, celsius=celsius, celsius_limit=limit)
    found = of_node("n2", [replace(one, devices=(hot,)) for one in samples()], ranks=(4,))
    assert [(sign.kind, sign.rank, sign.is_note) for sign in found] == (
        [] if is_note is None else [("heat", 4, is_note)]
    )
    if found:
        assert found[0].text == f"GPU 3 of n2 has {celsius}'C, and is slowed down at 98'C."
    # It may be that hot for a moment.
    assert of_node("n2", samples(devices=(hot,))) == []
    # A GPU that is slowed down for heat is reported once.
    throttled = replace(hot, throttled=("hw_thermal",))
    kinds = [sign.kind for sign in of_node("n2", [replace(one, devices=(throttled,)) for one in samples()])]
    assert kinds == ["throttled"]


def test_full_memory_of_gpus_is_noted_once_for_a_node_and_makes_no_job_suspect() -> None:
    full = [replace(GPU, index=index, used=GPU.total) for index in (0, 1)]
    (sign,) = of_node("n2", samples(devices=(*full, GPU)))
    assert (sign.text, sign.is_note) == ("The memory of GPUs 0, 1 of n2 is over 97 % full.", True)


@given(
    st.lists(
        st.tuples(st.integers(60 * GIB, 100 * GIB), st.integers(4 * GIB, 15 * GIB), st.floats(30, 88)),
        min_size=1,
        max_size=60,
    )
)
def test_healthy_behaviour_is_no_sign(measured: list[tuple[int, int, float]]) -> None:
    found = [
        replace(
            WELL,
            time=5.0 * n,
            disk_free=100 * GIB,
            memory_used=used,
            segments=10**6 + n,
            resent=10 + n // 9,
            devices=(replace(GPU, celsius=heat, used=min(free // 4, 23 * GIB)),),
        )
        for n, (free, used, heat) in enumerate(measured)
    ]
    assert of_node("n2", found, checkpoint_s=60, checkpoint_bytes=GIB) == []

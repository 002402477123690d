# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines about devices, from what the vendors' tools print."""

from __future__ import annotations

import json
import os
import re

from rdm_job.devices import Sampler, _nvidia, _rocm, count

# The form of the lines that people's monitors read.
LINE = re.compile(r"\[\d+\] .{16,} \| (\d{2,3}'C, )? {0,2}\d{1,3} % \| +\d+ / +\d+ MB \|")


def test_nvidia() -> None:
    rows = [
        "0, NVIDIA A10, 49, 0, 0, 22731",
        "1, NVIDIA H200, 61, 98, 71204, 143771",
        "2, NVIDIA H200, [N/A], 5, 1, 2",
    ]
    lines = _nvidia("\n".join(rows))
    assert lines[0] == "[0] NVIDIA A10       | 49'C,   0 % |     0 / 22731 MB |"
    assert lines[1] == "[1] NVIDIA H200      | 61'C,  98 % | 71204 / 143771 MB |"
    assert len(lines) == 3


def test_rocm() -> None:
    card = {
        "Temperature (Sensor edge) (C)": "41.0",
        "GPU use (%)": "97",
        "VRAM Total Memory (B)": str(64 * 2**30),
        "VRAM Total Used Memory (B)": str(2 * 2**30),
        "Card Series": "AMD INSTINCT MI250X",
    }
    (line,) = _rocm(json.dumps({"card0": card, "system": {"Driver version": "6"}}))
    assert line == "[0] AMD INSTINCT MI250X | 41'C,  97 % |  2048 / 65536 MB |"


def test_what_is_no_answer_is_no_line() -> None:
    assert _nvidia("NVIDIA-SMI has failed") == []
    assert _rocm("ERROR: no device") == []


def test_without_accelerators_the_processors_count() -> None:
    assert count("cpu") is None
    sampler = Sampler("cpu")
    sampler.lines([os.getpid()])
    (line,) = sampler.lines([os.getpid()])
    assert LINE.fullmatch(line), line

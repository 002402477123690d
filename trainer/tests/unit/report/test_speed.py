# SPDX-License-Identifier: GPL-3.0-or-later
"""The speed that a report draws for a job whose lines do not give it per GPU."""

from __future__ import annotations

from pathlib import Path

from rdm_log.report.curves import speed, speed_note
from rdm_log.report.job import collect
from rdm_log.report.machines import memory


def test_speed_from_deepspeeds_log_alone_is_drawn(tmp_path: Path) -> None:
    lines = []
    for n in (10, 20):
        lines.append(f"[logging.py:128:log_dist] [Rank 0] step={n}, skipped=0, lr=[0.001], mom=[0.9]\n")
        speeds = f"RunningAvgSamplesPerSec=1.5, CurrSamplesPerSec={n}.5, MaxMemAllocated=2.5GB"
        lines.append(f"[timer.py:264:stop] epoch=0/micro_step={n}/global_step={n}, {speeds}\n")
    (tmp_path / "n1.out").write_text("".join(lines))
    job = collect(tmp_path)
    assert speed([job])(job) == ([[[10, 10.5, 10.5, 10.5], [20, 20.5, 20.5, 20.5]]], "samples/s")
    assert speed_note([job]) == ""
    drawn = memory([job])
    assert drawn is not None
    assert "2.5" in str(drawn)


def test_jobs_are_compared_by_samples_if_one_logs_no_tokens(tmp_path: Path) -> None:
    fields = {"tokens": " consumed tokens: {tokens} |", "samples": ""}
    for name, field in fields.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "n1.out").write_text(
            "".join(
                f" iteration {n:8d}/ 4 | consumed samples: {8 * n} |{field.format(tokens=8 * n * 1024)}"
                " elapsed time per iteration (ms): 500.0 | global batch size: 8 | lm loss: 3.0E+00 |\n"
                for n in range(1, 5)
            )
        )
    tokens, samples = (collect(tmp_path / name) for name in fields)
    points, unit = speed([tokens])(tokens)
    assert (points[0][1][1], unit) == (16 * 1024, "tokens/s")
    choose = speed([tokens, samples])
    assert choose(tokens) == choose(samples)
    assert choose(tokens)[1] == "samples/s"

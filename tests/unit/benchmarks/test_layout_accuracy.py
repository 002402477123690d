# SPDX-License-Identifier: GPL-3.0-or-later
"""The benchmark of predictions measures enough layouts, and predicts steps that were measured already."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.layout_accuracy import (
    EIGHT,
    ON,
    ROOT,
    configuration,
    main,
    predicted_legs,
    summary,
    winners,
)
from benchmarks.training_legs import QUICK, Layout, Leg
from rdm_core import config
from rdm_core.cost.dry_run import GIB, RUNTIME_BYTES, dry_run
from rdm_planner.interleaved import timeline
from rdm_planner.profile import Profile, shape_of


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_at_least_fifteen_combinations_use_the_devices(devices: int) -> None:
    assert len(set(ON[devices])) == len(ON[devices]) >= 15
    assert {Layout.parse(one.layout).world for one in ON[devices]} <= {1, devices}


def test_those_of_eight_devices_train_the_same_steps() -> None:
    batches = {configuration(one, "native", smoke=False).optimisation.global_batch_size for one in EIGHT}
    assert (batches, {one.layers for one in EIGHT}) == ({64}, {16})


def _leg(layout: str, **overrides: Any) -> Leg:
    return Leg(
        "tiny",
        QUICK["tiny"],
        Layout.parse(layout),
        2,
        1,
        1,
        1,
        "fp32",
        False,
        False,
        False,
        overrides,
        "native",
    )


def _profile(leg: Leg) -> dict[str, Any]:
    """Return a profile in which a head computes forward only, and nothing else takes time."""

    def times(forward: float, backward: float) -> dict[str, dict[str, float]]:
        return {"4": {"forward": forward, "backward": backward, "checkpointed": backward}}

    link = {"latency": 0.0, "bandwidth": 1e18}
    return {
        "format": 1,
        "gpu": "H200",
        "shape": shape_of(config.from_dict(leg.configuration())),
        "versions": {},
        "date": "2026-11-29",
        "memory_gib": 141.0,
        "optimiser": 0.0,
        "layers": {"1": {"Embedding": times(0, 0), "Block": times(0.1, 0.2), "Head": times(0.3, 0)}},
        "links": {"within": {"point_to_point": link, "all_reduce": link}},
    }


def test_measured_steps_are_predicted_with_their_own_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipelines = [
        (_leg("PP 2", **{"parallel.partition": cut}), seconds)
        for cut, seconds in (("1-1-1-1", 4.0), ("1-2-1-0", 3.5))
    ]
    steps = [*pipelines, (_leg("DP 2"), 4.0), (_leg("TP 2"), 4.0)]
    results = [
        {
            "leg": asdict(leg),
            "report": {
                "tokens_per_second": {"ours": [leg.samples("ours") * 64 / leg.layout.world / seconds]}
            },
        }
        for leg, seconds in steps
    ]
    (tmp_path / "steps.json").write_text(json.dumps({"results": results}))
    (tmp_path / "profile.json").write_text(json.dumps(_profile(steps[0][0])))
    files = ["--measured", str(tmp_path / "steps.json"), "--profile", str(tmp_path / "profile.json")]
    monkeypatch.setattr(sys, "argv", ["layout_accuracy.py", *files])
    assert main() == 0
    output = capsys.readouterr().out
    assert "tiny, TP 2: left out, its profile has no tensor degree 2." in output
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in output.splitlines()]
    rows = [row for row in cells if row and row[0] == "tiny"]
    # In each chunk's own passes; two chunks with one head.
    even, other = (
        max(one.end for one in timeline([(0.1 * n + head, 0.2 * n) for n, head in cut], 2, 4))
        for cut in (
            [(1, 0), (1, 0), (1, 0), (1, 0.3)],
            [(1, 0), (2, 0), (1, 0), (0, 0.3)],
        )
    )
    assert [float(row[3].replace(",", "")) / 1e3 for row in rows] == pytest.approx([even, other, 3.0])
    assert [row[1] for row in rows] == ["PP 2, 2 chunks", "PP 2, 2 chunks", "DP 2"]
    (winner,) = (row for row in cells if row and row[0] == "tiny, 4 blocks, 2 GPUs, 16 x 64 tokens")
    assert winner[1:4] == ["DP 2", "PP 2, 2 chunks", "3"]
    assert winner[4] == "14.3 %"


@pytest.mark.parametrize(
    ("written", "options", "reason"),
    [
        (None, [], "--measured steps.json cannot be read: No such file or directory"),
        ("[]", [], "--measured steps.json is not what train_throughput.py --json writes"),
        ('{"results": [{"leg": {}}]}', [], "--measured steps.json is not what train_throughput.py --json "),
        ("{", [], "--measured steps.json is not what train_throughput.py --json writes"),
        ('{"results": []}', [], "--measured has no step that the profiles predict"),
        ('{"results": []}', ["--output", "out"], "--measured cannot be combined with --output, --layout or "),
        (
            '{"results": []}',
            ["--profile", "h.json"],
            "--profile: The profile h.json cannot be read: No such ",
        ),
    ],
)
def test_wrong_files_are_refused_in_a_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    written: str | None,
    options: list[str],
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if written is not None:
        Path("steps.json").write_text(written)
    Path("profile.json").write_text(json.dumps(_profile(_leg("PP 2"))))
    files = ["--measured", "steps.json", "--profile", "profile.json"]
    monkeypatch.setattr(sys, "argv", ["layout_accuracy.py", *files, *options])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert f"error: {reason}" in capsys.readouterr().err


def test_steps_that_were_measured_on_h200_are_predicted() -> None:
    measurements = ROOT / "benchmarks/measurements"
    profiles = [Profile.read(file) for file in sorted(measurements.glob("h200-*.profile.json"))]
    results = json.loads((measurements / "h200-steps.json").read_text())["results"]
    steps = [(Leg.from_json(json.dumps(one["leg"])), one["report"]) for one in results]
    legs = list(predicted_legs(steps, profiles))
    assert len({(leg["shape"], leg["layout"]) for leg in legs}) == 20
    found = summary(legs)
    assert found["mean_absolute_error"] < 0.02
    assert found["largest_error"] < 0.06
    assert found["rank_correlation"] > 0.97
    assert [row[-1] for row in winners(legs)[1:]] == 4 * ["0.0 %"]


def test_memory_that_was_measured_on_h200_is_predicted() -> None:
    results = json.loads((ROOT / "benchmarks/measurements/h200-steps.json").read_text())["results"]
    errors: dict[str, list[float]] = {}
    for one in results:
        leg = Leg.from_json(json.dumps(one["leg"]))
        # Rank 0's. PyTorch does not count the context of its device.
        memory = dry_run(config.from_dict(leg.configuration()), leg.layout.world).stages[0].memory
        predicted = (memory.total - RUNTIME_BYTES) / GIB
        cut = leg.overrides.get("parallel.partition", "")
        key = f"{leg.shape_name}, {leg.shape.layers} blocks, {leg.layout.name} {cut}"
        errors.setdefault(key, []).append(predicted / one["report"]["ours_peak_gib"] - 1)
    assert len(errors) == 23
    for name, found in errors.items():
        for error in found:
            # The first stage of short passes kept messages that had arrived, which it no longer does.
            is_short = name.startswith("Llama-3 8B x 6") and "PP 2" in name
            assert (-0.016 if is_short else -0.002) < error < 0.008, name


def test_winners_are_those_of_one_model() -> None:
    results = [
        (leg, {"tokens_per_second": {"ours": [1.0]}})
        for leg in (_leg("DP 2"), replace(_leg("DP 2"), shape=replace(QUICK["tiny"], sequence=32)))
    ]
    profiles = [Profile.of(_profile(leg), "test") for leg, _ in results]
    assert len({one["trained"] for one in predicted_legs(results, profiles)}) == 2

# SPDX-License-Identifier: GPL-3.0-or-later
"""The benchmarks of a resume and of the all-reduce: layouts to ranks, and what their tables compare."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from benchmarks import all_reduce, resume
from benchmarks.training_legs import Layout


def cells(table: str) -> list[list[str]]:
    """Return the rows of a Markdown table, without heading and rule."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


@pytest.mark.parametrize("name", ["TP 8", "PP 4 DP 2", "TP 2 PP 2 DP 2"])
def test_both_layouts_train_the_same_samples(name: str) -> None:
    args = argparse.Namespace(shape="Llama-3 8B x 6", blocks=16, sequence=None, samples=8, engine="native")
    configuration = resume.leg_of(args, Layout.parse(name)).configuration()
    assert configuration["model"]["layers"] == 16
    assert configuration["optimisation"]["micro_batch_size"] == 1
    assert configuration["optimisation"]["global_batch_size"] == 8
    assert configuration["parallel"]["partition"] == "even"


SAVED = {"samples": [3, 5], "losses": [10.3485, 10.2081, 10.0823]}
"""Of `--shape GPT-16M --sequence 128 --from "TP 2" --to "PP 2 DP 2"` on a CPU, like those below."""


def test_a_resume_may_round_differently() -> None:
    assert resume.difference(SAVED, SAVED | {"losses": [10.3485, 10.2082, 10.0825]}) is None


@pytest.mark.parametrize(
    ("lost", "losses", "share"),
    [
        ("weights", [10.8488, 10.6747, 10.4722], "187.9%"),
        ("fp32 weights", [10.3485, 10.7022, 10.5008], "185.6%"),
        ("first moments", [10.3485, 10.2843, 10.2206], "52.0%"),
        ("second moments", [10.3485, 11.7929, 11.1205], "595.3%"),
        ("both moments", [10.3485, 10.2459, 10.1394], "21.5%"),
        ("one of three updates", [10.3485, 10.2180, 10.0949], "4.7%"),
        ("a tenth of the rate", [10.3485, 10.2242, 10.1067], "9.2%"),
    ],
)
def test_resume_benchmark_shows_state_that_was_not_restored(
    lost: str, losses: list[float], share: str
) -> None:
    problem = resume.difference(SAVED, SAVED | {"losses": losses})
    assert problem is not None, lost
    assert f"up to {share} of their change" in problem


def test_a_resume_takes_the_next_samples_and_has_losses() -> None:
    assert resume.difference(SAVED, SAVED | {"samples": [1, 3]}) == "The resumed training took other samples."
    assert resume.difference(SAVED, SAVED | {"losses": [10.3485, float("nan"), 10.0823]})
    assert resume.difference(SAVED, SAVED | {"losses": [10.3485, 10.2081, float("nan")]})


def test_the_tables_of_a_resume() -> None:
    memory = {"host_before": 2**30, "host_peak": 2**31, "device_before": 2**32, "device_peak": 2**33}
    saved: dict[str, Any] = {"before": [12.0], "save": {"seconds": 10.0, **memory}, "losses": [8.0]}
    loaded: dict[str, Any] = {
        "load": {"seconds": 5.0, "host_before": 2**30, "host_peak": 2**30},
        "losses": [8.008],
    }
    measured, losses = resume.tables(("TP 2", "PP 2"), saved, loaded, 20 * 10**9).split("\n\n")
    assert cells(measured) == [
        ["save", "TP 2", "20.0", "10.0", "2.00", "1.0", "2.0", "4.0", "8.0"],
        ["load", "PP 2", "20.0", "5.0", "4.00", "1.0", "1.0", "-", "-"],
    ]
    first, last = cells(losses)
    assert first == ["1", "12.0000", "", ""]
    assert last == [str(1 + resume.STEPS), "8.0000", "8.0080", "+0.100 %"]


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    found = [{"bytes": 2**30, "seconds": {"verify": [2.0, 1.0, 4.0], "loop": [2.0], "graph": [1.0]}}]
    assert cells(all_reduce.table(found, 8)) == [["1024", "0.9", "0.9", "1.9", "1.000", "0.500"]]


def test_a_batch_that_replicas_cannot_share_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["resume.py", "--shape", "tiny", "--to", "DP 2", "--samples", "3"])
    with pytest.raises(SystemExit, match="2"):
        resume.main()
    assert "optimisation.global_batch_size 3 is not a multiple of" in capsys.readouterr().err


def test_more_ranks_than_gpus_are_refused() -> None:
    assert all_reduce.unfit(2, 2) is None
    assert all_reduce.unfit(2, 0) == "--ranks 2: this host has 0 GPUs"
    assert all_reduce.unfit(1, 1) == "it takes at least two GPUs"

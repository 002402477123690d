# SPDX-License-Identifier: GPL-3.0-or-later
"""Profiles: what is read from them, what is rejected, and what is predicted between their points."""

from __future__ import annotations

import dataclasses
import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from rdm_core import config as configuration
from rdm_core.errors import TrainerError
from rdm_planner.nodes import NodeKind
from rdm_planner.profile import LayerTimes, MeasuredTimes, Profile, interpolate, require_modelled, shape_of
from rdm_planner.times import Link, Times
from rdm_trainer.cli import cli

CONFIG = Path(__file__).parents[3] / "configs" / "gpt2-xl.yaml"
JOB = configuration.load(CONFIG)
VERSIONS = {name: metadata.version(name) for name in ("torch", "deepspeed")}
SECONDS = {"Block": 1e-3, "Embedding": 1e-4, "Head": 2e-3}
PROFILE = Profile(
    gpu="H100",
    shape=shape_of(JOB),
    versions=VERSIONS,
    date="2026-01-02T03:04:05+00:00",
    memory_gib=79.0,
    optimiser=1e-11,
    layers={
        tensor: {
            kind: {
                size: LayerTimes(
                    seconds * size / tensor, 2 * seconds * size / tensor, 3 * seconds * size / tensor
                )
                for size in (1, 4)
            }
            for kind, seconds in SECONDS.items()
        }
        for tensor in (1, 2)
    },
    links={"within": {"point_to_point": Link(1e-5, 8e11), "all_reduce": Link(2e-5, 1e12)}},
)


@given(
    st.dictionaries(st.integers(1, 64), st.floats(1e-9, 10), min_size=1, max_size=6),
    st.integers(1, 128),
)
def test_between_points_a_time_is_between_theirs_and_at_a_point_its_own(
    points: dict[int, float], size: int
) -> None:
    found = interpolate(points, size)
    if size in points:
        assert found == points[size]
        return
    below, above = [one for one in points if one < size], [one for one in points if one > size]
    if below and above:
        ends = sorted((points[max(below)], points[min(above)]))
        assert ends[0] * (1 - 1e-12) <= found <= ends[1] * (1 + 1e-12)
        if size + 1 < min(above):
            rises = points[min(above)] >= points[max(below)]
            later = interpolate(points, size + 1)
            assert later >= found * (1 - 1e-12) if rises else later <= found * (1 + 1e-12)
    else:
        nearest = max(below) if below else min(above)
        assert found / size == pytest.approx(points[nearest] / nearest)


def test_written_profile_is_read(tmp_path: Path) -> None:
    file = tmp_path / "h100.json"
    file.write_text(PROFILE.text())
    assert Profile.read(file) == PROFILE
    file.write_text(_without_checkpointing().text())
    assert Profile.read(file) == _without_checkpointing()


def _without_checkpointing() -> Profile:
    layers = {
        tensor: {
            kind: {size: dataclasses.replace(one, checkpointed=None) for size, one in points.items()}
            for kind, points in kinds.items()
        }
        for tensor, kinds in PROFILE.layers.items()
    }
    return dataclasses.replace(PROFILE, layers=layers)


def test_passes_that_were_not_measured_are_not_predicted() -> None:
    profile = _without_checkpointing()
    profile.require(JOB, source="h100.json", command="measure")
    assert profile.lost_in_noise() == ""
    times = MeasuredTimes({"H100": profile}, {"H100": NodeKind("H100", 4, 4e11, 3e12, 79.0)})
    assert times.backward("H100", "Block", 4, 1, checkpointed=False) == pytest.approx(8e-3)
    with pytest.raises(TrainerError, match=r"measured with --no-checkpointing; search layouts with parallel"):
        times.backward("H100", "Block", 4, 1, checkpointed=True)


def test_sizes_replace_the_largest_one() -> None:
    refused = (
        CliRunner().invoke(cli, ["profile", str(CONFIG), "--sizes", "8", "--micro-batch", "4"]).exception
    )
    assert str(refused) == "--sizes and --micro-batch cannot be combined."


@pytest.mark.parametrize("sizes", ["", "0,8", "8,", "8 16", "eight"])
def test_sizes_are_whole_numbers(sizes: str) -> None:
    refused = CliRunner().invoke(cli, ["profile", str(CONFIG), "--sizes", sizes]).exception
    assert str(refused) == f"--sizes is {sizes!r}; it must be micro-batches joined by commas, as 8,16."


@pytest.mark.parametrize(
    ("size", "times", "problem"),
    [
        (
            1,
            LayerTimes(1e-9, 2e-3, 3e-3),
            r"the forward time of Block at tensor degree 2 and micro-batch 1 is 1e-09",
        ),
        (
            4,
            LayerTimes(2e-3, 0.0, 6e-3),
            "the backward time of Block at tensor degree 2 and micro-batch 4 is 0 s",
        ),
        (4, LayerTimes(2e-3, 2.5e-4, 6e-3), "peak of 989.4 TFLOP/s needs"),
        (4, LayerTimes(3e-4, 4e-3, 6e-3), "is 0.0003 s at micro-batch 4, and more at 1: 0.0005 s"),
    ],
)
def test_times_that_no_gpu_can_have_are_refused(size: int, times: LayerTimes, problem: str) -> None:
    blocks = {**PROFILE.layers[2]["Block"], size: times}
    wrong = dataclasses.replace(PROFILE, layers={**PROFILE.layers, 2: {**PROFILE.layers[2], "Block": blocks}})
    with pytest.raises(TrainerError, match=problem) as refused:
        wrong.require(JOB, source="h100.json", command="rdm-trainer profile gpt2-xl.yaml")
    assert str(refused.value).startswith("h100.json cannot be right: ")
    assert str(refused.value).endswith("measure it again: rdm-trainer profile gpt2-xl.yaml")
    # Only known GPUs have a published peak.
    dataclasses.replace(wrong, gpu="cpu").require(JOB, source="cpu.json", command="")


def test_profile_of_the_other_engine_is_refused_with_both_remedies() -> None:
    wanted = "engine=" + JOB.engine
    other = {"native": "deepspeed", "deepspeed": "native"}[JOB.engine]
    wrong = dataclasses.replace(PROFILE, shape={**PROFILE.shape, "engine": other})
    with pytest.raises(TrainerError) as refused:
        wrong.require(JOB, source="h100.json", command="rdm-trainer profile gpt2-xl.yaml")
    ways = f"take engine={other}, or measure it again with {wanted}: rdm-trainer profile gpt2-xl.yaml"
    assert str(refused.value).endswith(ways)


def test_unmeasured_links_come_from_the_nodes() -> None:
    node = NodeKind("H100", gpus=8, inter=4e11, intra=3.6e12, memory_gib=79.1)
    times: Times = MeasuredTimes({"H100": PROFILE}, {"H100": node})
    assert times.point_to_point("H100", "H100", across=False) == Link(1e-5, 8e11)
    assert times.all_reduce(["H100"], across=True) == Link(0.0, 4e11)
    assert set(times.tensors("H100") or ()) == {1, 2}
    assert times.forward("H100", "Block", 2, 2) == pytest.approx(1e-3)
    assert times.backward("H100", "Block", 4, 1, checkpointed=True) == pytest.approx(12e-3)
    assert times.forward("H100", "FinalNorm", 4, 1) == 0.0


def _tune(file: Path, *arguments: str) -> Any:
    return CliRunner().invoke(
        cli, ["tune", str(CONFIG), "--nodes", "1xH100:4", "--profile", str(file), *arguments]
    )


def _error(file: Path) -> str:
    result = _tune(file)
    assert isinstance(result.exception, TrainerError)
    return str(result.exception)


def test_tune_predicts_from_a_profile_and_takes_no_degree_that_it_lacks(tmp_path: Path) -> None:
    file = tmp_path / "h100.json"
    file.write_text(PROFILE.text())
    result = _tune(file, "--json", "--top", "100", "parallel.activation_checkpointing=none")
    found = json.loads(result.output)
    assert found["measured"]
    assert {row["tensor"] for row in found["best"]} <= {1, 2}
    alone = next(row for row in found["best"] if (row["tensor"], row["pipeline"], row["data"]) == (1, 1, 4))
    samples = JOB.optimisation.global_batch_size / 4
    computing = samples * 3 * (48 * SECONDS["Block"] + SECONDS["Embedding"] + SECONDS["Head"])
    assert alone["parts"]["compute"] == pytest.approx(computing)
    shown = _tune(file).output
    assert "h100.json" in shown
    assert "GUESS" not in shown
    assert "MFU refers" not in shown


def test_a_profile_in_fp8_is_for_jobs_in_fp8_and_may_beat_the_peak_in_bf16(tmp_path: Path) -> None:
    keys = ["engine=native", "optimisation.fp8_recipe=tensorwise"]
    job = configuration.load(CONFIG, keys)
    file = tmp_path / "h100.json"
    file.write_text(_scaled(1.0).text())
    assert "fp8_recipe 'none', and the job has 'tensorwise'" in str(_tune(file, *keys).exception)
    file.write_text(dataclasses.replace(_scaled(1.0), shape=shape_of(job)).text())
    assert "fp8_recipe 'tensorwise', and the job has 'none'" in str(_tune(file, "engine=native").exception)
    best = json.loads(_tune(file, *keys, "--json", "--top", "1").output)["best"][0]
    assert "fp8_recipe" not in " ".join(best["overrides"])
    # In bf16, a sample takes a block at least 0.07 ms.
    file.write_text(dataclasses.replace(_scaled(0.05), shape=shape_of(job)).text())
    shown = _tune(file, *keys)
    assert shown.exit_code == 0
    assert "MFU refers to the peak in bf16; the peak in fp8 is twice that." in shown.output
    file.write_text(_scaled(0.05).text())
    assert "its peak of 989.4 TFLOP/s" in str(_tune(file, "engine=native").exception)
    file.write_text(dataclasses.replace(_scaled(0.03), shape=shape_of(job)).text())
    assert "its peak of 1978.8 TFLOP/s" in str(_tune(file, *keys).exception)


def test_a_budget_is_measured_and_holds_for_the_layouts_without_checkpointing(tmp_path: Path) -> None:
    key = "parallel.activation_memory_budget"
    sentence = f"{key} is 0.5, and only a profile knows what that costs; search .* measure it: .* {key}=0.5"
    with pytest.raises(TrainerError, match=sentence):
        CliRunner().invoke(
            cli,
            ["tune", str(CONFIG), "--nodes", "1xH100:4", f"{key}=0.5"],
            catch_exceptions=False,
            standalone_mode=False,
        )
    file = tmp_path / "h100.json"
    before = PROFILE.plain()
    del before["shape"]["activation_memory_budget"]
    file.write_text(json.dumps(before))
    assert _tune(file, "--json").exit_code == 0
    assert "activation_memory_budget 1.0, and the job has 0.5" in str(_tune(file, f"{key}=0.5").exception)
    shape = shape_of(configuration.load(CONFIG, [f"{key}=0.5"]))
    file.write_text(dataclasses.replace(PROFILE, shape=shape).text())
    for saved, budget in (("none", 0.5), ("full", 1.0)):
        result = _tune(file, f"{key}=0.5", f"parallel.activation_checkpointing={saved}", "--json")
        best = json.loads(result.output)["best"][0]
        written = configuration.load(CONFIG, [f"{key}=0.5", *best["overrides"]])
        assert written.parallel.activation_checkpointing == saved
        assert written.parallel.activation_memory_budget == budget
        assert not configuration.check(written)


@pytest.mark.parametrize(
    "command", [["profile"], ["tune", "--nodes", "1xH100:4"]], ids=lambda words: words[0]
)
@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("optimisation.compile=false", "0.5 needs optimisation.compile"),
        ("model.hidden_dropout=0.1", "is not combined with model.hidden_dropout 0.1"),
    ],
)
def test_a_budget_that_no_layout_can_keep_is_refused_before_anything_is_measured(
    command: list[str], override: str, problem: str
) -> None:
    verb, *options = command
    keys = ["parallel.activation_memory_budget=0.5", override]
    result = CliRunner().invoke(cli, [verb, str(CONFIG), *options, *keys])
    assert isinstance(result.exception, TrainerError)
    assert problem in str(result.exception)


@pytest.mark.parametrize("name", ["bert-large", "t5-11b"])
def test_measuring_needs_no_tokenizer(name: str) -> None:
    require_modelled(configuration.load(CONFIG.with_name(f"{name}.yaml"), ["data.tokenizer=null"]))


def _scaled(factor: float) -> Profile:
    """Return the profile with the native engine, and with other times of layers."""
    layers = {
        tensor: {
            kind: {
                size: LayerTimes(*(factor * seconds for seconds in dataclasses.astuple(one)))
                for size, one in points.items()
            }
            for kind, points in kinds.items()
        }
        for tensor, kinds in PROFILE.layers.items()
    }
    shape = shape_of(configuration.load(CONFIG, ["engine=native"]))
    return dataclasses.replace(PROFILE, layers=layers, shape=shape, versions={"torch": VERSIONS["torch"]})


def test_tune_names_a_time_hidden_by_noise(tmp_path: Path) -> None:
    file = tmp_path / "cpu.json"
    block = {**PROFILE.layers[1]["Block"], 4: LayerTimes(1e-9, 4e-3, 6e-3)}
    times = {**PROFILE.layers, 1: {**PROFILE.layers[1], "Block": block}}
    file.write_text(dataclasses.replace(PROFILE, gpu="cpu", layers=times).text())
    nodes = ("--nodes", "1xcpu:2", "--profile", str(file), "--json", "--top", "1")
    result = CliRunner().invoke(cli, ["tune", str(CONFIG), *nodes])
    (doubt,) = (one for one in json.loads(result.output)["doubts"] if "noise" in one)
    assert doubt.startswith(f"{file} has no time of Block at tensor degree 1 and micro-batch 4, which noise")
    assert doubt.endswith(f"rdm-trainer profile {CONFIG}")


def test_an_unknown_gpu_is_answered_with_those_of_the_profiles_too(tmp_path: Path) -> None:
    file = tmp_path / "cpu.json"
    file.write_text(dataclasses.replace(PROFILE, gpu="cpu").text())
    result = _tune(file, "--nodes", "1xCPU:4")
    assert "The GPU 'CPU' is not known; known are cpu, GB200," in str(result.exception)


def test_tune_without_a_profile_says_that_it_guesses() -> None:
    shown = CliRunner().invoke(cli, ["tune", str(CONFIG), "--nodes", "1xH100:4"]).output
    assert "A GUESS" in shown
    assert f"rdm-trainer profile {CONFIG}" in shown


def test_profile_of_another_job_is_refused_with_the_command_to_run(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(dataclasses.replace(PROFILE, shape={**PROFILE.shape, "hidden_size": 1024}).text())
    assert "hidden_size 1024, and the job has 1600" in _error(file)
    assert f"rdm-trainer profile {CONFIG}" in _error(file)
    file.write_text(dataclasses.replace(PROFILE, shape={**PROFILE.shape, "engine": "native"}).text())
    assert "engine 'native', and the job has 'deepspeed'" in _error(file)
    file.write_text(dataclasses.replace(PROFILE, versions={"torch": "1.0"}).text())
    assert "torch 1.0, and here is" in _error(file)
    native = {**PROFILE.shape, "engine": "native"}
    file.write_text(dataclasses.replace(PROFILE, shape=native, versions={"torch": VERSIONS["torch"]}).text())
    assert _tune(file, "engine=native").exit_code == 0, "DeepSpeed's version says nothing of it"
    file.write_text(dataclasses.replace(PROFILE, gpu="A10").text())
    assert "No profile is of the GPU H100" in _error(file)
    assert f"rdm-trainer profile {CONFIG}" in _error(file)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 99},
        {"optimiser": -1},
        {"memory_gib": 0},
        {"layers": {}},
        {"layers": {"1": {"Block": {"1": {"forward": "x"}}}}},
        {"layers": {"1": {"Block": {}}}},
        {"links": {"within": {"all_reduce": {"latency": 0, "bandwidth": 0}}}},
    ],
)
def test_a_broken_profile_is_one_sentence_with_its_name(tmp_path: Path, change: dict[str, Any]) -> None:
    file = tmp_path / "broken.json"
    file.write_text(json.dumps(json.loads(PROFILE.text()) | change))
    assert _error(file).startswith(f"{file} is no profile")


@pytest.mark.parametrize("content", ["", "[]", "{", "{}", "\xff"])
def test_invalid_profile_is_named(tmp_path: Path, content: str) -> None:
    file = tmp_path / "broken.json"
    file.write_bytes(content.encode("latin-1"))
    assert _error(file).startswith(f"{file} is no profile")
    missing = tmp_path / "missing.json"
    assert _error(missing) == f"The profile {missing} cannot be read: No such file or directory."

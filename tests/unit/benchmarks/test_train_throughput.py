# SPDX-License-Identifier: GPL-3.0-or-later
"""The benchmark of training measures other trainers where installed, and says why it leaves one out."""

from __future__ import annotations

import importlib.metadata
import math
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import train_throughput
from benchmarks.training_legs import QUICK, SHAPES, Layout, Leg


def wanted(
    monkeypatch: pytest.MonkeyPatch, *options: str, devices: int = 1, accelerated: bool = True
) -> list[Leg]:
    """Return the legs that the options ask for."""
    monkeypatch.setattr("sys.argv", ["train_throughput.py", *options])
    return list(train_throughput.legs(train_throughput.arguments(), devices, accelerated))


def installed(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let only these distributions be installed."""

    def version(name: str) -> str:
        if name not in names:
            raise importlib.metadata.PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(importlib.metadata, "version", version)


def test_a_rival_that_is_not_installed_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(monkeypatch)
    without = wanted(monkeypatch, "--quick")
    assert capsys.readouterr().out == ""
    assert wanted(monkeypatch, "--quick", "--rivals", "megatron-core,torchtitan") == without
    assert capsys.readouterr().out.splitlines() == [
        "Left out: megatron-core is not installed here; `pip install megatron-core==0.19.2` installs it.",
        "Left out: torchtitan is not installed here; `pip install torchtitan==0.2.2` installs it.",
    ]


def test_rivals_follow_the_engines_on_one_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(monkeypatch, "megatron-core", "torchtitan")
    options = ("--quick", "--engine", "native", "--rivals", "megatron-core,torchtitan")
    legs = wanted(monkeypatch, *options)
    assert [(leg.shape_name, leg.rival) for leg in legs] == [
        ("tiny", None),
        ("tiny", "megatron-core"),
        ("tiny Llama", None),
        ("tiny Llama", "megatron-core"),
        ("tiny Llama", "torchtitan"),
    ]
    assert all(leg.plain for leg in legs)
    assert capsys.readouterr().out.startswith("tiny, one: left out, torchtitan has no GPT")
    assert wanted(monkeypatch, *options, "--layouts", "DP 2") == []
    assert {leg.rival for leg in wanted(monkeypatch, *options, accelerated=False)} == {None, "torchtitan"}


def test_megatron_core_follows_in_the_layouts_that_it_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(monkeypatch, "megatron-core", "torchtitan")
    options = (
        "--quick",
        "--shapes",
        "tiny Llama",
        "--engine",
        "native",
        "--rivals",
        "megatron-core,torchtitan",
    )
    legs = wanted(monkeypatch, *options, "--layouts", "TP 2 PP 2 DP 2,CP 2,TP 8", devices=8)
    assert [(leg.layout.name, leg.rival) for leg in legs] == [
        ("TP 2 PP 2 DP 2", None),
        ("TP 2 PP 2 DP 2", "megatron-core"),
        ("CP 2", None),
    ]
    assert [line.partition(": left out, ")[::2] for line in capsys.readouterr().out.splitlines()] == [
        ("tiny Llama, TP 2 PP 2 DP 2", "torchtitan is measured on one device only."),
        ("tiny Llama, CP 2", "megatron-core's context parallelism needs Transformer Engine."),
        ("tiny Llama, CP 2", "torchtitan is measured on one device only."),
        ("tiny Llama, TP 8", "8 cannot divide 4 heads"),
    ]


@pytest.mark.parametrize(
    ("name", "degrees", "micro_batches"),
    [
        ("one", (1, 1, 1, 1), (8, 8)),
        ("DP 8", (1, 1, 8, 1), (8, 8)),
        ("TP 4", (4, 1, 1, 1), (32, 8)),
        ("PP 2", (1, 2, 1, 1), (4, 32)),
        ("PP 4", (1, 4, 1, 1), (8, 32)),
        ("TP 2 PP 2 DP 2", (2, 2, 2, 1), (8, 32)),
        ("TP 2 CP 2", (2, 1, 1, 2), (16, 8)),
    ],
)
def test_a_layout_is_read_from_its_name(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    degrees: tuple[int, int, int, int],
    micro_batches: tuple[int, int],
) -> None:
    layout = Layout.parse(name)
    assert (layout.name, layout.tensor, layout.pipeline, layout.data, layout.context) == (name, *degrees)
    engine = "native" if layout.context > 1 else "deepspeed"
    options = ("--shapes", "GPT-1.3B", "--layouts", name, "--engine", engine)
    (leg,) = wanted(monkeypatch, *options, devices=8)
    assert (leg.micro_batch, leg.micro_batches) == micro_batches
    # A step has as many tokens for each device as on one, except those that share its sequences.
    assert leg.global_batch * layout.context == 64 * layout.world


@pytest.mark.parametrize(
    ("options", "chunks", "micro_batch"),
    [
        (("--engine", "native"), 2, 8),
        (("--engine", "native", "--set", "parallel.virtual_pipeline=4"), 4, 8),
        (("--engine", "native", "--set", "parallel.eager_forwards=1"), 1, 8),
        (("--engine", "native", "--blocks", "3"), 1, 8),
        (("--engine", "deepspeed"), 1, 4),
        (("--engine", "deepspeed", "--micro-batch", "1"), 1, 1),
        (("--engine", "deepspeed", "--micro-batch", "3"), 1, 3),
    ],
)
def test_two_stages_interleave_or_halve_even_micro_batches(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], chunks: int, micro_batch: int
) -> None:
    (leg,) = wanted(monkeypatch, "--shapes", "GPT-1.3B", "--layouts", "PP 2", *options, devices=2)
    assert (leg.virtual_pipeline, leg.micro_batch) == (chunks, micro_batch)
    assert leg.global_batch == 16 * leg.shape.micro_batch


def test_an_engine_without_context_parallelism_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--shapes", "GPT-1.3B", "--layouts", "CP 2", "--engine", "deepspeed,native")
    assert [leg.engine for leg in wanted(monkeypatch, *options, devices=2)] == ["native"]
    expected = "GPT-1.3B, CP 2: left out, context parallelism needs --engine native.\n"
    assert capsys.readouterr().out == expected


def test_a_rival_trains_no_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "megatron-core")
    options = ("--shapes", "GPT-1.3B", "--layouts", "PP 2", "--engine", "native", "--rivals", "megatron-core")
    legs = wanted(monkeypatch, *options, devices=2)
    assert [(leg.rival, leg.micro_batch, leg.micro_batches) for leg in legs] == [
        (None, 8, 16),
        ("megatron-core", 4, 32),
    ]


@pytest.mark.parametrize("name", ["", "TP", "TP 0", "TP2", "TP 2 TP 2", "TP 2  PP 2", "EP 2", "one TP 2"])
def test_invalid_layout_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        wanted(monkeypatch, "--layouts", f"one,{name}")
    assert f"--layouts: {name!r} is no layout such as" in capsys.readouterr().err


def test_a_shape_can_have_more_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    (leg,) = wanted(
        monkeypatch, "--shapes", "Llama-3 8B x 6", "--layouts", "one", "--blocks", "16", "--no-plain"
    )
    assert (leg.shape_name, leg.shape.layers, leg.shape.hidden) == ("Llama-3 8B x 16", 16, 4096)
    assert leg.configuration()["parallel"]["partition"] == "even"


@pytest.mark.parametrize("engine", ["deepspeed", "native"])
@pytest.mark.parametrize("name", SHAPES)
def test_each_shape_has_a_cut_for_two_stages(monkeypatch: pytest.MonkeyPatch, name: str, engine: str) -> None:
    (leg,) = wanted(monkeypatch, "--shapes", name, "--layouts", "PP 2", "--engine", engine, devices=2)
    assert leg.configuration()["parallel"]["partition"] != "even"


@pytest.mark.parametrize(
    ("options", "cut"),
    [((), "4-2"), (("--blocks", "32"), "17-15"), (("--blocks", "16"), "even")],
)
def test_a_pipeline_is_cut_as_its_number_of_blocks_needs(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], cut: str
) -> None:
    (leg,) = wanted(monkeypatch, "--shapes", "Llama-3 8B x 6", "--layouts", "PP 2", *options, devices=2)
    assert leg.configuration()["parallel"]["partition"] == cut


@pytest.mark.parametrize(
    ("key", "ours", "plain"),
    [
        ("global_batch_size=128", (8, 16), (8, 8)),
        ("micro_batch_size=4", (4, 16), (4, 8)),
        ("seed=1", (8, 8), (8, 8)),
    ],
)
def test_each_way_has_its_own_samples_in_a_step(
    monkeypatch: pytest.MonkeyPatch, key: str, ours: tuple[int, int], plain: tuple[int, int]
) -> None:
    options = ("--shapes", "GPT-1.3B", "--layouts", "one", "--set", f"optimisation.{key}")
    (leg,) = wanted(monkeypatch, *options)
    assert [leg.batch(way) for way in ("ours", "plain", "megatron-core")] == [ours, plain, plain]
    assert [leg.samples(way) for way in ("ours", "plain")] == [math.prod(ours), math.prod(plain)]


def test_a_longer_pipeline_interleaves_where_it_has_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--engine", "native", "--layouts", "PP 4")
    (leg,) = wanted(monkeypatch, *options, "--shapes", "GPT-1.3B", devices=4)
    assert (leg.virtual_pipeline, *leg.batch("ours")) == (2, 8, 32)
    (leg,) = wanted(monkeypatch, *options, "--shapes", "Llama-3 8B x 6", devices=4)
    assert (leg.virtual_pipeline, *leg.batch("ours")) == (1, 2, 32)


PREPARES = """
import json, os, pathlib, sys, time
directory = pathlib.Path(sys.argv[sys.argv.index("--directory") + 1])
leg = json.loads(sys.argv[sys.argv.index("--leg") + 1])
if leg["shape_name"] == "fails":
    sys.exit("no memory")
if leg["shape_name"] == "last":
    time.sleep(0.5)  # it compiles for longer
(directory / (os.environ["RANK"] + ".ready")).touch()
while not (directory / "turn").exists():
    time.sleep(0.01)
others = [path.parent for path in directory.parent.glob("*/1.ready") if path.parent != directory]
(directory / "result.json").write_text(
    json.dumps(
        {
            "ready": len(list(directory.parent.glob("*/*.ready"))),
            "measuring": sum(
                (other / "turn").exists() and not (other / "result.json").exists() for other in others
            ),
        }
    )
)
"""


def test_legs_prepare_together_and_measure_in_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (leg,) = wanted(monkeypatch, "--quick", "--shapes", "tiny", "--layouts", "DP 2", devices=2)
    program = tmp_path / "prepares.py"
    program.write_text(PREPARES)
    monkeypatch.setattr(train_throughput, "__file__", str(program))
    legs = [replace(leg, shape_name=name) for name in ("first", "fails", "last")]
    directory = tmp_path / "legs"
    directory.mkdir()
    reports = {one.leg.shape_name: one.report() for one in train_throughput.run_legs(legs, directory)}
    assert reports == {
        "first": {"ready": 4, "measuring": 0},
        "fails": {"error": "no memory\n"},
        "last": {"ready": 4, "measuring": 0},
    }
    directory = tmp_path / "alone"
    directory.mkdir()
    (alone,) = train_throughput.run_legs(legs[:1], directory)
    assert alone.report() == {"ready": 2, "measuring": 0}


def test_any_section_of_a_configuration_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--quick", "--shapes", "tiny", "--layouts", "one", "--set", "checkpoint.interval=0")
    (leg,) = wanted(monkeypatch, *options, devices=1)
    assert leg.configuration()["checkpoint"] == {"interval": 0}


MEASURES = """
import json, os, pathlib, sys, time
directory = pathlib.Path(sys.argv[sys.argv.index("--directory") + 1])
(directory / (os.environ["RANK"] + ".ready")).touch()
while not (directory / "turn").exists():
    time.sleep(0.01)
time.sleep(0.5)
(directory / "result.json").write_text(json.dumps({"pid": os.getpid()}))
"""


def test_waiting_time_does_not_count_for_the_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (leg,) = wanted(monkeypatch, "--quick", "--shapes", "tiny", "--layouts", "one", devices=1)
    program = tmp_path / "measures.py"
    program.write_text(MEASURES)
    monkeypatch.setattr(train_throughput, "__file__", str(program))

    def now() -> float:
        """Most of the limit passes with each turn, however long it takes."""
        return 0.6 * train_throughput.LEG_TIMEOUT_S * len(list(tmp_path.glob("*/turn")))

    clock = SimpleNamespace(monotonic=now, sleep=time.sleep)
    monkeypatch.setattr(train_throughput, "time", clock)
    reports = [one.report() for one in train_throughput.run_legs([leg, leg], tmp_path)]
    assert [report.keys() for report in reports] == [{"pid"}, {"pid"}]


def test_legs_end_with_the_benchmark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (leg,) = wanted(monkeypatch, "--quick", "--shapes", "tiny", "--layouts", "one", devices=1)
    program = tmp_path / "measures.py"
    program.write_text(
        MEASURES.replace("while not", "(directory / 'pid').write_text(str(os.getpid()))\nwhile not")
    )
    monkeypatch.setattr(train_throughput, "__file__", str(program))
    legs = train_throughput.run_legs([leg, leg], tmp_path)
    next(legs)
    legs.close()
    written = list(tmp_path.glob("*/pid"))
    assert len(written) == 2
    for file in written:
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)


def test_a_rank_does_not_wait_for_a_benchmark_that_was_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RANK", "0")
    turn = train_throughput.Turn(tmp_path, parent=os.getppid() + 1)
    with pytest.raises(SystemExit, match="has ended"):
        turn.wait()


def test_a_layout_that_measures_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "torchtitan")
    options = ("--quick", "--layouts", "one,TP 2", "--shapes", "tiny Llama", "--no-ours")
    assert [leg.plain for leg in wanted(monkeypatch, *options)] == [True]
    assert wanted(monkeypatch, *options, "--no-plain") == []
    (leg,) = wanted(monkeypatch, *options, "--no-plain", "--rivals", "torchtitan")
    assert leg.rival == "torchtitan"


def test_options_that_leave_nothing_to_measure_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = {"device": "x86_64", "devices": 2, "accelerated": False}
    monkeypatch.setattr(train_throughput, "machine_in_a_process", lambda: facts)
    options = ["--layouts", "TP 2", "--shapes", "GPT-345M", "--no-ours"]
    monkeypatch.setattr(sys, "argv", ["train_throughput.py", *options])
    assert train_throughput.main() == 2
    assert "Nothing was measured" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        (
            "--rivals",
            "megatron",
            "--rivals megatron is unknown; megatron-core and torchtitan can be measured",
        ),
        ("--shapes", "GPT-345M,GPT-1", "--shapes GPT-1 is unknown; there are GPT-345M, GPT-2 XL 1.5B, "),
        ("--engine", "native,nativ", "--engine nativ is unknown; there are deepspeed and native"),
        ("--set", "parallel.reduce_dtype", "--set: parallel.reduce_dtype is not SECTION.KEY=JSON, such as "),
        ("--set", "reduce_dtype=1", "--set: reduce_dtype=1 is not SECTION.KEY=JSON, such as "),
        (
            "--set",
            "parallel.reduce_dtype=bf16",
            "--set: bf16 in parallel.reduce_dtype=bf16 is not JSON; text ",
        ),
        ("--set", "parallel.tensr=2", "--set: parallel.tensr is not a key; did you mean parallel.tensor?"),
        ("--set", "paralel.tensor=2", "--set: paralel is not a key; did you mean parallel?"),
        ("--json", "/no/such/results.json", "--json: the directory /no/such does not exist"),
        ("--together", "0", "argument --together: 0 is not 1 or more"),
        ("--rounds", "many", "argument --rounds: invalid int value: 'many'"),
    ],
)
def test_a_wrong_value_is_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str, value: str, reason: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        wanted(monkeypatch, option, value)
    assert f"error: {reason}" in capsys.readouterr().err


def test_table_has_a_rival_next_to_its_plain_loop() -> None:
    shape = QUICK["tiny"]
    leg = {
        "shape": vars(shape),
        "shape_name": "tiny",
        "layout": {"name": "one"},
        "engine": "native",
    }
    report = {
        "about": "megatron-core 0.19.2: its parts",
        "tokens_per_second": {"megatron-core": [900.0, 900.0], "plain": [1000.0, 1000.0]},
        "megatron-core_peak_gib": 3.0,
        "plain_peak_gib": 2.0,
    }
    batches = {"megatron-core": "4 x 8", "plain": "4 x 8"}
    result = {"leg": leg, "micro_batches": batches, "flops_per_token": 1e9, "report": report}
    lines = train_throughput.tables([result, result], 1.0).splitlines()
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert cells == ["tiny", "megatron-core", "4 x 8", "900", "0.0 %", "90.0", "0.900", "3"]
    assert lines[-1] == report["about"] != lines[-3]


def test_the_table_of_layouts_compares_a_rival_with_one_device() -> None:
    base = {"shape": vars(QUICK["tiny"]), "shape_name": "tiny", "engine": "native"}
    results = [
        {
            "leg": {**base, "layout": {"name": layout}},
            "micro_batches": dict.fromkeys(rates, "8 x 8"),
            "flops_per_token": 1e9,
            "report": {"tokens_per_second": rates, "ours_peak_gib": 1.0, "plain_peak_gib": 1.0},
        }
        for layout, rates in (
            ("one", {"ours": [800.0], "plain": [1000.0]}),
            ("TP 2", {"ours": [720.0]}),
            ("TP 2", {"megatron-core": [600.0]}),
        )
    ]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in train_throughput.tables(results, 1.0).splitlines()[-2:]
    ]
    assert rows == [
        ["tiny", "TP 2, native", "8 x 8", "720", "0.0 %", "72.0", "0.900", "0.720"],
        ["tiny", "TP 2, megatron-core", "8 x 8", "600", "0.0 %", "60.0", "0.750", "0.600"],
    ]


def test_the_table_has_each_way_with_its_own_micro_batches() -> None:
    leg = {
        "shape": vars(QUICK["tiny"]),
        "shape_name": "tiny",
        "layout": {"name": "one"},
        "engine": "native",
    }
    batches = {"ours": "2 x 16", "plain": "2 x 8"}
    for ways in (["plain"], ["ours", "plain"]):
        report: dict[str, Any] = {"tokens_per_second": {way: [1000.0] for way in ways}}
        report |= {f"{way}_peak_gib": 1.0 for way in ways}
        result = {"leg": leg, "micro_batches": batches, "flops_per_token": 1e9, "report": report}
        rows = [line.split("|") for line in train_throughput.tables([result], 0.0).splitlines()[2:]]
        names = {"ours": "native", "plain": "plain"}
        assert [(row[2].strip(), row[3].strip()) for row in rows] == [
            (names[way], batches[way]) for way in ways
        ]

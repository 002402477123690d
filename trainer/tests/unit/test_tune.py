# SPDX-License-Identifier: GPL-3.0-or-later
"""The command ``tune``."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rdm_core import config as configuration
from rdm_core.errors import TrainerError
from rdm_planner.search import Found, search
from rdm_planner.trainer_model import TrainerModel
from rdm_planner.tune.options import TuneOptions
from rdm_trainer.cli import cli

CONFIGS = Path(__file__).parents[2] / "configs"


def _run(job: str | Path, *words: str) -> Result:
    """Run it for a shipped configuration by its name, for a file, or for a model of FASOP's."""
    shipped = CONFIGS / f"{job}.yaml"
    given = str(shipped if shipped.exists() else job), *" ".join(words).split()
    return CliRunner().invoke(cli, ["tune", *given], standalone_mode=False)


def _tune(job: str | Path, *words: str) -> tuple[int, str]:
    result = _run(job, *words)
    if isinstance(result.exception, TrainerError):
        return result.exception.exit_code, str(result.exception)
    assert result.exception is None, result.exception
    return result.return_value, result.output


def _shown(job: str | Path, *words: str) -> str:
    code, output = _tune(job, *words)
    assert code == 0, output
    return output


def _answer(job: str | Path, *words: str) -> Any:
    result = _run(job, *words, "--json")
    assert result.return_value == 0, result.output
    return json.loads(result.stdout)


def _copied(tmp_path: Path, name: str, **changes: str) -> Path:
    """Return a copy of a shipped configuration, with other values of keys, or with lines after them."""
    path = tmp_path / "job.yaml"
    text = (CONFIGS / f"{name}.yaml").read_text("utf-8")
    for key, value in changes.items():
        text, count = re.subn(rf"\b({key}:).*", rf"\1 {value}", text)
        assert count == 1
    path.write_text(text, "utf-8")
    return path


def test_the_context_degree_is_shown_written_and_held(tmp_path: Path) -> None:
    path, nodes = _copied(tmp_path, "llama3-8b"), "--nodes 2xH100:8"
    long = "engine=native model.seq_length=32768 optimisation.global_batch_size=8"
    output = _shown(path, nodes, long, "parallel.context=8 --write")
    assert re.search(r" tp +dp +pp +v +cp +micro ", output)
    assert "context exchange" in output
    tuned = configuration.load(path)
    assert tuned.parallel.context == 8
    assert not configuration.check(tuned, 16)
    # Everything that the command line does not fix is searched: the file's degree does not matter.
    searched = _answer(path, nodes)["best"]
    held = _answer(path, nodes, "parallel.context=8")["best"]
    assert {row["context"] for row in held} == {8}
    assert searched[0]["seconds"] <= held[0]["seconds"]
    _shown(path, nodes, "parallel.context=1 --write")
    assert configuration.load(path).parallel.context == 1


def test_the_expert_degree_is_shown_written_and_held(tmp_path: Path) -> None:
    path, nodes = _copied(tmp_path, "qwen3-30b-a3b"), "--nodes 4xA100-40:4"
    output = _shown(path, nodes, "engine=native --write")
    row = re.search(r"^ 1 .*$", output, re.MULTILINE)
    assert row is not None
    assert re.search(r" tp +dp +pp +v +ep +micro ", output)
    tuned = configuration.load(path).parallel
    degrees = (tuned.tensor, tuned.data, tuned.pipeline, tuned.virtual_pipeline, tuned.expert)
    assert row[0].split()[4:9] == [str(degree) for degree in degrees]
    assert {best["expert"] for best in _answer(path, nodes, "parallel.expert=4")["best"]} == {4}
    assert " ep " not in _shown("gpt2-xl", "--nodes 1xA100-40:4")


def test_the_chunks_of_a_stage_are_shown_written_and_held(tmp_path: Path) -> None:
    path = _copied(tmp_path, "gpt2-xl")
    nodes = "--nodes 4xA10:2 engine=native optimisation.global_batch_size=16"
    output = _shown(path, nodes, "parallel.virtual_pipeline=3 --write")
    assert re.search(r" tp +dp +pp +v +micro ", output)
    tuned = configuration.load(path)
    assert (tuned.engine, tuned.parallel.virtual_pipeline) == ("native", 3)
    assert not configuration.check(tuned, 8)
    stages = tuned.parallel.pipeline
    assert len(tuned.parallel.partition.split("-")) == 3 * stages > 3
    assert "blocks of each chunk" in output
    # Everything that the command line does not fix is searched: the file's degree does not matter.
    searched = _answer(path, nodes)["best"]
    held = _answer(path, nodes, "parallel.virtual_pipeline=3")["best"]
    assert {row["virtual_pipeline"] for row in held} == {3}
    assert searched[0]["seconds"] <= held[0]["seconds"]


def test_chunks_of_a_file_are_taken_back_where_the_engine_has_none(tmp_path: Path) -> None:
    path = _copied(tmp_path, "gpt2-xl", parallel="\n  virtual_pipeline: 2")
    assert configuration.load(path).parallel.virtual_pipeline == 2
    _shown(path, "--nodes 4xA10:2 optimisation.global_batch_size=16 --write")
    assert not configuration.check(configuration.load(path), 8)


def test_eager_forwards_are_shown_written_and_held(tmp_path: Path) -> None:
    path = _copied(tmp_path, "gpt2-xl")
    fabric = "--nodes 8xA10:4 --inter 40 --intra 128"
    nodes = f"{fabric} engine=native"
    output = _shown(path, nodes, "--write")
    assert re.search(r" ckpt +eager +GiB", output)
    tuned = configuration.load(path)
    assert tuned.parallel.eager_forwards == 1
    assert not configuration.check(tuned, 32)
    searched = _answer(path, nodes)["best"]
    # No row has more of them than gain something.
    assert {row["eager_forwards"] for row in searched} == {0, 1, 2}
    held = _answer(path, nodes, "parallel.eager_forwards=3")["best"]
    assert {(row["eager_forwards"], row["virtual_pipeline"]) for row in held} == {(3, 1)}
    none = _answer(path, nodes, "parallel.eager_forwards=0")["best"]
    assert none[0]["seconds"] > 1.05 * searched[0]["seconds"]
    # DeepSpeed has none: those of the file are taken back.
    assert " eager " not in _shown(path, fabric, "engine=deepspeed --write")
    assert configuration.load(path).parallel.eager_forwards == 0


def test_a_table_with_a_price_and_eager_forwards_fits_a_terminal_of_80_columns() -> None:
    command = "gpt-1.3b", "--nodes 2xH200:8 --price H200=3 engine=native"
    output = _shown(*command)
    heading = "step s tokens/s MFU tp dp pp v micro zero ckpt eager GiB price"
    (line,) = (line for line in output.splitlines() if line.split() == heading.split())
    assert len(line.rstrip()) <= 80
    assert "…" not in output
    best = _answer(*command)["best"][0]
    assert re.search(rf" {best['memory_gib']:.1f} +{1000 * best['price']:,.2f} ", output)


def test_a_winner_with_fewer_eager_forwards_than_the_fastest_is_proved_as_that_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = "--nodes 4xH100:2 --inter 40 --intra 128"
    command = "gpt-345m", nodes, "engine=native optimisation.global_batch_size=256"
    found = _answer(*command)
    assert found["best"][0]["eager_forwards"] == 1
    assert 0.999 < found["bound"] / found["best"][0]["seconds"] < 1 - 1e-4
    assert found["doubts"] == []

    def cut_short(models: Sequence[TrainerModel], **options: Any) -> Found:
        whole = search(models, **options)
        return dataclasses.replace(whole, bound=whole.bound * (1 - 1e-4))

    monkeypatch.setattr("rdm_planner.tune.answer.search", cut_short)
    (doubt,) = _answer(*command)["doubts"]
    assert doubt.startswith("Not proved: the search for cuts was cut short")


def test_the_blocks_that_compute_again_are_kept_where_they_have_a_meaning(tmp_path: Path) -> None:
    some = "full\n  activation_checkpointing_blocks: 1"
    path = _copied(tmp_path, "slurm-debug", activation_checkpointing=some)
    for held, blocks in (("full", 1), ("none", None)):
        _shown(path, f"--nodes 2xA10:2 parallel.activation_checkpointing={held} --write")
        parallel = configuration.load(path).parallel
        assert (parallel.activation_checkpointing, parallel.activation_checkpointing_blocks) == (held, blocks)


@pytest.mark.parametrize("name", ["llama3-8b", "qwen3-30b-a3b"])
def test_a_layout_without_tensor_ranks_is_given_without_sequence_parallelism(name: str) -> None:
    keys = "engine=native parallel.sequence_parallel=true"
    best = _answer(name, "--nodes 1xH100:8", keys, "--top 6")["best"]
    assert len({row["tensor"] for row in best}) > 1
    for row in best:
        assert ("parallel.sequence_parallel=false" in row["overrides"]) == (row["tensor"] == 1)


def test_json_has_the_command_to_start_the_job() -> None:
    found = _answer("gpt2-xl", "--nodes 2xA10:4 --top 3")
    assert found["measured"] is False
    assert len(found["best"]) == 3
    times = [row["seconds"] for row in found["best"]]
    assert times == sorted(times)
    job = configuration.load(CONFIGS / "gpt2-xl.yaml", found["best"][0]["overrides"])
    assert not configuration.check(job, 8)


def test_json_has_the_reasons_against_other_layouts() -> None:
    nodes = "--nodes 2xA10:4 --nodes 1xH100:4"
    found = _answer("gpt2-xl", nodes, "--top 3 --pareto --price A10=1 --price H100=4")
    second = found["best"][1]
    parts = {name: seconds - found["best"][0]["parts"][name] for name, seconds in second["parts"].items()}
    assert second["slower"]["most"] == max(parts, key=lambda name: parts[name])
    assert sum(parts.values()) == pytest.approx(second["seconds"] - found["best"][0]["seconds"])
    assert any("more stages" in reason or "divide" in reason for reason in found["rejected"])
    assert found["orders"] == {"tried": 3, "all": 3}
    best = found["best"][0]["seconds"]
    assert found["bound"] <= best
    is_proved = found["bound"] == pytest.approx(best)
    assert is_proved is not any("Not proved" in doubt for doubt in found["doubts"])
    front = found["pareto"]
    is_slower = front[0]["seconds"] < best * (1 - 1e-6)
    assert is_slower is any("Leaving nodes out is faster" in doubt for doubt in found["doubts"])
    assert [point["seconds"] for point in front] == sorted(point["seconds"] for point in front)
    assert [point["price"] for point in front] == sorted((point["price"] for point in front), reverse=True)
    for point in front:
        hourly = sum(count * 4 * {"A10": 1, "H100": 4}[gpu] for gpu, count in point["counts"].items())
        assert point["price"] == pytest.approx(hourly * point["seconds"] / 3600)


def test_output_says_that_it_is_a_guess_and_what_to_run_next() -> None:
    arguments = "gpt2-xl", "--nodes 1xA100-40:4 --nodes 1xA10:4"
    output = _shown(*arguments)
    assert "nothing has been measured" in output
    assert "rdm-trainer dry-run" in output
    best = _answer(*arguments)["best"]
    lines = output.splitlines()
    for number, row in enumerate(best, 1):
        compute = row["parts"]["compute"] / row["seconds"]
        header = next(
            at for at, line in enumerate(lines) if line.startswith(f"{number}  compute {compute:.0%}")
        )
        shown = lines[header + 1 : header + 4] if row["pipeline"] > 1 else [lines[header + 1]]
        assert shown[-1] == f"   nodes: {', '.join(f'1 x {gpu}' for gpu in row['nodes'])}"
        if row["pipeline"] > 1:
            assert shown[0] == f"   blocks of each stage: {row['partition']}"
            assert shown[1].startswith(f"   GiB of each stage: {row['stage_memory_gib'][0]:.0f}-")


def test_the_next_command_has_the_keys_of_the_command_line_too() -> None:
    output = _shown("gpt2-xl", "--nodes 1xH100:2 engine=native --top 1")
    config = CONFIGS / "gpt2-xl.yaml"
    assert f"Next: rdm-trainer dry-run {config} engine=native parallel.tensor=" in output


LARGE = "gpt2-xl --nodes 2xA10:4"
NATIVE = "engine=native parallel"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("gpt2-xl --nodes 2xA11:4", "'A11' is not known"),
        ("gpt2-xl --nodes A10", "write how many"),
        ("gpt2-xl --nodes 0xA10:4", "write how many"),
        (f"{LARGE} --inter 0", "--inter is 0"),
        (f"{LARGE} --intra nan", "--intra is nan"),
        (f"{LARGE} parallel.tensor=4", "leave it out"),
        (f"{LARGE} --html /no/such/page.html", "the directory /no/such does not exist"),
        (f"{LARGE} --html /proc/page.html", "--html is /proc/page.html, which cannot be written"),
        (f"{LARGE} --html /dev/full", "/dev/full cannot be written: No space left"),
        (f"{LARGE} --nodes 1xA10:2", "as many GPUs"),
        ("gpt2-xl --nodes 7xA10:1 model.layers=3", "the nearest that one divides is 63"),
        (
            f"gpt2-xl --nodes 2xA10:2 {NATIVE}.virtual_pipeline=2 optimisation.global_batch_size=7",
            "the nearest that one divides is 8.",
        ),
        (f"{LARGE} parallel.virtual_pipeline=2", "needs the native engine, but engine is deepspeed"),
        (
            f"gpt2-xl --nodes 2xA10:3 {NATIVE}.context=3",
            "model.seq_length 1024 is not a multiple of 2 x parallel.context 3 = 6",
        ),
        (f"gpt2-xl --nodes 1xA10:4 {NATIVE}.context=3", "3 does not divide 4 GPUs"),
        (f"{LARGE} {NATIVE}.zero_stage=3", "zero_stage 3 needs DeepSpeed"),
        (f"{LARGE} engine=native optimisation.precision=fp16", "fp16 needs DeepSpeed"),
        (f"{LARGE} --pareto --price A11=2", "No node has the GPU 'A11' of --price; they have A10."),
        (f"{LARGE} parallel.activation_checkpointing_blocks=49", "at most the model's number of blocks, 48"),
        (f"{LARGE} --pareto --price A10=0", "write an amount above 0"),
        (f"{LARGE} --model fasop", "is no model of FASOP's; write one of T5, bert, gpt2XL"),
        ("bert --model fasop --nodes 1xA10:8", "FASOP has no nodes of 8 A10"),
        ("bert --model fasop --nodes 1xA10:4 --write", "--write is not for --model fasop"),
        ("bert --model fasop --nodes 1xA10:4 --inter 200", "--inter is not for --model fasop"),
        ("bert --model fasop --nodes 1xA10:4 --intra 200", "--intra is not for --model fasop"),
        ("bert --model fasop --nodes 1xA10:4 --efficiency 0.5", "--efficiency is not for --model fasop"),
        (
            "llama3-8b --nodes 1xH100:8 parallel.offload_optimizer=cpu",
            "search layouts with parallel.offload_optimizer=none",
        ),
        (
            "llama3-8b --nodes 1xH100:8 engine=native optimisation.cuda_graphs=true",
            "search layouts with optimisation.cuda_graphs=false",
        ),
        (
            f"t5-11b --nodes 1xH100:8 {NATIVE}.virtual_pipeline=2",
            "parallel.virtual_pipeline is 2, and no layout of a T5, whose blocks are of two kinds",
        ),
        # A key that no layout can have is the reason.
        (
            f"gpt-1.3b --nodes 1xH200:1 {NATIVE}.eager_forwards=1",
            "eager_forwards is 1, but parallel.pipeline is 1, in which no stage runs",
        ),
        (
            f"gpt-1.3b --nodes 1xH200:1 {NATIVE}.virtual_pipeline=2",
            "virtual_pipeline is 2, but parallel.pipeline is 1, in which no stage",
        ),
        (
            f"gpt-1.3b --nodes 1xH200:8 {NATIVE}.eager_forwards=1000",
            "1000, but a step has only 512 micro-batches; take 512 or fewer.",
        ),
        (
            f"gpt-1.3b --nodes 1xH200:8 {NATIVE}.eager_forwards=1 parallel.virtual_pipeline=2",
            "is not combined with parallel.virtual_pipeline 2",
        ),
    ],
)
def test_bad_input_is_one_sentence(words: str, problem: str) -> None:
    code, message = _tune(*words.split())
    assert code == 3
    assert problem in message


def test_a_page_may_replace_a_file_in_a_directory_that_takes_no_other() -> None:
    TuneOptions(Path("gpt.yaml"), html=Path("/proc/self/comm"))


@pytest.mark.parametrize(
    ("width", "problem"), [(4800, "any layout; 13 of them would do"), (64000, "take GPUs with more memory")]
)
def test_model_that_fits_no_layout_gets_a_suggestion(width: int, problem: str) -> None:
    code, message = _tune("gpt2-xl", f"--nodes 1xA10:1 model.hidden_size={width}")
    assert code == 1
    assert problem in message


def test_a_t5_needs_a_block_in_each_half_and_has_no_more_stages_than_blocks() -> None:
    t5 = "t5-11b", "--nodes 1xH100:4"
    for halves, key in ((0, 1), "layers"), ((1, 0), "decoder_layers"):
        given = "model.layers={} model.decoder_layers={}".format(*halves)
        assert _tune(*t5, given) == (3, f"model.{key} is 0; it must be at least 1 and at most 4096.")
    found = _answer(*t5, "model.layers=1 model.decoder_layers=1 --top 100")
    assert {row["pipeline"] for row in found["best"]} == {1, 2}
    assert found["rejected"]["There are more stages than the model's 2 blocks."] > 0


def test_a_case_of_fasops_paper() -> None:
    case = "bert", "--model fasop --nodes 1xA100:4 --nodes 3xA10:4 --top 1"
    found = _answer(*case)
    assert found["layouts"] == 356
    (heuristic,), (exact,) = found["heuristic"], found["exact"]
    assert heuristic["layers"] == [14, 5, 5, 2]
    assert heuristic["seconds"] == pytest.approx(0.819658, rel=1e-6)
    assert exact["seconds"] == pytest.approx(found["bound"])
    assert exact["seconds"] < heuristic["seconds"]
    assert "14-5-5-2 on" in _shown(*case)


def test_the_winner_goes_into_the_file_with_the_overrides(tmp_path: Path) -> None:
    path, given = _copied(tmp_path, "gpt2-xl"), "optimisation.global_batch_size=32"
    text = path.read_text("utf-8")
    winner = _answer(path, given, "--nodes 2xH100:4 --top 1 --write")["best"][0]["overrides"]
    assert configuration.load(path) == configuration.load(CONFIGS / "gpt2-xl.yaml", [given, *winner])
    assert path.read_text("utf-8").splitlines()[:3] == text.splitlines()[:3]


def test_file_of_nodes_equals_the_options(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "inter: 40\nintra: 600\nnodes:\n"
        "  - {gpu: A100-40, nodes: 1, gpus: 4, price: 2.5}\n  - {gpu: A10, nodes: 3, gpus: 4}\n"
    )
    cluster = f"--cluster {file} --price A10=0.6 --top 2"
    found = _answer("gpt2-xl", cluster)
    options = "--nodes 1xA100-40:4 --nodes 3xA10:4 --inter 40 --intra 600 --price A100-40=2.5 --price A10=0.6"
    assert found == _answer("gpt2-xl", options, "--top 2")
    best = found["best"][0]
    assert best["price"] == pytest.approx(best["seconds"] / 3600 * 4 * (2.5 + 3 * 0.6))
    file.write_text(file.read_text().replace("gpus: 4}", "gpus: 4, inter: 20}"))
    assert _answer("gpt2-xl", cluster)["best"][0]["seconds"] > best["seconds"]


def test_nodes_of_one_gpu_that_differ_are_kinds_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    alike = "{gpu: A10, nodes: 1, gpus: 1}"
    seconds = []
    for slow, fast in (("speed: 0.5", "inter: 400"), ("speed: 0.5", "inter: 1"), ("speed: 1", "inter: 400")):
        kinds = [alike.replace("}", f", {own}}}") for own in (fast, slow)]
        file.write_text(f"inter: 400\nnodes: [{', '.join(kinds)}]")
        held = "parallel.zero_stage=1 parallel.activation_checkpointing=full"
        best = _answer("gpt2-xl", held, f"--cluster {file}")["best"][0]
        seconds.append(best["seconds"])
        if slow == "speed: 0.5":
            assert best["nodes"][0] != best["nodes"][1]
    assert seconds[1] > seconds[0] > 1.2 * seconds[2]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[", "is not YAML"),
        ("nodes: []", "names no nodes; write nodes: [{gpu: H100, nodes: 2, gpus: 8}]"),
        ("nodes: [{gpu: H100, nodes: 2}]", "nodes[0] lacks gpus"),
        ("nodes: [{gpu: H100, nodes: 0, gpus: 8}]", "nodes[0].nodes is '0'; write a number from 1 to 4096"),
        (
            "nodes: [{gpu: H100, nodes: 1, gpus: 8, inter: 0}]",
            "nodes[0].inter is '0'; write a number above",
        ),
        ("nodes: [{gpu: H100, nodes: 1, gpus: 8, cost: 1}]", "nodes[0] has the key 'cost'; known are gpu, "),
        (
            "nodes: [{gpu: H100, nodes: 1, gpus: 8, speed: 90}]",
            "nodes[0].speed is '90'; write a share of its",
        ),
        ("intre: 1\nnodes: [{gpu: H100, nodes: 1, gpus: 8}]", "has the key 'intre'; besides nodes there are"),
    ],
)
def test_a_file_that_describes_no_nodes_is_one_sentence(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    code, output = _tune("gpt2-xl", f"--cluster {file}")
    assert (code, output.count("\n")) == (3, 0)
    assert problem in output


def test_page_is_self_contained(tmp_path: Path) -> None:
    html = tmp_path / "page.html"
    best = _answer("gpt2-xl", f"--nodes 1xH100:4 --nodes 2xA10:4 --html {html}")["best"]
    text = html.read_text("utf-8")
    assert "://" not in text
    for row in best:
        assert f">{row['partition']}</td>" in text
        assert f">{row['seconds']:.3f}</td>" in text
    drawn = len(re.findall(r'<rect class="(?:forward|backward)"', text))
    job = configuration.load(CONFIGS / "gpt2-xl.yaml")
    size = best[0]["data"] * best[0]["micro_batch"]
    assert drawn == 2 * best[0]["pipeline"] * min(24, job.optimisation.global_batch_size // size)
    assert "<polyline" in text


def test_the_page_goes_to_a_pipe_too() -> None:
    reading, writing = os.pipe()
    _answer("gpt2-xl", f"--nodes 1xH100:4 --html /dev/fd/{writing}")
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        assert pipe.read().startswith("<!DOCTYPE html>")


def test_file_that_cannot_be_changed_is_reported_and_stays(tmp_path: Path) -> None:
    path = _copied(tmp_path, "gpt2-xl", pipeline="&eight 8", nodes="*eight")
    text = path.read_text("utf-8")
    code, message = _tune(path, "--nodes 2xH100:4 --write")
    assert code == 3
    assert "set by hand: parallel.tensor=" in message
    assert path.read_text("utf-8") == text

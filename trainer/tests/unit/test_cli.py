# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from pathlib import Path

import pytest
import yaml

from rdm_core.config import from_dict, load
from rdm_core.cost import dry_run, flops
from rdm_trainer import cli
from rdm_trainer.cli.dry_run import _recomputed
from tests.unit.conftest import Program

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
XL = str(CONFIGS / "gpt2-xl.yaml")
FINETUNED = str(CONFIGS / "qwen3-8b-finetune.yaml")


def test_help_names_every_verb_without_loading_it(program: Program) -> None:
    code, out, _ = program("--help")
    assert code == 0
    assert all(f"  {verb} " in out for verb in cli.VERBS)


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_a_help(program: Program, verb: str) -> None:
    code, out, _ = program(verb, "--help")
    assert code == 0
    assert f"rdm-trainer {verb}" in out


def test_a_configuration_in_a_help_is_named_where_it_lies(program: Program) -> None:
    ours = {path.name for path in CONFIGS.glob("*.yaml")}
    texts = [program(*verb, "--help")[1] for verb in [(), *((verb,) for verb in cli.VERBS)]]
    named = re.findall(r"[\w./-]+\.yaml", " ".join(texts))
    found = [Path(word) for word in named if Path(word).name in ours]
    assert len(found) >= 5
    assert all((CONFIGS.parents[1] / path).is_file() for path in found), found


def test_an_unknown_verb_gets_the_nearest(program: Program) -> None:
    code, _, err = program("trian")
    assert code == 3
    assert "Did you mean train?" in err


def test_invalid_number_is_reported(program: Program) -> None:
    _, _, err = program("dry-run", XL, "--world", "2.5")
    assert err.startswith("Error: Invalid value for '--world': '2.5' is not an integer.")
    _, _, err = program("rendezvous", "--timeout", "long")
    assert err.startswith("Error: Invalid value for '--timeout': 'long' is not a number.")


def test_a_missing_choice_is_one_line(program: Program) -> None:
    code, _, err = program("rendezvous", "--", "hostname")
    assert code == 3
    assert err.startswith("Error: Missing option '--role'. Choose from: launcher, worker\nSee: ")


@pytest.mark.parametrize(
    ("role", "option", "message"),
    [
        (
            ("worker", "--master", "n1"),
            (),
            "--worker-spec is for a launcher, which starts the workers; leave it",
        ),
        (
            ("launcher", "--nodes", "2"),
            ("--insecure",),
            "--worker-spec gives the workers a secret; leave out",
        ),
    ],
)
def test_worker_spec_needs_a_launcher_with_a_secret(
    program: Program, role: tuple[str, ...], option: tuple[str, ...], message: str
) -> None:
    given = ("--id", "x", "--worker-spec", "docker", "--submit", "true", *option)
    code, _, err = program("rendezvous", "--role", *role, *given, "--", "true")
    assert code == 3
    assert err.startswith(f"Error: {message}")


def test_a_profile_that_cannot_be_written_is_not_measured(program: Program) -> None:
    code, _, err = program("profile", XL, "--output", "/proc/x.json")
    assert code == 3
    assert err.startswith("Error: --output is /proc/x.json, which cannot be written: ")


def test_profile_directory_is_needed_only_to_write_one(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What follows the check would measure.
    monkeypatch.setattr("rdm_trainer.profile_model.start", lambda _job: sys.exit(7))
    with monkeypatch.context() as within:
        within.chdir("/proc")
        assert program("profile", XL, "--links-only")[0] == 7
    given = ("profile", XL, "--output", "/proc/x.json")
    for name, value in {"WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    for rank, code in (("0", 3), ("1", 7)):
        monkeypatch.setenv("RANK", rank)
        assert program(*given)[0] == code


@pytest.mark.parametrize(("verb", "job"), [("train", XL), ("finetune", FINETUNED)])
def test_config_works_in_a_shell_of_srun(
    verb: str, job: str, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1"}
    # The program adds to its environment.
    monkeypatch.setattr(os, "environ", {**os.environ, **task})
    assert program(verb, job, "--print-config")[0] == 0
    code, _, err = program(verb, job)
    assert code == 3
    assert err.startswith("Error: This is rank 0 of 1, but MASTER_ADDR and MASTER_PORT are not set; set")


def test_a_launcher_s_wrong_variable_is_a_sentence(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "two")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    code, _, err = program("train", XL)
    assert code == 3
    assert err.startswith("Error: WORLD_SIZE is 'two' instead of a number; start")


def test_config_output_can_be_read_again(program: Program, tmp_path: Path) -> None:
    code, out, _ = program("config", XL, "model.layers=12", "parallel.partition=even", "--world", "64")
    assert code == 3
    code, out, _ = program("config", XL, "parallel.data=null", "launcher.nodes=16", "--world", "64")
    assert code == 0
    (tmp_path / "again.yaml").write_text(out, encoding="utf-8")
    again = load(tmp_path / "again.yaml")
    assert again.parallel.data == 8
    assert again.model.ffn_hidden_size == 6400


def test_config_reports_problems_that_do_not_depend_on_a_wrong_key(program: Program) -> None:
    words = ("model.layers=few", "parallel.zero_stage=3", "parallel.pipeline=2")
    code, _, err = program("config", XL, *words)
    assert code == 3
    assert "model.layers must be an integer" in err
    assert "parallel.zero_stage 3 is not combined" in err


def test_config_prints_json(program: Program) -> None:
    code, out, _ = program("config", XL, "--json")
    assert code == 0
    assert from_dict(json.loads(out)).model.layers == 48


def test_train_prints_the_configuration_and_stops(program: Program) -> None:
    code, out, _ = program("train", XL, "optimisation.lr=1e-3", "--init-from", "/a: 🤗", "--print-config")
    assert code == 0
    printed = yaml.safe_load(out)
    assert (printed["optimisation"]["lr"], printed["checkpoint"]["init_from"]) == (1e-3, "/a: 🤗")


def test_problems_are_sentences_and_the_code_is_3(program: Program) -> None:
    code, out, err = program("dry-run", XL, "parallel.tensor=3", "optimisation.min_lr=1")
    assert code == 3
    assert out == ""
    lines = err.splitlines()
    assert len(lines) >= 3
    assert all(line.startswith("Error: ") for line in lines)
    assert any("attention_heads 25 is not divisible by parallel.tensor 3" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("export", "a", "b", "--tensor", "2"), "--tensor is not for --format huggingface"),
        (
            ("export", "a", "b", "--virtual-pipeline", "2"),
            "--virtual-pipeline is not for --format huggingface",
        ),
        (
            ("export", "a", "b", "--format", "megatron", "--shard-size", "1"),
            "--shard-size is not for --format megatron",
        ),
        (("export", "a", "b", "--shard-size", "nan"), "nan is not a finite number"),
        (("generate", "a", "b", "--temperature", "inf"), "inf is not a finite number"),
        (("generate", "a", "b", "--top-k", "4"), "--top-k needs --temperature above 0"),
        (("generate", "a", "b", "--seed", str(2**64)), "is not in the range 0<=x<=4294967295"),
        (("generate", "a", "b", "--seed", "1"), "--seed needs --temperature above 0"),
        (("data", "download", "x", "--directory", "y"), "'NAME': 'x' is not one of 'demo-corpus'"),
        (
            ("data", "merge", "a", "--output-prefix", "b/"),
            "b/ is a directory, not the prefix of a data set",
        ),
        (("preprocess", "a", "--output-prefix", "b/"), "b/ is a directory, not the prefix of a data set"),
        (("train", XL, "--init-from", ""), "checkpoint.init_from must be a path, not ''"),
        (("profile", XL, "--blocks", "4"), "See: rdm-trainer profile --help"),
        (("profile", XL, "model.attention_heads=7"), "1600 is not divisible by model.attention_heads 7"),
        (("data", "info", "a", "--merges", "b"), "`--vocab` of `rdm-trainer preprocess` or `data info`"),
        (("data", "info", "a", "--vocab", "b", "--tokenizer-file", "c"), "--tokenizer-file is not for gpt2"),
        (
            ("data", "info", "a", "--tokenizer", "wordpiece", "--merges", "b"),
            "--merges is not for wordpiece, which reads --vocab.",
        ),
        (
            ("preprocess", "a", "--output-prefix", "b", "--tokenizer", "huggingface", "--vocab", "c"),
            "--vocab is not for huggingface, which reads --tokenizer-file.",
        ),
        *(
            (("profile", XL, "--links-only", *given), f"{given[0]} is for a profile of the layers")
            for given in (
                ("--sizes", "8"),
                ("--micro-batch", "8"),
                ("--blocks", "4", "12"),
                ("--no-checkpointing",),
                ("--output", "x.json"),
            )
        ),
    ],
)
def test_a_wrong_option_is_one_sentence(
    program: Program, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    # What follows the checks would measure for hours.
    monkeypatch.setattr("rdm_trainer.profile_model.start", lambda _job: sys.exit(7))
    code, out, err = program(*arguments)
    assert (code, out) == (3, "")
    assert words in err


def test_output_that_cannot_be_written_is_one_sentence(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        code, _, err = program("config", XL)
        assert (code, err) == (1, "Error: The output cannot be written: No space left on device.\n")


def test_problems_are_json_on_request(program: Program) -> None:
    code, out, err = program("config", "no-such.yaml", "--json")
    assert (code, err) == (3, "")
    assert json.loads(out) == {
        "ok": False,
        "problems": ["no-such.yaml cannot be read: No such file or directory."],
    }


def test_dry_run_shows_stages_and_the_verdict(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = program("dry-run", XL, "--gpu", "A10")
    assert code == 0
    assert "Fits A10" in out
    assert "0-11-8-8-8-8-5-0" in out
    rows = [line.split() for line in out.splitlines() if line[:6].strip().isdigit()]
    assert [row[1] for row in rows] == ["emb", "11", "8", "8", "8", "8", "5", "head"]
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    assert "engine deepspeed" in " ".join(out.split())


def test_dry_run_reports_the_host_memory_needed(program: Program) -> None:
    nodes = "launcher={nodes: 1, devices_per_node: 1}"
    keys = ("engine=deepspeed", "parallel={pipeline: 1, data: 1, partition: even}", nodes)
    out = program("dry-run", XL, "--gpu", "A10", *keys)[1]
    assert re.search(r"parallel\.offload_optimizer=cpu: [\d.]+ GiB", out)
    assert "of the host's memory" not in out
    out = program("dry-run", XL, *keys, "parallel.offload_optimizer=cpu")[1]
    # 1.56e9 parameters, 18 bytes each.
    assert "at least 26.1" in out


def test_dry_run_that_does_not_fit_suggests_what_does(program: Program) -> None:
    code, out, _ = program("dry-run", str(CONFIGS / "t5-23b.yaml"), "--gpu", "A10")
    assert code == 1
    assert "Does not fit A10" in out
    assert "parallel.activation_checkpointing=full" in out
    # So few that one less would not fit.
    batch = ("optimisation.micro_batch_size=6", "optimisation.global_batch_size=192")
    out = program("dry-run", XL, "--gpu", "A10", *batch)[1]
    full = "parallel.activation_checkpointing=full"
    assert re.search(rf"{full}\s+parallel.activation_checkpointing_blocks=3: .*, fits", out)
    for blocks, expected in ((2, 1), (3, 0)):
        keys = (full, f"parallel.activation_checkpointing_blocks={blocks}")
        assert program("dry-run", XL, "--gpu", "A10", *batch, *keys)[0] == expected


def test_dry_run_counts_eager_forwards(program: Program) -> None:
    layout = [f"parallel.{key}" for key in ("pipeline=4", "partition=even", "data=8", "eager_forwards=2")]
    batch = ["optimisation.global_batch_size=1024", "optimisation.micro_batch_size=8"]
    code, out, _ = program("dry-run", XL, "--gpu", "A100-40", "engine=native", *layout, *batch)
    assert "pipeline 4 (eager forwards 2)" in " ".join(out.split())
    assert code == 1
    assert re.search(r"parallel.eager_forwards=0: .* GiB, fits", out)


def test_dry_run_accepts_the_budget_that_it_proposes(program: Program) -> None:
    budget = "parallel.activation_memory_budget=0.5"
    assert "by the budget of 0.5;" in program("dry-run", XL, budget)[1]
    out = program("dry-run", XL)[1]
    assert "the budget" not in out
    batch = ("optimisation.micro_batch_size=24", "optimisation.global_batch_size=1536")
    out = program("dry-run", XL, "--gpu", "A10", *batch, budget)[1]
    keys = ("parallel.activation_checkpointing=full", "parallel.activation_memory_budget=1")
    assert re.search(rf"{keys[0]}\s+{keys[1]}", out)
    # What is proposed is accepted.
    assert program("dry-run", XL, *batch, *keys)[0] == 0


def test_dry_run_finds_the_fewest_blocks_to_recompute_in_intervals() -> None:
    keys = ("pipeline=2", "data=8", "activation_checkpointing_interval=12")
    job = load(
        CONFIGS / "gpt-345m.yaml", ["optimisation.micro_batch_size=16", *(f"parallel.{key}" for key in keys)]
    )
    plain, a10 = dry_run.dry_run(job, 16), flops.find_accelerator("A10")
    assert a10 is not None
    sizes = []
    for blocks in range(1, 13):
        full = ("activation_checkpointing=full", f"activation_checkpointing_blocks={blocks}")
        other = from_dict(job.to_dict(), [f"parallel.{key}" for key in full])
        sizes.append(dry_run.dry_run(other, 16).peak.memory.total / dry_run.GIB)
    # The more blocks compute again at once, the more memory the last stage needs.
    smallest = min(sizes)
    assert sizes[0] > smallest < sizes[-1]
    for limit in (*sizes, smallest / 2):
        expected = next(number for number, size in enumerate(sizes, 1) if size <= max(limit, smallest))
        found = _recomputed(job, plain, dataclasses.replace(a10, memory_gib=limit))
        assert found.get("parallel.activation_checkpointing_blocks", 12) == expected


@pytest.mark.parametrize("name", ["t5-11b", "t5-23b", "gpt-345m", "gpt2-xl"])
def test_dry_run_truncates_no_number(program: Program, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = program("dry-run", str(CONFIGS / f"{name}.yaml"))
    assert "logits" in out
    assert "…" not in out


def test_dry_run_json(program: Program) -> None:
    code, out, _ = program("dry-run", XL, "--gpu", "NVIDIA H200", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["fits"] is True
    assert report["gpu"]["name"] == "H200"
    assert len(report["stages"]) == 8
    first = report["stages"][0]["memory"]
    assert first.pop("total") == sum(first.values())


def test_dry_run_takes_the_smallest_world_when_none_is_named(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "optimisation: {train_iterations: 1}\ndata: {mock: true}\nparallel: {tensor: 2, pipeline: 2}\n",
        encoding="utf-8",
    )
    code, out, _ = program("dry-run", str(path), "--json")
    assert code == 0
    assert json.loads(out)["world_size"] == 4


def test_an_unknown_gpu_is_refused_with_the_known_ones(program: Program) -> None:
    code, _, err = program("dry-run", XL, "--gpu", "H9000")
    assert code == 3
    assert "'H9000' is not known" in err
    assert "MI300X" in err


def test_former_option_is_accepted_with_a_notice(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RDM_JOBS", str(tmp_path))
    code, out, err = program("job", "remove", "--look")
    assert (code, json.loads(out)["removed"]) == (0, [])
    assert "'look' is deprecated" in err
    assert "--dry-run" in err

"""A fine-tuning's configuration: what is read, what is rejected, and what DeepSpeed gets."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from rdm_core import config as configuration
from rdm_core.config.finetune import FinetuneConfig
from rdm_core.errors import ConfigError, TrainerError
from rdm_trainer.cli.rendezvous import _workload
from rdm_trainer.finetune.deepspeed_json import deepspeed_json
from rdm_trainer.finetune.inspection import problems
from rdm_trainer.finetune.packages import require_packages

LEAST = "model: {path: m}\ndata: {train: [a.jsonl]}\n"
CONFIGS = Path(__file__).parents[3] / "configs"


def read(tmp_path: Path, text: str, *overrides: str) -> FinetuneConfig:
    file = tmp_path / "tune.yaml"
    file.write_text(text)
    return configuration.load_as(FinetuneConfig, file, overrides)


def test_a_model_and_a_file_are_enough(tmp_path: Path) -> None:
    config = read(tmp_path, LEAST, "lora.rank=16")
    assert configuration.check(config, 4) == []
    assert (config.lora.rank, config.zero.stage, config.global_batch_size(4)) == (16, 2, 4)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("data: {train: [a.jsonl]}\n", "model is missing."),
        ("model: {}\ndata: {train: [a.jsonl]}\n", "model.path is missing."),
        (LEAST + "optimisation:\n  lr: 0\n", "optimisation.lr (line 4) is 0; it must be above 0."),
        (LEAST + "lora:\n  ranks: 4\n", "lora.ranks is not a key (line 4); did you mean lora.rank?"),
        (
            LEAST + "engine: native\n",
            "engine is not a key (line 3) of `workload: finetune`, but of `workload: train`, which "
            "rdm-trainer train runs.",
        ),
        (LEAST + "method: ppo\n", "method (line 3) is 'ppo'; it must be sft or dpo."),
        (LEAST + "zero: {stage: 4}\n", "zero.stage (line 3) is 4; it must be 0, 1, 2 or 3."),
    ],
)
def test_invalid_values_are_named_with_their_line(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert caught.value.problems == (sentence,)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("data.train=[]", "data.train names no file; give it one at least."),
        ("data.train=[a.csv]", "data.train has a file .csv; known are .jsonl, .json and .parquet."),
        (
            "data.valid=[a.json,b.parquet]",
            "data.valid has files of several kinds; give it .parquet or .json and .jsonl alone.",
        ),
        (
            "optimisation={accumulation: 2, global_batch_size: 8}",
            "optimisation.accumulation and optimisation.global_batch_size are both given; keep one.",
        ),
        (
            "optimisation.global_batch_size=6",
            "optimisation.global_batch_size is 6; it must be a multiple of micro_batch_size x devices, which "
            "is 4.",
        ),
        ("zero.offload_parameters=cpu", "zero.offload_parameters is cpu, which needs zero.stage 3."),
        (
            "zero={stage: 0, offload_optimizer: cpu}",
            "zero.offload_optimizer is cpu, which needs zero.stage 1 at least.",
        ),
        (
            "lora.merge=true",
            "lora.merge is true, but lora.rank is 0, so there is no adapter to merge; give lora.rank.",
        ),
    ],
)
def test_what_is_impossible_is_reported_in_a_sentence(override: str, sentence: str, tmp_path: Path) -> None:
    assert configuration.check(read(tmp_path, LEAST, override), 4) == [sentence]


def test_the_shipped_configuration_has_the_documents_values() -> None:
    config = configuration.load_as(FinetuneConfig, CONFIGS / "qwen3-8b-finetune.yaml")
    assert configuration.check(config, 16) == []
    assert (config.model.path, config.data.max_length, config.global_batch_size(16)) == (
        "Qwen/Qwen3-8B",
        512,
        256,
    )
    tuned = config.optimisation
    assert (tuned.epochs, tuned.lr, tuned.weight_decay, tuned.adam_beta2) == (5, 1e-5, 0.1, 0.95)
    assert (tuned.warmup_fraction, tuned.schedule, tuned.precision) == (0.01, "cosine", "bf16")
    assert (config.checkpoint.interval, config.checkpoint.keep, config.logging.interval) == (1000, 10, 1)
    made = deepspeed_json(config, 8_000_000_000)
    assert made is not None
    zero = made["zero_optimization"]
    assert (zero["stage"], zero["reduce_bucket_size"], zero["allgather_bucket_size"]) == (2, 2e8, 2e8)


def test_the_batch_of_a_step_is_the_same_on_any_number_of_devices(tmp_path: Path) -> None:
    config = read(tmp_path, LEAST, "optimisation={micro_batch_size: 2, global_batch_size: 16}")
    assert [config.accumulation(world) for world in (1, 2, 8)] == [8, 4, 1]
    assert {config.global_batch_size(world) for world in (1, 2, 8)} == {16}


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_shards_and_offloads_as_the_configuration_says(stage: int, tmp_path: Path) -> None:
    config = read(tmp_path, LEAST, f"zero={{stage: {stage}, offload_optimizer: cpu}}")
    made = deepspeed_json(config, 5_000_000)
    assert made is not None
    zero = made["zero_optimization"]
    assert (zero["stage"], zero["offload_optimizer"]["device"]) == (stage, "cpu")
    # Buffers are no larger than the model.
    assert zero["reduce_bucket_size"] == 5_000_000
    # They would override transformers' own.
    assert not {"scheduler", "optimizer"} & set(made)
    assert zero.get("stage3_gather_16bit_weights_on_model_save", False) is (stage == 3)
    assert "offload_param" not in zero


def test_weights_are_offloaded_at_stage_3(tmp_path: Path) -> None:
    made = deepspeed_json(read(tmp_path, LEAST, "zero={stage: 3, offload_parameters: cpu}"), 5_000_000)
    assert made is not None
    assert made["zero_optimization"]["offload_param"]["device"] == "cpu"
    assert "offload_optimizer" not in made["zero_optimization"]


def test_stage_0_needs_no_deepspeed(tmp_path: Path) -> None:
    assert deepspeed_json(read(tmp_path, LEAST, "zero.stage=0"), 1) is None


@pytest.fixture
def without_trl(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "trl" else found(name))


@pytest.mark.usefixtures("without_trl")
@pytest.mark.parametrize(
    ("prefix", "environment", "hint"),
    [
        ("/home/me/venv", "", "pip install 'rdm-trainer[finetune]'"),
        (
            "/opt/rdm",
            "host",
            "build the training image with --build-arg EXTRAS=finetune, or the lab with --extra finetune",
        ),
        (
            "/home/me/.rdm/n1/python",
            "host",
            "set python_env_extras: [finetune] in the inventory, and run rdm-provision env up",
        ),
    ],
)
def test_missing_packages_are_named_with_the_command_that_installs_them(
    prefix: str, environment: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", prefix)
    monkeypatch.setenv("RDM_EXECUTION_ENVIRONMENT", environment)
    with pytest.raises(TrainerError) as caught:
        require_packages()
    assert str(caught.value) == f"finetune needs trl, which is not installed: {hint}."


@pytest.mark.usefixtures("without_trl")
def test_node_reports_everything_that_it_lacks_for_a_job(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/here.jsonl").touch()
    text = "workload: finetune\nmodel: {path: /jobs/data/model}\ndata: {train: [x.jsonl]}\n"
    names = "[/jobs/data/here.jsonl, /jobs/data/gone.jsonl, rows.jsonl]"
    job = {"config": text, "overrides": [f"data.train={names}"], "jobs": str(tmp_path)}
    packages, *others = problems(job)
    assert "finetune needs trl" in packages
    assert others == [
        f"data.train names {tmp_path}/data/gone.jsonl, which is no file.",
        "data.train names rows.jsonl; give the path that it has on the nodes, from / on.",
        f"model.path {tmp_path}/data/model is no directory.",
    ]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A configuration whose model and rows exist, as far as the checks can see."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").touch()
    (tmp_path / "a.jsonl").touch()
    file = tmp_path / "tune.yaml"
    file.write_text(f"model: {{path: {tmp_path}/model}}\ndata: {{train: [{tmp_path}/a.jsonl]}}\n")
    return file


def test_rendezvous_members_fine_tune_into_the_jobs_directory(
    tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, kept = _workload(("finetune", str(tiny), "lora.rank=4"), "alpaca", tmp_path / "job")
    assert command == ("finetune", str(tiny), "lora.rank=4", "--job-dir", str(tmp_path / "job"))
    assert isinstance(kept, FinetuneConfig)
    assert kept.lora.rank == 4
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("without_trl")
def test_member_reports_what_it_lacks_before_the_rendezvous(tmp_path: Path, tiny: Path) -> None:
    (tmp_path / "model/config.json").unlink()
    with pytest.raises(ConfigError) as refused:
        _workload(("finetune", str(tiny), "data.train=[gone.jsonl]"), "alpaca", tmp_path / "job")
    packages, *others = refused.value.problems
    assert "finetune needs trl" in packages
    assert others == [
        "data.train names gone.jsonl, which is no file.",
        f"model.path {tmp_path}/model has no config.json, and so is no model.",
    ]


def test_missing_model_is_named(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = "model.path no-such-owner/no-such-model is no directory here, and the hub does not give it: "
    with pytest.raises(TrainerError, match=message):
        _workload(("finetune", str(tiny), "model.path=no-such-owner/no-such-model"), "alpaca", tmp_path)


def test_missing_data_is_reported_before_a_rendezvous(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text("data: {blend: [gone]}\noptimisation: {train_iterations: 1}\n")
    with pytest.raises(TrainerError, match="gone"):
        _workload(("train", str(file)), "gpt", tmp_path)


def test_launcher_keys_without_effect_in_a_rendezvous_are_reported(
    tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ignored = ("launcher.kind=slurm", "launcher.max_restarts=3", "launcher.profiler=nsys")
    _, kept = _workload(("finetune", str(tiny), *ignored, "launcher.devices_per_node=4"), "alpaca", tmp_path)
    assert kept.launcher.devices_per_node == 4
    assert capsys.readouterr().err == (
        f"rendezvous: In a rendezvous launcher.kind, launcher.max_restarts, launcher.profiler of {tiny} have "
        "no effect: torchrun runs once.\n"
    )
    mock = tmp_path / "other.yaml"
    mock.write_text("optimisation: {train_iterations: 1}\nlauncher: {program: [pretrain.py, --lr, '1']}\n")
    with pytest.raises(TrainerError, match=r"start it by -- torchrun pretrain\.py --lr 1"):
        _workload(("train", str(mock)), "gpt", tmp_path)

# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdm_core import config as configuration
from rdm_core.config import Blend, Config, check, dump, from_dict, load
from rdm_core.config.finetune import FinetuneConfig
from rdm_core.config.training import has_sound_data
from rdm_core.errors import BAD_INPUT, ConfigError

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
FINETUNE = "qwen3-8b-finetune.yaml"
BUDGET = {"parallel__activation_memory_budget": 0.5}
COMPILED = {"optimisation__compile": True}
CHUNKS = {"engine": "native", "parallel__pipeline": 2, "parallel__virtual_pipeline": 2, "model__layers": 4}
EAGER = {"engine": "native", "parallel__pipeline": 2, "parallel__eager_forwards": 1}
FP8 = {"engine": "native", "optimisation__fp8_recipe": "tensorwise", "model__ffn_hidden_size": 2048}
GRAPHS = {"engine": "native", "optimisation__cuda_graphs": "true"}
SOUND: dict[str, Any] = {
    "model": {"layers": 4, "hidden_size": 64, "attention_heads": 4, "seq_length": 32},
    "optimisation": {"train_iterations": 5},
    "data": {"mock": True},
}


def with_changes(**changes: Any) -> Config:
    """Return a valid configuration with the changes ``section__key=value``."""
    overrides = []
    for key, value in changes.items():
        overrides.append(f"{key.replace('__', '.')}={'null' if value is None else value}")
    return from_dict(SOUND, overrides)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def problems_of(path: Path, *overrides: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    assert caught.value.exit_code == BAD_INPUT
    assert all(problem.endswith((".", "?")) and "\n" not in problem for problem in caught.value.problems)
    return caught.value.problems


def test_every_problem_of_a_file_is_reported_at_once_with_its_line(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """\
name: 7
model:
  layers: -1
  hidden_siz: 64
  attention_heads: true
  kind: opt
optimisation:
  lr: fast
seq_length: 128
data: nothing
launcher:
  env: {DEBUG: on}
""",
    )
    found = problems_of(
        path, "no-equals", "model.heads=4", "parallel.tensor.size=2", "parallel.partition=2024-99-99", "a=["
    )
    for words in (
        "'no-equals' is not of the form key.sub=value",
        "model.heads is not a key; did you mean model.attention_heads?",
        "'parallel.partition=2024-99-99' is not YAML; quote it",
        "'a=[' is not YAML",
        "name (line 1) must be text, not 7 (put it in quotes)",
        "model.layers (line 3) is -1; it must be at least 1",
        "model.hidden_siz is not a key (line 4); did you mean model.hidden_size?",
        "model.attention_heads (line 5) must be an integer, not true",
        "model.kind (line 6) is 'opt'; it must be gpt, t5 or bert",
        "optimisation.lr (line 8) must be a number, not 'fast'",
        "seq_length is not a key (line 9); did you mean model.seq_length?",
        "data (line 10) must hold keys and values, not 'nothing'",
        "launcher.env.DEBUG (line 12) must be text, not true (put it in quotes)",
    ):
        assert any(words in problem for problem in found), (words, found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model: [", "is not YAML"),
        ("a: 1\n b: 2", "line 2"),
        ("- 1", "must hold keys and values"),
        ("", "must hold keys and values"),
        ("model: {layers: 2, layers: 3}", "model.layers is given 2 times"),
        ("model: {layers: }", "model.layers (line 1) has no value; give an integer, or leave the key out"),
        ("model: &m {layers: *m}", "nested"),
        ("data: {blend: [{weight: 2}]}", "data.blend[0].prefix is missing"),
        ("data: {blend: 3}", "data.blend (line 1) must be a list"),
        ("optimisation: {lr: .inf}", "finite"),
        ("? [1, 2]\n: 3", "is not a key"),
        ("name: !!python/name:os.getcwd", "is not YAML: could not determine a constructor"),
        ("parallel: {partition: 2024-99-99}", "is not YAML"),
        ("a: " + "[" * 3000, "is not YAML"),
        (
            "name: a\nmodel: {kind: g\x01pt}",
            "is not YAML: line 2 has the control character U+0001; remove it",
        ),
        (
            "optimisation: {seed: 5000000000}",
            "seed (line 1) is 5000000000; it must be at least 0 and at most 4294967295",
        ),
        ("model: {layers: 010}", "(line 1) must be an integer, not '010' (leave the leading zero out"),
        ("optimisation: {train_iterations: 1:30}", "(line 1) must be an integer, not '1:30'"),
        ("optimisation: {lr: 1:30.5}", "(line 1) must be a number, not '1:30.5'"),
        (
            "launcher: {env: {FLAGS: 0x10}}",
            "launcher.env.FLAGS (line 1) must be text, not 0x10 (put it in quotes)",
        ),
        ("optimisation: {lr: 1" + "0" * 400 + "}", "must be a finite number"),
        ("model: {layers: 100000000}", "is 100000000; it must be at least 1 and at most 4096"),
        ("model: {hidden_size: 3000000000}", "it must be at least 1 and at most 2147483647"),
        ("data: {workers: 100000}", "it must be at least 0 and at most 1024"),
        ("launcher: {distributed_timeout_minutes: 1e300}", "at most 525600 and above 0"),
        (
            "data: {blend: [0.3, a, 7, b]}",
            "in Megatron's order; write [{prefix: a, weight: 0.3}, {prefix: b, weight: 7}].",
        ),
        ("data: {train: 0.3 a 0.7 b}", "write [{prefix: a, weight: 0.3}, {prefix: b, weight: 0.7}]."),
        ("launcher: {master_port: 80}", "at least 1024 and at most 65535"),
        ("logging: {peak_tflops: 0}", "above 0"),
        ('data: {index_cache: ""}', "data.index_cache (line 1) must be a path, not ''"),
        ('data: {blend: ["a\\0b"]}', "must be text without a NUL character, not 'a\\x00b'"),
        ("parallel: {activation_memory_budget: 0}", "is 0; it must be at most 1 and above 0"),
        ("parallel: {activation_memory_budget: 1.5}", "is 1.5; it must be at most 1 and above 0"),
    ],
)
def test_invalid_yaml_is_refused_with_an_explanation(tmp_path: Path, text: str, words: str) -> None:
    assert any(words in problem for problem in problems_of(written(tmp_path, text)))


def aliases(levels: int, each: str) -> str:
    """Nine aliases of nine aliases, and so on."""
    lines = [f"a0: &a0 {each}"]
    for level in range(1, levels + 1):
        below = ", ".join([f"*a{level - 1}"] * 9)
        lines.append(
            f"a{level}: &a{level} {{<<: [{below}]}}" if "{" in each else f"a{level}: &a{level} [{below}]"
        )
    return "\n".join(lines)


def test_expansion_of_yaml_aliases_is_bounded(tmp_path: Path) -> None:
    assert "has more than 100,000 values" in problems_of(written(tmp_path, aliases(9, "[x, y]")))[0]
    assert "has more than 1,000 keys" in problems_of(written(tmp_path, aliases(9, "{x: 1, y: 2}")))[0]
    path = written(tmp_path, "name: x")
    levels = ["&a0 [x]", *(f"&a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10))]
    bomb = f"[{', '.join(levels)}]"
    assert "is not YAML; quote it" in problems_of(path, f"data.blend={bomb}")[0]


def test_endless_file_is_refused(tmp_path: Path) -> None:
    assert "has more than 1,048,576 characters" in problems_of(Path("/dev/zero"))[0]
    assert "has more than" in problems_of(written(tmp_path, "#" * 2_000_000))[0]


def test_texts_stay_as_they_are_written(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "launcher: {env: {OMP_NUM_THREADS: 010, SINCE: 1:30, N: 7}, slurm: {time: 1:30}}\n"
        "optimisation: {train_iterations: 1_000, seed: 0x10}",
    )
    config = load(path)
    assert config.launcher.env == {"OMP_NUM_THREADS": "010", "SINCE": "1:30", "N": "7"}
    assert config.launcher.slurm.time == "1:30"
    assert (config.optimisation.train_iterations, config.optimisation.seed) == (1000, 16)
    assert load(written(tmp_path, dump(config))) == config


def test_a_tilde_is_the_home_in_every_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    path = written(
        tmp_path,
        """\
data:
  blend: [~/a, {prefix: ~/b, weight: 2}]
  index_cache: ~/maps
  tokenizer: {kind: gpt2, vocab: ~/vocab.json, merges: ~nobody-here/merges.txt}
checkpoint: {load: ~/job}
launcher:
  slurm: {image: ~/image.sqsh, rest_jwt: ~/token, mounts: ["~/data:/data"]}
  program: [train.py, ~/as-it-is]
""",
    )
    config = load(path, ["checkpoint.init_from=~/model", "name=~x"])
    assert config.data.blend == (Blend("/home/me/a"), Blend("/home/me/b", 2.0))
    assert config.data.index_cache == "/home/me/maps"
    assert config.data.tokenizer is not None
    assert config.data.tokenizer.vocab == "/home/me/vocab.json"
    assert config.data.tokenizer.merges == "~nobody-here/merges.txt"
    assert (config.checkpoint.load, config.checkpoint.init_from) == ("/home/me/job", "/home/me/model")
    assert config.launcher.slurm.image == "/home/me/image.sqsh"
    assert config.launcher.slurm.rest_jwt == "/home/me/token"
    assert config.launcher.slurm.mounts == ("/home/me/data:/data",)
    assert (config.launcher.program, config.name) == (("train.py", "~/as-it-is"), "~x")
    tuning = "workload: finetune\nmodel: {path: ~/qwen}\ndata: {train: [~/rows.jsonl], valid: ~/more.jsonl}\n"
    tuned = configuration.load_as(FinetuneConfig, written(tmp_path, tuning))
    assert tuned.model.path == "/home/me/qwen"
    assert (tuned.data.train, tuned.data.valid) == (("/home/me/rows.jsonl",), ("/home/me/more.jsonl",))


def test_duplicate_key_in_an_override_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"model\.layers is given 2 times; keep one"):
        from_dict({}, ["model={layers: 2, layers: 3}"])


def test_a_list_of_prefixes_is_no_list_of_weights() -> None:
    config = from_dict({"data": {"blend": ["1", "2"], "train": "1 a"}})
    assert config.data.blend == (Blend("1"), Blend("2"))
    assert config.data.train == (Blend("1 a"),)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    assert "No such file" in problems_of(tmp_path / "none.yaml")[0]
    assert "directory" in problems_of(tmp_path)[0]
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "is not text in UTF-8" in problems_of(binary)[0]


def test_numbers_are_read_as_people_write_them(tmp_path: Path) -> None:
    path = written(tmp_path, "optimisation: {lr: 1e-4, min_lr: 1E-5, clip_grad: 1, adam_epsilon: 1.e-8}")
    o = load(path).optimisation
    assert (o.lr, o.min_lr, o.clip_grad, o.adam_epsilon) == (1e-4, 1e-5, 1.0, 1e-8)
    assert isinstance(o.clip_grad, float)
    assert load(path, ["optimisation.lr=6e5"]).optimisation.lr == 6e5
    assert any("integer" in problem for problem in problems_of(path, "model.layers=1e2"))


def test_overrides_win_over_the_file_and_are_yaml(tmp_path: Path) -> None:
    path = written(tmp_path, "model: {layers: 2}\noptimisation: {train_samples: 80}\n")
    config = load(
        path,
        [
            "model.layers=6",
            "optimisation.train_samples=null",
            "optimisation.train_iterations=10",
            "data.blend=[a/x, {prefix: b, weight: 2}]",
            "launcher.env.NCCL_IB_DISABLE=1",
            "launcher.program=[train.py, --steps, '3']",
            "parallel.partition=0-6",
        ],
    )
    assert config.model.layers == 6
    assert config.optimisation.train_samples is None
    assert config.data.blend == (Blend("a/x"), Blend("b", 2.0))
    assert config.launcher.env == {"NCCL_IB_DISABLE": "1"}
    assert config.launcher.program == ("train.py", "--steps", "3")
    assert config.parallel.partition == "0-6"


def test_override_corrects_a_line_and_errors_name_the_override(tmp_path: Path) -> None:
    path = written(tmp_path, "model:\n  layers: many\n")
    assert load(path, ["model.layers=3"]).model.layers == 3
    assert problems_of(path, "model.layers=few") == ("model.layers must be an integer, not 'few'.",)


def test_fp16_of_the_document_is_set_by_overrides() -> None:
    text = (CONFIGS.parents[1] / "docs" / "engines.md").read_text("utf-8")
    section = text.partition("\n## fp16\n")[2].partition("\n## ")[0]
    keys = re.findall(r"\S+=\S+", section)
    scales = re.findall(r"^\| (`.*) \| (\d+) \| (\d+) \|$", section, re.MULTILINE)
    named = {name: scale for names, *scale in scales for name in re.findall("`(.+?)`", names)}
    others = ("bert", "demo", "llama", "mixtral", "qwen")
    assert named.keys() == {path.stem for path in CONFIGS.glob("*.yaml") if not path.stem.startswith(others)}
    for name, (power, window) in named.items():
        o = load(CONFIGS / f"{name}.yaml").optimisation
        assert (o.precision, o.compile) == ("bf16", True), name
        scale = f"initial_loss_scale_power={power}", f"loss_scale_window={window}"
        config = load(CONFIGS / f"{name}.yaml", [*keys, *(f"optimisation.{key}" for key in scale)])
        assert (config.optimisation.precision, config.optimisation.compile) == ("fp16", False)
        assert check(config) == []


def test_a_configuration_survives_yaml_and_dictionaries(tmp_path: Path) -> None:
    for path in sorted(set(CONFIGS.rglob("*.yaml")) - {CONFIGS / FINETUNE}):
        config = load(path)
        assert from_dict(config.to_dict()) == config
        assert load(written(tmp_path, dump(config))) == config
        assert config.resolved(64).resolved(64) == config.resolved(64)


TEXT = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=12)


@settings(deadline=None)
@given(
    layers=st.integers(1, 4096),
    rate=st.floats(1e-30, 1e30),
    env=st.dictionaries(st.text("ABCEN_019", min_size=1), TEXT, max_size=4),
    program=st.lists(TEXT, max_size=4),
    prefix=TEXT.filter(str.strip),
)
def test_any_value_survives_yaml(
    tmp_path_factory: pytest.TempPathFactory,
    layers: int,
    rate: float,
    env: dict[str, str],
    program: list[str],
    prefix: str,
) -> None:
    given_values = {
        "model": {"layers": layers},
        "optimisation": {"lr": rate},
        "launcher": {"env": env, "program": program},
        "data": {"blend": [{"prefix": prefix}]},
    }
    config = from_dict(given_values)
    assert load(written(tmp_path_factory.getbasetemp(), dump(config))) == config


def test_resolved_configuration_has_the_derived_values() -> None:
    config = with_changes(model__kind="t5", model__vocab_extra_ids=100, parallel__tensor=2)
    resolved = config.resolved(8)
    assert resolved.parallel.data == 4
    model = resolved.model
    assert (model.decoder_layers, model.kv_channels, model.ffn_hidden_size) == (4, 16, 256)
    assert (model.decoder_seq_length, model.max_position_embeddings) == (32, 32)
    assert check(resolved, 8) == []
    assert with_changes().resolved().model.decoder_layers is None


def test_derived_values() -> None:
    config = with_changes(
        parallel__tensor=2,
        parallel__pipeline=2,
        optimisation__global_batch_size=48,
        optimisation__micro_batch_size=3,
        optimisation__train_iterations=None,
        optimisation__train_samples=100,
    )
    assert config.padded_vocab_size == 50432
    assert config.data_parallel(16) == 4
    assert config.accumulation(4) == 4
    assert config.train_iterations == 2
    assert config.stage_blocks() == [2, 2]
    assert config.written_world_size == 4
    wide = with_changes(model__kv_channels=7, model__ffn_hidden_size=100, model__max_position_embeddings=99)
    assert (wide.model.head_size, wide.model.attention_size) == (7, 28)
    assert (wide.model.ffn_size, wide.model.positions) == (100, 99)


def test_a_sound_configuration_has_no_problems() -> None:
    assert check(with_changes()) == []
    assert check(with_changes(), 4, 2) == []
    assert check(with_changes(parallel__pipeline=2, parallel__tensor=2), 8, 8) == []


def test_cuda_graphs_combine_with_layouts_of_one_stage() -> None:
    documents = {"data__reset_attention_mask": "true", "data__reset_position_ids": "true"}
    split = {"parallel__tensor": 2, "parallel__sequence_parallel": "true", "model__attention_dropout": 0.1}
    recomputed = {"parallel__activation_checkpointing": "full", "model__hidden_dropout": 0.1}
    changes: dict[str, Any]
    gloo = {"launcher__backend": "gloo"}
    for changes in (split, {"parallel__tensor": 2}, {"parallel__context": 2}, documents, recomputed, gloo):
        assert check(with_changes(**GRAPHS, **changes), 4, 2) == []


def assert_a_sentence_has(words: str, found: list[str]) -> None:
    assert any(words in problem for problem in found), found
    assert all(problem.endswith(".") and "\n" not in problem for problem in found)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "a/b"}, "name is 'a/b'"),
        ({"model__attention_heads": 3}, "hidden_size 64 is not divisible by"),
        ({"parallel__tensor": 8}, "attention_heads 4 is not divisible by parallel.tensor 8"),
        ({"parallel__tensor": 8}, "take 1, 2 or 4."),
        ({"checkpoint__load": "a", "checkpoint__init_from": "b"}, "has load and init_from"),
        ({"model__ffn_hidden_size": 99, "parallel__tensor": 2}, "ffn_hidden_size 99"),
        ({"model__max_position_embeddings": 31}, "fewer than the 32 tokens"),
        ({"model__decoder_layers": 2}, "decoder_layers is for a T5"),
        ({"model__decoder_seq_length": 2}, "decoder_seq_length is for a T5"),
        ({"model__vocab_extra_ids": 2}, "vocab_extra_ids is for a T5"),
        ({"model__kind": "t5"}, "sentinels of its own"),
        ({"parallel__pipeline": 2, "parallel__zero_stage": 2}, "another reduce-scatter"),
        ({"parallel__pipeline": 2, "parallel__partition": "1-2"}, "sums to 3 blocks"),
        ({"parallel__pipeline": 3, "parallel__partition": "2-0-2"}, "without a block"),
        ({"parallel__pipeline": 2, "parallel__partition": "type:X"}, "matches 0 layers"),
        ({"optimisation__train_samples": 9}, "both of train_iterations and train_samples"),
        ({"optimisation__train_iterations": None}, "neither of train_iterations"),
        (
            {"optimisation__train_iterations": None, "optimisation__train_samples": 7},
            "less than one global batch",
        ),
        (
            {"optimisation__warmup_samples": 1, "optimisation__warmup_fraction": 0.1},
            "warmup_fraction and warmup_samples",
        ),
        (
            {"optimisation__decay_samples": 80, "optimisation__decay_iterations": 10},
            "decay_iterations and decay_samples",
        ),
        ({"optimisation__warmup_iterations": 6}, "The warm-up of 48 samples is longer"),
        (
            {
                "optimisation__schedule": "wsd",
                "optimisation__wsd_decay_iterations": 3,
                "optimisation__warmup_fraction": 0.6,
            },
            "The warm-up of 24 samples and the decay of 24 at the end are longer than the 40",
        ),
        ({"optimisation__min_lr": 1.0}, "min_lr 1 is above"),
        ({"optimisation__loss_scale": 2}, "loss_scale is for fp16"),
        ({"engine": "native", "parallel__zero_stage": 2}, "zero_stage 2 needs DeepSpeed"),
        *(
            (
                {"engine": "native", f"parallel__{key}": "cpu"},
                f"{key} cpu needs DeepSpeed, but engine is native; set engine to deepspeed, or {key} to",
            )
            for key in ("offload_optimizer", "offload_parameters")
        ),
        (
            {"parallel__offload_parameters": "cpu", "parallel__zero_stage": 2},
            "offload_parameters cpu needs parallel.zero_stage 3; take 3, or offload_parameters none.",
        ),
        (
            {"parallel__offload_optimizer": "cpu", "parallel__pipeline": 2},
            "parallel.offload_optimizer cpu is not combined with parallel.pipeline 2",
        ),
        (
            {
                "parallel__offload_optimizer": "cpu",
                "parallel__zero_stage": 0,
                "optimisation__precision": "fp32",
            },
            "parallel.offload_optimizer cpu needs parallel.zero_stage 1 at least; take that, or",
        ),
        ({"engine": "native", "optimisation__precision": "fp16"}, "fp16 needs DeepSpeed"),
        ({"parallel__reduce_dtype": "bf16"}, "bf16 needs the native engine"),
        ({"optimisation__fp8_recipe": "rowwise"}, "rowwise needs the native engine"),
        ({**FP8, "optimisation__precision": "fp32"}, "needs optimisation.precision bf16, but"),
        ({**FP8, "model__ffn_hidden_size": 256}, "gains nothing, because all products"),
        ({**FP8, "model__ffn_hidden_size": 1032}, "mlp.fc1 has 64 inputs and 1032 outputs"),
        ({**FP8, "parallel__tensor": 2}, "gains nothing, because all products"),
        ({**FP8, "model__seq_length": 40}, "multiples of 16 tokens, but a product has 40"),
        ({"optimisation__cuda_graphs": "true"}, "cuda_graphs true needs the native engine"),
        (
            {**GRAPHS, "parallel__tensor": 2, "parallel__activation_checkpointing": "full"},
            "not combined with parallel.activation_checkpointing full and parallel.tensor 2, which is",
        ),
        (
            {**GRAPHS, "parallel__tensor": 2, "model__attention_dropout": 0.1},
            "not combined with model.attention_dropout 0.1 and parallel.tensor 2: each rank seeds the",
        ),
        (
            {**GRAPHS, "parallel__tensor": 2, "launcher__backend": "gloo"},
            "not combined with launcher.backend gloo and parallel.tensor 2, because Gloo's",
        ),
        (
            {**GRAPHS, "parallel__context": 2, "launcher__backend": "gloo"},
            "not combined with launcher.backend gloo and parallel.context 2, because Gloo's",
        ),
        ({**CHUNKS, **GRAPHS}, "cuda_graphs true is not combined with parallel.pipeline 2"),
        ({**GRAPHS, "model__experts": 4}, "not combined with model.experts 4, because how many tokens"),
        ({"parallel__virtual_pipeline": 2}, "virtual_pipeline 2 needs the native engine"),
        (
            {"parallel__activation_checkpointing_blocks": 4},
            "activation_checkpointing_blocks is 4, but activation_checkpointing is none; set it to full",
        ),
        (
            {"parallel__activation_checkpointing": "full", "parallel__activation_checkpointing_blocks": 9},
            "activation_checkpointing_blocks is 9, which must be at most the model's number of blocks, 4;",
        ),
        (BUDGET, "activation_memory_budget 0.5 needs optimisation.compile, because the compiler"),
        (
            {**BUDGET, **COMPILED, "parallel__activation_checkpointing": "full"},
            "activation_memory_budget 0.5 is not combined with activation_checkpointing full, which",
        ),
        *(
            ({**BUDGET, **COMPILED, f"model__{key}": 0.1}, f"is not combined with model.{key} 0.1: PyTorch's")
            for key in ("hidden_dropout", "attention_dropout")
        ),
        ({**CHUNKS, "parallel__pipeline": 1}, "parallel.pipeline is 1, in which no stage"),
        ({"parallel__eager_forwards": 1}, "eager_forwards 1 needs the native engine"),
        ({**EAGER, "parallel__pipeline": 1}, "eager_forwards is 1, but parallel.pipeline is 1, in which no"),
        ({**CHUNKS, "parallel__eager_forwards": 1}, "1 is not combined with parallel.virtual_pipeline 2, in"),
        ({**CHUNKS, "model__layers": 3}, "4 chunks in all, but the model has only 3 blocks"),
        ({**CHUNKS, "parallel__partition": "1-1"}, "is for 2 stages, but parallel.pipeline is 2 and"),
        ({"data__mock": "false"}, "data has no data set"),
        ({"data__blend": "[x]"}, "data.mock is true and data sets are given"),
        ({"data__valid": "[x]", "data__mock": "false"}, "valid or test without train"),
        ({"data__blend": "[x]", "data__train": "[y]", "data__mock": "false"}, "give blend with split"),
        ({"data__split": "0,0,0"}, "data.split is '0,0,0'"),
        ({"data__split": f"'{'9' * 400},1'"}, "it must be one to three proportions"),
        ({"data__split": "'1,x'"}, "data.split is '1,x'"),
        ({"data__tokenizer": "{kind: gpt2, vocab: v}"}, "needs data.tokenizer.merges"),
        ({"data__tokenizer": "{kind: huggingface, vocab: v, file: f}"}, "does not use"),
        ({"launcher__env": "{A-B: x}"}, "no name of an environment variable"),
        ({"launcher__program": "['']"}, "launcher.program begins with nothing"),
        ({"parallel__data": 16}, "= 16; 16 would be"),
    ],
)
def test_invalid_combination_is_one_sentence(changes: dict[str, Any], words: str) -> None:
    assert_a_sentence_has(words, check(with_changes(**changes)))


@pytest.mark.parametrize(
    ("changes", "world", "devices", "words"),
    [
        (
            {**CHUNKS, "optimisation__global_batch_size": 9},
            2,
            None,
            "1 replicas x 2 stages (parallel.virtual",
        ),
        ({**EAGER, "parallel__eager_forwards": 9}, 2, None, "a step has only 8 micro-batches; take 8 or"),
        (
            {**EAGER, "parallel__eager_forwards": 2},
            16,
            None,
            "a step has only 1 micro-batch; take 1 or fewer",
        ),
        ({"parallel__tensor": 2, "parallel__data": 2}, 8, None, "= 4, but the world is 8"),
        ({"parallel__tensor": 2, "parallel__pipeline": 2}, 6, None, "A world of 6 is not a multiple"),
        ({}, 3, None, "global_batch_size 8 is not a multiple of micro_batch_size 1 x 3"),
        ({}, 3, None, "6 or 9 would be"),
        ({}, 0, None, "A world of 0 is not a multiple"),
        ({"launcher__devices_per_node": 4}, 8, 2, "but a node has 2"),
        ({"launcher__devices_per_node": 3}, 8, None, "does not fill nodes of 3"),
        ({"launcher__nodes": 3}, 8, 2, "nodes 3 x 2 devices = 6, but the world is 8"),
    ],
)
def test_combination_invalid_for_the_world_size_is_one_sentence(
    changes: dict[str, Any], world: int | None, devices: int | None, words: str
) -> None:
    assert_a_sentence_has(words, check(with_changes(**changes), world, devices))


def test_a_batch_without_a_micro_batch_for_each_replica_is_one_problem() -> None:
    (problem,) = check(with_changes(**{**EAGER, "parallel__eager_forwards": 2}), 32)
    assert problem.startswith("optimisation.global_batch_size 8 is not a multiple of")


def test_another_program_needs_no_data_and_no_length() -> None:
    config = from_dict({"launcher": {"program": ["pretrain_gpt.py"]}})
    # Three does not divide the default batch size, but another program does not use that.
    assert check(config, 3) == []
    assert check(from_dict(config.to_dict(), ["name=a/b"]), 3, 2) != []


def test_problems_are_collected_over_all_parts() -> None:
    config = with_changes(parallel__tensor=3, data__mock="false", optimisation__train_iterations=None)
    with pytest.raises(ConfigError) as caught:
        configuration.require(config, 4)
    assert len(caught.value.problems) >= 4
    assert str(caught.value).count("\n  - ") == len(caught.value.problems)


def test_checks_that_do_not_depend_on_a_wrong_key_still_run(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """\
model: {layers: few, hidden_siz: 100, attention_heads: 7, seq_length: 64, max_position_embeddings: 32}
parallel: {pipeline: 2, zero_stage: 3, data: 4}
optimisation: {lr: fast, min_lr: 1.0, global_batch_size: 13, train_iterations: 10}
data: {mock: true, blend: [{weight: 2}], split: x}
seq_length: 64
""",
    )
    with pytest.raises(ConfigError) as caught:
        load(path)
    rest = caught.value.rest
    assert rest is not None
    found = check(rest, 7)
    for words in (
        "parallel.zero_stage 3 is not combined",
        "optimisation.global_batch_size 13 is not a multiple",
        "x data 4 = 8, but the world is 7",
    ):
        assert any(words in problem for problem in found), (words, found)
    # These depend on a key that is wrong or whose value is unclear.
    for key in ("hidden_size", "max_position_embeddings", "min_lr", "data."):
        assert not any(key in problem for problem in found), (key, found)
    assert isinstance(rest, Config)
    assert not has_sound_data(rest)


@pytest.mark.parametrize(
    ("text", "overrides", "hidden"),
    [
        ("{}", ["data.blend=[a"], "data has no data set"),
        ("{}", ["data.blnd=[a"], "data has no data set"),
        ("{}", ["data=[a", "data.mock=true"], "data has no data set"),
        ("{data: {blend: []}}", ["data.blend.prefix=a"], "data has no data set"),
        ("{data: {mock: true, mock: false}}", [], "data has no data set"),
        ("{optimisation: {min_lr: 1.0, min_lr: 2.0}}", [], "min_lr"),
        ("{launcher: {env: {A: 1}}}", ["launcher.env.A=[a", "data.mock=[a"], "data has no data set"),
    ],
)
def test_keys_with_an_unknown_value_are_not_checked(
    tmp_path: Path, text: str, overrides: list[str], hidden: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text), overrides)
    problems = [problem for problem in caught.value.problems if "keep one" not in problem]
    assert not any(hidden in problem or "must be" in problem for problem in problems), problems
    rest = caught.value.rest
    assert rest is not None
    found = check(rest, 7)
    assert found, "the rest is checked"
    assert not any(hidden in problem for problem in found), found


def test_override_without_a_key_prevents_further_checks(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, "{seed: x}"), ["data.mock true"])
    assert len(caught.value.problems) == 2
    assert caught.value.rest is None


def test_the_schema_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().name = "other"  # type: ignore[misc]


def test_nothing_here_imports_torch() -> None:
    code = (
        "import sys; from rdm_core import config, partition; from rdm_core.cost import flops, dry_run; "
        "from rdm_trainer import cli; from rdm_trainer.engines.deepspeed import config as c2; "
        "from rdm_trainer.cli import train, config as c, dry_run as d; "
        "sys.exit('torch' in sys.modules or 'deepspeed' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("logging.trace_steps", "22-20", "give the first and the last step, as 20-22"),
        ("logging.trace_steps", "soon", "give the first and the last step, as 20-22"),
        ("logging.trace_steps", "1-500", "names 500 steps; at most 100"),
        ("launcher.profiler_steps", "0-1", "give the first and the last step"),
    ],
)
def test_invalid_steps_are_refused(key: str, text: str, message: str) -> None:
    section, name = key.split(".")
    base = Config()
    config = dataclasses.replace(
        base, **{section: dataclasses.replace(getattr(base, section), **{name: text})}
    )
    assert any(message in problem for problem in check(config))


@pytest.mark.parametrize(
    ("gres", "is_taken"),
    [
        ("gpu:a10:4", True),
        ("gpu:4", True),
        ("gpu", True),
        ("nvme:1T", True),
        ("gpu:hgx:4,nvme:100G", True),
        ("gpu:a10:1234567890123", False),
        ("gpu:a10:", False),
    ],
)
def test_generic_resources_are_taken_as_slurm_writes_them(gres: str, is_taken: bool) -> None:
    job = from_dict({**SOUND, "launcher": {"kind": "slurm", "slurm": {"gres": gres}}})
    assert is_taken is not any("takes it as" in problem for problem in check(job))


T5 = "kind=t5 vocab_extra_ids=9"


@pytest.mark.parametrize(
    ("model", "parallel", "sentence"),
    [
        ("query_groups=5", "", "attention_heads 12 is not a multiple of model.query_groups 5"),
        ("query_groups=4", "tensor=6", "tensor 6 neither divides model.query_groups 4 nor is a multiple"),
        ("query_groups=1 kv_channels=2", "tensor=12", "kv_channels 2 is too small for the 12 tensor"),
        ("qk_norm=true", "", "set model.norm to rmsnorm"),
        ("position_embedding=rope kv_channels=7", "", "width 7 cannot be rotated"),
        (
            *("position_embedding=rope layers=4", "pipeline=2 partition=0-4"),
            "leaves the first stage nothing but the word embedding",
        ),
        (
            "rope_scaling.kind=llama3 rope_scaling.factor=8 rope_scaling.low_freq_factor=4"
            " rope_scaling.original_max_position_embeddings=512",
            "",
            "is for rotary positions",
        ),
        (
            "position_embedding=rope rope_scaling.kind=yarn rope_scaling.factor=8 rope_scaling.beta_slow=32"
            " rope_scaling.original_max_position_embeddings=512",
            "",
            "beta_slow 32 is not below beta_fast 32",
        ),
        (f"{T5} query_groups=2", "", "query_groups is not for a T5"),
        ("kind=bert sliding_window=9", "", "sliding_window is for a decoder, but model.kind is bert"),
        ("kind=bert vocab_extra_ids=9", "", "vocab_extra_ids is for a T5, but model.kind is bert"),
        ("position_embedding=relative", "", "relative is for a T5, but model.kind is gpt"),
        ("scale_logits=true", "", "scale_logits is for a T5, but model.kind is gpt"),
        ("lm_head_bias=true", "", "head_bias is for a T5, but model.kind is gpt"),
        (f"{T5} lm_head_bias=true tied_embeddings=false", "", "head_bias is for tied embeddings"),
        (
            f"{T5} position_embedding=relative relative_attention_num_buckets=31",
            "",
            "is 31; an encoder has as many for either direction",
        ),
        (
            f"{T5} position_embedding=relative relative_attention_max_distance=16",
            "",
            "max_distance 16 is not above half of",
        ),
    ],
)
def test_invalid_model_is_one_sentence(model: str, parallel: str, sentence: str) -> None:
    overrides = [f"model.{word}" for word in model.split()] + [
        f"parallel.{word}" for word in parallel.split()
    ]
    job = from_dict({"data": {"mock": True}, "optimisation": {"train_iterations": 1}}, overrides)
    problems = list(check(job))
    assert any(sentence in problem for problem in problems), problems

# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights from and to Megatron's checkpoints, under every tensor and pipeline degree."""

from __future__ import annotations

import argparse
import dataclasses
import enum
from pathlib import Path
from typing import Any

import pytest
import torch

from rdm_core.config import Config, ModelConfig, check, load
from rdm_core.errors import TrainerError
from rdm_trainer.cli import main
from rdm_trainer.weights import megatron
from rdm_trainer.weights.sources import open_source, require_model
from tests.unit.test_weights import GPT2, LLAMA, InMemory, shaken

MODELS = {
    "gpt": dataclasses.replace(GPT2, layers=4),
    "llama": dataclasses.replace(LLAMA, layers=4, query_groups=4),
    "qwen2": dataclasses.replace(LLAMA, layers=4, biases="qkv", tied_embeddings=True),
    "qwen3": dataclasses.replace(LLAMA, layers=4, qk_norm=True, kv_channels=16),
}


def same(found: Any, source: InMemory) -> None:
    for name in dict(source.built.named_parameters()):
        assert torch.equal(found.whole(name), source.whole(name)), name
        assert found.shape(name) == tuple(source.whole(name).shape)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_the_same_behind_every_layout(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    source = shaken(model)
    for tensor, pipeline, fused in ((1, 1, False), (2, 1, True), (1, 4, True), (2, 2, False)):
        where = tmp_path / f"{tensor}-{pipeline}"
        megatron.write(source, where, tensor=tensor, pipeline=pipeline, fused=fused)
        found = open_source(where)
        require_model(found, Config(model=model))
        same(found, source)


def test_a_rank_has_megatrons_names_and_its_own_rows(tmp_path: Path) -> None:
    source = shaken(MODELS["llama"])
    megatron.write(source, tmp_path / "out", tensor=2, pipeline=2)
    file = tmp_path / "out/release/mp_rank_01_001/model_optim_rng.pt"
    saved = torch.load(file, weights_only=False)
    assert (tmp_path / "out/latest_checkpointed_iteration.txt").read_text() == "release"
    args = vars(saved["args"])
    assert (args["num_layers"], args["num_query_groups"], args["swiglu"]) == (4, 4, True)
    # 50 tokens, padded to a multiple of 8 x 2.
    assert args["padded_vocab_size"] == 64
    layer = "decoder.layers.1."
    names = {name.removeprefix(layer) for name in saved["model"] if name.startswith(layer)}
    assert names == {
        "self_attention.linear_qkv.layer_norm_weight",
        "self_attention.linear_qkv.weight",
        "self_attention.linear_proj.weight",
        "mlp.linear_fc1.layer_norm_weight",
        "mlp.linear_fc1.weight",
        "mlp.linear_fc2.weight",
    }
    gate, up = source.whole("5.mlp.fc1.weight")
    # The second half of the gate, then of the other.
    assert torch.equal(saved["model"][f"{layer}mlp.linear_fc1.weight"], torch.cat((gate[24:], up[24:])))
    assert torch.equal(saved["model"]["output_layer.weight"][:18], source.whole("7.weight")[32:])
    assert "embedding.word_embeddings.weight" not in saved["model"]


class Kind(enum.Enum):
    ONE = 1


def test_an_older_megatrons_names_are_read_and_nothing_is_run(tmp_path: Path) -> None:
    source = shaken(MODELS["gpt"])
    megatron.write(source, tmp_path / "new", fused=False)
    file = tmp_path / "new/release/mp_rank_00/model_optim_rng.pt"
    saved = torch.load(file, weights_only=False)
    older = {
        "self_attention.linear_qkv": "self_attention.query_key_value",
        "self_attention.linear_proj": "self_attention.dense",
        "pre_mlp_layernorm": "post_attention_layernorm",
        "mlp.linear_fc1": "mlp.dense_h_to_4h",
        "mlp.linear_fc2": "mlp.dense_4h_to_h",
    }
    blocks = {}
    for name, weight in saved["model"].items():
        if name.startswith("decoder."):
            for new, old in older.items():
                name = name.replace(new, old)
            blocks[name.removeprefix("decoder.")] = weight
    embedding = {
        kind: {"weight": saved["model"][f"embedding.{kind}.weight"]}
        for kind in ("word_embeddings", "position_embeddings")
    }
    saved["model"] = {"language_model": {"embedding": embedding, "encoder": blocks}}
    # A class that is not made, and the file is read all the same.
    saved["args"].model_type = Kind.ONE
    step = tmp_path / "old/iter_0000007/mp_rank_00"
    step.mkdir(parents=True)
    torch.save(saved, step / "model_optim_rng.pt")
    (tmp_path / "old/latest_checkpointed_iteration.txt").write_text("7")
    same(open_source(tmp_path / "old"), source)
    for changes, words in (
        ({"checkpoint_version": 1.0}, "checkpoint_version before 2.0"),
        (
            {"args": argparse.Namespace(**{**vars(saved["args"]), "num_layers": 5})},
            "has 4 layers in its files",
        ),
        ({"args": argparse.Namespace(**{**vars(saved["args"]), "num_experts": 8})}, "num_experts 8"),
        ({"args": None}, "does not say what its model is"),
    ):
        torch.save({**saved, **changes}, step / "model_optim_rng.pt")
        with pytest.raises(TrainerError, match=words):
            open_source(tmp_path / "old")


def test_from_and_to_megatron_on_the_command_line(tmp_path: Path) -> None:
    model: ModelConfig = MODELS["qwen2"]
    source = shaken(model)
    megatron.write(source, tmp_path / "theirs", tensor=2)
    with pytest.raises(SystemExit, match="0"):
        main(["import", str(tmp_path / "theirs"), str(tmp_path / "job.yaml")])
    job = load(tmp_path / "job.yaml", ["data.mock=true", "optimisation.train_iterations=1"])
    assert list(check(job)) == []
    assert job.checkpoint.init_from == str(tmp_path / "theirs")
    # Into Hugging Face's format, and back under another layout.
    for arguments in (
        [str(tmp_path / "theirs"), str(tmp_path / "hf")],
        [str(tmp_path / "hf"), str(tmp_path / "back"), "--format", "megatron", "--pipeline", "2"],
    ):
        with pytest.raises(SystemExit, match="0"):
            main(["export", *arguments])
    same(open_source(tmp_path / "back"), source)


def test_what_megatron_has_not_is_one_sentence(tmp_path: Path) -> None:
    cases: list[tuple[ModelConfig, dict[str, Any], str]] = [
        (MODELS["gpt"], {"tensor": 3}, "attention_heads 4 are not divisible by 3"),
        (MODELS["gpt"], {"pipeline": 3}, "4 layers are not divisible by 3"),
        (dataclasses.replace(MODELS["llama"], sliding_window=8), {}, "sliding_window"),
    ]
    for model, layout, words in cases:
        with pytest.raises(TrainerError, match=words):
            megatron.write(shaken(model), tmp_path / "out", **layout)
        assert not list(tmp_path.iterdir())

# SPDX-License-Identifier: GPL-3.0-or-later
"""T5 from and to Megatron's checkpoints, compared with megatron-core's own model."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import re
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from rdm_core.config import ModelConfig, check, load
from rdm_core.errors import TrainerError
from rdm_trainer.cli import main
from rdm_trainer.distributed.parameters import shard_spec_of
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.weights.megatron import writing
from rdm_trainer.weights.sources import fill, open_source, require_model
from tests.unit.test_megatron_experts import load_into, save_distributed, transformer_config
from tests.unit.test_megatron_weights import same
from tests.unit.test_weights import GPT2, T5, build, randomised

LEARNED = dataclasses.replace(GPT2, kind="t5", decoder_seq_length=20, vocab_size=45, vocab_extra_ids=5)
MODELS = {
    "learned": LEARNED,
    "biased head": dataclasses.replace(LEARNED, lm_head_bias=True),
    "untied": dataclasses.replace(LEARNED, layers=4, tied_embeddings=False, kv_channels=6),
    "relative": dataclasses.replace(
        T5, decoder_layers=2, softmax_scale=None, scale_logits=False, activation="swiglu"
    ),
}
Weights = dict[str, torch.Tensor]


def saved_of(where: Path) -> dict[str, Any]:
    saved: dict[str, Any] = torch.load(where / "mp_rank_00/model_optim_rng.pt", weights_only=False)
    return saved


@pytest.mark.parametrize("name", MODELS)
def test_a_t5_is_the_same_behind_every_layout(name: str, tmp_path: Path) -> None:
    source = randomised(MODELS[name])
    for tensor, fused in ((2, True), (4, False)):
        writing.write(source, tmp_path / f"{tensor}", tensor=tensor, fused=fused)
        found = same(tmp_path / f"{tensor}", source)
    # Each rank of another layout reads its own part.
    for rank in range(2):
        part = build(source.model, Topology.part(tensor=2, tensor_rank=rank), fill=fill(found))
        for key, weight in part.named_parameters():
            shard_spec = shard_spec_of(weight)
            whole = source.whole(key)
            if shard_spec.vocabulary:
                rows = shard_spec.shape[0] - len(whole)
                whole = torch.cat((whole, torch.zeros(rows, *whole.shape[1:])))
            assert torch.equal(weight, shard_spec.part(whole)), key


def their_model(args: argparse.Namespace) -> Any:
    """Return megatron-core's model for a training's arguments, as its ``pretrain_t5.py`` makes it."""
    from megatron.core.models.T5 import T5Model, t5_spec

    config = transformer_config(args)
    encoder_config = copy.deepcopy(config)
    encoder_config.num_layers = args.encoder_num_layers
    encoder = t5_spec.get_t5_encoder_with_local_block_spec(args.encoder_num_layers)
    decoder = t5_spec.get_t5_decoder_with_local_block_spec(args.num_layers)
    for block in (encoder, decoder):
        # Its last norm is Transformer Engine's, which is not here.
        block.layer_norm = block.layer_specs[0].submodules.input_layernorm
    return T5Model(
        config,
        encoder_config,
        encoder,
        decoder,
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        parallel_output=False,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        position_embedding_type=args.position_embedding_type,
        relative_attention_num_buckets=args.relative_attention_num_buckets,
        relative_attention_max_distance=args.relative_attention_max_distance,
    ).eval()


@pytest.mark.usefixtures("_megatron_core_on_cpu")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_megatron_cores_own_model_computes_the_same(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    source = randomised(model)
    writing.write(source, tmp_path / "out", fused=False)
    saved = saved_of(tmp_path / "out/release")
    theirs = their_model(saved["args"])
    load_into(theirs, saved["model"])
    # What it saves itself is read, in either format. Only in the other one, the encoder's own degree matters.
    args = argparse.Namespace(**vars(saved["args"]), encoder_tensor_model_parallel_size=2)
    for number, metadata in enumerate(({}, {"singleton_local_shards": True})):
        distributed = tmp_path / f"{number}/iter_0000007"
        save_distributed(theirs, metadata, args, distributed)
        same(distributed.parent, source)
    step = tmp_path / "theirs/iter_0000007/mp_rank_00"
    step.mkdir(parents=True)
    torch.save({**saved, "model": theirs.state_dict()}, step / "model_optim_rng.pt")
    (tmp_path / "theirs/latest_checkpointed_iteration.txt").write_text("7")
    same(tmp_path / "theirs", source)
    if model.position_embedding == "relative":
        # Without Transformer Engine, its attention has no such positions.
        return
    tokens = torch.randint(1, 50, (3, 24), generator=torch.Generator().manual_seed(2))
    others = tokens[:, 4:].flip(0)
    none = torch.zeros(3, 1, 1, 1, dtype=torch.bool)
    logits = theirs(
        tokens,
        others,
        none.expand(-1, 1, 24, 24),
        torch.ones(20, 20).triu(1).bool()[None, None].expand(3, 1, -1, -1),
        none.expand(-1, 1, 20, 24),
    )
    torch.testing.assert_close(source.built((tokens, others)), logits[..., :50], atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("_megatron_core_on_cpu")
@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_a_distributed_t5_of_another_model_is_one_sentence(tmp_path: Path) -> None:
    writing.write(randomised(LEARNED), tmp_path / "out", fused=False)
    saved = saved_of(tmp_path / "out/release")
    theirs = their_model(saved["args"])
    theirs.load_state_dict(saved["model"], strict=False)
    fewer = argparse.Namespace(**{**vars(saved["args"]), "decoder_num_layers": 1})
    save_distributed(theirs, {}, fewer, tmp_path / "fewer/iter_0000007")
    with pytest.raises(TrainerError, match="has other decoder layers in its files than the 1 of its arg"):
        open_source(tmp_path / "fewer")
    # The padding of a head's bias is no token's.
    theirs.output_layer.bias[50] = 1.0
    save_distributed(theirs, {}, saved["args"], tmp_path / "padded/iter_0000007")
    assert not open_source(tmp_path / "padded").model.lm_head_bias
    theirs.output_layer.bias[49] = 1.0
    save_distributed(theirs, {}, saved["args"], tmp_path / "biased/iter_0000007")
    assert open_source(tmp_path / "biased").model.lm_head_bias


def stages_of(weights: Weights, encoder: list[list[int]], decoder: list[list[int]]) -> list[Weights]:
    """Return the weights of each stage as Megatron-core splits a T5: the encoder's stages come first.

    Args:
        weights: Those of all stages.
        encoder: The numbers of the encoder's layers in each of its stages.
        decoder: The same for the decoder.
    """
    made = []
    for stack, stages in (("encoder", encoder), ("decoder", decoder)):
        for layers in stages:
            own: Weights = {}
            for name, weight in weights.items():
                if match := re.fullmatch(rf"{stack}\.layers\.(\d+)\.(.+)", name):
                    if (number := int(match[1])) in layers:
                        own[f"{stack}.layers.{layers.index(number)}.{match[2]}"] = weight
                elif name.startswith(("embedding.", "position_embeddings.")):
                    # The first stage of either stack embeds its tokens.
                    if layers is stages[0]:
                        own[name] = weight
                elif name.startswith(f"{stack}.") or (stack == "decoder" and _HEAD.match(name)):
                    if layers is stages[-1]:
                        own[name] = weight
                elif "relative_pos_emb" in name:
                    own[name] = weight
            made.append(own)
    made[-1]["output_layer.weight"] = weights.get("output_layer.weight", weights[_EMBEDDING])
    return made


_EMBEDDING = "embedding.word_embeddings.weight"
_HEAD = re.compile(r"(lm_head\.)?output_layer\.")
_OLDER_NAMES = {
    "self_attention.linear_qkv": "self_attention.query_key_value",
    "self_attention.linear_proj": "self_attention.dense",
    "cross_attention.linear_q.": "inter_attention.query.",
    "cross_attention.linear_kv": "inter_attention.key_value",
    "cross_attention.linear_proj": "inter_attention.dense",
    "mlp.linear_fc1": "mlp.dense_h_to_4h",
    "mlp.linear_fc2": "mlp.dense_4h_to_h",
}


def older(weights: Weights) -> dict[str, Any]:
    """Return a stage's weights as the Megatron-LM before Megatron-core nests and names them."""
    stacks: dict[str, Weights] = {}
    for name, weight in weights.items():
        stack, _, rest = name.partition(".")
        norms = {"pre_mlp_layernorm": "post_attention_layernorm"}
        if stack == "decoder":
            norms = {
                "pre_mlp_layernorm": "post_inter_attention_layernorm",
                "pre_cross_attn_layernorm": "post_attention_layernorm",
            }
        for new, old in {**_OLDER_NAMES, **norms}.items():
            rest = rest.replace(new, old)
        if stack in ("encoder", "decoder"):
            stacks.setdefault(stack, {})[rest] = weight
    found: dict[str, Any] = {"language_model": dict(stacks)}
    if _EMBEDDING in weights:
        found["language_model"]["embedding"] = {
            name.split(".")[1]: {"weight": weight}
            for name, weight in weights.items()
            if name.startswith("embedding.")
        }
    if "decoder.final_layernorm.weight" in weights:
        found["lm_head"] = {"bias": weights["output_layer.bias"]}
    return found


@pytest.mark.parametrize(
    ("form", "name", "encoder", "decoder"),
    [
        ("core", "biased head", [[0], [1]], [[0], [1]]),
        ("core", "untied", [[0, 1], [2, 3]], [[0], [1], [2], [3]]),
        ("core", "relative", [[0, 1]], [[0, 1]]),
        # It has learned positions and a tied head alone.
        ("older", "biased head", [[0], [1]], [[0, 1]]),
        ("older", "learned", [[0, 1]], [[0], [1]]),
    ],
)
def test_a_split_into_stages_of_encoder_and_decoder_is_read(
    form: str, name: str, encoder: list[list[int]], decoder: list[list[int]], tmp_path: Path
) -> None:
    source = randomised(MODELS[name])
    writing.write(source, tmp_path / "out", tensor=2, fused=form == "core")
    for rank in (0, 1):
        file = f"mp_rank_0{rank}/model_optim_rng.pt"
        saved = torch.load(tmp_path / "out/release" / file, weights_only=False)
        saved["args"].pipeline_model_parallel_size = len(encoder) + len(decoder)
        saved["args"].pipeline_model_parallel_split_rank = len(encoder)
        for stage, own in enumerate(stages_of(saved["model"], encoder, decoder)):
            step = tmp_path / f"iter_0000007/mp_rank_0{rank}_{stage:03d}"
            step.mkdir(parents=True)
            torch.save({**saved, "model": own if form == "core" else older(own)}, step / "model_optim_rng.pt")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("7")
    same(tmp_path, source)


def test_unsupported_feature_of_megatrons_t5_is_one_sentence(tmp_path: Path) -> None:
    writing.write(randomised(LEARNED), tmp_path / "out")
    saved = saved_of(tmp_path / "out/release")
    file = tmp_path / "out/release/mp_rank_00/model_optim_rng.pt"
    weights = saved["model"]
    assert not weights["lm_head.output_layer.bias"].any()
    for added, arguments, words in (
        ({"embedding.tokentype_embeddings.weight": torch.ones(2)}, {}, "has embedding.tokentype_embeddings"),
        (
            {"output_layer.bias": torch.ones(56)},
            {"untie_embeddings_and_output_weights": True},
            "has a learned output_layer.bias, which here only a T5 with a tied head has",
        ),
        ({}, {"encoder_num_layers": 3}, "has 2 encoder layers in its files, and by its arguments 3"),
        ({}, {"decoder_num_layers": 3}, "has 2 decoder layers in its files, and by its arguments 3"),
        ({}, {"add_qkv_bias": True}, "add_qkv_bias True"),
        ({}, {"encoder_pipeline_model_parallel_size": 1}, "encoder_pipeline_model_parallel_size 1, and in"),
        ({}, {"position_embedding_type": "rope"}, "rope; relative and learned_absolute are known"),
    ):
        args = argparse.Namespace(**{**vars(saved["args"]), **arguments})
        torch.save({**saved, "args": args, "model": {**weights, **added}}, file)
        with pytest.raises(TrainerError, match=words):
            open_source(tmp_path / "out")
    # The padding of a head's bias is no token's.
    padded = {"output_layer.bias": torch.arange(56) >= 50}
    torch.save({**saved, "model": {**weights, **padded}}, file)
    same(tmp_path / "out", randomised(LEARNED))
    # A tokenizer says how many tokens there are; without its number, the padding is not known.
    args = argparse.Namespace(**{**vars(saved["args"]), "vocab_size": None})
    torch.save({**saved, "args": args}, file)
    found = open_source(tmp_path / "out").model
    assert (found.vocab_size, found.vocab_extra_ids) == (56, 0)


def test_what_megatron_has_not_is_one_sentence(tmp_path: Path) -> None:
    cases: list[tuple[ModelConfig, dict[str, Any], str]] = [
        (LEARNED, {"pipeline": 2}, "A T5 is written for one stage"),
        (LEARNED, {"virtual": 2}, "A T5 is written for one stage"),
        (dataclasses.replace(LEARNED, decoder_layers=3), {}, "decoder_layers 3 with layers 2"),
        (
            dataclasses.replace(LEARNED, lm_head_bias=True, tied_embeddings=False),
            {},
            "lm_head_bias with tied_embeddings false is not written",
        ),
        (dataclasses.replace(LEARNED, scale_logits=True), {}, "scale_logits true and biases all"),
        (
            dataclasses.replace(LEARNED, position_embedding="rope"),
            {},
            "position_embedding rope of a t5 is not written for Megatron; take relative or learned",
        ),
        (dataclasses.replace(LEARNED, activation="relu"), {}, "model.activation relu"),
        (dataclasses.replace(LEARNED, softmax_scale=1.0), {}, "softmax_scale 1.0 is not written"),
        (dataclasses.replace(GPT2, kind="bert"), {}, "model.kind is bert"),
    ]
    for model, layout, words in cases:
        with pytest.raises(TrainerError, match=words):
            writing.write(types.SimpleNamespace(model=model), tmp_path / "out", **layout)
        assert not list(tmp_path.iterdir())


def test_a_t5_from_and_to_megatron_on_the_command_line(tmp_path: Path) -> None:
    source = randomised(MODELS["untied"])
    writing.write(source, tmp_path / "theirs", tensor=2)
    for arguments in (
        ["import", str(tmp_path / "theirs"), str(tmp_path / "job.yaml")],
        ["export", str(tmp_path / "theirs"), str(tmp_path / "back"), "--format", "megatron", "--tensor", "4"],
    ):
        with pytest.raises(SystemExit, match="0"):
            main(arguments)
    job = load(tmp_path / "job.yaml", ["data.mock=true", "optimisation.train_iterations=1"])
    assert list(check(job)) == []
    require_model(open_source(tmp_path / "theirs"), job)
    same(tmp_path / "back", source)

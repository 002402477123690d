# SPDX-License-Identifier: GPL-3.0-or-later
"""Mixtures of Experts from and to Megatron's checkpoints, compared with megatron-core's own model."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from rdm_core.config import ModelConfig
from rdm_core.errors import TrainerError
from rdm_trainer.checkpoint.boxes import Box
from rdm_trainer.checkpoint.distributed import write
from rdm_trainer.models.moe import load_balancing_loss
from rdm_trainer.weights.megatron import writing
from rdm_trainer.weights.sources import open_source
from tests.unit.test_megatron_weights import same, the_same_behind_every_layout
from tests.unit.test_weights import MIXTRAL, randomised

MODELS = {
    "mixtral": dataclasses.replace(MIXTRAL, layers=4),
    "qwen3-moe": dataclasses.replace(
        MIXTRAL, layers=4, kv_channels=16, qk_norm=True, moe_router_topk=3, moe_norm_topk_prob=False
    ),
    "gelu": dataclasses.replace(MIXTRAL, layers=4, activation="gelu", moe_expert_capacity_factor=1.5),
}
Weights = dict[str, torch.Tensor]


@pytest.mark.parametrize("name", MODELS)
def test_experts_are_the_same_behind_every_layout(name: str, tmp_path: Path) -> None:
    the_same_behind_every_layout(randomised(MODELS[name]), tmp_path)


def transformer_config(args: argparse.Namespace, *same_name: str, **more: Any) -> Any:
    """Return megatron-core's configuration for a training's arguments, with more of them by their names."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    same_name += ("num_layers", "hidden_size", "num_attention_heads", "kv_channels", "ffn_hidden_size")
    same_name += ("add_bias_linear", "normalization", "layernorm_epsilon")
    return TransformerConfig(
        **{name: getattr(args, name) for name in same_name},
        gated_linear_unit=args.swiglu,
        activation_func=functional.silu if args.swiglu else lambda x: functional.gelu(x, approximate="tanh"),
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        perform_initialization=False,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        **more,
    )


def load_into(model: Any, weights: Weights) -> None:
    """Load weights into megatron-core's model, which must have the same."""
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert unexpected == []
    assert [key for key in missing if not key.endswith("_extra_state")] == []


def their_model(args: argparse.Namespace) -> Any:
    """Return megatron-core's model for a training's arguments."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    config = transformer_config(
        args,
        *("num_query_groups", "moe_ffn_hidden_size", "moe_router_topk", "moe_router_pre_softmax"),
        *("moe_aux_loss_coeff", "moe_router_load_balancing_type", "moe_layer_freq", "moe_grouped_gemm"),
        *("add_qkv_bias", "qk_layernorm"),
        num_moe_experts=args.num_experts,
    )
    spec = get_gpt_layer_local_spec(
        num_experts=args.num_experts,
        moe_grouped_gemm=args.moe_grouped_gemm,
        qk_layernorm=args.qk_layernorm,
        normalization=args.normalization,
    )
    return GPTModel(
        config,
        spec,
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        position_embedding_type=args.position_embedding_type,
        rotary_base=args.rotary_base,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        parallel_output=False,
    ).eval()


def save_distributed(model: Any, metadata: dict[str, Any], args: argparse.Namespace, step: Path) -> None:
    """Write a model's pieces, as it names and cuts them, in the format ``torch_dist``."""
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories

    pieces = model.sharded_state_dict(metadata=metadata)
    apply_factories(pieces)
    parts = [
        Box(
            one.key,
            tuple(one.global_shape),
            tuple(one.global_offset),
            one.data.detach()[(None,) * one.prepend_axis_num].contiguous(),
        )
        for one in nested_values(pieces)
        if isinstance(one, ShardedTensor)
    ]
    step.mkdir(parents=True)
    write(step, parts, None)
    torch.save({"args": args, "iteration": 7}, step / "common.pt")
    (step / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist"}))
    (step.parent / "latest_checkpointed_iteration.txt").write_text("7")


@pytest.mark.usefixtures("_megatron_core_on_cpu")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe"])
@torch.no_grad()
def test_megatron_cores_own_model_computes_the_same(name: str, tmp_path: Path) -> None:
    from megatron.core.transformer.moe.moe_utils import switch_load_balancing_loss_func

    model = MODELS[name]
    source = randomised(model)
    writing.write(source, tmp_path / "out", fused=False)
    file = tmp_path / "out/release/mp_rank_00/model_optim_rng.pt"
    saved = torch.load(file, weights_only=False)
    theirs = their_model(saved["args"])
    load_into(theirs, saved["model"])
    tokens = torch.randint(0, 50, (3, 24), generator=torch.Generator().manual_seed(2))
    hidden = torch.ones(24, 24).triu(1).bool()
    logits = theirs(tokens, torch.arange(24).expand(3, -1), hidden[None, None])
    torch.testing.assert_close(source.built(tokens), logits[..., :50], atol=1e-4, rtol=1e-4)
    # Its checkpoints are read, with experts in one tensor or apart.
    for number, metadata in enumerate(({}, {"singleton_local_shards": True})):
        step = tmp_path / f"{number}/iter_0000007"
        save_distributed(theirs, metadata, saved["args"], step)
        same(step.parent, source)
    # The load-balancing loss has the same weight there as here.
    probabilities = torch.rand(20, 4).softmax(dim=-1)
    experts = probabilities.topk(model.moe_router_topk).indices
    there = switch_load_balancing_loss_func(
        probabilities,
        experts.flatten().bincount(minlength=4),
        20,
        saved["args"].moe_router_topk,
        4,
        saved["args"].moe_aux_loss_coeff,
    )
    here = model.moe_aux_loss_coeff * load_balancing_loss(probabilities, experts)
    torch.testing.assert_close(there * model.layers, here)


def test_transformer_engine_keeps_the_norm_before_experts_separate(tmp_path: Path) -> None:
    writing.write(randomised(MODELS["mixtral"]), tmp_path / "out", tensor=2)
    saved = torch.load(tmp_path / "out/release/mp_rank_01/model_optim_rng.pt", weights_only=False)
    layer = "decoder.layers.3."
    shapes = {
        key.removeprefix(layer): tuple(weight.shape)
        for key, weight in saved["model"].items()
        if key.startswith(layer) and "local_experts.1" not in key and "local_experts.2" not in key
    }
    assert shapes == {
        "self_attention.linear_qkv.layer_norm_weight": (32,),
        "self_attention.linear_qkv.weight": (32, 32),
        "self_attention.linear_proj.weight": (32, 16),
        "pre_mlp_layernorm.weight": (32,),
        "mlp.router.weight": (4, 32),
        **{
            f"mlp.experts.local_experts.{number}.linear_{matrix}.weight": shape
            for number in (0, 3)
            for matrix, shape in (("fc1", (24, 32)), ("fc2", (32, 12)))
        },
    }


def transformer_engines(weights: Weights) -> Weights:
    """Return experts' weights as ``TEGroupedMLP`` names them."""
    pattern = r"local_experts\.(\d+)\.(linear_fc.)\.weight"
    return {re.sub(pattern, r"\2.weight\1", name): weight for name, weight in weights.items()}


def grouped(weights: Weights) -> Weights:
    """Return experts' weights as ``GroupedMLP`` has them: one matrix for all of a rank, turned."""
    found = {name: weight for name, weight in weights.items() if "local_experts" not in name}
    for name, weight in weights.items():
        if match := re.fullmatch(r"(.*experts\.)local_experts\.0\.linear_fc(.)\.weight", name):
            others = (name.replace("experts.0", f"experts.{number}") for number in range(len(weights)))
            experts = torch.stack([weights[one].t() for one in others if one in weights])
            width = -1 if match[2] == "1" else weight.shape[0]
            found[f"{match[1]}weight{match[2]}"] = experts.reshape(32 if width == -1 else -1, width)
    return found


@pytest.mark.parametrize(("pipeline", "virtual"), [(1, 1), (2, 2)])
@pytest.mark.parametrize("named", [dict, transformer_engines, grouped])
def test_ranks_that_share_experts_are_joined(
    named: Callable[[Weights], Weights], pipeline: int, virtual: int, tmp_path: Path
) -> None:
    source = randomised(MODELS["mixtral"])
    writing.write(source, tmp_path / "out", tensor=2, pipeline=pipeline, virtual=virtual)
    (tmp_path / "iter_0000007").mkdir()
    for folder in (tmp_path / "out/release").iterdir():
        saved = torch.load(folder / "model_optim_rng.pt", weights_only=False)
        saved["args"].expert_model_parallel_size = 2
        for rank in range(2):
            stored = {}
            for chunk in [key for key in saved if key.startswith("model")]:
                own: Weights = {}
                for name, weight in saved[chunk].items():
                    match = re.search(r"local_experts\.(\d+)\.", name)
                    if match is None:
                        own[name] = weight
                    elif (number := int(match[1])) // 2 == rank:
                        own[name.replace(f"experts.{number}.", f"experts.{number % 2}.")] = weight
                stored[chunk] = named(own)
            target = tmp_path / f"iter_0000007/{folder.name}_{rank:03d}"
            target.mkdir()
            torch.save({**saved, **stored}, target / "model_optim_rng.pt")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("7")
    same(tmp_path, source)


def test_unsupported_experts_are_one_sentence(tmp_path: Path) -> None:
    writing.write(randomised(MODELS["mixtral"]), tmp_path / "out")
    file = tmp_path / "out/release/mp_rank_00/model_optim_rng.pt"
    saved = torch.load(file, weights_only=False)
    for changes, words in (
        ({"num_experts": [4]}, r"num_experts \[4\], and models here have one number"),
        ({"add_bias_linear": True}, "num_experts 4 and add_bias_linear True"),
        ({"moe_shared_expert_intermediate_size": 64}, "moe_shared_expert_intermediate_size 64"),
        ({"moe_layer_freq": [0, 1, 1, 1]}, r"moe_layer_freq \[0, 1, 1, 1\], which models here have not"),
        ({"moe_router_score_function": "sigmoid"}, "moe_router_score_function sigmoid"),
        ({"moe_router_load_balancing_type": "sinkhorn"}, "load_balancing_type sinkhorn; aux_loss and none"),
        ({"expert_tensor_parallel_size": 2}, "expert_tensor_parallel_size 2 .* --ckpt-format torch_dist"),
    ):
        torch.save({**saved, "args": argparse.Namespace(**{**vars(saved["args"]), **changes})}, file)
        with pytest.raises(TrainerError, match=words):
            open_source(tmp_path / "out")
    known: dict[str, Any] = {
        "moe_layer_freq": [1] * 4,
        "moe_router_load_balancing_type": ["none"],
        "moe_aux_loss_coeff": [0.5],
        "expert_tensor_parallel_size": 1,
    }
    torch.save({**saved, "args": argparse.Namespace(**{**vars(saved["args"]), **known})}, file)
    assert open_source(tmp_path / "out").model.moe_aux_loss_coeff == 0.0
    saved["model"].pop("decoder.layers.2.mlp.experts.local_experts.1.linear_fc2.weight")
    torch.save(saved, file)
    with pytest.raises(TrainerError, match=r"lacks decoder.layers.2.mlp.experts.local_experts.1.linear_fc2"):
        open_source(tmp_path / "out").whole("4.mlp.experts.fc2")
    single: ModelConfig = dataclasses.replace(MODELS["mixtral"], moe_router_topk=1)
    with pytest.raises(TrainerError, match="moe_router_topk 1 with moe_norm_topk_prob true"):
        writing.write(types.SimpleNamespace(model=single), tmp_path / "single")

# SPDX-License-Identifier: GPL-3.0-or-later
"""GPT and T5 as lists of layers, on one process."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from rdm_core.config import Config, DataConfig, ModelConfig, ParallelConfig
from rdm_core.cost import flops
from rdm_core.cost.flops import LayerSize
from rdm_core.errors import TrainerError
from rdm_trainer import models
from rdm_trainer.data.loaders import starts_of
from rdm_trainer.distributed.parameters import shard_spec_of
from rdm_trainer.distributed.pipeline_parallel import pipeline
from rdm_trainer.distributed.pipeline_parallel.pipeline import FlatModel, bounds, recomputed_blocks
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.models.seen_tokens import first_seen, mask_of
from rdm_trainer.models.t5 import DecoderBlock, EncoderBlock
from rdm_trainer.models.transformer import Block
from tests import architectures

GPT = ModelConfig(
    layers=3, hidden_size=16, attention_heads=4, seq_length=8, vocab_size=50, make_vocab_size_divisible_by=8
)
QWEN = dataclasses.replace(GPT, query_groups=2, kv_channels=6, ffn_hidden_size=24, **architectures.QWEN)
MOE = dataclasses.replace(QWEN, biases="none", experts=4, moe_router_topk=2)
T5 = dataclasses.replace(
    GPT,
    kind="t5",
    layers=2,
    decoder_layers=3,
    kv_channels=6,
    ffn_hidden_size=40,
    decoder_seq_length=6,
    vocab_extra_ids=5,
)
# As Megatron has it.
T5_BIASED = dataclasses.replace(T5, lm_head_bias=True)
# As Hugging Face has it.
T5_RELATIVE = dataclasses.replace(
    T5,
    relative_attention_num_buckets=4,
    relative_attention_max_distance=6,
    **architectures.T5_1_1,
)
BERT = dataclasses.replace(GPT, kind="bert")
WIDE = dataclasses.replace(GPT, kv_channels=6, ffn_hidden_size=40, max_position_embeddings=50)
SHAPES = [GPT, WIDE, QWEN, MOE, dataclasses.replace(MOE, activation="gelu"), T5, T5_BIASED, T5_RELATIVE, BERT]


def config(model: ModelConfig, **parallel: Any) -> Config:
    return Config(model=model, parallel=ParallelConfig(**parallel))


def built(model: ModelConfig, **parallel: Any) -> FlatModel:
    made = models.build(config(model, **parallel), Topology.single())
    assert isinstance(made, FlatModel)
    return made.eval()


def labels(model: ModelConfig, batch: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (batch, model.decoder_length)
    return torch.randint(0, model.vocab_size, shape), torch.ones(shape)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_parameter_counts_match_the_formula(shape: ModelConfig, tied: bool) -> None:
    shape = dataclasses.replace(shape, tied_embeddings=tied)
    assert sum(weight.numel() for weight in built(shape).parameters()) == flops.parameters(config(shape).spec)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tensor", [1, 2])
def test_layer_sizes_match_the_formula(shape: ModelConfig, tied: bool, tensor: int) -> None:
    job = config(dataclasses.replace(shape, tied_embeddings=tied), tensor=tensor)
    sizes: list[LayerSize] = []
    for layer in models.layers(job, Topology.part(tensor=tensor, tensor_rank=tensor - 1)):
        size = LayerSize(layer.kind) if not layer.joined else sizes.pop()
        for weight in layer.make().parameters():
            spec = shard_spec_of(weight)
            kind = "whole" if spec.dimension is None else "experts" if spec.experts else "split"
            count = weight.numel() * (1 if kind == "whole" else tensor)
            size = dataclasses.replace(size, **{kind: getattr(size, kind) + count})
        sizes.append(size)
    assert sizes == [dataclasses.replace(size, idle=0, tied=0) for size in flops.layer_sizes(job.spec)]


@pytest.mark.parametrize("shape", [GPT, QWEN, BERT])
def test_the_loss_is_that_of_the_logits(shape: ModelConfig) -> None:
    model = built(shape)
    tokens, (targets, mask) = torch.randint(0, 50, (2, 8)), labels(shape)
    logits = model(tokens)
    assert logits.shape == (2, 8, shape.vocab_size)
    expected = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    torch.testing.assert_close(model(tokens, (targets, mask)), expected)


def test_the_bias_of_a_t5s_head_is_added_to_the_logits_and_trained() -> None:
    model, (targets, mask) = built(T5_BIASED), labels(T5)
    (bias,) = (weight for name, weight in model.named_parameters() if name.endswith(".head_bias"))
    inputs = torch.randint(1, 50, (2, 8)), torch.randint(1, 50, (2, 6))
    without, tokens = model(inputs), T5.vocab_size + T5.vocab_extra_ids
    bias.data.normal_()
    logits = model(inputs)
    torch.testing.assert_close(logits, without + bias.detach()[:tokens])
    loss = model(inputs, (targets, mask))
    torch.testing.assert_close(loss, functional.cross_entropy(logits.flatten(0, 1), targets.flatten()))
    loss.backward()
    assert bias.grad is not None
    wanted = (logits.softmax(dim=-1) - functional.one_hot(targets, tokens)).mean(dim=(0, 1))
    torch.testing.assert_close(bias.grad[:tokens], wanted)
    assert not bias.grad[tokens:].any()
    assert not shard_spec_of(bias).decays


@pytest.mark.parametrize("shape", [GPT, QWEN])
def test_no_prediction_depends_on_later_tokens(shape: ModelConfig) -> None:
    model = built(shape)
    tokens = torch.randint(0, GPT.vocab_size, (1, 8))
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % GPT.vocab_size
    targets, mask = labels(GPT, 1)
    early = mask.clone()
    early[:, 5:] = 0
    assert model(tokens, (targets, early)).item() == pytest.approx(model(changed, (targets, early)).item())
    assert model(tokens, (targets, mask)).item() != pytest.approx(model(changed, (targets, mask)).item())


def test_every_token_of_a_bert_sees_every_other() -> None:
    model, tokens = built(BERT), torch.randint(0, BERT.vocab_size, (1, 8))
    for position in (0, 7):
        changed = tokens.clone()
        changed[:, position] = (changed[:, position] + 1) % BERT.vocab_size
        assert ((model(tokens) - model(changed)).abs().amax(dim=-1) > 1e-7).all()


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("shape", [GPT, QWEN, MOE])
@torch.no_grad()
def test_documents_of_one_sample_have_the_logits_of_each_alone(
    shape: ModelConfig, window: int | None
) -> None:
    shape = dataclasses.replace(shape, sliding_window=window)
    alone = built(shape)
    # One has a single token, and one's last token ends the sample.
    documents = [torch.randint(1, 50, (2, length)) for length in (3, 1, 4)]
    ends = [torch.cat((part[:, :-1], torch.zeros(2, 1, dtype=torch.int64)), dim=1) for part in documents]
    tokens = torch.cat(ends, dim=1)
    expected = torch.cat([alone(part) for part in ends], dim=1)
    for reset in (True, False):
        job = dataclasses.replace(
            config(shape), data=DataConfig(reset_attention_mask=reset, reset_position_ids=reset)
        )
        job = job if reset else dataclasses.replace(job, data=DataConfig(reset_position_ids=True))
        packed = models.build(job, Topology.single())
        assert isinstance(packed, FlatModel)
        found = packed.eval()((tokens, starts_of(tokens, 0)))
        assert torch.allclose(found, expected, atol=1e-5) == reset


def test_a_window_is_the_tokens_that_a_token_sees() -> None:
    positions = torch.arange(2, 6)
    first = first_seen(positions, torch.tensor([[0, 0, 4, 4]]), 3)
    assert first.tolist() == [[0, 1, 4, 4]]
    seen = mask_of(first, positions, 6)[0, 0].long().tolist()
    assert seen == [[1, 1, 1, 0, 0, 0], [0, 1, 1, 1, 0, 0], [0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 1, 1]]


@pytest.mark.parametrize("shape", [T5, T5_RELATIVE])
def test_a_decoder_sees_the_encoder_but_not_its_padding_nor_its_own_later_tokens(shape: ModelConfig) -> None:
    model = built(shape)
    encoder = torch.randint(1, T5.vocab_size, (1, 8))
    decoder = torch.randint(1, T5.vocab_size, (1, 6))
    targets, mask = labels(T5, 1)
    early = mask.clone()
    early[:, 3:] = 0

    def loss(encoder_tokens: torch.Tensor, decoder_tokens: torch.Tensor = decoder) -> float:
        return float(model((encoder_tokens, decoder_tokens), (targets, early)).detach())

    padded = torch.cat([encoder[:, :5], torch.zeros(1, 3, dtype=torch.int64)], dim=1)
    # How much a token counts depends on the weights, which differ between versions of torch.
    assert abs(loss(padded) - loss(encoder[:, :5])) < abs(loss(padded) - loss(encoder)) / 5
    later = decoder.clone()
    later[:, 3:] = 1
    assert loss(encoder, later) == pytest.approx(loss(encoder))


def test_token_within_a_text_counts_although_padding_has_its_id() -> None:
    """GPT-2's only special token both ends documents and pads."""
    model = built(T5)
    text = torch.randint(1, T5.vocab_size, (1, 5))
    text[0, 2] = 0
    decoder, target = torch.randint(1, T5.vocab_size, (1, 6)), labels(T5, 1)

    def loss(encoder: torch.Tensor) -> float:
        return float(model((encoder, decoder), target).detach())

    within, filled = loss(text), loss(functional.pad(text, (0, 3)))
    for module in model.modules():
        if isinstance(module, EncoderBlock | DecoderBlock):
            module.padding = -1
    assert loss(text) == within
    assert filled == pytest.approx(within)
    assert loss(functional.pad(text, (0, 3))) != pytest.approx(within)


def test_a_sample_without_any_encoder_token_still_has_a_loss() -> None:
    targets = labels(T5, 1)
    empty = torch.zeros(1, 8, dtype=torch.int64)
    assert torch.isfinite(built(T5)((empty, torch.ones(1, 6, dtype=torch.int64)), targets))


def test_checkpointing_changes_no_gradient() -> None:
    pair = tuple(torch.ones(2, 2, 6).long())
    for shape, inputs in ((GPT, torch.randint(0, 50, (2, 8))), (T5, pair), (T5_RELATIVE, pair)):
        gradients = []
        target = labels(shape)
        for interval, recomputed in ((1, 0), (1, 9), (2, 9), (1, 1), (2, 2)):
            model = built(shape).train()
            model.groups = dataclasses.replace(model.groups, interval=interval)
            model.recomputed = [recomputed]
            model(inputs, target).backward()
            gradients.append([weight.grad for weight in model.parameters()])
        for other in gradients[1:]:
            torch.testing.assert_close(gradients[0], other)


@pytest.mark.parametrize("shape", [dataclasses.replace(GPT, layers=6), T5], ids=["gpt", "t5"])
def test_successive_blocks_are_one_graph_that_changes_no_gradient(
    shape: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    attentions: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        attentions.append(graph.code.count("scaled_dot_product_attention("))
        return graph.forward

    compile_anything = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda function, **_: compile_anything(function, backend=backend, fullgraph=True)
    )
    pipeline._compiled_chain.cache_clear()
    inputs: Any = torch.randint(0, 50, (2, 8))
    if shape is T5:
        inputs = tuple(torch.ones(2, 2, 6).long())
    target = labels(shape)
    gradients = []
    for model in (built(shape), models.build(_compiled(config(shape)), Topology.single())):
        order: list[nn.Module] = []
        model.before_layer = order.append
        model(inputs, target).backward()
        assert order == model._modules_of(range(len(model.layers)))
        gradients.append([weight.grad for weight in model.parameters()])
    torch.testing.assert_close(*gradients)
    # A decoder's block attends twice. The other graphs are those of norms and the loss.
    assert [count for count in attentions if count] == ([2, 6] if shape is T5 else [4, 2])
    pipeline._compiled_chain.cache_clear()


def test_tensor_ranks_join_more_blocks_and_replicas_none_in_sync() -> None:
    def joined(job: Config, topology: Topology) -> tuple[int, int]:
        groups = pipeline.BlockGroups.of(job, topology)
        return groups.joined, groups.joined_in_sync

    job = _compiled(config(GPT))
    single, tensor = Topology.single(), Topology.part(tensor=2)
    replicas = dataclasses.replace(tensor, data=2)
    assert [joined(job, topology) for topology in (single, tensor, replicas)] == [(4, 4), (8, 8), (8, 1)]
    assert joined(config(GPT), tensor) == (1, 1)
    # DeepSpeed reduces gradients in every backward pass.
    zero = _compiled(config(GPT, zero_stage=2))
    assert [joined(zero, topology) for topology in (single, replicas)] == [(4, 4), (1, 1)]


def test_an_evaluation_joins_no_blocks_that_training_recomputes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    joined: list[int] = []

    def chain(functions: Any, states: Any) -> Any:
        joined.append(len(functions))
        return pipeline._chain(functions, states)

    monkeypatch.setattr(pipeline, "_compiled_chain", lambda _: chain)
    parallel = {"activation_checkpointing": "full", "activation_checkpointing_blocks": 2}
    job = _compiled(config(dataclasses.replace(GPT, layers=5), **parallel))
    model = models.build(job, Topology.single())
    inputs = torch.randint(0, 50, (2, 8))
    target = labels(GPT)
    trained = model(inputs, target)
    with torch.no_grad():
        evaluated = model(inputs, target)
    torch.testing.assert_close(evaluated, trained)
    assert joined == [3, 3]


@pytest.mark.parametrize(("window", "kept"), [(None, False), (4, True)])
def test_an_evaluation_within_a_window_runs_the_graphs_of_training(
    window: int | None, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    with_gradients: list[bool] = []

    def chain(functions: Any, states: Any) -> Any:
        assert not states.requires_grad
        states = pipeline._chain(functions, states)
        with_gradients.append(states.requires_grad)
        return states

    monkeypatch.setattr(pipeline, "_compiled_chain", lambda _: chain)
    shape = dataclasses.replace(GPT, layers=8, sliding_window=window)
    model = models.build(_compiled(config(shape)), Topology.single()).eval()
    with torch.no_grad():
        loss = model(torch.randint(0, 50, (2, 8)), labels(GPT))
    assert with_gradients == [kept] * 2
    assert not loss.requires_grad


def _compiled(job: Config) -> Config:
    return dataclasses.replace(job, optimisation=dataclasses.replace(job.optimisation, compile=True))


@pytest.mark.parametrize("given", [None, 0, 1, 2, 3, 4, 9])
def test_the_first_blocks_of_a_stage_compute_their_activations_again(given: int | None) -> None:
    parallel = {"activation_checkpointing": "full", "activation_checkpointing_blocks": given}
    model = built(dataclasses.replace(GPT, layers=4), **parallel).train()
    run: list[int] = []
    for number, layer in enumerate(module for module in model.modules() if isinstance(module, Block)):
        layer.register_forward_pre_hook(lambda *_, number=number: run.append(number))
    model(torch.randint(0, 50, (2, 8)), labels(GPT)).backward()
    again = range(4 if given is None else min(given, 4))
    assert run == [0, 1, 2, 3, *reversed(again)]


def test_chunks_of_a_stage_share_the_blocks_that_compute_again() -> None:
    job = config(GPT, activation_checkpointing="full", activation_checkpointing_blocks=3)
    chunk = [layer for layer in models.layers(job, Topology.single()) if layer.kind == "Block"][:2]
    assert recomputed_blocks(job, [chunk, chunk]) == [2, 1]


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        ("even", [0, 4, 7]),
        ("3-0", [0, 5, 7]),
        ("0-3", [0, 2, 7]),
        ("parameters", [0, 3, 7]),
        ("type:Block", [0, 4, 7]),
    ],
)
def test_positions_and_last_norm_stay_with_their_neighbours(partition: str, expected: list[int]) -> None:
    # Embedding, Positions, Block, Block, Block, FinalNorm, Head
    job = config(GPT, pipeline=2, partition=partition)
    assert bounds(job, models.layers(job, Topology.single())) == expected


def test_a_stage_of_nothing_but_the_last_norm_is_refused() -> None:
    job = config(GPT, pipeline=3, partition="type:FinalNorm|Head|Embedding")
    with pytest.raises(TrainerError, match="nothing but the last norm"):
        bounds(job, models.layers(job, Topology.single()))

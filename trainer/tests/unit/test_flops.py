# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from rdm_core.config import Config, from_dict, load
from rdm_core.cost import flops
from rdm_core.model_spec import ModelSpec

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def job(**model: Any) -> Config:
    return from_dict({"model": model})


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        # The two T5s and the 5B: calculated from the documents' scripts.
        ("t5-23b", 19.6),
        ("t5-11b", 9.07),
        ("gpt-5b", 5.05),
        # Published sizes.
        ("gpt2-xl", 1.56),
        ("gpt2-small", 0.124),
        ("gpt-1.3b", 1.32),
        ("gpt-345m", 0.355),
        ("llama3-8b", 8.03),
        ("llama3-70b", 70.6),
        ("qwen3-0.6b", 0.596),
        ("qwen3-1.7b", 1.72),
        ("qwen3-4b", 4.02),
        ("qwen3-8b", 8.19),
        ("qwen3-14b", 14.77),
        ("qwen3-32b", 32.76),
        ("qwen3-30b-a3b", 30.5),
        ("mixtral-8x7b", 46.7),
    ],
)
def test_the_documents_models_have_their_size(name: str, billions: float) -> None:
    count = flops.parameters(load(CONFIGS / f"{name}.yaml").spec)
    assert count / 1e9 == pytest.approx(billions, rel=0.005)


def test_gpt2_is_counted_to_the_parameter() -> None:
    # 124,439,808 is GPT-2 small's published count, with its 50257 tokens unpadded.
    config = job(make_vocab_size_divisible_by=1)
    assert flops.parameters(config.spec) == 124_439_808


QWEN3 = ModelSpec(
    layers=28,
    hidden_size=1024,
    heads=16,
    key_value_heads=8,
    head_size=128,
    ffn_size=3072,
    ffn="gated",
    norm="rms",
    qk_norm=True,
    biases="none",
    positions=0,
    vocab_size=151936,
    padded_vocab_size=151936,
    seq_length=4096,
    decoder_length=4096,
)


def test_models_of_other_kinds_are_counted_to_the_parameter() -> None:
    # Published: Qwen3-0.6B has 596,049,920, Llama 3 8B 8,030,261,248.
    assert flops.parameters(QWEN3) == 596_049_920
    llama = dataclasses.replace(
        QWEN3,
        layers=32,
        hidden_size=4096,
        heads=32,
        ffn_size=14336,
        qk_norm=False,
        padded_vocab_size=128256,
        tied_embeddings=False,
    )
    assert flops.parameters(llama) == 8_030_261_248


@pytest.mark.parametrize(
    ("name", "total", "active"),
    # transformers' models of the published configurations have the same counts. The published active counts
    # are 12.9 and 3.3 billion.
    [("mixtral-8x7b", 46_702_792_704, 12.9), ("qwen3-30b-a3b", 30_532_122_624, 3.35)],
)
def test_models_with_experts_are_counted_to_the_parameter(name: str, total: int, active: float) -> None:
    spec = load(CONFIGS / f"{name}.yaml", ["model.make_vocab_size_divisible_by=1"]).spec
    assert flops.parameters(spec) == total
    assert flops.active_parameters(spec) / 1e9 == pytest.approx(active, rel=0.005)


def test_flops_of_all_layers_add_up_to_a_samples_for_each_model() -> None:
    forward = sum(flops.forward_flops(QWEN3, layer) for layer in flops.layer_sizes(QWEN3))
    assert 3 * forward == pytest.approx(flops.flops_per_sample(QWEN3))
    window = dataclasses.replace(QWEN3, window=QWEN3.seq_length // 4)
    forward = sum(flops.forward_flops(window, layer) for layer in flops.layer_sizes(window))
    assert 3 * forward == pytest.approx(flops.flops_per_sample(window))
    scores = 12 * QWEN3.layers * QWEN3.attention_size * QWEN3.seq_length**2
    saved = flops.flops_per_sample(QWEN3) - flops.flops_per_sample(window)
    assert saved == pytest.approx(scores * 3 / 4)
    assert flops.flops_per_sample(dataclasses.replace(QWEN3, window=10**6)) == flops.flops_per_sample(QWEN3)
    t5 = job(kind="t5", vocab_extra_ids=10, layers=3, seq_length=64, decoder_seq_length=16).spec
    shared = dataclasses.replace(t5, key_value_heads=1, head_size=64, heads=12)
    forward = sum(flops.forward_flops(shared, layer) for layer in flops.layer_sizes(shared))
    assert 3 * forward == pytest.approx(flops.flops_per_sample(shared), rel=1e-3)


def test_a_gpt_takes_six_flops_per_parameter_and_token_and_its_attention() -> None:
    config = job(layers=3, hidden_size=64, attention_heads=4, seq_length=128)
    expected = 6 * flops.parameters(config.spec) + 12 * 3 * 64 * 128
    assert flops.flops_per_token(config.spec) == pytest.approx(expected)


def test_a_t5_is_counted_by_its_two_sides() -> None:
    shape: dict[str, Any] = {"hidden_size": 64, "attention_heads": 4, "seq_length": 128, "vocab_extra_ids": 1}
    both = job(kind="t5", layers=2, **shape)
    more_encoder = job(kind="t5", layers=3, decoder_layers=2, **shape)
    block = flops.layer_parameters(more_encoder.spec)[1]
    added = flops.flops_per_sample(more_encoder.spec) - flops.flops_per_sample(both.spec)
    assert added == pytest.approx(128 * (6 * block + 12 * 64 * 128))
    # By hand: a block of the encoder, its norm; a block of the decoder, its norm, its head.
    t5 = job(kind="t5", layers=1, decoder_seq_length=32, **shape).spec
    cross = 2 * 65 * 64
    products = 128 * (block + cross + 128) + 32 * (block + 4 * 65 * 64 - cross + 128 + 128)
    products += 32 * t5.padded_vocab_size * 64
    scores = 64 * (128 * 128 + 32 * (32 + 128))
    assert flops.flops_per_sample(t5) == pytest.approx(6 * products + 12 * scores)
    # A bias of the head is one value for each token of the decoder.
    biased = flops.flops_per_sample(dataclasses.replace(t5, head_bias=True))
    assert biased - flops.flops_per_sample(t5) == pytest.approx(6 * 32 * t5.padded_vocab_size)


def test_megatrons_formula() -> None:
    # By hand: 24 x 3 x 8 x 1024 x 24 x 1024^2 x (1 + 1024/6144 + 50304/(16 x 24 x 1024)) / (0.5 x 2 x 1e12)
    config = job(layers=24, hidden_size=1024, attention_heads=16, seq_length=1024)
    work = 24 * 3 * 8 * 1024 * 24 * 1024**2 * (1 + 1024 / 6144 + 50304 / (16 * 24 * 1024))

    def shown(*, recomputed: bool) -> float:
        return flops.megatron_tflops(
            config.spec, recomputed=recomputed, batch_size=8, seconds=0.5, world_size=2
        )

    assert shown(recomputed=False) == pytest.approx(work / 1e12)
    assert shown(recomputed=True) == pytest.approx(work / 1e12 * 4 / 3)


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200-NVL"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA A100-SXM4-80GB", "A100-80"),
        ("NVIDIA A100-SXM4-40GB", "A100-40"),
        ("NVIDIA A100-PCIE-40GB", "A100-40"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA GeForce RTX 3090", "RTX3090"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla V100-SXM2-16GB", "V100-16"),
        ("Tesla V100-SXM2-32GB", "V100-32"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI250X", "MI250X"),
        ("a100-80", "A100-80"),
        ("rtx 3090", "RTX3090"),
        ("h200", "H200"),
    ],
)
def test_accelerators_are_known_by_our_name_and_the_drivers(device: str, name: str) -> None:
    found = flops.find_accelerator(device)
    assert found is not None
    assert found.name == name


def test_every_accelerators_own_name_finds_it() -> None:
    for accelerator in flops.ACCELERATORS:
        assert flops.find_accelerator(accelerator.name) is accelerator


def test_unknown_accelerators_are_not_guessed() -> None:
    assert flops.peak_tflops("AMD EPYC 7B13") is None
    assert flops.peak_tflops("") is None
    assert flops.peak_tflops("NVIDIA H200") == pytest.approx(989.4)


def test_an_embedding_that_is_only_looked_up_in_takes_no_flops() -> None:
    shape: dict[str, Any] = {"hidden_size": 1024, "layers": 24, "attention_heads": 16}
    tied, untied = (job(tied_embeddings=answer, **shape) for answer in (True, False))
    assert flops.parameters(untied.spec) > 1.1 * flops.parameters(tied.spec)
    assert flops.flops_per_sample(untied.spec) == flops.flops_per_sample(tied.spec)

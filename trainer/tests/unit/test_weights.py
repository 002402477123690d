# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights from and to Hugging Face's format: the same logits there, the same numbers back, in any layout."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from rdm_core.config import Config, ModelConfig, TokenizerConfig, check, load
from rdm_core.errors import TrainerError
from rdm_core.model_spec import RopeScaling
from rdm_trainer import models
from rdm_trainer.cli import main
from rdm_trainer.distributed.parameters import shard_spec_of
from rdm_trainer.distributed.pipeline_parallel.pipeline import FlatModel
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.models.rope import frequencies
from rdm_trainer.weights import directory, families
from rdm_trainer.weights.generation import Generator
from rdm_trainer.weights.importing import configuration
from rdm_trainer.weights.sources import CONFIG, INDEX, HuggingFaceSource, fill, open_source, require_model
from tests import architectures

GPT2 = ModelConfig(
    layers=2,
    hidden_size=32,
    attention_heads=4,
    seq_length=24,
    vocab_size=50,
    make_vocab_size_divisible_by=8,
)
LLAMA = dataclasses.replace(
    GPT2,
    query_groups=2,
    kv_channels=8,
    ffn_hidden_size=48,
    **architectures.LLAMA,
    rope_theta=5000.0,
    tied_embeddings=False,
    layernorm_epsilon=1e-6,
    max_position_embeddings=24,
)
MIXTRAL = dataclasses.replace(LLAMA, ffn_hidden_size=24, experts=4, moe_aux_loss_coeff=0.02)
T5 = ModelConfig(
    kind="t5",
    layers=2,
    decoder_layers=3,
    hidden_size=32,
    attention_heads=4,
    kv_channels=6,
    ffn_hidden_size=48,
    # Longer than the largest distance that the buckets distinguish.
    seq_length=24,
    vocab_size=45,
    vocab_extra_ids=5,
    make_vocab_size_divisible_by=8,
    **architectures.T5_1_1 | {"activation": "relu"},
    relative_attention_num_buckets=8,
    relative_attention_max_distance=12,
    scale_logits=True,
    layernorm_epsilon=1e-6,
)
MODELS = {
    "t5": T5,
    "t5 1.1": dataclasses.replace(T5, activation="geglu", tied_embeddings=False, scale_logits=False),
    "bert": dataclasses.replace(GPT2, kind="bert"),
    "gpt2": GPT2,
    "gpt2, untied": dataclasses.replace(GPT2, tied_embeddings=False, ffn_hidden_size=40),
    "llama": LLAMA,
    "llama 3.1": dataclasses.replace(LLAMA, rope_scaling=RopeScaling("llama3", 8.0, 16)),
    "llama, linear": dataclasses.replace(LLAMA, rope_scaling=RopeScaling("linear", 4.0, 6)),
    "llama, yarn": dataclasses.replace(LLAMA, rope_scaling=RopeScaling("yarn", 4.0, 6)),
    "mistral": dataclasses.replace(LLAMA, sliding_window=7),
    "llama with biases": dataclasses.replace(LLAMA, biases="all"),
    "qwen2": dataclasses.replace(LLAMA, biases="qkv", tied_embeddings=True),
    "mixtral": MIXTRAL,
    "qwen3-moe": dataclasses.replace(MIXTRAL, qk_norm=True, moe_router_topk=3, moe_norm_topk_prob=False),
    "qwen3": dataclasses.replace(LLAMA, qk_norm=True, kv_channels=16, tied_embeddings=True),
}
YARN = {"rope_type": "yarn", "factor": 0.5, "original_max_position_embeddings": 6}


class InMemory:
    """The weights of a model in this process."""

    def __init__(self, model: ModelConfig, built: FlatModel) -> None:
        self.where, self.model, self.dtype = Path("memory"), model, "float32"
        self.tokenizer: TokenizerConfig | None = None
        self.built = built
        self.weights = dict(built.named_parameters())

    def whole(self, name: str) -> torch.Tensor:
        weight = self.weights[name]
        vocabulary = self.model.vocab_size + self.model.vocab_extra_ids
        rows = vocabulary if shard_spec_of(weight).vocabulary else None
        return weight.data[:rows]


def build(model: ModelConfig, topology: Topology | None = None, **options: Any) -> FlatModel:
    topology = topology or Topology.single()
    job = Config(model=model)
    job = dataclasses.replace(job, parallel=dataclasses.replace(job.parallel, tensor=topology.tensor))
    made = models.build(job, topology, **options)
    assert isinstance(made, FlatModel)
    return made.eval()


def randomised(model: ModelConfig) -> InMemory:
    """Return a model with random weights everywhere: norms of one and biases of zero hide mistakes."""
    generator = torch.Generator().manual_seed(1)

    def filled(module: nn.Module, _prefix: str) -> None:
        for weight in module.parameters():
            weight.data.normal_(shard_spec_of(weight).constant, 0.1, generator=generator)

    return InMemory(model, build(model, fill=filled))


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_export_and_import_keep_the_model(name: str, tmp_path: Path) -> None:
    import transformers

    model = MODELS[name]
    source = randomised(model)
    # More than one file.
    directory.write(source, tmp_path / "hf", shard_bytes=20_000)
    assert (tmp_path / "hf" / INDEX).is_file()
    assert len({path.stat().st_mode for path in (tmp_path / "hf").iterdir()}) == 1
    is_t5 = model.kind == "t5"
    kinds = {"t5": transformers.AutoModelForSeq2SeqLM, "bert": transformers.AutoModelForMaskedLM}
    kind = kinds.get(model.kind, transformers.AutoModelForCausalLM)
    theirs, report = kind.from_pretrained(tmp_path / "hf", output_loading_info=True, dtype=torch.float32)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokens = torch.randint(0, 50, (3, 24), generator=torch.Generator().manual_seed(2))
    inputs: Any = tokens
    given = {"input_ids": tokens}
    if is_t5:
        # Texts of several lengths, filled up with 0.
        ends = torch.arange(24) < torch.tensor([[24], [20], [9]])
        tokens = tokens.clamp_min(1) * ends
        given = {"input_ids": tokens, "attention_mask": ends, "decoder_input_ids": tokens[:, 2:].flip(0)}
        inputs = (tokens, given["decoder_input_ids"])
    ours = source.built(inputs)
    torch.testing.assert_close(ours, theirs.eval()(**given).logits, atol=1e-4, rtol=1e-4)
    if model.kind == "bert":
        with pytest.raises(TrainerError, match="is of a 'megatron-bert'"):
            open_source(tmp_path / "hf")
        return
    back = open_source(tmp_path / "hf")
    if is_t5:
        # There, the sentinels are ordinary tokens.
        model = dataclasses.replace(model, vocab_size=50, vocab_extra_ids=0)
    require_model(back, Config(model=model))
    for ours_name in dict(source.built.named_parameters()):
        assert torch.equal(back.whole(ours_name), source.whole(ours_name)), ours_name
    again = build(dataclasses.replace(back.model, seq_length=24), fill=fill(back))
    torch.testing.assert_close(again(inputs), ours)
    # What transformers itself writes is read, too.
    theirs.save_pretrained(tmp_path / "theirs")
    wide = "2.mlp.experts.fc1" if model.experts else "2.mlp.fc1.weight"
    assert torch.equal(open_source(tmp_path / "theirs").whole(wide), source.whole(wide))
    assert families.model_config(json.loads((tmp_path / "theirs/config.json").read_text()), "") == back.model


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
        {"rope_theta": 500.0, "rope_parameters": {"rope_type": "linear", "factor": 2.0}},
        {"original_max_position_embeddings": 64, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        {"rope_scaling": YARN},
        # Both are outside and inside.
        {
            "original_max_position_embeddings": 64,
            "rope_theta": 7.0,
            "rope_scaling": YARN | {"rope_theta": 500.0},
        },
    ],
)
def test_rotary_positions_are_those_of_transformers(changes: dict[str, Any]) -> None:
    from transformers import AutoConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = families.config_json(LLAMA, dtype="float32")
    config = {key: value for key, value in config.items() if not key.startswith("rope_")} | changes
    model = families.model_config(config, "config.json")
    # It completes the objects in the configuration.
    theirs = LlamaRotaryEmbedding(AutoConfig.for_model(**config))
    turns, factor = frequencies(model.head_size, model.rope_theta, model.rope_scaling)
    torch.testing.assert_close(turns, theirs.inv_freq)
    assert factor == pytest.approx(theirs.attention_scaling)


@pytest.mark.parametrize("tensor", [2, 4])
@pytest.mark.parametrize("name", ["gpt2", "qwen3", "llama with biases", "mixtral", "t5 1.1"])
def test_tensor_ranks_together_have_all_of_a_model(name: str, tensor: int) -> None:
    # Some have fewer key-value heads than there are ranks.
    model = MODELS[name]
    source = randomised(model)
    ranks = [
        dict(
            build(model, Topology.part(tensor=tensor, tensor_rank=rank), fill=fill(source)).named_parameters()
        )
        for rank in range(tensor)
    ]
    for name in ranks[0]:
        parts: list[torch.Tensor] = [rank[name].data for rank in ranks]
        shard_spec = shard_spec_of(ranks[0][name])
        whole = parts[0] if shard_spec.dimension is None else torch.cat(parts, dim=shard_spec.dimension)
        expected = source.whole(name)
        assert torch.equal(whole[: len(expected)], expected), name


@pytest.fixture
def tokenizer(tmp_path: Path) -> TokenizerConfig:
    """A tokenizer of 50 words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<|endoftext|>": 0, **{f"w{number}": number for number in range(1, 50)}}
    library = Tokenizer(models.WordLevel(words, unk_token="w49"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    (tmp_path / "words").mkdir()
    library.save(str(tmp_path / "words/tokenizer.json"))
    (tmp_path / "words/chat_template.jinja").write_text("{{ messages }}")
    return TokenizerConfig("huggingface", file=str(tmp_path / "words/tokenizer.json"))


@pytest.mark.parametrize("name", ["gpt2", "mistral", "qwen3", "qwen3-moe"])
def test_generation_equals_transformers(
    name: str, tokenizer: TokenizerConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import transformers

    source = randomised(MODELS[name])
    source.tokenizer = tokenizer
    directory.write(source, tmp_path / "hf")
    assert (tmp_path / "hf/chat_template.jinja").read_text() == "{{ messages }}"
    settings = json.loads((tmp_path / "hf/tokenizer_config.json").read_text())
    assert settings["eos_token"] == "<|endoftext|>"
    ids = [3, 7, 11]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    expected = theirs.generate(torch.tensor([ids]), max_new_tokens=15, do_sample=False, eos_token_id=None)
    generator = Generator(open_source(tmp_path / "hf"), "cpu")
    assert list(generator.tokens(ids, 15)) == expected[0, 3:].tolist()
    # The model's positions limit the length.
    assert len(list(generator.tokens(ids, 500))) == 21
    drawn = [list(generator.tokens(ids, 9, temperature=9.0, top_k=5, seed=seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert list(generator.tokens(ids, 9, temperature=9.0, top_k=1)) == expected[0, 3:12].tolist()
    with pytest.raises(SystemExit, match="0"):
        main(["generate", str(tmp_path / "hf"), "w3 w7 w11", "--tokens", "4", "--device", "cpu"])
    assert capsys.readouterr().out.startswith("w3 w7 w11")
    with pytest.raises(TrainerError, match=r"The device tpu cannot be used here .*; take cpu\."):
        Generator(open_source(tmp_path / "hf"), "tpu")
    with pytest.raises(SystemExit, match="0"):
        main(["import", str(tmp_path / "hf"), str(tmp_path / "job.yaml")])
    job = load(tmp_path / "job.yaml", ["data.mock=true", "optimisation.train_iterations=1"])
    assert list(check(job)) == []
    assert job.checkpoint.init_from == str(tmp_path / "hf")
    assert job.data.tokenizer == TokenizerConfig("huggingface", file=str(tmp_path / "hf/tokenizer.json"))
    require_model(open_source(tmp_path / "hf"), job)


def test_an_imported_t5_answers_and_trains_with_its_tokenizers_sentinels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import tokenizers
    import transformers

    from rdm_trainer.data.checks import checks
    from rdm_trainer.data.sources import span_corruption

    words = {"<pad>": 0, "</s>": 1, **{f"w{number}": number for number in range(2, 40)}}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w39"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    # The first sentinel is the last token, and the vocabulary is padded.
    library.add_special_tokens([f"<extra_id_{number}>" for number in (2, 1, 0)])
    library.save(str(tmp_path / "tokenizer.json"))
    source = randomised(dataclasses.replace(T5, vocab_size=50, vocab_extra_ids=0))
    source.tokenizer = TokenizerConfig("huggingface", file=str(tmp_path / "tokenizer.json"))
    directory.write(source, tmp_path / "hf")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf")
    ids = torch.tensor([[3, 7, 11, 1]])
    # With the cache, transformers does not support a decoder that is deeper than its encoder.
    drawn = theirs.generate(ids, max_new_tokens=30, do_sample=False, eos_token_id=None, use_cache=False)
    expected = drawn[0, 1:].tolist()
    generator = Generator(open_source(tmp_path / "hf"), "cpu")
    assert list(generator.tokens(ids[0].tolist(), 30)) == expected
    with pytest.raises(SystemExit, match="0"):
        main(["generate", str(tmp_path / "hf"), "w3 w7 w11", "--tokens", "4", "--device", "cpu"])
    assert not capsys.readouterr().out.startswith("w3 w7 w11")
    with pytest.raises(SystemExit, match="0"):
        main(["import", str(tmp_path / "hf"), str(tmp_path / "job.yaml")])
    changes = ["data.blend=[text]", "optimisation.train_iterations=1", "model.seq_length=16"]
    job = load(tmp_path / "job.yaml", changes)
    assert list(check(job)) == []
    spans = span_corruption(job)
    assert (list(spans.sentinels), spans.begin, spans.end, spans.padding) == ([42, 41, 40], 0, 1, 0)
    # Only the data is missing.
    assert len(checks(job)) == 1
    longer = load(tmp_path / "job.yaml", [*changes, "model.seq_length=512"])
    assert "The tokenizer has 3 sentinels, but" in checks(longer)[0]


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        (CONFIG, [1], "must hold a JSON object"),
        (
            CONFIG,
            families.config_json(LLAMA, dtype="float32") | {"rope_theta": "x"},
            "another type than a llama",
        ),
        (
            CONFIG,
            families.config_json(LLAMA, dtype="float32") | {"quantization_config": {"quant_method": "fp8"}},
            "has a quantization_config of quant_method fp8, and quantised weights are not read",
        ),
        (INDEX, {}, "has no weight_map"),
        *(
            (
                INDEX,
                {"weight_map": {"model.norm.weight": file}},
                f"names the file {file!r}; only files in its",
            )
            for file in ("../model.safetensors", "/model.safetensors", "a/../../b.safetensors", "")
        ),
    ],
)
def test_a_damaged_json_file_is_one_sentence(file: str, content: Any, words: str, tmp_path: Path) -> None:
    sound = families.config_json(LLAMA, dtype="float32")
    for name, written in ((CONFIG, sound), (file, content)):
        (tmp_path / name).write_text(json.dumps(written))
    with pytest.raises(TrainerError, match=words):
        open_source(tmp_path)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (
            {"model.layers.0.self_attn.q_proj.bias": (32,)},
            "q_proj.bias, which a llama with its config.json does not have; the two are not of one model",
        ),
        (
            {"model.layers.7.input_layernorm.weight": (32,), "score.weight": (1, 32), "score.bias": (1,)},
            "has model.layers.7.input_layernorm.weight and 2 other tensors, which a llama",
        ),
        ({"model.layers.0.mlp.up_proj.weight": (5, 32)}, "up_proj.weight of shape .5, 32., which do not fit"),
        (
            {"model.layers.0.self_attn.q_proj.weight": ()},
            "q_proj.weight of shape .., .* which do not fit together or its config.json.$",
        ),
        ({"model.norm.weight": ()}, "has 4.weight of shape .., and by its configuration it is .32,."),
        ({"model.norm.weight": torch.int8}, "has model.norm.weight in int8; weights of float32"),
        ({"model.norm.weight": torch.float8_e4m3fn}, "has model.norm.weight in float8_e4m3fn"),
    ],
)
def test_weights_of_another_model_or_type_are_one_sentence(
    tensors: dict[str, Any], words: str, tmp_path: Path
) -> None:
    directory.write(randomised(LLAMA), tmp_path / "hf")
    file = tmp_path / "hf/model.safetensors"
    # What published models have and their code ignores.
    held = load_file(file) | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    save_file(held, file)
    configuration(tmp_path / "hf")
    for name, given in tensors.items():
        held[name] = torch.ones(given) if isinstance(given, tuple) else held[name].to(given)
    save_file(held, file)
    with pytest.raises(TrainerError, match=words):
        open_source(tmp_path / "hf")


def test_a_quantisation_that_no_tensor_has_is_ignored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory.write(randomised(LLAMA), tmp_path / "hf")
    path, file = tmp_path / "hf" / CONFIG, tmp_path / "hf/model.safetensors"
    changes = {"quantization_config": {"quant_method": "fp8"}, "torch_dtype": "float8_e4m3fn"}
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    assert open_source(tmp_path / "hf").dtype == "float32"
    plain = configuration(tmp_path / "hf")
    assert capsys.readouterr().err == (
        f"{path} has a quantization_config of quant_method fp8, but no tensor is quantised: it is ignored.\n"
    )
    assert "quantization" not in plain
    held, name = load_file(file), "model.layers.0.mlp.up_proj.weight"
    for quantised in ({name: held[name].to(torch.float8_e4m3fn)}, {f"{name}_scale_inv": torch.ones(1)}):
        save_file({**held, **quantised}, file)
        with pytest.raises(
            TrainerError, match=r"fp8, and quantised weights are not read; take the model that"
        ):
            open_source(tmp_path / "hf")


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_value_that_is_not_finite_is_named_before_a_step(value: float, tmp_path: Path) -> None:
    source = randomised(LLAMA)
    name = next(name for name in source.weights if name.endswith("mlp.fc2.weight"))
    source.weights[name].data[3, -1] = value
    directory.write(source, tmp_path / "hf")
    found = open_source(tmp_path / "hf")
    # The second tensor rank has the last column.
    build(LLAMA, Topology.part(tensor=2, tensor_rank=0), fill=fill(found))
    with pytest.raises(TrainerError, match=rf"^{name} of .*hf has a value that is NaN or infinite"):
        build(LLAMA, Topology.part(tensor=2, tensor_rank=1), fill=fill(found))


def test_a_head_may_be_a_copy_of_the_embedding_that_it_is_tied_to(tmp_path: Path) -> None:
    directory.write(randomised(MODELS["qwen3"]), tmp_path / "hf")
    file = tmp_path / "hf/model.safetensors"
    held = load_file(file)
    head = held["model.embed_tokens.weight"].clone()
    save_file({**held, "lm_head.weight": head}, file)
    configuration(tmp_path / "hf")
    head[3, 1] += 1
    save_file({**held, "lm_head.weight": head}, file)
    with pytest.raises(
        TrainerError, match=r"ties lm_head\.weight to .*; if the model has a head of its own, set"
    ):
        open_source(tmp_path / "hf")


def test_a_t5s_stacks_may_have_copies_of_the_embedding(tmp_path: Path) -> None:
    directory.write(randomised(MODELS["t5 1.1"]), tmp_path / "hf")
    file = tmp_path / "hf/model.safetensors"
    held = load_file(file)
    # The last one is in published files, and no T5 has it.
    for name in (
        *("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
    ):
        held[name] = held["shared.weight"].clone()
    save_file(held, file)
    configuration(tmp_path / "hf")
    held["decoder.embed_tokens.weight"][3, 1] += 1
    save_file(held, file)
    with pytest.raises(TrainerError, match=r"and shared\.weight, which differ; a T5 here has one embedding"):
        configuration(tmp_path / "hf")


def test_a_gpt2_is_read_without_prefixes_and_with_its_masks(tmp_path: Path) -> None:
    directory.write(randomised(GPT2), tmp_path / "hf")
    file = tmp_path / "hf/model.safetensors"
    held = {name.removeprefix("transformer."): tensor for name, tensor in load_file(file).items()}
    masks = {"h.0.attn.bias": torch.ones(1, 1, 8, 8).byte(), "h.0.attn.masked_bias": torch.tensor(-1e4)}
    head = {"lm_head.weight": held["wte.weight"].clone()}
    save_file({**held, **masks, **head}, file)
    configuration(tmp_path / "hf")


def test_a_t5_is_exported_without_the_bias_of_its_head_unless_it_was_learned(tmp_path: Path) -> None:
    source = randomised(dataclasses.replace(T5, lm_head_bias=True))
    (name,) = (name for name in source.weights if name.endswith("head_bias"))
    with pytest.raises(
        TrainerError, match=rf"memory has learned {name} .*; export it with --format megatron"
    ):
        directory.write(source, tmp_path / "hf")
    assert not list(tmp_path.iterdir())
    source.weights[name].data.zero_()
    directory.write(source, tmp_path / "hf")
    found = open_source(tmp_path / "hf")
    assert not found.model.lm_head_bias
    for other in source.weights:
        assert other == name or torch.equal(found.whole(other), source.whole(other)), other


@pytest.mark.parametrize("tensor", [1, 2])
@torch.no_grad()
def test_a_head_with_a_bias_begins_with_zeros_where_the_weights_have_none(
    tensor: int, tmp_path: Path
) -> None:
    directory.write(randomised(T5), tmp_path / "hf")
    found = open_source(tmp_path / "hf")
    biased = dataclasses.replace(found.model, seq_length=24, lm_head_bias=True)
    require_model(found, Config(model=biased))
    for rank in range(tensor):
        model = build(biased, Topology.part(tensor=tensor, tensor_rank=rank), fill=fill(found))
        (bias,) = (weight for name, weight in model.named_parameters() if name.endswith(".head_bias"))
        assert not bias.any()
    # A bias that was learned is not dropped.
    learned = randomised(dataclasses.replace(T5, lm_head_bias=True))
    with pytest.raises(TrainerError, match="lm_head_bias is False here and True there"):
        require_model(learned, Config(model=T5))
    with pytest.raises(TrainerError, match=r"model\.kind is gpt here and t5 there"):
        require_model(found, Config(model=dataclasses.replace(GPT2, lm_head_bias=True)))


def test_unsupported_model_is_one_sentence(tmp_path: Path) -> None:
    for model, words in (
        (dataclasses.replace(LLAMA, norm="layernorm"), "No family of Hugging Face's has"),
        (dataclasses.replace(LLAMA, qk_norm=True, biases="all"), "No family of Hugging Face's has"),
        (dataclasses.replace(MIXTRAL, moe_norm_topk_prob=False), "No family of Hugging Face's has"),
        (dataclasses.replace(GPT2, kind="t5"), "position_embedding relative"),
        (dataclasses.replace(LLAMA, kind="bert"), "MegatronBert has learned positions"),
        (dataclasses.replace(LLAMA, softmax_scale=1.0), "softmax_scale is for a T5"),
    ):
        with pytest.raises(TrainerError, match=words):
            families.config_json(model, dtype="float32")
    config = {"model_type": "mamba"}
    with pytest.raises(
        TrainerError, match=r"'mamba'; gpt2, llama, mistral, .*, mixtral, qwen3_moe, t5 can be"
    ):
        families.model_config(config, "config.json")
    config = families.config_json(MODELS["qwen3-moe"], dtype="float32")
    with pytest.raises(TrainerError, match="experts in some of its layers"):
        families.model_config({**config, "mlp_only_layers": [0]}, "config.json")
    config = families.config_json(LLAMA, dtype="float32")
    with pytest.raises(TrainerError, match="hidden_act 'gelu'"):
        families.model_config({**config, "hidden_act": "gelu"}, "config.json")
    yarn = {"rope_type": "yarn", "factor": 2.0, "truncate": False}
    for change, words in (
        ({"rope_scaling": yarn}, "has truncate False, and our models have True"),
        ({"rope_scaling": {"factor": 2.0}, "rope_parameters": {"factor": 4.0}}, "leave one of them out"),
    ):
        with pytest.raises(TrainerError, match=words):
            families.model_config({**config, **change}, "config.json")
    gpt2 = families.config_json(GPT2, dtype="float32")
    with pytest.raises(TrainerError, match="has scale_attn_by_inverse_layer_idx True, and our models have F"):
        families.model_config({**gpt2, "scale_attn_by_inverse_layer_idx": True}, "config.json")
    del config["rms_norm_eps"]
    with pytest.raises(TrainerError, match="lacks 'rms_norm_eps'"):
        families.model_config(config, "config.json")
    with pytest.raises(TrainerError, match=r"neither a complete checkpoint nor a config.json"):
        open_source(tmp_path)
    directory.write(randomised(LLAMA), tmp_path / "llama")
    with pytest.raises(TrainerError, match="has no iteration 3"):
        open_source(tmp_path / "llama", 3)
    with pytest.raises(TrainerError, match=r"llama has no tokenizer; give a job with data.tokenizer"):
        Generator(open_source(tmp_path / "llama"))
    with pytest.raises(TrainerError, match="is there already"):
        directory.write(randomised(LLAMA), tmp_path / "llama")
    with pytest.raises(TrainerError, match=r"model.layers is 3 here and 2 there; configure that model"):
        require_model(
            HuggingFaceSource(tmp_path / "llama"), Config(model=dataclasses.replace(LLAMA, layers=3))
        )
    written = tmp_path / "llama/config.json"
    written.write_text(written.read_text().replace('"intermediate_size": 48', '"intermediate_size": 40'))
    with pytest.raises(TrainerError, match=r"2.mlp.fc1.weight of shape \(2, 48, 32\), and by its"):
        configuration(tmp_path / "llama")
    (tmp_path / "llama/model.safetensors").write_bytes(b"no safetensors")
    with pytest.raises(TrainerError, match=r"model.safetensors cannot be read"):
        open_source(tmp_path / "llama")

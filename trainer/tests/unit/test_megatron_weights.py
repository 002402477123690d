# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights from and to Megatron's checkpoints, under every tensor and pipeline degree."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import io
import json
import pickle
import re
import sys
import tarfile
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata
from torch.nn import functional

from rdm_core.config import Config, ModelConfig, TokenizerConfig, check, load
from rdm_core.errors import TrainerError
from rdm_core.model_spec import RopeScaling
from rdm_trainer.checkpoint.boxes import Box
from rdm_trainer.checkpoint.distributed import METADATA, read_metadata, write
from rdm_trainer.cli import main
from rdm_trainer.weights.megatron import writing
from rdm_trainer.weights.megatron.arguments import arguments_of
from rdm_trainer.weights.megatron.tensors import fused as fused_name
from rdm_trainer.weights.megatron.tensors import placed
from rdm_trainer.weights.sources import fill, open_source, require_model
from tests.unit.test_weights import GPT2, LLAMA, InMemory, build, randomised

MODELS = {
    "gpt": dataclasses.replace(GPT2, layers=4),
    "llama": dataclasses.replace(LLAMA, layers=4, query_groups=4),
    "qwen2": dataclasses.replace(LLAMA, layers=4, biases="qkv", tied_embeddings=True),
    "llama 3.1": dataclasses.replace(LLAMA, layers=4, rope_scaling=RopeScaling("llama3", 32.0, 8192)),
    "mistral": dataclasses.replace(LLAMA, layers=4, sliding_window=6),
    "qwen3": dataclasses.replace(LLAMA, layers=4, qk_norm=True, kv_channels=16),
}


def same(where: Path, source: InMemory) -> Any:
    """Open a checkpoint, and require the model of another source."""
    found: Any = open_source(where)
    require_model(found, Config(model=source.model))
    for key in ("ffn_size", "decoder_length", "moe_aux_loss_coeff", "moe_expert_capacity_factor"):
        assert getattr(found.model, key) == getattr(source.model, key)
    for name in source.weights:
        assert torch.equal(found.whole(name), source.whole(name)), name
        assert found.shape(name) == tuple(source.whole(name).shape)
    return found


def the_same_behind_every_layout(source: InMemory, where: Path) -> None:
    for tensor, pipeline, virtual, fused in ((4, 1, 1, False), (1, 2, 1, True), (2, 2, 2, True)):
        target = where / f"{tensor}-{pipeline}-{virtual}"
        writing.write(source, target, tensor=tensor, pipeline=pipeline, virtual=virtual, fused=fused)
        same(target, source)


@pytest.mark.parametrize("name", ["gpt", "llama", "qwen2", "qwen3"])
def test_a_model_is_the_same_behind_every_layout(name: str, tmp_path: Path) -> None:
    the_same_behind_every_layout(randomised(MODELS[name]), tmp_path)


Weights = dict[str, torch.Tensor]


def interleaved(whole: Path, step: Path, blocks: list[list[list[int]]], **arguments: Any) -> None:
    """Write a checkpoint without stages again with some, as Megatron saves an interleaved pipeline.

    Args:
        whole: The directory of the one's step.
        step: That of the other's.
        blocks: For each stage and each of its chunks, the numbers of its layers in the model.
        arguments: Arguments of the training that change.
    """
    for rank in whole.iterdir():
        saved = torch.load(rank / "model_optim_rng.pt", weights_only=False)
        weights: Weights = saved.pop("model")
        changed = {**vars(saved["args"]), "pipeline_model_parallel_size": len(blocks), **arguments}
        saved["args"] = argparse.Namespace(**changed)
        for stage, chunks in enumerate(blocks):
            models: dict[str, Weights] = {}
            for chunk, layers in enumerate(chunks):
                is_first = stage == chunk == 0
                is_last = stage == len(blocks) - 1 and chunk == len(chunks) - 1
                own: Weights = {}
                for name, weight in weights.items():
                    if match := re.fullmatch(r"decoder\.layers\.(\d+)\.(.+)", name):
                        if (number := int(match[1])) in layers:
                            own[f"decoder.layers.{layers.index(number)}.{match[2]}"] = weight
                    elif is_first if name.startswith("embedding.") else is_last:
                        own[name] = weight
                if is_last and "output_layer.weight" not in weights:
                    own["output_layer.weight"] = weights["embedding.word_embeddings.weight"]
                models[f"model{chunk}"] = own
            target = step / f"{rank.name}_{stage:03d}"
            target.mkdir(parents=True)
            torch.save({**saved, **models}, target / "model_optim_rng.pt")
    (step.parent / "latest_checkpointed_iteration.txt").write_text(str(int(step.name[-7:])))


# As Megatron's own comment has it: stage 0 has layers 0, 1 and 4, 5 of 8, and stage 1 has 2, 3 and 6, 7.
EIGHT = [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


@pytest.mark.filterwarnings("ignore")
def test_a_stage_has_the_layers_that_megatron_core_gives_it() -> None:
    from megatron.core.transformer.transformer_config import TransformerConfig
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    config = TransformerConfig(
        num_layers=8,
        hidden_size=32,
        num_attention_heads=4,
        pipeline_model_parallel_size=2,
        virtual_pipeline_model_parallel_size=2,
        pipeline_dtype=torch.float32,
    )
    first = [
        [get_transformer_layer_offset(config, vp_stage=chunk, pp_rank=stage) for chunk in range(2)]
        for stage in range(2)
    ]
    assert first == [[layers[0] for layers in chunks] for chunks in EIGHT]


@pytest.mark.parametrize(
    ("name", "tensor", "blocks"),
    [
        ("gpt", 2, EIGHT),
        ("qwen2", 1, [[[0], [2], [4], [6]], [[1], [3], [5], [7]]]),
        ("qwen3", 4, [[[0], [3]], [[1, 2], [4, 5]], [[], [6, 7]]]),
    ],
)
@torch.no_grad()
def test_an_interleaved_pipeline_is_read(
    name: str, tensor: int, blocks: list[list[list[int]]], tmp_path: Path
) -> None:
    model = dataclasses.replace(MODELS[name], layers=8)
    source = randomised(model)
    writing.write(source, tmp_path / "whole", tensor=tensor)
    interleaved(tmp_path / "whole/release", tmp_path / "saved/iter_0000007", blocks)
    found = same(tmp_path / "saved", source)
    tokens = torch.randint(0, 50, (3, 24), generator=torch.Generator().manual_seed(2))
    assert torch.equal(build(model, fill=fill(found))(tokens), source.built(tokens))


def test_an_interleaved_pipeline_is_written_as_megatron_saves_it(tmp_path: Path) -> None:
    source = randomised(dataclasses.replace(MODELS["qwen2"], layers=8))
    writing.write(source, tmp_path / "whole", tensor=2)
    interleaved(tmp_path / "whole/release", tmp_path / "theirs/iter_0000007", EIGHT)
    writing.write(source, tmp_path / "ours", tensor=2, pipeline=2, virtual=2)
    folders = {path.name for path in (tmp_path / "theirs/iter_0000007").iterdir()}
    assert folders == {path.name for path in (tmp_path / "ours/release").iterdir()}
    for folder in folders:
        theirs, ours = (
            torch.load(step / folder / "model_optim_rng.pt", weights_only=False)
            for step in (tmp_path / "theirs/iter_0000007", tmp_path / "ours/release")
        )
        assert set(ours) == set(theirs)
        for chunk in ("model0", "model1"):
            assert set(ours[chunk]) == set(theirs[chunk])
            assert all(torch.equal(ours[chunk][name], theirs[chunk][name]) for name in theirs[chunk])
        found = vars(ours["args"])
        keys = ("virtual_pipeline_model_parallel_size", "num_layers_per_virtual_pipeline_stage")
        assert [found[key] for key in keys] == [2, 2]


def test_files_of_other_chunks_are_one_sentence(tmp_path: Path) -> None:
    writing.write(randomised(MODELS["gpt"]), tmp_path / "out", pipeline=2, virtual=2)
    file = tmp_path / "out/release/mp_rank_00_001/model_optim_rng.pt"
    saved = torch.load(file, weights_only=False)
    name = "decoder.layers.0.mlp.linear_fc2.weight"
    weight = saved["model1"].pop(name)
    torch.save(saved, file)
    with pytest.raises(TrainerError, match=rf"lacks {name} in model1 of stage 1"):
        open_source(tmp_path / "out").whole("5.mlp.fc2.weight")
    saved["model1"][name] = weight
    for removed, words in (
        ("model1", "001/model_optim_rng.pt has model0, and the first rank's file has model0, model1"),
        ("model0", "has no weights: neither model nor model0"),
    ):
        del saved[removed]
        torch.save(saved, file)
        with pytest.raises(TrainerError, match=words):
            open_source(tmp_path / "out")


def test_scaled_positions_and_windows_are_megatrons_arguments(tmp_path: Path) -> None:
    found = {}
    for name in ("llama", "llama 3.1", "mistral"):
        source = randomised(MODELS[name])
        writing.write(source, tmp_path / name)
        same(tmp_path / name, source)
        file = tmp_path / name / "release/mp_rank_00/model_optim_rng.pt"
        args = vars(torch.load(file, weights_only=False)["args"])
        keys = ("use_rope_scaling", "rope_scaling_factor", "window_size", "window_attn_skip_freq")
        found[name] = tuple(args[key] for key in keys)
    assert found == {
        "llama": (False, 8.0, None, None),
        "llama 3.1": (True, 32.0, None, None),
        # A token and the five before it.
        "mistral": (False, 8.0, (5, 0), None),
    }


def test_the_kind_of_the_tokenizer_is_an_argument_where_it_is_known(tmp_path: Path) -> None:
    special = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"
    (tmp_path / "lower.txt").write_text(f"{special}berlin\n")
    (tmp_path / "cased.txt").write_text(f"{special}Berlin\n")

    def written(target: str, source: Any) -> Any:
        writing.write(source, tmp_path / target)
        file = tmp_path / target / "release/mp_rank_00/model_optim_rng.pt"
        return vars(torch.load(file, weights_only=False)["args"]).get("tokenizer_type", "unknown")

    source = randomised(MODELS["gpt"])
    for number, (tokenizer, expected) in enumerate(
        (
            (None, "unknown"),
            (TokenizerConfig("gpt2", vocab="not-here.json", merges="not-here.txt"), "GPT2BPETokenizer"),
            (TokenizerConfig("huggingface", file="not-here.json"), "HuggingFaceTokenizer"),
            (TokenizerConfig("wordpiece", vocab=str(tmp_path / "lower.txt")), "BertWordPieceLowerCase"),
            (TokenizerConfig("wordpiece", vocab=str(tmp_path / "cased.txt")), "BertWordPieceCase"),
            (TokenizerConfig("wordpiece", vocab="not-here.txt"), "unknown"),
        )
    ):
        source.tokenizer = tokenizer
        assert written(f"out{number}", source) == expected, tokenizer
        # Its file is not there, but the argument is, for another export.
        assert written(f"again{number}", open_source(tmp_path / f"out{number}")) == expected, tokenizer


def test_a_rank_has_megatrons_names_and_its_own_rows(tmp_path: Path) -> None:
    source = randomised(MODELS["llama"])
    writing.write(source, tmp_path / "out", tensor=2, pipeline=2)
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
    # The second half of the gate, then of the up projection.
    assert torch.equal(saved["model"][f"{layer}mlp.linear_fc1.weight"], torch.cat((gate[24:], up[24:])))
    assert torch.equal(saved["model"]["output_layer.weight"][:18], source.whole("7.weight")[32:])
    assert "embedding.word_embeddings.weight" not in saved["model"]


class Kind(enum.Enum):
    ONE = 1


def test_an_older_megatrons_names_are_read_and_nothing_is_run(tmp_path: Path) -> None:
    source = randomised(MODELS["gpt"])
    writing.write(source, tmp_path / "new", fused=False)
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
    # An unknown class is not created, and the file is still read.
    saved["args"].model_type = Kind.ONE
    step = tmp_path / "old/iter_0000007/mp_rank_00"
    step.mkdir(parents=True)
    torch.save(saved, step / "model_optim_rng.pt")
    (tmp_path / "old/latest_checkpointed_iteration.txt").write_text("7")
    same(tmp_path / "old", source)
    for changes, words in (
        ({"checkpoint_version": 1.0}, "is of checkpoint_version 1, and"),
        (
            {"args": argparse.Namespace(**{**vars(saved["args"]), "num_layers": 5})},
            "has 4 decoder layers in its files, and by its arguments 5",
        ),
        ({"args": argparse.Namespace(**{**vars(saved["args"]), "num_experts": 8})}, "num_experts 8 and"),
        ({"args": None}, "does not say what its model is"),
    ):
        torch.save({**saved, **changes}, step / "model_optim_rng.pt")
        with pytest.raises(TrainerError, match=words):
            open_source(tmp_path / "old")
    with zipfile.ZipFile(step / "model_optim_rng.pt", "a") as archive:
        archive.writestr("model_optim_rng/constants.pkl", b"")
    with pytest.raises(TrainerError, match="has a TorchScript program, which is not read"):
        open_source(tmp_path / "old")


@pytest.mark.parametrize(
    ("added", "words"),
    [
        (
            {"encoder.layers.0.mlp.linear_fc1.weight": 0},
            "has encoder.layers.0.mlp.linear_fc1.weight, as a BERT has it",
        ),
        ({"lm_head.dense.weight": 0}, "has lm_head.dense.weight, as a BERT has it"),
        ({"language_model": {"encoder": {}, "decoder": {}}}, "has 0 encoder layers in its files"),
        ({"language_model": {"encoder": {}, "pooler": {}}}, "has pooler, as a BERT has it"),
    ],
)
def test_other_model_is_not_read_as_a_gpt(added: dict[str, Any], words: str, tmp_path: Path) -> None:
    writing.write(randomised(MODELS["gpt"]), tmp_path / "out")
    file = tmp_path / "out/release/mp_rank_00/model_optim_rng.pt"
    saved = torch.load(file, weights_only=False)
    torch.save({**saved, "model": {**saved["model"], **added}}, file)
    with pytest.raises(TrainerError, match=words):
        open_source(tmp_path / "out")


@dataclasses.dataclass
class MCoreMetadata(Metadata):
    """Megatron-core's form of torch's."""

    mcore_data: dict[str, Any] | None = None


def torch_dist(
    source: InMemory, step: Path, *, numbered: bool, prefix: str = "", apart: bool = False
) -> None:
    """Write what Megatron-core does with 2 tensor ranks: each rank's part of each block is a separate piece.

    Args:
        source: The weights.
        step: The step's directory.
        numbered: Each block's tensors have names of their own; else all blocks' are in one.
        prefix: Prefix of all names.
        apart: The matrices of a gated product have separate names.
    """
    parts: list[Box] = []
    model = source.model
    for one in placed(model):
        name = fused_name(one.theirs)
        whole = source.whole(one.ours)
        if one.vocabulary:
            whole = functional.pad(whole, (0, 0, 0, 64 - len(whole)))
        tensors = {name: whole}
        if one.matrices:
            tensors = {f"{name}_w": whole[0], f"{name}_v": whole[1]} if apart else {name: whole.flatten(0, 1)}
        for name, tensor in tensors.items():
            cuts = 1 if one.axis is None else 4 if one.matrices else 2
            for number, values in enumerate(tensor.chunk(cuts, one.axis or 0)):
                shape, offsets = tuple(tensor.shape), [0] * tensor.dim()
                offsets[one.axis or 0] = number * values.shape[one.axis or 0]
                key = f"{prefix}{name}"
                if one.block is not None and numbered:
                    key = f"{prefix}decoder.layers.{one.block}.{name}"
                elif one.block is not None:
                    key, shape = f"{prefix}decoder.layers.{name}", (model.layers, *shape)
                    offsets, values = [one.block, *offsets], values[None]
                parts.append(Box(key, shape, tuple(offsets), values.contiguous()))
    step.mkdir(parents=True)
    write(step, parts, None)
    metadata = read_metadata(step)
    extra = {"decoder.layers.mlp.linear_fc1._extra_state/shard_0_4": BytesStorageMetadata()}
    metadata.state_dict_metadata.update(extra)
    with (step / METADATA).open("wb") as file:
        pickle.dump(MCoreMetadata(**vars(metadata), mcore_data={"decoder": {"shape": (4,)}}), file)
    found = arguments_of(model, 2, 1, 64, torch.float32)
    torch.save({"args": argparse.Namespace(**found), "iteration": 7}, step / "common.pt")
    about = {"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch"}
    (step / "metadata.json").write_text(json.dumps(about))
    (step.parent / "latest_checkpointed_iteration.txt").write_text("7")


@pytest.fixture
def _megatron_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pickle write our class under its name in Megatron-core."""
    name = "megatron.core.dist_checkpointing.strategies.torch"
    monkeypatch.setattr(MCoreMetadata, "__module__", name)
    monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(MCoreMetadata=MCoreMetadata))


@pytest.mark.usefixtures("_megatron_core")
@pytest.mark.filterwarnings("ignore:torch.distributed is")
@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("gpt", {"numbered": False}),
        ("llama", {"numbered": True, "prefix": "module."}),
        ("qwen2", {"numbered": False, "prefix": "model.", "apart": True}),
        ("qwen3", {"numbered": False}),
    ],
)
def test_a_distributed_checkpoint_is_read(name: str, form: dict[str, Any], tmp_path: Path) -> None:
    source = randomised(MODELS[name])
    torch_dist(source, tmp_path / "iter_0000007", **form)
    same(tmp_path, source)


# The logits of the last of the tokens 0 to 7, computed by megatron-core's model.
LOGITS = (
    *(-0.04846, -0.40803, -0.26097, 0.67552, 0.551, -0.25298),
    *(0.16004, 0.51352, -0.23555, 0.52315, 0.26494, -0.03413),
)


@pytest.mark.parametrize("form", ["torch", "torch_dist"])
@torch.no_grad()
def test_checkpoint_of_megatron_core_has_its_logits(form: str, tmp_path: Path) -> None:
    """``megatron-core-0.16.tar.xz`` has a model of megatron-core 0.16.1, saved by its own code."""
    with tarfile.open(Path(__file__).with_name("megatron-core-0.16.tar.xz")) as archive:
        archive.extractall(tmp_path, filter="data")
    found: Any = open_source(tmp_path / form)
    logits = build(found.model, fill=fill(found))(torch.arange(8)[None])
    torch.testing.assert_close(logits[0, -1], torch.tensor(LOGITS), atol=1e-4, rtol=1e-4)


class Evil:
    """Runs a command when it is unpickled without protection."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('it was run')",)


@pytest.mark.usefixtures("_megatron_core")
@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_other_distributed_model_is_not_read_as_a_gpt(tmp_path: Path) -> None:
    step = tmp_path / "iter_0000007"
    torch_dist(randomised(MODELS["gpt"]), step, numbered=False)
    metadata = read_metadata(step)
    stored = metadata.state_dict_metadata
    stored["encoder.layers.mlp.linear_fc2.weight"] = stored["decoder.layers.mlp.linear_fc2.weight"]
    (step / METADATA).write_bytes(pickle.dumps(metadata))
    with pytest.raises(TrainerError, match=r"has encoder.layers.* as a BERT has it"):
        open_source(tmp_path)


@pytest.mark.usefixtures("_megatron_core")
@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_invalid_distributed_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    step = tmp_path / "iter_0000007"
    torch_dist(randomised(MODELS["gpt"]), step, numbered=False)
    content = {path.name: path.read_bytes() for path in step.iterdir()}

    def with_arguments(**changes: Any) -> bytes:
        arguments = vars(torch.load(step / "common.pt", weights_only=False)["args"])
        buffer = io.BytesIO()
        torch.save({"args": argparse.Namespace(**{**arguments, **changes})}, buffer)
        return buffer.getvalue()

    for file, changed, words in (
        ("metadata.json", b'{"sharded_backend": "zarr"}', "sharded_backend 'zarr'"),
        ("metadata.json", None, "does not say which sharded_backend"),
        ("common.pt", None, "has no common.pt"),
        (
            "common.pt",
            with_arguments(num_layers=3),
            "other decoder layers in its files than the 3 of its arguments",
        ),
        (
            "common.pt",
            with_arguments(qk_layernorm=True, normalization="RMSNorm"),
            "lacks self_attention.q_layernorm",
        ),
        (
            "common.pt",
            with_arguments(window_size=(4, 4)),
            "window_size .4, 4. and window_attn_skip_freq None",
        ),
        (
            "common.pt",
            with_arguments(window_size=[4, 0], window_attn_skip_freq=2),
            "window_attn_skip_freq 2;",
        ),
        (METADATA, pickle.dumps(Evil()), "builtins.exec is not read"),
    ):
        if changed is None:
            (step / file).unlink()
        else:
            (step / file).write_bytes(changed)
        with pytest.raises(TrainerError, match=words):
            open_source(tmp_path)
        (step / file).write_bytes(content[file])
    other = tmp_path / "other/iter_0000007"
    torch_dist(randomised(MODELS["qwen3"]), other, numbered=True)
    arguments = vars(torch.load(other / "common.pt", weights_only=False)["args"])
    torch.save({"args": argparse.Namespace(**{**arguments, "qk_layernorm": False})}, other / "common.pt")
    (other.parent / "latest_checkpointed_iteration.txt").write_text("7")
    with pytest.raises(TrainerError, match=r"has decoder.layers.0.self_attention.._layernorm"):
        open_source(other.parent)
    for path in step.glob("*.distcp"):
        path.write_bytes(b"")
    with pytest.raises(TrainerError, match=r"embed.* cannot be read"):
        open_source(tmp_path).whole("tied_modules.embed.weight")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("none")
    with pytest.raises(TrainerError, match="'none', which is no step"):
        open_source(tmp_path)


def test_from_and_to_megatron_on_the_command_line(tmp_path: Path) -> None:
    model: ModelConfig = MODELS["qwen2"]
    source = randomised(model)
    writing.write(source, tmp_path / "theirs", tensor=2)
    with pytest.raises(SystemExit, match="0"):
        main(["import", str(tmp_path / "theirs"), str(tmp_path / "job.yaml")])
    job = load(tmp_path / "job.yaml", ["data.mock=true", "optimisation.train_iterations=1"])
    assert list(check(job)) == []
    assert job.checkpoint.init_from == str(tmp_path / "theirs")
    # Into Hugging Face's format, and back under another layout.
    for arguments in (
        [str(tmp_path / "theirs"), str(tmp_path / "hf")],
        [str(tmp_path / "hf"), str(tmp_path / "back"), "--format", "megatron", "--pipeline", "2"],
        [
            *(str(tmp_path / "back"), str(tmp_path / "interleaved")),
            *("--format", "megatron", "--pipeline", "2", "--virtual-pipeline", "2"),
        ],
    ):
        with pytest.raises(SystemExit, match="0"):
            main(["export", *arguments])
    same(tmp_path / "interleaved", source)


def test_what_megatron_has_not_is_one_sentence(tmp_path: Path) -> None:
    relative = dataclasses.replace(MODELS["gpt"], position_embedding="relative")
    cases: list[tuple[ModelConfig, dict[str, Any], str]] = [
        (relative, {}, "position_embedding relative of a gpt is not written .*; take rope or learned"),
        (dataclasses.replace(MODELS["llama"], rope_theta=26695.5), {}, "rope_theta 26695.5 is not written"),
        (MODELS["gpt"], {"tensor": 3}, "attention_heads 4 are not divisible by 3"),
        (MODELS["gpt"], {"pipeline": 3}, "4 layers are not divisible by 3 stages; take 1, 2 or 4"),
        (MODELS["gpt"], {"pipeline": 2, "virtual": 3}, "4 layers are not divisible by 2 x 3 chunks"),
        (MODELS["gpt"], {"virtual": 2}, "2 chunks of layers on each stage need 2 stages or more"),
        *(
            (dataclasses.replace(MODELS["llama"], rope_scaling=scaling), {}, words)
            for scaling, words in (
                (RopeScaling("yarn", 8.0, 8192), "kind yarn"),
                (RopeScaling("llama3", 8.0, 4096), "original_max_position_embeddings 4096"),
                (RopeScaling("llama3", 8.0, 8192, 2.0), "low_freq_factor 2"),
            )
        ),
    ]
    for model, layout, words in cases:
        with pytest.raises(TrainerError, match=words):
            writing.write(types.SimpleNamespace(model=model), tmp_path / "out", **layout)
        assert not list(tmp_path.iterdir())

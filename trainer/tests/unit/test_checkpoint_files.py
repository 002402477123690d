# SPDX-License-Identifier: GPL-3.0-or-later
"""Which checkpoints are complete, whatever ended the run that wrote them; and what the verbs do with them."""

from __future__ import annotations

import errno
import json
import os
import zipfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from rdm_core import config as configuration
from rdm_core.errors import TrainerError
from rdm_trainer.checkpoint import damage, files, identity, storage
from rdm_trainer.checkpoint.files import Inventory, Manifest, Step
from rdm_trainer.cli.checkpoint import checkpoint

LAYOUT = {"tensor": 1, "pipeline": 1, "data": 1, "zero_stage": 1, "precision": "fp32"}


def archive(path: Path, size: int = 100) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data", os.urandom(size))


def write(directory: Path, iteration: int) -> None:
    """Write a step as a training does."""
    partial = directory / f"{files.tag(iteration)}.partial"
    partial.mkdir(parents=True)
    for name in ("a.pt", "b.pt"):
        archive(partial / name)
    files.commit(
        directory,
        files.tag(iteration),
        Manifest(iteration, files.measure(partial), {}, LAYOUT, {"consumed_samples": 8 * iteration}),
    )
    files.point_to(directory, iteration)


def whole(directory: Path) -> list[int]:
    return list(files.complete_steps([files.scan(directory)]))


def test_a_step_is_complete_only_with_all_its_files_and_the_manifest(tmp_path: Path) -> None:
    for iteration in (2, 4, 6, 8, 10):
        write(tmp_path, iteration)
    assert whole(tmp_path) == [2, 4, 6, 8, 10]
    (tmp_path / "global_step4/a.pt").unlink()
    (tmp_path / "global_step6/manifest.json").write_text("{")
    (tmp_path / "global_step10/b.pt").write_bytes(b"short")
    (tmp_path / "global_step12.partial").mkdir()
    assert whole(tmp_path) == [2, 8]
    assert files.scan(tmp_path).points_to(10)
    assert files.scan(tmp_path / "nowhere") == Inventory(leftovers=[])


class _Killed(BaseException):
    """A kill in the middle of something."""


def test_interrupted_commit_leaves_a_complete_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill the writer at each rename; there are never fewer complete checkpoints than before."""
    moves = ("rename", "replace", "mkdir", "unlink")
    killed_at, done = 0, False
    while not done:
        directory = tmp_path / str(killed_at)
        write(directory, 2)
        write(directory, 4)
        left = killed_at
        with monkeypatch.context() as patch:
            for move in moves:
                original = getattr(Path, move)

                def counted(self: Path, *args: Any, _original: Any = original, **more: Any) -> Any:
                    nonlocal left
                    if left == 0:
                        raise _Killed
                    left -= 1
                    return _original(self, *args, **more)

                patch.setattr(Path, move, counted)
            try:
                write(directory, 6)
                files.prune(directory, 2, 6)
                done = True
            except _Killed:
                pass
        steps = whole(directory)
        assert steps in ([2, 4], [2, 4, 6], [4, 6])
        latest = (directory / "latest").read_text()
        assert latest in {files.tag(step) for step in steps}
        files.clear_leftovers(directory)
        assert whole(directory) == steps
        assert not list(directory.glob("*.partial"))
        killed_at += 1
    assert killed_at > 5


def test_interrupted_rewrite_of_a_step_leaves_one_of_the_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, killed_at, left_over = Path.rename, 0, set()
    while True:
        directory = tmp_path / str(killed_at)
        write(directory, 2)
        write(directory, 4)
        before = (directory / "global_step4/a.pt").read_bytes()
        moves = iter(range(killed_at))

        def counted(self: Path, target: Path, _moves: Any = moves) -> Path:
            if next(_moves, None) is None:
                raise _Killed
            return original(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", counted)
            try:
                write(directory, 4)
                break
            except _Killed:
                left_over |= {path.name for path in directory.glob("*.partial")}
        files.clear_leftovers(directory)
        assert whole(directory) == [2, 4]
        assert not list(directory.glob("*.partial"))
        # The successor is complete when the first of the two renames begins.
        is_new = (directory / "global_step4/a.pt").read_bytes() != before
        assert is_new == (killed_at > 0)
        killed_at += 1
    assert left_over == {"global_step4.partial", "global_step4.replaced.partial"}


def test_step_whose_successor_has_no_manifest_is_restored(tmp_path: Path) -> None:
    write(tmp_path, 4)
    (tmp_path / "global_step4").rename(tmp_path / "global_step4.replaced.partial")
    (tmp_path / "global_step4.partial").mkdir()
    files.recover(tmp_path)
    assert whole(tmp_path) == [4]
    repaired = json.loads(run_verb("repair", tmp_path, "--json").output)
    assert repaired == {"iteration": 4, "removed": ["global_step4.partial"], "aside": []}


def test_a_manifest_with_a_flipped_bit_is_none(tmp_path: Path) -> None:
    write(tmp_path, 4)
    path = tmp_path / "global_step4/manifest.json"
    text = path.read_text()
    assert '"consumed_samples": 32' in text
    path.write_text(text.replace('"consumed_samples": 32', '"consumed_samples": 33'))
    assert Manifest.read(path.parent) is None
    content = json.loads(text)
    del content["checksum"]
    path.write_text(json.dumps(content))
    assert Manifest.read(path.parent) is not None, "as earlier releases wrote it"


def test_writing_a_step_again_replaces_it(tmp_path: Path) -> None:
    write(tmp_path, 2)
    before = (tmp_path / "global_step2/a.pt").read_bytes()
    write(tmp_path, 2)
    assert (tmp_path / "global_step2/a.pt").read_bytes() != before
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "global_step2",
        "latest",
        "latest_checkpointed_iteration.txt",
    ]


def parts() -> st.SearchStrategy[list[dict[str, int]]]:
    sizes = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2))
    return st.lists(sizes, min_size=1, max_size=4)


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2), min_size=1), parts())
def test_the_union_of_nodes_decides(expected: dict[str, int], found: list[dict[str, int]]) -> None:
    manifest = Manifest(3, expected)
    inventories = [Inventory({3: Step(3, manifest, part)}) for part in found]
    everything = {(name, size) for part in found for name, size in part.items()}
    assert (3 in files.complete_steps(inventories)) == (set(expected.items()) <= everything)


def test_parts_of_different_runs_do_not_make_a_whole() -> None:
    one, other = (Manifest(3, {"a": 1, "b": 1}, state={"run": run}) for run in (1, 2))
    inventories = [Inventory({3: Step(3, one, {"a": 1})}), Inventory({3: Step(3, other, {"b": 1})})]
    assert files.complete_steps(inventories) == {}


def test_reason_of_an_incomplete_step_is_reported() -> None:
    manifest = Manifest(2, {"a.pt": 1, "b.pt": 1, "c.pt": 1})
    other = Manifest(2, {"a.pt": 1})

    def why(*parts: Step | None) -> str:
        return files.why_incomplete(parts)

    assert why(Step(2, None, {"a.pt": 1}), None) == "its manifest.json is missing or damaged"
    assert why(Step(2, manifest, {"a.pt": 1}), Step(2, manifest, {"b.pt": 1, "c.pt": 2})) == (
        "c.pt is missing or has another size"
    )
    assert why(Step(2, manifest, {"a.pt": 1})) == "b.pt is missing or has another size, and 1 more"
    assert why(Step(2, manifest, {"a.pt": 1}), Step(2, other, {"b.pt": 1, "c.pt": 1})) == (
        "its parts are of different runs"
    )


@settings(deadline=None, max_examples=30)
@given(st.sets(st.integers(1, 50), min_size=1, max_size=8), st.integers(0, 4))
def test_pruning_keeps_the_newest(
    tmp_path_factory: pytest.TempPathFactory, steps: set[int], keep: int
) -> None:
    directory = tmp_path_factory.mktemp("checkpoints")
    for step in steps:
        (directory / files.tag(step)).mkdir()
        # Earlier releases made a copy for other layouts.
        (directory / f"{files.tag(step)}_universal").mkdir()
    files.prune(directory, keep, max(steps))
    expected = sorted(steps)[-keep:] if keep else sorted(steps)
    assert sorted(files.scan(directory).steps) == expected
    assert sorted(path.name for path in directory.glob("*_universal")) == sorted(
        f"{files.tag(step)}_universal" for step in expected
    )


def job(**model: Any) -> configuration.Config:
    return configuration.from_dict({"model": {"layers": 4, "hidden_size": 64, "attention_heads": 4, **model}})


def test_another_model_is_refused_in_one_sentence(tmp_path: Path) -> None:
    saved = identity.model_of(job().spec)
    identity.require_same_model(saved, job(seq_length=512, max_position_embeddings=1024), tmp_path)
    with pytest.raises(TrainerError) as refused:
        identity.require_same_model(saved, job(layers=6, vocab_size=100), tmp_path)
    assert "model.layers is 6 here and 4 there" in str(refused.value)
    assert "model.vocab_size is 100 here and 50257 there" in str(refused.value)
    assert "hidden_size" not in str(refused.value)


# What manifests of earlier releases say about the model: names and values of the configuration's keys.
FORMER_T5 = {
    **{"kind": "t5", "layers": 2, "decoder_layers": 3, "hidden_size": 32, "attention_heads": 4},
    **{"query_groups": 4, "kv_channels": 6, "ffn_hidden_size": 48, "max_position_embeddings": 0},
    **{"vocab_size": 45, "vocab_extra_ids": 5, "tied_embeddings": False, "position_embedding": "relative"},
    **{"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "norm": "rmsnorm"},
    **{"qk_norm": False, "activation": "geglu", "biases": "none", "sliding_window": None, "experts": None},
    **{"softmax_scale": 1.0, "scale_logits": True},
}
FORMER_MOE = {
    **{"kind": "gpt", "layers": 2, "decoder_layers": 0, "hidden_size": 32, "attention_heads": 4},
    **{"query_groups": 2, "kv_channels": 8, "ffn_hidden_size": 24, "max_position_embeddings": 0},
    **{"vocab_size": 50, "vocab_extra_ids": 0, "tied_embeddings": False, "position_embedding": "rope"},
    # A value of the configuration that such a model does not use.
    **{"relative_attention_num_buckets": 16, "relative_attention_max_distance": 128, "norm": "rmsnorm"},
    **{"qk_norm": True, "activation": "swiglu", "biases": "none", "sliding_window": 7, "experts": 4},
    **{"softmax_scale": None, "scale_logits": False, "moe_router_topk": 3, "moe_norm_topk_prob": False},
}


@pytest.mark.parametrize("former", [FORMER_T5, FORMER_MOE])
def test_the_models_of_earlier_releases_are_known(former: dict[str, Any], tmp_path: Path) -> None:
    given = {key: value for key, value in former.items() if value or value is False}
    config = configuration.from_dict({"model": given})
    identity.require_same_model(former, config, tmp_path)
    named = {key: value for key, value in identity.model_of(config.spec).items() if value != former[key]}
    assert named in ({}, {"relative_attention_num_buckets": 32})
    for key in ("activation", "norm", "position_embedding", "query_groups", "biases"):
        with pytest.raises(TrainerError, match=f"model.{key} is .* here and other there"):
            identity.require_same_model({**former, key: "other"}, config, tmp_path)


def test_manifest_names_a_head_bias_only_where_there_is_one(tmp_path: Path) -> None:
    without, having = (
        configuration.from_dict({"model": {"kind": "t5", "vocab_extra_ids": 5, "lm_head_bias": head_bias}})
        for head_bias in (False, True)
    )
    assert "lm_head_bias" not in identity.model_of(without.spec)
    identity.require_same_model(identity.model_of(having.spec), having, tmp_path)
    with pytest.raises(TrainerError, match=r"model\.lm_head_bias is True here and False there"):
        identity.require_same_model(identity.model_of(without.spec), having, tmp_path)
    with pytest.raises(TrainerError, match=r"model\.lm_head_bias is False here and True there"):
        identity.require_same_model(identity.model_of(having.spec), without, tmp_path)


def run_verb(*arguments: object) -> Any:
    return CliRunner().invoke(checkpoint, [str(argument) for argument in arguments], standalone_mode=False)


def test_the_verbs(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    for iteration in (2, 4, 6):
        write(directory, iteration)
    listed = json.loads(run_verb("list", tmp_path, "--json").output)
    assert [step["complete"] for step in listed["checkpoints"]] == [True] * 3
    lines = run_verb("list", tmp_path).output.splitlines()
    assert lines[-1].endswith("complete  TP 1 x PP 1 x DP 1, ZeRO 1, fp32, deepspeed  <- latest")
    assert run_verb("verify", tmp_path).return_value == 0

    broken = directory / "global_step6/a.pt"
    data = bytearray(broken.read_bytes())
    data[60] ^= 1
    broken.write_bytes(data)
    assert json.loads(run_verb("list", tmp_path, "--json").output)["checkpoints"][2]["complete"]
    verified = run_verb("verify", tmp_path, "--json")
    assert verified.return_value == 1
    assert json.loads(verified.output)["damaged"] == ["a.pt"]

    (directory / "global_step8.partial").mkdir()
    repaired = json.loads(run_verb("repair", tmp_path, "--iteration", 4, "--json").output)
    assert repaired == {"iteration": 4, "removed": ["global_step8.partial"], "aside": ["global_step6.aside"]}
    assert whole(directory) == [2, 4]
    assert files.scan(directory).points_to(4)
    for wrong in (("repair", tmp_path, "--iteration", 5), ("verify", tmp_path / "nowhere")):
        assert isinstance(run_verb(*wrong).exception, TrainerError)


def test_verbs_name_the_iterations_in_their_order(tmp_path: Path) -> None:
    for iteration in (3, 10, 200):
        write(tmp_path, iteration)
    lines = run_verb("list", tmp_path).output.splitlines()
    assert [line.split()[0] for line in lines] == ["3", "10", "200"]
    error = run_verb("verify", tmp_path, "--iteration", 7).exception
    assert str(error).endswith("has no checkpoint of iteration 7; there are 3, 10, 200.")


def test_a_layout_names_its_engine() -> None:
    # DeepSpeed's checkpoints leave it out.
    for layout, engine in ((LAYOUT, "deepspeed"), ({**LAYOUT, "engine": "native"}, "native")):
        assert identity.describe(layout) == f"TP 1 x PP 1 x DP 1, ZeRO 1, fp32, {engine}"
    experts = identity.describe({**LAYOUT, "data": 4, "expert": 2})
    assert experts == "TP 1 x PP 1 x DP 4, EP 2, ZeRO 1, fp32, deepspeed"


def test_copy_that_cannot_be_synced_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def receive(_size: int, _source: int, take: Any) -> None:
        take(memoryview(b"weights"))

    copy = tmp_path / "global_step2/a.pt"
    collective: Any = mock.Mock(receive=receive)
    assert storage._receive(collective, copy, 7, 1) is None
    assert copy.read_bytes() == b"weights"
    copy.unlink()
    monkeypatch.setattr(os, "fsync", failing)
    assert storage._receive(collective, copy, 7, 1) == f"{copy}.partial: Input/output error"
    assert not list(copy.parent.iterdir())


def test_damaged_file_is_named_for_every_exception(tmp_path: Path) -> None:
    for name in ("a.pt", "b.pt"):
        archive(tmp_path / name)
    with pytest.raises(KeyError, match="no file's fault"), damage.naming(tmp_path, ["a.pt", "b.pt"]):
        raise KeyError("no file's fault")
    content = bytearray((tmp_path / "b.pt").read_bytes())
    content[60] ^= 1
    (tmp_path / "b.pt").write_bytes(content)
    with damage.naming(tmp_path, ["a.pt", "b.pt"]):
        assert not damage.is_sound(tmp_path / "b.pt"), "which does not matter to what can be read"
    with pytest.raises(TrainerError, match=r"damaged in b\.pt;"), damage.naming(tmp_path, ["a.pt", "b.pt"]):
        raise KeyError("filename 'storages' not found")
    (tmp_path / "a.pt").write_bytes(bytes(100))
    with pytest.raises(TrainerError, match=r"a\.pt and b\.pt"), damage.naming(tmp_path, ["a.pt", "b.pt"]):
        raise EOFError


def test_a_conversion_is_refused_in_one_sentence(tmp_path: Path) -> None:
    refused = run_verb("convert", tmp_path, "--iteration", 4, "--json").exception
    assert isinstance(refused, TrainerError)
    assert "reads them in every layout as they are" in str(refused)
    assert "convert" not in run_verb("--help").output


def test_error_with_a_sentence_is_raised_unchanged(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match="in one sentence"), damage.naming(tmp_path, ["damaged.pt"]):
        raise TrainerError("in one sentence")


def test_a_flipped_bit_that_calls_content_compressed_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data", b"weights" * 100)
    content = bytearray(path.read_bytes())
    # The method of compression in the archive's list; 8 is deflate.
    content[content.index(b"PK\x01\x02") + 10] ^= 8
    path.write_bytes(content)
    assert not damage.is_sound(path)


def test_a_jobs_directory_stands_for_its_checkpoints(tmp_path: Path) -> None:
    assert files.checkpoints_of(tmp_path) == tmp_path
    (tmp_path / "checkpoints").mkdir()
    assert files.checkpoints_of(tmp_path) == tmp_path / "checkpoints"

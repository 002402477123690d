# SPDX-License-Identifier: GPL-3.0-or-later
"""From a configuration to micro-batches, what is rejected first, and the verbs that inspect data."""

from __future__ import annotations

import dataclasses
import itertools
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from rdm_core.config import Config, TokenizerConfig, from_dict
from rdm_core.errors import TrainerError
from rdm_trainer.cli.data import data as data_verb
from rdm_trainer.data import checks
from rdm_trainer.data.index_maps.maker import MapMaker
from rdm_trainer.data.loaders import Loaders, MicroBatch, MicroBatches, build
from rdm_trainer.data.order import Order

VOCABULARY = 300


@pytest.fixture
def two(make_dataset: Callable[..., Path]) -> list[str]:
    random = np.random.default_rng(0)
    return [
        str(
            make_dataset(
                name,
                [
                    [
                        random.integers(0, VOCABULARY, random.integers(1, 40)).tolist()
                        for _ in range(random.integers(1, 5))
                    ]
                    for _ in range(120)
                ],
            )
        )
        for name in ("a", "b")
    ]


def config(kind: str = "gpt", **data: Any) -> Config:
    t5 = {"vocab_extra_ids": 20, "decoder_seq_length": 24} if kind == "t5" else {}
    return from_dict(
        {
            "model": {
                "kind": kind, "layers": 2, "hidden_size": 32, "attention_heads": 2, "seq_length": 32,
                "vocab_size": VOCABULARY, **t5,
            },
            "optimisation": {
                "train_iterations": 12, "global_batch_size": 12, "micro_batch_size": 2, "lr": 1e-3,
            },
            "logging": {"eval_interval": 6, "eval_iterations": 2},
            "data": {"split": "80,10,10", **data},
        }
    )  # fmt: skip


def open_data(settings: Config, rank: int = 0, size: int = 1, consumed: int = 0) -> Loaders:
    return build(
        settings,
        data_rank=rank,
        data_size=size,
        consumed_samples=consumed,
    )


def flat(batch: MicroBatch) -> list[torch.Tensor]:
    inputs, (labels, mask) = batch
    return [*(inputs if isinstance(inputs, tuple) else (inputs,)), labels, mask]


def kinds(two: list[str], kind: str, vocabulary: TokenizerConfig) -> list[Config]:
    blend = [{"prefix": two[0], "weight": 3.0}, {"prefix": two[1], "weight": 1.0}]
    tokenizer = {"kind": "gpt2", "vocab": vocabulary.vocab, "merges": vocabulary.merges}
    return [
        config(kind, mock=True),
        config(kind, blend=blend[:1], tokenizer=tokenizer),
        config(kind, blend=blend, tokenizer=tokenizer, sampler="cyclic"),
        # Maps of whole data sets have the same names as maps of their splits, so they need another directory.
        config(
            kind, train=blend, valid=blend[1:], tokenizer=tokenizer, workers=0, index_cache=f"{two[0]}.maps"
        ),
    ]


def test_bert_labels_are_the_masked_tokens(two: list[str], tmp_path: Path) -> None:
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *(f"w{number}" for number in range(5, VOCABULARY - 2)),
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    tokenizer = {"kind": "wordpiece", "vocab": str(tmp_path / "vocab.txt")}
    settings = config("bert", blend=[{"prefix": prefix} for prefix in two], tokenizer=tokenizer, workers=0)
    assert checks(settings) == []
    loaders, others = open_data(settings), open_data(settings, consumed=12)
    assert loaders.train is not None
    assert others.train is not None
    batches = list(loaders.train)
    # A resumed training reads the same masks.
    assert torch.equal(flat(next(others.train))[0], flat(batches[6])[0])
    tokens, labels, mask = (torch.cat(column) for column in zip(*map(flat, batches), strict=True))
    assert tokens.shape == (144, 32)
    assert (tokens[:, 0] == 2).all()
    assert (tokens[:, -1] == 3).all()
    assert (mask.sum(dim=1) == round(30 * 0.15)).all()
    assert mask[:, [0, -1]].sum() == 0
    assert torch.equal(tokens[mask == 0], labels[mask == 0])
    special = (labels == 2) | (labels == 3)
    assert special[:, 1:-1].sum() > 20
    assert mask[special].sum() == 0
    hidden, shown = (tokens == 4)[mask == 1], (tokens == labels)[mask == 1]
    assert 0.75 < hidden.float().mean() < 0.85
    assert 0.06 < shown.float().mean() < 0.14
    # The text is the same as a GPT's.
    again = open_data(config("bert", mock=True))
    assert again.train is not None
    (inputs, (_, counted)) = next(again.train)
    assert isinstance(inputs, torch.Tensor)
    assert (inputs == VOCABULARY - 2).sum() > 0
    assert counted.sum() == 8


@pytest.mark.parametrize("kind", ["gpt", "t5"])
def test_batches_do_not_depend_on_the_layout(
    two: list[str], kind: str, small_vocabulary: TokenizerConfig
) -> None:
    for settings in kinds(two, kind, small_vocabulary):
        loaders = open_data(settings)
        assert loaders.train is not None
        whole = [flat(next(loaders.train)) for _ in range(18)]
        shapes = [tuple(tensor.shape) for tensor in whole[0]]
        dtypes = [tensor.dtype for tensor in whole[0]]
        assert shapes == ([(2, 32)] * 3 if kind == "gpt" else [(2, 32), (2, 24), (2, 24), (2, 24)])
        assert dtypes == [torch.int64] * (len(shapes) - 1) + [torch.float32]
        loaders.close()
        # Two ranks, resumed after the first step of twelve samples.
        ranks = [open_data(settings, rank, 2, 12) for rank in range(2)]
        for step in range(6, 18):
            loader = ranks[step % 2].train
            assert loader is not None
            for ours, theirs in zip(flat(next(loader)), whole[step], strict=True):
                assert torch.equal(ours, theirs)
        for rank in ranks:
            rank.close()


def test_documents_are_known_by_the_tokens_that_end_them(make_dataset: Callable[..., Path]) -> None:
    # Without a tokenizer, the vocabulary's last token ends documents.
    end = VOCABULARY - 1
    prefix = str(make_dataset("ends", [[[*range(1, 6), end]]] * 200))
    loaders = open_data(config(blend=[{"prefix": prefix}], eod_mask_loss=True))
    assert loaders.train is not None
    tokens, (_, mask) = next(loaders.train)
    assert isinstance(tokens, torch.Tensor)
    assert torch.equal(mask, (tokens != end).float())
    assert 0 < mask.sum() < mask.numel()
    loaders.close()
    loaders = open_data(config(blend=[{"prefix": prefix}], reset_attention_mask=True))
    assert loaders.train is not None
    (tokens, starts), (_, mask) = next(loaders.train)
    assert mask.all()
    # All documents but a cut one at the beginning have six tokens.
    positions = torch.arange(32) - starts
    assert torch.equal(positions[:, 6:] == 0, (tokens == 1)[:, 6:])
    assert positions.max() == 5
    loaders.close()


def test_a_t5_reads_documents_that_are_not_split_to_their_end(
    make_dataset: Callable[..., Path], small_vocabulary: TokenizerConfig
) -> None:
    # Each token's value is its position.
    prefix = make_dataset("documents", [[list(range(100, 290))], [list(range(290, 100, -1))]])
    tokenizer = {"kind": "gpt2", "vocab": small_vocabulary.vocab, "merges": small_vocabulary.merges}
    loaders = open_data(config("t5", blend=[{"prefix": str(prefix)}], tokenizer=tokenizer, split="1"))
    assert loaders.train is not None
    seen: set[int] = set()
    for batch in loaders.train:
        encoder, _, labels, _ = flat(batch)
        seen |= set(encoder.flatten().tolist()) | set(labels.flatten().tolist())
    loaders.close()
    assert seen >= set(range(100, 290))


@pytest.mark.parametrize("kind", ["gpt", "t5"])
@pytest.mark.parametrize("token", [VOCABULARY, -1])
@pytest.mark.parametrize("sentences", [1, 5])
def test_a_token_outside_the_vocabulary_is_found_where_it_is_used(
    kind: str,
    token: int,
    sentences: int,
    make_dataset: Callable[..., Path],
    small_vocabulary: TokenizerConfig,
) -> None:
    documents = [[[7] * 40 for _ in range(sentences)] for _ in range(50)]
    documents[30][0][5] = token
    prefix = make_dataset("d", documents, np.int32)
    tokenizer = {"kind": "gpt2", "vocab": small_vocabulary.vocab, "merges": small_vocabulary.merges}
    settings = config(kind, train=[{"prefix": str(prefix)}], tokenizer=tokenizer)
    loaders = open_data(settings)
    assert loaders.train is not None
    location = rf"{prefix} holds the token {token} \(sequence {30 * sentences}, token 5\)"
    with pytest.raises(TrainerError, match=rf"^{location}, but model\.vocab_size is {VOCABULARY}: "):
        list(loaders.train)
    loaders.close()


@pytest.mark.parametrize("kind", ["gpt", "t5"])
def test_order_of_samples_continues_with_any_number_of_iterations(
    two: list[str], kind: str, small_vocabulary: TokenizerConfig
) -> None:
    def samples(loader: MicroBatches | None, most: int) -> list[bytes]:
        assert loader is not None
        taken = [flat(batch) for batch in itertools.islice(loader, most)]
        return [b"".join(row.numpy().tobytes() for row in rows) for rows in taken]

    for settings in kinds(two, kind, small_vocabulary):
        begun = Order.of(settings)
        loaders = open_data(settings)
        # Everything that the first maps hold, not only what was wanted.
        first = samples(loaders.train, 10_000 if settings.data.sampler == "single" else 72)
        evaluated = samples(loaders.valid, 12)
        loaders.close()
        assert len(first) >= 72
        order = begun
        for iterations in (13, 60, 200, 9):
            optimisation = dataclasses.replace(settings.optimisation, train_iterations=iterations)
            changed = dataclasses.replace(settings, optimisation=optimisation)
            kept = json.loads(json.dumps(order.state()))
            order = Order.of(changed, kept, iteration=9, consumed_samples=108)
            assert order.note is None
            lines: list[str] = []
            maps = MapMaker(log=lines.append)
            loaders = build(changed, data_rank=0, data_size=1, consumed_samples=0, order=order, maps=maps)
            taken = samples(loaders.train, 6 * max(12, iterations))
            assert len(taken) == 6 * max(12, iterations)
            assert taken[: len(first)] == first[: len(taken)]
            assert samples(loaders.valid, 12) == evaluated
            loaders.close()
            # Samples after these are reported when they are new.
            notes = [line for line in lines if "drawn again" in line]
            has_end = not settings.data.mock and settings.data.sampler == "single"
            assert bool(notes) == (has_end and iterations in (60, 200)), lines


def test_changed_order_of_samples_is_reported(two: list[str]) -> None:
    settings = config(blend=[{"prefix": two[0]}])
    kept = json.loads(json.dumps(Order.of(settings).state()))

    def note(**data: Any) -> str | None:
        return Order.of(config(**data), kept, iteration=3, consumed_samples=36).note

    assert note(blend=[{"prefix": two[0]}]) is None
    # A data set that was moved has the same samples.
    assert note(blend=[{"prefix": f"elsewhere/{Path(two[0]).name}"}]) is None
    assert str(note(blend=[{"prefix": two[1]}], split="1", sampler="cyclic")).startswith(
        "data.sampler and data.blend and data.split changed since the checkpoint: "
    )
    old = Order.of(settings, None, iteration=3, consumed_samples=36)
    assert str(old.note).startswith("the checkpoint does not say how many samples")
    assert Order.of(config(mock=True), None, iteration=3, consumed_samples=36).note is None


def test_labels_are_the_next_tokens(two: list[str]) -> None:
    loaders = open_data(config(blend=[{"prefix": two[0]}]))
    assert loaders.train is not None
    for inputs, (labels, mask) in loaders.train:
        assert isinstance(inputs, torch.Tensor)
        assert torch.equal(inputs[:, 1:], labels[:, :-1])
        assert mask.min() == 1
    loaders.close()


def test_evaluation_can_be_restarted(two: list[str]) -> None:
    loaders = open_data(config(blend=[{"prefix": two[0]}]))
    for loader in (loaders.valid, loaders.test):
        assert loader is not None
        first = [flat(batch)[0] for batch in loader]
        assert len(first) >= 12
        loader.restart()
        again = [flat(next(loader))[0] for _ in range(3)]
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=False))
        loader.restart(12)
        assert torch.equal(flat(next(loader))[0], first[6])
    loaders.close()


def test_loaders_start_no_worker_before_the_first_batch(two: list[str]) -> None:
    before = threading.active_count()
    loaders = open_data(config(blend=[{"prefix": two[0]}]))
    assert threading.active_count() == before
    assert loaders.train is not None
    next(loaders.train)
    assert threading.active_count() > before
    loaders.close()
    assert threading.active_count() == before


def test_an_empty_split_is_none(two: list[str]) -> None:
    loaders = open_data(config(blend=[{"prefix": two[0]}], split="100,0,0"))
    assert loaders.train is not None
    assert (loaders.valid, loaders.test) == (None, None)
    only = open_data(config(train=[{"prefix": two[0]}]))
    assert (only.valid, only.test) == (None, None)


def test_mock_data_can_be_learned() -> None:
    loaders = open_data(config(mock=True))
    assert loaders.train is not None
    follows: dict[int, int] = {}
    for _ in range(12):
        inputs, (labels, _) = next(loaders.train)
        assert isinstance(inputs, torch.Tensor)
        for token, label in zip(inputs.flatten().tolist(), labels.flatten().tolist(), strict=True):
            assert follows.setdefault(token, label) == label
            assert 0 <= token < VOCABULARY
    loaders.close()


def test_sound_data_has_no_problem(two: list[str], small_vocabulary: TokenizerConfig) -> None:
    for kind in ("gpt", "t5"):
        for settings in kinds(two, kind, small_vocabulary):
            assert checks(settings) == []


def test_every_problem_is_named_at_once(
    two: list[str], make_dataset: Callable[..., Path], small_vocabulary: TokenizerConfig, tmp_path: Path
) -> None:
    high = make_dataset("high", [[[1, 2, 65000] * 40]])
    short = make_dataset("short", [[[1] * 20]])
    none = make_dataset("none", [[[]]])
    floats = make_dataset("floats", [[[1.5] * 40]], np.float64)
    cut = make_dataset("cut", [[[1] * 40]])
    cut.with_suffix(".bin").write_bytes(b"x")
    blend = [{"prefix": str(p)} for p in (two[0], high, short, none, floats, cut, tmp_path / "missing")]
    tokenizer = {"kind": "gpt2", "vocab": small_vocabulary.vocab, "merges": small_vocabulary.merges}
    problems = checks(config(train=blend, tokenizer=tokenizer))
    expected = [
        "high holds the token 65000, but model.vocab_size is 300",
        "short has 20 tokens for train, fewer than one sample of 32",
        "none is empty",
        "floats holds float64, which are no tokens",
        "cut.bin is cut off at offset 1",
        "missing.bin and",
    ]
    for part in expected:
        assert sum(part in sentence for sentence in problems) == 1, (part, problems)
    assert all(sentence.endswith(".") for sentence in problems)


def test_a_tokenizer_that_does_not_match_is_named(two: list[str], tmp_path: Path) -> None:
    vocab = tmp_path / "vocab.json"
    for size, part in (
        (350, "but the tokenizer has 350 tokens"),
        (200, "but the tokenizer has only 200 tokens"),
    ):
        vocab.write_text(json.dumps({"<|endoftext|>": 0, "a": size - 1}))
        problems = checks(config(blend=[{"prefix": two[0]}], tokenizer={"kind": "gpt2", "vocab": str(vocab)}))
        assert len(problems) == 1
        assert part in problems[0]
    problems = checks(config(blend=[{"prefix": two[0]}], tokenizer={"kind": "gpt2", "vocab": "none.json"}))
    assert problems == ["data.tokenizer: none.json, the tokenizer's vocab, is not there."]


def test_too_few_sentinels_or_labels_are_named(two: list[str], small_vocabulary: TokenizerConfig) -> None:
    tokenizer = {"kind": "gpt2", "vocab": small_vocabulary.vocab, "merges": small_vocabulary.merges}
    settings = config("t5", blend=[{"prefix": two[0]}], tokenizer=tokenizer, mean_span_length=1.0)
    assert checks(settings) == []
    # 15 % of 30 tokens are 4, in spans of one.
    for key, value, words in (
        ("vocab_extra_ids", 3, "make 4 spans"),
        ("decoder_seq_length", 8, "make 9 labels"),
    ):
        changed: Any = {key: value}
        few = dataclasses.replace(settings, model=dataclasses.replace(settings.model, **changed))
        problems = checks(few)
        assert len(problems) == 1
        assert f"model.{key} is {value}" in problems[0]
        assert words in problems[0]


def test_info_shows_the_data_sets(two: list[str], small_vocabulary: TokenizerConfig) -> None:
    tokenizer = ["--vocab", str(small_vocabulary.vocab), "--merges", str(small_vocabulary.merges)]
    done = CliRunner().invoke(
        data_verb, ["info", f"{two[0]}.bin", "--json", *tokenizer], catch_exceptions=False
    )
    report = json.loads(done.output)
    assert report["documents"] == 120
    assert report["dtype"] == "uint16"
    assert report["first_text"]
    assert report["tokens_per_document"]["0"] >= 1
    text = CliRunner().invoke(data_verb, ["info", two[0]], catch_exceptions=False).output
    assert "documents" in text
    assert f"{report['tokens']:,}" in text


def test_info_names_problems(make_dataset: Callable[..., Path], small_vocabulary: TokenizerConfig) -> None:
    odd = make_dataset("odd", [[[1] * 600, [2]], [], [[0]]])
    tokenizer = ["--vocab", str(small_vocabulary.vocab), "--merges", str(small_vocabulary.merges)]
    done = CliRunner().invoke(data_verb, ["info", str(odd), "--json", *tokenizer], catch_exceptions=False)
    problems = json.loads(done.output)["problems"]
    assert [p.split()[0:3] for p in problems] == [
        ["1", "of", "3"], ["1", "sentences", "have"], ["only", "50.0%", "of"],
    ]  # fmt: skip


def test_merge_verb(two: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(data_verb, ["merge", *two, "--output-prefix", str(tmp_path / "m")])
    assert "240 documents" in done.output
    again = CliRunner().invoke(data_verb, ["merge", *two, "--output-prefix", str(tmp_path / "m")])
    assert "would be replaced" in str(again.exception)
    for prefix, reason in ((tmp_path / ("m" * 300), "File name too long"), ("/proc/x/m", "No such file")):
        refused = CliRunner().invoke(data_verb, ["merge", *two, "--output-prefix", str(prefix)])
        assert f"{prefix} cannot be written: {reason}" in str(refused.exception)

# SPDX-License-Identifier: GPL-3.0-or-later
"""Tokens: ours must be the tokenizers library's own, for every text."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdm_core.config import TokenizerConfig
from rdm_core.errors import TrainerError
from rdm_trainer.tokenizers import bpe
from rdm_trainer.tokenizers import load as tokenizers
from rdm_trainer.tokenizers.pretokens import cut, word_begin
from rdm_trainer.tokenizers.special_tokens import special_tokens

# What the pattern distinguishes: contractions, spaces of all kinds, letters and numbers of several scripts.
PIECES = [
    *"abIs'tremvdlLDS  \n\t\r019.,!?-\"\x00\x1c\x85", "'s", "'ll", "'re", "'S", " the",
    "\u00a0", "\u2003", "\u3000",
    "\u0e01\u0e33", "\u0301", "½", "٣", "Ⅷ", "中文", "ß", "é", "😀", "\u180e", "\u200b", "\U0001d7d8",
    "\ufeff", "antidisestablishmentarianism", "'", "''", " '", "   ", "<|endoftext|>",
    "_", "a" * 14, "b" * 15, "c" * 16,
]  # fmt: skip
texts = st.one_of(
    st.text(max_size=80),
    st.lists(st.sampled_from(PIECES), max_size=40).map("".join),
)


@pytest.fixture(scope="module")
def pair(small_vocabulary: TokenizerConfig) -> tuple[tokenizers.Tokenizer, Any]:
    """Return our tokenizer and the library's, from the same files."""
    from tokenizers import ByteLevelBPETokenizer

    library = ByteLevelBPETokenizer(small_vocabulary.vocab, small_vocabulary.merges)
    return tokenizers.load(small_vocabulary), library


@pytest.fixture(scope="module")
def gpt2_pair(gpt2_vocabulary: TokenizerConfig) -> tuple[tokenizers.Tokenizer, Any]:
    """The same for GPT-2's vocabulary."""
    from tokenizers import ByteLevelBPETokenizer

    return tokenizers.load(gpt2_vocabulary), ByteLevelBPETokenizer(
        gpt2_vocabulary.vocab, gpt2_vocabulary.merges
    )


def assert_same(pair: tuple[tokenizers.Tokenizer, Any], documents: list[str]) -> None:
    ours, library = pair
    tokens, counts = ours.encode(documents)
    expected = [library.encode(document).ids for document in documents]
    assert counts.tolist() == [len(ids) for ids in expected]
    assert tokens.tolist() == [token for ids in expected for token in ids]


@given(st.lists(texts, max_size=8))
@settings(max_examples=400)
def test_tokens_are_the_librarys(pair: tuple[tokenizers.Tokenizer, Any], documents: list[str]) -> None:
    assert_same(pair, documents)


@given(st.lists(texts, max_size=8))
@settings(max_examples=200)
def test_gpt2_tokens_are_the_librarys(
    gpt2_pair: tuple[tokenizers.Tokenizer, Any], documents: list[str]
) -> None:
    assert_same(gpt2_pair, documents)


def test_known_tokens(gpt2_pair: tuple[tokenizers.Tokenizer, Any]) -> None:
    ours, _ = gpt2_pair
    assert ours.encode(["Hello world"])[0].tolist() == [15496, 995]
    assert ours.special.end_of_document == 50256
    assert ours.special.size == 50257
    assert ours.decode([15496, 995]) == "Hello world"


def test_every_character_has_the_librarys_class(pair: tuple[tokenizers.Tokenizer, Any]) -> None:
    points = [p for p in range(0x110000) if not 0xD800 <= p < 0xE000]
    sample = [*range(0x3100), *random.Random(0).sample(points, 3000)]
    # Between two letters, a character that is no letter is a word of its own.
    assert_same(pair, [f"a{chr(p)}b {chr(p)}{chr(p)}1" for p in sample if not 0xD800 <= p < 0xE000])


def test_cutting_long_documents_changes_no_token(
    pair: tuple[tokenizers.Tokenizer, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bpe, "BLOCK", 50)
    choices = random.Random(1)
    document = "".join(choices.choices(PIECES, k=2000))
    assert len(bpe._pieces(document)) > 20
    assert_same(pair, ["It's", document, "", document[5:], "x" * 300])


@given(texts, st.data())
def test_words_are_the_same_on_both_sides_of_a_cut(text: str, data: st.DataObject) -> None:
    after = data.draw(st.integers(1, max(1, len(text))))
    at = word_begin(text, after)
    if at is None:
        return
    assert after <= at < len(text)
    whole = [words.data[a:b] for words in [cut([text])] for a, b in itertools.pairwise(words.starts)]
    parts = [cut([part]) for part in (text[:at], text[at:])]
    # The last word of each is the separator.
    separate = [[words.data[a:b] for a, b in itertools.pairwise(words.starts)] for words in parts]
    assert separate[0][:-1] + separate[1] == whole


@pytest.mark.parametrize(
    "sentence", ["これは日本語の文章です。", "它没有空格。也不长。", "ข้อความภาษาไทย๑๒", "🙂text🙃", "a+b*c"]
)
def test_long_documents_without_spaces_are_cut_too(
    pair: tuple[tokenizers.Tokenizer, Any], monkeypatch: pytest.MonkeyPatch, sentence: str
) -> None:
    monkeypatch.setattr(bpe, "BLOCK", 50)
    document = sentence * 300
    pieces = bpe._pieces(document)
    assert max(map(len, pieces)) < 50 + len(sentence)
    assert_same(pair, [document])


def test_clearing_the_cache_changes_no_token(
    small_vocabulary: TokenizerConfig, pair: tuple[tokenizers.Tokenizer, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    choices = random.Random(2)
    words = ["".join(choices.choices("abcdefgh", k=choices.randint(1, 20))) for _ in range(3000)]
    monkeypatch.setattr(bpe, "MOST_LONG_WORDS", 20)
    monkeypatch.setattr(bpe, "MOST_POOLED", 5000)
    monkeypatch.setattr(bpe, "BLOCK", 400)
    ours = tokenizers.load(small_vocabulary)
    for _ in range(3):
        assert_same((ours, pair[1]), [" ".join(choices.choices(words, k=50)) for _ in range(20)])


def test_full_cache_changes_no_token(
    small_vocabulary: TokenizerConfig, pair: tuple[tokenizers.Tokenizer, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bpe, "SLOT_BITS", 10)
    monkeypatch.setattr(bpe, "MOST_WORDS", 500)
    ours = tokenizers.load(small_vocabulary)
    choices = random.Random(3)
    words = ["".join(choices.choices("abcdefgh", k=choices.randint(1, 9))) for _ in range(3000)]
    assert_same((ours, pair[1]), [" ".join(words), " ".join(reversed(words))])


def test_cut_gives_words_and_separators() -> None:
    words = cut(["It's  é\n", "", "x"])
    parts = [words.data[a:b].decode() for a, b in zip(words.starts, words.starts[1:], strict=False)]
    assert [part for i, part in enumerate(parts) if i not in set(words.ends.tolist())] == [
        "It",
        "'s",
        " ",
        " é",
        "\n",
        "x",
    ]
    assert len(words.ends) == 3


def test_half_a_surrogate_pair_is_refused(pair: tuple[tokenizers.Tokenizer, Any]) -> None:
    with pytest.raises(UnicodeEncodeError):
        pair[0].encode(["a\ud800"])


BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "sun", "##s", "is", ",", "a"]


def write_pieces(path: Path, pieces: list[str]) -> TokenizerConfig:
    path.write_text("\n".join(pieces) + "\n")
    return TokenizerConfig("wordpiece", str(path))


def test_word_pieces(tmp_path: Path) -> None:
    ours = tokenizers.load(write_pieces(tmp_path / "vocab.txt", BERT))
    tokens, counts = ours.encode(["The suns", "", "is, the Moon"])
    assert tokens.tolist() == [5, 6, 7, 8, 9, 5, 1]
    assert counts.tolist() == [3, 0, 4]
    # Megatron appends [BOS] and [EOS].
    assert (ours.special.size, ours.special.begin, ours.special.end) == (13, 11, 12)
    assert (ours.special.padding, ours.special.end_of_document) == (0, 3)
    cased = tokenizers.load(write_pieces(tmp_path / "cased.txt", [*BERT, "The"]))
    assert cased.encode(["The the"])[0].tolist() == [11, 5]


def test_a_repeated_piece_keeps_its_line(tmp_path: Path) -> None:
    special = special_tokens(write_pieces(tmp_path / "vocab.txt", [*BERT, "the", "last"]), 0)
    assert (special.size, special.begin, special.end) == (15, 13, 14)


def test_tokenizer_json(tmp_path: Path, small_vocabulary: TokenizerConfig, pair: tuple[Any, Any]) -> None:
    library = pair[1]
    path = tmp_path / "tokenizer.json"
    library.save(str(path))
    ours = tokenizers.load(TokenizerConfig("huggingface", file=str(path)))
    tokens, counts = ours.encode(["It's the sun", "", "moon"])
    assert tokens.tolist() == library.encode("It's the sun").ids + library.encode("moon").ids
    assert counts[1] == 0
    assert ours.special.end_of_document == special_tokens(small_vocabulary, 0).end_of_document


def test_without_a_tokenizer_the_last_token_ends_documents() -> None:
    special = special_tokens(None, 100)
    assert (special.size, special.end_of_document, special.end, special.padding) == (100, 99, 99, 0)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (TokenizerConfig("gpt2"), "vocab is not given; set data.tokenizer.vocab, or `--vocab` of"),
        (TokenizerConfig("gpt2", "none.json"), "none.json, the tokenizer's vocab, is not there"),
        (TokenizerConfig("gpt2", "list.json"), "is not a vocabulary of GPT-2's kind"),
        (TokenizerConfig("gpt2", "short.json"), r"has no <\|endoftext\|>"),
        (TokenizerConfig("gpt2", "broken.json"), "is not a JSON file"),
        (TokenizerConfig("gpt2", "deep.json"), "is not a JSON file"),
        (TokenizerConfig("gpt2", "good.json"), "merges is not given"),
        (TokenizerConfig("gpt2", "good.json", "broken.json"), "are no vocabulary of byte pairs"),
        (TokenizerConfig("wordpiece", "short.json"), r"lacks \[PAD\], \[UNK\]"),
        (TokenizerConfig("huggingface"), "file is not given; set data.tokenizer.file, or `--tokenizer-file`"),
        (TokenizerConfig("huggingface", file="short.json"), "is not a tokenizer.json"),
        (TokenizerConfig("huggingface", file="endless.json"), "none of the tokens that end a document"),
    ],
)
def test_a_wrong_file_is_one_sentence(
    files: TokenizerConfig, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("list.json").write_text("[1]")
    Path("short.json").write_text('{"a": 0}')
    Path("broken.json").write_text("{")
    Path("deep.json").write_text("[" * 100_000)
    Path("good.json").write_text('{"a": 0, "<|endoftext|>": 1}')
    Path("endless.json").write_text(json.dumps({"model": {"vocab": {"a": 0}}, "added_tokens": []}))
    with pytest.raises(TrainerError, match=message):
        tokenizers.load(files)


def test_tokens_are_integers(pair: tuple[tokenizers.Tokenizer, Any]) -> None:
    tokens, counts = pair[0].encode([])
    assert tokens.dtype == np.int32
    assert (len(tokens), len(counts)) == (0, 0)

# SPDX-License-Identifier: GPL-3.0-or-later
"""What a model is, said once: parameters, FLOPs, memory and a checkpoint's identity follow from it.

A training's configuration gives one (:attr:`rdm_core.config.Config.spec`). It knows no layout but the padding
of the vocabulary, which depends on the tensor degree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["ModelSpec"]


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A transformer's shape.

    Args:
        kind: A decoder (``gpt``), or an encoder and a decoder (``t5``).
        layers: Transformer blocks; of a T5 those of the encoder.
        decoder_layers: Blocks of a T5's decoder.
        hidden_size: Width of the model.
        heads: Query heads of each attention.
        key_value_heads: Heads of keys and values; fewer than ``heads`` where several queries share one.
        head_size: Width of one head.
        ffn_size: Width inside the feed-forward part.
        ffn: Two matrices (``mlp``), or three, of which one gates (``gated``).
        norm: ``layer`` has a weight and a bias, ``rms`` a weight.
        head_norms: Queries and keys of each head are normed.
        biases: The matrix products add biases.
        positions: Rows of a learned position embedding; 0 where positions are rotated in.
        vocab_size: The tokenizer's tokens.
        vocab_extra_ids: Sentinels after them.
        padded_vocab_size: Rows of the word embedding.
        tied_embeddings: The head uses the word embedding's weights.
        seq_length: Tokens of a sample; of a T5 those of the encoder.
        decoder_length: Tokens that the model predicts per sample.
        dropout: Dropout after embedding, attention and feed-forward part keeps masks.
    """

    kind: Literal["gpt", "t5"] = "gpt"
    layers: int
    decoder_layers: int = 0
    hidden_size: int
    heads: int
    key_value_heads: int
    head_size: int
    ffn_size: int
    ffn: Literal["mlp", "gated"] = "mlp"
    norm: Literal["layer", "rms"] = "layer"
    head_norms: bool = False
    biases: bool = True
    positions: int
    vocab_size: int
    vocab_extra_ids: int = 0
    padded_vocab_size: int
    tied_embeddings: bool = True
    seq_length: int
    decoder_length: int
    dropout: bool = False

    @property
    def attention_size(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_size

    @property
    def key_value_size(self) -> int:
        """Width of all keys, and of all values."""
        return self.key_value_heads * self.head_size

    @property
    def blocks(self) -> int:
        """All transformer blocks."""
        return self.layers + self.decoder_layers

    @property
    def tokens_per_sample(self) -> int:
        """Tokens of a sample that pass through the model, encoder and decoder together."""
        return self.seq_length + (self.decoder_length if self.kind == "t5" else 0)

    def layer_names(self) -> list[str]:
        """Return the kinds of the model's layers, in the order in which they lie on the pipeline."""
        if self.kind == "gpt":
            return ["Embedding", *["Block"] * self.layers, "FinalNorm", "Head"]
        return [
            "Embedding",
            *["EncoderBlock"] * self.layers,
            "EncoderNorm",
            "DecoderEmbedding",
            *["DecoderBlock"] * self.decoder_layers,
            "FinalNorm",
            "Head",
        ]

# SPDX-License-Identifier: GPL-3.0-or-later
"""What a model is, said once: parameters, FLOPs, memory and a checkpoint's identity follow from it.

A training's configuration gives one (:attr:`rdm_core.config.Config.spec`). It knows no layout but the padding
of the vocabulary, which depends on the tensor degree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["ModelSpec", "RopeScaling"]


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How rotary positions reach sequences longer than those that a model was first trained on.

    Args:
        kind: ``linear`` divides all frequencies, ``llama3`` the low ones, ``yarn`` those that turn less often
            than ``beta_fast`` times within the original length.
        factor: By how much sequences become longer.
        original_positions: Tokens of the sequences that the model was first trained on.
        low_frequency_factor: ``llama3``: what turns less often within them is divided.
        high_frequency_factor: ``llama3``: what turns more often within them stays.
        beta_slow: ``yarn``: what turns less often within them is divided.
        beta_fast: ``yarn``: what turns more often within them stays.
        attention_factor: ``yarn``: factor on queries and keys; ``0.1 ln(factor) + 1`` when None.
    """

    kind: Literal["linear", "llama3", "yarn"]
    factor: float
    original_positions: int
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    beta_slow: float = 1.0
    beta_fast: float = 32.0
    attention_factor: float | None = None


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A transformer's shape.

    Args:
        kind: A decoder (``gpt``), an encoder and a decoder (``t5``), or an encoder (``bert``).
        layers: Transformer blocks; of a T5 those of the encoder.
        decoder_layers: Blocks of a T5's decoder.
        hidden_size: Width of the model.
        heads: Query heads of each attention.
        key_value_heads: Heads of keys and values; fewer than ``heads`` where several queries share one.
        head_size: Width of one head.
        ffn_size: Width inside the feed-forward part, or inside one expert.
        ffn: Two matrices (``mlp``), or a third one whose activation gates the first (``gated``).
        activation: Between them; SwiGLU is gated by SiLU.
        experts: Feed-forward parts of a block, of which a router gives each token some (Mixture of Experts);
            0: one for all tokens.
        router_top_k: How many experts a token is given to.
        norm_topk_prob: The router's probabilities of a token's experts are divided by their sum.
        aux_loss_coeff: Weight of the load-balancing loss beside the cross entropy.
        capacity_factor: An expert takes at most so many times its even share of a micro-batch's tokens, and
            drops the rest; None drops none.
        norm: ``layer`` has a weight and a bias, ``rms`` a weight.
        norm_epsilon: Added to the variance in norms.
        window: Tokens that a token of a decoder sees at most, itself included; None: all before it.
        qk_norm: Queries and keys of each head are normed.
        biases: The matrix products that add biases: all, those that make queries, keys and values, or none.
        softmax_scale: Factor on attention scores; None: one through the root of the head size.
        positions: Rows of a learned position embedding; 0 where there is none.
        rope_theta: The base of rotary positions.
        rope_scaling: Their scaling.
        relative_buckets: Rows of a table of what is added to each head's scores, by distance; 0: there is
            none. Positions that are neither learned nor relative are rotated in.
        relative_max_distance: Farther tokens share the last bucket.
        vocab_size: The tokenizer's tokens.
        vocab_extra_ids: Sentinels after them.
        padded_vocab_size: Rows of the word embedding.
        tied_embeddings: The head uses the word embedding's weights.
        scales_logits: The logits are divided by the root of the hidden size.
        seq_length: Tokens of a sample; of a T5 those of the encoder.
        decoder_length: Tokens that the model predicts per sample.
        hidden_dropout: Dropout after embedding, attention and feed-forward part.
        attention_dropout: Dropout of the attention's probabilities.
        init_std: Standard deviation of the initial weights.
    """

    kind: Literal["gpt", "t5", "bert"] = "gpt"
    layers: int
    decoder_layers: int = 0
    hidden_size: int
    heads: int
    key_value_heads: int
    head_size: int
    ffn_size: int
    ffn: Literal["mlp", "gated"] = "mlp"
    activation: Literal["gelu", "relu", "silu"] = "gelu"
    experts: int = 0
    router_top_k: int = 0
    norm_topk_prob: bool = True
    aux_loss_coeff: float = 0.0
    capacity_factor: float | None = None
    norm: Literal["layer", "rms"] = "layer"
    norm_epsilon: float = 1e-5
    window: int | None = None
    qk_norm: bool = False
    biases: Literal["all", "qkv", "none"] = "all"
    softmax_scale: float | None = None
    positions: int
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    relative_buckets: int = 0
    relative_max_distance: int = 128
    vocab_size: int
    vocab_extra_ids: int = 0
    padded_vocab_size: int
    tied_embeddings: bool = True
    scales_logits: bool = False
    seq_length: int
    decoder_length: int
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    init_std: float = 0.02

    @property
    def is_rotary(self) -> bool:
        """Positions are rotated into queries and keys."""
        return not self.positions and not self.relative_buckets

    @property
    def has_qkv_biases(self) -> bool:
        """The products that make queries, keys and values add biases."""
        return self.biases != "none"

    @property
    def has_biases(self) -> bool:
        """The other products add biases."""
        return self.biases == "all"

    @property
    def attention_size(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_size

    @property
    def key_value_size(self) -> int:
        """Width of all keys, and of all values."""
        return self.key_value_heads * self.head_size

    def ranks_of_key_value_head(self, tensor: int) -> int:
        """Return how many of so many tensor ranks share one head of keys and values."""
        return max(1, tensor // self.key_value_heads)

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
        if self.kind != "t5":
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

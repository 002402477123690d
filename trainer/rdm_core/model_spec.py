# SPDX-License-Identifier: GPL-3.0-or-later
"""The description of a model, from which parameters, FLOPs, memory and a checkpoint's identity follow.

A training's configuration provides it (:attr:`rdm_core.config.Config.spec`). It does not depend on the
parallel layout, except for the padding of the vocabulary, which depends on the tensor degree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rdm_core.bounds import Positive, PositiveFloat


@dataclass(frozen=True)
class RopeScaling:
    """How rotary positions reach longer sequences than those that the model was first trained on."""

    kind: Literal["linear", "llama3", "yarn"]
    """Divide all frequencies (`linear`), scale as Llama 3.1 (`llama3`), or with YaRN (`yarn`)."""
    factor: PositiveFloat
    """By how much sequences become longer."""
    original_max_position_embeddings: Positive
    """Tokens of the sequences that the model was first trained on."""
    low_freq_factor: PositiveFloat = 1.0
    """`llama3`: frequencies with fewer turns than this within the original length are divided by `factor`."""
    high_freq_factor: PositiveFloat = 4.0
    """`llama3`: frequencies with more turns than this within the original length stay."""
    beta_fast: PositiveFloat = 32.0
    """`yarn`: frequencies with more turns than this within the original length stay."""
    beta_slow: PositiveFloat = 1.0
    """`yarn`: frequencies with fewer turns than this within the original length are divided by `factor`."""
    attention_factor: PositiveFloat | None = None
    """`yarn`: factor on queries and keys. `0.1 ln(factor) + 1`, and 1 at least, when not given."""


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A transformer's shape.

    Args:
        kind: A decoder (``gpt``), an encoder and a decoder (``t5``), or an encoder (``bert``).
        layers: Transformer blocks; for a T5, those of the encoder.
        decoder_layers: Blocks of a T5's decoder.
        hidden_size: Width of the model.
        heads: Query heads of each attention layer.
        key_value_heads: Heads of keys and values; fewer than ``heads`` if several query heads share one.
        head_size: Width of one head.
        ffn_size: Inner width of the feed-forward network, or of one expert.
        ffn: Two matrices (``mlp``), or a third one whose activation gates the first (``gated``).
        activation: The activation function of the feed-forward network; SwiGLU is gated by SiLU.
        experts: Feed-forward networks of a block, among which a router chooses for each token (Mixture of
            Experts); 0 if all tokens share one.
        router_top_k: Number of experts for each token.
        norm_topk_prob: The router's probabilities of a token's experts are divided by their sum.
        aux_loss_coeff: Weight of the load-balancing loss, which is added to the cross entropy.
        capacity_factor: An expert takes at most this multiple of its even share of a micro-batch's tokens,
            and drops the rest; None drops no token.
        norm: ``layer`` has a weight and a bias, ``rms`` a weight.
        norm_epsilon: Added to the variance in norms.
        window: The most tokens that a decoder's token attends to, itself included; None for all before it.
        qk_norm: Queries and keys of each head are normalised.
        biases: The matrix products with biases: all, those for queries, keys and values, or none.
        softmax_scale: Factor on attention scores; by default 1 / sqrt(head size).
        positions: Rows of a learned position embedding; 0 if there is none.
        rope_theta: The base of rotary positions.
        rope_scaling: The scaling of rotary positions.
        relative_buckets: Rows of a table of biases by distance, which are added to each head's scores; 0 if
            there is none. Positions that are neither learned nor relative are rotary.
        relative_max_distance: All larger distances share the last bucket.
        vocab_size: The tokenizer's tokens.
        vocab_extra_ids: Sentinels after them.
        padded_vocab_size: Rows of the word embedding.
        tied_embeddings: The head uses the word embedding's weights.
        scales_logits: The logits are divided by sqrt(hidden size).
        head_bias: A bias is added to each token's logit.
        seq_length: Tokens of a sample; for a T5, those of the encoder.
        decoder_length: Tokens that the model predicts per sample.
        hidden_dropout: Dropout after the embedding, attention and feed-forward network.
        attention_dropout: Dropout of the attention probabilities.
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
    head_bias: bool = False
    seq_length: int
    decoder_length: int
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    init_std: float = 0.02

    @property
    def is_rotary(self) -> bool:
        """Positions are rotary: queries and keys are rotated."""
        return not self.positions and not self.relative_buckets

    @property
    def has_qkv_biases(self) -> bool:
        """The matrix products for queries, keys and values have biases."""
        return self.biases != "none"

    @property
    def has_biases(self) -> bool:
        """The other matrix products have biases."""
        return self.biases == "all"

    @property
    def vocabulary(self) -> int:
        """The number of tokens, without padding of the matrix."""
        return self.vocab_size + self.vocab_extra_ids

    @property
    def attention_size(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_size

    @property
    def key_value_size(self) -> int:
        """Width of all keys together, which is also that of all values."""
        return self.key_value_heads * self.head_size

    def ranks_of_key_value_head(self, tensor: int) -> int:
        """Return the number of ranks that share one head of keys and values, out of ``tensor`` ranks."""
        return max(1, tensor // self.key_value_heads)

    @property
    def blocks(self) -> int:
        """The number of all transformer blocks."""
        return self.layers + self.decoder_layers

    @property
    def tokens_per_sample(self) -> int:
        """Tokens of a sample that pass through the model, encoder and decoder together."""
        return self.seq_length + (self.decoder_length if self.kind == "t5" else 0)

    def layer_names(self) -> list[str]:
        """Return the kinds of the model's layers, in the order of the pipeline."""
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

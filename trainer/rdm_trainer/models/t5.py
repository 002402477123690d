# SPDX-License-Identifier: GPL-3.0-or-later
"""T5: an encoder and a decoder in a single list of layers.

Layers pass tuples, because a pipeline's stages send each other only the layers' outputs: in the encoder
(encoder states, encoder tokens, decoder tokens), in the decoder (decoder states, memory, encoder tokens).
With relative positions, their table follows. The encoder's tokens serve the padding mask, so each context
rank gets all of them; the decoder's tokens travel until the decoder embeds them. Between stages, every state
in a tuple must have a gradient. So the last decoder block passes on only its states, and the last encoder
block drops the table. If the head has a bias, the last norm passes (decoder states, bias) to the head, which
is on the same stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from rdm_core.config import Config
from rdm_core.model_spec import ModelSpec
from rdm_trainer.distributed.context_parallel import SequencePart
from rdm_trainer.distributed.parameters import ShardSpec, parameter
from rdm_trainer.distributed.pipeline_parallel.pipeline import Layer
from rdm_trainer.distributed.tensor_parallel.layers import VocabParallelEmbedding
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.models.relative import RelativePositions
from rdm_trainer.models.transformer import Block, CrossAttention, Norm, PositionEmbedding, word_embedding

States = tuple[torch.Tensor, ...]


class Embedding(VocabParallelEmbedding):
    """The word embedding, shared by the encoder, the decoder and, if tied, the head."""

    def __init__(self, part: SequencePart | None, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.part = part

    def forward(  # type: ignore[override]
        self,
        inputs: torch.Tensor | States,
        labels: tuple[torch.Tensor, ...] | None = None,
    ) -> torch.Tensor | States:
        """Embed the encoder's tokens or, after the encoder, the decoder's; as head, return loss or logits."""
        if isinstance(inputs, torch.Tensor):
            return super().forward(inputs, labels)
        if inputs[0].is_floating_point() and len(inputs) == 2:
            decoder, bias = inputs
            return super().forward(decoder, labels, bias)
        if len(inputs) == 2:
            encoder_tokens, decoder_tokens = inputs
            whole = encoder_tokens if self.part is None else self.part.gathered(encoder_tokens)
            return super().forward(encoder_tokens), whole, decoder_tokens
        memory, encoder_tokens, decoder_tokens = inputs
        return super().forward(decoder_tokens), memory, encoder_tokens


class SharedPositions(PositionEmbedding):
    """The positions, shared by encoder and decoder."""

    def forward(self, states: States) -> States:  # type: ignore[override]
        """Add the positions to the states."""
        own, *others = states
        return super().forward(own), *others


class TablePositions(RelativePositions):
    """The table of relative positions of either stack."""

    def forward(self, states: States) -> States:  # type: ignore[override]
        """Append the table to the states."""
        own, *others = states
        own, table = super().forward(own)
        return own, *others, table


class EncoderBlock(Block):
    """A block of the encoder: every token attends to all tokens except padding."""

    def __init__(self, spec: ModelSpec, topology: Topology, padding: int, *, last: bool) -> None:
        super().__init__(spec, topology, causal=False)
        self.padding = padding
        self.last = last

    def forward(self, states: States) -> States:  # type: ignore[override]
        """Map the encoder's states [batch, sequence, hidden]; the last block drops the table."""
        encoder, encoder_tokens, decoder_tokens, *table = states
        mask = _visible(encoder_tokens, self.padding)
        encoder = super().forward(encoder, mask, table=table[0] if table else None)
        return encoder, encoder_tokens, decoder_tokens, *([] if self.last else table)


class EncoderNorm(Norm):
    """The encoder's last norm."""

    def forward(self, states: States) -> States:  # type: ignore[override]
        """Normalise the encoder's states in the tuple."""
        encoder, encoder_tokens, decoder_tokens = states
        return super().forward(encoder), encoder_tokens, decoder_tokens


class DecoderBlock(Block):
    """A block of the decoder: causal self-attention, attention to the encoder, MLP.

    Padding at the end needs no mask here: no earlier token attends to it, and the loss ignores it.
    """

    def __init__(self, spec: ModelSpec, topology: Topology, padding: int, *, last: bool) -> None:
        super().__init__(spec, topology, causal=True)
        self.pre_cross_attn_layernorm = Norm(spec)
        self.cross_attention = CrossAttention(spec, topology)
        self.padding = padding
        self.last = last

    def forward(self, states: States) -> torch.Tensor | States:  # type: ignore[override]
        """Map the decoder's states [batch, sequence, hidden]; the last block returns only them."""
        decoder, memory, encoder_tokens, *table = states
        attention, cross, mlp = self.self_attention, self.cross_attention, self.mlp
        inner = partial(attention.inner, table=table[0] if table else None)
        mask = _visible(encoder_tokens, self.padding)
        decoder = self.added(
            decoder,
            (self.input_layernorm, inner, attention.out_proj),
            (self.pre_cross_attn_layernorm, cross.inner, cross.out_proj, memory, mask),
            (self.pre_mlp_layernorm, mlp.inner, mlp.fc2),
        )
        return decoder if self.last else (decoder, memory, encoder_tokens, *table)


class FinalNorm(Norm):
    """The decoder's last norm, which may scale the states before the logits, and may own the head's bias.

    The head's module is shared with the first stage if embeddings are tied, but only the last stage needs
    the bias. Each tensor rank has the bias of its tokens.
    """

    def __init__(self, spec: ModelSpec, topology: Topology) -> None:
        super().__init__(spec)
        self.scale = 1.0 / math.sqrt(spec.hidden_size) if spec.scales_logits else None
        self.head_bias: nn.Parameter | None = None
        if spec.head_bias:
            size = (spec.padded_vocab_size,)
            self.head_bias = parameter(
                ShardSpec(size, 0, topology.tensor_rank, topology.tensor, vocabulary=True)
            )

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor | States:  # type: ignore[override]
        """Normalise [..., hidden]; with a bias of the head, return that, too."""
        normed = super().forward(hidden_states)
        if self.scale is not None:
            normed = normed * self.scale
        # Clone it, because ZeRO-3 frees the parameter after this layer.
        return normed if self.head_bias is None else (normed, self.head_bias.clone())


def _visible(tokens: torch.Tensor, padding: int) -> torch.Tensor:
    """Return bool [batch, 1, 1, sequence]: True for the first token and up to the last that is not padding.

    Only trailing tokens are padding, because a text ends with a sentinel. Within a text, the same ID is an
    ordinary token: GPT-2's only special token also ends each document.
    """
    places = torch.arange(tokens.shape[1], device=tokens.device)
    last = (places * (tokens != padding)).amax(dim=1, keepdim=True)
    return (places <= last)[:, None, None, :]


def layers(config: Config, topology: Topology, padding: int) -> list[Layer]:
    """Return the layers, from (encoder tokens, decoder tokens) to logits or the loss."""
    spec = config.spec
    embedding = word_embedding(partial(Embedding, SequencePart.of(topology)), config, topology)
    positions: Callable[[], nn.Module] = partial(SharedPositions, spec, topology)
    # Both stacks share learned positions, but each has its own table.
    shared: str | None = "positions"
    if spec.relative_buckets:
        positions, shared = partial(TablePositions, spec, topology), None
    decoder_blocks = spec.decoder_layers
    return [
        Layer("Embedding", embedding, "embed"),
        Layer("Positions", positions, shared, joined=True),
        *[
            Layer(
                "EncoderBlock",
                partial(EncoderBlock, spec, topology, padding, last=number == spec.layers - 1),
            )
            for number in range(spec.layers)
        ],
        Layer("EncoderNorm", partial(EncoderNorm, spec)),
        Layer("DecoderEmbedding", embedding, "embed"),
        Layer("DecoderPositions", positions, shared, joined=True),
        *[
            Layer(
                "DecoderBlock",
                partial(DecoderBlock, spec, topology, padding, last=number == decoder_blocks - 1),
            )
            for number in range(decoder_blocks)
        ],
        Layer("FinalNorm", partial(FinalNorm, spec, topology)),
        Layer("Head", embedding, "embed" if spec.tied_embeddings else None),
    ]

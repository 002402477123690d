# SPDX-License-Identifier: GPL-3.0-or-later
"""Two models and a minimal training loop in plain PyTorch, the baseline of our trainer.

The loop holds weights, gradients and optimiser states in bf16 only, unless fp32 master weights are wanted,
which move more bytes. The model is compiled as one graph; cuDNN's attention is preferred where it is fastest;
the batches are on the device before the clock starts; and nothing is copied from the device while it trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import cycle

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel


def attention_kernels(device: torch.device) -> AbstractContextManager[None]:
    """Prefer cuDNN's attention on NVIDIA GPUs from Hopper on; PyTorch's default is flash attention."""
    if device.type != "cuda" or torch.version.hip or torch.cuda.get_device_capability(device) < (9, 0):
        return nullcontext()
    order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
    return sdpa_kernel(order, set_priority=True)


class Block(nn.Module):
    """A transformer block with pre-normalisation."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(hidden)
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.attention_out = nn.Linear(hidden, hidden)
        self.mlp_norm = nn.LayerNorm(hidden)
        self.mlp_in = nn.Linear(hidden, 4 * hidden)
        self.mlp_out = nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Map activations [batch, sequence, hidden] to the same shape."""
        batch, sequence, hidden = x.shape
        mixed = self.query_key_value(self.attention_norm(x)).view(batch, sequence, 3, self.heads, -1)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        context = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(context.transpose(1, 2).reshape(batch, sequence, hidden))
        update: Tensor = self.mlp_out(functional.gelu(self.mlp_in(self.mlp_norm(x)), approximate="tanh"))
        return x + update


class PlainGPT(nn.Module):
    """A GPT-2 with learned positions and tied embeddings.

    Args:
        layers: number of blocks.
        hidden: width of the activations.
        heads: attention heads.
        sequence: tokens in a sample.
        vocabulary: tokens in the vocabulary, padded.
    """

    def __init__(self, layers: int, hidden: int, heads: int, sequence: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(sequence, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of tokens and labels, both int64 [batch, sequence]."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x), self.tokens.weight, labels)

    @staticmethod
    def head(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of the last activations [batch, sequence, hidden]."""
        logits = functional.linear(x, weight)
        return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


class LlamaBlock(nn.Module):
    """One transformer block of Llama: RMSNorm, rotary positions, grouped queries, SwiGLU, no biases."""

    def __init__(self, hidden: int, heads: int, groups: int, ffn: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, hidden // heads
        self.attention_norm = nn.RMSNorm(hidden, eps=1e-5)
        self.query_key_value = nn.Linear(hidden, (heads + 2 * groups) * self.size, bias=False)
        self.attention_out = nn.Linear(hidden, hidden, bias=False)
        self.mlp_norm = nn.RMSNorm(hidden, eps=1e-5)
        self.gate_and_up = nn.Linear(hidden, 2 * ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Map activations [batch, sequence, hidden] to the same shape; angles are [sequence, head size]."""
        batch, sequence, hidden = x.shape
        mixed = self.query_key_value(self.attention_norm(x)).view(batch, sequence, -1, self.size)
        query, key, value = mixed.transpose(1, 2).split([self.heads, self.groups, self.groups], dim=1)

        def turned(states: Tensor) -> Tensor:
            first, second = states.chunk(2, dim=-1)
            return states * cosine + torch.cat((-second, first), dim=-1) * sine

        context = functional.scaled_dot_product_attention(
            turned(query), turned(key), value, is_causal=True, enable_gqa=True
        )
        x = x + self.attention_out(context.transpose(1, 2).reshape(batch, sequence, hidden))
        gate, up = self.gate_and_up(self.mlp_norm(x)).chunk(2, dim=-1)
        update: Tensor = self.down(functional.silu(gate) * up)
        return x + update


class PlainLlama(nn.Module):
    """A Llama with untied embeddings.

    Args:
        layers: number of blocks.
        hidden: width of the activations.
        heads: attention heads.
        groups: heads of keys and values.
        ffn: width of the feed-forward layers.
        sequence: tokens in a sample.
        vocabulary: tokens in the vocabulary, padded.
    """

    cosine: Tensor
    sine: Tensor

    def __init__(
        self, layers: int, hidden: int, heads: int, groups: int, ffn: int, sequence: int, vocabulary: int
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.blocks = nn.ModuleList(LlamaBlock(hidden, heads, groups, ffn) for _ in range(layers))
        self.norm = nn.RMSNorm(hidden, eps=1e-5)
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        size = hidden // heads
        frequencies = 500000.0 ** (-torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(sequence), frequencies).repeat(1, 2)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of tokens and labels, both int64 [batch, sequence]."""
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.cosine, self.sine)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


class PlainLoop:
    """The training loop around a model.

    Args:
        model: the model, in the precision and on the device of the training.
        batches: micro-batches (tokens, labels) on the device, used in turn.
        accumulation: micro-batches in a step.
        compiled: compile the model as one graph.
        masters: keep weights and optimiser states in fp32 as well as the weights in bf16.
    """

    def __init__(
        self,
        model: PlainGPT | PlainLlama,
        batches: Sequence[tuple[Tensor, Tensor]],
        accumulation: int,
        *,
        compiled: bool,
        masters: bool = False,
    ) -> None:
        self.model = model
        self.batches = cycle(batches)
        self.accumulation = accumulation
        self.loss = torch.compile(model) if compiled else model
        self.parameters = list(model.parameters())
        self.attention = partial(attention_kernels, self.parameters[0].device)
        self.masters = [parameter.detach().float() for parameter in self.parameters] if masters else []
        self.optimiser = torch.optim.AdamW(
            self.masters or self.parameters,
            lr=1e-4,
            betas=(0.9, 0.999),
            eps=1e-8,
            weight_decay=0.01,
            fused=True,
        )

    def step(self) -> None:
        """Train on one batch."""
        with self.attention():
            for _ in range(self.accumulation):
                loss = self.loss(*next(self.batches))
                (loss / self.accumulation).backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for master, parameter in zip(self.masters, self.parameters, strict=False):
            assert parameter.grad is not None
            master.grad = parameter.grad.float()
            parameter.grad = None
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        if self.masters:
            torch._foreach_copy_([parameter.data for parameter in self.parameters], self.masters)

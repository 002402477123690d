# SPDX-License-Identifier: GPL-3.0-or-later
"""Generates text with a model, one token at a time; a GPT keeps the keys and values of earlier tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from rdm_core.config import Config
from rdm_core.errors import TrainerError
from rdm_trainer import models
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.models.transformer import Past, PositionEmbedding, SelfAttention
from rdm_trainer.tokenizers.load import load
from rdm_trainer.weights.sources import Source, fill


class Generator:
    """A whole model in this process.

    Args:
        source: Its weights and tokenizer.
        device: Where it runs; by default a GPU, if there is one.

    Raises:
        TrainerError: It has no tokenizer, or is a BERT, or a T5 whose sentinels its tokenizer lacks; or the
            device cannot be used.

    Attributes:
        goes_on: Its text continues a prompt; a T5's answers it.
    """

    def __init__(self, source: Source, device: str | None = None) -> None:
        if source.model.kind == "bert":
            raise TrainerError(f"{source.where} is a BERT, which fills masks and writes no text.")
        if source.model.vocab_extra_ids:
            raise TrainerError(
                f"{source.where} is a T5 whose sentinels are not its tokenizer's, so that it has no text to "
                "answer with."
            )
        self.goes_on = source.model.kind == "gpt"
        if source.tokenizer is None:
            raise TrainerError(
                f"{source.where} has no tokenizer; give a job with data.tokenizer, or an export to Hugging "
                "Face's format, with a tokenizer.json in its directory."
            )
        self._tokenizer = load(source.tokenizer)
        self._device = _device(device)
        # Rotary positions may go beyond a sample's length.
        longest = source.model.max_position_embeddings or source.model.seq_length
        self._longest = longest
        # Relative positions have no limit.
        self._endless = source.model.position_embedding == "relative"
        shape = dataclasses.replace(source.model, seq_length=longest, make_vocab_size_divisible_by=1)
        # CPUs are slow with 16 bits.
        dtype = torch.float32 if self._device.type == "cpu" else getattr(torch, source.dtype)
        with torch.no_grad():
            self._model = models.build(
                Config(model=shape),
                Topology.single(),
                device=self._device,
                dtype=dtype,
                padding=self._tokenizer.special.padding,
                fill=fill(source),
            ).eval()

    def text(
        self,
        prompt: str,
        tokens: int,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        seed: int = 1234,
    ) -> Iterator[str]:
        """Yield the text that follows a prompt, a piece at a time, until a token ends it.

        Args:
            prompt: The beginning.
            tokens: The most tokens to generate.
            temperature: Divides the logits before a token is drawn; 0 takes the likeliest.
            top_k: Draw from this many of the likeliest tokens.
            seed: Seed of the draws.

        Raises:
            TrainerError: The prompt has no token, or leaves no room.
        """
        ids = [int(token) for token in self._tokenizer.encode([prompt])[0]]
        if not ids:
            raise TrainerError("The prompt is empty; give at least a word to go on with.")
        if not self.goes_on:
            ids.append(self._tokenizer.special.end)
        if len(ids) >= self._longest and not self._endless:
            raise TrainerError(
                f"The prompt has {len(ids)} tokens, and the model takes {self._longest}; give a shorter one."
            )
        made: list[int] = []
        shown = ""
        for token in self.tokens(ids, tokens, temperature=temperature, top_k=top_k, seed=seed):
            if token == self._tokenizer.special.end_of_document:
                break
            made.append(token)
            whole = self._tokenizer.decode(made)
            # A character may take several tokens.
            if not whole.endswith("\N{REPLACEMENT CHARACTER}"):
                yield whole[len(shown) :]
                shown = whole

    @torch.no_grad()
    def tokens(
        self,
        ids: list[int],
        count: int,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        seed: int = 1234,
    ) -> Iterator[int]:
        """Yield at most ``count`` tokens that follow ``ids``, as :meth:`text` does."""
        generator = torch.Generator(self._device).manual_seed(seed)
        if not self.goes_on:
            yield from self._answer(ids, count, temperature, top_k, generator)
            return
        past = Past()
        for module in self._model.modules():
            if isinstance(module, SelfAttention | PositionEmbedding):
                module.past = past
        new = torch.tensor([ids], device=self._device)
        for _ in range(min(count, self._longest - len(ids))):
            logits = self._model(new)[0, -1].float()
            past.length += new.shape[1]
            token = _chosen(logits, temperature, top_k, generator)
            yield token
            new = torch.tensor([[token]], device=self._device)

    def _answer(
        self, ids: list[int], count: int, temperature: float, top_k: int | None, generator: torch.Generator
    ) -> Iterator[int]:
        """Yield a decoder's tokens; the whole model runs again for each."""
        made = [self._tokenizer.special.begin]
        encoder = torch.tensor([ids], device=self._device)
        for _ in range(count if self._endless else min(count, self._longest - 1)):
            logits = self._model((encoder, torch.tensor([made], device=self._device)))[0, -1].float()
            made.append(_chosen(logits, temperature, top_k, generator))
            yield made[-1]


def _device(name: str | None) -> torch.device:
    """Return the device of a name; by default a GPU, if there is one."""
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).tolist()
    except (AssertionError, AttributeError, ImportError, RuntimeError) as error:
        why = str(error).partition("\n")[0].rstrip(".")
        raise TrainerError(f"The device {name} cannot be used here ({why}); take cpu.") from None
    return device


def _chosen(logits: torch.Tensor, temperature: float, top_k: int | None, generator: torch.Generator) -> int:
    if temperature == 0.0:
        return int(logits.argmax())
    if top_k is not None:
        least = logits.topk(min(top_k, len(logits))).values[-1]
        logits = logits.masked_fill(logits < least, float("-inf"))
    return int(torch.multinomial((logits / temperature).softmax(dim=0), 1, generator=generator))

# SPDX-License-Identifier: GPL-3.0-or-later
"""Tiny jobs whose losses tests compare: what every rank of a launch runs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from rdm_core.config import Config, DataConfig, ModelConfig, OptimisationConfig
from rdm_trainer.data.loaders import starts_of
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.engines import create
from tests import architectures
from tests.distributed import processes

# A vocabulary that is padded differently for 1, 2 and 4 tensor ranks, and sizes that these divide.
GPT = Config(
    model=ModelConfig(
        layers=4,
        hidden_size=32,
        attention_heads=4,
        seq_length=16,
        vocab_size=98,
        make_vocab_size_divisible_by=8,
    ),
    optimisation=OptimisationConfig(
        micro_batch_size=2, global_batch_size=8, train_iterations=4, precision="fp32", lr=1e-2
    ),
    # The masks are random, and leave micro-batches with different numbers of tokens.
    data=DataConfig(eod_mask_loss=True),
)

# Everything that distinguishes Llama and Qwen from GPT.
QWEN = dataclasses.replace(
    GPT,
    model=ModelConfig(
        layers=4,
        hidden_size=32,
        attention_heads=8,
        query_groups=4,
        kv_channels=8,
        ffn_hidden_size=48,
        seq_length=16,
        **architectures.QWEN,
        tied_embeddings=False,
        vocab_size=98,
        make_vocab_size_divisible_by=8,
    ),
    optimisation=dataclasses.replace(GPT.optimisation, lr=4e-3),
)

MOE = dataclasses.replace(
    QWEN,
    model=dataclasses.replace(
        QWEN.model,
        ffn_hidden_size=24,
        biases="none",
        experts=4,
        moe_router_topk=2,
        moe_aux_loss_coeff=0.02,
    ),
)

T5 = dataclasses.replace(
    GPT,
    model=ModelConfig(
        kind="t5",
        layers=2,
        decoder_layers=2,
        hidden_size=32,
        attention_heads=4,
        kv_channels=16,
        seq_length=16,
        decoder_seq_length=12,
        vocab_size=92,
        vocab_extra_ids=6,
        make_vocab_size_divisible_by=8,
    ),
    data=DataConfig(),
)

BERT = dataclasses.replace(
    GPT, model=dataclasses.replace(GPT.model, kind="bert"), data=DataConfig(), optimisation=GPT.optimisation
)


def configure(base: Config, changes: Mapping[str, Any]) -> Config:
    """Return a configuration with values of ``key`` and ``section.key`` changed."""
    for name, value in changes.items():
        section, _, key = name.partition(".")
        if key:
            value = dataclasses.replace(getattr(base, section), **{key: value})
        base = dataclasses.replace(base, **{section: value})
    return base


def batches(config: Config, topology: Topology, steps: int) -> Iterator[Any]:
    """Yield this replica's micro-batches: which samples a step has does not depend on the layout."""
    model, size = config.model, config.optimisation.micro_batch_size
    vocabulary = model.vocab_size + model.vocab_extra_ids
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        total = config.optimisation.global_batch_size

        def draw(length: int) -> torch.Tensor:
            return torch.randint(1, vocabulary, (total, length), generator=generator)  # noqa: B023

        tokens, targets = draw(model.seq_length), draw(model.decoder_length)
        labels = targets.roll(-1, 1)
        mask = (torch.rand(labels.shape, generator=generator) < 0.8).float()
        if model.kind == "t5":
            # Padding at the end of some samples, in the encoder as in the decoder.
            lengths = torch.randint(4, model.seq_length, (total, 1), generator=generator)
            tokens = tokens.masked_fill(torch.arange(model.seq_length) >= lengths, 0)
        if config.knows_documents:
            tokens[:, ::5] = 97
        for micro in range(config.accumulation(topology.batch_ranks)):
            first = (micro * topology.batch_ranks + topology.batch_rank) * size
            rows = slice(first, first + size)
            inputs: Any = tokens[rows] if model.kind != "t5" else (tokens[rows], targets[rows])
            if config.knows_documents:
                inputs = inputs, starts_of(inputs, 97)
            yield inputs, (labels[rows], mask[rows])


def losses(jobs: Mapping[str, Config], steps: int = 3) -> dict[str, list[dict[str, Any]]]:
    """Train each job for some steps in this world; every rank must call this.

    Returns:
        For each job, each step's loss, grad_norm, skipped and loss_scale; and an evaluation at the end.
    """
    return {name: _losses(config, steps) for name, config in jobs.items()}


@processes.own_groups()
def _losses(config: Config, steps: int) -> list[dict[str, Any]]:
    topology = create.create_topology(config)
    engine = create.create(config, topology)
    data = batches(config, topology, steps)
    results = []
    for _ in range(steps):
        step = engine.train_step(data)
        results.append(
            {
                "loss": step.loss,
                "grad_norm": step.grad_norm,
                "skipped": step.skipped,
                "loss_scale": step.loss_scale,
                **({} if step.balance is None else {"balance": float(step.balance)}),
            }
        )
    results.append({"loss": engine.evaluate(batches(config, topology, 1))})
    engine.close()
    return results


@contextlib.contextmanager
def without_code(backend: str) -> Iterator[None]:
    """Compile each function as one graph for each pass, and generate no code."""
    compile_anything = torch.compile

    def compile_whole(function: Any, **options: Any) -> Any:
        # The options choose the order of sums and the fusion, which only matter to the code generator.
        options.pop("options", None)
        return compile_anything(function, **{"backend": backend, "fullgraph": True, **options})

    torch.compile = compile_whole  # type: ignore[assignment]
    yield
    torch.compile = compile_anything

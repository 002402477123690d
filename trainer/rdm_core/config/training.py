# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks between the keys of a training, and between them and the world. Each problem is one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rdm_core.config.layout_checks import LAYOUT_CHECKS, sharing_replicas
from rdm_core.config.model_checks import MODEL_CHECKS, bert, t5
from rdm_core.config.schedule_checks import SCHEDULE_CHECKS, batch
from rdm_core.config.schema import Config
from rdm_core.errors import Unfit, as_far_as_it_fits

MOST_TRACED = 100
"""The most steps to trace. More would take much memory, and nobody could view so many events."""


def check(config: Config, world_size: int | None = None) -> Iterator[str]:
    """Yield the problems of a training with our own trainer; those with the world only if that is known."""
    checks = (_trace, *MODEL_CHECKS, *LAYOUT_CHECKS, *SCHEDULE_CHECKS, _data, _beginning)
    for one in checks:
        yield from as_far_as_it_fits(one(config))
    if world_size is not None:
        yield from as_far_as_it_fits(_world(config, world_size))


def check_program(config: Config, _world_size: int | None = None) -> Iterator[str]:
    """Yield the problems of a job with another program, which has its own model, batch and data."""
    if not config.launcher.program[0].strip():
        yield "launcher.program begins with nothing; its first part must be a Python file."
    yield from _trace(config)
    if config.traced_steps:
        yield "logging.trace_steps is for our own training, but launcher.program runs another; leave it out."
    if config.launcher.profiler == "torch":
        yield "launcher.profiler torch is for our own training; use nsys or rocprof for launcher.program."


def has_sound_data(config: Config) -> bool:
    """Return whether the data's keys are consistent, so that the data files can be checked."""
    try:
        return not [*t5(config), *bert(config), *_data(config)]
    except Unfit:
        return False


def _trace(config: Config) -> Iterator[str]:
    text, traced = config.logging.trace_steps, config.traced_steps
    if text is not None and not traced:
        yield f"logging.trace_steps is {text!r}; give the first and the last step, as 20-22."
    if len(traced) > MOST_TRACED:
        yield f"logging.trace_steps names {len(traced)} steps; at most {MOST_TRACED} are recorded."


def _data(config: Config) -> Iterator[str]:
    data = config.data
    if data.blend and (data.train or data.valid or data.test):
        yield "data has blend and one of train, valid and test; give blend with split, or the other three."
    elif (data.valid or data.test) and not data.train:
        yield "data has valid or test without train; give train too, or blend with split."
    if data.mock and (data.blend or data.train):
        yield "data.mock is true and data sets are given; give one."
    if not (data.mock or data.blend or data.train):
        yield "data has no data set; give data.blend, data.train, or data.mock: true."
    yield from _split(data.split)
    yield from _tokenizer(config)


def _beginning(config: Config) -> Iterator[str]:
    if config.checkpoint.load and config.checkpoint.init_from:
        yield (
            "checkpoint has load and init_from; give load to go on with another job's training, or init_from "
            "to start a new training with its weights."
        )


def _split(split: str) -> Iterator[str]:
    parts = [part.strip() for part in re.split("[,/]", split)]
    numbers = [float(part) for part in parts if re.fullmatch(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", part)]
    if len(numbers) != len(parts) or len(parts) > 3 or not 0 < sum(numbers) < float("inf"):
        yield (
            f"data.split is {split!r}; it must be one to three proportions for training, validation and "
            "test, as 969,30,1."
        )


def _tokenizer(config: Config) -> Iterator[str]:
    tokenizer = config.data.tokenizer
    if tokenizer is None:
        return
    needed = {"gpt2": ("vocab", "merges"), "wordpiece": ("vocab",), "huggingface": ("file",)}[tokenizer.kind]
    for key in ("vocab", "merges", "file"):
        given = getattr(tokenizer, key) is not None
        if given != (key in needed):
            verb = "does not use" if given else "needs"
            yield f"A tokenizer of kind {tokenizer.kind} {verb} data.tokenizer.{key}."


def _world(config: Config, world: int) -> Iterator[str]:
    parallel = config.parallel
    layout = parallel.ranks_of_replica
    context = f" x context {parallel.context}" if parallel.context > 1 else ""
    axes = f"parallel tensor {parallel.tensor}{context} x pipeline {parallel.pipeline}"
    if parallel.data is not None:
        if layout * parallel.data != world:
            yield f"{axes} x data {parallel.data} = {layout * parallel.data}, but the world is {world}."
    elif world < layout or world % layout:
        yield (
            f"A world of {world} is not a multiple of {axes} = {layout} processes; start as many, or a "
            "multiple of them, or change parallel."
        )
    else:
        yield from sharing_replicas(parallel, world // layout)
        yield from batch(config, world // layout)

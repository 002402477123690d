# SPDX-License-Identifier: GPL-3.0-or-later
"""Translate the paths of a configuration's files to this node's paths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rdm_core.config import Config
from rdm_core.config.finetune import FinetuneConfig
from rdm_core.config.schema import Blend

JOBS = Path("/jobs")
"""The directory of jobs in a training container; ``RDM_JOBS`` names another one."""


def here(config: Config, root: Path) -> Config:
    """Return a configuration with paths below the container's ``/jobs`` translated to this node.

    So the same job runs in a container and on a bare host, which may keep jobs in another directory. On a
    host that has a ``/jobs`` directory, paths stay as they are.
    """
    return with_paths(config, _to_here(root))


def finetune_here(config: FinetuneConfig, root: Path) -> FinetuneConfig:
    """Do the same for a fine-tuning: for its rows and its model."""
    to, rows = _to_here(root), config.data
    rows = replace(rows, train=tuple(map(to, rows.train)), valid=tuple(map(to, rows.valid)))
    return replace(config, data=rows, model=replace(config.model, path=to(config.model.path)))


def _to_here(root: Path) -> Callable[[str], str]:
    def to(path: str) -> str:
        is_elsewhere = Path(path).is_relative_to(JOBS) and root != JOBS and not JOBS.exists()
        return str(root / Path(path).relative_to(JOBS)) if is_elsewhere else path

    return to


def with_paths(config: Config, to: Callable[[str], str]) -> Config:
    """Return a configuration with other paths for its data, its tokenizer and what it begins from."""

    def blends(of: Sequence[Blend]) -> tuple[Blend, ...]:
        return tuple(replace(blend, prefix=to(blend.prefix)) for blend in of)

    named = config.data
    tokenizer = named.tokenizer
    if tokenizer is not None:
        tokenizer = replace(
            tokenizer,
            vocab=tokenizer.vocab and to(tokenizer.vocab),
            merges=tokenizer.merges and to(tokenizer.merges),
            file=tokenizer.file and to(tokenizer.file),
        )
    changed = replace(
        named,
        blend=blends(named.blend),
        train=blends(named.train),
        valid=blends(named.valid),
        test=blends(named.test),
        index_cache=named.index_cache and to(named.index_cache),
        tokenizer=tokenizer,
    )
    begin = config.checkpoint
    begin = replace(
        begin, load=begin.load and to(begin.load), init_from=begin.init_from and to(begin.init_from)
    )
    return replace(config, data=changed, checkpoint=begin)

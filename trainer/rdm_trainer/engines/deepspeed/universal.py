# SPDX-License-Identifier: GPL-3.0-or-later
"""The information with which DeepSpeed's ``ds_to_universal`` merges tensor-parallel parts of a checkpoint.

Only that program reads it. Our engines read DeepSpeed's files as they are, see ``checkpoint/partitions.py``.
"""

from __future__ import annotations

import re
from typing import Any

from rdm_core.config import Config
from rdm_trainer import models
from rdm_trainer.checkpoint import deepspeed_keys as keys

__all__ = ["merging"]

_EXPERT_PATTERNS = "expert_parameter_patterns"
"""Patterns of the experts' parameters: a key in addition to DeepSpeed's, which earlier releases read."""

# A parameter of a layer's submodule, as in blocks.
_IN_BLOCK = re.compile(r"[0-9]+\.\w+\.")


def merging(config: Config) -> dict[str, Any]:
    """Return the information in DeepSpeed's universal checkpoints for merging tensor-parallel parts.

    Every pattern matches at least one parameter of the whole model, as that program requires.

    Args:
        config: The job with the model.
    """
    whole, rows, vocabulary, tied, experts = [], [], [], [], []
    for name, shard_spec in models.shard_specs(config.model).items():
        pattern = "^" + re.escape(name) + "$"
        if _IN_BLOCK.match(name):
            # One pattern covers all blocks. Names of other layers are too similar: an untied embedding's and
            # the last norm's differ only in the number.
            pattern = re.sub(r"^\^[0-9]+", r"^[0-9]+", pattern)
        if shard_spec.vocabulary:
            vocabulary.append(pattern)
        elif shard_spec.dimension is None:
            whole.append(pattern)
        elif shard_spec.dimension == 1:
            rows.append(pattern)
        if name.startswith("tied_modules."):
            tied.append(pattern)
        if shard_spec.experts:
            experts.append(pattern)
    return {
        keys.UNIVERSAL_CHECKPOINT_VERSION_KEY: keys.UNIVERSAL_CHECKPOINT_VERSION_VALUE,
        keys.ORIGINAL_VOCAB_SIZE: config.model.vocab_size + config.model.vocab_extra_ids,
        keys.TP_REPLICATED_PARAMETER_PATTERNS: sorted(set(whole)),
        keys.PARAMETER_WITH_ROW_PARALLELISM_PATTERNS: sorted(set(rows)),
        keys.VOCABULARY_PARAMETER_PATTERNS: sorted(set(vocabulary)),
        keys.PIPELINE_REPLICATED_PARAMETER_PATTERNS: sorted(set(tied)),
        **({_EXPERT_PATTERNS: sorted(set(experts))} if experts else {}),
    }

# SPDX-License-Identifier: GPL-3.0-or-later
"""What the process server has done before it forks: this takes longer than most launches.

When an engine is first built, torch imports its compiler.
"""

from __future__ import annotations

import gc
import importlib

from rdm_trainer.distributed import parameters
from rdm_trainer.engines.native import sharded_adamw

for module in (
    # Each process imports the program that started the tests.
    "pytest",
    "rdm_job.check",
    "rdm_job.rendezvous.run",
    "rdm_job.rendezvous.workers",
    "rdm_job.verbs",
    "rdm_trainer.cli.job",
    "rdm_trainer.cli.rendezvous",
    "rdm_trainer.train",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.superoffload.superoffload_stage3",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.utils.pin_memory",
    "torch._inductor.compile_fx",
):
    importlib.import_module(module)

# Weights are drawn in blocks of a million; these small models use only the first few thousand.
parameters._BLOCK_ELEMENTS = 1 << 14
# The small models have several buckets, too.
sharded_adamw._BUCKET = 1 << 13

# Garbage collection would write to every object, and so copy the memory that the processes share.
gc.collect()
gc.freeze()

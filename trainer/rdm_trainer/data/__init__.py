# SPDX-License-Identifier: GPL-3.0-or-later
"""From data sets in Megatron's formats to micro-batches.

``sources`` combines the parts: ``indexed_dataset`` reads the files, ``index_maps`` says which tokens a sample
has, ``datasets`` makes the sample, ``sampler`` says which samples a rank takes. Only ``loaders`` needs torch.
"""

from __future__ import annotations

from rdm_trainer.data.checks import checks

__all__ = ["checks"]

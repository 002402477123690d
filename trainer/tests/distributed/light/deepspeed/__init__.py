# SPDX-License-Identifier: GPL-3.0-or-later
"""DeepSpeed as far as its launcher of a node needs it, without torch.

``python -m deepspeed.launcher.launch`` first imports all of the package, which takes longer than most tests
of agents. Where this comes first on PYTHONPATH, the same file of DeepSpeed runs at once. Ranks that import
DeepSpeed cannot have it.
"""

from __future__ import annotations

import pkgutil

# What is not here is DeepSpeed's own.
__path__ = pkgutil.extend_path(__path__, __name__)

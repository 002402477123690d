# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of DeepSpeed that its per-node launcher needs, without torch.

``python -m deepspeed.launcher.launch`` first imports the whole package, which takes longer than most tests of
agents. If this comes first on PYTHONPATH, DeepSpeed's own launcher starts at once. Ranks that import
DeepSpeed cannot use this.
"""

from __future__ import annotations

import pkgutil

# Everything else comes from DeepSpeed itself.
__path__ = pkgutil.extend_path(__path__, __name__)

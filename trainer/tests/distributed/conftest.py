# SPDX-License-Identifier: GPL-3.0-or-later
"""Real process groups on this machine."""

from __future__ import annotations

import os

# Ranks share few cores: threads of their own would only fight for them. Read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Without it DeepSpeed asks for a GPU first.
os.environ.setdefault("DS_ACCELERATOR", "cpu")

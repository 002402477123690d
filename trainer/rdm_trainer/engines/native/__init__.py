# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine built on torch only: our layers, ZeRO 1, a pipeline, and ``torch.distributed.checkpoint``."""

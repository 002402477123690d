# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine on torch alone: our layers, ZeRO 1, a pipeline, and ``torch.distributed.checkpoint``."""

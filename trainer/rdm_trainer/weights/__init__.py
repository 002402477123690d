# SPDX-License-Identifier: GPL-3.0-or-later
"""A model's weights alone: from checkpoints and Hugging Face directories into either, or into a training."""

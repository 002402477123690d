# SPDX-License-Identifier: GPL-3.0-or-later
"""A model's weights alone: out of checkpoints and Hugging Face directories, and into either or a training."""

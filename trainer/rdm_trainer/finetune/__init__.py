# SPDX-License-Identifier: GPL-3.0-or-later
"""Fine-tuning of a published model with the libraries that people use: transformers, trl, peft, datasets.

They are the extra ``finetune``: only :mod:`~rdm_trainer.finetune.run` and what it imports need them.
"""

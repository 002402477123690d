# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the logs of trainings: those of Megatron-LM, Megatron-DeepSpeed, DeepSpeed and our own trainer.

It needs only Python's standard library and knows nothing about jobs: it reads any log file.
"""

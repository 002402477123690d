# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading what trainings wrote: Megatron-LM's lines, Megatron-DeepSpeed's, DeepSpeed's and ours.

It needs nothing but Python's standard library, and knows nothing of jobs: it reads anybody's files.
"""

# SPDX-License-Identifier: GPL-3.0-or-later
"""Checkpoints: files of ``torch.distributed.checkpoint``, Megatron's pointers, and what makes them safe.

``files`` handles directories and tells which are complete. ``identity`` describes a checkpoint's model and
layout. Both work without torch. ``storage`` handles disks that nodes do not share. ``distributed`` writes and
reads the files, under every layout. ``partitions`` describes those that earlier releases wrote, DeepSpeed's.
``store`` saves and resumes a training.
"""

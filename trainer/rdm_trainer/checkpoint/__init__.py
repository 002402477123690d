# SPDX-License-Identifier: GPL-3.0-or-later
"""Checkpoints: DeepSpeed's files, Megatron's pointers, and what makes them safe.

``files`` handles directories and tells which are complete. ``identity`` describes a checkpoint's model and
layout. Both work without torch. The engine writes a rank's files. ``storage`` handles disks that nodes do not
share. ``distributed`` writes the files of ``torch.distributed.checkpoint``, and reads them and those that
``partitions`` describes, DeepSpeed's, under every layout. ``store`` saves and resumes a training.
"""

# SPDX-License-Identifier: GPL-3.0-or-later
"""Checkpoints: DeepSpeed's files, Megatron's pointers, and what makes them safe.

``files`` knows directories and which of them are complete, ``identity`` what a checkpoint is of; both work
without torch. A rank's files are its engine's. ``storage`` deals with disks that nodes do not share,
``universal`` makes a checkpoint independent of the layout, and ``store`` puts them together for the training.
"""

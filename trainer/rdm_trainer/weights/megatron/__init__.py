# SPDX-License-Identifier: GPL-3.0-or-later
"""Checkpoints of Megatron-LM and Megatron-core in their format ``torch``, under any layout.

``ITERATION/mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt`` has one rank's part: the training's arguments and the
weights as ``model``, or with virtual stages as ``model0``, ``model1`` and so on. Their names are
Megatron-core's, with Transformer Engine's for norms that its layers include, or the older Megatron-LM's.
Queries, keys and values are in the order of the key-value heads, as they are here. A Mixture of Experts is
written as ``SequentialMLP`` names it, and read with any of its three ways of naming experts. A T5 has an
encoder before its decoder. The format ``torch_dist`` shares the names and the arguments.
"""

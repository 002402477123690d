# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys of DeepSpeed's checkpoints.

Source: ``deepspeed/checkpoint/constants.py`` of DeepSpeed 0.19.8. They are copied because the native engine
reads these files without DeepSpeed.
"""

from __future__ import annotations

BASE_OPTIMIZER_STATE = "base_optimizer_state"
OPTIMIZER_STATE_DICT = "optimizer_state_dict"
PARAM_SHAPES = "param_shapes"
PARAM_SLICE_MAPPINGS = "param_slice_mappings"
SINGLE_PARTITION_OF_FP32_GROUPS = "single_partition_of_fp32_groups"

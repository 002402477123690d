# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys of DeepSpeed's checkpoints, including universal ones.

Source: ``deepspeed/checkpoint/constants.py`` of DeepSpeed 0.19.8. They are copied because the native engine
reads these files without DeepSpeed.
"""

from __future__ import annotations

BASE_OPTIMIZER_STATE = "base_optimizer_state"
OPTIMIZER_STATE_DICT = "optimizer_state_dict"
ORIGINAL_VOCAB_SIZE = "original_vocab_size"
PARAMETER_WITH_ROW_PARALLELISM_PATTERNS = "parameter_with_row_parallelism_patterns"
PARAM_SHAPES = "param_shapes"
PARAM_SLICE_MAPPINGS = "param_slice_mappings"
PIPELINE_REPLICATED_PARAMETER_PATTERNS = "pipeline_replicated_parameter_patterns"
SINGLE_PARTITION_OF_FP32_GROUPS = "single_partition_of_fp32_groups"
TP_REPLICATED_PARAMETER_PATTERNS = "tp_replicated_parameter_patterns"
UNIVERSAL_CHECKPOINT_INFO = "universal_checkpoint_info"
UNIVERSAL_CHECKPOINT_VERSION_KEY = "universal_checkpoint_version"
UNIVERSAL_CHECKPOINT_VERSION_VALUE = 0.4
VOCABULARY_PARAMETER_PATTERNS = "vocabulary_parameter_patterns"

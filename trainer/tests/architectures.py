# SPDX-License-Identifier: GPL-3.0-or-later
"""What distinguishes published models from GPT, as values of ``ModelConfig``."""

from typing import Any

LLAMA: dict[str, Any] = {
    "position_embedding": "rope",
    "norm": "rmsnorm",
    "activation": "swiglu",
    "biases": "none",
}
QWEN: dict[str, Any] = {**LLAMA, "qk_norm": True, "biases": "qkv"}
T5_1_1: dict[str, Any] = {
    "position_embedding": "relative",
    "softmax_scale": 1.0,
    "norm": "rmsnorm",
    "activation": "geglu",
    "biases": "none",
}

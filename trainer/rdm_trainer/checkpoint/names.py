# SPDX-License-Identifier: GPL-3.0-or-later
"""Parameters with other names in checkpoints of earlier releases."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["present_name", "with_present_names"]

# Names until 0.1.0 → present names, after a layer's number if there is one.
_RENAMED = {
    "attention_norm": "input_layernorm",
    "attention.input": "self_attention.qkv_proj",
    "attention.output": "self_attention.out_proj",
    "memory_norm": "pre_cross_attn_layernorm",
    "memory_attention.query": "cross_attention.q_proj",
    "memory_attention.memory": "cross_attention.kv_proj",
    "memory_attention.output": "cross_attention.out_proj",
    "feed_forward_norm": "pre_mlp_layernorm",
    "feed_forward.input": "mlp.fc1",
    "feed_forward.output": "mlp.fc2",
}
_FORMER = re.compile(rf"(\d+\.)?({'|'.join(map(re.escape, _RENAMED))})\.(weight|bias)")


def present_name(name: str) -> str:
    """Return the present name of a checkpoint's parameter."""
    match = _FORMER.fullmatch(name)
    return f"{match[1] or ''}{_RENAMED[match[2]]}.{match[3]}" if match else name


def with_present_names(state: Any) -> Any:
    """Return the content of one of DeepSpeed's files with the weights under their present names.

    The weights are at the top level or under ``module``.
    """
    if not isinstance(state, dict):
        return state
    found = {present_name(key) if isinstance(key, str) else key: value for key, value in state.items()}
    if isinstance(found.get("module"), dict):
        found["module"] = type(found["module"])(
            (present_name(name), weight) for name, weight in found["module"].items()
        )
    return found

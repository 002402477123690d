# SPDX-License-Identifier: GPL-3.0-or-later
"""Parameters with other names in checkpoints of earlier releases."""

from __future__ import annotations

import re

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

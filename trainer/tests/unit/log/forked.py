# SPDX-License-Identifier: GPL-3.0-or-later
"""What FASOP's Megatron-LM writes besides its steps."""

from __future__ import annotations

ARGUMENTS = (
    "------------------------ arguments ------------------------\n"
    "  tensor_model_parallel_size ...................... {tensor}\n"
    "  pipeline_model_parallel_size .................... {stages}\n"
    "  world_size ...................................... {world}\n"
    "-------------------- end of arguments ---------------------\n"
)


def timers(ranks: int, begin: float, batches: int = 2) -> str:
    """Return timers as FASOP's Megatron-LM writes them, with the moments of two steps."""
    lines = ["times across ranks (ms):\n"]
    for name, at, long in (
        ("forward-compute", 0.0, 0.1),
        ("backward-compute", 0.5, 0.2),
        ("optimizer", 2.0, 0.3),
    ):
        lines.append(f"  {name}:\n")
        for rank in range(ranks):
            times = 1 if name == "optimizer" else batches
            starts = [
                begin + 3 * step + at + batch * 0.7 + rank * 0.01
                for step in range(2)
                for batch in range(times)
            ]
            lines.append(f"     rank {rank:2d}: {1000 * long:.2f}\n")
            lines.append(f" {name} start time lst: {' '.join(f'{one:.6f}' for one in starts)}\n")
            lines.append(f" {name} end time lst: {' '.join(f'{one + long:.6f}' for one in starts)}\n")
    return "".join(lines)

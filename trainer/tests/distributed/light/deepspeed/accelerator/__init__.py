# SPDX-License-Identifier: GPL-3.0-or-later
"""A node without an accelerator, described to ranks as by DeepSpeed's ``CPU_Accelerator``."""

from __future__ import annotations

__all__ = ["get_accelerator"]


class _Accelerator:
    def visible_devices_envs(self) -> list[str]:
        return ["CUDA_VISIBLE_DEVICES"]

    def set_visible_devices_envs(self, current_env: dict[str, str], local_accelerator_ids: list[int]) -> None:
        current_env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, local_accelerator_ids))


def get_accelerator() -> _Accelerator:
    """Return the node's accelerator."""
    return _Accelerator()

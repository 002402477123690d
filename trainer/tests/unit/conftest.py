# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures of several unit tests."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rdm_trainer import cli

Program = Callable[..., tuple[int, str, str]]


@pytest.fixture
def program(capsys: pytest.CaptureFixture[str]) -> Program:
    """Run ``rdm-trainer`` with arguments, in this process, and return its exit code, stdout and stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            cli.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code, captured.out, captured.err

    return run


@pytest.fixture
def _megatron_core_on_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Let megatron-core's model run as one process on the CPU, without Transformer Engine."""
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.transformer.moe import moe_utils

    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    unchanged = types.SimpleNamespace(fork=contextlib.nullcontext)
    monkeypatch.setattr(tensor_parallel, "get_cuda_rng_tracker", lambda: unchanged)
    # Its name is defined only with Transformer Engine, and read without it, too.
    monkeypatch.setattr(moe_utils, "te_general_gemm", None, raising=False)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        parallel_state.initialize_model_parallel()
        # Compiling its fused functions would take longer than running them.
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()

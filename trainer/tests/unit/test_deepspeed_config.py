# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import rdm_trainer
from rdm_core.config import from_dict
from rdm_trainer.engines.deepspeed.config import deepspeed_json


def settings(*overrides: str, world: int = 4, **more: Any) -> dict[str, Any]:
    model = {"layers": 2, "hidden_size": 32, "attention_heads": 4, "seq_length": 16}
    return deepspeed_json(from_dict({"model": model}, overrides), world, **more)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_bf16_sums_gradients_in_fp32(stage: int) -> None:
    found = settings(f"parallel.zero_stage={stage}")
    assert found["bf16"]["enabled"] is True
    assert found["data_types"] == {"grad_accum_dtype": "fp32"}
    assert found["zero_optimization"]["stage"] == stage


def test_16_bits_share_their_fp32_copies_and_fp32_need_not() -> None:
    for precision, stage in (("bf16", 1), ("fp16", 1), ("fp32", 0)):
        found = settings("parallel.zero_stage=0", f"optimisation.precision={precision}")
        assert found["zero_optimization"]["stage"] == stage


def test_deepspeed_clips_only_where_the_engine_does_not() -> None:
    assert settings("optimisation.clip_grad=0.5")["gradient_clipping"] == 0.5
    assert settings("optimisation.clip_grad=0.5", clips=False)["gradient_clipping"] == 0.0


def test_deepspeed_never_compiles_an_optimiser() -> None:
    for stage in range(4):
        assert "optimizer" not in settings(f"parallel.zero_stage={stage}")


def test_offloading_is_passed_to_deepspeed() -> None:
    assert not [key for key in settings()["zero_optimization"] if key.startswith("offload")]
    found = settings("parallel={zero_stage: 3, offload_optimizer: cpu, offload_parameters: cpu}")
    assert found["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": True}
    assert found["zero_optimization"]["offload_param"] == {"device": "cpu", "pin_memory": True}
    # DeepSpeed would refuse any optimiser but its own, which it compiles.
    assert found["zero_force_ds_cpu_optimizer"] is False


def test_buffers_are_as_large_as_the_model_at_most() -> None:
    small = settings()["zero_optimization"]["reduce_bucket_size"]
    assert 1_000_000 <= small < 5_000_000
    large = settings("model.layers=48", "model.hidden_size=4096")["zero_optimization"]
    assert large["reduce_bucket_size"] == large["allgather_bucket_size"] == 200_000_000


def test_private_names_of_deepspeed_are_used_in_one_folder() -> None:
    trainer = Path(rdm_trainer.__file__).parent
    found = {
        (path.relative_to(trainer).as_posix(), module)
        for path in trainer.rglob("*.py")
        if "engines/deepspeed" not in path.as_posix()
        for module in re.findall(r"^\s*(?:from|import) (deepspeed[.\w]*)", path.read_text(), re.MULTILINE)
    }
    assert found == {("finetune/run.py", "deepspeed")}

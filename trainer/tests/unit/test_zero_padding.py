# SPDX-License-Identifier: GPL-3.0-or-later
"""What ZeRO 3 stores of a weight whose size is not divisible by the number of ranks."""

from types import SimpleNamespace

import pytest
import torch

from rdm_trainer.engines.deepspeed.engine import _clear_padding


@pytest.mark.parametrize(("rank", "held"), [(0, 4), (1, 4), (2, 2), (3, 0)])
def test_padding_elements_are_zero(rank: int, held: int) -> None:
    part = torch.full((4,), torch.nan)
    _clear_padding(SimpleNamespace(ds_tensor=part, ds_numel=10, ds_zero_partition_rank=rank))
    assert part.isnan().tolist() == [True] * held + [False] * (4 - held)
    assert not part[held:].any()

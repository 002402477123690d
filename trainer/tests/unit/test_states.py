# SPDX-License-Identifier: GPL-3.0-or-later
"""Writing of one rank's states, whatever fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from rdm_trainer import process
from rdm_trainer.checkpoint import distributed, writing
from rdm_trainer.checkpoint.files import Manifest
from rdm_trainer.checkpoint.fragments import Fragment
from rdm_trainer.engines.states import States

ONE_GPU = torch.device("cuda", 1)


class _States(States):
    """No states at all."""

    def _fragments(self) -> Iterable[Fragment]:
        return ()

    def _is_written(self, fragment: Fragment) -> bool:
        raise NotImplementedError

    def _updates(self) -> torch.Tensor:
        return torch.zeros(1)

    def _loaded(self, updates: float, manifest: Manifest) -> None:
        raise NotImplementedError


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> States:
    monkeypatch.setattr(dist, "new_group", mock.Mock())
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    return _States(mock.Mock())


@pytest.fixture
def write(monkeypatch: pytest.MonkeyPatch) -> mock.Mock:
    """Writing of tensors, in which all ranks take part."""
    found = mock.Mock()
    monkeypatch.setattr(distributed, "write", found)
    return found


def test_a_rank_whose_own_file_fails_leaves_no_other_waiting(
    states: States, write: mock.Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "rng_states.pt")
    monkeypatch.setattr(writing, "write", mock.Mock(side_effect=full))

    states.save(tmp_path, {"rng_states.pt": []})

    assert states.wait(float("inf"))
    write.assert_called_once()
    assert states.error == "rng_states.pt: No space left on device"
    assert not states.files


def test_an_error_without_a_message_is_one(states: States, write: mock.Mock, tmp_path: Path) -> None:
    write.side_effect = CheckpointException("write", {0: (MemoryError(), mock.Mock())})

    states.save(tmp_path, {})

    assert states.wait(float("inf"))
    assert states.error == f"{tmp_path}: MemoryError"


def test_the_thread_uses_its_ranks_gpu(
    write: mock.Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(process, "device", lambda: ONE_GPU)
    order = mock.Mock()
    order.attach_mock(write, "write")
    monkeypatch.setattr(torch.cuda, "set_device", order.set_device)
    states: States = request.getfixturevalue("states")

    states.save(tmp_path, {})

    assert states.wait(float("inf"))
    assert [call[0] for call in order.mock_calls] == ["set_device", "write"]
    order.set_device.assert_called_once_with(ONE_GPU)

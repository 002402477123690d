# SPDX-License-Identifier: GPL-3.0-or-later
"""What is made on the controller before Slurm's daemons start."""

from __future__ import annotations

import getpass
import pwd
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.slurm import daemons


@pytest.fixture
def slurm_user(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = pwd.getpwnam(getpass.getuser())
    monkeypatch.setattr(pwd, "getpwnam", lambda name: {"slurm": entry}[name])


@pytest.mark.usefixtures("slurm_user")
def test_the_key_of_tokens_is_made_once_for_its_user_alone(tmp_path: Path) -> None:
    key = tmp_path / "jwt.key"
    (tmp_path / "jwt.key.new").write_bytes(b"left by one that was killed")
    assert daemons.make_key(str(key), True) == [f"make the key of tokens {key}"]
    assert not key.exists()
    assert daemons.make_key(str(key), False) == [f"make the key of tokens {key}"]
    made = key.read_bytes()
    assert (len(made), key.stat().st_mode & 0o777) == (32, 0o600)
    assert daemons.make_key(str(key), False) == []
    assert key.read_bytes() == made
    assert [path.name for path in tmp_path.iterdir()] == ["jwt.key"]


def test_without_slurms_user_there_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pwd, "getpwnam", lambda name: {}[name])
    with pytest.raises(daemons.SlurmProblem, match="the user slurm is missing"):
        daemons.make_key(str(tmp_path / "jwt.key"), False)

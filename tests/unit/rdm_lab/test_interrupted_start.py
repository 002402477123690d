"""Who makes a lab just now."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.rdm_lab.files import Files
from ansible_collections.rdm.provision.rdm_lab.interrupted_start import starting
from ansible_collections.rdm.provision.rdm_lab.spec import LabProblem


def test_a_process_that_makes_a_lab_is_known_and_lets_no_other_make_it(tmp_path: Path) -> None:
    files = Files("lab", tmp_path / "inventory/lab")
    assert files.makers() == []
    for _again in range(2):
        with files.locked():
            assert starting("lab", [files]) == {os.getpid()}
            with (
                pytest.raises(LabProblem, match="lab 'lab' is just being made by another process"),
                files.locked(),
            ):
                pass
            assert files.makers() == [os.getpid()]
        assert files.makers() == []

# SPDX-License-Identifier: GPL-3.0-or-later
"""A flipped bit in a checkpoint's file is never loaded as data, and no file runs code."""

from __future__ import annotations

import pickle
import subprocess
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rdm_trainer.checkpoint import damage, reading

SCALER = {
    "init_scale": 2.0**16,
    "scale_window": 7,
    "min_scale": 1.0,
    "delayed_shift": 2,
    "consecutive_hysteresis": False,
}
STATE: dict[str, Any] = {
    "weights": torch.arange(300.0),
    "half": torch.ones(5, dtype=torch.bfloat16),
    "step": torch.tensor(4.0),
    "none": None,
}
OF_DEEPSPEED = {
    "shapes": [OrderedDict(name=torch.Size([2, 3]))],
    "stage": ZeroStageEnum.gradients,
    "fragment": fragment_address(numel=3, start=4),
}


def save(path: Path) -> bytes:
    torch.save(STATE, path)
    return path.read_bytes()


def same(found: Any) -> bool:
    tensors = all(torch.equal(found[name], STATE[name]) for name in ("weights", "half", "step"))
    return tensors and found["none"] is None


def test_files_written_by_deepspeed_are_read(tmp_path: Path) -> None:
    scalers = [LossScaler(8.0), DynamicLossScaler(**SCALER)]
    torch.save({**STATE, **OF_DEEPSPEED, "scalers": scalers}, tmp_path / "a.pt")
    found = reading.load_mapped(tmp_path / "a.pt")
    assert same(found)
    assert {name: found[name] for name in ("shapes", "stage")} == {
        name: OF_DEEPSPEED[name] for name in ("shapes", "stage")
    }
    assert vars(found["fragment"]) == vars(OF_DEEPSPEED["fragment"])
    assert [vars(scaler) for scaler in found["scalers"]] == [vars(scaler) for scaler in scalers]


@given(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(max_examples=300, deadline=None)
# In the zip file's list of members: a weight becomes a directory, and torch reads nothing from it.
@example(position=0.88643, bit=4)
# In the same list: a weight is marked as compressed.
@example(position=0.87725, bit=3)
def test_no_flipped_bit_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, position: float, bit: int
) -> None:
    path = tmp_path_factory.mktemp("flipped") / "a.pt"
    content = bytearray(save(path))
    content[int(position * len(content))] ^= 1 << bit
    path.write_bytes(content)
    try:
        found = torch.load(path, weights_only=True)
    except Exception:  # of any kind: the caller reports it
        return
    assert not damage.is_sound(path) or same(found)


@pytest.mark.parametrize("name", ["data.pkl", "data/0", "data/1"])
def test_a_flipped_bit_is_found_in_every_part(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.pt"
    content = bytearray(save(path))
    assert damage.is_sound(path)
    with zipfile.ZipFile(path) as archive:
        part = archive.getinfo(f"a/{name}")
        data = archive.read(part)
    content[content.index(data, part.header_offset)] ^= 0x40
    path.write_bytes(content)
    assert not damage.is_sound(path)
    if name == "data.pkl":
        with pytest.raises(zipfile.BadZipFile):
            reading.load_mapped(path)


class _Runs:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


class _Attribute:
    """Is pickled as Python 3.11.0 to 3.11.3 pickle a member of an enumeration."""

    def __init__(self, kind: Any, name: str) -> None:
        self.kind, self.name = kind, name

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.kind, self.name)


def test_deepspeed_is_not_needed_to_read_its_files(tmp_path: Path) -> None:
    torch.save(OF_DEEPSPEED, tmp_path / "a.pt")
    program = """
import sys
from pathlib import Path
sys.modules["deepspeed"] = None  # an import of it fails
from rdm_trainer.checkpoint.reading import load_mapped
found = load_mapped(Path(sys.argv[1]))
print(int(found["stage"]), found["fragment"].numel, found["fragment"].start)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "a.pt")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "2 3 4\n"


def test_a_stage_that_an_older_python_wrote_is_read_and_no_other_attribute(tmp_path: Path) -> None:
    torch.save({"stage": _Attribute(ZeroStageEnum, "gradients")}, tmp_path / "a.pt")
    assert reading.load_mapped(tmp_path / "a.pt") == {"stage": ZeroStageEnum.gradients}
    torch.save({"stage": _Attribute(LossScaler, "backward")}, tmp_path / "b.pt")
    with pytest.raises(pickle.UnpicklingError):
        reading.load_mapped(tmp_path / "b.pt")


def test_no_code_named_in_a_file_is_run(tmp_path: Path) -> None:
    torch.save({"weights": _Runs(tmp_path / "made")}, tmp_path / "a.pt")
    with pytest.raises(pickle.UnpicklingError):
        reading.load_mapped(tmp_path / "a.pt")
    assert not (tmp_path / "made").exists()
    torch.load(tmp_path / "a.pt", weights_only=False)
    assert (tmp_path / "made").exists(), "which other calls still do"

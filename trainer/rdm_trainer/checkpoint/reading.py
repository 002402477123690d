# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading of checkpoint files as pure data, with a check of their checksums.

``torch.save`` writes an archive with a checksum of each part, but ``torch.load`` ignores it. Without the
check, training would go on with bits that a disk or a network flipped.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

__all__ = ["load", "load_mapped"]


class _Attributes:
    """A stand-in for a class of DeepSpeed's that has attributes alone, so that DeepSpeed is not needed."""


class _Stage(int):
    """A stand-in for an enumeration of DeepSpeed's."""


_STAGES = {"disabled": 0, "optimizer_states": 1, "gradients": 2, "weights": 3}


def _stage(kind: Any, name: str) -> _Stage:
    """Return a stage by its name: Python 3.11.0 to 3.11.3 pickle it as ``getattr`` of the enumeration."""
    if kind is not _Stage or name not in _STAGES:
        raise pickle.UnpicklingError(f"attribute {name} of {kind!r} is not read from a checkpoint")
    return _Stage(_STAGES[name])


_OF_DEEPSPEED: list[tuple[Any, str]] = [
    (_Attributes, "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler"),
    (_Attributes, "deepspeed.runtime.fp16.loss_scaler.LossScaler"),
    (_Attributes, "deepspeed.utils.tensor_fragment.fragment_address"),
    (_Stage, "deepspeed.runtime.zero.config.ZeroStageEnum"),
    (_stage, "builtins.getattr"),
]
"""What DeepSpeed 0.19.8 writes in addition to tensors and plain values, by name."""

# The lengths of the name and of the extra field in a part's header.
_LENGTHS = struct.Struct("<26xHH")


def load(path: Path) -> tuple[Any, bool]:
    """Read a whole file, once.

    Args:
        path: The file.

    Returns:
        The content, and whether all of it is intact.

    Raises:
        zipfile.BadZipFile: The pickle that describes the content is damaged. Damage can cause other errors.
    """
    with _Checked(path) as file:
        file.check_pickle()
        content = torch.load(file, weights_only=True)
        return content, file.is_sound()


def load_mapped(path: Path) -> Any:
    """Map a file of DeepSpeed's, so that only the parts in use are read.

    Only the pickle is compared with its checksum.

    Raises:
        zipfile.BadZipFile: The pickle that describes the content is damaged. Damage can cause other errors.
    """
    with torch.serialization.safe_globals([*_OF_DEEPSPEED]):
        with zipfile.ZipFile(path) as archive:
            _check_pickle(archive)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


class _Checked(io.FileIO):
    """One of torch's archives; it compares each part with its checksum when it is read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._archive = zipfile.ZipFile(path)
        self._unread = {part.header_offset: part for part in self._archive.infolist()}
        self._contents: dict[int, zipfile.ZipInfo] = {}
        # torch never compresses, but would decompress a part that a damaged list of parts calls compressed.
        self._sound = all(part.compress_type == zipfile.ZIP_STORED for part in self._archive.infolist())

    def close(self) -> None:
        """Close both views of the file."""
        self._archive.close()
        super().close()

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer. torch reads each part's header, and then all of its content."""
        data = memoryview(buffer).cast("B")
        begin, count = self.tell(), 0
        while count < len(data) and (read := super().readinto(data[count:])):
            count += read
        if begin in self._unread and count == _LENGTHS.size:
            self._contents[begin + count + sum(_LENGTHS.unpack(data))] = self._unread[begin]
        elif (part := self._contents.get(begin)) is not None and count == part.file_size:
            self._unread.pop(part.header_offset, None)
            self._sound &= zlib.crc32(data) == part.CRC
        return count

    def check_pickle(self) -> None:
        """Check the pickle that describes the content before it is loaded."""
        _check_pickle(self._archive)

    def is_sound(self) -> bool:
        """Read the parts that torch did not read, and tell whether every part is intact."""
        # torch fills a weight that it did not read with garbage; the list of parts is damaged.
        if any("/data/" in part.filename and part.file_size for part in self._unread.values()):
            return False
        try:
            for part in self._unread.values():
                with self._archive.open(part) as content:
                    for _ in _blocks(content):
                        pass
        except zipfile.BadZipFile:
            return False
        return self._sound


def _check_pickle(archive: zipfile.ZipFile) -> None:
    for part in archive.infolist():
        if part.filename.endswith("/data.pkl"):
            archive.read(part)


def _blocks(content: Any) -> Iterator[bytes]:
    while block := content.read(1 << 20):
        yield block

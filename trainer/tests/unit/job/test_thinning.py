# SPDX-License-Identifier: GPL-3.0-or-later
"""Old records are thinned, no record is cut, and the file stays small."""

from __future__ import annotations

from pathlib import Path

import pytest

from rdm_job.thinning import thin


@pytest.mark.parametrize("form", ["[0] A10 {0:05d}\n[1] A10 {0:05d}\n", '{{"time": {0:05d}}}\n'])
def test_a_file_stays_small_and_its_newest_records_are_whole(tmp_path: Path, form: str) -> None:
    path, most = tmp_path / "n1.gpu", 2000
    for number in range(5000):
        with path.open("a") as file:
            file.write(form.format(number))
        thin(path, most)
        assert path.stat().st_size <= most
    text = path.read_text()
    assert text.endswith("".join(form.format(number) for number in range(4990, 5000)))
    # Each kept record has all its lines, and fewer old ones are kept.
    kept = [number for number in range(5000) if form.format(number) in text]
    assert "".join(form.format(number) for number in kept) == text
    assert kept[0] == 0
    assert kept[1] - kept[0] > kept[-1] - kept[-2]

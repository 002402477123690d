# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest

from rdm_log.sizes import size_text


@pytest.mark.parametrize(
    ("count", "text"),
    [(812, "812 bytes"), (3400, "3.4 kB"), (2.5e6, "2.5 MB"), (16.06e9, "16.1 GB"), (1.2e12, "1.2 TB")],
)
def test_a_size_has_the_largest_unit_that_it_reaches(count: float, text: str) -> None:
    assert size_text(count) == text

# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest

from rdm_log.wording import listed, size_text


@pytest.mark.parametrize(
    ("count", "text"),
    [(812, "812 bytes"), (3400, "3.4 kB"), (2.5e6, "2.5 MB"), (16.06e9, "16.1 GB"), (1.2e12, "1.2 TB")],
)
def test_a_size_has_the_largest_unit_that_it_reaches(count: float, text: str) -> None:
    assert size_text(count) == text


def test_names_beyond_the_limit_are_counted() -> None:
    assert listed(["n1", "n2"]) == "n1, n2"
    assert listed((f"n{number}" for number in range(1, 11)), 2, "; ") == "n1; n2 and 8 more"

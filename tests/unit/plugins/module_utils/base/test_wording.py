"""Sizes and lists of names in messages."""

from __future__ import annotations

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names, size_text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (64 * 2**20, "64.0 MiB"),
        (3 * 2**29, "1.5 GiB"),
        (2**50, "1024.0 TiB"),
    ],
)
def test_a_size_has_the_largest_unit_that_fits(count: int, text: str) -> None:
    assert size_text(count) == text


def test_a_long_list_is_cut_with_the_number_of_the_rest() -> None:
    assert names([]) == ""
    assert names(["a", "b"], 2) == "a, b"
    assert names(iter("abcde"), 2) == "a, b and 3 more"

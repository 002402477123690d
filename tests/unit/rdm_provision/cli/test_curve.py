# SPDX-License-Identifier: GPL-3.0-or-later
"""The curve in the terminal: the position of its dots, and few points or little space."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdm_provision.cli.render.curve import curve


def test_a_falling_line_goes_from_the_upper_left_to_the_lower_right() -> None:
    lines = curve([(0, 10.0), (100, 0.0)], 30, 5, braille=False)
    assert len(lines) == 7
    rows = [line.partition("|")[2] for line in lines[:5]]
    assert rows[0].startswith("*")
    assert rows[4].endswith("*")
    assert [row.index("*") for row in rows] == sorted(row.index("*") for row in rows)


def test_the_axes_say_from_where_to_where() -> None:
    lines = curve([(1, 10.8), (40, 3.2)], 60, 8)
    assert lines[0].startswith("10.80 ┤")
    assert lines[7].lstrip().startswith("3.20 ┤")
    assert lines[-1].split() == ["1", "40"]
    assert max(map(len, lines)) <= 60, lines


def test_every_dot_is_in_braille_or_in_plain_letters() -> None:
    points = [(float(x), math.sin(x / 5)) for x in range(50)]
    drawn = "".join(line.partition("┤")[2] for line in curve(points, 40, 6)[:6])
    assert set(drawn) - {" "}
    assert all(char == " " or 0x2800 < ord(char) <= 0x28FF for char in drawn)
    assert all(ord(char) < 128 for line in curve(points, 40, 6, braille=False) for char in line)


@pytest.mark.parametrize("points", [[], [(1.0, 2.0)], [(1.0, math.nan), (2.0, 3.0)]])
def test_of_less_than_two_points_there_is_no_picture(points: list[tuple[float, float]]) -> None:
    assert curve(points, 40, 5) == []


def test_a_loss_that_overflowed_is_left_out() -> None:
    assert curve([(1, 3.0), (2, math.inf), (3, 2.0)], 40, 5) == curve([(1, 3.0), (3, 2.0)], 40, 5)


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50),
    st.integers(1, 200),
    st.integers(1, 30),
    st.booleans(),
)
def test_picture_has_its_size_for_any_points(
    values: list[float], width: int, height: int, braille: bool
) -> None:
    lines = curve(list(enumerate(values)), width, height, braille=braille)
    assert len(lines) == height + 2
    assert len({len(line) for line in lines[-2:]}) <= 2

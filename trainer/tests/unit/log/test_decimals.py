# SPDX-License-Identifier: GPL-3.0-or-later
"""Numbers that are read all at once are those that are read one by one, to the last bit."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rdm_log.decimals import decimals, ending_at

FORMS = ("{:8.1f}", "{:.6E}", "{:12.0f}", "{:.3E}", "{:9.3f}", "{:.1f}", " {:3.0f} ", "{:.17E}", "{:24.3f}")


def found(texts: list[bytes]) -> list[str] | None:
    """Return the numbers of texts of one length, as Python writes them; None where they are not plain."""
    rows = np.frombuffer(b"".join(texts), np.uint8).reshape(len(texts), -1)
    numbers = decimals(rows, np.flatnonzero((rows != rows[0]).any(axis=0)).tolist())
    return None if numbers is None else [repr(float(one)) for one in numbers]


@given(
    st.sampled_from(FORMS),
    st.sampled_from([1e-30, 1e-4, 1.0, 1e3, 1e7, 1e18]),
    st.lists(st.floats(-1, 1), min_size=2, max_size=40),
)
def test_they_are_what_python_reads(form: str, scale: float, values: list[float]) -> None:
    texts = [form.format(value * scale).encode() for value in values]
    texts = [text for text in texts if len(text) == len(texts[0])]
    assert found(texts) in (None, [repr(float(text)) for text in texts])


@given(st.binary(min_size=6, max_size=6), st.sampled_from([b" 1.5  ", b"1.0E-2", b"  1234", b"-1.5 2"]))
def test_what_is_no_number_is_left_to_python(text: bytes, other: bytes) -> None:
    try:
        known = [repr(float(one)) for one in (other, text)]
    except ValueError:
        assert found([other, text]) is None
    else:
        assert found([other, text]) in (None, known)


def test_numbers_as_trainings_write_them_are_read_so() -> None:
    """Or this would be a slower way to read nothing."""
    for form in FORMS[:7]:
        texts = [form.format(value).encode() for value in (1.25, 2.5, 3.75, 9.0)]
        assert found(texts) == [repr(float(text)) for text in texts], form
    assert found([b"   999", b"  1000"]) == ["999.0", "1000.0"]
    assert found([b"9.9E-01", b"1.0E-02"]) == ["0.99", "0.01"]
    assert found([b"    -0", b"    -1"]) == ["-0.0", "-1.0"]
    # More digits than are exact, and a gap within a number or behind its sign.
    assert found([b"1234567890123456", b"1234567890123457"]) is None
    assert found([b"1 2", b"122"]) is None
    assert found([b"-12", b"- 2"]) is None


@given(
    st.lists(st.from_regex(r"[ :a]?[0-9]{0,17}\.?[0-9]{0,4}", fullmatch=True), min_size=1, max_size=60),
    st.integers(0, 3),
)
def test_numbers_are_read_from_their_ends_however_many_digits_others_have(
    texts: list[str], behind: int
) -> None:
    data = "".join(f"\n{text}" for text in texts).encode()
    ends = np.cumsum([len(text) + 1 for text in texts])
    numbers, begins = ending_at(np.frombuffer(data, np.uint8), ends, behind)
    point = rf"\.[0-9]{{{behind}}}" if behind else ""
    for text, end, number, begin in zip(texts, ends.tolist(), numbers, begins.tolist(), strict=True):
        known = re.search(rf"(?<![0-9])[0-9]+{point}\Z", text)
        digits = known[0].replace(".", "") if known else ""
        if known is None or len(digits) > 15:
            assert begin == end
        else:
            assert (int(number), begin) == (int(digits), end - len(known[0]))

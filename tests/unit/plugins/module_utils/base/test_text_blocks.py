"""A block is added and removed without a trace."""

from __future__ import annotations

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.text_blocks import (
    BlockError,
    drop_block,
    put_block,
)
from hypothesis import given
from hypothesis import strategies as st

LINES = st.lists(
    st.sampled_from([b"", b"# a", b"export A=1", b"x\r", b"\xff\x00", b"if [ -z ]; then"]), max_size=6
)
FILES = st.one_of(
    st.none(),
    st.binary(max_size=40),
    st.builds(lambda lines, end: b"\n".join(lines) + end, LINES, st.sampled_from([b"", b"\n", b"\n\n"])),
)
CONTENTS = st.sampled_from(["", "export MY_IP=10.0.0.1", "a\nb\n", "ünicode $(x) 'q' \"d\""])


@given(FILES, CONTENTS, st.booleans())
def test_adding_and_removing_a_block_restores_the_text(
    data: bytes | None, content: str, at_start: bool
) -> None:
    assert drop_block(put_block(data, "my_ip", content, at_start), "my_ip") == data


@given(FILES, CONTENTS, CONTENTS, st.booleans(), st.booleans(), st.booleans())
def test_two_blocks_can_be_removed_in_any_order(
    data: bytes | None, one: str, two: str, first_at_start: bool, second_at_start: bool, in_order: bool
) -> None:
    both = put_block(put_block(data, "one", one, first_at_start), "two", two, second_at_start)
    names = ["one", "two"] if in_order else ["two", "one"]
    rest = drop_block(both, names[0])
    assert rest is not None
    assert drop_block(rest, names[1]) == data


@given(FILES, CONTENTS, CONTENTS, st.booleans())
def test_adding_a_block_again_replaces_it(data: bytes | None, one: str, two: str, at_start: bool) -> None:
    once = put_block(data, "b", two, at_start)
    assert put_block(put_block(data, "b", one, at_start), "b", two, not at_start) == once
    assert put_block(once, "b", two, at_start) == once


@given(FILES, CONTENTS, st.booleans())
def test_text_appended_later_starts_on_its_own_line(data: bytes | None, content: str, at_start: bool) -> None:
    there = put_block(data, "b", content, at_start)
    if not at_start or not data:
        rest = drop_block(there + b"THEIRS=1\n", "b")
        assert rest is not None
        assert rest.endswith(b"THEIRS=1\n")
        assert rest.removesuffix(b"THEIRS=1\n").rstrip(b"\n") == (data or b"").rstrip(b"\n")


def test_a_block_that_an_earlier_version_left_at_the_end_of_a_file_without_newline_gets_its_own() -> None:
    before = b"x\n# BEGIN rdm-provision b\nA=1\n# END rdm-provision b"
    assert drop_block(before, "b") == b"x"
    assert put_block(before, "b", "A=1") == put_block(b"x", "b", "A=1")


def test_a_block_at_the_start_comes_before_everything() -> None:
    assert put_block(b"[ -z $PS1 ] && return\n", "a", "A=1", at_start=True) == (
        b"# BEGIN rdm-provision a\nA=1\n# END rdm-provision a\n[ -z $PS1 ] && return\n"
    )


def test_names_with_a_common_prefix_are_distinct() -> None:
    data = put_block(b"", "my_ip 2", "x")
    assert drop_block(data, "my_ip") == data


@pytest.mark.parametrize("name", ["", "a\nb", "-x", "a$(b)"])
def test_an_unusable_name_is_refused(name: str) -> None:
    with pytest.raises(BlockError, match="cannot name a block"):
        put_block(b"", name, "x")


def test_content_cannot_smuggle_a_marker_in() -> None:
    with pytest.raises(BlockError, match="marker line"):
        put_block(b"", "a", "x\n# END rdm-provision a\ny")


@pytest.mark.parametrize(
    "data",
    [
        b"# BEGIN rdm-provision a\nx\n",
        b"x\n# END rdm-provision a\n",
        b"# END rdm-provision a\n# BEGIN rdm-provision a\n",
        b"# BEGIN rdm-provision a\n# BEGIN rdm-provision a\n# END rdm-provision a\n",
    ],
)
def test_broken_block_is_not_changed(data: bytes) -> None:
    with pytest.raises(BlockError, match="by hand"):
        drop_block(data, "a")
    with pytest.raises(BlockError, match="by hand"):
        put_block(data, "a", "y")

# SPDX-License-Identifier: GPL-3.0-or-later
"""Members' names in a hosts file: present while the job runs, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdm_job.rendezvous.hosts_file import change_in_place, with_block, without_block
from rdm_job.rendezvous.roster import Member

MEMBERS = [
    Member("a", "trainer", "10.0.0.1", 8),
    Member("b", "other", "10.0.0.2", 8),
    Member("c", "trainer", "10.0.0.3", 8),
]


@given(text=st.text(alphabet="abc.1 #\n\t"))
def test_hosts_file_is_restored_afterwards(text: str) -> None:
    once = with_block(text, "job", MEMBERS)
    assert with_block(once, "job", MEMBERS) == once
    assert without_block(once, "job").rstrip("\n") == text.rstrip("\n")


def test_hosts_file_maps_each_name_to_one_address() -> None:
    text = with_block("127.0.0.1 localhost\n", "job", MEMBERS)
    assert text.splitlines() == [
        "127.0.0.1 localhost",
        "# BEGIN rdm-trainer rendezvous job",
        "10.0.0.1 trainer rank0",
        "10.0.0.2 other rank1",
        "10.0.0.3 rank2",
        "# END rdm-trainer rendezvous job",
    ]


def test_block_without_an_end_marker_removes_no_other_line() -> None:
    text = "127.0.0.1 localhost\n# BEGIN rdm-trainer rendezvous job\n10.9.9.9 mydb\n"
    assert without_block(text, "job") == "127.0.0.1 localhost\n10.9.9.9 mydb\n"


def test_two_jobs_of_a_host_have_a_block_each() -> None:
    both = with_block(with_block("", "one", MEMBERS), "other", MEMBERS)
    assert without_block(both, "one") == with_block("", "other", MEMBERS)


def test_hosts_file_keeps_its_inode(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("a long line that was here before\n")
    before = file.stat().st_ino
    change_in_place(file, lambda text: text[:6] + "\n")
    assert file.read_text() == "a long\n"
    assert file.stat().st_ino == before
    with pytest.raises(OSError, match="none"):
        change_in_place(tmp_path / "none", lambda text: text)

"""Labs of tests: each checkout has its own."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.rdm.provision.rdm_lab.spec import checked_name

from tests.labs import lab_name


def test_two_checkouts_have_labs_of_different_names_and_each_keeps_its_own() -> None:
    one, other = (lab_name("e2e-sriov", Path(path)) for path in ("/srv/one", "/srv/two"))
    assert one != other
    assert one == lab_name("e2e-sriov", Path("/srv/one"))
    assert checked_name(f"{one}-k") == f"{one}-k"

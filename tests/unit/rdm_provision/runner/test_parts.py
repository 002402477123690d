"""A tag that selects nothing is refused, and the message has the nearest tag."""

from __future__ import annotations

import pytest

from rdm_provision.api.cluster import Cluster
from rdm_provision.errors import InputError
from rdm_provision.runner.parts import check_tags, tags_of
from tests.unit.rdm_provision.conftest import MakeInventory


def test_the_parts_are_those_of_the_playbook_in_the_order_of_the_run() -> None:
    site = tags_of("site")
    roles = [tag for tag in site if "_" not in tag or tag in ("my_ip", "state_file")]
    assert roles == [
        "preflight",
        "images",
        "sriov",
        "network",
        "my_ip",
        "container",
        "hostfile",
        "state_file",
        "verify",
    ]
    assert {"images_install", "network_run", "container_run", "my_ip_configure"} <= set(site)
    assert {"container", "container_run", "network"} <= set(tags_of("clean"))
    assert "always" not in site


@pytest.mark.parametrize("tags", ["network", "network_run,hostfile", " images , my_ip ", "all"])
def test_parts_that_are_there_are_chosen(tags: str) -> None:
    check_tags("site", tags)


@pytest.mark.parametrize(
    ("tags", "word", "hint"),
    [
        ("netwrk", "netwrk", "did you mean network"),
        ("network,hostfle", "hostfle", "hostfile"),
        ("xyzzy", "xyzzy", "the parts are preflight, "),
    ],
)
def test_a_part_that_is_not_there_is_refused(tags: str, word: str, hint: str) -> None:
    with pytest.raises(InputError, match=f"there is no part '{word}'") as caught:
        check_tags("site", tags)
    assert hint in caught.value.hint


def test_tag_of_up_alone_is_refused_for_down() -> None:
    with pytest.raises(InputError, match="no part 'verify'"):
        check_tags("clean", "verify")


@pytest.mark.parametrize("tags", ["", " , "])
@pytest.mark.parametrize("verb", ["up", "check", "down", "env_up", "env_down"])
def test_empty_tag_does_not_mean_all(make_inventory: MakeInventory, verb: str, tags: str) -> None:
    bare = {"rdm_runtime": "host"} if verb.startswith("env") else {}
    run = getattr(Cluster.load(make_inventory(**bare)), verb)
    with pytest.raises(InputError, match="--tags is empty") as caught:
        run(tags=tags)
    assert caught.value.hint.startswith("the parts are ")
    assert run().spec.tags == ""

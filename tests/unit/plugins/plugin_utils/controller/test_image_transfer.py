# SPDX-License-Identifier: GPL-3.0-or-later
"""How an archive is transferred, and the messages about nodes that it does not reach."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.image_transfer import (
    Shared,
    Watch,
    distribution,
    on_file_server,
    progress_line,
    progress_of,
    shared_images,
    unpacks,
)

MIB = 1 << 20
GIB = 1 << 30


@pytest.mark.parametrize(
    ("chosen", "nodes", "size", "on_controller", "expected"),
    [
        ("auto", 8, GIB, True, "peers"),
        ("auto", 2, GIB, True, "direct"),
        ("auto", 8, 1000, True, "direct"),
        ("auto", 8, GIB, False, "direct"),
        ("peers", 2, 1000, False, "peers"),
        ("peers", 1, GIB, True, "direct"),
        ("direct", 1000, GIB, True, "direct"),
        ("mirror", 8, GIB, True, "direct"),
    ],
)
def test_distribution(chosen: str, nodes: int, size: int, on_controller: bool, expected: str) -> None:
    assert distribution(chosen, nodes, size, on_controller) == expected


EITHER = (True, False)


@pytest.mark.parametrize("chosen", ["auto", "direct", "peers", "mirror"])
def test_the_source_of_an_archive_matters_only_by_default(chosen: str) -> None:
    sizes = (MIB, 256 * MIB - 1, 256 * MIB)
    for nodes, size, here, server in product((1, 2, 3, 15, 16, 17), sizes, EITHER, EITHER):
        many = (here and nodes >= 3) or (server and nodes >= 16)
        peers = {"auto": many and size >= 256 * MIB, "peers": nodes > 1}.get(chosen, False)
        found = distribution(chosen, nodes, size, here, server)
        assert found == ("peers" if peers else "direct"), (nodes, size, here, server)


def inspected(size: int = GIB, unpacked: int = GIB, **storage: Any) -> dict[str, Any]:
    """Return the inspection of an archive on NFS, and of a node with just enough room."""
    usual = {"file_system": "nfs4", "images": ["sha256:1"], "cache_file_system": "xfs", "cache_free": 3 * GIB}
    return {"size": size, "unpacked": unpacked, "storage": {**usual, **storage}}


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (inspected(), True),
        (inspected(file_system="nfs"), True),
        (inspected(file_system="ext4"), False),
        (inspected(file_system="lustre"), False),
        (inspected(file_system=""), False),
        (inspected(unpacked=2 * GIB), False),
        (inspected(cache_free=3 * GIB - 1), False),
        (inspected(cache_file_system="nfs4"), False),
        (inspected(cache_file_system="tmpfs"), False),
        ({**inspected(), "storage": {}}, False),
        ({"size": GIB}, False),
    ],
)
def test_nodes_share_an_archive_only_if_all_read_it_from_a_server_and_have_room(
    other: dict[str, Any], expected: bool
) -> None:
    for nodes in ([inspected(), other], [other, inspected()]):
        assert on_file_server(nodes) is expected
    assert not on_file_server([])


@pytest.mark.parametrize(
    ("new", "unpacked", "expected"),
    [([4, 0], 20, True), ([4, 5], 20, False), ([20, 0], 20, False), ([4, 4], 10, False)],
    ids=["little is new", "half is new", "a node has nothing", "it is not compressed"],
)
def test_an_archive_is_decompressed_if_the_nodes_have_most_of_it(
    new: list[int], unpacked: int, expected: bool
) -> None:
    assert unpacks({"size": 10, "unpacked": unpacked, "new_bytes": each} for each in new) is expected


def lacking(*names: str, architecture: str = "x86_64", **entry: str) -> dict[str, Any]:
    """Return the images of registries that a node lacks."""
    images = [{"name": name, "source": "registry", **entry} for name in names]
    return {"architecture": architecture, "images": images}


def test_the_first_node_that_lacks_an_image_pulls_it_for_others() -> None:
    nodes = {
        "n1": lacking("b"),
        "n2": lacking("a:1", "alone:1", "docker.io/library/a:1"),
        "n3": lacking("a:1", "b:latest"),
    }
    shared, warnings = shared_images(nodes)
    assert shared == [Shared("b:latest", ["n1", "n3"]), Shared("a:1", ["n2", "n3"])]
    assert not warnings


PINNED = f"a@sha256:{64 * '0'}"


@pytest.mark.parametrize(
    ("nodes", "warnings"),
    [
        (
            {"n1": lacking(PINNED), "n2": lacking(PINNED)},
            [f"{PINNED} is pulled by n1, n2, and does not go from node to node: "
             "an engine knows the digest of an image only if it has pulled it"],
        ),
        (
            {"n1": lacking("a:1"), "n2": lacking("a:1", pull="always")},
            ["a:1 is pulled by n1, n2, and does not go from node to node: "
             "pull: always queries the registry in every run"],
        ),
        (
            {"n1": lacking("a:1"), "n2": lacking("a:1", architecture="aarch64")},
            ["a:1 is pulled by n2, and does not go from node to node: "
             "n1, which pulls it for others, has another architecture"],
        ),
        ({"n1": lacking(PINNED), "n2": lacking("a:1")}, []),
        ({}, []),
    ],
)  # fmt: skip
def test_what_cannot_go_from_node_to_node_is_reported_once(
    nodes: dict[str, Any], warnings: list[str]
) -> None:
    assert shared_images(nodes) == ([], warnings)


def report(have: int, **changes: Any) -> dict[str, Any]:
    return {
        "have": have,
        "wanted": 100,
        "done": have == 100,
        "error": "",
        "trouble": {},
        "silent_s": 0.0,
        "fetched": 0,
        **changes,
    }


def test_nodes_without_progress_are_given_up_with_a_reason() -> None:
    watch = Watch(["a", "dead", "cut", "full", "never"], GIB, 0)
    watch.add({"a": report(50), "dead": report(40), "cut": report(10), "full": report(20)}, 1)
    assert not watch.ended()
    assert watch.text("x.tar") == "x.tar: 24% of 1.0 GiB on 5 nodes"
    full = report(20, error="no space left for /a")
    dead = report(40, silent_s=20.0)
    trouble = {"dead": "broke off"}
    watch.add({"a": report(100, trouble=trouble), "dead": dead, "cut": report(10), "full": full}, 62)
    assert watch.given_up == {
        "dead": "was no longer heard at 40%",
        "cut": "has received nothing for 60 s at 10%",
        "full": "stopped at 20%: no space left for /a",
        "never": "has not begun to fetch it",
    }
    assert watch.slow == trouble
    assert watch.ended()
    assert watch.text("x.tar") == "x.tar: 100% of 1.0 GiB on 1 node, given up: dead, cut, full, never"


def test_a_node_on_a_slow_link_receives_something_while_it_has_no_whole_piece() -> None:
    watch = Watch(["a"], GIB, 0)
    for second in range(0, 600, 20):
        watch.add({"a": report(0, fetched=second)}, second)
        assert not watch.given_up, second
    watch.add({"a": report(1, fetched=600)}, 600)
    watch.add({"a": report(1, fetched=600)}, 661)
    assert watch.given_up == {"a": "has received nothing for 60 s at 1%"}
    watch = Watch(["a"], GIB, 0)
    for second in range(0, 700, 20):
        watch.add({"a": report(0, fetched=second)}, second)
    assert watch.ended(), "what it receives is never a piece"


def test_among_many_nodes_which_announce_less_often_a_node_is_given_up_later() -> None:
    many = [str(number) for number in range(5000)]
    watch = Watch(many, GIB, 0)
    watch.add(dict.fromkeys(many, report(40, silent_s=38.0)), 30)
    assert not watch.given_up
    watch.add({**dict.fromkeys(many, report(40)), "7": report(40, silent_s=40.0)}, 31)
    assert watch.given_up == {"7": "was no longer heard at 40%"}


def test_node_that_returns_is_waited_for() -> None:
    watch = Watch(["a"], GIB, 0)
    watch.add({"a": report(40, silent_s=20.0)}, 1)
    assert watch.ended()
    watch.add({"a": report(41)}, 2)
    assert not watch.ended()


def test_a_progress_is_distinguished_from_other_lines() -> None:
    assert progress_of(progress_line("x.tar: 1%")) == "x.tar: 1%"
    assert progress_of("answered: n1") == ""

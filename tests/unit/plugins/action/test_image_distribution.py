"""Which archives go from node to node, and what of them each node lacks."""

from __future__ import annotations

from typing import Any

from ansible_collections.rdm.provision.plugins.action.image_distribution import ActionModule


def found(name: str, load: bool = True, **more: Any) -> dict[str, Any]:
    """Return what an inspection found of an image in the archive all.tar."""
    return {"item": {"name": name, "path": "all.tar"}, "load": load, "size": 3, **more}


def test_what_one_of_several_images_of_an_archive_needs_is_fetched() -> None:
    both = [found("a:1", present_members=["base", "a"]), found("b:1", present_members=["base", "b"])]
    inspections = {
        "n1": {"results": both},
        "n2": {"results": [found("a:1", present_members=["base", "a"]), found("b:1", load=False)]},
        "n3": {"results": [found("a:1", load=False)]},
        "n4": {},
    }
    variables = {
        "ansible_play_hosts": list(inspections),
        "hostvars": {name: {"images_inspection": one} for name, one in inspections.items()},
    }
    action: Any = ActionModule.__new__(ActionModule)
    ((item, hosts),) = action._archives(variables)
    assert item["path"] == "all.tar"
    present = {name: one["present_members"] for name, one in hosts.items()}
    assert present == {"n1": ["base"], "n2": ["base", "a"]}

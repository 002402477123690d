"""The variables of the roles, validated before any role starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory import role_specs
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.role_variables import (
    unknown_variables,
    variable_problems,
)

OPTIONS: dict[str, dict[str, Any]] = {
    "network_driver": {"type": "str", "choices": ["sriov", "bridge"], "default": "sriov"},
    "network_vlan": {"type": "int", "default": 0},
    "images_list": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {"name": {"type": "str", "required": True}},
    },
    "images_distribution": {"type": "str", "choices": ["auto", "direct"], "default": "auto"},
    "images_password": {"type": "int", "no_log": True},
    "container_name": {"type": "str", "default": "rdm"},
    "network_name": {"type": "str", "default": "ibnet"},
    "container_network": {"type": "str", "default": "ibnet"},
    "userns": {"type": "str", "choices": ["", "host"]},
    "level": {"type": "int", "choices": [1, 2]},
    "volumes": {"type": "list", "elements": "str"},
    "env": {"type": "dict"},
}


@pytest.fixture(autouse=True)
def _options(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(role_specs, "options", lambda: OPTIONS)
    monkeypatch.setattr(role_specs, "_TYPED", {})
    role_specs._validator.cache_clear()
    yield
    role_specs._validator.cache_clear()


def sentences(**variables: Any) -> list[str]:
    return [problem.sentence for problem in variable_problems("n1", variables)]


def test_valid_values_and_foreign_variables_pass() -> None:
    assert sentences(network_driver="bridge", network_vlan="7", images_list=[{"name": "x"}], other=1) == []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("network_driver", "token-ring", "'token-ring': choose sriov, bridge"),
        ("network_vlan", "many", "'many': give a whole number"),
        ("images_distribution", "pears", "'pears': choose auto, direct"),
        ("images_list", [{"nmae": "x"}], "give it a list of dict"),
        ("images_list", "x", "give it a list of dict"),
        ("volumes", {"a": "b"}, "has a wrong value, a dictionary: give it a list of str"),
    ],
)
def test_wrong_value_names_variable_and_hint(name: str, value: Any, words: str) -> None:
    found = sentences(**{name: value})
    assert found
    assert all(sentence.startswith(f"{name} has a wrong value") for sentence in found)
    assert words in found[0]


def test_choices_are_listed_once() -> None:
    assert sentences(network_driver="x") == ["network_driver has a wrong value 'x': choose sriov, bridge"]
    assert sentences(userns="x") == ["userns has a wrong value 'x': choose '', host"]
    assert len(sentences(level="x")) == 1, "neither a number nor one of the choices"


@pytest.mark.parametrize("name", ["x'; touch y", "", "-x", "x", "a b", "a\nb"])
def test_name_that_docker_would_not_take_is_refused(name: str) -> None:
    (message,) = sentences(container_name=name)
    assert message.startswith(f"container_name {name!r} is not a name that Docker takes: use letters")
    assert sentences(container_name="rdm-2.x_y") == []


@pytest.mark.parametrize("variable", ["network_name", "container_network"])
@pytest.mark.parametrize("name", ["bridge", "default", "host", "none"])
def test_a_network_that_has_no_address_for_a_container_is_refused(variable: str, name: str) -> None:
    (message,) = sentences(**{variable: name})
    assert message.startswith(f"{variable} {name!r} is a word of Docker's own, and not a network on which")
    assert sentences(container_name=name, network_name=f"{name}net") == []


def test_secret_value_is_not_shown() -> None:
    assert "hunter2" not in str(
        sentences(
            images_password="hunter2", env=["hunter2"], images_list=["hunter2"], volumes={"a": "hunter2"}
        )
    )


def test_only_set_variables_are_validated() -> None:
    assert sentences() == []
    assert sentences(images_list=None) == []


def test_unknown_variables_are_reported_with_the_nearest_known_one() -> None:
    known = {"rdm_slots", "network_driver", "network_name", "my_ip"}
    found = unknown_variables(
        [
            "rdm_slot",
            "rdm_zzz",
            "network_drivr",
            "network_of_mine",
            "rdm_slots",
            "other",
            "netwrk_driver",
            "ansible_x",
            "MY_IP",
        ],
        known,
        ["rdm_", "network_"],
    )
    assert found == [
        "The variable network_drivr means nothing here. Did you mean network_driver?",
        "The variable rdm_slot means nothing here. Did you mean rdm_slots?",
        "The variable rdm_zzz means nothing here.",
        "The variable MY_IP means nothing here. Did you mean my_ip?",
        "The variable netwrk_driver means nothing here. Did you mean network_driver?",
    ]

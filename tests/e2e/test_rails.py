"""A lab with two rails: containers on both, and a verdict that names the faulty one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.product import Lab, Product, changed, running_lab
from tests.labs import lab_name

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def lab(product: Product) -> Iterator[Lab]:
    # A VF of each rail from one plugin; tests/integration/test_rails.py has macvlan.
    options = ("--nodes", "2", "--rails", "2", "--driver", "sriov")
    with running_lab(product, lab_name("e2e-rails"), *options) as lab:
        yield lab


def test_containers_are_on_both_rails_and_each_is_evaluated(lab: Lab) -> None:
    made = lab.json("up")
    assert made["ok"]
    assert list(made["fabric"]["rails"]) == ["ib0", "ib1"]
    assert made["fabric"]["rails"]["ib1"]["verdicts"]["n2"]["ok"]
    assert lab.on("n1", "docker", "exec", "rdm", "ping", "-c", "1", "-w", "60", "192.169.17.101")
    assert changed(lab.json("up")) == []

    # Its cable to the second switch.
    lab.on("switch", "ip", "link", "set", "port2r1", "down")
    result = lab.json("verify", expect=1)
    rails = result["fabric"]["rails"]
    assert [rail for rail, evaluated in rails.items() if not evaluated["ok"]] == ["ib1"]
    assert "rail ib1: " in result["nodes"]["n2"]["why"]
    assert "rail ib0" not in result["nodes"]["n2"]["why"]
    assert [node["cable"] for node in lab.lab("status")["nodes"]] == ["plugged", "cut"]

    lab.lab("heal", "n2")
    assert lab.json("verify")["ok"]

"""Nodes whose engine is Podman: up, a second run, manual changes, down."""

from __future__ import annotations

import pytest

from tests.e2e.product import Product, changed, running_lab
from tests.labs import lab_name

pytestmark = pytest.mark.long

OTHER_NETWORK = (
    "podman rm -f -t 1 rdm; podman network rm ibnet; podman network create -d macvlan -o parent=eth0 "
    "--subnet 192.169.16.0/24 --gateway 192.169.16.1 --label rdm.provision.cluster={0} "
    "--label rdm.provision.role=network ibnet"
)


def test_podman_cluster_goes_up_and_down(product: Product) -> None:
    name = lab_name("e2e-podman")
    with running_lab(product, name, "--nodes", "2", "--engine", "podman") as lab:
        made = lab.json("up")
        assert sorted(changed(made)) == ["n1", "n2"]
        assert made["fabric"]["verdicts"]["n2"]["ok"]
        assert lab.on("n1", "podman", "exec", "rdm", "ping", "-c", "1", "-w", "60", "192.169.16.101")
        status = lab.json("status")
        assert all("Podman" in str(status["nodes"][node]) for node in ("n1", "n2"))

        second = lab.json("up")
        assert (changed(second), second["work"]) == ([], {})
        # Every role runs, and finds its work done.
        again = lab.json("up", "--recheck")
        assert "container" in again["work"]["n1"]
        assert changed(again) == []

        # A boot: podman-restart.service starts the containers.
        lab.lab("stop", "n2")
        lab.lab("start", "n2")
        assert lab.container("n2") == "running"

        lab.on("n2", "podman", "stop", "-t", "1", "rdm")
        lab.on("n1", "sh", "-c", OTHER_NETWORK.format(name))
        refused = lab.json("up", expect=2)
        assert "parent is eth0, not ib0" in str(refused["problems"])
        repaired = lab.json("up", "-e", "network_replace=true")
        assert sorted(changed(repaired)) == ["n1", "n2"]
        assert any("exited" in reason for reason in repaired["work"]["n2"]["container"])
        # Another policy recreates the container.
        other = lab.json("up", "-e", "container_restart_policy=unless-stopped")
        assert sorted(changed(other)) == ["n1", "n2"]

        lab.json("down")
        for node in ("n1", "n2"):
            assert lab.on(node, "podman", "ps", "--all", "--quiet") == ""
            assert "ibnet" not in lab.on(node, "podman", "network", "ls")
            assert not lab.there(node, "/etc/rdm")

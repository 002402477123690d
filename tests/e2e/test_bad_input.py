"""Bad input gets a sentence with node, value and a valid value, and nothing is changed."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.product import NODES, Lab, Product
from tests.image_archives import MadeImage, layer, saved


def inventory(master: dict[str, Any], workers: dict[str, Any], **variables: Any) -> dict[str, Any]:
    """Return an inventory of these hosts."""
    children = {"master": {"hosts": master}, "workers": {"hosts": workers}}
    image = [{"name": "x:1", "source": "registry"}]
    settings = {"rdm_accelerator": "cpu", "network_driver": "macvlan", "images_list": image, **variables}
    return {"all": {"vars": settings, "children": children}}


A: dict[str, Any] = {"a": {}}
B: dict[str, Any] = {"b": {}}


def test_wrong_inventory_is_bad_input(product: Product, tmp_path: Path) -> None:
    """A value that must not reach a shell. Unit tests assert the other errors."""
    wrong = {
        "rdm_accelerator": "tpu",
        "rdm_subnet": "10.1.2.3/24",
        "network_driver": "sriovv",
        "container_name": 'x\'; touch "$(pwd)/pwned"',
    }
    (tmp_path / "hosts.json").write_text(json.dumps(inventory(A, B, **wrong)), encoding="utf-8")
    done = product.rdm("up", "--inventory", str(tmp_path), expect=3)
    words = ("tpu", "rocm", "cuda", "cpu", "10.1.2.3/24", "10.1.2.0/24", "sriovv", "macvlan")
    assert [word for word in (*words, "container_name", "$(pwd)/pwned") if word not in done.stderr] == []
    assert not (tmp_path / "address_plan.cfg").exists()
    assert not (product.directory / "pwned").exists()


def test_all_problems_of_an_inventory_come_at_once(product: Product, tmp_path: Path) -> None:
    """The plan and ansible-playbook print the same words."""
    data = inventory({**A, **B}, {"c": {"my_ip": "10.0.0.1"}}, rdm_accelerator="tpu")
    (tmp_path / "hosts.json").write_text(json.dumps(data), encoding="utf-8")
    result = json.loads(product.rdm("plan", "--json", "--inventory", str(tmp_path), expect=3).stdout)
    reasons = [problem["reason"] for problem in result["problems"]]
    assert len(reasons) >= 3
    played = product.run("ansible-playbook", "rdm.provision.site", "--inventory", tmp_path, expect=2)
    output = " ".join((played.stdout + played.stderr).split())
    assert [reason for reason in reasons if reason not in output] == []


def test_missing_inventory_is_bad_input(product: Product) -> None:
    assert "nowhere" in product.rdm("up", "--inventory", "nowhere", expect=3).stderr


# --- what only the nodes know -------------------------------------------------------------------------------


@pytest.fixture
def bare(lab: Lab) -> Iterator[Lab]:
    """A lab with nothing of ours on its nodes, before and after."""
    lab.bare()
    plan = lab.inventory / "address_plan.cfg"
    plan.unlink(missing_ok=True)
    yield lab
    for node in NODES:
        assert not lab.there(node, "/etc/rdm"), "a refused run has changed a node"
        assert lab.images(node) == "", "a refused run has loaded an image"
        assert lab.on(node, "docker", "ps", "--all", "--quiet") == "", "a refused run has made a container"
    assert not plan.exists(), "a refused run has written the plan"


@contextmanager
def variables(lab: Lab, **values: Any) -> Iterator[None]:
    """Give the lab's nodes these variables."""
    file = lab.inventory_text(json.dumps(values))
    try:
        yield
    finally:
        file.unlink()


def failed_up(lab: Lab) -> dict[str, list[str]]:
    """Run up, expect a refusal by the nodes, and return its problems as sentences by node ("" for all)."""
    done = lab.rdm("up", "--json", expect=2)
    result = json.loads(done.stdout)
    assert result["refused"] == "nodes"
    messages: dict[str, list[str]] = {}
    for problem in result["problems"]:
        assert problem["hint"], problem
        sentence = f"{problem['value']} {problem['reason']}: {problem['hint']}"
        messages.setdefault(problem["node"] or "", []).append(sentence)
    return messages


def find(sentences: list[str], *words: str) -> bool:
    """Whether one of the sentences has all these words."""
    return any(all(word in sentence for word in words) for sentence in sentences)


def test_a_limit_that_matches_nothing(lab: Lab) -> None:
    assert "n9" in lab.rdm("up", "--limit", "n9", expect=3).stderr


K3S = """
mkdir -p /etc/rancher/k3s
echo 'service-cidr: 172.17.8.0/22' > /etc/rancher/k3s/config.yaml
cp /usr/bin/sleep /usr/local/bin/k3s-server
start-stop-daemon --start --background --exec /usr/local/bin/k3s-server -- infinity
"""
NO_K3S = """
start-stop-daemon --stop --oknodo --exec /usr/local/bin/k3s-server
rm -r /etc/rancher /usr/local/bin/k3s-server
"""


@contextmanager
def ranges_in_use(lab: Lab) -> Iterator[None]:
    """Give n2 an address, and n3 a route and a Kubernetes, within the range of Docker's own network."""
    lab.on("n2", "ip", "address", "add", "172.17.4.5/24", "dev", "ib0")
    lab.on("n3", "ip", "route", "add", "172.17.64.0/20", "dev", "eth0")
    lab.on("n3", "sh", "-ec", K3S)
    try:
        yield
    finally:
        lab.on("n2", "ip", "address", "flush", "dev", "ib0")
        lab.on("n3", "ip", "route", "flush", "172.17.64.0/20")
        lab.on("n3", "sh", "-c", NO_K3S)


def test_settings_that_the_nodes_do_not_allow_are_refused_in_one_report(bare: Lab, tmp_path: Path) -> None:
    images = [
        {"name": "x:1", "source": "archive", "path": "/srv/none.tar", "remote_src": True},
        {"name": "x:2", "source": "archive", "path": "/tmp/cut.tar", "remote_src": True},
        {"name": "x:3", "source": "archive", "path": "/etc/passwd", "remote_src": True},
        {
            "name": "x:4",
            "source": "archive",
            "path": "/srv/rdm/images/cpu.tar",
            "remote_src": True,
            "sha256": "0" * 64,
        },
        {"name": "x:5", "source": "archive", "path": "/tmp/own.tar", "remote_src": True},
    ]
    for node in NODES:
        own = saved(MadeImage([layer("of n2" if node == "n2" else "of others")], ["x:5"]))
        bare.on(node, "sh", "-ec", f"echo {base64.b64encode(own).decode()} | base64 -d >/tmp/own.tar")
        bare.on(
            node, "dd", "if=/srv/rdm/images/cpu.tar", "of=/tmp/cut.tar", "bs=1M", "count=8", "status=none"
        )
    settings = {"network_parent": "ib7", "rdm_subnet": "172.17.0.0/16", "container_image": "x:1"}
    settings["images_distribution"] = "peers"
    with ranges_in_use(bare), variables(bare, **settings, images_list=images):
        problems = failed_up(bare)
    assert find(problems.pop(""), "/tmp/own.tar has other images on n2 than on n1")
    assert list(problems) == list(NODES)
    assert find(problems["n2"], "172.17.0.0/16 overlaps", "ib0", "172.17.4.5/24")
    assert find(problems["n3"], "172.17.0.0/16 overlaps", "172.17.64.0/20")
    assert find(problems["n3"], "Kubernetes (k3s", "services (172.17.8.0/22)")
    for message in problems.values():
        assert find(message, "ib7", "ib0")
        assert find(message, "172.17.0.0/16 overlaps", "Docker network bridge", "for example 10.")
        assert find(message, "/srv/none.tar")
        assert find(message, "/tmp/cut.tar", "truncated")
        assert find(message, "/etc/passwd", "not an image archive")
        assert find(message, "/srv/rdm/images/cpu.tar", "0" * 64)

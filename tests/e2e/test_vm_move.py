"""The upstream network plugin on virtual machines: the move to ours by docs/sr-iov.md, and its refusal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from ansible_collections.rdm.provision.plugins.module_utils.base.zip_program import packed_program
from ansible_collections.rdm.provision.rdm_lab.recipe import CPU_IMAGE

from tests.e2e.machines import NODES, VFS, MachineLab, running_machines
from tests.e2e.product import ADDRESSES, ROOT, Product, changed

pytestmark = pytest.mark.long

IMAGE = "rdm-test/sriov-plugin:0.1.2"
CONTEXT = "/srv/sriov-plugin"
DOCKERFILE = f"""\
FROM {CPU_IMAGE}
COPY program /bin/docker-sriov-plugin
CMD ["/usr/bin/python3", "/bin/docker-sriov-plugin", "/sys/class/net/ib0/device/sriov_numvfs", \\
  "--state", "/etc/docker/mellanox/docker-sriov-plugin"]
"""
PLUGIN = "rdm-sriov-plugin"


@pytest.fixture(scope="module")
def old(product: Product) -> Iterator[MachineLab]:
    """Machines with an engine under which the upstream plugin works."""
    with running_machines(product, "20.10") as lab:
        yield lab


@pytest.fixture(scope="module", params=["26.1", "newest"])
def new(product: Product, request: pytest.FixtureRequest) -> Iterator[MachineLab]:
    """Machines with an engine under which the upstream plugin forgets its networks."""
    with running_machines(product, request.param) as lab:
        yield lab


def write_context(lab: MachineLab, node: str) -> None:
    """Write the build context of the upstream plugin's stand-in to a node."""
    stand_in = (ROOT / "tests/integration/upstream_plugin.py").read_text()
    content = packed_program(ROOT, stand_in)
    lab.on(node, "mkdir", "-p", CONTEXT)
    lab.write(node, f"{CONTEXT}/Dockerfile", DOCKERFILE)
    lab.write(node, f"{CONTEXT}/program", content)


def upstream(lab: MachineLab) -> dict[str, Any]:
    """Return the variables of a cluster with the upstream plugin, whose image is built on the nodes."""
    made = yaml.safe_load((lab.inventory / "hosts.yml").read_text())
    images = made["cluster"]["vars"]["images_list"]
    built = {"name": IMAGE, "source": "build", "build": {"path": CONTEXT}}
    # It makes VFs itself, as many as the card allows.
    return {
        "sriov_plugin": "upstream",
        "sriov_image": IMAGE,
        "sriov_vfs": 0,
        "images_list": [*images, built],
    }


def with_variables(lab: MachineLab, **variables: Any) -> MachineLab:
    """Give the cluster these variables in addition to the lab's own."""
    lab.inventory_text(yaml.safe_dump(variables))
    return lab


def reasons(result: Any) -> dict[str, set[str]]:
    """Return why nodes were refused, by node."""
    found: dict[str, set[str]] = {}
    for problem in result["problems"]:
        sentence = f"{problem['value']} {problem['reason']}: {problem['hint']}"
        found.setdefault(problem["node"], set()).add(sentence)
    return found


def networks(lab: MachineLab, node: str) -> set[str]:
    """Return the ids of the networks of a node that a plugin serves."""
    return set(lab.on(node, "docker", "network", "ls", "--quiet", "--filter", "driver=sriov").split())


def test_a_cluster_moves_to_our_plugin_as_the_guide_says(old: MachineLab) -> None:
    for node in NODES:
        write_context(old, node)
        assert old.vfs(node) == []
    assert with_variables(old, **upstream(old)).json("up")["ok"]
    for node in NODES:
        assert old.container(node) == "running"
        assert old.on(node, "docker", "inspect", "--format", "{{.Config.Image}}", PLUGIN).strip() == IMAGE
        assert old.vf(node)
    old.all_reach()
    before = {node: (networks(old, node), old.pid(node)) for node in NODES}

    # Not without network_replace, and not without sriov_vfs.
    refused = reasons(with_variables(old).json("up", expect=2))
    assert set(refused) == set(NODES)
    for why in refused.values():
        assert any("set network_replace: true" in one for one in why), why
    refused = reasons(with_variables(old, network_replace=True, sriov_vfs=0).json("up", expect=2))
    lost = "sriov_vfs 0 makes no virtual functions, and rdma/sriov-plugin takes those of ib0 with it"
    assert set(refused) == set(NODES)
    for why in refused.values():
        assert [one.startswith(lost) for one in why] == [True], why
    assert {node: (networks(old, node), old.pid(node)) for node in NODES} == before

    assert with_variables(old, network_replace=True).json("up")["ok"]
    for node in NODES:
        assert len(networks(old, node)) == 1
        assert not networks(old, node) & before[node][0], "the upstream plugin's network is still there"
        assert PLUGIN not in old.on(node, "docker", "ps", "--all", "--format", "{{.Names}}").split()
        assert old.on(node, "systemctl", "is-active", "rdm-sriov").strip() == "active"
        assert ADDRESSES[node] in old.inside(node, "ip", "-4", "address")
        assert old.vf(node)
        assert len(old.vfs(node)) == VFS
        assert len(old.at_home(node)) == VFS - 1, "a VF is neither in the container nor free"
    old.all_reach()
    assert changed(with_variables(old).json("up")) == []


def test_the_upstream_plugin_is_refused_where_it_forgets_its_networks(new: MachineLab) -> None:
    refused = reasons(with_variables(new, **upstream(new)).json("up", expect=2))
    assert set(refused) == set(NODES)
    for why in refused.values():
        (reason,) = [one for one in why if one.startswith("sriov_plugin upstream ")]
        assert "it queries the engine in API version 1.12" in reason
        assert "refuses those below 1." in reason
    for node in NODES:
        assert networks(new, node) == set()
        assert new.on(node, "docker", "ps", "--all", "--quiet") == ""
        assert new.images(node) == ""
        assert new.vfs(node) == []
        assert not new.there(node, "/etc/rdm")

"""The role images pulls an image of a registry on one node, and passes it on to others through real ssh.

The nodes are this machine under three names, each with an engine and a cache of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ansible_playbook import TIMEOUT_S
from tests.image_archives import MadeImage, saved, tar
from tests.integration.engine import Engine, private_engine
from tests.integration.ssh_nodes import configure_ssh, start_playbook

NODES = ("n1", "n2", "n3")
REPOSITORY = "rdm-test/pulled-once"
BASE = 16_000_000
"""Bytes of a layer that two of the nodes have from another image."""


@dataclass
class Nodes:
    """Three nodes, and runs of the role on them.

    Attributes:
        folder: with all files of the controller, the nodes and the registry.
        engines: node -> its engine.
        image: the name of an image in the registry.
        digest: the same image with its digest instead of a tag.
        sent: bytes that the source of the last run has sent.
    """

    folder: Path
    engines: dict[str, Engine]
    image: str
    digest: str
    sent: int = 0

    def provision(self, *flags: str, **entry: str) -> tuple[list[str], list[str]]:
        """Run the role; return the nodes that it has changed, and its warnings."""
        hosts = {
            name: {"docker_host": f"unix://{engine.socket}", "images_cache_dir": str(self.folder / name)}
            for name, engine in self.engines.items()
        }
        # An inventory in JSON is one in YAML.
        (self.folder / "inventory").write_text(json.dumps({"all": {"hosts": hosts}}))
        # The plan is not needed; what preflight knows of the engines is.
        facts = {"rdm.provision.node_facts": {"config_dir": str(self.folder)}, "register": "preflight_facts"}
        play = {
            "hosts": "all",
            "gather_facts": False,
            "environment": {"DOCKER_HOST": "{{ docker_host }}"},
            "pre_tasks": [facts],
            "roles": ["rdm.provision.images"],
        }
        (self.folder / "play.yml").write_text(yaml.safe_dump([play]))
        variables = {
            "images_list": [{"name": self.image, "source": "registry", **entry}],
            "images_distribution": "peers",
        }
        run = start_playbook(self.folder, self.folder / "play.yml", variables, *flags)
        try:
            output, errors = run.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired as hang:
            run.kill()
            pytest.fail(f"{hang}: {run.communicate()}")
        assert run.returncode == 0, output + errors
        report: dict[str, Any] = json.loads(output[output.index("{") :])
        tasks = {task["task"]["name"]: task["hosts"]["n1"] for task in report["plays"][0]["tasks"]}
        transfer = tasks["rdm.provision.images : Transfer images of registries from node to node"]
        self.sent = transfer["sent"].get(self.image, 0)
        changed = [name for name in NODES if report["stats"][name]["changed"]]
        return changed, transfer.get("warnings") or []

    def inspected(self, name: str, image: str) -> dict[str, Any]:
        """Return what a node's engine knows of an image; DockerError if it lacks it."""
        found: dict[str, Any] = self.engines[name].api.get(f"/images/{image}/json")
        return found

    def have(self, image: str) -> list[str]:
        """Return the nodes that have an image under this tag."""
        return [
            name
            for name, engine in self.engines.items()
            if any(image in (one["RepoTags"] or []) for one in engine.api.get("/images/json"))
        ]

    def fetched(self) -> list[str]:
        """Return the blobs that were fetched from the registry, in order."""
        log = (self.folder / "registry.log").read_text()
        return re.findall(rf'"GET /v2/{REPOSITORY}/blobs/(\S+) HTTP/1.1" 200', log)

    def left(self) -> list[Path]:
        """Return the files that are left in the caches."""
        return [file for name in NODES for file in (self.folder / name).rglob("*") if file.is_file()]


@pytest.fixture
def nodes(engine: Engine, registry: str, tmp_path: Path) -> Iterator[Nodes]:
    image = f"{registry}/{REPOSITORY}:1"
    archive, base = tmp_path / "made.tar", tmp_path / "base.tar"
    layers = [tar({name: os.urandom(size)}) for name, size in (("base", BASE), ("data", 2_000_000))]
    archive.write_bytes(saved(MadeImage(layers, [image])))
    base.write_bytes(saved(MadeImage(layers[:1], ["rdm-test/base:1"])))

    def docker(*words: str | Path, on: Engine = engine) -> str:
        command = ["docker", *map(str, words)]
        return subprocess.run(command, env=on.environment, check=True, capture_output=True, text=True).stdout

    docker("load", "--input", archive)
    docker("push", "--quiet", image)
    digest = docker("inspect", "--format", "{{index .RepoDigests 0}}", image).strip()
    docker("rmi", image)
    configure_ssh(tmp_path)
    with private_engine() as second, private_engine() as third:
        docker("load", "--input", base, on=second)
        docker("load", "--input", base, on=third)
        yield Nodes(tmp_path, {"n1": engine, "n2": second, "n3": third}, image, digest)


def test_one_node_pulls_an_image_for_all(nodes: Nodes) -> None:
    assert nodes.provision("--check")[0] == list(NODES)
    assert nodes.have(nodes.image) == []

    assert nodes.provision() == (list(NODES), [])
    blobs = nodes.fetched()
    assert len(blobs) == len(set(blobs)) == 3, "the configuration and the layers, each once"
    # Less than all, even if some pieces are sent again because a busy machine has stood still for seconds.
    assert 2_000_000 < nodes.sent < BASE + 2_000_000, "the others have a layer already"
    found = [nodes.inspected(name, nodes.image) for name in NODES]
    assert len({one["Id"] for one in found}) == 1
    assert [bool(one["RepoDigests"]) for one in found] == [True, False, False]
    assert nodes.left() == []

    assert nodes.provision()[0] == []

    # What one node lacks is pulled there.
    nodes.engines["n2"].api.delete(f"/images/{nodes.image}")
    assert nodes.provision()[0] == ["n2"]
    assert nodes.have(nodes.image) == list(NODES)
    assert sorted(nodes.fetched()) == sorted(2 * blobs)


def test_an_image_with_a_digest_is_pulled_by_each_node(nodes: Nodes) -> None:
    changed, warnings = nodes.provision(name=nodes.digest)
    each = f"{nodes.digest} is pulled by n1, n2, n3, and does not go from node to node"
    assert warnings == [f"{each}: an engine knows the digest of an image only if it has pulled it"]
    assert changed == list(NODES)
    assert all(nodes.inspected(name, nodes.digest)["RepoDigests"] == [nodes.digest] for name in NODES)

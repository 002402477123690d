"""The role images against a real engine: a registry, an archive and a build, each once."""

from __future__ import annotations

import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.image_archives import MadeImage, layer, saved
from tests.integration.engine import Engine, wait_until
from tests.integration.plays import Played, run_plays


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """The address of a registry on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    config = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(tmp_path / "registry")}},
        "http": {"addr": address},
        "log": {"level": "error"},
    }
    (tmp_path / "registry.yml").write_text(yaml.safe_dump(config))
    with (tmp_path / "registry.log").open("w") as log:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(tmp_path / "registry.yml")], stdout=log, stderr=log
        )
    try:
        assert wait_until(lambda: answers(address), 20), (tmp_path / "registry.log").read_text()
        yield address
    finally:
        process.terminate()
        process.wait()


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/v2/", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def play(engine: Engine, directory: Path, *flags: str, **variables: Any) -> Played:
    """Run the role on this machine."""
    role = {"roles": ["rdm.provision.images"]}
    return run_plays(directory, [role], *flags, docker_host=f"unix://{engine.socket}", **variables)


def names(engine: Engine) -> set[str]:
    return {tag for image in engine.api.get("/images/json") for tag in image["RepoTags"] or []}


def test_three_sources(engine: Engine, busybox_image: str, registry: str, tmp_path: Path) -> None:
    pulled = f"{registry}/rdm-test/pulled:1"
    subprocess.run(["docker", "tag", busybox_image, pulled], env=engine.environment, check=True)
    subprocess.run(["docker", "push", "--quiet", pulled], env=engine.environment, check=True)
    subprocess.run(["docker", "rmi", pulled], env=engine.environment, check=True, capture_output=True)
    (tmp_path / "context").mkdir()
    (tmp_path / "context" / "Dockerfile").write_text(
        f"FROM {busybox_image}\nARG GREETING\nENV GREETING=$GREETING\n"
    )
    (tmp_path / "image.tar").write_bytes(saved(MadeImage([layer("one")], ["rdm-test/archived:1"])))
    variables = {
        "images_cache_dir": str(tmp_path / "cache"),
        "images_list": [
            {"name": pulled, "source": "registry"},
            {"name": "rdm-test/archived:1", "source": "archive", "path": str(tmp_path / "image.tar")},
            {
                "name": "rdm-test/built:1",
                "source": "build",
                "build": {"path": str(tmp_path / "context"), "args": {"GREETING": "a b $(id)'"}},
            },
        ],
    }
    wanted = {pulled, "rdm-test/archived:1", "rdm-test/built:1"}

    played = play(engine, tmp_path, "--check", **variables)
    assert (played.status, played.changes) == (0, [3]), played.output
    assert not wanted & names(engine)

    played = play(engine, tmp_path, **variables)
    assert (played.status, played.changes) == (0, [3]), played.output
    assert wanted <= names(engine)
    built = engine.api.get("/images/rdm-test/built:1/json")["Config"]["Env"]
    assert "GREETING=a b $(id)'" in built

    played = play(engine, tmp_path, **variables)
    assert (played.status, played.changes) == (0, [0]), played.output

    play(engine, tmp_path, images_state="absent", **variables)
    assert wanted <= names(engine), "images go only when asked"
    played = play(engine, tmp_path, images_state="absent", images_remove=True, **variables)
    assert (played.status, played.changes) == (0, [2]), played.output  # two tasks: archives, and the rest
    assert not wanted & names(engine)
    assert busybox_image in names(engine)


def test_a_cpu_cluster_must_list_its_image(engine: Engine, tmp_path: Path) -> None:
    played = play(engine, tmp_path, rdm_accelerator="cpu")
    assert played.status == 2
    assert "there is no image that fits every cpu cluster" in played.output


def test_an_archive_without_a_path(engine: Engine, tmp_path: Path) -> None:
    played = play(engine, tmp_path, images_list=[{"name": "a:1", "source": "archive"}])
    assert played.status == 2
    assert "a:1 comes from an archive: say where, with path" in played.output

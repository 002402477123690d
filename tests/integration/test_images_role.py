"""The role images against a real engine: a registry, an archive and a build, each once."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.docker import registry_mirrors
from ansible_collections.rdm.provision.plugins.module_utils.docker.engine_facts import image_store
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_index import index_archive

from tests.image_archives import Layout, MadeImage, layer, saved
from tests.integration.engine import Engine, net, private_engine
from tests.integration.engines import ENGINES, engine_directory, inside
from tests.integration.plays import HOST, Played, run_plays


def play(engine: Engine, directory: Path, *flags: str, **variables: Any) -> Played:
    """Run the role on this machine."""
    return plays(engine, directory, [{}], *flags, **variables)


def plays(
    engine: Engine, directory: Path, several: list[dict[str, Any]], *flags: str, **variables: Any
) -> Played:
    """Run the role once with each of these variables, in one run."""
    role = {"roles": ["rdm.provision.images"]}
    given = [{**role, "vars": own} for own in several]
    return run_plays(directory, given, *flags, docker_host=f"unix://{engine.socket}", **variables)


INSPECT, LOAD = (
    "rdm.provision.images : Inspect the image archives",
    "rdm.provision.images : Load images from archives",
)


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

    played = plays(engine, tmp_path, [{}, {}, {"images_state": "absent"}], **variables)
    assert (played.status, played.changes) == (0, [3, 0, 0]), played.output
    built = engine.api.get("/images/rdm-test/built:1/json")["Config"]["Env"]
    assert "GREETING=a b $(id)'" in built
    assert LOAD not in played.by_play[1], "what the inspection finds there is not loaded again"
    assert wanted <= names(engine), "images are removed only on request"
    played = play(engine, tmp_path, images_state="absent", images_remove=True, **variables)
    assert (played.status, played.changes) == (0, [2]), played.output  # two tasks: archives, and the rest
    assert not wanted & names(engine)
    assert busybox_image in names(engine)


def test_a_mirror(engine: Engine, busybox_image: str, registry: str, tmp_path: Path) -> None:
    """The engine pulls from the mirror without a restart. Removing the mirror restores its configuration."""
    hub = "rdm-test/of-docker-hub:1"
    subprocess.run(["docker", "tag", busybox_image, f"{registry}/{hub}"], env=engine.environment, check=True)
    subprocess.run(["docker", "push", "--quiet", f"{registry}/{hub}"], env=engine.environment, check=True)
    with private_engine() as other:
        configuration = other.root / "daemon.json"
        before = '{"log-level":"warn"}'
        configuration.write_text(before)
        other.stop()
        other.options.append(f"--config-file={configuration}")
        other.start()
        mirror = f"http://{registry}"
        variables: dict[str, Any] = {
            "images_list": [{"name": hub, "source": "registry"}],
            "images_mirror": [mirror],
        }

        played = plays(other, tmp_path, [{}, {}, {"images_state": "absent"}], **variables)
        assert (played.status, played.changes) == (0, [2, 0, 1]), played.output
        assert hub in names(other), "Docker Hub is not reached here: it came from the mirror"
        assert registry_mirrors.used(other.api.get("/info")) == []
        assert configuration.read_text() == before
        assert not (other.root / registry_mirrors.RECORD).exists()

        played = provision(other, tmp_path, **{**variables, "images_mirror": ["http://127.0.0.1:1"]})
        assert played.status == 2
        assert "images_mirror http://127.0.0.1:1 does not answer (Connection refused)" in played.output
        assert configuration.read_text() == before


def test_a_mirror_of_a_named_registry(
    engine: Engine, busybox_image: str, registry: str, tmp_path: Path
) -> None:
    """An engine with the containerd store pulls an image of a registry from a project of a mirror."""
    named = f"rdm-test-{os.getpid()}.invalid"
    pushed = f"{registry}/project/rdm-test/named:1"
    subprocess.run(["docker", "tag", busybox_image, pushed], env=engine.environment, check=True)
    subprocess.run(["docker", "push", "--quiet", pushed], env=engine.environment, check=True)
    subprocess.run(["docker", "rmi", pushed], env=engine.environment, check=True, capture_output=True)
    image = f"{named}/rdm-test/named:1"
    variables: dict[str, Any] = {
        "images_list": [{"name": image, "source": "registry"}],
        "images_mirror": [f"{named}=http://{registry}/project"],
    }
    release = engine_directory(ENGINES["28.5+"])
    # The engine's root directory is another one, so both have a link to the registry's directory.
    links = [Path(root, "etc/docker/certs.d", named) for root in ("/", release)]
    try:
        with private_engine("--feature=containerd-snapshotter=true", prefix=inside(release)) as newer:
            assert image_store(newer.api.get("/info")) == "containerd"
            directory = newer.root / "registry"
            directory.mkdir()
            for link in links:
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(directory)
            hosts = directory / "hosts.toml"

            played = play(newer, tmp_path, "--check", "--diff", **variables)
            assert (played.status, played.changes) == (0, [2]), played.output
            assert f"http://{registry}/v2/project" in played.output
            assert not hosts.exists()

            played = plays(newer, tmp_path, [{}, {}, {"images_state": "absent"}], **variables)
            assert (played.status, played.changes) == (0, [2, 0, 1]), played.output
            assert image in names(newer), "the registry does not exist: it came from the mirror"
            assert not hosts.exists()

            hosts.write_text(f'server = "http://{registry}"\n')
            played = provision(newer, tmp_path, **variables)
            assert played.status == 2
            assert f"{links[0]}/hosts.toml was not written by rdm-provision for this engine" in played.output
            assert hosts.read_text() == f'server = "http://{registry}"\n'
    finally:
        for link in links:
            link.unlink(missing_ok=True)

    played = provision(engine, tmp_path, **variables)
    assert played.status == 2
    assert "needs Docker Engine 28.0 or newer with the containerd image store" in played.output


def test_a_cpu_cluster_must_list_its_image(engine: Engine, tmp_path: Path) -> None:
    played = play(engine, tmp_path, rdm_accelerator="cpu")
    assert played.status == 2
    assert "there is no image that fits every cpu cluster" in played.output


def test_an_archive_without_a_path(engine: Engine, tmp_path: Path) -> None:
    played = play(engine, tmp_path, images_list=[{"name": "a:1", "source": "archive"}])
    assert played.status == 2
    assert "a:1 comes from an archive: say where, with path" in played.output


def put(directory: Path, name: str, image: MadeImage) -> str:
    path = directory / name
    path.write_bytes(saved(image))
    return str(path)


def test_nothing_is_loaded_if_one_archive_is_bad(engine: Engine, tmp_path: Path) -> None:
    good = put(tmp_path, "good.tar", MadeImage([layer("good")], ["rdm-test/good:1"]))
    images = [
        {"name": "rdm-test/good:1", "source": "archive", "path": good},
        {"name": "rdm-test/none:1", "source": "archive", "path": str(tmp_path / "none.tar")},
    ]
    played = play(engine, tmp_path, images_list=images, images_cache_dir=str(tmp_path / "cache"))
    assert (played.status, played.changes) == (2, [0])
    assert f"{tmp_path}/none.tar does not exist: put it there" in played.output
    assert "rdm-test/good:1" not in names(engine)


def test_two_images_of_one_archive_that_came_from_other_nodes(engine: Engine, tmp_path: Path) -> None:
    layout = Layout()
    wanted = ["rdm-test/first:1", "rdm-test/second:1"]
    for name in wanted:
        key = {"org.opencontainers.image.ref.name": name}
        layout.entries.append(layout.manifest(MadeImage([layer(name)], [name]), annotations=key))
    path, copy = tmp_path / "two.tar", tmp_path / "peers" / "two.tar"
    copy.parent.mkdir()
    path.write_bytes(layout.tar())
    copy.write_bytes(layout.tar())
    brought = {
        "nodes": {HOST: {str(path): {"copy": str(copy)}}},
        "indexes": {str(path): index_archive(str(path)).to_json()},
    }
    images = [{"name": name, "source": "archive", "path": str(path)} for name in wanted]
    played = play(
        engine,
        tmp_path,
        images_list=images,
        images_cache_dir=str(tmp_path / "cache"),
        __images_brought=brought,
    )
    assert played.status == 0, played.output
    assert set(wanted) <= names(engine)
    assert not copy.exists()


def test_image_removed_and_loaded_again_in_one_run(engine: Engine, tmp_path: Path) -> None:
    path = put(tmp_path, "image.tar", MadeImage([layer("again")], ["rdm-test/again:1"]))
    goes = {"images_state": "absent", "images_remove": True}
    played = plays(
        engine,
        tmp_path,
        [{}, {}, goes, {}],
        images_cache_dir=str(tmp_path / "cache"),
        images_list=[{"name": "rdm-test/again:1", "source": "archive", "path": path}],
    )
    assert (played.status, played.changes) == (0, [1, 0, 1, 1]), played.output
    assert "rdm-test/again:1" in names(engine)
    engine.api.delete("/images/rdm-test/again:1")


def test_a_registry_that_does_not_answer(engine: Engine, tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        registry = f"127.0.0.1:{unused.getsockname()[1]}"
        played = play(
            engine, tmp_path, images_list=[{"name": f"{registry}/rdm-test/x:1", "source": "registry"}]
        )
    assert played.status == 2
    file = played.results["rdm.provision.images : Report which image could not be pulled, and why"]["msg"]
    assert file.startswith(f"node1: registry {registry} cannot be reached for {registry}/rdm-test/x:1 (")
    assert file.endswith("let the node reach it, or bring the image as an archive (source: archive).")


# ---- after preflight, which inspects the archives


def provision(engine: Engine, directory: Path, *flags: str, **variables: Any) -> Played:
    return run_plays(
        directory,
        [{"roles": ["rdm.provision.preflight", "rdm.provision.images"]}],
        *flags,
        docker_host=f"unix://{engine.socket}",
        rdm_accelerator="cpu",
        rdm_subnet=f"{net(13)}.0/24",
        network_driver="bridge",
        container_memlock_required=False,
        images_cache_dir=str(directory / "cache"),
        **variables,
    )


def test_bad_archives_are_refused_by_the_plan(engine: Engine, tmp_path: Path) -> None:
    good = put(tmp_path, "good.tar", MadeImage([layer("good")], ["rdm-test/good:1"]))
    (tmp_path / "text.tar").write_text("hello\n")
    entry = {"source": "archive", "name": "rdm-test/good:1", "path": good}
    other = {"source": "archive", "name": "rdm-test/other:1"}
    played = provision(
        engine,
        tmp_path,
        images_list=[
            entry,
            {**other, "path": "text.tar", "remote_src": False},
            {**other, "name": "rdm-test/none:1", "path": f"{tmp_path}/none.tar"},
        ],
        images_min_free_bytes=2**60,
    )
    assert (played.status, played.changes) == (2, [0])
    plan = played.results["rdm.provision.preflight : Check the nodes and write the plan"]
    assert plan["rdm_refused"] == "nodes"
    disk, *archives = sorted(plan["problems"], key=lambda problem: "tar" in problem["value"])
    assert "free, and images need" in disk["reason"]
    assert [(problem["node"], problem["value"], problem["reason"]) for problem in archives] == [
        (
            "node1",
            f"{tmp_path}/text.tar",
            "on the controller is not an image archive, since it is not a tar (truncated header)",
        ),
        ("node1", f"{tmp_path}/none.tar", "does not exist"),
    ]
    assert "rdm-test/good:1" not in names(engine)
    assert not (tmp_path / "address_plan.cfg").exists()


def test_a_disk_without_room_is_refused_by_the_plan(tmp_path: Path) -> None:
    """Either archive of 25 MB fits alone; each temporarily needs twice its size."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "rdm-test", str(disk)], check=True)
    try:
        with private_engine(f"--data-root={disk}/data") as small:
            images = [
                {
                    "name": f"rdm-test/{name}:1",
                    "source": "archive",
                    "path": put(
                        tmp_path, f"{name}.tar", MadeImage([layer(name, 25_000_000)], [f"rdm-test/{name}:1"])
                    ),
                }
                for name in ("one", "two")
            ]
            played = provision(small, tmp_path, images_list=images)
            assert (played.status, played.changes) == (2, [0])
            [problem] = played.results["rdm.provision.preflight : Check the nodes and write the plan"][
                "problems"
            ]
            assert (problem["node"], problem["value"]) == ("node1", f"{disk}/data")
            assert "MiB free, and loading the image archives needs 71.5 MiB" in problem["reason"]
            assert small.api.get("/images/json") == []
            played = provision(small, tmp_path, images_list=images[:1])
            assert (played.status, played.changes) == (0, [2]), played.output
            assert provision(small, tmp_path, images_list=images[:1]).changes == [0]
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_archives_inspected_by_preflight_are_not_inspected_again(engine: Engine, tmp_path: Path) -> None:
    path = put(tmp_path, "image.tar", MadeImage([layer("planned")], ["rdm-test/planned:1"]))
    variables = {"images_list": [{"name": "rdm-test/planned:1", "source": "archive", "path": path}]}
    plan = "rdm.provision.preflight : Check the nodes and write the plan"
    inspections = "rdm.provision.images : Check and inspect what preflight has not"

    played = provision(engine, tmp_path, "--check", **variables)
    assert (played.status, played.changes) == (0, [2]), played.output  # the plan file and the image
    assert played.results[LOAD]["changed"] is True
    assert "rdm-test/planned:1" not in names(engine)

    played = provision(engine, tmp_path, **variables)
    assert (played.status, played.changes) == (0, [2]), played.output
    assert played.results[plan]["nodes"]["node1"]["image"] == "rdm-test/planned:1"

    played = provision(engine, tmp_path, **variables)
    assert (played.status, played.changes) == (0, [0]), played.output
    assert INSPECT in played.results
    assert not {LOAD, inspections} & set(played.results)

    played = provision(engine, tmp_path, preflight_inspect_images=False, **variables)
    assert (played.status, played.changes) == (0, [0]), played.output
    assert {INSPECT, inspections} <= set(played.results)
    engine.api.delete("/images/rdm-test/planned:1")


def test_nodes_that_have_the_same_file_read_it_once(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reads it for all, each of which caches what is in it, and reports a wrong digest."""
    reads = tmp_path / "reads"
    program = tmp_path / "bin" / "zstd"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho >> {reads}\nexec {shutil.which("zstd")} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    image = "rdm-test/read-once:1"
    archive = saved(MadeImage([layer("read once")], [image]))
    path = tmp_path / "image.tar.zst"
    path.write_bytes(subprocess.run(["zstd", "-qc"], input=archive, check=True, capture_output=True).stdout)
    entry = {"name": image, "source": "archive", "path": str(path)}
    others = ("node2", "node3")
    hosts = (HOST, *others)
    variables = {"others": others, "images_cache_dir": f"{tmp_path}/cache/{{{{ inventory_hostname }}}}"}

    reads.write_text("")
    wrong = [{**entry, "sha256": 64 * "0"}]
    played = play(engine, tmp_path, "--check", images_list=wrong, **variables)
    assert played.status == 2
    assert played.output.count(f'"problem": "{path} has sha256') == 3, played.output
    assert reads.read_text() == "\n"

    path.touch()
    reads.write_text("")
    played = play(engine, tmp_path, "--check", images_list=[entry], **variables)
    assert (played.status, played.changes) == (0, [1]), played.output
    assert reads.read_text() == "\n"
    assert all(len(list((tmp_path / "cache" / host).iterdir())) == 1 for host in hosts)


def test_no_archives_and_an_image_that_the_node_has(
    engine: Engine, busybox_image: str, tmp_path: Path
) -> None:
    played = provision(engine, tmp_path, container_image=busybox_image)
    assert (played.status, played.changes) == (0, [1]), played.output
    played = provision(engine, tmp_path, container_image="rdm-test/none:1")
    assert played.status == 2
    assert "container_image rdm-test/none:1 is not on the node, and images_list is empty" in played.output


def test_archives_missing_at_preflight_may_come_from_other_nodes(
    engine: Engine, busybox_image: str, tmp_path: Path
) -> None:
    images = [{"name": name, "source": "registry"} for name in (busybox_image, "rdm-test/none:1")]
    played = provision(engine, tmp_path, "--check", images_list=images, images_distribution="peers")
    assert (played.status, played.changes) == (0, [2]), played.output  # the plan file and the image
    noted = played.results["rdm.provision.images : Note the images of registries that the engine lacks"]
    assert noted["ansible_facts"]["__images_lacking"]["images"] == images[1:]

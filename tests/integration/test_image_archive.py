"""rdm.provision.image_archive with a real engine: what it loads, when, and how it fails."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerError

from tests.image_archives import MadeImage, digest, layer, oci_layout, put, saved, zstd
from tests.integration.engine import Engine, private_engine
from tests.integration.forked import run_forked
from tests.integration.plays import run_plays

ROOT = Path(__file__).resolve().parents[2]
MODULE = "ansible_collections.rdm.provision.plugins.modules.image_archive"
NAME = "rdm-test/loaded:1"


# A small process in between, since memory inherited from a large parent would count.
MEASURE = """
import resource, subprocess, sys
subprocess.run([sys.executable, "-m", sys.argv[1]], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


# Another archive replaces the first between its inspection and its load.
SWAPPED = """
import os, sys
from ansible_collections.rdm.provision.plugins.modules import image_archive
load_chunks, other = image_archive.load_chunks, sys.argv.pop()
def swapped(path, *arguments):
    os.replace(other, path)
    return load_chunks(path, *arguments)
image_archive.load_chunks = swapped
image_archive.main()
"""


class Failed(Exception):  # noqa: N818
    """The module failed; the text is its message."""


def environment(engine: Engine, **more: str) -> dict[str, str]:
    return {**engine.environment, "PYTHONPATH": str(ROOT / ".collections"), **more}


def arguments(directory: Path, check: bool, **options: Any) -> str:
    options = {"cache_dir": str(directory / "cache"), **options}
    return json.dumps({"ANSIBLE_MODULE_ARGS": {**options, "_ansible_check_mode": check}})


def run_over(
    socket_path: Path, engine: Engine, directory: Path, archive: str
) -> subprocess.CompletedProcess[str]:
    """Load an archive through another socket than the engine's."""
    return subprocess.run(
        [sys.executable, "-m", MODULE],
        input=arguments(directory, False, path=archive),
        env=environment(engine, DOCKER_HOST=f"unix://{socket_path}"),
        capture_output=True,
        text=True,
        check=False,
    )


def run(
    engine: Engine, directory: Path, *, check: bool = False, swap: bytes | None = None, **options: Any
) -> dict[str, Any]:
    """Run the module in a separate process, as on a node; `swap` replaces the archive in between."""
    given = arguments(directory, check, **options)
    if swap is None:
        done = run_forked(MODULE, given, environment(engine))
    else:
        done = subprocess.run(
            [sys.executable, "-c", SWAPPED, put(directory, swap, "swapped")],
            input=given,
            env=environment(engine),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.stdout, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    if result.get("failed"):
        assert "Traceback" not in done.stdout + done.stderr
        raise Failed(result["msg"])
    return result


@pytest.fixture
def image() -> MadeImage:
    return MadeImage([layer("one", 3_000_000), layer("two")], [NAME])


@pytest.fixture(autouse=True)
def clean(engine: Engine) -> Iterator[None]:
    """Remove, after each test, every image that it left in the engine."""
    before = {image["Id"] for image in engine.api.get("/images/json")}
    yield
    for image in engine.api.get("/images/json"):
        if image["Id"] not in before:
            engine.api.delete(f"/images/{image['Id']}", force=True)


def image_id(engine: Engine, name: str) -> str:
    """Return the ID of a name; empty if there is none."""
    try:
        return str(engine.api.get(f"/images/{name}/json")["Id"])
    except DockerError as error:
        if error.status == 404:
            return ""
        raise


# ---- what it does


@pytest.mark.parametrize("packing", [bytes, gzip.compress, zstd])
@pytest.mark.parametrize("make", [saved, oci_layout])
def test_check_then_load_then_nothing(
    engine: Engine, tmp_path: Path, image: MadeImage, make: Any, packing: Any
) -> None:
    path = put(tmp_path, packing(make(image)))
    diff = {"before": {NAME: "absent"}, "after": {NAME: image.id}}

    checked = run(engine, tmp_path, path=path, name=NAME, check=True)
    assert (checked["changed"], checked["diff"], checked["actions"]) == (True, diff, [f"load {path}"])
    assert image_id(engine, NAME) == ""

    loaded = run(engine, tmp_path, path=path, name=NAME)
    assert (loaded["changed"], loaded["diff"], loaded["actions"]) == (True, diff, [f"load {path}"])
    assert loaded["images"] == [{"digest": image.id, "tags": [NAME]}]
    assert image_id(engine, NAME) == image.id

    for check in (False, True):
        again = run(engine, tmp_path, path=path, name=NAME, check=check)
        assert (again["changed"], again["actions"]) == (False, [])


def test_an_archive_of_the_engine_itself(engine: Engine, busybox_image: str, tmp_path: Path) -> None:
    path = str(tmp_path / "busybox.tar")
    subprocess.run(["docker", "save", "-o", path, busybox_image], env=engine.environment, check=True)
    assert run(engine, tmp_path, path=path)["changed"] is False


def test_an_archive_of_skopeo(engine: Engine, busybox_image: str, tmp_path: Path) -> None:
    saved_path, path = str(tmp_path / "busybox.tar"), str(tmp_path / "oci.tar")
    subprocess.run(["docker", "save", "-o", saved_path, busybox_image], env=engine.environment, check=True)
    subprocess.run(
        ["skopeo", "copy", "--quiet", f"docker-archive:{saved_path}", f"oci-archive:{path}:{NAME}"],
        check=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert run(engine, tmp_path, path=path)["changed"] is True
    assert image_id(engine, NAME) != ""
    assert run(engine, tmp_path, path=path)["changed"] is False


def test_a_tag_that_points_elsewhere_is_moved(engine: Engine, tmp_path: Path, image: MadeImage) -> None:
    old = MadeImage([layer("old")], [NAME])
    run(engine, tmp_path, path=put(tmp_path, saved(old), "old.tar"))
    result = run(engine, tmp_path, path=put(tmp_path, saved(image)))
    assert result["diff"] == {"before": {NAME: old.id}, "after": {NAME: image.id}}
    assert image_id(engine, NAME) == image.id
    assert image_id(engine, old.id) == old.id, "the other image stays, without the tag"


def test_a_tag_is_all_that_is_missing(engine: Engine, tmp_path: Path, image: MadeImage) -> None:
    path = put(tmp_path, saved(image))
    run(engine, tmp_path, path=path)
    engine.api.post(f"/images/{NAME}/tag", repo="rdm-test/kept", tag="1")
    engine.api.delete(f"/images/{NAME}")
    for check in (True, False):
        assert run(engine, tmp_path, path=path, check=check)["actions"] == [f"tag {NAME}"]
    assert image_id(engine, NAME) == image.id


def test_an_image_without_a_name_is_given_one(engine: Engine, tmp_path: Path, image: MadeImage) -> None:
    image.tags = []
    path = put(tmp_path, saved(image))
    assert run(engine, tmp_path, path=path)["diff"]["after"] == {image.id: image.id}
    assert run(engine, tmp_path, path=path)["changed"] is False
    assert run(engine, tmp_path, path=path, name=NAME)["actions"] == [f"tag {NAME}"]
    assert run(engine, tmp_path, path=path, name=NAME)["changed"] is False


def test_absent_removes_only_this_image(engine: Engine, tmp_path: Path, image: MadeImage) -> None:
    other = MadeImage([layer("other")], [NAME])
    path, other_path = put(tmp_path, gzip.compress(saved(image))), put(tmp_path, saved(other), "other.tar")
    run(engine, tmp_path, path=path)
    assert run(engine, tmp_path, path=other_path, state="absent")["changed"] is False
    gone = run(engine, tmp_path, path=path, state="absent", check=True)
    assert gone["diff"] == {"before": {NAME: image.id}, "after": {NAME: "absent"}}
    assert image_id(engine, NAME) == image.id
    Path(path).unlink()
    assert run(engine, tmp_path, path=path, state="absent")["actions"] == [f"remove {NAME}"]
    assert image_id(engine, NAME) == ""
    assert not (tmp_path / "cache").exists()
    late = run(engine, tmp_path, path=path, state="absent")
    assert late["changed"] is False
    assert "does not exist, so its images cannot be identified" in json.dumps(late["warnings"])


# ---- what it refuses


def test_no_engine(engine: Engine, tmp_path: Path, image: MadeImage) -> None:
    done = run_over(tmp_path / "none.sock", engine, tmp_path, put(tmp_path, saved(image)))
    assert f"no Docker Engine answers at {tmp_path}/none.sock" in json.loads(done.stdout)["msg"]


# ---- inspection


def inspect(engine: Engine, directory: Path, **options: Any) -> dict[str, Any]:
    result = run(engine, directory, state="inspected", **options)
    assert (result["changed"], result["actions"]) == (False, [])
    return {name: result[name] for name in ("problem", "needed", "load", "unpacked", "new_layers")}


@pytest.mark.parametrize("packing", [bytes, gzip.compress])
def test_inspection_reports_needed_images_and_changes_nothing(
    engine: Engine, tmp_path: Path, image: MadeImage, packing: Any
) -> None:
    path = put(tmp_path, packing(saved(image)))
    sizes = dict(zip(image.diff_ids, map(len, image.layers), strict=True))
    for check in (True, False):
        found = inspect(engine, tmp_path, path=path, name=NAME, check=check)
        assert (found["problem"], found["needed"], found["load"]) == ("", True, True)
        assert found["new_layers"] == sizes
        assert found["unpacked"] > sum(sizes.values())
    assert image_id(engine, NAME) == ""

    run(engine, tmp_path, path=path)
    nothing = {"problem": "", "needed": False, "load": False, "unpacked": 0, "new_layers": {}}
    assert inspect(engine, tmp_path, path=path, name=NAME) == nothing

    engine.api.post(f"/images/{NAME}/tag", repo="rdm-test/kept", tag="1")
    engine.api.delete(f"/images/{NAME}")
    assert inspect(engine, tmp_path, path=path, name=NAME) == {**nothing, "needed": True}

    more = MadeImage([*image.layers, layer("more")], ["rdm-test/more:1"])
    found = inspect(engine, tmp_path, path=put(tmp_path, saved(more), "more.tar"))
    assert found["new_layers"] == {more.diff_ids[-1]: len(more.layers[-1])}


def test_inspection_reports_problems_without_failing(
    engine: Engine, tmp_path: Path, image: MadeImage
) -> None:
    data = saved(image)
    short = put(tmp_path, data[: len(data) // 2], "short.tar")
    text = put(tmp_path, b"#!/bin/sh\n", "text.tar")
    whole = put(tmp_path, data, "whole.tar")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"path": f"{tmp_path}/none.tar"}, f"{tmp_path}/none.tar does not exist"),
        ({"path": short}, f"{short} is truncated (it ends in the middle)"),
        ({"path": text}, f"{text} is not an image archive, since it is not a tar (truncated header)"),
        ({"path": whole, "sha256": 64 * "0"}, f"{whole} has sha256 {digest(data)[7:]}, not {64 * '0'}"),
        ({"path": whole, "name": "wrong:1"}, f"{whole} does not hold wrong:1; it holds {NAME}"),
    ]
    for options, problem in cases:
        result = run(engine, tmp_path, state="inspected", **options)
        assert (result["problem"], result["needed"], result["load"]) == (problem, False, False)
        assert result["hint"]


# ---- faults


@contextmanager
def slow_link(engine: Engine, path: Path, limit: int, cut: bool) -> Iterator[threading.Event]:
    """Forward connections to the engine until one has sent `limit` bytes; then cut it, or stop reading.

    The event is set when that has happened.
    """
    reached = threading.Event()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()
    open_sockets = [listener]

    def pass_on(source: socket.socket, sink: socket.socket, upload: bool) -> None:
        count = 0
        try:
            while data := source.recv(65536):
                count += len(data)
                if upload and count > limit:
                    reached.set()
                    if cut:
                        source.shutdown(socket.SHUT_RDWR)
                        sink.shutdown(socket.SHUT_RDWR)
                    return
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def accept() -> None:
        while True:
            try:
                client, _address = listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            server.connect(engine.socket)
            open_sockets.extend((client, server))
            for one, other, upload in ((client, server, True), (server, client, False)):
                threading.Thread(target=pass_on, args=(one, other, upload), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield reached
    finally:
        for one in open_sockets:
            one.close()


@pytest.mark.parametrize("packing", [bytes, zstd])
def test_a_connection_that_breaks_while_loading(
    engine: Engine, tmp_path: Path, image: MadeImage, packing: Any
) -> None:
    path = put(tmp_path, packing(saved(image)))
    link = tmp_path / "link.sock"
    with slow_link(engine, link, 1_000_000, cut=True) as reached:
        done = run_over(link, engine, tmp_path, path)
    assert reached.is_set()
    assert "no Docker Engine answers" in json.loads(done.stdout)["msg"]
    assert "Traceback" not in done.stderr
    assert image_id(engine, NAME) == ""
    assert run(engine, tmp_path, path=path)["changed"] is True
    assert image_id(engine, NAME) == image.id


def test_layers_that_the_engine_has_are_not_sent_again(
    engine: Engine, tmp_path: Path, image: MadeImage
) -> None:
    run(engine, tmp_path, path=put(tmp_path, saved(image)))
    newer = MadeImage([*image.layers, layer("three")], [NAME])
    path = put(tmp_path, saved(newer), "newer.tar")
    link = tmp_path / "link.sock"
    with slow_link(engine, link, 1_000_000, cut=True) as reached:
        done = run_over(link, engine, tmp_path, path)
        assert not reached.is_set(), "the lower layer, of 3 MB, was sent"
    assert json.loads(done.stdout)["actions"] == [f"load {path}"]
    assert image_id(engine, NAME) == newer.id
    kept = tmp_path / "kept.tar"
    subprocess.run(["docker", "save", "-o", kept, NAME], env=engine.environment, check=True)
    with tarfile.open(kept) as archive:
        sizes = sorted(member.size for member in archive if member.name.endswith("layer.tar"))
    assert sizes == sorted(len(one) for one in newer.layers)


@pytest.mark.parametrize("padding", [0, 5_000_000])
@pytest.mark.parametrize("packing", [bytes, gzip.compress, zstd])
def test_an_archive_that_is_swapped_is_not_loaded(
    engine: Engine,
    tmp_path: Path,
    image: MadeImage,
    packing: Any,
    padding: int,
) -> None:
    data = packing(saved(image))
    path = put(tmp_path, data)
    other = MadeImage([layer("evil", 3_000_000)], [NAME, "rdm-test/evil:1"])
    swapped = packing(saved(other) + bytes(padding))
    words = (
        f"{path} has sha256 {digest(swapped)[7:]} while it is loaded, not {digest(data)[7:]}, so none of it"
    )
    with pytest.raises(Failed, match=words):
        run(engine, tmp_path, path=path, sha256=digest(data)[7:], swap=swapped)
    assert [image_id(engine, name) for name in (NAME, "rdm-test/evil:1", other.id)] == ["", "", ""]


def test_loaded_image_that_is_another_one_is_removed(
    engine: Engine, tmp_path: Path, image: MadeImage
) -> None:
    before = MadeImage([layer("before")], [NAME])
    run(engine, tmp_path, path=put(tmp_path, saved(before)))
    path = put(tmp_path, saved(image))
    other = MadeImage([layer("evil")], [NAME, "rdm-test/evil:1"])
    with pytest.raises(Failed, match=f"what it loaded is not image {image.id}: it was removed"):
        run(engine, tmp_path, path=path, swap=saved(other))
    assert [image_id(engine, name) for name in (NAME, "rdm-test/evil:1", other.id)] == [before.id, "", ""]


def test_a_module_killed_while_loading(engine: Engine, tmp_path: Path, image: MadeImage) -> None:
    path = put(tmp_path, zstd(saved(image)))
    link = tmp_path / "link.sock"
    with slow_link(engine, link, 1_000_000, cut=False) as reached:
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(engine, DOCKER_HOST=f"unix://{link}"),
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write(arguments(tmp_path, False, path=path))
        process.stdin.close()
        assert reached.wait(120)
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    assert image_id(engine, NAME) == ""
    assert run(engine, tmp_path, path=path)["changed"] is True
    assert run(engine, tmp_path, path=path)["changed"] is False


def test_a_full_disk(tmp_path: Path) -> None:
    """Classic stores need space for the archive and for its layers: 40 MB fit at first, but not later."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "rdm-test", str(disk)], check=True)
    try:
        with private_engine(f"--data-root={disk}/data") as small:
            hidden = MadeImage([layer("hidden", 70_000_000)], [NAME])  # the size within gzip is unknown
            with pytest.raises(Failed, match=r"which unpacks to .* KiB, filled the disk of the engine"):
                run(small, tmp_path, path=put(tmp_path, oci_layout(hidden)))
            large = MadeImage([layer("large", 40_000_000)], [NAME])
            with pytest.raises(Failed, match=r"image.tar needs 76\.3 MiB for loading, and .* free: free"):
                run(small, tmp_path, path=put(tmp_path, saved(large)))
            assert small.api.get("/images/json") == []
            fits = MadeImage([layer("fits", 1_000_000)], [NAME])
            assert run(small, tmp_path, path=put(tmp_path, saved(fits)))["changed"] is True
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.parametrize("packing", ["tar", "gz", "zst"])
def test_memory_does_not_grow_with_the_image(engine: Engine, tmp_path: Path, packing: str) -> None:
    """A quarter of a gigabyte through a process that may hold 100 MB, Python and Ansible included."""
    path = put(tmp_path, saved(MadeImage([layer("big", 250_000_000)], [NAME])))
    if packing == "gz":
        subprocess.run(["gzip", "-1", path], check=True)
        path += ".gz"
    elif packing == "zst":
        subprocess.run(["zstd", "-1", "-q", "--rm", path], check=True)
        path += ".zst"
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, MODULE],
        input=arguments(tmp_path, False, path=path),
        env=environment(engine),
        capture_output=True,
        text=True,
        check=True,
    )
    assert image_id(engine, NAME) != ""
    assert int(done.stdout) < 100 * 1024, "KiB"


# ---- an archive on the controller


def ansible(engine: Engine, directory: Path, *flags: str, **options: Any) -> dict[str, Any]:
    """Run the action through Ansible on this machine, and return its result.

    Raises:
        Failed: it failed; the text is its message.
    """
    arguments = {"cache_dir": str(directory / "cache"), **options}
    tasks = [{"name": "Act", "rdm.provision.image_archive": arguments}]
    played = run_plays(directory, [{"tasks": tasks}], *flags, docker_host=f"unix://{engine.socket}")
    result = played.results["Act"]
    if result.get("failed"):
        raise Failed(result["msg"])
    return result


def left_over(directory: Path) -> list[Path]:
    # The directory for uploads stays, empty: another node with the same home directory may be using it.
    return [path for path in (directory / "remote").rglob("*") if not path.name.startswith("rdm-uploads-")]


def test_an_archive_on_the_controller(engine: Engine, tmp_path: Path, image: MadeImage) -> None:
    put(tmp_path, zstd(saved(image)), "here.tar.zst")
    options = {"path": "here.tar.zst", "name": NAME, "remote_src": False}
    checked = ansible(engine, tmp_path, "--check", **options)
    assert (checked["changed"], checked["copy_needed"]) == (True, True)
    assert image_id(engine, NAME) == ""
    loaded = ansible(engine, tmp_path, **options)
    assert (loaded["changed"], loaded["copy_needed"]) == (True, False)
    assert image_id(engine, NAME) == image.id
    assert left_over(tmp_path) == []
    assert ansible(engine, tmp_path, **options)["changed"] is False
    assert ansible(engine, tmp_path, state="absent", **options)["changed"] is True
    assert image_id(engine, NAME) == ""


def test_a_copy_goes_away_when_loading_fails(engine: Engine, tmp_path: Path, image: MadeImage) -> None:
    image.layers[1] = b"not a tar" * 100  # only the engine notices that
    put(tmp_path, saved(image), "bad.tar")
    with pytest.raises(Failed, match="Docker Engine refused POST /images/load"):
        ansible(engine, tmp_path, path="bad.tar", remote_src=False)
    assert (tmp_path / "remote").exists()
    assert left_over(tmp_path) == []


def test_an_inspection_of_an_archive_on_the_controller(
    engine: Engine, tmp_path: Path, image: MadeImage
) -> None:
    options = {"path": "here.tar", "name": NAME, "remote_src": False, "state": "inspected"}
    missing = ansible(engine, tmp_path, **options)
    assert missing["problem"] == f"{tmp_path}/here.tar on the controller does not exist"
    assert (missing["changed"], missing["needed"]) == (False, False)
    put(tmp_path, saved(image), "here.tar")
    for flags in ((), ("--check",)):
        found = ansible(engine, tmp_path, *flags, **options)
        assert (found["changed"], found["needed"], found["load"]) == (False, True, True)
    assert image_id(engine, NAME) == ""
    assert left_over(tmp_path) == []
    ansible(engine, tmp_path, **{**options, "state": "present"})
    assert ansible(engine, tmp_path, **options)["needed"] is False


def test_bad_archives_on_the_controller(engine: Engine, tmp_path: Path, image: MadeImage) -> None:
    with pytest.raises(Failed, match=f"{tmp_path}/none.tar on the controller does not exist: put it there"):
        ansible(engine, tmp_path, path="none.tar", remote_src=False)
    put(tmp_path, saved(image)[:2_000_000], "short.tar")
    with pytest.raises(Failed, match=r"/short.tar on the controller is truncated .*: copy it there again"):
        ansible(engine, tmp_path, path="short.tar", remote_src=False)
    put(tmp_path, saved(image), "whole.tar")
    with pytest.raises(Failed, match=r"/whole.tar on the controller has sha256"):
        ansible(engine, tmp_path, path="whole.tar", remote_src=False, sha256=64 * "0")
    gone = ansible(engine, tmp_path, path="none.tar", remote_src=False, state="absent")
    assert gone["changed"] is False

"""The processes of two nodes on this machine, which share a directory, as nodes share a home."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerUnavailable
from ansible_collections.rdm.provision.plugins.module_utils.docker.engine_facts import blob_dir
from ansible_collections.rdm.provision.plugins.module_utils.images import (
    peer_client,
    peer_process,
    peer_server,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_index import index_archive
from ansible_collections.rdm.provision.plugins.module_utils.images.pieces import NOTED, PieceList
from ansible_collections.rdm.provision.plugins.modules import image_peer

from tests.image_archives import MadeImage, layer, saved

HANGS_S = 120


def parameters(tmp_path: Path, **given: Any) -> dict[str, Any]:
    """Return the module's parameters, with its defaults."""
    defaults = {name: option.get("default") for name, option in image_peer.ARGUMENT_SPEC.items()}
    cache_dir = str(tmp_path / "cache")
    return {**defaults, "cache_dir": cache_dir, "token": "of this run", "lease": HANGS_S, **given}


@pytest.fixture(autouse=True)
def long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a machine that stands still for a while from ending processes, or from not answering."""
    monkeypatch.setattr(image_peer, "_ANSWER_S", HANGS_S)
    for name in ("_STOP_S", "_PORT_S", "_KILLED_S"):
        monkeypatch.setattr(peer_process, name, HANGS_S)
    for connections in (peer_client, peer_server):
        monkeypatch.setattr(connections, "QUIET_S", HANGS_S)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "image.tar"
    path.write_bytes(saved(MadeImage([layer("one")], ["test:1"])))
    return path


def serve(archive: Path, key: str = "s", **given: Any) -> dict[str, Any]:
    """Start a source of an archive; return the module's result."""
    more = {"name": "s", "path": str(archive), "network": "127.0.0.0/8", **given}
    return image_peer.source(parameters(archive.parent, key=key, **more))


def test_a_node_fetches_an_archive_and_nothing_is_left_of_its_processes(
    tmp_path: Path, archive: Path
) -> None:
    source = serve(archive)
    at = [source["address"], str(source["port"])]
    there = {"key": "n", "name": "n", "source": at, "digest": source["digest"]}
    path = Path(image_peer.joined(parameters(tmp_path, **there))["path"])
    nodes: dict[str, Any] = {}
    until = time.monotonic() + HANGS_S
    while not nodes.get("n", {}).get("done"):
        assert time.monotonic() < until, nodes
        nodes = image_peer.reported(parameters(tmp_path, key="s", source=at))["nodes"]
    image_peer.stopped(parameters(tmp_path, key="s"))
    ended = image_peer.stopped(parameters(tmp_path, key="n"))
    assert (ended["complete"], ended["error"], ended["path"]) == (True, "", str(path))
    assert path.read_bytes() == archive.read_bytes()
    # What the load removes; the list of pieces is for the case that it fails.
    assert sorted(one.name for one in path.parent.iterdir()) == [path.name, path.name + NOTED]
    with pytest.raises(NodeError, match=r"does not answer at .* .Connection refused."):
        image_peer.reported(parameters(tmp_path, key="s", source=at))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An engine with one image: what it reports of it, and the parts of its archive."""
    made = SimpleNamespace(size=1, root="", parts=[saved(MadeImage([layer("one")], ["test:1"]))])

    def get_stream(path: str) -> Iterator[bytes]:
        assert path == "/images/test:1/get"
        for part in made.parts:
            if isinstance(part, Exception):
                raise part
            yield part

    answers = {
        "/images/test:1/json": lambda: {"Size": made.size},
        "/info": lambda: {"DockerRootDir": made.root},
    }
    api = SimpleNamespace(get=lambda path: answers[path](), get_stream=get_stream)
    monkeypatch.setattr(image_peer, "DockerAPI", lambda **_given: api)
    return made


@pytest.mark.parametrize("killed", [False, True])
def test_an_image_of_the_engine_is_saved_while_it_is_served(
    tmp_path: Path, engine: SimpleNamespace, killed: bool
) -> None:
    there = parameters(tmp_path, key="s", name="s", image="test:1", network="127.0.0.0/8")
    source = image_peer.source(there)
    assert [one["tags"] for one in source["index"]["images"]] == [["test:1"]]
    (archive,) = (tmp_path / "cache" / "peers").glob("*.tar")
    assert archive.read_bytes() == engine.parts[0]
    assert archive.stat().st_mode & 0o077 == 0
    if killed:
        os.kill(int(peer_process.held_by(str(archive.with_suffix("")))[0]), signal.SIGKILL)
    image_peer.stopped(there)
    assert not list(archive.parent.iterdir())


@pytest.mark.parametrize(
    ("changes", "problem", "says"),
    [
        ({"size": 1 << 60}, NodeError, r"saving it needs 1048576.0 TiB, and .*/peers has .* free"),
        ({"parts": [b"half", DockerUnavailable("no engine")]}, DockerUnavailable, "no engine"),
        ({"parts": [OSError(28, "No space left")]}, OSError, r"No space left: '.*/peers/s.tar'"),
        ({"parts": [b"no tar"]}, NodeError, "is not an image archive"),
    ],
)
def test_of_an_image_that_cannot_be_saved_nothing_is_left(
    tmp_path: Path, engine: SimpleNamespace, changes: dict[str, Any], problem: type[Exception], says: str
) -> None:
    vars(engine).update(changes)
    with pytest.raises(problem, match=says):
        image_peer.source(parameters(tmp_path, key="s", name="s", image="test:1", network="127.0.0.0/8"))
    assert not [one for one in (tmp_path / "cache" / "peers").iterdir() if one.suffix != ".lock"]


def test_the_engine_has_room_for_its_own_copy_of_an_image_that_is_saved(
    tmp_path: Path, engine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.size, engine.root = 2 << 20, str(tmp_path)
    monkeypatch.setattr(image_peer, "disk", lambda _path: {"free": 3 << 20})
    there = parameters(tmp_path, key="s", name="s", image="test:1", network="127.0.0.0/8")
    with pytest.raises(NodeError, match=r"saving it needs 4\.0 MiB, and .*/peers has 3\.0 MiB free"):
        image_peer.source(there)
    engine.root = "/proc"
    monkeypatch.setattr(image_peer, "disk", lambda path: {"free": 1 if path == "/proc" else 3 << 20})
    with pytest.raises(NodeError, match=r"/proc has 1 B free: free some space there$"):
        image_peer.source(there)


@pytest.mark.parametrize("room", [True, False])
def test_a_source_decompresses_an_archive_if_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    plain = saved(MadeImage([layer("one", 3_000_000)], ["test:1"]))
    archive = tmp_path / "image.tar.gz"
    archive.write_bytes(gzip.compress(plain))
    monkeypatch.setattr(image_peer, "disk", lambda _path: {"free": 2 * len(plain) if room else len(plain)})
    source = serve(archive, unpack=True)
    assert source["index"]["compression"] == ("plain" if room else "gzip")
    image_peer.stopped(parameters(tmp_path, key="s"))
    copies = [path for path in (tmp_path / "cache" / "peers").iterdir() if path.suffix == ".tar"]
    assert [str(path) for path in copies] == ([source["path"]] if room else [])
    assert [path.read_bytes() for path in copies] == ([plain] if room else [])
    assert all(path.stat().st_mode & 0o077 == 0 for path in copies)


def test_of_an_archive_that_changes_while_it_is_decompressed_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "image.tar.gz"
    archive.write_bytes(gzip.compress(saved(MadeImage([layer("one")], ["test:1"]))))
    index = index_archive(str(archive))._replace(sha256=64 * "0")
    monkeypatch.setattr(image_peer, "cached_index", lambda *_arguments: index)
    with pytest.raises(NodeError, match="was changed while it was read"):
        serve(archive, unpack=True)
    assert not list((tmp_path / "cache" / "peers").glob("*.tar"))


def test_a_node_leaves_out_the_layers_that_its_engine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "image.tar"
    archive.write_bytes(saved(MadeImage([layer("base"), layer("top")], ["test:1"])))
    index = index_archive(str(archive))
    (image,) = index.images
    answers = {
        "/images/json": [{"Id": "sha256:1"}],
        "/images/sha256:1/json": {"RootFS": {"Layers": image.diff_ids[:1]}},
        "/info": {},
    }
    version = {"Arch": image.architecture}
    api = SimpleNamespace(get=answers.__getitem__, version=lambda: version, podman="")
    monkeypatch.setattr(image_peer, "DockerAPI", lambda: api)
    assert image_peer.left_out_of(index.to_json()) == (image.layer_paths[0],)
    api.podman = "4.3.1"
    assert image_peer.left_out_of(index.to_json()) == (), "it refuses an archive without a layer"
    api.podman = ""

    def silent() -> dict[str, Any]:
        raise DockerUnavailable("no engine")

    api.version = silent
    assert image_peer.left_out_of(index.to_json()) == ()


def test_a_node_copies_the_layers_that_containerd_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = MadeImage([layer("base", 3_000_000), layer("top")], ["test:1"])
    archive = tmp_path / "image.tar"
    archive.write_bytes(saved(made))
    source = serve(archive)
    info = {"DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]], "DockerRootDir": str(tmp_path)}
    blobs = Path(blob_dir(info))
    blobs.mkdir(parents=True)
    (blobs / made.diff_ids[0].removeprefix("sha256:")).write_bytes(made.layers[0])
    at = [source["address"], str(source["port"])]
    there = parameters(tmp_path, key="n", name="n", source=at, digest=source["digest"])
    found: list[Any] = [info, DockerUnavailable("no engine")]

    def get(_path: str) -> Any:
        if isinstance(one := found.pop(0), Exception):
            raise one
        return one

    monkeypatch.setattr(image_peer, "DockerAPI", lambda **_given: SimpleNamespace(get=get))
    assert 2_000_000 < image_peer.joined(there)["stored"] < 3_000_000
    assert image_peer.joined(there)["stored"] == 0, "the engine does not answer"
    for key in ("s", "n"):
        image_peer.stopped(parameters(tmp_path, key=key))


def test_run_does_not_end_processes_of_its_successor(tmp_path: Path, archive: Path) -> None:
    serve(archive)
    later = serve(archive, token="of a later run")
    at = [later["address"], str(later["port"])]
    with pytest.raises(NodeError, match="another run has taken it over"):
        image_peer.reported(parameters(tmp_path, key="s", source=at))
    node = {"key": "n", "name": "n", "source": at, "digest": later["digest"], "token": "of a later run"}
    image_peer.joined(parameters(tmp_path, **node))
    with pytest.raises(NodeError, match="another run has taken it over"):
        image_peer.joined(parameters(tmp_path, **{**node, "token": "of this run"}))
    for key in ("s", "n"):
        ended = image_peer.stopped(parameters(tmp_path, key=key))
        assert (ended["complete"], ended["problem"]) == (False, "another run has taken it over")
    ended = image_peer.stopped(parameters(tmp_path, key="n", token="of a later run"))
    assert ended["problem"] == "", "its process was ended"
    # Its source still answers, whether or not the node has fetched anything.
    image_peer.reported(parameters(tmp_path, key="s", source=at, token="of a later run"))
    image_peer.stopped(parameters(tmp_path, key="s", token="of a later run"))
    with pytest.raises(NodeError, match="does not answer"):
        image_peer.reported(parameters(tmp_path, key="s", source=at, token="of a later run"))


def test_rest_of_earlier_runs_is_removed(tmp_path: Path, archive: Path) -> None:
    image_peer.absent(parameters(tmp_path, key="n"))
    assert not (tmp_path / "cache").exists()
    at = serve(archive)
    node = {"key": "n", "name": "n", "source": [at["address"], str(at["port"])], "digest": at["digest"]}
    image_peer.joined(parameters(tmp_path, **node))
    peers = tmp_path / "cache" / "peers"
    assert {"n.tar", "n.lock"} <= {path.name for path in peers.iterdir()}
    for key in ("n", "s"):
        image_peer.absent(parameters(tmp_path, key=key, token="of a later run"))
    assert not list(peers.iterdir())


def test_a_process_that_cannot_start_says_why_and_leaves_nothing(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Path(image_peer.base_path(parameters(tmp_path, key="old")) + ".lock")
    old.write_text("1 of another run")
    there = {"key": "n", "name": "n", "source": ["127.0.0.1", "1"], "digest": "d"}
    with pytest.raises(NodeError, match=r"does not answer at 127.0.0.1:1 .Connection refused."):
        image_peer.joined(parameters(tmp_path, **there))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        began = time.monotonic()
        with pytest.raises(
            NodeError, match=f"another program listens on .*:{port}: end it, or set images_port"
        ):
            serve(archive, port=port)
        assert time.monotonic() - began < HANGS_S / 2, "it is no process of an earlier run"
    old.unlink()
    with pytest.raises(NodeError, match="port must be 0-65535"):
        serve(archive, port=99999)
    with pytest.raises(NodeError, match=r"no address in images_network 203.0.113.0/24"):
        serve(archive, network="203.0.113.0/24")
    assert not list((tmp_path / "cache" / "peers").iterdir())


def test_a_port_is_waited_for_as_long_as_a_killed_run_keeps_it(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_process, "_PORT_S", 3)
    killed = serve(archive, "a", lease=5)
    later = serve(archive, "b", port=killed["port"], lease=HANGS_S)
    assert later["port"] == killed["port"]
    image_peer.stopped(parameters(tmp_path, key="b"))


def test_a_file_that_cannot_be_served_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_peer, "START_S", 1)
    pieces = PieceList(3, 2, ["a", "b"], {})
    given = {"path": str(tmp_path / "upload"), "pieces": pieces.encoded().decode(), "digest": pieces.digest}
    with pytest.raises(NodeError, match=f"{tmp_path}/upload: No such file"):
        image_peer.source(parameters(tmp_path, key="s", name="s", network="127.0.0.0/8", **given))


def test_a_node_that_becomes_the_source_keeps_nothing_that_it_has_fetched_before(
    tmp_path: Path, archive: Path
) -> None:
    base = image_peer.base_path(parameters(tmp_path, key="s"))
    for left in (".tar", ".tar" + NOTED):
        Path(base + left).touch()
    old = Path(base).with_name("old.tar")
    old.touch()
    os.utime(old, (0, 0))
    serve(archive)
    image_peer.stopped(parameters(tmp_path, key="s"))
    assert not list(old.parent.iterdir())


def test_a_source_of_a_killed_run_that_still_reads_its_archive_is_ended(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_end, write_end = os.pipe()

    def hangs(*_given: Any) -> None:
        os.write(write_end, b"x")
        time.sleep(HANGS_S)

    process = os.fork()
    if process == 0:
        with contextlib.suppress(BaseException):
            monkeypatch.setattr(image_peer, "read_pieces", hangs)
            serve(archive, token="of the killed run")
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as begun:
        assert begun.read(1) == b"x"
    source = serve(archive)
    assert os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGTERM
    at = [source["address"], str(source["port"])]
    assert image_peer.reported(parameters(tmp_path, key="s", source=at))["nodes"] == {}
    image_peer.stopped(parameters(tmp_path, key="s"))
    assert not list((tmp_path / "cache" / "peers").iterdir())


def test_a_paused_process_is_ended(tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_process, "_STOP_S", 0.3)
    serve(archive)
    base = image_peer.base_path(parameters(tmp_path, key="s"))
    process = int(peer_process.held_by(base)[0])
    os.kill(process, signal.SIGSTOP)
    ended = image_peer.stopped(parameters(tmp_path, key="s"))
    assert (ended["complete"], ended["problem"]) == (False, "it has not taken part")
    assert not list(Path(base).parent.iterdir())
    until = time.monotonic() + HANGS_S
    with contextlib.suppress(OSError):
        while Path(f"/proc/{process}/cmdline").read_bytes():  # empty once it has ended
            assert time.monotonic() < until, "its process is left"
            time.sleep(0.05)


def test_a_process_that_does_not_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_process, "_STOP_S", 0.2)
    monkeypatch.setattr(peer_process, "_KILLED_S", 0.2)
    base = image_peer.base_path(parameters(tmp_path, key="n"))
    with Path(base + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(NodeError, match=r"process .* does not end"):
            peer_process.end_other(base)


def test_a_file_system_that_does_not_lock_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_arguments: Any) -> None:
        raise OSError(37, os.strerror(37))

    monkeypatch.setattr(fcntl, "flock", refused)
    base = image_peer.base_path(parameters(tmp_path, key="n"))
    with pytest.raises(OSError, match="No locks available") as problem:
        peer_process.end_other(base)
    assert problem.value.filename == base + ".lock"


@pytest.mark.parametrize("planted", ["a link", "writable by all"])
def test_a_directory_that_others_can_write_to_is_not_used(tmp_path: Path, planted: str) -> None:
    (tmp_path / "cache").mkdir()
    directory = tmp_path / "cache" / "peers"
    if planted == "a link":
        (tmp_path / "elsewhere").mkdir()
        directory.symlink_to(tmp_path / "elsewhere")
    else:
        directory.mkdir()
        directory.chmod(0o777)
    with pytest.raises(NodeError, match=f"{directory} must be a directory that only its user"):
        image_peer.base_path(parameters(tmp_path, key="n"))


@pytest.mark.parametrize(("mode", "used"), [(0o755, True), (0o1777, True), (0o777, False), (0o775, False)])
def test_a_cache_in_which_others_can_rename_files_is_not_used(tmp_path: Path, mode: int, used: bool) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(mode)
    if used:
        assert image_peer.base_path(parameters(tmp_path, key="n")) == f"{cache}/peers/n"
        return
    why = f"{cache} must be a directory that only its user .* set images_cache_dir to another directory"
    with pytest.raises(NodeError, match=why):
        image_peer.base_path(parameters(tmp_path, key="n"))
    assert not list(cache.iterdir())


@pytest.mark.parametrize("below", ["", "/peers"])
def test_a_cache_that_is_a_file_is_named(tmp_path: Path, below: str) -> None:
    path = tmp_path / f"cache{below}"
    path.parent.mkdir(exist_ok=True)
    path.touch()
    with pytest.raises(NodeError, match=f"^{path} is not a directory: remove it, or set images_cache_dir"):
        image_peer.base_path(parameters(tmp_path, key="n"))


@pytest.mark.parametrize("link", [False, True])
def test_a_cache_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: bool
) -> None:
    """Another user has made the directory, or a link to one of this user."""
    path = tmp_path / "cache"
    (tmp_path / "own").mkdir()
    path.symlink_to(tmp_path / "own") if link else path.mkdir()
    lstat, own = os.lstat, os.geteuid()
    other = os.stat_result([0o40755, 0, 0, 1, own + 1, 0, 0, 0, 0, 0])
    monkeypatch.setattr(os, "lstat", lambda at: other if at == str(path) else lstat(at))
    with pytest.raises(NodeError, match=f"{path} belongs to user {own + 1} and not to {own}: remove"):
        image_peer.base_path(parameters(tmp_path, key="n"))


def test_a_file_system_that_maps_root_to_another_user_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = os.geteuid()
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    path = f"{tmp_path}/cache/peers" if own == 0 else f"{tmp_path}/cache"
    why = f"{path} belongs to user {own} and not to {own + 1}: .* set images_cache_dir to a local"
    with pytest.raises(NodeError, match=why):
        image_peer.base_path(parameters(tmp_path, key="n"))

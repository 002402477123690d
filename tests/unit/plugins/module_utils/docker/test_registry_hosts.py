from __future__ import annotations

import stat
import tomllib
from pathlib import Path
from typing import Any, cast

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.docker import registry_hosts
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI
from ansible_collections.rdm.provision.plugins.module_utils.docker.registry_hosts import marker, unsupported

SOCKET = "/srv/docker.sock"
HARBOR = "nvcr.io=https://harbor.example.com/nvcr"
PLAIN = "nvcr.io=http://cache:5000"
TEXT = f"""\
{marker(SOCKET)}
# images_mirror: {HARBOR}
# images_mirror: {PLAIN}

[host."https://harbor.example.com/v2/nvcr"]
  capabilities = ["pull", "resolve"]
  override_path = true

[host."http://cache:5000"]
  capabilities = ["pull", "resolve"]
"""


class Engine:
    """A Docker Engine's version and image store."""

    def __init__(
        self, version: str = "28.0.0", driver: str = "io.containerd.snapshotter.v1", socket: str = SOCKET
    ) -> None:
        self.socket = socket
        self.found = {"Version": version}
        self.info = {"DriverStatus": [["driver-type", driver]]}

    def version(self) -> dict[str, Any]:
        return self.found

    def get(self, path: str) -> dict[str, Any]:
        assert path == "/info"
        return self.info


def configure(root: Path, *mirrors: str, change: bool = True, engine: Engine | None = None) -> dict[str, Any]:
    api = cast(DockerAPI, engine or Engine())
    return registry_hosts.configure(api, mirrors, change, str(root))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file of nvcr.io."""
    return tmp_path / "nvcr.io" / "hosts.toml"


def test_file_of_each_registry_is_written_once_and_removed(tmp_path: Path, file: Path) -> None:
    wanted = ["http://hub-cache:5000", HARBOR, PLAIN, f"{PLAIN}/", "ghcr.io=https://cache:5001"]
    assert configure(tmp_path, *wanted, change=False)["changed"]
    assert not list(tmp_path.iterdir())

    result = configure(tmp_path, *wanted)
    assert result["after"] == [HARBOR, PLAIN, "ghcr.io=https://cache:5001"]
    assert result["diffs"][0] == {
        "before_header": str(file),
        "after_header": str(file),
        "before": "",
        "after": TEXT,
    }
    assert file.read_text() == TEXT
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert sorted(registry_hosts.entries(registry_hosts.own_files(SOCKET, str(tmp_path)).values())) == sorted(
        result["after"]
    )
    assert configure(tmp_path, *wanted) == {"changed": False, "after": result["after"], "diffs": []}

    result = configure(tmp_path, PLAIN)
    assert [diff["after_header"].split("/")[-2] for diff in result["diffs"]] == ["nvcr.io", "ghcr.io"]
    assert [one.name for one in tmp_path.iterdir()] == ["nvcr.io"]
    assert configure(tmp_path, engine=Engine("20.10.24"))["changed"], "whatever the engine is now"
    assert not list(tmp_path.iterdir())
    assert not configure(tmp_path)["changed"]


def test_the_text_is_toml_with_the_certificates_of_both(tmp_path: Path, file: Path) -> None:
    mirror = tmp_path / "harbor.example.com"
    for directory in (file.parent, mirror):
        directory.mkdir()
        for name in ("ca.crt", "client.cert", "client.key", "notes.txt"):
            (directory / name).touch()

    def certificates(directory: Path) -> dict[str, Any]:
        pair = [str(directory / "client.cert"), str(directory / "client.key")]
        return {"ca": [str(directory / "ca.crt")], "client": [pair]}

    configure(tmp_path, HARBOR, PLAIN)
    may = {"capabilities": ["pull", "resolve"]}
    assert tomllib.loads(file.read_text()) == {
        **certificates(file.parent),
        "host": {
            "https://harbor.example.com/v2/nvcr": {**may, "override_path": True, **certificates(mirror)},
            "http://cache:5000": may,
        },
    }
    configure(tmp_path)
    assert not file.exists()
    assert (file.parent / "ca.crt").exists()


def test_a_file_of_others_is_never_changed(tmp_path: Path, file: Path) -> None:
    file.parent.mkdir()
    file.write_text('server = "https://elsewhere"\n')
    assert registry_hosts.foreign_files(SOCKET, [HARBOR, "http://hub", "../x=http://y"], str(tmp_path)) == {
        "nvcr.io": str(file)
    }
    with pytest.raises(NodeError, match="was not written by rdm-provision for this engine") as refused:
        configure(tmp_path, "ghcr.io=http://cache", HARBOR)
    assert refused.value.hint == "name the mirror in it, or remove the file"
    assert not configure(tmp_path, "http://hub")["changed"]
    assert file.read_text() == 'server = "https://elsewhere"\n'
    assert [one.name for one in tmp_path.iterdir()] == ["nvcr.io"]


def test_file_of_another_engine_is_foreign(tmp_path: Path, file: Path) -> None:
    configure(tmp_path, HARBOR, engine=Engine(socket="/srv/other.sock"))
    text = file.read_text()
    assert not configure(tmp_path)["changed"]
    with pytest.raises(NodeError):
        configure(tmp_path, HARBOR)
    assert file.read_text() == text


def test_changed_or_removed_files_count_as_missing(tmp_path: Path, file: Path) -> None:
    root = str(tmp_path)
    assert registry_hosts.lacking(SOCKET, ["http://hub", HARBOR], root) == [HARBOR]
    configure(tmp_path, HARBOR)
    assert registry_hosts.lacking(SOCKET, [HARBOR], root) == []
    file.write_text(file.read_text() + "# more\n")
    assert registry_hosts.lacking(SOCKET, [HARBOR], root) == [HARBOR]
    assert configure(tmp_path, HARBOR)["changed"]
    (file.parent / "ca.crt").touch()
    assert registry_hosts.lacking(SOCKET, [HARBOR], root) == [HARBOR]


def test_the_first_directory_that_the_engine_looks_into(tmp_path: Path) -> None:
    wanted = "registry.example.com:5000=http://cache"
    configure(tmp_path, wanted)
    assert [one.name for one in tmp_path.iterdir()] == ["registry.example.com:5000"]
    first = tmp_path / "registry.example.com_5000_"
    first.mkdir()
    assert registry_hosts.lacking(SOCKET, [wanted], str(tmp_path)) == [wanted]
    configure(tmp_path, wanted)
    assert [one.name for one in tmp_path.iterdir()] == [first.name]


@pytest.mark.parametrize("mirror", ["../x=http://cache", "nvcr.io=cache:5000", "nvcr.io=http://cache/v2"])
def test_wrong_entries(tmp_path: Path, mirror: str) -> None:
    assert registry_hosts.wanted_files(SOCKET, [mirror], str(tmp_path)) == {}
    with pytest.raises(NodeError, match="is not a mirror"):
        configure(tmp_path, mirror)


def test_engines_that_do_not_read_the_files(tmp_path: Path) -> None:
    assert unsupported("28.0.0", "containerd", ["seccomp"]) == ""
    assert unsupported("28.5.2+dfsg1", "containerd", []) == ""
    assert unsupported("29.1", "containerd", ["rootless"]).endswith("and the node's is rootless")
    needs = "needs Docker Engine 28.0 or newer with the containerd image store"
    words = needs + ", and the node has {0} with the {1} one"
    assert unsupported("27.5.1", "containerd", []) == words.format("27.5.1", "containerd")
    assert unsupported("29.1.0", "classic", []) == words.format("29.1.0", "classic")
    with pytest.raises(NodeError) as refused:
        configure(tmp_path, HARBOR, engine=Engine(driver="overlay2"))
    assert refused.value.sentence == (
        f"images_mirror {HARBOR} {words.format('28.0.0', 'classic')}: write the mirror into the image's name"
    )
    assert not list(tmp_path.iterdir())

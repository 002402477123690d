"""A node's virtual environment: a real one, with two packages that are built here."""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from ansible.module_utils import basic
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.python_env import apex, base_python, environment
from ansible_collections.rdm.provision.plugins.module_utils.python_env.environment import (
    Sources,
    Wanted,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.python_env.lock import find_uv

from tests.unit.plugins.modules.running import Failed, run_module

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
# The output of pyenv 2.6.30 without a compiler.
FAILED_BUILD = """\
BUILD FAILED (Debian 12 using python-build 2.6.30)

Inspect or clean up the working tree at /tmp/python-build.20261123011502.11937
Results logged to /tmp/python-build.20261123011502.11937.log

Last 10 log lines:
checking whether the C compiler works... no
configure: error: in `/tmp/python-build.20261123011502.11937/Python-3.13.5':
configure: error: C compiler cannot create executables
See `config.log' for more details
"""


def wheel(folder: Path, name: str, version: str = "1.0") -> Path:
    """Write a wheel with one module, and a program of the same name."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    files = {
        f"{module}.py": "def main():\n    print('it runs')\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {module}:main\n",
    }
    lines = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(text)}")
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,"]) + "\n"
    folder.mkdir(exist_ok=True)
    target = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return target


class Node:
    """A node with a directory of packages and no index."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.directory = str(home / "env")
        self.package = wheel(home / "packages", "helper")
        self.trainer = wheel(home / "trainer", "rdm-trainer")
        digest = hashlib.sha256(self.package.read_bytes()).hexdigest()
        self.lock = f"helper==1.0 \\\n    --hash=sha256:{digest}\n"
        # As pyenv keeps one that it has built.
        (home / "pyenv" / "versions").mkdir(parents=True)
        (home / "pyenv" / "versions" / platform.python_version()).symlink_to(sys.base_prefix)
        self.sources = Sources(
            no_index=True,
            find_links=[str(home / "packages")],
            cache=str(home / "cache"),
            pyenv_root=str(home / "pyenv"),
        )

    def wanted(self, method: str = "uv", lock: str = "", cluster: str = "c") -> Wanted:
        return Wanted(cluster, method, PYTHON, lock or self.lock, "rdm_trainer-1.0")

    def make(self, wanted: Wanted) -> None:
        environment.make(self.directory, wanted, self.sources, str(self.trainer), find_uv())

    def options(self, state: str = "present") -> dict[str, object]:
        wanted = self.wanted()
        return {
            "state": state,
            "cluster": wanted.cluster,
            "directory": self.directory,
            "method": wanted.method,
            "python": wanted.python,
            "lock": wanted.lock,
            "program": wanted.program,
            "no_index": True,
            "find_links": self.sources.find_links,
            "cache": self.sources.cache,
        }


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def assert_whole(node: Node, wanted: Wanted) -> None:
    """Assert that the environment holds what the lock names, and the trainer, whose program runs."""
    assert environment.drift(node.directory, wanted) == ""
    output = subprocess.run([f"{node.directory}/bin/rdm-trainer"], capture_output=True, text=True, check=True)
    assert output.stdout == "it runs\n"
    state = environment.state_of(node.directory)
    assert state["python"].startswith(PYTHON)
    assert {"helper-1.0", "rdm_trainer-1.0"} <= set(state["packages"])


# That of system, whose venv takes five processor seconds, is below: with apex, and from a mirror.
@pytest.mark.parametrize("method", ["pyenv", "uv"])
def test_environment_has_the_locked_packages_and_the_trainer(node: Node, method: str) -> None:
    wanted = node.wanted(method)
    assert environment.drift(node.directory, wanted) == "there is none"
    node.make(wanted)
    assert_whole(node, wanted)


# With pyenv, the same pip verifies them as with system.
@pytest.mark.parametrize("method", ["system", "uv"])
def test_a_package_with_another_digest_is_refused_and_not_replaced(node: Node, method: str) -> None:
    node.make(node.wanted())
    forged = node.wanted(method, node.lock.replace("sha256:", "sha256:0000")[:-5] + "\n")
    with pytest.raises(NodeError, match="could not install the packages: "):
        node.make(forged)
    assert environment.drift(node.directory, node.wanted()) == ""
    # An incomplete environment may be recreated.
    assert not environment.state_of(environment.version_path(node.directory, forged))["whole"]


def test_environment_of_a_running_job_is_not_removed(node: Node) -> None:
    node.make(node.wanted())
    old = os.path.realpath(node.directory)
    with subprocess.Popen([f"{old}/bin/python", "-c", "input()"], stdin=subprocess.PIPE) as job:
        node.make(node.wanted(lock="# newer\n" + node.lock))
        assert Path(old).exists()
        with pytest.raises(NodeError, match=rf"is in use by process {job.pid}: stop the job first"):
            environment.remove(node.directory, "c")
        job.communicate(b"\n")
    assert len(environment.remove(node.directory, "c")) == 2
    assert not os.path.lexists(node.directory)


def test_shared_environment_that_other_nodes_may_use_is_not_removed(node: Node) -> None:
    def make(line: str, protect: list[str] | None) -> str:
        wanted = node.wanted(lock=f"# {line}\n{node.lock}")
        environment.make(node.directory, wanted, node.sources, str(node.trainer), find_uv(), protect)
        return os.path.realpath(node.directory)

    first = make("1", [])
    second = make("2", [first])
    assert Path(first).exists(), "a job of another node runs from it"
    with pytest.raises(NodeError, match="is in use and has to be recreated: stop its jobs first"):
        make("1", [first])
    third = make("3", None)
    assert Path(first).exists(), "another node may use it"
    assert Path(second).exists()
    assert environment.mine(node.directory, "c") == sorted([first, second, third])
    fourth = make("4", [])
    assert environment.mine(node.directory, "c") == [fourth]


def test_files_of_another_user_are_named_and_the_rest_is_removed_later(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.make(node.wanted())
    directory = os.path.realpath(node.directory)

    def denied(path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "root.pyc")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", denied)
        message = rf"{directory} cannot be removed: Permission denied \(root\.pyc\): remove what another user"
        with pytest.raises(NodeError, match=message):
            environment.remove(node.directory, "c")
    assert environment.remove(node.directory, "c") == [directory]
    assert not Path(directory).exists()


def test_drift_of_packages_and_programs_is_seen(node: Node) -> None:
    node.make(node.wanted())
    site = next(Path(node.directory, "lib").glob("python*/site-packages"))
    (site / "more-1.0.dist-info").mkdir()
    assert environment.drift(node.directory, node.wanted()) == "its packages differ"
    Path(node.directory, "bin", "rdm-trainer").unlink()
    assert environment.drift(node.directory, node.wanted()) == "its programs are gone"
    node.make(node.wanted())
    assert environment.drift(node.directory, node.wanted()) == ""


def test_foreign_files_stay(node: Node) -> None:
    Path(node.directory).mkdir()
    with pytest.raises(NodeError, match="was not made by rdm-provision: remove it, or set"):
        environment.drift(node.directory, node.wanted())
    assert environment.remove(node.directory, "c") == []
    assert Path(node.directory).is_dir()
    Path(node.directory).rmdir()
    node.make(node.wanted(cluster="other"))
    assert environment.remove(node.directory, "c") == []
    with pytest.raises(NodeError, match="belongs to the cluster other"):
        environment.drift(node.directory, node.wanted())


def test_a_python_that_is_not_there_is_one_sentence(node: Node) -> None:
    with pytest.raises(NodeError, match=r"there is no Python 3\.99 on the node: install it, or choose"):
        node.make(node.wanted("system")._replace(python="3.99"))


def test_pyenv_takes_the_newest_python_of_a_version_that_it_has(tmp_path: Path) -> None:
    for version in ("3.11.9", "3.11.10", "3.12.1", "3.11.10-debug", "3.110.1"):
        python = tmp_path / "versions" / version / "bin" / "python3"
        python.parent.mkdir(parents=True)
        python.symlink_to(sys.executable)
    root = str(tmp_path)
    assert base_python.pyenv_python(root, "3.11") == f"{root}/versions/3.11.10/bin/python3"
    assert base_python.pyenv_python(root, "3.11.9") == f"{root}/versions/3.11.9/bin/python3"
    assert base_python.pyenv_python(root, "3.13") is None


def test_a_python_that_cannot_be_built_is_the_end_of_its_log(node: Node) -> None:
    """With a stand-in that prints what a real pyenv printed; `make test-long` runs a real one."""
    pyenv = Path(node.sources.pyenv_root, "bin", "pyenv")
    pyenv.parent.mkdir()
    pyenv.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{FAILED_BUILD}END\nexit 1\n")
    pyenv.chmod(0o755)
    with pytest.raises(NodeError) as caught:
        node.make(node.wanted("pyenv")._replace(python="3.99.1"))
    assert str(caught.value).startswith("pyenv could not build Python 3.99.1: ")
    assert "configure: error: C compiler cannot create executables" in str(caught.value)
    assert str(caught.value).endswith("(all of it is in /tmp/python-build.20261123011502.11937.log)")


def test_nodes_that_share_pyenv_build_one_after_the_other(tmp_path: Path) -> None:
    """With a stand-in for pyenv that waits when a Python is half built, and cannot start twice."""
    pyenv = tmp_path / "bin" / "pyenv"
    pyenv.parent.mkdir()
    directory = tmp_path / "versions" / "3.99.1" / "bin"
    half, go = tmp_path / "half", tmp_path / "go"
    os.mkfifo(half)
    os.mkfifo(go)
    pyenv.write_text(
        f"#!/bin/sh\nset -e\nmkdir -p {directory}\nln -s /bin/false {directory}/python3\n"
        f"echo > {half}\nread line < {go}\nln -sf {sys.executable} {directory}/python3\n"
    )
    pyenv.chmod(0o755)
    with ThreadPoolExecutor() as pool:
        nodes = [pool.submit(base_python.build_python, str(tmp_path), "3.99", os.environ) for _ in range(2)]
        half.read_text()
        early = [node.done() for node in nodes]
        go.write_text("\n")
        assert early == [False, False]
        assert [node.result() for node in nodes] == [f"{directory}/python3"] * 2


@pytest.mark.parametrize(
    ("lines", "begins", "ends"),
    [
        # uv's chain of causes, and pip's error with much output after it.
        (["before", "error: no", *["cause"] * 300, "end"], "error: no cause", "cause end"),
        (["before", "ERROR: no", "x" * 2000, "end"], "ERROR: no xxx", "xxx end"),
        (["x" * 2000, "error: no", "end"], "error: no end", "error: no end"),
        (["y" * 2000, "a", "b", "c", "d"], "a b c d", "a b c d"),
        (["y" * 2000 + "end"], "yyy", "yend"),
    ],
)
def test_shortened_output_keeps_the_error(lines: list[str], begins: str, ends: str) -> None:
    script = "import sys; sys.exit('\\n'.join(sys.argv[1:]))"
    with pytest.raises(NodeError) as problem:
        base_python.run_program([sys.executable, "-c", script, *lines], "do it", {})
    message = str(problem.value).partition(" could not do it: ")[2]
    assert message.startswith(begins)
    assert message.endswith(ends)
    assert len(message) < 620


def test_rest_of_a_killed_build_is_named(tmp_path: Path) -> None:
    python = tmp_path / "versions" / "3.99.1" / "bin" / "python3"
    python.parent.mkdir(parents=True)
    python.symlink_to("/bin/false")
    with pytest.raises(NodeError, match=r"3\.99\.1 is not whole: remove it \(pyenv uninstall 3"):
        base_python.build_python(str(tmp_path), "3.99", os.environ)


@pytest.mark.parametrize(
    ("method", "space", "message"),
    [
        ("uv", 2**60, r"free, and the environment needs 1048576\.0 TiB there: make room, or set"),
        ("system", 0, r"there is no Python 3\.99 on the node"),
        ("pyenv", 0, r"there is no pyenv in .*/pyenv or on the PATH: install it, set"),
    ],
)
def test_impossible_environment_is_refused_before_any_change(
    node: Node, method: str, space: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    wanted = node.wanted(method)._replace(python="3.99")
    with pytest.raises(NodeError, match=message):
        environment.require(f"{node.home}/not/yet/env", wanted, node.sources, space)
    assert not Path(node.home, "not").exists()


def rooms(node: Node, monkeypatch: pytest.MonkeyPatch, **free: float) -> None:
    """Let directories of the node be mount points, with so many GiB free; everything else has room."""
    disks = {f"{node.home}/{name}": name for name in free}
    for path in disks:
        Path(path).mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(environment, "file_system", lambda path: disks.get(path, ""))
    monkeypatch.setattr(environment, "pyenv_program", lambda _: "pyenv")

    def usage(path: str) -> SimpleNamespace:
        return SimpleNamespace(free=int(free.get(disks.get(path, ""), 2**10) * 2**30))

    monkeypatch.setattr(shutil, "disk_usage", usage)


@pytest.mark.parametrize(
    ("free", "cache", "pyenv", "needed", "message"),
    [
        ({"cache": 2, "pyenv": 2}, "cache/pip", "pyenv/root", 1, ""),
        (
            {"cache": 0, "pyenv": 2},
            "cache/pip",
            "pyenv/root",
            1,
            r"/cache has 0 B free, and its downloads need 512\.0 MiB .* set python_env_cache_dir",
        ),
        (
            {"cache": 2, "pyenv": 0},
            "cache/pip",
            "pyenv/root",
            1,
            r"/pyenv has 0 B free, and a Python needs 512\.0 MiB .* set python_env_pyenv_root",
        ),
        # It has room for the smaller thing, and has to have it for the larger one.
        ({"data": 1}, "data/pip", "data/pyenv", 2, ""),
        (
            {"data": 1},
            "data/pip",
            "data/pyenv",
            4,
            r"/data has 1\.0 GiB free, and its downloads need 2\.0 GiB",
        ),
        # Directories that are mount points themselves.
        ({"cache": 0.1}, "cache", "pyenv", 2, r"/cache has 102\.4 MiB free"),
        ({"pyenv": 0.1}, "cache", "pyenv", 2, r"/pyenv has 102\.4 MiB free"),
    ],
)
def test_disk_space_is_checked_on_every_file_system_written_to(
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    free: dict[str, float],
    cache: str,
    pyenv: str,
    needed: int,
    message: str,
) -> None:
    rooms(node, monkeypatch, **free)
    sources = node.sources._replace(
        no_index=False, cache=f"{node.home}/{cache}", pyenv_root=f"{node.home}/{pyenv}"
    )
    expected = pytest.raises(NodeError, match=message) if message else contextlib.nullcontext()
    with expected:
        wanted = node.wanted("pyenv")._replace(python="3.99")
        environment.require(f"{node.home}/env", wanted, sources, needed * 2**30)


@pytest.mark.parametrize(
    ("method", "links", "room"),
    [
        ("system", ["/srv/wheels"], False),
        ("system", ["/srv/wheels", "https://packages.example.org/"], True),
        ("uv", ["/srv/wheels"], True),
    ],
)
def test_users_cache_needs_room_only_where_packages_are_cached(
    node: Node, method: str, links: list[str], room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms(node, monkeypatch, xdg=0.1)
    monkeypatch.setenv("XDG_CACHE_HOME", f"{node.home}/xdg")
    sources = node.sources._replace(cache="", no_index=True, find_links=links)
    expected = pytest.raises(NodeError, match=r"/xdg has 102\.4 MiB free, and its downloads need")
    with expected if room else contextlib.nullcontext():
        environment.require(f"{node.home}/env", node.wanted(method), sources, 2 * 2**30)


def test_a_proxy_is_named_for_programs_that_read_either_case(node: Node) -> None:
    variables = node.sources._replace(proxy="http://proxy:3128").variables()
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        assert variables[name] == "http://proxy:3128"


def test_uv_python_is_removed_with_its_last_environment(node: Node) -> None:
    pythons = node.home / "pythons"
    pythons.mkdir()
    node.make(node.wanted())
    assert environment.remove(node.directory, "c") != []
    assert pythons.exists(), "somebody else's"
    node.make(node.wanted())
    (pythons / environment.STATE_FILE).write_text('{"cluster": "c"}')
    other = node.home / "other" / "pyvenv.cfg"
    other.parent.mkdir()
    other.write_text(f"home = {pythons}/cpython-3.13/bin\n")
    environment.remove(node.directory, "c")
    assert pythons.exists(), "another environment needs them"
    other.unlink()
    node.make(node.wanted())
    assert str(pythons) in environment.remove(node.directory, "c")
    assert not pythons.exists()


def test_a_mirror_that_lacks_the_python_for_uv_is_named(node: Node) -> None:
    """The real uv uses the mirror only."""
    mirror = node.home / "mirror"
    mirror.mkdir()
    node.sources = node.sources._replace(python_mirror=mirror.as_uri())
    with pytest.raises(NodeError, match=rf"uv could not make an environment: .*{mirror}/[0-9]+/cpython"):
        node.make(node.wanted()._replace(python="3.10.3"))


PYTHON_ARCHIVE = "20261123/cpython-of-ours.tar.gz"
UV_RELEASES = "https://github.com/astral-sh/python-build-standalone/releases/download"


@pytest.fixture(scope="module")
def python_mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with this Python as uv takes one, and a list that names it: a version beyond uv's own."""
    mirror = tmp_path_factory.mktemp("mirror")
    archive = mirror / PYTHON_ARCHIVE
    archive.parent.mkdir()
    stdlib = Path(sysconfig.get_path("stdlib"))
    left_out = {"__pycache__", "dist-packages", "site-packages", "test"}

    def wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if left_out & {*Path(member.name).parts} else member

    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(os.path.realpath(sys.executable), f"python/bin/python{PYTHON}")
        packed.add(stdlib, f"python/lib/{stdlib.name}", filter=wanted)
        for library in Path(sys.base_prefix, "lib").glob("libpython*.so*"):
            packed.add(library, f"python/lib/{library.name}")
    list_pythons(mirror, hashlib.sha256(archive.read_bytes()).hexdigest())
    return mirror


def list_pythons(mirror: Path, digest: str) -> Path:
    """Write the list of a mirror, in the form of uv's own; return its path."""
    libc, _ = platform.libc_ver()
    one = {
        "name": "cpython",
        "arch": {"family": platform.machine(), "variant": None},
        "os": "linux",
        "libc": "gnu" if libc else "musl",
        "major": sys.version_info[0],
        "minor": sys.version_info[1],
        "patch": 99,
        "prerelease": "",
        "url": f"{UV_RELEASES}/{PYTHON_ARCHIVE}",
        "sha256": digest,
        "variant": None,
    }
    path = mirror / f"{digest[:8]}.json"
    path.write_text(json.dumps({f"cpython-{PYTHON}.99": one}))
    return path


class QueryResults(SimpleHTTPRequestHandler):
    """Serves a directory, and records the requests."""

    paths: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.paths.append(self.path)
        super().do_GET()

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@contextlib.contextmanager
def serving(directory: Path) -> Iterator[str]:
    """Serve a directory; give the address."""
    QueryResults.paths.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QueryResults, directory=str(directory))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def served(python_mirror: Path) -> Iterator[str]:
    """The address of the mirror."""
    with serving(python_mirror) as address:
        yield address


def test_uv_takes_a_python_that_the_node_lacks_from_the_mirror(
    node: Node, python_mirror: Path, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real uv, an archive of this Python, a real server: made, used, and removed with its environment."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (listed,) = python_mirror.glob("*.json")
    node.sources = node.sources._replace(
        python_mirror=served, python_downloads=f"{served}/{listed.name}", cache=str(node.home / "cache")
    )
    node.make(node.wanted())
    assert QueryResults.paths == [f"/{listed.name}", f"/{PYTHON_ARCHIVE}"]
    output = subprocess.run([f"{node.directory}/bin/rdm-trainer"], capture_output=True, text=True, check=True)
    assert output.stdout == "it runs\n"
    pythons = node.home / "pythons"
    shown = [f"{node.directory}/bin/python", "-c", "import sys; print(sys.base_prefix)"]
    base = subprocess.run(shown, capture_output=True, text=True, check=True).stdout.strip()
    assert Path(base).resolve().parent == pythons
    node.make(node.wanted(lock="# newer\n" + node.lock))
    assert len(QueryResults.paths) == 2, "it is there"
    assert str(pythons) in environment.remove(node.directory, "c")
    assert not pythons.exists()


@pytest.mark.parametrize("own", [False, True])
def test_a_python_with_another_digest_is_refused(
    node: Node, python_mirror: Path, tmp_path: Path, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the user's own list, and with uv's, which has only archives of its releases."""
    monkeypatch.setenv("PATH", "/nowhere")
    mirror = tmp_path / "forged"
    if own:
        shutil.copytree(python_mirror, mirror)
        node.sources = node.sources._replace(python_downloads=str(list_pythons(mirror, "0" * 64)))
    else:
        mirror.mkdir()
    node.sources = node.sources._replace(python_mirror=mirror.as_uri())
    if not own:
        with pytest.raises(NodeError) as lacks:
            node.make(node.wanted())
        wanted = Path(str(lacks.value).split("`")[1])
        wanted.parent.mkdir()
        shutil.copy(python_mirror / PYTHON_ARCHIVE, wanted)
    with pytest.raises(NodeError, match=r"could not make an environment: .*Hash mismatch for") as no:
        node.make(node.wanted())
    has = hashlib.sha256((python_mirror / PYTHON_ARCHIVE).read_bytes()).hexdigest()
    assert str(no.value).endswith(f"Computed: {has}")
    assert not os.path.lexists(node.directory)


@pytest.mark.parametrize("method", ["system", "uv"])
def test_packages_come_through_a_proxy_and_apex_that_cannot_be_built_is_without_extensions(
    node: Node, method: str
) -> None:
    """Real pip and uv, and a package of apex's name whose build fails like apex's without nvcc.

    A proxy gets requests with whole URLs, which are paths below what it serves here.
    """
    index = "http://index.invalid/simple"
    directory = Path(node.home, "web", *index.split("/"), "helper")
    directory.mkdir(parents=True)
    shutil.copy(node.package, directory)
    source = node.home / "apex"
    made = wheel(node.home / "made", "apex")
    source.mkdir()
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "apex"\nversion = "1.0"\n'
    )
    (source / "backend.py").write_text(
        "import pathlib, shutil\n"
        "def build_wheel(directory, config_settings=None, metadata_directory=None):\n"
        "    pathlib.Path('written-by-the-build').touch()\n"
        "    if config_settings:\n"
        "        raise SystemExit(f'nvcc is not found, for {config_settings}')\n"
        f"    shutil.copy({str(made)!r}, directory)\n"
        f"    return {made.name!r}\n"
    )
    wanted = node.wanted(method)._replace(apex=str(source))
    with serving(node.home / "web") as proxy:
        node.sources = Sources(index, proxy=proxy, cache=str(node.home / "cache"))
        node.make(wanted)
    assert f"{index}/helper/{node.package.name}" in QueryResults.paths
    assert_whole(node, wanted)
    assert environment.drift(node.directory, node.wanted(method)) == "another one is wanted"
    assert not (source / "written-by-the-build").exists(), "nodes may share it"
    state = environment.state_of(node.directory)
    assert "apex-1.0" in state["packages"]
    assert state["lost"].startswith("apex's extensions could not be built: ")
    assert "it is installed without them, so its fused optimisers" in state["lost"]
    log = Path(node.directory, "apex.log").read_text()
    assert "nvcc is not found, for {'--build-option': ['--cpp_ext', '--cuda_ext']}" in log


def test_the_command_for_apex_is_that_of_the_pip_there() -> None:
    new = apex.command(["pip", "install"], (23, 1), "/apex", extensions=True)
    assert new[-3:] == [
        "--config-settings=--build-option=--cpp_ext",
        "--config-settings=--build-option=--cuda_ext",
        "/apex",
    ]
    old = apex.command(["pip", "install"], (22, 3), "/apex", extensions=True)
    assert old[-3:] == ["--global-option=--cpp_ext", "--global-option=--cuda_ext", "/apex"]
    assert apex.command(["pip", "install"], (23, 1), "/apex", extensions=False)[-2:] == [
        "--no-cache-dir",
        "/apex",
    ]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("git+https://example.org/apex@main", "names no commit: end it with @"),
        (f"git+https://me:secret@example.org/apex@{'a' * 40}", "has a user or a password"),
        ("git+https://secret@example.org/apex@main", "has a user or a password"),
        ("apex", "apex of PyPI is another project"),
        (f"git+https://example.org/apex@{'a' * 40}", ""),
        ("/src/apex.tar.gz", ""),
    ],
)
def test_apex_comes_from_a_pinned_source(source: str, message: str) -> None:
    assert message in apex.problem(source)
    assert "secret" not in apex.problem(source)
    assert bool(message) == bool(apex.problem(source))


def test_the_module_requests_files_once_and_changes_nothing_in_check_mode(node: Node) -> None:
    from ansible_collections.rdm.provision.plugins.modules import python_env as module

    result = run_module(module, node.options(), check=True)
    assert (result["changed"], result["needed"], result["why"]) == (True, False, "there is none")
    assert not os.path.lexists(node.directory)
    assert run_module(module, node.options())["needed"]
    copies = {"wheel": str(node.trainer), "uv": find_uv()}
    made = run_module(module, {**node.options(), "copies": copies})
    assert made["changed"]
    assert made["python"].startswith(PYTHON)
    again = run_module(module, node.options())
    assert (again["changed"], "needed" in again) == (False, False)
    assert run_module(module, node.options("absent"), check=True)["changed"]
    assert os.path.lexists(node.directory)
    assert run_module(module, node.options("absent"))["changed"]
    assert not run_module(module, node.options("absent"))["changed"]


@pytest.mark.parametrize(
    ("option", "variable"),
    [
        ("directory", "python_env_directory"),
        ("pyenv_root", "python_env_pyenv_root"),
        ("cache", "python_env_cache_directory"),
        ("python_downloads", "python_env_python_downloads"),
    ],
)
def test_a_relative_path_is_refused(node: Node, option: str, variable: str) -> None:
    from ansible_collections.rdm.provision.plugins.modules import python_env as module

    with pytest.raises(Failed, match=f"^{variable} is 'envs/python': begin it with / or ~/$"):
        run_module(module, {**node.options(), option: "envs/python"})


def test_node_that_only_uses_a_shared_environment_needs_and_removes_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a worker with a shared environment, without its own Python."""
    from ansible_collections.rdm.provision.plugins.modules import python_env as module

    warnings: list[str] = []
    monkeypatch.setattr(basic.AnsibleModule, "warn", lambda _, text: warnings.append(text))
    worker = {**node.options(), "method": "system", "python": "3.99"}
    with pytest.raises(Failed, match=r"there is no Python 3\.99 on the node"):
        run_module(module, worker, check=True)
    result = run_module(module, {**worker, "makes": False}, check=True)
    assert (result["why"], result["used"]) == ("there is none", [])
    assert "needed" not in result
    node.make(node.wanted())
    kept = run_module(module, {**node.options("absent"), "makes": False})
    assert (kept["changed"], kept["removed"]) == (False, [])
    assert warnings == [
        f"{node.directory} stays, for other nodes share it: an env down of all nodes removes it"
    ]
    assert os.path.lexists(node.directory)


def test_addresses_with_passwords_are_in_the_environment_only() -> None:
    sources = Sources("https://u:p@index/simple", extra_index_urls=["https://more"], torch_backend="cu128")
    found = sources.variables()
    assert found["PIP_INDEX_URL"] == found["UV_DEFAULT_INDEX"] == "https://u:p@index/simple"
    assert found["PIP_EXTRA_INDEX_URL"] == "https://more https://download.pytorch.org/whl/cu128"
    assert (found["UV_INDEX"], found["UV_TORCH_BACKEND"]) == ("https://more", "cu128")
    assert "PIP_TRUSTED_HOST" not in found


def test_pip_takes_packages_without_tls_only_from_the_hosts_that_are_named_so() -> None:
    sources = Sources("http://u:p@index:8080/simple", extra_index_urls=["https://more"], find_links=["/srv"])
    assert sources.variables()["PIP_TRUSTED_HOST"] == "index:8080"

# SPDX-License-Identifier: GPL-3.0-or-later
"""A virtual environment on the node, made from a lock file with hashes.

Each version has its own directory, and others use a link to it. The link changes when the successor is
complete; running processes continue with the old one. This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from typing import Any, Collection, Dict, List, NamedTuple, Optional, Tuple
from urllib.parse import urlsplit

from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import write_whole
from ansible_collections.rdm.provision.plugins.module_utils.base.host import read_json
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.base.wording import size_text
from ansible_collections.rdm.provision.plugins.module_utils.python_env import apex
from ansible_collections.rdm.provision.plugins.module_utils.python_env.base_python import (
    build_python,
    pyenv_program,
    pyenv_python,
    run_program,
    system_python,
)

STATE_FILE = ".rdm-provision-environment.json"
PROGRAM = "rdm-trainer"

# Increase it when the code below makes a different environment.
FORMAT = 1
_PYTHON_BYTES = 512 * 2**20
"""Disk space for a Python that pyenv builds, with its sources: 3.13 takes 326 MB."""
_PYTHONS = "pythons"
"""The directory of Pythons that uv has installed, next to the environments."""
_DIGEST = re.compile(r"[0-9a-f]{16}")
_FIRST = "setuptools"
"""Installed first, since it builds the packages that are published only as source."""


class Wanted(NamedTuple):
    """The desired environment.

    Attributes:
        cluster: the cluster that owns it.
        method: `system` or `pyenv` (venv and pip), or `uv`.
        python: the version, such as 3.11, or the path of a Python.
        lock: requirements, each with its hashes.
        program: the file name of the trainer's wheel, which contains its version and digest.
        apex: apex's source; empty for none.
    """

    cluster: str
    method: str
    python: str
    lock: str
    program: str
    apex: str = ""

    @property
    def digest(self) -> str:
        """The digest that identifies this environment."""
        words = [FORMAT, self.method, self.python, self.lock, self.program]
        text = json.dumps([*words, self.apex] if self.apex else words)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Sources(NamedTuple):
    """Where packages come from; an empty value means the default of pip or uv.

    Attributes:
        index_url: the index.
        no_index: whether to use no index, only find_links.
        extra_index_urls: further indexes.
        find_links: directories, or URLs of pages, with packages.
        torch_backend: uv's, such as cpu or cu128.
        proxy: for HTTP and HTTPS.
        certificates: file with the certificates to trust.
        cache: directory for downloads.
        python_mirror: where uv gets Pythons, and pyenv sources to build.
        python_downloads: a list of Pythons with their digests, instead of uv's own.
        pyenv_root: PYENV_ROOT.
    """

    index_url: str = ""
    no_index: bool = False
    extra_index_urls: List[str] = []  # noqa: RUF012  # never changed
    find_links: List[str] = []  # noqa: RUF012
    torch_backend: str = ""
    proxy: str = ""
    certificates: str = ""
    cache: str = ""
    python_mirror: str = ""
    python_downloads: str = ""
    pyenv_root: str = ""

    @property
    def local(self) -> bool:
        """Whether pip reads all packages from local directories; uv keeps an unpacked copy of each."""
        return self.no_index and not any("://" in path for path in self.find_links)

    def variables(self) -> Dict[str, str]:
        """Return them as environment variables of pip and uv, so that no password is on a command line."""
        extra = list(self.extra_index_urls)
        found = {
            "PIP_CACHE_DIR": self.cache,
            "UV_CACHE_DIR": self.cache and os.path.join(self.cache, "uv"),
            "PIP_CERT": self.certificates,
            "SSL_CERT_FILE": self.certificates,
            "PIP_FIND_LINKS": " ".join(self.find_links),
            "UV_FIND_LINKS": ",".join(self.find_links),
            "UV_INDEX": " ".join(extra),
            "UV_TORCH_BACKEND": self.torch_backend,
            "UV_PYTHON_INSTALL_MIRROR": self.python_mirror,
            "UV_PYTHON_DOWNLOADS_JSON_URL": self.python_downloads,
            "PYTHON_BUILD_MIRROR_URL": self.python_mirror,
            "PYTHON_BUILD_CACHE_PATH": self.cache and os.path.join(self.cache, "python-build"),
            # For http://, curl reads only the lower-case variable.
            "http_proxy": self.proxy,
            "https_proxy": self.proxy,
            "HTTP_PROXY": self.proxy,
            "HTTPS_PROXY": self.proxy,
        }
        # An http:// URL is the user's choice, and the lock has the digests. pip needs an option to trust the
        # host.
        plain = [urlsplit(one) for one in (self.index_url, *extra, *self.find_links)]
        trusted = {one.netloc.rpartition("@")[2] for one in plain if one.scheme == "http"}
        found["PIP_TRUSTED_HOST"] = " ".join(sorted(trusted))
        if self.torch_backend:
            extra.append("https://download.pytorch.org/whl/" + self.torch_backend)
        found["PIP_EXTRA_INDEX_URL"] = " ".join(extra)
        found.update(PIP_INDEX_URL=self.index_url, UV_DEFAULT_INDEX=self.index_url)
        return {name: value for name, value in found.items() if value}


def version_path(directory: str, wanted: Wanted) -> str:
    """Return the directory of the environment itself."""
    return "{0}.{1}".format(directory, wanted.digest)


def state_of(path: str) -> Dict[str, Any]:
    """Return the state file of one of our environments; empty for anything else."""
    return read_json(os.path.join(path, STATE_FILE))


def drift(directory: str, wanted: Wanted) -> str:
    """Return how the environment differs from the desired one; empty if it does not.

    Raises:
        NodeError: the path is taken by something else.
    """
    if not os.path.lexists(directory):
        return "there is none"
    if not os.path.islink(directory):
        raise NodeError(
            "{0} is there and was not made by rdm-provision: remove it, or set python_env_directory".format(
                directory
            )
        )
    if os.path.realpath(directory) != os.path.realpath(version_path(directory, wanted)):
        return "another one is wanted"
    state = state_of(directory)
    if state.get("cluster", wanted.cluster) != wanted.cluster:
        raise NodeError(
            "{0} belongs to the cluster {1}: set another python_env_directory".format(
                directory, state["cluster"]
            )
        )
    if not state.get("whole"):
        return "it is incomplete"
    if not all(os.access(os.path.join(directory, "bin", name), os.X_OK) for name in ("python", PROGRAM)):
        return "its programs are gone"
    return "" if packages(directory) == state["packages"] else "its packages differ"


def packages(path: str) -> List[str]:
    """Return the packages of an environment with their versions, sorted."""
    found = []
    lib = os.path.join(path, "lib")
    for python in os.listdir(lib) if os.path.isdir(lib) else []:
        site = os.path.join(lib, python, "site-packages")
        names = os.listdir(site) if os.path.isdir(site) else []
        found += [name[: -len(".dist-info")] for name in names if name.endswith(".dist-info")]
    return sorted(found)


def require(directory: str, wanted: Wanted, sources: Sources, space: int) -> None:
    """Check that the environment can be made, before anything is changed.

    Args:
        directory: the link.
        wanted: the desired environment.
        sources: where packages come from.
        space: bytes that must be free for the environment, and half of it for downloads if they are on
            another file system; 0 skips the check. Needs in one file system are not added up.

    Raises:
        NodeError: there is no Python to make it with, or not enough space.
    """
    if wanted.apex and apex.problem(wanted.apex):
        raise NodeError(apex.problem(wanted.apex))
    if wanted.method == "system":
        system_python(wanted.python)
    elif wanted.method == "pyenv" and pyenv_python(sources.pyenv_root, wanted.python) is None:
        pyenv_program(sources.pyenv_root)
    file_systems = [(os.path.dirname(directory), space, "the environment needs", "python_env_directory")]
    if wanted.method == "pyenv" and pyenv_python(sources.pyenv_root, wanted.python) is None:
        file_systems.append((sources.pyenv_root, _PYTHON_BYTES, "a Python needs", "python_env_pyenv_root"))
    if wanted.method == "uv" or not sources.local:
        # Downloads are compressed.
        file_systems.append((_cache(sources), space // 2, "its downloads need", "python_env_cache_directory"))
    roomy: Dict[int, int] = {}
    for path, wants, what, option in file_systems if space else ():
        there = _there(path)
        disk = file_system(there)
        if wants <= roomy.get(disk, 0):
            continue
        free = shutil.disk_usage(there).free
        if free < wants:
            raise NodeError(
                "{0} has {1} free, and {2} {3} there: make room, or set {4} to another file "
                "system (python_env_space says how much is needed)".format(
                    there, size_text(free), what, size_text(wants), option
                )
            )
        roomy[disk] = wants


def file_system(path: str) -> int:
    """Return the device number of a path's file system."""
    return os.stat(path).st_dev


def _there(path: str) -> str:
    """Return a directory, or its nearest existing parent."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _cache(sources: Sources) -> str:
    """Return the directory of pip's and uv's downloads."""
    own = os.environ.get("XDG_CACHE_HOME", "")
    return sources.cache or (own if os.path.isabs(own) else os.path.expanduser("~/.cache"))


def make(
    directory: str,
    wanted: Wanted,
    sources: Sources,
    wheel: str,
    uv: str,
    protect: Optional[Collection[str]] = (),
) -> None:
    """Make the environment, and point the link to it when it is complete.

    Args:
        directory: the link.
        wanted: the desired environment.
        sources: where packages come from.
        wheel: the trainer's wheel.
        uv: path of uv, for this method.
        protect: environments that other nodes, which share the directory, use; None if unknown: then every
            other environment stays.

    Raises:
        NodeError: it cannot be made.
    """
    path = version_path(directory, wanted)
    found = state_of(path)
    if os.path.lexists(path) and not found:
        raise NodeError("{0} is there and was not made by rdm-provision: remove it".format(path))
    if found and (in_use(path) or path in (protect or ())):
        raise NodeError("{0} is in use and has to be recreated: stop its jobs first".format(path))
    try:
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(path, mode=0o755)
        _write_state(path, {"cluster": wanted.cluster, "whole": False})
        state = _fill(path, wanted, sources, wheel, uv)
        state.update(cluster=wanted.cluster, whole=True, packages=packages(path))
        _write_state(path, state)
        _point(directory, path)
    except OSError as error:
        raise NodeError("{0} cannot be made: {1}".format(path, _why(error))) from None
    if protect is None:
        return
    for other in mine(directory, wanted.cluster):
        if other != path and other not in protect and not in_use(other):
            shutil.rmtree(other, ignore_errors=True)


def remove(directory: str, cluster: str) -> List[str]:
    """Remove what `make` has created for a cluster, and nothing else; return the removed paths.

    Raises:
        NodeError: a process uses it, which is `used_by` of the error's result, or it contains files of
            another user.
    """
    found = mine(directory, cluster)
    require_unused(directory, cluster)
    if os.path.islink(directory) and os.path.realpath(directory) in map(os.path.realpath, found):
        os.unlink(directory)
    for path in found:
        _remove_tree(path)
    pythons = os.path.join(os.path.dirname(directory), _PYTHONS)
    if found and state_of(pythons).get("cluster") == cluster and not _needed(pythons):
        _remove_tree(pythons)
        found = [*found, pythons]
    return found


def _remove_tree(path: str) -> None:
    """Remove a directory, its state file last, so that after a failure it still counts as ours."""
    try:
        for entry in sorted(os.scandir(path), key=lambda one: one.name == STATE_FILE):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
        os.rmdir(path)
    except OSError as error:
        message = (
            "{0} cannot be removed: {1}: remove what another user has written there, and run the same again"
        )
        raise NodeError(message.format(path, _why(error))) from None


def require_unused(directory: str, cluster: str) -> None:
    """Raise NodeError if a process of this node uses one of the cluster's environments."""
    for path in mine(directory, cluster):
        process = in_use(path)
        if process:
            message = (
                "{0} is in use by process {1}: stop the job first (rdm-provision stop JOB; "
                "rdm-provision jobs lists them)"
            )
            raise NodeError(message.format(path, process), used_by=process)


def _needed(pythons: str) -> bool:
    """Return whether an environment uses one of the Pythons that uv has installed."""
    above = os.path.dirname(pythons)
    for name in os.listdir(above):
        try:
            with open(os.path.join(above, name, "pyvenv.cfg"), encoding="utf-8") as file:
                if pythons + os.sep in file.read():
                    return True
        except OSError:
            continue
    return False


def mine(directory: str, cluster: str) -> List[str]:
    """Return a cluster's environments at a directory."""
    return [path for path in versions(directory) if state_of(path).get("cluster") == cluster]


def versions(directory: str) -> List[str]:
    """Return the directories next to the link that have names of environments."""
    above, name = os.path.split(directory)
    try:
        names = os.listdir(above)
    except OSError:
        return []
    prefix = name + "."
    return sorted(
        os.path.join(above, one)
        for one in names
        if one.startswith(prefix) and _DIGEST.fullmatch(one[len(prefix) :])
    )


def in_use(path: str) -> Optional[int]:
    """Return the id of a process that uses an environment; None if there is none."""
    programs = os.path.join(os.path.realpath(path), "bin", "").encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(os.path.join("/proc", name, "cmdline"), "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if any(word.startswith(programs) for word in words[:2]):
            return int(name)
    return None


def _fill(path: str, wanted: Wanted, sources: Sources, wheel: str, uv: str) -> Dict[str, Any]:
    """Install a Python and the packages into an environment; return its state."""
    python = os.path.join(path, "bin", "python")
    more = sources.variables()
    # A user's own configuration must not make nodes differ.
    variables = {
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PIP_", "UV_", "PYTHON", "PYENV_"))
        },
        "PIP_CONFIG_FILE": os.devnull,
        "UV_NO_CONFIG": "1",
        "UV_SYSTEM_CERTS": "1",
        "UV_PYTHON_INSTALL_DIR": os.path.join(os.path.dirname(path), _PYTHONS),
        **more,
    }
    lock = os.path.join(path, "requirements.lock")
    first = os.path.join(path, "first.lock")
    for lock_file, text in ((lock, wanted.lock), (first, entry_of(wanted.lock, _FIRST))):
        with open(lock_file, "w", encoding="utf-8") as file:
            file.write(text)
    if wanted.method == "uv":
        pythons = variables["UV_PYTHON_INSTALL_DIR"]
        were_there = os.path.isdir(pythons)
        run_program(
            [uv, "venv", "--allow-existing", "--python", wanted.python, path],
            "make an environment",
            variables,
        )
        if os.path.isdir(pythons) and not were_there:
            _write_state(pythons, {"cluster": wanted.cluster})
        install = [uv, "pip", "install", "--python", python, "--no-deps", "--no-build-isolation"]
    else:
        if wanted.method == "pyenv":
            build_cache = more.get("PYTHON_BUILD_CACHE_PATH")
            if build_cache:
                # pyenv does not create its cache directory.
                os.makedirs(build_cache, exist_ok=True)
            base = build_python(sources.pyenv_root, wanted.python, variables)
        else:
            base = system_python(wanted.python)
        run_program([base, "-m", "venv", path], "make an environment", variables)
        install = [python, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--no-compile"]
        install += ["--no-build-isolation"]
    where = ["--no-index"] if sources.no_index else []
    for lock_file in (first, lock):
        if os.path.getsize(lock_file):
            run_program(
                [*install, *where, "--require-hashes", "-r", lock_file], "install the packages", variables
            )
    os.unlink(first)
    # Its digest was verified before.
    run_program([*install, "--no-index", wheel], "install the trainer", variables)
    command = [python, "-c", "import platform; print(platform.python_version())"]
    output = {"python": run_program(command, "start", variables).strip()}
    if wanted.apex:
        output["lost"] = apex.install(
            [*install, *where],
            _build_options_of(python, wanted.method, variables),
            os.path.expanduser(wanted.apex),
            variables,
            os.path.join(path, apex.LOG),
        )
    return output


def _build_options_of(python: str, method: str, variables: Dict[str, str]) -> Tuple[int, ...]:
    """Return the version of pip, which decides its build options; uv's are those of a new pip."""
    if method == "uv":
        return (99,)
    output = run_program(
        [python, "-c", "import pip; print(pip.__version__)"], "read pip's version", variables
    )
    return tuple(int(part) for part in output.strip().split(".")[:2] if part.isdigit())


def entry_of(lock: str, name: str) -> str:
    """Return a package's lines in a lock file; empty if there are none."""
    lines: List[str] = []
    for line in lock.splitlines():
        if lines and line.startswith(" "):
            lines.append(line)
        elif lines:
            break
        elif line.startswith(name + "=="):
            lines.append(line)
    return "".join(line + "\n" for line in lines)


def _point(directory: str, path: str) -> None:
    """Point the link to an environment, atomically."""
    partial = directory + ".new"
    if os.path.lexists(partial):
        os.unlink(partial)
    os.symlink(os.path.basename(path), partial)
    os.replace(partial, directory)


def _write_state(path: str, state: Dict[str, Any]) -> None:
    write_whole(os.path.join(path, STATE_FILE), json.dumps(state).encode(), 0o644)


def _why(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "the disk is full"
    return "{0} ({1})".format(error.strerror, error.filename) if error.filename else str(error)

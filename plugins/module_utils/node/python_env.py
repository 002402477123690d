# SPDX-License-Identifier: GPL-3.0-or-later
"""A virtual environment on the node, made from a lock file with hashes.

The environment lies in a directory of its own version, and a link has the name that others use: it is
pointed elsewhere when the successor is whole, and what runs goes on with the old one. This runs on nodes
(Python 3.8 or newer).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

RECEIPT = ".rdm-provision-environment.json"
PROGRAM = "rdm-trainer"

# Raised when the code below changes what it makes.
FORMAT = 1
_LIMIT_S = 3600
_DIGEST = re.compile(r"[0-9a-f]{16}")
_FIRST = "setuptools"
"""What builds the packages that are published as source only has to be there before."""


class EnvironmentProblem(Exception):  # noqa: N818  # one sentence for fail_json
    """Why there is no environment; the text is one sentence."""


class Wanted(NamedTuple):
    """The environment that is wanted.

    Attributes:
        cluster: whose it is.
        method: `system` (venv and pip) or `uv`.
        python: the version, such as 3.11, or the path of a Python.
        lock: requirements, each with its hashes.
        program: name of the wheel with the trainer, which its version and digest are part of.
    """

    cluster: str
    method: str
    python: str
    lock: str
    program: str

    @property
    def digest(self) -> str:
        """What tells this environment from others."""
        text = json.dumps([FORMAT, self.method, self.python, self.lock, self.program])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Sources(NamedTuple):
    """Where packages come from; what is empty is pip's or uv's own.

    Attributes:
        index_url: the index.
        no_index: no index at all, only find_links.
        extra_index_urls: further ones.
        find_links: directories, or addresses of pages, with packages.
        torch_backend: of uv, such as cpu or cu128.
        proxy: for HTTP and HTTPS.
        certificates: file with the certificates to trust.
        cache: directory for what was downloaded.
        python_mirror: where uv finds Pythons to install.
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

    def variables(self) -> Dict[str, str]:
        """Return them as pip and uv read them. A password in an address is on no command line."""
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
            "HTTP_PROXY": self.proxy,
            "HTTPS_PROXY": self.proxy,
        }
        if self.torch_backend:
            extra.append("https://download.pytorch.org/whl/" + self.torch_backend)
        found["PIP_EXTRA_INDEX_URL"] = " ".join(extra)
        found.update(PIP_INDEX_URL=self.index_url, UV_DEFAULT_INDEX=self.index_url)
        return {name: value for name, value in found.items() if value}


def place_of(directory: str, wanted: Wanted) -> str:
    """Return where the environment itself lies."""
    return "{0}.{1}".format(directory, wanted.digest)


def receipt_of(place: str) -> Dict[str, Any]:
    """Return what an environment of ours says of itself, empty for anything else."""
    try:
        with open(os.path.join(place, RECEIPT), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def drift(directory: str, wanted: Wanted) -> str:
    """Return what is not as wanted, in words; empty when all is.

    Raises:
        EnvironmentProblem: something else has the name.
    """
    if not os.path.lexists(directory):
        return "there is none"
    if not os.path.islink(directory):
        raise EnvironmentProblem(
            "{0} is there and was not made by rdm-provision: remove it, or set python_env_directory".format(
                directory
            )
        )
    if os.path.realpath(directory) != os.path.realpath(place_of(directory, wanted)):
        return "another one is wanted"
    receipt = receipt_of(directory)
    if receipt.get("cluster", wanted.cluster) != wanted.cluster:
        raise EnvironmentProblem(
            "{0} belongs to the cluster {1}: set another python_env_directory".format(
                directory, receipt["cluster"]
            )
        )
    if not receipt.get("whole"):
        return "it is not whole"
    if not all(os.access(os.path.join(directory, "bin", name), os.X_OK) for name in ("python", PROGRAM)):
        return "its programs are gone"
    return "" if packages(directory) == receipt["packages"] else "its packages are others"


def packages(place: str) -> List[str]:
    """Return the packages of an environment with their versions, sorted."""
    found = []
    lib = os.path.join(place, "lib")
    for python in os.listdir(lib) if os.path.isdir(lib) else []:
        site = os.path.join(lib, python, "site-packages")
        names = os.listdir(site) if os.path.isdir(site) else []
        found += [name[: -len(".dist-info")] for name in names if name.endswith(".dist-info")]
    return sorted(found)


def make(directory: str, wanted: Wanted, sources: Sources, wheel: str, uv: str) -> None:
    """Make the environment, and point the link to it when it is whole.

    Args:
        directory: the link.
        wanted: what it is to be.
        sources: where packages come from.
        wheel: the file with the trainer.
        uv: the program, for its method.

    Raises:
        EnvironmentProblem: it cannot be made.
    """
    place = place_of(directory, wanted)
    found = receipt_of(place)
    if os.path.lexists(place) and not found:
        raise EnvironmentProblem("{0} is there and was not made by rdm-provision: remove it".format(place))
    if found and in_use(place):
        raise EnvironmentProblem("{0} is in use and has to be made anew: stop its jobs first".format(place))
    try:
        shutil.rmtree(place, ignore_errors=True)
        os.makedirs(place, mode=0o755)
        _write_receipt(place, {"cluster": wanted.cluster, "whole": False})
        version = _fill(place, wanted, sources, wheel, uv)
        listed = packages(place)
        _write_receipt(
            place, {"cluster": wanted.cluster, "whole": True, "python": version, "packages": listed}
        )
        _point(directory, place)
    except OSError as error:
        raise EnvironmentProblem("{0} cannot be made: {1}".format(place, _why(error))) from None
    for other in versions(directory):
        if other != place and receipt_of(other).get("cluster") == wanted.cluster and not in_use(other):
            shutil.rmtree(other, ignore_errors=True)


def remove(directory: str, cluster: str) -> List[str]:
    """Remove what `make` has made for a cluster, and nothing else; return what was removed.

    Raises:
        EnvironmentProblem: a process uses it.
    """
    found = mine(directory, cluster)
    for place in found:
        process = in_use(place)
        if process:
            raise EnvironmentProblem(
                "{0} is in use by process {1}: stop the job first (rdm-provision stop)".format(place, process)
            )
    if os.path.islink(directory) and os.path.realpath(directory) in map(os.path.realpath, found):
        os.unlink(directory)
    for place in found:
        shutil.rmtree(place)
    return found


def mine(directory: str, cluster: str) -> List[str]:
    """Return the environments that a cluster has at a directory."""
    return [place for place in versions(directory) if receipt_of(place).get("cluster") == cluster]


def versions(directory: str) -> List[str]:
    """Return the directories that lie beside the link and have names of environments."""
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


def in_use(place: str, proc: str = "/proc") -> Optional[int]:
    """Return a process that runs from an environment, None when there is none."""
    programs = os.path.join(os.path.realpath(place), "bin", "").encode()
    for name in filter(str.isdigit, os.listdir(proc)):
        try:
            with open(os.path.join(proc, name, "cmdline"), "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if any(word.startswith(programs) for word in words[:2]):
            return int(name)
    return None


def _fill(place: str, wanted: Wanted, sources: Sources, wheel: str, uv: str) -> str:
    """Put a Python and the packages into an environment; return the Python's version."""
    python = os.path.join(place, "bin", "python")
    more = sources.variables()
    # A user's own files must not make nodes differ.
    variables = {
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PIP_", "UV_", "PYTHON"))
        },
        "PIP_CONFIG_FILE": os.devnull,
        "UV_NO_CONFIG": "1",
        "UV_SYSTEM_CERTS": "1",
        "UV_PYTHON_INSTALL_DIR": os.path.join(os.path.dirname(place), "pythons"),
        **more,
    }
    lock = os.path.join(place, "requirements.lock")
    first = os.path.join(place, "first.lock")
    for path, text in ((lock, wanted.lock), (first, entry_of(wanted.lock, _FIRST))):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    if wanted.method == "uv":
        _run(
            [uv, "venv", "--allow-existing", "--python", wanted.python, place],
            "make an environment",
            variables,
        )
        install = [uv, "pip", "install", "--python", python, "--no-deps", "--no-build-isolation"]
    else:
        base = _system_python(wanted.python)
        _run([base, "-m", "venv", place], "make an environment", variables)
        install = [python, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--no-compile"]
        install += ["--no-build-isolation"]
    where = ["--no-index"] if sources.no_index else []
    for path in (first, lock):
        if os.path.getsize(path):
            _run([*install, *where, "--require-hashes", "-r", path], "install the packages", variables)
    os.unlink(first)
    # Its digest is compared before it gets here.
    _run([*install, "--no-index", wheel], "install the trainer", variables)
    return _run(
        [python, "-c", "import platform; print(platform.python_version())"], "start", variables
    ).strip()


def entry_of(lock: str, name: str) -> str:
    """Return a package's lines of a lock file, empty where it has none."""
    lines: List[str] = []
    for line in lock.splitlines():
        if lines and line.startswith(" "):
            lines.append(line)
        elif lines:
            break
        elif line.startswith(name + "=="):
            lines.append(line)
    return "".join(line + "\n" for line in lines)


def _system_python(wanted: str) -> str:
    """Return the path of a Python of the node that can make environments."""
    path = shutil.which(wanted if wanted.startswith("/") else "python" + wanted)
    if path is None:
        raise EnvironmentProblem(
            "there is no Python {0} on the node: install it, or choose python_env_method: uv".format(wanted)
        )
    asked = subprocess.run(
        [path, "-c", "import ensurepip, venv"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    if asked.returncode:
        raise EnvironmentProblem(
            "{0} has no module venv or ensurepip: install its package (python3-venv on Debian), or choose "
            "python_env_method: uv".format(path)
        )
    return path


def _run(argv: List[str], what: str, variables: Mapping[str, str]) -> str:
    """Run a program and return what it wrote."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(variables),
            timeout=_LIMIT_S,
            check=False,
            universal_newlines=True,
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentProblem("it took more than {0} s to {1}".format(_LIMIT_S, what)) from None
    if done.returncode:
        said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise EnvironmentProblem(
            "{0} could not {1}: {2}".format(os.path.basename(argv[0]), what, " ".join(said[-4:])[-600:])
        )
    return done.stdout


def _point(directory: str, place: str) -> None:
    """Let a link point to an environment, in one step."""
    partial = directory + ".new"
    if os.path.lexists(partial):
        os.unlink(partial)
    os.symlink(os.path.basename(place), partial)
    os.replace(partial, directory)


def _write_receipt(place: str, receipt: Dict[str, Any]) -> None:
    partial = os.path.join(place, RECEIPT + ".new")
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(receipt, file)
    os.replace(partial, os.path.join(place, RECEIPT))


def _why(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "the disk is full"
    return "{0} ({1})".format(error.strerror, error.filename) if error.filename else str(error)

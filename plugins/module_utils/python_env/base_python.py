# SPDX-License-Identifier: GPL-3.0-or-later
"""The Python for an environment: the node's own, or one that pyenv has or builds.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
from typing import Iterator, List, Mapping, Optional

from ansible_collections.rdm.provision.plugins.module_utils.base.local_path import local_path
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError

LOCK = ".rdm-provision.lock"
"""In PYENV_ROOT: the lock for building a Python."""
_LIMIT_S = 3600
_START_S = 120  # for a Python on a slow shared file system
_LAST_LINES = 4
_SHOWN = 600
"""Characters of a program's output in a message."""


def absolute_path(text: str, variable: str) -> str:
    """Return an absolute path, resolved for this node and user.

    Args:
        text: may contain ``~`` and ``%n``, as for local_path(); empty stays empty.
        variable: the variable that sets it.

    Raises:
        NodeError: it is relative.
    """
    path = local_path(text)
    if path and not path.startswith("/"):
        raise NodeError("{0} is {1!r}: begin it with / or ~/".format(variable, text))
    return path


def system_python(wanted: str) -> str:
    """Return the path of one of the node's Pythons that can create environments.

    Args:
        wanted: a version, such as 3.11, or a path.

    Raises:
        NodeError: there is none, or its venv is missing.
    """
    path = shutil.which(wanted if wanted.startswith("/") else "python" + wanted)
    if path is None:
        raise NodeError(
            "there is no Python {0} on the node: install it, or choose python_env_method: uv".format(wanted)
        )
    if not _makes_environments(path):
        raise NodeError(
            "{0} has no module venv or ensurepip: install its package (python3-venv on Debian), or choose "
            "python_env_method: uv".format(path)
        )
    return path


def _makes_environments(python: str) -> bool:
    """Return whether a Python runs and has venv and ensurepip."""
    try:
        check = subprocess.run(
            [python, "-c", "import ensurepip, venv"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_START_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return check.returncode == 0


def pyenv_program(root: str) -> str:
    """Return the path of pyenv, which need not be on the PATH of non-interactive shells.

    Args:
        root: PYENV_ROOT.

    Raises:
        NodeError: there is none.
    """
    found = shutil.which(os.path.join(root, "bin", "pyenv")) or shutil.which("pyenv")
    if found is None:
        raise NodeError(
            "there is no pyenv in {0} or on the PATH: install it, set python_env_pyenv_root, or choose "
            "python_env_method: uv".format(root)
        )
    return found


def pyenv_python(root: str, wanted: str) -> Optional[str]:
    """Return pyenv's newest Python of a version, such as 3.11.9 for 3.11; None if it has none."""
    versions = os.path.join(root, "versions")
    found = []
    for name in os.listdir(versions) if os.path.isdir(versions) else []:
        path = os.path.join(versions, name, "bin", "python3")
        if re.fullmatch(re.escape(wanted) + r"(\.[0-9]+)*", name) and os.access(path, os.X_OK):
            found.append(([int(part) for part in name.split(".")], path))
    return max(found)[1] if found else None


def build_python(root: str, wanted: str, variables: Mapping[str, str]) -> str:
    """Return the path of a Python that pyenv has or builds.

    Args:
        root: PYENV_ROOT, which nodes may share: one of them builds at a time, the others wait.
        wanted: a version; for 3.11 the newest that pyenv has, or else can build.
        variables: environment variables; PYTHON_BUILD_MIRROR_URL and PYTHON_BUILD_CACHE_PATH name the
            sources.

    Raises:
        NodeError: the build failed; the text has the end of its log.
    """
    with _alone(root):
        found = pyenv_python(root, wanted)
        if found is None:
            argv = [pyenv_program(root), "install", "--skip-existing", wanted]
            run_program(argv, "build Python {0}".format(wanted), dict(variables, PYENV_ROOT=root))
            found = pyenv_python(root, wanted)
    if found is None:
        raise NodeError("pyenv has built no Python {0} in {1}".format(wanted, root))
    # pyenv builds in place, so a killed build leaves an incomplete Python.
    if not _makes_environments(found):
        prefix = os.path.dirname(os.path.dirname(found))
        raise NodeError(
            "{0} is not whole: remove it (pyenv uninstall {1})".format(prefix, os.path.basename(prefix))
        )
    return found


@contextlib.contextmanager
def _alone(root: str) -> Iterator[None]:
    """Hold the lock on PYENV_ROOT, unless this user may not write there and so cannot build."""
    try:
        os.makedirs(root, exist_ok=True)
        file = open(os.path.join(root, LOCK), "w", encoding="utf-8")  # noqa: SIM115  # closed below
    except OSError:
        yield
        return
    with file:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run_program(argv: List[str], what: str, variables: Mapping[str, str], directory: str = "") -> str:
    """Run a program and return its output.

    Raises:
        NodeError: it failed; the text has its error, its last output, and the path of its log.
    """
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(variables),
            cwd=directory or None,
            timeout=_LIMIT_S,
            check=False,
            universal_newlines=True,
        )
    except subprocess.TimeoutExpired:
        raise NodeError("it took more than {0} s to {1}".format(_LIMIT_S, what)) from None
    if done.returncode:
        wrote = done.stderr if done.stderr.strip() else done.stdout
        output = [line.strip() for line in wrote.splitlines() if line.strip()]
        log = re.search(r"Results logged to (\S+)", wrote)
        raise NodeError(
            "{0} could not {1}: {2}{3}".format(
                os.path.basename(argv[0]),
                what,
                _in_short(output),
                " (all of it is in {0})".format(log.group(1)) if log else "",
            )
        )
    return done.stdout


def _in_short(lines: List[str]) -> str:
    """Return a program's last output; if it is long, the beginning of its error and the end."""
    # uv's error message can be longer than the end of a log.
    errors = [number for number, line in enumerate(lines) if line.lower().startswith("error: ")]
    text = " ".join(lines[max(0, min([len(lines) - _LAST_LINES, *errors[-1:]])) :])
    if len(text) <= _SHOWN:
        return text
    if not errors:
        return text[-_SHOWN:]
    error, half = " ".join(lines[errors[-1] :]), _SHOWN // 2
    return error if len(error) <= _SHOWN else "{0} ... {1}".format(error[:half], error[-half:])

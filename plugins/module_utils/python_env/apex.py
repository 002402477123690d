# SPDX-License-Identifier: GPL-3.0-or-later
"""Installs NVIDIA's apex in an environment, from the user's source, for programs that need it.

Our trainer does not use it. nvcc compiles its extensions against a torch for CUDA, which often fails. Then it
is installed without them, or not at all, and a warning names what is missing.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from typing import List, Mapping, Sequence, Tuple

LOG = "apex.log"
"""The builds' log in the environment."""
OPTIONS = ("--cpp_ext", "--cuda_ext")
# Later versions of apex read variables instead.
VARIABLES = {"APEX_CPP_EXT": "1", "APEX_CUDA_EXT": "1"}
_LIMIT_S = 7200
_PINNED = re.compile(r"git\+[^\s]+@[0-9a-f]{40}")


SAFE_WAYS = "use ssh, a credential helper of git's on the node, or a directory"


def has_credentials(address: str) -> bool:
    """Return whether an address contains a password, or an HTTP user, which is usually a token.

    >>> has_credentials("git+ssh://git@example.org/apex")
    False
    >>> has_credentials("https://token@example.org/apex")
    True
    """
    scheme, colon, rest = address.partition("://")
    user, at, _ = rest.partition("/")[0].rpartition("@")
    is_http = scheme.lower().rpartition("+")[2] in ("http", "https")
    return bool(colon and at) and (is_http or ":" in user)


def problem(source: str) -> str:
    """Return why a source is not accepted; empty if it is.

    >>> problem("git+https://example.org/apex@main")
    'python_env_apex git+https://example.org/apex@main names no commit: end it with @ and its 40 digits'
    """
    if has_credentials(source):
        reason = "has a user or a password in its address, which would be in the build's log"
        return "python_env_apex {0}: {1}".format(reason, SAFE_WAYS)
    if source.startswith("git+") and not _PINNED.fullmatch(source):
        return "python_env_apex {0} names no commit: end it with @ and its 40 digits".format(source)
    if not source.startswith(("git+", "/", "~")):
        return (
            "python_env_apex is {0!r}: give a directory or an archive on the node, or git+ADDRESS@COMMIT "
            "(apex of PyPI is another project)".format(source)
        )
    return ""


def command(install: Sequence[str], version: Tuple[int, ...], source: str, extensions: bool) -> List[str]:
    """Return the command that installs apex.

    Args:
        install: pip or uv with its verb `install`.
        version: pip's, since its build options changed in 23.1; (99,) for uv.
        source: a path, or an address.
        extensions: whether to compile them.
    """
    name = "--config-settings=--build-option={0}" if version >= (23, 1) else "--global-option={0}"
    options = [name.format(option) for option in OPTIONS] if extensions else []
    return [*install, "-v", "--no-cache-dir", *options, source]


def install(
    argv: Sequence[str], version: Tuple[int, ...], source: str, variables: Mapping[str, str], log: str
) -> str:
    """Install apex with its extensions, else without; return a sentence on what is missing, or "".

    A build writes into the source directory, which nodes may share, so it uses a copy.

    Args:
        argv: pip or uv with its verb `install`.
        version: as of command().
        source: a path, or an address.
        variables: the program's environment variables.
        log: file for its output.

    Raises:
        OSError: the directory cannot be copied.
    """
    if os.path.isdir(source):
        with tempfile.TemporaryDirectory(prefix="rdm-apex-") as folder:
            copy = os.path.join(folder, "apex")
            shutil.copytree(source, copy, symlinks=True)
            return _install(argv, version, copy, variables, log)
    return _install(argv, version, source, variables, log)


def _install(
    argv: Sequence[str], version: Tuple[int, ...], source: str, variables: Mapping[str, str], log: str
) -> str:
    if _run(command(argv, version, source, True), dict(variables, **VARIABLES), log):
        return ""
    end = _end(log)
    if _run(command(argv, version, source, False), variables, log):
        lost = "it is installed without them, so its fused optimisers, norms and softmax are missing"
    else:
        lost = "nor could it be installed without them, so programs that import it fail"
    return "apex's extensions could not be built: {0}; {1} (all of it is in {2})".format(end, lost, log)


def _run(argv: List[str], variables: Mapping[str, str], log: str) -> bool:
    with open(log, "ab") as file:
        file.write("$ {0}\n".format(" ".join(argv)).encode())
        file.flush()
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=dict(variables),
                timeout=_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            file.write("It took more than {0} s.\n".format(_LIMIT_S).encode())
            return False
    return done.returncode == 0


def _end(log: str) -> str:
    with open(log, encoding="utf-8", errors="replace") as file:
        output = [line.strip() for line in file if line.strip()]
    return " ".join(output[-4:])[-400:]

# SPDX-License-Identifier: GPL-3.0-or-later
"""What launchers need on a host: pdsh, Open MPI, and ssh to other hosts.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Dict, NamedTuple, Sequence, Tuple

_AT_ONCE = 16
_SECONDS = 10


class Program(NamedTuple):
    """A program that launchers run.

    Attributes:
        version: its version; empty if it cannot be used.
        problem: why it cannot be used, as a clause that follows the host's name.
    """

    version: str
    problem: str


class _Kind(NamedTuple):
    argv: Tuple[str, ...]
    version: str
    wanted: str
    otherwise: str


_KINDS = {
    "pdsh": _Kind(
        ("pdsh", "-V"),
        r"pdsh-(\S+)",
        r"rcmd modules: .*\bssh\b",
        "has a pdsh without its module for ssh (package pdsh-rcmd-ssh)",
    ),
    "openmpi": _Kind(
        ("mpirun", "--version"), r"\(Open MPI\) (\S+)", r"\(Open MPI\)", "has an mpirun that is not Open MPI"
    ),
}
PROGRAMS = tuple(_KINDS)


def program(name: str) -> Program:
    """Return the program on the PATH of commands over ssh."""
    kind = _KINDS[name]
    if shutil.which(kind.argv[0]) is None:
        return Program("", "has no {0} on the PATH of commands over ssh".format(kind.argv[0]))
    try:
        done = subprocess.run(
            kind.argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Program("", "has a {0} that cannot be run: {1}".format(kind.argv[0], error))
    output = done.stdout.decode("utf-8", "replace")
    version = re.search(kind.version, output)
    if not version or not re.search(kind.wanted, output):
        return Program("", kind.otherwise)
    return Program(version.group(1), "")


def unreachable(peers: Sequence[Tuple[str, str]], ssh: Sequence[str] = ("ssh",)) -> Dict[str, str]:
    """Return why ssh from here to hosts fails, in ssh's words, by name.

    Args:
        peers: (name, address).
        ssh: the command of the client.
    """
    options = ("-o", "BatchMode=yes", "-o", "ConnectTimeout={0}".format(_SECONDS))

    def log_in(peer: Tuple[str, str]) -> str:
        try:
            done = subprocess.run(
                [*ssh, *options, peer[1], "true"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                timeout=3 * _SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "no answer within {0} s".format(3 * _SECONDS)
        except OSError as error:
            return "ssh cannot be run: {0}".format(error.strerror)
        output = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return (
            "" if done.returncode == 0 else (output or ["exit code {0}".format(done.returncode)])[-1].strip()
        )

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(log_in, peers))
    return {name: output for (name, _), output in zip(peers, answers) if output}

# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds and runs programs of the node, also those on root's PATH, without a shell and with a timeout.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import List

from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError

_PATH = "/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin"


class ProgramProblem(NodeError):  # noqa: N818  # a state of the node, not an error
    """A program failed or timed out. The text is one sentence."""


def find_program(*names: str) -> str:
    """Return the path of the first of these programs that is installed; empty if none is."""
    path = os.pathsep.join([os.environ.get("PATH", ""), _PATH])
    return next((found for found in (shutil.which(name, path=path) for name in names) if found), "")


def run_program(command: List[str], seconds: float) -> str:
    """Return what a program prints.

    Raises:
        ProgramProblem: it fails, times out, or cannot be started.
    """
    name = os.path.basename(command[0])
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=seconds,
            check=False,
            env=dict(os.environ, LC_ALL="C"),
        )
    except subprocess.TimeoutExpired:
        raise ProgramProblem("{0} does not answer within {1:g} s".format(name, seconds)) from None
    except OSError as error:
        raise ProgramProblem("{0} cannot be started: {1}".format(name, error.strerror)) from None
    output = done.stdout.decode("utf-8", "replace")
    if done.returncode != 0:
        # Programs report errors on either stream.
        streams = (done.stderr.decode("utf-8", "replace").strip(), output.strip())
        message = "; ".join(text.splitlines()[-1].strip() for text in streams if text)
        raise ProgramProblem("{0}: {1}".format(name, message or "status {0}".format(done.returncode)))
    return output

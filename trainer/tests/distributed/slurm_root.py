# SPDX-License-Identifier: GPL-3.0-or-later
"""Slurm of another release of the distribution: a directory with its packages, and programs that run in it.

They come from the machine's own package sources, and are kept in .artifacts.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["inside", "root"]

_KEPT = Path(__file__).parents[3] / ".artifacts/slurm"
_PACKAGES = ("slurmrestd", "slurm-wlm-jwt-plugin", "slurm-wlm-basic-plugins", "coreutils")
_TIMEOUT_S = 600
_BOUND = ("dev", "proc", "run", "sys", "tmp")


def root(release: str) -> Path:
    """Return a root directory with a release's Slurm; fetched when there is none yet.

    Args:
        release: Its code name, as ``trixie``, which has Slurm 24.11.
    """
    where = _KEPT / release
    _KEPT.mkdir(parents=True, exist_ok=True)
    with (_KEPT / f"{release}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not where.exists():
            _fetch(release, where)
    return where


def inside(directory: Path) -> tuple[str, ...]:
    """Return a command that becomes its arguments in a directory that has the machine's devices and /tmp."""
    steps = [
        'mount --bind "$0" "$0"',
        *(f'mount --rbind /{name} "$0/{name}"' for name in _BOUND),
        'exec chroot "$0" "$@"',
    ]
    return ("unshare", "--mount", "sh", "-c", " && ".join(steps), str(directory))


def _fetch(release: str, where: Path) -> None:
    own = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.MULTILINE)
    assert own, "the machine does not say which release it is"
    listed = subprocess.run(
        [
            *("apt-get", "indextargets", "--format", "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(SIGNED_BY)"),
            "Created-By: Packages",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    fields = [line.split("|") for line in listed.splitlines()]
    sources = [
        f"deb {f'[signed-by={signed}] ' if signed.startswith('/') else ''}{uri} {release} {component}"
        for uri, suite, component, signed in fields
        if suite == own[1]
    ]
    new = where.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    command = [
        "mmdebstrap",
        "--quiet",
        "--variant=extract",  # nothing is configured: its programs are all that is wanted
        '--aptopt=APT::Install-Recommends "false"',
        f"--include={','.join(_PACKAGES)}",
        release,
        str(new),
        *dict.fromkeys(sources),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    if done.returncode:
        pytest.fail(f"no Slurm of {release} could be fetched:\n{done.stderr[-2000:]}")
    for name in ("bin", "sbin", "lib", "lib64"):
        if not (new / name).exists():
            (new / name).symlink_to(f"usr/{name}")
    for name in _BOUND:
        (new / name).mkdir(exist_ok=True)
    new.rename(where)

# SPDX-License-Identifier: GPL-3.0-or-later
"""Slurm of another release of the distribution: a root directory with its packages, and programs run in it.

The packages come from the machine's own package sources, and are cached in .artifacts. Programs in the root
also see this machine's devices, /tmp, users, Python and the trainer.
"""

from __future__ import annotations

import fcntl
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zlib
from pathlib import Path

import pytest

import rdm_trainer

_ROOTS = Path(__file__).parents[3] / ".artifacts/slurm"
_PACKAGES = (
    *("slurm-client", "slurmctld", "slurmd", "slurmdbd", "slurmrestd"),
    *("slurm-wlm-jwt-plugin", "slurm-wlm-basic-plugins"),
    # Programs of jobs' scripts, and for unmounting the old root.
    *("bash", "coreutils", "dash", "grep", "mount", "procps", "sed"),
    # Only for its libraries, which this machine's Python loads there.
    *("python3", "libstdc++6"),
    *("charliecloud", "squashfs-tools"),
    # An MPI whose processes find each other by PMIx.
    *("libopenmpi40",),
    # Only Debian unstable has it.
    "apptainer",
)
_FALLBACK_RELEASE = "sid"
"""The release of packages that the wanted one lacks."""
_PREFERENCES = rf"Package: *\nPin: release n={_FALLBACK_RELEASE}\nPin-Priority: 100\n"
_TIMEOUT_S = 600
_BOUND = ("/dev", "/proc", "/run", "/sys", "/tmp")
_FILES = ("/etc/group", "/etc/hosts", "/etc/passwd")


def root(release: str) -> Path:
    """Return a root directory with a release's Slurm; fetched when there is none yet.

    Args:
        release: Its code name, such as ``trixie``, which has Slurm 24.11.
    """
    where = _ROOTS / f"{release}-{zlib.crc32(' '.join(_PACKAGES).encode()):08x}"
    _ROOTS.mkdir(parents=True, exist_ok=True)
    with (_ROOTS / f"{release}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Roots with other lists of packages are obsolete.
        for other in set(_ROOTS.glob(f"{release}-*")) - {where}:
            shutil.rmtree(other)
        if not where.exists():
            _fetch(release, where)
    return where


def inside(directory: Path) -> tuple[str, ...]:
    """Return a command that executes its arguments in such a root."""
    steps = [
        'mount --bind "$0" "$0"',
        *(
            f'mkdir -p "$0"{path} && mount --rbind {path} "$0"{path}'
            for path in map(shlex.quote, (*_BOUND, *_python_directories()))
        ),
        *(f'touch "$0{path}" && mount --bind {path} "$0{path}"' for path in _FILES),
        *_python_command(),
        # A process in a plain chroot could not create user namespaces.
        'where=$PWD && cd "$0" && pivot_root . . && umount --lazy .',
        '{ cd "$where" 2>/dev/null || cd /; }',
        'exec "$@"',
    ]
    return ("unshare", "--mount", "sh", "-c", " && ".join(steps), str(directory))


def _python_directories() -> list[str]:
    """Return the directories of this machine's Python and of the trainer."""
    python = sysconfig.get_path("stdlib") if sys.base_prefix == "/usr" else sys.base_prefix
    return list(dict.fromkeys([python, str(Path(rdm_trainer.__file__).parents[1]), sys.prefix]))


def _python_command() -> list[str]:
    """Return a command that replaces the root's Python by ours, if ours is the distribution's own."""
    if sys.base_prefix != "/usr":
        return []
    ours = shlex.quote(str(Path(sys.executable).resolve()))
    return [f'mount --bind {ours} "$0/usr/bin/python3"']


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
        f"deb {f'[signed-by={signed}] ' if signed.startswith('/') else ''}{uri} {wanted} {component}"
        for uri, suite, component, signed in fields
        if suite == own[1]
        for wanted in (release, _FALLBACK_RELEASE)
    ]
    new = where.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    command = [
        "mmdebstrap",
        "--quiet",
        "--variant=extract",  # nothing is configured: only the programs are wanted
        '--aptopt=APT::Install-Recommends "false"',
        # A mirror may be weeks behind. Signatures are still verified.
        '--aptopt=Acquire::Check-Valid-Until "false"',
        f'--setup-hook=printf "{_PREFERENCES}" > "$1/etc/apt/preferences.d/fallback"',
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
    # The installer sets this, and apptainer mounts it in its images.
    (new / "etc/localtime").symlink_to("/usr/share/zoneinfo/Etc/UTC")
    # Debian's alternatives, which configuring the packages would set.
    for program in (new / "usr/sbin").glob("slurm*-wlm"):
        (new / "usr/sbin" / program.name.removesuffix("-wlm")).symlink_to(program.name)
    new.rename(where)

# SPDX-License-Identifier: GPL-3.0-or-later
"""This machine's package sources for builds of images, and the directories of what is built."""

from __future__ import annotations

import glob
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# --- package sources -------------------------------------------------------------------------------------


def release() -> dict[str, str]:
    """Return the fields of /etc/os-release."""
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def source_files() -> dict[str, str]:
    """Return the machine's package sources: file -> text."""
    found = ["/etc/apt/sources.list", *sorted(glob.glob("/etc/apt/sources.list.d/*"))]
    return {
        name: Path(name).read_text(encoding="utf-8", errors="replace")
        for name in found
        if name.endswith((".list", ".sources")) and os.access(name, os.R_OK)
    }


def proxy_options() -> list[str]:
    """Return the proxies that apt is configured to use on this machine."""
    done = subprocess.run(["apt-config", "dump"], stdout=subprocess.PIPE, check=False, text=True)
    wanted = ("Acquire::http::Proxy", "Acquire::https::Proxy")
    return [line for line in done.stdout.splitlines() if line.startswith(wanted)]


# --- directories -----------------------------------------------------------------------------------------


@contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Yield a new directory, which replaces another one when it is complete."""
    new = target.with_name(f"{target.name}.new")
    shutil.rmtree(str(new), ignore_errors=True)
    new.mkdir(parents=True)
    # Nodes read it as another user.
    new.chmod(0o755)
    yield new
    shutil.rmtree(str(target), ignore_errors=True)
    new.rename(target)

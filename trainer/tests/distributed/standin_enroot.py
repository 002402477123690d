#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for enroot, which no package registry has: it takes the same arguments, and runs on the host.

Its messages and exit codes were recorded from enroot 4.1.2. It logs its arguments next to the link to it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

DIRECTORY = Path(sys.argv[0]).parent
CONTAINERS = DIRECTORY / "containers"


def fail(message: str) -> None:
    print(f"[ERROR] {message}", file=sys.stderr)
    sys.exit(1)


def create(option: str, name: str, image: str) -> None:
    assert option == "-n"
    if not Path(image).is_file():
        fail(f"No such file or directory: {image}")
    if (CONTAINERS / name).exists():
        fail(f"File already exists: {CONTAINERS / name}")
    CONTAINERS.mkdir(exist_ok=True)
    (CONTAINERS / name).write_text(image)


def start(*words: str) -> None:
    mounts: list[str] = []
    environment: dict[str, str] = {}
    rest = list(words)
    while rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "-m":
            mounts.append(rest.pop(0))
        elif option == "-e":
            name, given, value = rest.pop(0).partition("=")
            environment[name] = value if given else os.environ.get(name, "")
        else:
            assert option in ("--root", "--rw"), option
    name, *command = rest
    if not (CONTAINERS / name).exists():
        fail(f"No such file or directory: {CONTAINERS / name}")
    log = {"name": name, "image": (CONTAINERS / name).read_text(), "mounts": mounts}
    (DIRECTORY / "arguments.json").write_text(json.dumps(log))
    # As in an image, only the named ones of the node's variables exist.
    os.execvpe(command[0], command, {"PATH": "/usr/bin:/bin", "HOME": "/root", **environment})


verb, *arguments = sys.argv[1:]
if verb == "list":
    print("\n".join(sorted(path.name for path in CONTAINERS.glob("*"))))
else:
    (create if verb == "create" else start)(*arguments)

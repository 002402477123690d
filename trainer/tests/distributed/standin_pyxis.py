#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for pyxis, which no package registry has: an srun that removes pyxis' options.

The real one reads them in a plugin of srun. This one logs its arguments next to the link to it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

DIRECTORY = Path(sys.argv[0]).parent
OPTIONS = ("--container-image=", "--container-mounts=", "--container-name=")

os.environ["PATH"] = os.environ["PATH"].replace(f"{DIRECTORY}:", "")
srun = shutil.which("srun")
assert srun is not None
given = {
    option: word.removeprefix(option)
    for word in sys.argv[1:]
    for option in OPTIONS
    if word.startswith(option)
}
rest = [word for word in sys.argv[1:] if not word.startswith(OPTIONS) and word != "--container-writable"]
if given:
    image, mounts, name = (given[option] for option in OPTIONS)
    log = {"name": name, "image": image, "mounts": mounts.split(",")}
    (DIRECTORY / "arguments.json").write_text(json.dumps(log))
elif "--help" in rest:
    print("      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH", flush=True)
os.execv(srun, [srun, *rest])

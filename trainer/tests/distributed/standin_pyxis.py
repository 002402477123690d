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

BESIDE = Path(sys.argv[0]).parent
TAKES = ("--container-image=", "--container-mounts=", "--container-name=")

os.environ["PATH"] = os.environ["PATH"].replace(f"{BESIDE}:", "")
srun = shutil.which("srun")
assert srun is not None
given = {
    option: word.removeprefix(option) for word in sys.argv[1:] for option in TAKES if word.startswith(option)
}
rest = [word for word in sys.argv[1:] if not word.startswith(TAKES) and word != "--container-writable"]
if given:
    image, mounts, name = (given[option] for option in TAKES)
    told = {"name": name, "image": image, "mounts": mounts.split(",")}
    (BESIDE / "told.json").write_text(json.dumps(told))
elif "--help" in rest:
    print("      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH", flush=True)
os.execv(srun, [srun, *rest])

# SPDX-License-Identifier: GPL-3.0-or-later
"""Pass a value from one task of a run to a later one; Ansible runs each in its own process.

The value is kept in Ansible's temporary directory of this run, which no other user can read, until the later
task takes it. A registered result would go to every callback and to the screen.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from pathlib import Path
from typing import Any

from ansible import constants


def keep(name: str, value: Any) -> None:
    """Keep a value, if possible; otherwise the later task finds none and computes it again."""
    with contextlib.suppress(OSError, pickle.PicklingError, TypeError, AttributeError):
        file = os.open(_path(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(file, "wb") as stream:
            pickle.dump(value, stream, protocol=pickle.HIGHEST_PROTOCOL)


def take(name: str) -> Any:
    """Return the value that was kept, and remove it; None if there is none."""
    path = _path(name)
    try:
        data = path.read_bytes()
        path.unlink()
        return pickle.loads(data)  # noqa: S301  # this run has written it
    except (OSError, EOFError, pickle.UnpicklingError):
        return None


def _path(name: str) -> Path:
    return Path(str(constants.DEFAULT_LOCAL_TMP)) / f"rdm-{name}.pickle"

# SPDX-License-Identifier: GPL-3.0-or-later
"""Pass a value from one process of a run to another; Ansible runs each task of each host in its own.

The value is kept in Ansible's temporary directory of this run, which no other user can read. A registered
result would go to every callback and to the screen.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
from collections.abc import Callable
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


def once(name: str, compute: Callable[[], Any]) -> Any:
    """Return a value that the first process of this run computes; the others wait for it.

    If that raises an exception, the next process computes it.

    Raises:
        OSError: it cannot be kept.
    """
    with open(_path(name), "a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if data := file.read():
            return pickle.loads(data)  # noqa: S301  # this run has written it
        value = compute()
        file.write(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))
        return value


def _path(name: str) -> Path:
    return Path(str(constants.DEFAULT_LOCAL_TMP)) / f"rdm-{name}.pickle"

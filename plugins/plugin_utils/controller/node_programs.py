# SPDX-License-Identifier: GPL-3.0-or-later
"""Pack the programs of rdm_sriov/ for the modules that install them on nodes."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, ClassVar

from ansible_collections.rdm.provision.plugins.module_utils.base.zip_program import (
    COLLECTION,
    digest,
    packed_program,
    to_argument,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals.task_arguments import (
    DroppedArguments,
)

_MAIN = "import sys\n\nfrom {0}.rdm_sriov.{1} import main\n\nsys.exit(main())\n"
_DIRECTORY = Path(__file__).parents[3]


def program(name: str) -> bytes:
    """Return a program of rdm_sriov/ with all its imports, as a zipapp.

    Raises:
        ImportError: one of its imports does not exist.
    """
    return packed_program(_DIRECTORY, _MAIN.format(COLLECTION, name))


def program_argument(name: str) -> str:
    """Return :func:`program` in the form of a module's argument."""
    return to_argument(program(name))


@functools.cache
def program_digest(name: str) -> str:
    """Return the digest of :func:`program`."""
    return digest(program(name))


class BringsProgram(DroppedArguments):
    """Runs the module of the action's name with a program as its argument `packed`."""

    packed: ClassVar[str]

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what the module returns."""
        self._task.args = {**self._task.args, "packed": self.packed}
        return super().run(tmp, task_vars)

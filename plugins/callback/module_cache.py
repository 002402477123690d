# SPDX-License-Identifier: GPL-3.0-or-later
"""Reuse the packed modules of earlier runs; see DOCUMENTATION."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from typing import Any

from ansible import constants, module_utils
from ansible.module_utils.ansible_release import __version__ as ansible_version
from ansible.plugins.callback import CallbackBase
from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals.module_cache import (
    COLLECTIONS,
    cache_home,
    keep,
    key,
    link,
)

DOCUMENTATION = r"""
name: module_cache
type: aggregate
short_description: Reuse the packed modules of earlier runs
version_added: 0.1.0
author: The rdm-provision developers
description:
  - Ansible packs every module in each run, which takes 0.2 to 0.4 seconds of CPU time each while all nodes
    wait. With this callback it finds the modules that earlier runs packed.
  - They are cached in the user's cache directory, C(~/.cache/rdm-provision/modules), by the versions of
    Ansible and Python and by the modules' source files. After a change of a file or a version they are packed
    again.
  - C(rdm-provision) enables it. For plain C(ansible-playbook), set
    C(callbacks_enabled=rdm.provision.module_cache).
requirements:
  - enable in configuration
"""

DIRECTORY = "ansiballz_cache"
"""Where ansible-core looks for packed modules, below a run's directory for temporary files."""


class CallbackModule(CallbackBase):
    """The callback; it acts at the start and the end of a run, and prints nothing."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "rdm.provision.module_cache"
    CALLBACK_NEEDS_ENABLED = True

    def v2_playbook_on_start(self, playbook: Any) -> None:  # noqa: ARG002
        """Link the cached modules into the run's directory."""
        self._run = Path(constants.DEFAULT_LOCAL_TMP) / DIRECTORY
        self._kept: Path | None = None
        # On any error, Ansible packs all modules itself.
        with contextlib.suppress(OSError, RuntimeError):
            self._kept = cache_home() / key(ansible_version, _sources())
            link(self._kept, self._run)

    def v2_playbook_on_stats(self, stats: Any) -> None:  # noqa: ARG002
        """Cache the modules that were packed."""
        if self._kept is not None:
            keep(self._run, self._kept)


def _sources() -> list[Path]:
    """Return the directories of the modules and of their imports."""
    folders = [Path(module_utils.__file__).parent]
    for collection in COLLECTIONS:
        with contextlib.suppress(ImportError):
            found = importlib.import_module(f"ansible_collections.{collection}")
            plugins = Path(next(iter(found.__path__)), "plugins")
            folders += [plugins / "modules", plugins / "module_utils"]
    return folders

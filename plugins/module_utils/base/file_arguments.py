# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of modules that write sets of small files. The doc fragment ``files`` documents them.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

from typing import Any, Dict

from ansible_collections.rdm.provision.plugins.module_utils.base.file_plan import CONTENTS
from ansible_collections.rdm.provision.plugins.module_utils.constants import CONFIG_DIR

_STATE = {"type": "str", "choices": ["present", "absent"], "default": "present"}

FILE_ARGUMENTS: Dict[str, Any] = {
    "directories": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "path": {"type": "str", "required": True},
            "mode": {"type": "str"},
            "state": _STATE,
        },
    },
    "files": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "path": {"type": "str", "required": True},
            "content": {"type": "str"},
            "secret_content": {"type": "str", "no_log": True},
            "ssh_client_config": {
                "type": "dict",
                "options": {
                    "address_map": {"type": "str", "required": True},
                    "port": {"type": "int", "default": 22},
                    "directory": {"type": "str", "default": CONFIG_DIR + "/ssh"},
                },
            },
            "mode": {"type": "str", "default": "0644"},
            "validate": {"type": "list", "elements": "str"},
            "state": _STATE,
        },
        "mutually_exclusive": [CONTENTS],
        "required_if": [["state", "present", CONTENTS, True]],
    },
    "blocks": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "path": {"type": "str", "required": True},
            "name": {"type": "str", "required": True},
            "content": {"type": "str", "default": ""},
            "insert": {"type": "str", "choices": ["start", "end"], "default": "end"},
            "create": {"type": "bool", "default": True},
            "needed_by": {"type": "str", "default": ""},
            "mode": {"type": "str", "default": "0644"},
            "state": _STATE,
        },
    },
    "repairs": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "variable": {"type": "str", "required": True},
            "value": {"type": "str", "required": True},
            "system": {"type": "bool", "required": True},
        },
    },
}

OWNER_MARKER: Dict[str, Any] = {
    "type": "dict",
    "options": {"path": {"type": "str", "required": True}, "name": {"type": "str", "required": True}},
}

# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts that only tools provide: an adapter's firmware settings, and whether the subnet manager answers.

mstconfig (package mstflint) and NVIDIA's mlxconfig print the same; both need root. Calls use no shell and
have a timeout.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.rdm.provision.plugins.module_utils.base.programs import (
    ProgramProblem,
    find_program,
    run_program,
)

FIRMWARE_TOOLS = ("mstconfig", "mlxconfig")
SETTINGS = ("SRIOV_EN", "NUM_OF_VFS")
"""The firmware settings that limit the number of VFs."""

_CONFIGURE_S = 60.0
_ANSWER_S = 20.0
_COLUMNS = {"Default": "default", "Current": "current", "Next Boot": "next"}


def firmware_settings(pci: str) -> Dict[str, Any]:
    """Return the SR-IOV settings of an adapter's firmware.

    Args:
        pci: address of the physical function, such as 0000:41:00.0.

    Returns:
        `tool` (its name, empty for none), `error` (why the rest is missing, else empty), and `current` and
        `next` (the settings now and after the next boot), each with `sriov` (a bool) and `vfs` (a number). A
        value that the firmware does not report is None.
    """
    path = find_program(*FIRMWARE_TOOLS)
    result: Dict[str, Any] = {"tool": os.path.basename(path), "error": ""}
    if not path:
        return dict(result, error="neither mstconfig nor mlxconfig is installed")
    try:
        # -e: print the current settings, too, besides those after the next boot.
        found = parse_settings(run_program([path, "-d", pci, "-e", "query"], _CONFIGURE_S))
    except ProgramProblem as problem:
        return dict(result, error=str(problem))
    if not found:
        return dict(result, error="{0} -d {1} query names none of {2}".format(path, pci, ", ".join(SETTINGS)))
    for column in ("current", "next"):
        values = found.get(column, {})
        result[column] = {"sriov": _truth(values.get("SRIOV_EN")), "vfs": _number(values.get("NUM_OF_VFS"))}
    return result


def set_firmware(pci: str, vfs: int) -> None:
    """Enable SR-IOV with so many VFs in an adapter's firmware, effective after the next boot.

    Raises:
        ProgramProblem: the tool fails, or there is none.
    """
    path = find_program(*FIRMWARE_TOOLS)
    if not path:
        raise ProgramProblem("neither mstconfig nor mlxconfig is installed")
    run_program(set_command(path, pci, vfs), _CONFIGURE_S)


def allows(setting: Mapping[str, Any], vfs: int) -> bool:
    """Return whether a setting, `current` or `next` of :func:`firmware_settings`, allows so many VFs."""
    return bool(setting["sriov"]) and (setting["vfs"] or 0) >= vfs


def set_command(tool: str, pci: str, vfs: int) -> List[str]:
    """Return the command that enables so many VFs in an adapter's firmware."""
    return [tool, "-d", pci, "--yes", "set", "SRIOV_EN=1", "NUM_OF_VFS={0}".format(vfs)]


def parse_settings(output: str) -> Dict[str, Dict[str, str]]:
    """Return `current` and `next` of SETTINGS from the output of `mstconfig -e query`; empty if it has none.

    The heading names the columns: without -e there is only the next boot's. A star before a setting means
        that
    its columns differ.
    """
    columns: List[str] = []
    found: Dict[str, Dict[str, str]] = {}
    for line in output.splitlines():
        if line.startswith("Configurations:"):
            heads = [head for head in re.split(r"\s{2,}", line.partition(":")[2].strip()) if head]
            columns = [_COLUMNS.get(head, "") for head in heads]
            continue
        words = line.lstrip(" *").split()
        if columns and len(words) == len(columns) + 1 and words[0] in SETTINGS:
            for column, value in zip(columns, words[1:]):
                if column:
                    found.setdefault(column, {})[words[0]] = value
    return found


def subnet_manager(device: str, port: int) -> Dict[str, str]:
    """Query the subnet manager from a port with `sminfo`.

    Returns:
        `answer`: `yes`, `no`, or `unknown` if the query was not possible; `text`: sminfo's output.
    """
    path = find_program("sminfo")
    if not path:
        return {"answer": "unknown", "text": "sminfo (package infiniband-diags) is not installed"}
    try:
        printed = run_program([path, "-C", device, "-P", str(port), "-t", "500"], _ANSWER_S)
    except ProgramProblem as problem:
        # The port was opened, but the query got no answer. Other errors do not concern the manager.
        queried = "failed: query" in str(problem)
        return {"answer": "no" if queried else "unknown", "text": str(problem)}
    return {"answer": "yes", "text": printed.strip().splitlines()[-1] if printed.strip() else ""}


def _truth(value: Optional[str]) -> Optional[bool]:
    number = _number(value)
    return None if number is None else bool(number)


def _number(value: Optional[str]) -> Optional[int]:
    """Return the number in a value such as True(1) or 8; None if there is none."""
    match = re.search(r"\(?(\d+)\)?$", value or "")
    return int(match.group(1)) if match else None

# SPDX-License-Identifier: GPL-3.0-or-later
"""Turn the results of a loop of image pulls into sentences on those that failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.rdm.provision.plugins.plugin_utils.errors.image_pull import pull_problem

DOCUMENTATION = r"""
name: pull_problems
short_description: Why images could not be pulled, one sentence for each
description:
  - Returns a sentence that names image, registry and reason for each pull that failed.
author:
  - The rdm-provision developers
positional: _input
options:
  _input:
    description: >-
      What P(community.docker.docker_image_pull#module) registered in a loop over images, each with a C(name).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Report which image could not be pulled, and why
  ansible.builtin.fail:
    msg: "{{ pulled | rdm.provision.pull_problems | join('; ') }}"
"""

RETURN = r"""
_value:
  description: The sentences.
  type: list
  elements: str
"""


def pull_problems(registered: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each pull that failed."""
    return [
        pull_problem(str(result["item"]["name"]), str(result.get("msg", "")))
        for result in registered.get("results") or []
        if result.get("failed")
    ]


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"pull_problems": pull_problems}

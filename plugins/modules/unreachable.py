# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation and options of `rdm.provision.unreachable`, an action that runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: unreachable
short_description: Mark hosts as unreachable for Ansible
description:
  - Makes a host unreachable, in the words of who tried, without trying again. The play goes on without it, as
    after a task that could not reach it.
version_added: 0.2.0
extends_documentation_fragment: rdm.provision.attributes.reads
options:
  hosts:
    description: For each host that cannot be reached, why; others are left as they are.
    type: dict
    required: true
"""

RETURN = r"""
{}
"""

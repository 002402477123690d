# SPDX-License-Identifier: GPL-3.0-or-later
"""Hold the lock of a cluster from the start of a play; see DOCUMENTATION."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible import context
from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase
from ansible_collections.rdm.provision.plugins.plugin_utils.controller import cluster_lock

DOCUMENTATION = r"""
name: cluster_lock
short_description: Hold the lock of a cluster for as long as ansible-playbook runs
version_added: 0.1.0
author: The rdm-provision developers
description:
  - For the keyword C(hosts) of a play that changes a cluster. It returns its argument, and keeps other runs
    from changing the cluster. C(rdm-provision) takes the same lock.
  - ansible-playbook evaluates C(hosts) in its own process, before the play. Tasks run in workers, which end
    with their task, so that a task could not hold the lock.
  - The lock is in C(.rdm/) next to each inventory. Processes that a dead run has left are ended first.
  - Nothing is locked with C(--check), C(--syntax-check) and the listings, nor without an inventory file.
options:
  _terms:
    description: The pattern of hosts.
    type: list
    elements: str
    required: true
  hold:
    description: Whether to hold the lock from here on. If false, the lock is released if this run holds it.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Change the cluster
  hosts: "{{ lookup('rdm.provision.cluster_lock', 'master:workers') }}"
  tasks: []

- name: Watch the job, while others may change the cluster
  hosts: "{{ lookup('rdm.provision.cluster_lock', 'master:workers', hold=false) }}"
  tasks: []
"""

RETURN = r"""
_raw:
  description: The pattern of hosts, as it was given.
  type: list
  elements: str
"""

_CHANGES_NOTHING = ("check", "syntax", "listhosts", "listtasks", "listtags")


class LookupModule(LookupBase):
    """The lookup."""

    def run(self, terms: list[Any], variables: Any = None, **options: Any) -> list[Any]:
        """Take the lock, or release it, and return the terms."""
        self.set_options(var_options=variables, direct=options)
        if any(context.CLIARGS.get(option) for option in _CHANGES_NOTHING):
            return terms
        for home in cluster_lock.homes(variables or {}):
            if not self.get_option("hold"):
                cluster_lock.give_back(home)
                continue
            if files := cluster_lock.held(home):
                # Held by rdm-provision, or for an earlier play.
                for file in files:
                    os.set_inheritable(file, False)
                continue
            try:
                cluster_lock.take(home, _what())
            except cluster_lock.Busy as busy:
                raise AnsibleError(f"{busy}: {busy.hint}") from None
        return terms


def _what() -> str:
    """Return the user's command in short."""
    playbooks = [str(name) for name in context.CLIARGS.get("args") or ()]
    return " ".join(["ansible-playbook", *(Path(name).name for name in playbooks)])

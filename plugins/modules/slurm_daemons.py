#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring Slurm's daemons on a host into their desired state, or stop them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_daemons
short_description: Bring Slurm's daemons on a host to their configuration, or stop them
description:
  - Starts what does not run, restarts what was started with another configuration, and has slurmctld read
    again what it can take without a restart. Running jobs go on in each case.
  - Makes the accounting database, which slurmdbd uses without a password as the system's user C(slurm), and
    adds cluster, accounts and users to it.
  - Uses systemd, or the packages' init scripts where systemd does not run.
version_added: 0.3.0
extends_documentation_fragment: rdm.provision.attributes.changes
options:
  state:
    description:
      - Whether they run. V(absent) stops what V(present) has started, and MariaDB only where it did not run
        before.
    type: str
    choices: [present, absent]
    default: present
  cluster:
    description: Name of the cluster.
    type: str
    required: true
  daemons:
    description:
      - Those of this host, C(munge), C(mariadb), C(slurmdbd), C(slurmctld), C(slurmd) and
        C(slurmrestd).
      - Each has C(restart), a digest of what it has to be started with, and C(reload), one of what it has to
        have read. C(slurmrestd) has C(address) as well, the C(HOST:PORT) where it has to listen.
    type: dict
    default: {}
  directories:
    description: Those that they keep their state in.
    type: list
    elements: str
    default: []
  database:
    description: Name of the accounting database; letters, digits and C(_).
    type: str
    default: ""
  accounts:
    description: Accounts, each with its users.
    type: dict
    default: {}
  token_key:
    description: File of the key that tokens are signed with, made when it is missing. Empty means none.
    type: path
    default: ""
  purge:
    description: Whether V(absent) also removes the accounting database and slurmctld's state.
    type: bool
    default: false
  timeout:
    description: Seconds within which a daemon has to answer.
    type: float
    default: 60
"""

EXAMPLES = r"""
- name: Run slurmd
  rdm.provision.slurm_daemons:
    cluster: rdm
    daemons:
      munge: {restart: 5d41402abc4b2a76}
      slurmd: {restart: 7d793037a0760186}
"""

RETURN = r"""
actions:
  description: What was done, or would be done.
  returned: always
  type: list
  elements: str
  sample: [start munge, start slurmd]
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.slurm import daemons

ARGUMENT_SPEC: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "cluster": {"type": "str", "required": True},
    "daemons": {"type": "dict", "default": {}},
    "directories": {"type": "list", "elements": "str", "default": []},
    "database": {"type": "str", "default": ""},
    "accounts": {"type": "dict", "default": {}},
    "token_key": {"type": "path", "default": "", "no_log": False},
    "purge": {"type": "bool", "default": False},
    "timeout": {"type": "float", "default": 60},
}


@as_module(ARGUMENT_SPEC)
def main(module: AnsibleModule) -> Dict[str, Any]:
    """Make or remove the daemons, and return the module's result."""
    options = module.params
    if options["state"] == "absent":
        actions = daemons.absent(options, module.check_mode)
    else:
        actions = daemons.make_directories(options["directories"], module.check_mode)
        if options["token_key"]:
            actions += daemons.make_key(options["token_key"], module.check_mode)
        actions += daemons.present(options, module.check_mode)
    result: Dict[str, Any] = {"changed": bool(actions), "actions": actions}
    if module._diff:
        result["diff"] = {"before": "", "after": "".join("{0}\n".format(action) for action in actions)}
    return result


if __name__ == "__main__":
    main()

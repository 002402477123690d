# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation and options of `rdm.provision.run_on_all`, an action that runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_on_all
short_description: Run a module that only reads on all hosts of a play, from one task
description:
  - Makes the connections itself, with each host's own connection, become and shell plugins and variables, in
    as many threads as there are forks. An ordinary task costs a process for each host.
  - Run it once. A host with special settings is not queried, or its answer is not taken, and RV(plays)
    names it for an ordinary task. That is a host with another connection plugin than those of
    O(connections), with a password, or without pipelining; one on which the module failed or warned; one that
    did not answer within O(timeout).
  - Whether root is used is decided by C(ansible_become), else by C(rdm_become).
  - Register the result under the name that the ordinary task registers, with C(_all) added; that is where
    M(rdm.provision.plan), M(rdm.provision.work) and M(rdm.provision.fabric_result) expect them.
version_added: 0.2.0
extends_documentation_fragment: rdm.provision.attributes.reads
attributes:
  check_mode:
    support: full
    description: The module runs in check mode, too.
options:
  module:
    description: Full name of the module.
    type: str
    required: true
  common:
    description: Arguments that are the same on all hosts.
    type: dict
    default: {}
  arguments:
    description: Further arguments by host.
    type: dict
    default: {}
  alike:
    description:
      - Names of variables that O(common) depends on. A host on which one of them is another than on the host
        that runs this task is left to the ordinary task.
    type: list
    elements: str
    default: []
  connections:
    description: Connection plugins that may be used in threads. Empty leaves all hosts to the ordinary task.
    type: list
    elements: str
    default: [ssh]
  timeout:
    description: Seconds that each host has to answer.
    type: float
    default: 60.0
  interpreters:
    description: What an earlier call returned as C(interpreters).
    type: dict
    default: {}
"""

RETURN = r"""
answers: {description: "What the module returned, by host.", returned: always, type: dict}
lost:
  description: The hosts that could not be reached, and why.
  returned: always
  type: dict
  sample: {n7: "Failed to connect to the host via ssh: ssh: connect to host n7 port 22: No route to host"}
others:
  description: The hosts that are left to an ordinary task, and why.
  returned: always
  type: dict
  sample: {n3: pipelining is off}
interpreters:
  description: The Python that was found on hosts whose inventory does not name one.
  returned: always
  type: dict
  sample: {n1: /usr/bin/python3.10}
plays:
  description:
    - The hosts of the two plays that are to follow; C(lost), for M(rdm.provision.unreachable), and
      C(others), for the ordinary task.
    - Each ends with one host more, where there is one, that was reached. Ansible ends the whole run when all
      hosts of a play have failed.
  returned: always
  type: dict
  sample: {lost: [n7, n1], others: [n3, n1]}
"""

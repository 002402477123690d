#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build Megatron's compiled helpers in a checkout, for one Python environment."""

from __future__ import annotations

DOCUMENTATION = r"""
module: megatron_helpers
short_description: Build Megatron's compiled helpers in a checkout, for one Python environment
description:
  - Compiles C(megatron/data/helpers.cpp), or C(megatron/core/datasets/helpers.cpp), with the headers that the
    environment's own Python names. No Makefile is edited or run.
version_added: 0.2.0
extends_documentation_fragment: rdm.provision.attributes.no_diff
attributes:
  idempotent:
    support: full
    description: Helpers for this Python that are no older than their source stay.
options:
  state:
    description:
      - Whether they are there. The checkout stays in any case, and so do helpers that this module has not
        built for O(environment), or that somebody has rebuilt since.
    type: str
    choices: [present, absent]
    default: present
  checkout:
    description: Directory of the checkout on the node; C(~) is the user's home and C(%n) the host's name.
    type: str
    required: true
  environment:
    description: Directory of the environment.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Build the helpers of a Megatron checkout
  rdm.provision.megatron_helpers:
    checkout: ~/Megatron-DeepSpeed
    environment: ~/.rdm/%n/python
"""

RETURN = r"""
built:
  description: The compiled module.
  returned: with O(state=present)
  type: str
  sample: /home/me/Megatron-DeepSpeed/megatron/data/helpers.cpython-311-x86_64-linux-gnu.so
removed:
  description: The modules that were removed.
  returned: with O(state=absent)
  type: list
  elements: str
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.python_env import megatron_helpers
from ansible_collections.rdm.provision.plugins.module_utils.python_env.base_python import absolute_path

ARGUMENT_SPEC: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "checkout": {"type": "str", "required": True},
    "environment": {"type": "str", "required": True},
}


@as_module(ARGUMENT_SPEC)
def main(module: AnsibleModule) -> Dict[str, Any]:
    """Build or remove the helpers, and return the module's result."""
    options = module.params
    checkout = absolute_path(options["checkout"], "python_env_megatron")
    environment = absolute_path(options["environment"], "python_env_directory")
    if options["state"] == "absent":
        removed = megatron_helpers.built_for(checkout, environment)
        if not module.check_mode:
            megatron_helpers.remove(removed)
        return {"changed": bool(removed), "removed": removed}
    what = megatron_helpers.plan(checkout, environment)
    changed = not what.is_built
    if changed and not module.check_mode:
        megatron_helpers.build(what, environment)
    return {"changed": changed, "built": what.target}


if __name__ == "__main__":
    main()

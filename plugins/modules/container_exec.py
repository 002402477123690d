#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a command in a node's training container."""

from __future__ import annotations

DOCUMENTATION = r"""
module: container_exec
short_description: Run a command in a cluster's training container
description:
  - Runs a command in the container of the node that carries the cluster's labels, whatever its name.
  - The command is a list of arguments; no shell sees it.
  - It fails when the command's exit code is not 0, and when there is no such container or it does not run.
version_added: 0.1.0
author: The rdm-provision developers
attributes:
  check_mode:
    support: none
    description: What a command would do is not known, so that in check mode it is not run.
  diff_mode:
    support: none
    description: What a command changes is not known.
  idempotent:
    support: none
    description: The command runs each time.
options:
  cluster:
    description: The cluster's name, the value of the label V(rdm.provision.cluster).
    type: str
    required: true
  argv:
    description: The command and its arguments.
    type: list
    elements: str
    required: true
  user:
    description: The user in the container, as V(user) or V(user:group). Empty means the container's own.
    type: str
    default: ""
  timeout:
    description:
      - Seconds after which the module gives up and fails.
      - The engine cannot end a command that it has started, so that the command itself goes on.
    type: float
    default: 600
  stdin:
    description: What the command reads, in Base64. Without it the command has no standard input.
    type: str
"""

EXAMPLES = r"""
- name: Show the GPUs in the container
  rdm.provision.container_exec:
    cluster: rdm
    argv: [rocm-smi, --showid]
"""

RETURN = r"""
container: {description: Name of the container., returned: when there is one, type: str, sample: rdm}
rc: {description: The command's exit code., returned: when the command ran, type: int, sample: 0}
stdout:
  description: What the command wrote. Bytes that are not UTF-8 are replaced.
  returned: when the command ran
  type: str
  sample: node1
stderr:
  description: What the command wrote to its standard error.
  returned: when the command ran
  type: str
  sample: ""
"""

import base64
import re
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI
from ansible_collections.rdm.provision.plugins.module_utils.docker.engine_facts import listed_name
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import label_filter, the_one

ARGUMENT_SPEC: dict[str, Any] = {
    "cluster": {"type": "str", "required": True},
    "argv": {"type": "list", "elements": "str", "required": True},
    "user": {"type": "str", "default": ""},
    "timeout": {"type": "float", "default": 600},
    "stdin": {"type": "str"},
}

# The engine's message if it could not start the command.
_NOT_STARTED = re.compile(
    r"OCI runtime exec failed: .*?(?:exec: )?(\"[^\"]*\": .+?)(?:: unknown)?\s*", re.DOTALL
)


def find_container(api: DockerAPI, cluster: str) -> dict[str, Any]:
    """Return the name and state of the cluster's training container.

    Raises:
        NodeError: there is none, or it does not run; the text is one sentence.
        DockerProblem: the engine failed.
    """
    found = api.get("/containers/json", all=True, filters={"label": label_filter(cluster, "container")})
    if not found:
        raise NodeError(
            "there is no training container of cluster {0} here: bring it up first".format(cluster)
        )
    container = the_one(found)
    name, state = listed_name(container), str(container.get("State", ""))
    if state != "running":
        raise NodeError("the container {0} does not run (it is {1}): bring it up first".format(name, state))
    return {"name": name, "state": state}


@as_module(ARGUMENT_SPEC, check_mode=False)
def main(module: AnsibleModule) -> dict[str, Any]:
    """Run the command and return the module's result."""
    options = module.params
    if not options["argv"]:
        raise NodeError("argv is empty: give a command to run")
    stdin = None if options["stdin"] is None else base64.b64decode(options["stdin"])
    api = DockerAPI()
    name = find_container(api, options["cluster"])["name"]
    ended = api.exec(name, options["argv"], options["timeout"], options["user"], stdin)
    result = {
        "changed": True,
        "container": name,
        "rc": ended.exit_code,
        "stdout": ended.stdout.decode("utf-8", "replace"),
        "stderr": ended.stderr.decode("utf-8", "replace"),
    }
    not_started = _NOT_STARTED.fullmatch(result["stdout"])
    if ended.exit_code != 0 and not_started:
        result.update(failed=True, changed=False, stdout="", msg="it cannot be run: " + not_started.group(1))
    elif ended.exit_code != 0:
        result.update(failed=True, msg="exit code {0}".format(ended.exit_code))
    return result


if __name__ == "__main__":
    main()

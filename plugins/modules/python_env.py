#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a Python environment on a node from a lock file, or remove it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: python_env
short_description: Make a Python environment on a node from a lock file with hashes, or remove it
description:
  - The environment lies beside O(directory), which is a link to it. Another one is made beside the old, and
    takes its place when it is whole; what runs goes on with the old, which is removed by a later run.
  - Its action plugin brings the trainer's wheel, and uv, from the controller when the node needs them.
version_added: 0.2.0
extends_documentation_fragment: rdm.provision.attributes.changes
attributes:
  diff_mode:
    support: full
    description: Shows why.
  idempotent:
    support: full
    description: An environment that was made from the same lock and is whole stays.
options:
  state:
    description: Whether it is there.
    type: str
    choices: [present, absent]
    default: present
  cluster:
    description: Whose it is. What another cluster has made stays.
    type: str
    required: true
  directory:
    description: Its name on the node; C(~) is the user's home and C(%n) the host's name.
    type: str
    required: true
  method:
    description:
      - V(system) takes a Python of the node, its C(venv) and pip. V(pyenv) the same with a Python that
        pyenv has or builds. V(uv) is uv, which the controller brings.
    type: str
    choices: [system, pyenv, uv]
    default: system
  python:
    description: The version, such as V(3.11), or the path of a Python.
    type: str
    default: "3.11"
  lock:
    description: The packages, each pinned and with its hashes.
    type: str
    default: ""
  wheel:
    description: The trainer's wheel, a file on the controller.
    type: str
    default: ""
  program:
    description: Its name and digest.
    type: str
    default: ""
  uv:
    description: The program uv, a file on the controller; for its method.
    type: str
    default: ""
  makes:
    description:
      - Whether this node makes the environment, or removes it. Else it only reads, because another one does
        that for all that share O(directory); a warning says that what should be absent stays.
    type: bool
    default: true
  copies:
    description: Where the action plugin has put the wheel and uv on the node.
    type: dict
    default: {}
  index_url:
    description: The packages' index. Empty means pip's and uv's own.
    type: str
    default: ""
  no_index:
    description: Query no index, only O(find_links).
    type: bool
    default: false
  extra_index_urls:
    description: Further ones.
    type: list
    elements: str
    default: []
  find_links:
    description: Directories on the node, or addresses of pages, with packages.
    type: list
    elements: str
    default: []
  torch_backend:
    description: Which of PyTorch's own indexes is taken as well, such as V(cpu), V(cu128) or V(rocm6.4).
    type: str
    default: ""
  proxy:
    description: For HTTP and HTTPS.
    type: str
    default: ""
  certificates:
    description: File on the node with the certificates that are trusted.
    type: str
    default: ""
  cache:
    description: Directory on the node for what was downloaded. Empty means pip's and uv's own.
    type: str
    default: ""
  python_mirror:
    description: Where uv finds Pythons to install, and pyenv the sources of those that it builds.
    type: str
    default: ""
  python_downloads:
    description: Address, or file on the node, of a list of Pythons for uv, in place of its own.
    type: str
    default: ""
  pyenv_root:
    description: Directory of pyenv and its Pythons (C(PYENV_ROOT)).
    type: str
    default: ~/.pyenv
  space:
    description:
      - GiB that must be free in the file system of O(directory) when an environment needs to be made.
      - Half of it where downloads go to another file system (O(cache)).
    type: float
    default: 0
  apex:
    description:
      - A directory or an archive on the node with NVIDIA's apex, or C(git+ADDRESS@COMMIT), to install too.
      - Where its extensions cannot be built it is installed without, with a warning.
    type: str
    default: ""
  protect:
    description: Environments that other nodes use, where O(directory) is shared; they say so in RV(used).
    type: list
    elements: str
    default: []
  others_known:
    description:
      - Whether all nodes that share O(directory) have reported what they use. If not, no former environment
        is removed.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Make the environment
  rdm.provision.python_env:
    cluster: rdm
    directory: ~/.rdm/%n/python
    method: uv
    lock: "{{ lock.text }}"
    wheel: "{{ lock.wheel }}"
    program: "{{ lock.program }}"
    uv: "{{ lock.uv }}"
"""

RETURN = r"""
directory:
  description: The environment's name on the node.
  returned: success
  type: str
  sample: /home/user/.rdm/n1/python
why: {description: Why it is made., returned: when it is, type: str}
python: {description: The version of its Python., returned: when it is there, type: str, sample: 3.11.2}
needed:
  description: Whether files are needed from the controller. Of use to the action plugin.
  returned: when they are
  type: bool
used:
  description: Environments of the cluster that processes of this node run from.
  returned: when one needs to be made
  type: list
  elements: str
used_by:
  description: A process that runs from the environment, which is not removed for it.
  returned: when it failed for that, with O(state=absent)
  type: int
removed: {description: What was removed., returned: with O(state=absent), type: list, elements: str}
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.base.local_path import local_path
from ansible_collections.rdm.provision.plugins.module_utils.python_env import environment
from ansible_collections.rdm.provision.plugins.module_utils.python_env.base_python import absolute_path

ARGUMENT_SPEC: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "cluster": {"type": "str", "required": True},
    "directory": {"type": "str", "required": True},
    "method": {"type": "str", "choices": ["system", "pyenv", "uv"], "default": "system"},
    "python": {"type": "str", "default": "3.11"},
    "lock": {"type": "str", "default": ""},
    "wheel": {"type": "str", "default": ""},
    "program": {"type": "str", "default": ""},
    "uv": {"type": "str", "default": ""},
    "makes": {"type": "bool", "default": True},
    "copies": {"type": "dict", "default": {}},
    # These URLs may contain a password.
    "index_url": {"type": "str", "default": "", "no_log": True},
    "no_index": {"type": "bool", "default": False},
    "extra_index_urls": {"type": "list", "elements": "str", "default": [], "no_log": True},
    "find_links": {"type": "list", "elements": "str", "default": []},
    "torch_backend": {"type": "str", "default": ""},
    "proxy": {"type": "str", "default": "", "no_log": True},
    "certificates": {"type": "str", "default": ""},
    "cache": {"type": "str", "default": ""},
    "python_mirror": {"type": "str", "default": ""},
    "python_downloads": {"type": "str", "default": ""},
    "pyenv_root": {"type": "str", "default": "~/.pyenv"},
    "space": {"type": "float", "default": 0},
    "apex": {"type": "str", "default": ""},
    "protect": {"type": "list", "elements": "str", "default": []},
    "others_known": {"type": "bool", "default": True},
}


@as_module(ARGUMENT_SPEC)
def main(module: AnsibleModule) -> Dict[str, Any]:
    """Make or remove the environment, and return the module's result."""
    options = module.params
    directory, certificates, cache, pyenv_root = (
        absolute_path(options[name], "python_env_" + variable)
        for name, variable in (
            ("directory", "directory"),
            ("certificates", "certificates"),
            ("cache", "cache_directory"),
            ("pyenv_root", "pyenv_root"),
        )
    )
    downloads = options["python_downloads"]
    if "://" not in downloads:
        downloads = absolute_path(downloads, "python_env_python_downloads")
    result: Dict[str, Any] = {"changed": False, "directory": directory}
    if options["state"] == "absent":
        found = environment.mine(directory, options["cluster"])
        if found and not options["makes"]:
            stays = "{0} stays, for other nodes share it: an env down of all nodes removes it"
            module.warn(stays.format(directory))
            return dict(result, removed=[])
        if module.check_mode:
            environment.require_unused(directory, options["cluster"])
        elif found:
            found = environment.remove(directory, options["cluster"])
        return dict(result, changed=bool(found), removed=found)
    wanted = environment.Wanted(
        *(options[key] for key in ("cluster", "method", "python", "lock", "program", "apex"))
    )
    why = environment.drift(directory, wanted)
    if why:
        result.update(changed=True, why=why)
        if module._diff:
            result["diff"] = {"before": why + "\n", "after": "{0}\n".format(wanted.digest)}
        sources = environment.Sources(
            index_url=options["index_url"],
            no_index=options["no_index"],
            extra_index_urls=options["extra_index_urls"],
            find_links=[local_path(one) for one in options["find_links"]],
            torch_backend=options["torch_backend"],
            proxy=options["proxy"],
            certificates=certificates,
            cache=cache,
            python_mirror=options["python_mirror"],
            python_downloads=downloads,
            pyenv_root=pyenv_root,
        )
        mine = environment.mine(directory, options["cluster"])
        result["used"] = [path for path in mine if environment.in_use(path)]
        if not options["makes"]:
            return result
        environment.require(directory, wanted, sources, int(options["space"] * 2**30))
        copies = options["copies"]
        if not copies or module.check_mode:
            return dict(result, needed=not module.check_mode)
        keep = options["protect"] if options["others_known"] else None
        environment.make(directory, wanted, sources, str(copies["wheel"]), str(copies.get("uv") or ""), keep)
        lost = environment.state_of(directory).get("lost")
        if lost:
            module.warn(lost)
    return dict(result, python=environment.state_of(directory).get("python", ""))


if __name__ == "__main__":
    main()

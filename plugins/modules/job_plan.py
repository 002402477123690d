# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation and options of `rdm.provision.job_plan`, an action that runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: job_plan
short_description: Plan a training job, or refuse it with every problem of every node
description:
  - Decides once for the whole job, on the controller, before anything is started anywhere. Run it once.
  - Stage V(inventory) reads the configuration from the controller, names the job, and chooses its nodes among
    those of the play. It needs no connection.
  - Stage V(nodes) evaluates what M(rdm.provision.job) with C(verb=check) registered on the job's nodes. A
    node that was not reached is a problem.
version_added: 0.2.0
extends_documentation_fragment: rdm.provision.attributes.reads
attributes:
  idempotent:
    support: partial
    description: A new job gets a new name each time, unless it is given one.
options:
  stage:
    description: What to decide from; V(inventory) and configuration alone, or the V(nodes) as well.
    type: str
    choices: [inventory, nodes]
    required: true
  nodes:
    description:
      - The cluster's nodes, as M(rdm.provision.plan) returns them; for stage V(inventory).
      - None where there is only Slurm, which then runs every job.
    type: dict
    default: {}
  config:
    description: The configuration, a YAML file on the controller. Not needed for a job that goes on.
    type: str
    default: ""
  overrides:
    description: Values over the configuration's, each C(key.sub=value).
    type: list
    elements: str
    default: []
  name:
    description: Name of a new job; made of the configuration's name and the time when it is empty.
    type: str
    default: ""
  resume:
    description: Name of a job that is to go on.
    type: str
    default: ""
  login:
    description: The host that jobs are submitted to Slurm from.
    type: str
    default: ""
  before:
    description:
      - Name of the variable in which hosts registered what M(rdm.provision.job) with C(verb=past) says of the
        job of O(resume). It goes on through Slurm if it went that way, and on the nodes that it had.
    type: str
    default: ""
  accelerator:
    description:
      - What the nodes that Slurm gives have, V(rocm), V(cuda) or V(cpu). By default what O(nodes) have.
    type: str
    default: ""
  images:
    description: The images that the inventory lists, by whose names a job of Slurm can call its own.
    type: list
    elements: dict
    default: []
  put_off:
    description:
      - Whether stage V(inventory) leaves to stage V(nodes) to refuse what does not keep the nodes from being
        checked, so that all problems are reported at once.
    type: bool
    default: false
  job:
    description: What stage V(inventory) returned; for stage V(nodes).
    type: dict
    default: {}
  checks:
    description: Name of the variable that the checks were registered in; for stage V(nodes).
    type: str
    default: ""
"""

RETURN = r"""
job:
  description:
    - The job to start, with the fields of C(JobPlan) in C(plugin_utils/jobs/job_plan.py).
    - Also C(master), the name of the first node; C(accelerator); and after stage V(nodes) C(offer), the
      ports that the master found free and the mark of the processes.
  returned: when it is not refused
  type: dict
rdm_refused: {description: "Who refuses, V(inventory) or V(nodes).", returned: when it is refused, type: str}
problems:
  description: Every problem, with C(node), C(value), C(reason) and C(hint).
  returned: when it is refused
  type: list
  elements: dict
"""

# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation and options of the action of this name, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: collective_result
short_description: Evaluate the all-reduce over all nodes
description:
  - Takes how a job ended that ran C(rdm_trainer.tools.all_reduce), and says how fast it was, and for each
    node whether it makes it slow or fail.
  - A node whose exchanges with the others are slow is at fault; one slow pair of two good nodes is a link.
    Of a job that failed, the node counts whose process failed first.
  - It does not fail on a bad result, so that the play can fail the very nodes that are at fault. Run it
    once.
version_added: 0.1.0
extends_documentation_fragment: rdm.provision.attributes.reads
options:
  plan:
    description: The job, as M(rdm.provision.job_plan) planned it.
    type: dict
    required: true
  progress:
    description: Name of the variable that M(rdm.provision.job) was registered in on the job's master.
    type: str
    required: true
  slow_share:
    description: A pair of nodes is slow below this share of the usual bandwidth.
    type: float
    default: 0.5
"""

RETURN = r"""
collective:
  description: >-
    The result: C(ok), C(nodes), C(verdicts) (C(ok) and C(reason) of each), C(findings), C(warnings),
    C(backend), C(ranks), C(sizes) (C(bytes), C(seconds), C(algbw) and C(busbw) in GB/s), C(busbw) (the best),
    C(links_gbit) (node, node, Gb/s), C(rates_gbit) of the nodes' links, C(job).
  returned: always
  type: dict
faulty: {description: "The nodes to fail, and why.", returned: always, type: dict}
msg: {description: The same for people., returned: always, type: str}
"""

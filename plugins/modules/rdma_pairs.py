# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation and options of the action of this name, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rdma_pairs
short_description: Make the rounds in which containers measure RDMA with each other, and evaluate them
description:
  - With V(schedule), takes what M(rdm.provision.rdma_probe) saw on every host, and divides the pairs of those
    that can measure into rounds in which nobody is in two pairs. N nodes take N - 1 rounds, an odd N takes N.
    A large cluster carries out some of them.
  - With V(evaluate), takes what the rounds came to and says for each node whether it is as fast as the
    others, and if not, why. A node most of whose pairs are bad is faulty; a bad pair of two good nodes is a
    link.
  - It does not fail on a bad result, so that the play can fail the very nodes that are at fault. Run it
    once.
version_added: 0.1.0
extends_documentation_fragment: rdm.provision.attributes.reads
options:
  stage:
    description: What to do.
    type: str
    choices: [schedule, evaluate]
    required: true
  nodes:
    description: The whole cluster in the order of ranks, one line C(name MY_IP) per node.
    type: str
    required: true
  gathered:
    description: Name of the variable that M(rdm.provision.rdma_probe) was registered in with V(gather).
    type: str
    required: true
  results:
    description: The same with V(collect); for V(evaluate).
    type: str
    default: ""
  most_rounds:
    description: How many rounds a large cluster carries out.
    type: int
    default: 16
  above:
    description: Up to so many nodes, all rounds.
    type: int
    default: 128
  seconds:
    description: How long one measurement of bandwidth takes.
    type: int
    default: 1
  timeout:
    description:
      - Seconds that a silent partner gets.
      - A whole pair gets four times as long, besides what it measures for.
    type: float
    default: 5.0
  slow_share:
    description: A pair is slow below this share of the usual bandwidth.
    type: float
    default: 0.8
  rails:
    description: >-
      Name and subnet of each rail, where there are several; O(nodes) has the addresses on the first.
    type: dict
    default: {}
    version_added: 0.2.0
  rail:
    description: The name of the rail that is measured; empty where there is only one.
    type: str
    default: ""
    version_added: 0.2.0
  others:
    description: >-
      The results on the rails that were measured before, RV(rdma.rails) of the last one; for V(evaluate).
    type: dict
    default: {}
    version_added: 0.2.0
"""

RETURN = r"""
parts:
  description: For each node that measures, its part of the rounds, for M(rdm.provision.rdma_probe).
  returned: for V(schedule)
  type: dict
first:
  description: The node that reports how far they are; empty when nothing is measured.
  returned: for V(schedule)
  type: str
limit:
  description: Seconds after which the rounds have ended whatever happens.
  returned: for V(schedule)
  type: float
rdma:
  description: >-
    The result: C(ok), C(nodes), C(verdicts) (C(ok) and C(reason) of each), C(findings), C(warnings),
    C(bandwidth_gbit) from node to node and C(latency_us) up to 128 nodes, C(by_node) (medians and the link's
    rate), C(usual_gbit), C(usual_us), C(sample). With several rails, figures are those of the first,
    results of nodes are those of all rails measured so far, and C(rails) has those of each.
  returned: for V(evaluate)
  type: dict
faulty: {description: "The nodes to fail, and why.", returned: for V(evaluate), type: dict}
msg: {description: The same for people., returned: always, type: str}
"""

# SPDX-License-Identifier: GPL-3.0-or-later
"""The image of lab nodes for a Slurm cluster: the node image with the distribution's packages of Slurm."""

from __future__ import annotations

from ansible_collections.rdm.provision.rdm_lab.node_layer import NodeLayer


class SlurmImage(NodeLayer):
    """The image, made or not."""

    repository = "rdm-lab/slurm"
    label = "rdm.provision.lab.slurm"
    what = "Slurm's"
    script = "slurm-layer.sh"
    files = (script, "slurm-node")
    # For the controller, too: any node may be it, and the layer is there only once.
    packages = (
        "mariadb-server",
        "munge",
        "slurm-client",
        "slurm-wlm-jwt-plugin",
        "slurmctld",
        "slurmd",
        "slurmdbd",
        "slurmrestd",
    )

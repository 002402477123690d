# SPDX-License-Identifier: GPL-3.0-or-later
"""The image of lab nodes whose engine is Podman: the node image with the distribution's packages of it."""

from __future__ import annotations

from ansible_collections.rdm.provision.rdm_lab.node_layer import NodeLayer


class PodmanImage(NodeLayer):
    """The image, made or not."""

    repository = "rdm-lab/podman"
    label = "rdm.provision.lab.podman"
    what = "Podman's"
    script = "podman-layer.sh"
    files = (script, "podman-node", "podman-runtime")
    # The role docker_engine installs the same, and runc comes with the node image's Docker Engine.
    packages = ("podman", "netavark", "aardvark-dns", "catatonit")

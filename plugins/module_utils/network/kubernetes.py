# SPDX-License-Identifier: GPL-3.0-or-later
"""The address ranges of a Kubernetes that runs on the node, found without its API.

Interfaces and routes do not show the services' range, and only this node's part of the pods' range. Both
ranges are options of its programs, in their command lines and configuration files.
"""

from __future__ import annotations

import glob
import os
import re
from typing import Any, Iterator

from ansible_collections.rdm.provision.plugins.module_utils.base.host import read_text

_SIGNS = ("etc/kubernetes", "etc/rancher", "var/lib/kubelet", "var/lib/rancher", "var/snap/microk8s")
_NODE = {
    "kubelet": "kubelet",
    "k3s": "k3s",
    "k3s-server": "k3s",
    "k3s-agent": "k3s",
    "rke2": "rke2",
    "kubelite": "microk8s",
}
# The kernel keeps 15 characters of a program's name.
_PROGRAMS = {*_NODE, "kube-apiserver", "kube-controller", "kube-proxy"}
_FILES = (
    "etc/rancher/*/config.yaml",
    "etc/rancher/*/config.yaml.d/*.yaml",
    "etc/kubernetes/manifests/*.yaml",
    "run/flannel/subnet.env",
    "var/snap/microk8s/current/args/kube-*",
)
_RANGE = re.compile(
    r"(cluster-cidr|service-cidr|service-cluster-ip-range|FLANNEL_NETWORK)"
    r"[\"']?[=:\s]+(?:-\s+)?[\"'\[]*([0-9a-fA-F:./,]+)"
)
_PODS = ("cluster-cidr", "FLANNEL_NETWORK")
# Defaults; those of kubelet, which the others may run as well, are kubeadm's.
_ASSUMED = {
    "rke2": {"pods": "10.42.0.0/16", "services": "10.43.0.0/16"},
    "k3s": {"pods": "10.42.0.0/16", "services": "10.43.0.0/16"},
    "microk8s": {"pods": "10.1.0.0/16", "services": "10.152.183.0/24"},
    "kubelet": {"services": "10.96.0.0/12"},
}


def kubernetes(root: str = "/") -> dict[str, Any]:
    """Return the Kubernetes that runs on the node.

    Returns:
        `name`: kubelet, k3s, microk8s or rke2; empty if none runs. `ranges`: each with `range`, `of` (pods or
        services) and `known`: whether it was found on the node, or is the default.
    """
    if not any(os.path.isdir(os.path.join(root, sign)) for sign in _SIGNS):
        return {"name": "", "ranges": []}
    lines = dict(_command_lines(os.path.join(root, "proc")))
    running = {_NODE[program] for program in lines if program in _NODE}
    name = next((one for one in _ASSUMED if one in running), "")
    if not name:
        return {"name": "", "ranges": []}
    paths = (path for pattern in _FILES for path in sorted(glob.glob(os.path.join(root, pattern))))
    found: dict[tuple[str, str], bool] = {}
    for text in (*lines.values(), *map(read_text, paths)):
        for of, network in ranges(text):
            found[of, network] = True
    output = {of for of, _network in found}
    for of, network in _ASSUMED[name].items():
        if of not in output:
            found[of, network] = False
    return {
        "name": name,
        "ranges": [{"range": network, "of": of, "known": known} for (of, network), known in found.items()],
    }


def ranges(text: str) -> Iterator[tuple[str, str]]:
    """Yield the ranges in a command line or a file: pods or services, and the range."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for match in _RANGE.finditer("\n".join(lines)):
        for network in match.group(2).split(","):
            if "/" in network:
                yield "pods" if match.group(1) in _PODS else "services", network


def _command_lines(proc: str) -> Iterator[tuple[str, str]]:
    """Yield program and command line of each Kubernetes process."""
    for path in glob.glob(os.path.join(proc, "[0-9]*", "comm")):
        program = read_text(path).strip()
        if program in _PROGRAMS:
            yield program, read_text(os.path.join(os.path.dirname(path), "cmdline")).replace("\0", " ")

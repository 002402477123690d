"""The ranges of a Kubernetes, from the files of a simulated node."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.network.kubernetes import kubernetes, ranges

NONE = {"name": "", "ranges": []}


def lay_out(root: Path, files: dict[str, str], **processes: str) -> str:
    """Write files and processes (program -> command line) of a node; return its root."""
    for number, (program, line) in enumerate(processes.items(), start=100):
        files = {**files, f"proc/{number}/comm": f"{program}\n", f"proc/{number}/cmdline": line}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


def found(root: str) -> dict[str, tuple[str, bool]]:
    return {one["range"]: (one["of"], one["known"]) for one in kubernetes(root)["ranges"]}


def test_a_node_without_one(tmp_path: Path) -> None:
    assert kubernetes(str(tmp_path)) == NONE
    root = lay_out(tmp_path, {"etc/rancher/k3s/config.yaml": "cluster-cidr: 10.1.0.0/16"}, sshd="sshd")
    assert kubernetes(root) == NONE, "what was left behind uses nothing"


def test_k3s_as_it_comes(tmp_path: Path) -> None:
    root = lay_out(tmp_path, {"var/lib/rancher/k3s/x": ""}, **{"k3s-server": "/usr/local/bin/k3s\0server\0"})
    assert kubernetes(root)["name"] == "k3s"
    assert found(root) == {"10.42.0.0/16": ("pods", False), "10.43.0.0/16": ("services", False)}


def test_k3s_as_its_configuration_and_flannel_say(tmp_path: Path) -> None:
    files = {
        "etc/rancher/k3s/config.yaml": (
            "# cluster-cidr: 10.1.0.0/16\nservice-cidr:\n  - 10.51.0.0/16\n  - fd00::/112\n"
        ),
        "run/flannel/subnet.env": "FLANNEL_NETWORK=10.50.0.0/16\nFLANNEL_SUBNET=10.50.3.1/24\n",
    }
    root = lay_out(tmp_path, files, **{"k3s-agent": "k3s agent"})
    assert found(root) == {"10.51.0.0/16": ("services", True), "10.50.0.0/16": ("pods", True)}


def test_microk8s_as_its_snap_lays_it_out(tmp_path: Path) -> None:
    args = "var/snap/microk8s/current/args"
    files = {f"{args}/kube-apiserver": "--service-cluster-ip-range=10.152.184.0/24\n--secure-port=16443\n"}
    root = lay_out(tmp_path, files, kubelite="/snap/microk8s/7394/kubelite\0--scheduler-args-file=x\0")
    assert kubernetes(root)["name"] == "microk8s"
    assert found(root) == {"10.152.184.0/24": ("services", True), "10.1.0.0/16": ("pods", False)}


def test_kubeadm_on_a_control_plane(tmp_path: Path) -> None:
    manifests = {
        "etc/kubernetes/manifests/kube-apiserver.yaml": "    - --service-cluster-ip-range=10.97.0.0/16\n",
        "etc/kubernetes/manifests/kube-controller-manager.yaml": (
            "    - --cluster-cidr=10.244.0.0/16,fd01::/64\n    - --service-cluster-ip-range=10.97.0.0/16\n"
        ),
    }
    root = lay_out(tmp_path, manifests, kubelet="/usr/bin/kubelet\0--config=/var/lib/kubelet/config.yaml\0")
    assert found(root) == {
        "10.97.0.0/16": ("services", True),
        "10.244.0.0/16": ("pods", True),
        "fd01::/64": ("pods", True),
    }


def test_kubeadm_on_a_worker(tmp_path: Path) -> None:
    root = lay_out(tmp_path, {"etc/kubernetes/kubelet.conf": ""}, kubelet="kubelet")
    assert found(root) == {"10.96.0.0/12": ("services", False)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("k3s server --cluster-cidr 10.1.0.0/16 --service-cidr=10.2.0.0/16", ["10.1.0.0/16", "10.2.0.0/16"]),
        ('service-cidr: "10.2.0.0/16"', ["10.2.0.0/16"]),
        ("cluster-cidr: ['10.1.0.0/16']", ["10.1.0.0/16"]),
        ("cluster-cidr: auto", []),
        ("node-cidr-mask-size=24", []),
    ],
)
def test_ranges_as_they_are_written(text: str, expected: list[str]) -> None:
    assert [network for _of, network in ranges(text)] == expected

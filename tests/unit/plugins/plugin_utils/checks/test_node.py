"""The checks of one node: each problem names the value and what would work."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.checks import devices as device_checks
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.existing import (
    container_seen,
    ended_by_plan,
    network_differences,
    network_present,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.findings import Findings
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.node import (
    check_host,
    check_node,
    with_strays,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import sentences

from tests.unit.plugins.desired_states import ENTRY, wanted
from tests.unit.plugins.node_reports import SOUND, container, network, report

OURS = {"rdm.provision.cluster": "rdm"}
SUBNET = "192.169.16.0/24"
RAILS = ENTRY._replace(rails=("10.1.0.0/24",))


def problems(found: Any, entry: PlanEntry = ENTRY, **changes: Any) -> list[str]:
    return [problem.sentence for problem in check_node(wanted(entry, **changes), found).problems]


def warnings(found: Any, **changes: Any) -> list[str]:
    return sentences(check_node(wanted(**changes), found).warnings)


def with_networks(*networks: dict[str, Any], containers: tuple[Any, ...] = ()) -> Any:
    return report(
        docker_networks=[*report()["docker"]["networks"], *networks], docker_containers=list(containers)
    )


def test_sound_node_passes_without_a_word() -> None:
    assert check_node(wanted(), report()) == ([], [])


@pytest.mark.parametrize(
    ("state", "hint"),
    [
        ("absent", "install Docker"),
        ("stopped", "start the Docker daemon"),
        ("paused", "let the Docker daemon go on"),
        ("forbidden", "add the user to group docker"),
    ],
)
def test_node_whose_engine_cannot_be_used_is_refused(state: str, hint: str) -> None:
    found = report(docker=None, docker_state=state, docker_error="no engine answers at /var/run/docker.sock.")
    [sentence] = problems(found)
    assert sentence.startswith("no engine answers at /var/run/docker.sock: " + hint)


@pytest.mark.parametrize("state", ["absent", "stopped"])
def test_an_engine_may_be_at_another_socket(state: str) -> None:
    found = report(docker=None, docker_state=state, docker_error="no engine answers at /run/nope.sock")
    [sentence] = problems(found, rdm_docker_socket="/run/nope.sock")
    assert sentence.startswith(
        "no engine answers at /run/nope.sock: correct rdm_docker_socket if /run/nope.sock is the wrong path, "
    )
    assert "docker_engine_install" not in sentence, "that one would answer elsewhere"
    [sentence] = problems(found)
    assert sentence.endswith(
        "set docker_engine_install: true, or say where its socket is with rdm_docker_socket"
    )


ROOTLESS = {"kind": "rootless", "name": "ops", "user": "ops", "address": "/run/user/1000/docker.sock"}
CONTEXT = {"kind": "context", "name": "big", "user": "ops", "address": "/srv/docker.sock"}
FAR = {"kind": "context", "name": "far", "user": "ops", "address": "ssh://ops@far"}


def test_another_engine_is_named_where_the_configured_one_is_missing() -> None:
    absent = {"docker": None, "docker_state": "absent", "docker_error": "no engine answers"}
    [sentence] = problems(report(**absent, other_engines=[ROOTLESS]), network_driver="bridge")
    assert sentence.startswith(
        "no engine answers; user ops has a rootless one at /run/user/1000/docker.sock: "
    )
    assert "set rdm_docker_socket: /run/user/1000/docker.sock, or install" in sentence
    [sentence] = problems(report(**absent, other_engines=[ROOTLESS]))
    assert "rootless one at" in sentence
    assert "rdm_docker_socket" not in sentence, "it could not make the network"
    [sentence] = problems(report(**absent, other_engines=[CONTEXT]))
    assert "the engine of ops's Docker context big is at /srv/docker.sock: set rdm_docker_socket:" in sentence
    [sentence] = problems(report(**absent, other_engines=[FAR]))
    assert "the engine of ops's Docker context far is not on this node: install Docker" in sentence
    assert problems(report(**absent, other_engines=[ROOTLESS]), docker_engine_install=True) == []


def test_a_users_other_context_is_a_warning_if_the_engine_answers() -> None:
    found = report(docker_socket="/var/run/docker.sock", other_engines=[ROOTLESS, CONTEXT])
    assert problems(found) == []
    [sentence] = warnings(found)
    assert "Docker context big is at /srv/docker.sock, and the cluster is on /var/run/docker.sock" in sentence


def test_a_rootless_engine_has_no_interface_of_the_node() -> None:
    found = report(docker_socket="/run/user/1000/docker.sock", docker_security_options=["rootless"])
    [sentence] = problems(found)
    assert sentence.startswith(
        "the engine at /run/user/1000/docker.sock is rootless, and network_driver macvlan"
    )
    assert problems(found, network_driver="bridge") == []


def podman(version: str = "4.3.1", **more: Any) -> dict[str, Any]:
    """A report of a node with Podman."""
    has = {"engine": "podman", "version": version, "network_plugins": ["bridge", "macvlan"], **more}
    found = report()
    return {**found, "docker": {**found["docker"], **has}}


SOCKET = "/run/podman/podman.sock"


def test_podman_is_used_where_its_socket_is_named_and_nowhere_else() -> None:
    assert problems(podman(), network_driver="macvlan", rdm_docker_socket=SOCKET) == []
    [sentence] = problems(podman(socket="/run/docker.sock"), network_driver="macvlan")
    assert sentence == (
        "Podman 4.3.1 answers at /run/docker.sock, not a Docker Engine: set rdm_docker_socket: "
        "/run/podman/podman.sock to use Podman, or install Docker Engine 20.10 or newer"
    )


@pytest.mark.parametrize(
    ("found", "want", "sentence"),
    [
        (
            podman(),
            {"network_driver": "sriov"},
            "network_driver sriov cannot be had: Podman 4.3.1 takes no network plugins of Docker's: "
            "choose network_driver bridge or macvlan, or use a Docker Engine",
        ),
        (
            podman(),
            {"network_driver": "ipvlan"},
            "network_driver ipvlan cannot be had: Podman 4.3.1 lacks it: "
            "choose network_driver bridge or macvlan, or use a Docker Engine",
        ),
        (podman("4.2.0"), {}, "Podman 4.2.0 is too old: install Podman 4.3 or newer"),
        (
            podman(security_options=["rootless"]),
            {"network_driver": "bridge"},
            "Podman 4.3.1 runs as a user: set rdm_docker_socket: /run/podman/podman.sock, which is root's, "
            "and leave rdm_become true",
        ),
        (
            podman("5.3.2"),
            {"accelerator": "cuda"},
            "rdm_accelerator cuda cannot be had: the Docker-compatible API of Podman 5.3.2 gives out no "
            "NVIDIA GPUs: install Podman 5.4 or newer, or use a Docker Engine",
        ),
    ],
)
def test_what_podman_cannot_is_refused(found: Any, want: dict[str, Any], sentence: str) -> None:
    assert sentence in problems(found, **{"network_driver": "macvlan", "rdm_docker_socket": SOCKET, **want})


def test_missing_engine_is_no_problem_when_it_will_be_installed() -> None:
    absent = report(docker=None, docker_state="absent", docker_error="none", python_requests=False)
    assert problems(absent, docker_engine_install=True) == []
    assert problems(absent, docker_engine_install=True, rdm_docker_socket="/run/docker.sock") == []
    assert problems(absent, docker_engine_install=True, rdm_docker_socket=SOCKET) == []
    [sentence] = problems(absent, docker_engine_install=True, rdm_docker_socket="/srv/docker.sock")
    assert "rdm_docker_socket /srv/docker.sock is not where an engine that docker_engine_install" in sentence
    assert problems(report(docker=None, docker_state="forbidden"), docker_engine_install=True) != []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"docker_version": "19.03.15", "docker_api_version": "1.40"}, "Docker Engine 19.03.15 is too old"),
        ({"docker_version": "20.10.5+dfsg1", "docker_api_version": "1.40"}, "Docker API 1.40 is too old"),
        ({"docker_version": "unknown"}, "Docker Engine unknown is too old"),
    ],
)
def test_old_engine_is_refused(changes: dict[str, str], words: str) -> None:
    [sentence] = problems(report(**changes))
    assert sentence == f"{words}: install Docker Engine 20.10 or newer"


PLUGIN = {"rdm.provision.cluster": "rdm", "rdm.provision.role": "plugin"}


@pytest.mark.parametrize(
    ("served_by", "unit_of", "state", "labels", "refused"),
    [
        ("", None, "", {}, False),
        ("another", None, "", {}, True),
        ("rdm-sriov", None, "", {}, True),
        ("rdm-sriov", "rdm", "", {}, False),
        ("rdm-sriov", "theirs", "", {}, True),
        ("another", "rdm", "", {}, True),
        ("another", None, "running", PLUGIN, False),
        ("rdm-sriov", None, "running", PLUGIN, False),
        ("another", None, "exited", PLUGIN, True),
        ("another", None, "running", {**PLUGIN, "rdm.provision.cluster": "theirs"}, True),
    ],
)
def test_a_socket_that_is_taken_is_refused_before_anything_is_changed(
    served_by: str, unit_of: str | None, state: str, labels: dict[str, str], refused: bool
) -> None:
    seen = {"unit": unit_of is not None, "cluster": unit_of or "", "socket": "/run/p.sock"}
    others = [{**container("p"), "labels": labels, "state": state}] if state else []
    found = report(network_plugin={**seen, "served_by": served_by}, docker_containers=others)
    messages = [
        line
        for line in problems(found, network_driver="sriov", plugin="rdm-sriov")
        if line.startswith("sriov_socket")
    ]
    assert messages == refused * [
        "sriov_socket /run/p.sock is served by something else already: stop it, or leave it to that "
        "(sriov_enabled: false)"
    ]
    assert not any("sriov_socket" in line for line in problems(found, plugin=""))


def test_an_engine_that_makes_the_upstream_plugin_destructive_refuses_this_one_only() -> None:
    [sentence] = problems(report(), network_driver="sriov", plugin="upstream")
    assert sentence == (
        "sriov_plugin upstream forgets all its networks when it is restarted here: it queries the engine in "
        "API version 1.12, and Docker Engine 27.4.1 refuses those below 1.24: use sriov_plugin: rdm-sriov, "
        "or Docker Engine 24 or older"
    )
    assert problems(report(docker_min_api_version="1.12"), network_driver="sriov", plugin="upstream") == []
    for plugin in ("", "rdm-sriov"):
        assert problems(report(), network_driver="sriov", plugin=plugin) == []
        assert warnings(report(), network_driver="sriov", plugin=plugin) == []


def test_missing_python_package_is_refused() -> None:
    [sentence] = problems(report(python_requests=False))
    assert sentence.endswith("install python3-requests")


def test_findings_of_the_node_are_passed_on() -> None:
    found = report(
        findings=[
            {"level": "error", "what": "x", "text": "it burns."},
            {"level": "warning", "what": "y", "text": "it is warm"},
        ]
    )
    assert problems(found) == ["it burns"]
    assert warnings(found) == ["node1: it is warm."]


def test_accelerator_that_the_node_lacks_is_refused() -> None:
    [sentence] = problems(report(), rdm_accelerator="rocm")
    assert sentence.startswith(
        "rdm_accelerator rocm does not fit the node, which has no GPU that its driver serves"
    )
    [sentence] = problems(report(accelerator="cuda", gpus=[{}] * 8), rdm_accelerator="rocm")
    assert "which has 8 GPUs (cuda): set rdm_accelerator: cuda" in sentence
    whole = {"kfd": True, "dri": ["/dev/dri/renderD128"]}
    assert problems(report(accelerator="rocm", gpus=[{}] * 8, devices=whole), rdm_accelerator="rocm") == []


@pytest.mark.parametrize(
    ("devices", "missing"),
    [
        ({"kfd": False, "dri": ["/dev/dri/renderD128"]}, "/dev/kfd"),
        ({"kfd": True, "dri": []}, "/dev/dri"),
        ({}, "/dev/kfd, /dev/dri"),
    ],
)
def test_rocm_without_its_devices_is_refused(devices: dict[str, Any], missing: str) -> None:
    found = report(accelerator="rocm", gpus=[{}] * 8, devices=devices)
    [sentence] = problems(found, rdm_accelerator="rocm")
    assert sentence.startswith(f"rdm_accelerator rocm needs {missing}, missing here: load amdgpu")
    assert problems(found, rdm_accelerator="rocm", container_devices=[]) == []
    assert problems(found) == [], "a cpu cluster needs none of it"


def test_groups_of_the_user_that_do_not_own_the_gpus_are_a_warning() -> None:
    devices = {"kfd": True, "dri": ["/dev/dri/renderD128"], "groups": [44, 992]}
    found = report(accelerator="rocm", gpus=[{}], devices=devices)
    [sentence] = warnings(found, rdm_accelerator="rocm", container_groups=["44"])
    assert "container_groups lacks 992" in sentence
    for groups in (None, ["44", "992"], ["video"]):
        assert warnings(found, rdm_accelerator="rocm", container_groups=groups) == []


def test_cuda_without_a_way_to_its_gpus_is_refused() -> None:
    cuda = {"accelerator": "cuda", "gpus": [{}] * 8, "devices": {"nvidia": ["/dev/nvidia0"]}}
    [sentence] = problems(report(**cuda), rdm_accelerator="cuda")
    assert sentence.startswith("rdm_accelerator cuda needs NVIDIA's container toolkit, and neither")
    assert "nvidia-ctk runtime configure" in sentence
    for more in ({"nvidia_hook": True}, {"docker_nvidia": ["runtime"]}, {"docker_nvidia": ["cdi"]}):
        assert check_node(wanted(rdm_accelerator="cuda"), report(**cuda, **more)) == ([], [])
    assert problems(report(**cuda), rdm_accelerator="cuda", container_devices=[]) == []
    to_come = report(**cuda, docker=None, docker_state="absent")
    assert problems(to_come, rdm_accelerator="cuda", docker_engine_install=True) != [], (
        "the role installs the engine only"
    )
    bare = report(**{**cuda, "devices": {"nvidia": []}}, nvidia_hook=True)
    assert "there is no /dev/nvidia0 yet" in warnings(bare, rdm_accelerator="cuda")[0]


def test_remapped_users_are_refused_unless_the_container_is_left_out() -> None:
    found = report(docker_security_options=["seccomp", "userns"])
    [sentence] = problems(found)
    assert sentence.startswith("userns-remap of the engine hides the cluster's keys")
    assert "set container_userns_mode: host" in sentence
    assert problems(found, container_userns_mode="host") == []


def test_mounts_of_the_user_under_selinux_are_a_warning() -> None:
    found = report(docker_security_options=["selinux"])
    mounts: dict[str, Any] = {"container_ipc_mode": "private", "container_volumes": ["/data:/d", "/more:/m"]}
    [sentence] = warnings(found, **mounts)
    assert "SELinux may keep the container from /data, /more of container_volumes" in sentence
    assert warnings(found) == []
    assert warnings(report(), **mounts) == []


def test_unused_gpus_are_a_warning() -> None:
    found = report(accelerator="rocm", gpus=[{}] * 4)
    assert problems(found) == []
    assert "its 4 GPUs (rocm) stay unused" in warnings(found)[0]


def test_a_line_of_others_by_which_shells_have_another_address_is_named() -> None:
    stray = {
        "file": "/home/u/.bashrc",
        "line": 12,
        "value": "10.0.0.9",
        "shells": ["login shells", "zsh"],
        "plain": False,
    }
    same = {**stray, "value": wanted().my_ip}
    (warning,) = warnings(report(strays=[stray, same]))
    for words in (
        "/home/u/.bashrc:12",
        "10.0.0.9",
        wanted().my_ip,
        "login shells and in zsh",
        "remove that line",
    ):
        assert words in warning
    on_host = check_host(wanted(), report(strays=[stray]))
    assert [one.value for one in on_host.warnings] == ["/home/u/.bashrc:12"]
    assert "my_ip_repair_strays" not in warning
    (warning,) = warnings(report(strays=[{**stray, "plain": True}]))
    assert "remove that line, or set my_ip_repair_strays: true, which comments it out" in warning


def test_a_line_that_is_repaired_is_work_and_no_warning() -> None:
    stray = {"file": "/home/u/.bashrc", "line": 2, "value": "10.0.0.9", "shells": ["zsh"], "plain": True}
    more = {**stray, "line": 9, "plain": False}
    found = report(strays=[stray, more, {**stray, "value": wanted().my_ip}])
    (warning,) = warnings(found, my_ip_repair_strays=True)
    assert "/home/u/.bashrc:9" in warning
    found["work"] = {"my_ip": ["MY_IP in ~/.bashrc has changed"], "hostfile": ["it is missing"]}
    assert with_strays(found, "") == found["work"]
    assert with_strays(found, wanted().my_ip) == {
        "my_ip": [
            "MY_IP in ~/.bashrc has changed",
            f"/home/u/.bashrc:2 sets MY_IP to 10.0.0.9, which wins over {wanted().my_ip} in zsh",
        ],
        "hostfile": ["it is missing"],
    }


def test_parent_interface_must_exist() -> None:
    [sentence] = problems(report(), network_parent="ib7")
    assert sentence == "network_parent ib7 is not an interface of the node: choose one of eth0, ib0, docker0"
    assert problems(report(), network_parent="ib0.100") == []
    assert problems(report(), network_parent="ib7", network_driver="bridge") == []
    assert problems(report(), network_parent="ib0, eth0", network_driver="sriov") == []
    [sentence] = problems(report(), network_parent="ib0,ib7", network_driver="sriov")
    assert sentence.startswith("network_parent ib7 is not an interface of the node")
    # Docker makes VLAN interfaces for macvlan and ipvlan, and no plugin for sriov.
    [sentence] = problems(report(), network_parent="ib0.100", network_driver="sriov")
    assert sentence.startswith("network_parent ib0.100 is not an interface of the node")


@pytest.mark.parametrize("driver", ["sriov", "macvlan"])
def test_the_sentence_of_a_rail_names_the_variable_of_rails(driver: str) -> None:
    [sentence] = problems(report(), RAILS, network_driver=driver, container_rails=["ib0", "ib7"])
    assert sentence.startswith("container_rails ib7 is not an interface of the node: choose one of eth0, ib0")


def pf(**changes: Any) -> dict[str, Any]:
    """Return a PF as `node_facts` reports it."""
    sound = {
        "pf": "ib0",
        "pci": "0000:41:00.0",
        "total_vfs": 8,
        "num_vfs": 0,
        "driver": "mlx5_core",
        "infiniband": True,
        "autoprobe": True,
        "bond": "",
        "vfs": [],
    }
    return {**sound, **changes}


VF = {
    "index": 0,
    "pci": "0000:41:00.1",
    "driver": "mlx5_core",
    "netdev": "",
    "mac": "",
    "address": "",
    "port": "",
    "policy": "Follow",
    "vlan": None,
    "trust": None,
    "spoof_check": None,
    "by_files": True,
    "host_use": "",
}


FOUR: dict[str, Any] = {"plugin": "rdm-sriov", "sriov_enabled": True, "sriov_vfs": 4}


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([pf()], ""),
        (
            [pf(num_vfs=1, vfs=[VF])],
            "ib0 cannot be changed (it has 1 VFs, not 4) while a container has VF 0",
        ),
        ([pf(total_vfs=2)], "ib0 can have 2 VFs, and 4 are wanted: set sriov_vfs to 2 at most"),
        ([pf(driver="mlx4_core")], "ib0 has the driver mlx4_core (ConnectX-3)"),
        ([pf(bond="bond0")], "ib0 is in the bond bond0"),
        (
            [pf(pf="eth1")],
            "ib0 is to have virtual functions, and has no SR-IOV on this node: choose one of eth1",
        ),
        (
            [],
            "ib0 is to have virtual functions, and has no SR-IOV on this node: switch SR-IOV on",
        ),
    ],
)
def test_vfs_that_cannot_be_made_are_refused(found: list[dict[str, Any]], message: str) -> None:
    sentences = problems(report(sriov=found), **FOUR)
    assert [sentence[: len(message)] for sentence in sentences] == ([message] if message else [])


def test_vfs_need_root() -> None:
    sentences = problems(report(sriov=[pf()]), **FOUR, become=False)
    assert any(sentence.startswith("sriov_vfs needs root") for sentence in sentences)


def below(**changes: Any) -> dict[str, Any]:
    """Return the network's interface as `node_facts` reports it."""
    sound = {
        "name": "ib0",
        "pci": "0000:41:00.0",
        "driver": "mlx5_core",
        "vendor": "0x15b3",
        "total_vfs": 8,
        "num_vfs": 0,
        "virtual": False,
        "bond": "",
        "iommu": "",
        "children": [],
        "siblings": [],
        "infiniband": True,
    }
    return {**sound, **changes}


ON_IB0: dict[str, Any] = {
    "network_driver": "sriov",
    "network_options": {"netdevice": "ib0"},
    "plugin": "rdm-sriov",
}


def test_no_vfs_and_none_to_be_made_are_refused_before_the_plugin_has_none_to_give() -> None:
    none = report(fabric_interfaces=[below()], sriov=[pf()])
    message = (
        "sriov_vfs 0 makes no virtual functions, and ib0 has none now: set sriov_vfs to how many it shall "
    )
    assert problems(none, **ON_IB0) == [message + "have, 8 at most"]
    assert problems(none, **ON_IB0, sriov_vfs=4) == []
    for other in ({"plugin": "upstream"}, {"plugin": ""}, {"network_options": {"mode": "passthrough"}}):
        found = report(fabric_interfaces=[below()], docker_min_api_version="1.12")
        assert problems(found, **{**ON_IB0, **other}) == []
    some = report(fabric_interfaces=[below(num_vfs=2, total_vfs=2)])
    assert problems(some, **ON_IB0) == []


def test_every_pf_without_vfs_is_named_with_what_the_poorest_can_have() -> None:
    found = report(
        interfaces=[{"name": name, "addresses": []} for name in ("ib0", "ib1")],
        fabric_interfaces=[below(), below(name="ib1", pci="0000:42:00.0", total_vfs=4)],
    )
    assert problems(found, RAILS, **ON_IB0, container_rails=["ib0", "ib1"]) == [
        "sriov_vfs 0 makes no virtual functions, and ib0, ib1 have none now: set sriov_vfs to how many each "
        "shall have, 4 at most"
    ]


def test_firmware_that_the_run_repairs_makes_no_vfs_yet() -> None:
    settings = {**ON_IB0, "sriov_firmware": True, "sriov_firmware_vfs": 16}
    found = report(fabric_interfaces=[below(total_vfs=0, firmware={"tool": "mstconfig", "error": "asleep"})])
    refused = problems(found, **settings)
    assert [line.partition(":")[0] for line in refused] == ["firmware"], "the layer below says it all"
    found["fabric_interfaces"][0]["firmware"] = {
        "current": {"sriov": False, "vfs": 0},
        "next": {"sriov": False, "vfs": 0},
    }
    [sentence] = problems(found, **settings)
    assert sentence.startswith("sriov_vfs 0 makes no virtual functions, and ib0 has none now")
    assert sentence.endswith("16 at most")


UPSTREAM_RUNS = {
    **container("rdm-sriov-plugin"),
    "labels": {"rdm.provision.cluster": "rdm", "rdm.provision.role": "plugin"},
}


def moving(held: int, *containers: dict[str, Any], netdevice: str = "ib0") -> Any:
    """A node with the upstream plugin, and containers with all VFs of ib0 but the last ones."""
    vfs = [
        {**VF, "index": one, "pci": f"0000:41:00.{one + 1}", "netdev": "" if one < held else f"ib0v{one}"}
        for one in range(4)
    ]
    on_ib0 = network("ibnet", SUBNET, driver="sriov", options={"netdevice": netdevice}, labels=OURS)
    on_ib0["subnets"] = [{"subnet": SUBNET, "gateway": "192.169.16.1"}]
    found = with_networks(on_ib0, containers=(UPSTREAM_RUNS, *containers))
    found["sriov"] = [pf(num_vfs=4, vfs=vfs)]
    found["fabric_interfaces"] = [below(num_vfs=4)]
    found["network_plugin"] = {**found["network_plugin"], "served_by": "a container", "socket": "/run/p.sock"}
    return found


MOVED: dict[str, Any] = {**ON_IB0, "network_replace": True, "sriov_vfs": 8}


def test_the_containers_that_a_move_from_upstream_ends_hold_no_vfs_against_it() -> None:
    ours = container("rdm", "rdm", ibnet="192.169.16.100")
    assert problems(moving(1, ours), **MOVED) == []
    stays = "ib0 cannot be changed (it has 4 VFs, not 8) while a container has VF 0"
    for found in (
        moving(2, ours),  # one of them is somebody else's
        moving(1, {**ours, "state": "exited"}),
        moving(1, ours, netdevice="ib1"),
    ):
        [sentence] = problems(found, **MOVED)
        assert sentence.startswith(stays)
    # Nothing is removed unless network_replace is set, and that is reported too.
    refused = problems(moving(1, ours), **{**MOVED, "network_replace": False})
    assert any(line.startswith(stays) for line in refused)
    assert any("set network_replace: true" in line for line in refused)


def test_a_virtual_machine_keeps_its_vf_through_a_move_from_upstream() -> None:
    ours = container("rdm", "rdm", ibnet="192.169.16.100")
    found = moving(1, ours)
    found["sriov"][0]["vfs"][0]["driver"] = "vfio-pci"
    [sentence] = problems(found, **MOVED)
    assert "while vfio-pci has VF 0" in sentence


def test_a_move_from_upstream_needs_vfs_to_be_made_though_there_are_some_now() -> None:
    ours = container("rdm", "rdm", ibnet="192.169.16.100")
    assert problems(moving(1, ours), **{**MOVED, "sriov_vfs": 0}) == [
        "sriov_vfs 0 makes no virtual functions, and rdma/sriov-plugin takes those of ib0 with it: set "
        "sriov_vfs to how many it shall have, 8 at most"
    ]


def test_a_move_from_upstream_is_refused_while_the_plugin_serves_others() -> None:
    found = moving(0)
    theirs = network("theirs", "10.9.0.0/24", driver="sriov", options={"netdevice": "ib1"})
    found["docker"]["networks"].append(theirs)
    assert problems(found, **MOVED) == [
        "rdma/sriov-plugin serves theirs, not of this cluster, too, so that it cannot be replaced: remove "
        "it, or keep sriov_plugin: upstream"
    ]


def test_a_vlan_on_infiniband_and_a_partition_on_ethernet_are_refused() -> None:
    node = report(sriov=[pf(), pf(pf="eth0", infiniband=False)])
    more: dict[str, Any] = {"network_driver": "sriov", "network_parent": "ib0", "plugin": "rdm-sriov"}
    assert problems(node, **more, network_options={"vlan": "100"}) == [
        "network_vlan 100 does not fit ib0: that is InfiniBand, which has partitions in the place of VLANs: "
        "leave it out, or set network_pkey to a partition"
    ]
    assert problems(node, **more, network_options={"pkey": "0x8001"}) == []
    more["network_parent"] = "eth0"
    assert problems(node, **more, network_options={"pkey": "0x8001"}) == [
        "network_pkey 0x8001 does not fit eth0: that is Ethernet, which has no partitions: leave it out, or "
        "set network_vlan"
    ]
    assert problems(node, **more, network_options={"vlan": "100"}) == []
    more["container_rails"] = ["eth0", "ib0"]
    assert len(problems(node, RAILS, **more, network_options={"vlan": "100"})) == 1


def test_one_pf_under_two_names_is_refused() -> None:
    twice = ["ib0", "0000:41:00.0"]
    assert problems(report(sriov=[pf()]), **FOUR, sriov_vf_pfs=twice) == [
        "0000:41:00.0 is the same PCI function as ib0: name it once"
    ]


def test_memlock_is_refused_or_accepted_without_a_word_as_the_user_says() -> None:
    limited = report(memlock={"soft": 65536, "hard": 8388608, "raise_allowed": False})
    [sentence] = problems(limited)
    assert sentence.startswith("memlock is limited to 8388608 bytes")
    assert "LimitMEMLOCK=infinity" in sentence
    assert problems(limited, container_memlock_required=False) == []
    assert warnings(limited, container_memlock_required=False) == []


def test_shared_memory_that_would_end_nccl_is_refused() -> None:
    """nccl#606: with 64 MB a training starts, and fails at the first collective."""
    small = report(shared_memory=64 << 20)
    gpus: dict[str, Any] = {"accelerator": "rocm", "slots": 8}
    words = "has 64.0 MiB, and NCCL or RCCL ends without 1.0 GiB for 8 processes: "
    found = [one for one in problems(small, **gpus) if "/dev/shm" in one]
    assert found == [
        f"/dev/shm {words}give it more (mount -o remount,size=50% /dev/shm, and the same in /etc/fstab), or "
        "set container_shm_size: 64G"
    ]
    own = [one for one in problems(small, **gpus, container_shm_size="64M") if "shm" in one]
    assert own == [f"container_shm_size {words}set it to 1G or more, such as 64G"]
    for more in ({"container_shm_size": "64G"}, {"slots": 1}, {"accelerator": "cpu"}):
        assert "shm" not in str(problems(small, **{**gpus, **more}))
    assert "shm" not in str(problems(report(shared_memory=1 << 30), **gpus))


def test_an_interface_that_the_network_cannot_be_on_is_refused() -> None:
    """The engine says `invalid argument` or `device or resource busy`, when the old container is gone."""
    address = ":".join(["80"] * 20)
    found = report(interfaces=[*SOUND["interfaces"], {"name": "ib1", "mac": address, "addresses": []}])
    bond = {"bond": "bond0", "children": [], "siblings": [], "pci": "0000:41:00.0", "name": "eth0"}
    found["fabric_interfaces"] = [{**bond, "iommu": ""}]
    cases = {
        "lo": "is the loopback interface, which reaches no other node: choose one of eth0, ib0, ",
        "ib1": "is InfiniBand, and the kernel puts macvlan on Ethernet only: set network_driver: sriov, or",
        "ib1.5": "is InfiniBand, and the kernel puts macvlan on Ethernet only",
        "eth0": "is a port of the bond bond0, which has all that arrives there: set it to bond0",
    }
    for name, words in cases.items():
        [sentence] = problems(found, network_parent=name)
        assert sentence.startswith(f"network_parent {name} {words}"), sentence
    assert problems(found, network_parent="ib0") == []
    [sentence] = problems(report(), network_driver="sriov", network_parent="lo", plugin="rdm-sriov")
    assert "is the loopback interface" in sentence


def test_vfs_of_what_is_no_pci_device_are_refused() -> None:
    one = {"name": "ib0", "pci": "", "bond": "", "virtual": False, "driver": "", "vendor": "", "iommu": ""}
    found = report(fabric_interfaces=[{**one, "total_vfs": 0, "num_vfs": 0, "infiniband": False}])
    more: dict[str, Any] = {"network_driver": "sriov", "plugin": "rdm-sriov"}
    [sentence] = problems(found, **more)
    assert sentence.startswith("host: network_parent ib0 is no PCI device, and VFs belong to one: name a ca")
    assert problems(found, **more, network_options={"mode": "passthrough"}) == []
    assert problems(found, **more, sriov_command=["stand-in"]) == [], "the lab's"


def test_a_log_that_nobody_can_read_is_refused() -> None:
    found = report(docker_log_driver="none")
    [sentence] = problems(found, container_sshd=True)
    assert sentence.startswith("the engine's log driver none keeps no line of a container's log")
    assert problems(found) == problems(report(docker_log_driver="journald"), container_sshd=True) == []


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("read-only", "is on a file system that is read-only: mount"),
        ("full", "full: free"),
        ("forbidden", "may"),
    ],
)
def test_a_directory_that_cannot_be_written_to_is_refused(why: str, words: str) -> None:
    found = report()
    found["config_dir"] = {"path": "/etc/rdm", "why": why}
    [sentence] = problems(found)
    assert sentence.startswith("/etc/rdm ")
    assert words in sentence


def test_a_login_shell_whose_commands_of_ssh_lack_my_ip_is_a_warning() -> None:
    user = {**SOUND["user"], "name": "ops", "shell": "/bin/dash"}
    [sentence] = warnings(report(user=user), become=False)
    assert sentence.startswith("node1: The login shell of ops, /bin/dash, reads no file for")
    assert warnings(report(user=user)) == [], "PAM gives it to every shell"
    assert warnings(report(user={**user, "shell": "/usr/bin/fish"}), become=False) == []


def test_mirrors() -> None:
    mirror = "http://cache:5000"
    hub = [{"name": "rocm/pytorch:1", "source": "registry"}]
    assert check_node(wanted(images_mirror=[mirror], images_list=hub), report()) == ([], [])
    [sentence] = problems(report(unreachable_mirrors={mirror: "does not answer"}), images_mirror=[mirror])
    assert sentence == f"images_mirror {mirror} does not answer: start it, correct its URL, or leave it out"
    [sentence] = problems(report(), images_mirror=["cache:5000"])
    assert sentence.startswith(
        "images_mirror cache:5000 is not the URL of a mirror: write http(s)://host[:port]"
    )
    [sentence] = problems(
        podman(), network_driver="macvlan", rdm_docker_socket=SOCKET, images_mirror=[mirror]
    )
    assert sentence.startswith("images_mirror is for Docker Engine, and the node has Podman")
    elsewhere = [{"name": "nvcr.io/nvidia/pytorch:1", "source": "registry"}]
    [sentence] = warnings(report(), images_mirror=[mirror], images_list=elsewhere)
    assert sentence.endswith(
        "images_mirror is of no use here: it has mirrors of docker.io only, and nvcr.io/nvidia/pytorch:1 is "
        "from elsewhere; name the mirror in the image's name instead"
    )
    [sentence] = warnings(with_containerd(), images_mirror=[mirror], images_list=elsewhere)
    assert sentence.endswith("; name one as REGISTRY=URL")


def with_containerd(**more: Any) -> Any:
    """A report of a node with the containerd image store."""
    found = report(**more)
    return {**found, "docker": {**found["docker"], "version": "28.5.2", "image_store": "containerd"}}


def test_mirrors_of_named_registries() -> None:
    mirror = "nvcr.io=https://harbor.example.com/nvcr"
    images = [{"name": "nvcr.io/nvidia/pytorch:1", "source": "registry"}]
    assert check_node(wanted(images_mirror=[mirror], images_list=images), with_containerd()) == ([], [])
    installs = wanted(images_mirror=[mirror], docker_engine_install=True)
    assert check_node(installs, report(docker=None, docker_state="absent")).problems == []
    for found, ending in (
        (report(docker_image_store="classic"), "27.4.1 with the classic one"),
        (
            with_containerd() | {"docker": report()["docker"] | {"image_store": "containerd"}},
            "containerd one",
        ),
    ):
        [sentence] = problems(found, images_mirror=["http://cache:5000", mirror])
        assert sentence.startswith(
            f"images_mirror {mirror} needs Docker Engine 28.0 or newer with the containerd"
        )
        assert sentence.endswith(f"{ending}: write the mirror into the image's name")
    [sentence] = problems(
        report(docker_image_store="classic"), images_mirror=["docker.io=https://harbor.example.com/hub"]
    )
    assert sentence.endswith("with the classic one: leave docker.io= and a path out")
    [sentence] = problems(
        with_containerd(), images_mirror=["docker.io=https://harbor.example.com/hub", "http://cache:5000"]
    )
    assert sentence.startswith("images_mirror names mirrors with docker.io= and without it")
    path = "/etc/docker/certs.d/nvcr.io/hosts.toml"
    [sentence] = problems(with_containerd(foreign_mirror_files={"nvcr.io": path}), images_mirror=[mirror])
    assert sentence == (
        f"{path} was not written by rdm-provision for this engine, and images_mirror names mirrors of "
        "nvcr.io: name them in that file, or remove it"
    )
    [sentence] = problems(
        with_containerd(unreachable_mirrors={mirror: "does not answer"}), images_mirror=[mirror]
    )
    assert sentence.startswith(f"images_mirror {mirror} does not answer: start it")


def test_full_disk_is_refused() -> None:
    [sentence] = problems(report(), images_min_free_bytes=200 * 2**30)
    assert sentence.startswith("/var/lib/docker has 100.0 GiB free, and images need 200.0 GiB")
    assert problems(report(), images_min_free_bytes=100 * 2**30) == []
    unknown = report(disk={"path": "/var/lib/docker", "total": 0, "free": 0})
    assert problems(unknown, images_min_free_bytes=1) == []


# --- images ---


def archive(**more: Any) -> dict[str, Any]:
    sound = {"path": "/srv/a.tar", "problem": "", "hint": "", "unpacked": 0, "new_layers": {}}
    return {**sound, **more}


def test_bad_archive_is_refused() -> None:
    found = report()
    found["archives"] = [
        archive(problem="/srv/a.tar does not exist", hint="put it there"),
        archive(),
        archive(problem="'x y' is not an image name", hint="write repository:tag"),
    ]
    assert [tuple(problem) for problem in check_node(wanted(), found).problems] == [
        ("node1", "/srv/a.tar", "does not exist", "put it there"),
        ("node1", "", "'x y' is not an image name", "write repository:tag"),
    ]


def test_disk_must_have_room_for_all_archives_together() -> None:
    large = archive(unpacked=80 * 2**30, new_layers={"sha256:1": 40 * 2**30})
    found = report()
    found["archives"] = [large]
    assert problems(found) == [], "the containerd store takes the layers from the stream"
    found["archives"] = [archive(unpacked=60 * 2**30, new_layers={"sha256:1": 60 * 2**30})]
    [sentence] = problems(found)
    assert "needs 120.0 GiB" in sentence, "and keeps them as blobs, too"
    found["archives"], found["docker"]["image_store"] = [large], "classic"
    [sentence] = problems(found)
    assert sentence.startswith(
        "/var/lib/docker has 100.0 GiB free, and loading the image archives needs 120.0 GiB: "
        "free some space there (docker image prune)"
    )
    found["archives"] = [archive(unpacked=30 * 2**30, new_layers={"sha256:1": 30 * 2**30})]
    assert problems(found) == []
    found["archives"].append(archive(unpacked=40 * 2**30, new_layers={"sha256:2": 40 * 2**30}))
    assert len(problems(found)) == 1
    found["disk"]["free"], found["archives"] = 2**20, [archive(unpacked=3 * 2**19)]
    assert "has 1.0 MiB free, and loading the image archives needs 1.5 MiB" in problems(found)[0]


def test_image_that_nobody_brings_must_be_there() -> None:
    found = report(docker_images=[{"id": "sha256:1", "tags": ["mine:1"]}, {"id": "sha256:2", "tags": []}])
    assert problems(found, container_image="docker.io/library/mine:1", image_listed=False) == []
    assert problems(found, container_image="other:1", image_listed=True) == []
    assert problems(found, container_image=f"other@sha256:{64 * '0'}", image_listed=False) == []
    assert problems(found, container_image="other:1", image_listed=False) == [
        "container_image other:1 is not on the node, and images_list is empty: list it in images_list, or "
        "load it there"
    ]


# --- the network of our name ---


def test_network_as_planned_passes() -> None:
    found = with_networks(network("ibnet", SUBNET, labels=OURS))
    assert network_present(wanted(), found)
    assert network_differences(wanted(), found) == []
    assert problems(found) == []
    assert not network_present(wanted(), report())


@pytest.mark.parametrize(
    ("existing", "difference"),
    [
        (network("ibnet", SUBNET), "it does not carry this cluster's label"),
        (network("ibnet", "10.0.0.0/8", labels=OURS), "subnet is 10.0.0.0/8, not 192.169.16.0/24"),
        (network("ibnet", SUBNET, labels=OURS, driver="ipvlan"), "driver is ipvlan, not macvlan"),
        (network("ibnet", SUBNET, labels=OURS, options={"parent": "eth0"}), "parent is eth0, not ib0"),
        (network("ibnet", SUBNET, labels=OURS, options={}), "parent is none, not ib0"),
        (
            network("ibnet", SUBNET, labels=OURS, subnets=[{"subnet": SUBNET, "gateway": "192.169.16.254"}]),
            "gateway is 192.169.16.254, not 192.169.16.1",
        ),
        (network("ibnet", SUBNET, labels=OURS, subnets=[]), "subnet is none, not 192.169.16.0/24"),
    ],
)
def test_network_with_other_settings_is_refused_until_the_user_says_so(
    existing: dict[str, Any], difference: str
) -> None:
    found = with_networks(existing)
    assert difference in network_differences(wanted(), found)
    [sentence] = problems(found)
    assert sentence.startswith("the Docker network ibnet has other settings: ")
    assert difference in sentence
    assert "network_replace: true" in sentence
    assert problems(found, network_replace=True) == []


@pytest.mark.parametrize("attached", ["running", "stopped"])
def test_network_with_a_foreign_container_is_never_replaced(attached: str) -> None:
    existing = network(
        "ibnet", "10.7.0.0/16", labels=OURS, containers=["guest"] if attached == "running" else []
    )
    on_it = {"ibnet": "10.7.0.9"} if attached == "stopped" else {}
    found = with_networks(
        existing, containers=(container("guest", **on_it), container("rdm", "rdm", ibnet="10.7.0.5"))
    )
    [sentence] = problems(found, network_replace=True)
    assert sentence.endswith("remove guest from it, or choose another network_name")


def test_jobs_end_with_their_containers_network_or_address() -> None:
    trains = {**container("rdm", "rdm", ibnet="192.169.16.100"), "jobs": ["b", "a"]}
    guest = {**container("guest", "beta", ibnet="192.169.16.9"), "jobs": ["c"]}
    kept = with_networks(network("ibnet", SUBNET, labels=OURS), containers=(trains, guest))
    other = with_networks(network("ibnet", "10.7.0.0/16", labels=OURS), containers=(trains, guest))
    assert ended_by_plan(wanted(network_replace=True), kept) == []
    assert ended_by_plan(wanted(), other) == []  # which is refused for itself
    assert ended_by_plan(wanted(network_replace=True), other) == ["a", "b"]
    assert ended_by_plan(wanted(my_ip="192.169.16.7"), kept) == ["a", "b"]
    assert ended_by_plan(wanted(my_ip="192.169.16.7", container_protect_jobs=False), kept) == []
    assert ended_by_plan(wanted(), report(docker=None)) == []


def test_network_of_another_cluster_is_never_replaced() -> None:
    found = with_networks(network("ibnet", SUBNET, labels={"rdm.provision.cluster": "beta"}))
    [sentence] = problems(found, network_replace=True)
    assert sentence == "the Docker network ibnet belongs to the cluster beta: choose another network_name"


# --- containers ---


def test_container_of_our_name_that_is_not_ours_is_refused() -> None:
    [sentence] = problems(with_networks(containers=(container("rdm"),)))
    assert sentence.startswith("a container named rdm exists already and is not this cluster's")
    assert problems(with_networks(containers=(container("rdm", "rdm"),))) == []
    assert problems(with_networks(containers=(container("rdm", "beta"),))) != []


def test_foreign_container_on_our_address_is_refused() -> None:
    guest = container("guest", ibnet="192.169.16.100")
    found = with_networks(network("ibnet", SUBNET, labels=OURS, containers=["guest"]), containers=(guest,))
    [sentence] = problems(found)
    assert sentence.startswith("192.169.16.100 is used by the container guest")


def test_another_container_on_the_network_is_named_and_the_node_whose_address_it_has() -> None:
    ours = network("ibnet", SUBNET, labels=OURS, containers=["guest", "rdm"])
    mine = container("rdm", cluster="rdm", ibnet="192.169.16.100")

    others = {"192.169.16.100": "node1", "192.169.16.101": "node2"}
    takes = with_networks(ours, containers=(mine, container("guest", ibnet="192.169.16.101")))
    assert warnings(takes, others=others) == []
    assert problems(takes, others=others) == [
        "the address 192.169.16.101 of node2 is used by the container guest, which is not this "
        "cluster's: remove that container from the network"
    ]
    shared = with_networks(ours, containers=(mine, container("guest", ibnet="192.169.16.7")))
    assert problems(shared, others=others) == []
    (sentence,) = warnings(shared, others=others)
    assert "is on the network ibnet at 192.169.16.7: the engine may give it the address" in sentence
    assert warnings(with_networks(ours, containers=(mine,))) != []  # guest, of which the engine knows no more
    alone = network("ibnet", SUBNET, labels=OURS, containers=["rdm"])
    assert warnings(with_networks(alone, containers=(mine,))) == []


@pytest.mark.parametrize(
    ("jobs", "words"), [(["gpt"], "The job gpt runs"), (["a", "b"], "The jobs a, b run")]
)
def test_jobs_under_another_clusters_name_are_named(jobs: list[str], words: str) -> None:
    theirs = container("old", cluster="former")
    assert warnings(report(docker_containers=[theirs])) == []
    (sentence,) = warnings(report(docker_containers=[{**theirs, "jobs": jobs}]))
    assert sentence.startswith(f"node1: {words} in the container old of the cluster former")


def test_rdma_devices_that_the_container_does_not_get_are_named_until_the_user_chooses() -> None:
    found = report(
        infiniband=[{"name": "mlx5_0", "netdevs": ["ib0"]}, {"name": "mlx5_1", "netdevs": ["ib1"]}]
    )
    (sentence,) = warnings(found)
    assert "gets the RDMA devices of ib0, and not mlx5_1: set container_rdma to all" in sentence
    assert warnings(found, container_rdma="interface") == warnings(found, container_rdma="all") == []
    # Without a parent there is none to choose by.
    assert warnings(found, network_driver="bridge") == []


def test_rdma_devices_that_stay_out_of_every_container_are_refused() -> None:
    devices = [{"name": "mlx5_0", "netdevs": ["ib0"], "char_devices": ["/dev/infiniband/uverbs0"]}]
    exclusive = {"netns_mode": "exclusive", "ofed": False}
    (sentence,) = problems(report(infiniband=devices, rdma=exclusive))
    assert "the mode exclusive of RDMA devices in network namespaces keeps them from every" in sentence
    assert "rdma system set netns shared, while no container runs" in sentence
    assert problems(report(rdma=exclusive)) == [], "no container is to get one"
    assert problems(report(infiniband=devices, rdma=exclusive), container_devices=[]) == []
    assert problems(report(infiniband=devices, rdma={**exclusive, "netns_mode": "shared"})) == []


def test_in_the_mode_exclusive_what_the_plugin_can_move_is_not_refused() -> None:
    def refused(infiniband: bool = False, systemd: bool = True, run_as: str = "auto", **more: Any) -> str:
        found = report(
            infiniband=[{"name": "mlx5_0", "netdevs": ["ib0"], "char_devices": ["/dev/infiniband/uverbs0"]}],
            rdma={"netns_mode": "exclusive", "ofed": False},
            fabric_interfaces=[{"name": "ib0", "infiniband": infiniband}],
            network_plugin={"systemd": systemd},
        )
        plan = {"network_driver": "sriov", "plugin": "rdm-sriov", "sriov_run_as": run_as}
        findings = Findings([], [])
        device_checks.rdma(wanted(**{**plan, **more}), found, findings)
        return " ".join(problem.sentence for problem in findings.problems)

    assert refused() == ""
    assert "when an InfiniBand device moves to one, the kernel takes its interface away" in refused(True)
    assert "keeps those of ib0 from every container" in refused(True)
    assert "rdma system set netns shared, while no container runs" in refused(True)
    for words in (refused(systemd=False), refused(run_as="container")):
        assert "needs rdm-sriov as a systemd unit: in a container it sees" in words
        assert "set sriov_run_as: unit" in words
    assert refused(systemd=False, run_as="unit") == "", "the module says why there is no unit"
    # All devices of a node, or devices unknown before the start, cannot be moved to a container.
    others: tuple[dict[str, Any], ...] = ({"container_rdma": "all"}, {"plugin": "upstream"})
    for more in others:
        assert "rdm-sriov alone moves one there, its VF's" in refused(**more)


def test_every_problem_is_reported_at_once() -> None:
    found = report(python_requests=False, docker_version="19.03", docker_containers=[container("rdm")])
    assert (
        len(problems(found, rdm_accelerator="rocm", network_parent="ib7", images_min_free_bytes=2**50)) == 6
    )


@pytest.mark.parametrize("kind", ["container", "network"])
def test_another_name_than_what_the_cluster_has_is_refused(kind: str) -> None:
    labels = {**OURS, "rdm.provision.role": kind}
    if kind == "container":
        found = report(docker_containers=[{**container("old"), "labels": labels}])
    else:
        found = with_networks(network("old", "10.9.0.0/24", labels=labels))
    [sentence] = problems(found)
    assert f"a {kind} named old" in sentence
    assert "rdm-provision down" in sentence


def test_a_killed_runs_leftover_container_is_no_other_name() -> None:
    labels = {**OURS, "rdm.provision.role": "container"}
    left = [{**container(name), "image": "i:1", "labels": labels} for name in ("rdm.next", "rdm.old", "rdm")]
    found = report(docker_containers=left)
    assert problems(found) == []
    assert container_seen(wanted(), found)["name"] == "rdm"


def test_a_second_network_on_the_parent_interface_is_refused() -> None:
    found = with_networks(network("theirs", "10.9.0.0/24", driver="macvlan", options={"parent": "ib0"}))
    [sentence] = problems(found)
    assert "network_parent ib0 carries the Docker network theirs already" in sentence
    assert problems(found, network_parent="eth0", network_options={"parent": "eth0"}) == []


def test_a_bare_host_needs_its_address_and_no_engine() -> None:
    found = report(docker=None)
    assert check_host(wanted(my_ip="10.0.0.1"), found) == ([], [])
    [problem] = check_host(wanted(my_ip="10.0.0.2"), found).problems
    assert problem.sentence == (
        "my_ip 10.0.0.2 is no address of the host, which has 10.0.0.1, 172.17.0.1: "
        "set my_ip to the one that it has on the fabric"
    )

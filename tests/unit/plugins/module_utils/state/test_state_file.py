"""A state file is valid exactly as long as nothing has changed that a role manages."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base import shell_files
from ansible_collections.rdm.provision.plugins.module_utils.constants import LABEL_ROLE
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerError
from ansible_collections.rdm.provision.plugins.module_utils.sriov.decision import DesiredPf
from ansible_collections.rdm.provision.plugins.module_utils.sriov.kernel import bring
from ansible_collections.rdm.provision.plugins.module_utils.state import state_file

from tests.unit.plugins.module_utils.sriov.fake_kernel import FakeKernel

INPUTS = dict.fromkeys(("images", "network", "my_ip", "container", "hostfile"), "0" * 16)


class Engine:
    """The parts of an engine's API that a state file queries."""

    def __init__(self) -> None:
        self.container: dict[str, Any] = {
            "Id": "c1",
            "Name": "/rdm",
            "Image": "sha256:aa",
            "Config": {"Env": ["MY_IP=192.169.16.100"], "Labels": {LABEL_ROLE: "container"}},
            "HostConfig": {"Ulimits": [], "RestartPolicy": {"Name": "unless-stopped"}},
            "Mounts": [{"Destination": "/job"}, {"Destination": "/etc/rdm"}],
            "NetworkSettings": {"Networks": {"ibnet": {"NetworkID": "n1", "IPAddress": "192.169.16.100"}}},
            "State": {"Status": "running", "Paused": False},
        }
        self.containers = [self.container]
        self.networks: list[dict[str, Any]] = [
            {"Name": "ibnet", "Id": "n1", "Driver": "macvlan", "Options": {}, "IPAM": {}, "Containers": {}}
        ]
        self.images = {"training:1": "sha256:aa"}

    def get(self, path: str, **query: Any) -> Any:
        if path == "/containers/json":
            assert query["filters"] == {"label": ["rdm.provision.cluster=rdm"]}
            return self.containers
        if path == "/networks":
            return self.networks
        if path.startswith("/images/"):
            name = path[len("/images/") : -len("/json")]
            if name not in self.images:
                raise DockerError(404, "no such image")
            return {"Id": self.images[name]}
        return copy.deepcopy(self.container)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name, mode in (("nodes", 0o644), ("env", 0o644), ("ssh/id_ed25519", 0o600), ("job/hostfile", 0o644)):
        file = tmp_path / "rdm" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name, encoding="utf-8")
        file.chmod(mode)
    return tmp_path / "rdm"


@pytest.fixture
def watch(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    files = [
        shell_files.StartupFile(str(tmp_path / name), "end", True) for name in ("environment", "profile")
    ]
    monkeypatch.setattr(shell_files, "startup_files", lambda *_args, **_kw: files)
    block = "# BEGIN rdm-provision MY_IP (rdm)\nMY_IP=192.169.16.100\n# END rdm-provision MY_IP (rdm)\n"
    (tmp_path / "environment").write_text("LANG=C\n" + block, encoding="utf-8")
    archive = tmp_path / "training.tar"
    archive.write_bytes(b"layers")
    return {
        "cluster": "rdm",
        "vfs": [],
        "config_dirs": [str(home)],
        "job_directory": str(tmp_path),
        "system": True,
        "images": ["training:1"],
        "archives": [str(archive)],
        "users": [],
        "paths": {"sriov": [str(tmp_path / "environment")]},
        "plugin": {},
    }


def _link(path: Path, target: Path) -> None:
    path.unlink()
    path.symlink_to(target)


Plant = Callable[[Path, Engine], object]
PLANTS: dict[str, tuple[Plant, set[str]]] = {
    "a file's content": (lambda home, _: (home / "nodes").write_text("x", encoding="utf-8"), {"my_ip"}),
    "a file's mode": (lambda home, _: (home / "env").chmod(0o666), {"my_ip"}),
    "a file that is gone": (lambda home, _: (home / "job" / "hostfile").unlink(), {"hostfile"}),
    "a file that is a link now": (lambda home, _: _link(home / "env", home / "nodes"), {"my_ip"}),
    "a key": (lambda home, _: (home / "ssh" / "id_ed25519").write_text("x", encoding="utf-8"), {"container"}),
    "a key's mode": (lambda home, _: (home / "ssh" / "id_ed25519").chmod(0o644), {"container"}),
    "a directory's mode": (
        lambda home, _: (home / "ssh").chmod(0o777),
        {"my_ip", "container", "hostfile"},
    ),
    "the directory of jobs": (lambda home, _: home.parent.chmod(0o777), {"container"}),
    "MY_IP in a shell's file": (
        lambda home, _: (home.parent / "environment").write_text("LANG=C\n", encoding="utf-8"),
        {"my_ip"},
    ),
    "a broken block": (
        lambda home, _: (home.parent / "environment").write_text(
            "# BEGIN rdm-provision MY_IP (rdm)\n", encoding="utf-8"
        ),
        {"my_ip"},
    ),
    "a shell's file that was not there": (
        lambda home, _: (home.parent / "profile").write_text("", encoding="utf-8"),
        {"my_ip"},
    ),
    "an archive": (lambda home, _: (home.parent / "training.tar").write_bytes(b"other"), {"images"}),
    "a plugin's socket": (lambda home, _: (home.parent / "environment").unlink(), {"my_ip", "sriov"}),
    "a stopped container": (
        lambda _, engine: engine.container["State"].update(Status="exited"),
        {"container"},
    ),
    "a paused container": (lambda _, engine: engine.container["State"].update(Paused=True), {"container"}),
    "a deleted container": (lambda _, engine: engine.containers.clear(), {"container"}),
    "docker update": (
        lambda _, engine: engine.container["HostConfig"]["RestartPolicy"].update(Name="no"),
        {"container"},
    ),
    "an added network": (
        lambda _, engine: engine.container["NetworkSettings"]["Networks"].update(bridge={}),
        {"container"},
    ),
    "another image of the container": (
        lambda _, engine: engine.container.update(Image="sha256:bb"),
        {"container"},
    ),
    "a mount": (lambda _, engine: engine.container["Mounts"].pop(), {"container"}),
    "an environment": (lambda _, engine: engine.container["Config"]["Env"].append("A=B"), {"container"}),
    "a retagged image": (lambda _, engine: engine.images.update({"training:1": "sha256:bb"}), {"images"}),
    "a removed image": (lambda _, engine: engine.images.clear(), {"images"}),
    "a removed network": (lambda _, engine: engine.networks.clear(), {"network"}),
    "another network": (lambda _, engine: engine.networks[0].update(Options={"parent": "eth9"}), {"network"}),
}


def see(watch: dict[str, Any], engine: Engine, sysfs: str = "/sys") -> state_file.Found:
    return state_file.observe(watch, "sha256:hardware", engine, sysfs)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PLANTS)
def test_foreign_change_is_work_of_the_responsible_role(name: str, home: Path, watch: dict[str, Any]) -> None:
    plant, roles = PLANTS[name]
    engine = Engine()
    before = see(watch, engine)
    assert state_file.drift(before, see(watch, engine)) == {}
    plant(home, engine)
    try:
        found = state_file.drift(before, see(watch, engine))
    finally:
        home.parent.chmod(0o755)
    assert set(found) == roles
    assert all(sentence for sentences in found.values() for sentence in sentences)


def test_other_form_of_an_engines_answer_after_a_restart_is_no_change(watch: dict[str, Any]) -> None:
    engine = Engine()
    engine.container["HostConfig"].update(Dns=None, DnsSearch=None, KernelMemory=0)
    before = see(watch, engine)
    # As 20.10 does, and a newer engine for fields that it has dropped.
    engine.container["HostConfig"].update(Dns=[], DnsSearch=[])
    del engine.container["HostConfig"]["KernelMemory"]
    engine.container["Mounts"].reverse()
    engine.container["Config"]["OnBuild"] = None
    engine.networks[0]["EnableIPv6"] = False
    assert state_file.drift(before, see(watch, engine)) == {}
    engine.container["HostConfig"].update(Dns=["10.0.0.1"])
    assert set(state_file.drift(before, see(watch, engine))) == {"container"}


def test_changed_attribute_of_a_file_is_named(home: Path, watch: dict[str, Any]) -> None:
    key = home / "ssh" / "id_ed25519"
    key.chmod(0o600)
    before = see(watch, Engine())
    key.chmod(0o644)
    now = see(watch, Engine())
    assert state_file.drift(before, now)["container"] == [f"{key} has changed: mode 0644, not 0600"]
    owned = f" of {key.stat().st_uid}:{key.stat().st_gid}"
    now["container"][str(key)] = before["container"][str(key)].replace(owned, " of 1:99")
    assert state_file.drift(before, now)["container"] == [f"{key} has changed: owner 1:99, not {owned[4:]}"]
    key.write_text("other", encoding="utf-8")
    found = state_file.drift(before, see(watch, Engine()))
    assert found["container"] == [f"{key} has changed: content; mode 0644, not 0600"]


def test_values_that_differ_in_each_start_are_no_change(watch: dict[str, Any]) -> None:
    engine = Engine()
    before = see(watch, engine)
    engine.container.update(Id="c2", Created="later")
    engine.container["State"].update(Pid=7, StartedAt="later", ExitCode=1)
    engine.container["Mounts"].reverse()
    engine.networks[0].update(Containers={"c2": {}}, Created="later")
    assert state_file.drift(before, see(watch, engine)) == {}


def test_stopped_container_is_work_despite_a_valid_state_file(watch: dict[str, Any]) -> None:
    engine = Engine()
    engine.container["State"].update(Status="exited")
    before = see(watch, engine)
    assert state_file.drift(before, see(watch, engine)) == {
        "container": ["the container rdm is exited, not running"]
    }


def test_an_address_that_a_container_has_lost_is_never_right_either(
    watch: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine()
    right = see(watch, engine)
    monkeypatch.setattr(state_file, "lost_addresses", lambda container: ["192.169.16.100"])
    lost = see(watch, engine)
    sentence = "the container rdm is without its interface (192.169.16.100), not running"
    assert state_file.drift(right, lost) == state_file.drift(lost, lost) == {"container": [sentence]}


def test_the_state_file_itself_and_files_on_their_way_are_not_checked(
    home: Path, watch: dict[str, Any]
) -> None:
    before = see(watch, Engine())
    (home / state_file.FILE_NAME).write_text("{}", encoding="utf-8")
    for name in (state_file.FORMER_NAME, ".rdm-provision-x1"):
        (home / name).write_text("", encoding="utf-8")
    assert state_file.drift(before, see(watch, Engine())) == {}


def test_changed_hardware_is_work_of_the_container_role(watch: dict[str, Any]) -> None:
    before = see(watch, Engine())
    now = state_file.observe(watch, "sha256:other", Engine())  # type: ignore[arg-type]
    assert set(state_file.drift(before, now)) == {"container"}


def kept(watch: dict[str, Any], home: Path) -> dict[str, Any]:
    text = state_file.text(INPUTS, watch, see(watch, Engine()))
    (home / state_file.FILE_NAME).write_text(text, encoding="utf-8")
    return state_file.read(str(home))


def test_state_file_of_the_previous_release_is_read_and_replaced(home: Path, watch: dict[str, Any]) -> None:
    last = kept(watch, home)
    former = (home / state_file.FILE_NAME).rename(home / state_file.FORMER_NAME)
    former.write_text(former.read_text(encoding="utf-8").replace('"vfs"', '"functions"'), encoding="utf-8")
    assert state_file.read(str(home)) == last
    (home / "cluster").write_text("rdm\n", encoding="utf-8")
    params = {"directory": str(home), "inputs": INPUTS, "watch": watch, "hardware": "", "worked": []}
    assert state_file.keep(params, Engine())  # type: ignore[arg-type]
    assert (former.exists(), (home / state_file.FILE_NAME).exists()) == (False, True)


def test_change_during_the_work_of_other_roles_is_not_recorded_as_correct(
    home: Path, watch: dict[str, Any]
) -> None:
    last = kept(watch, home)
    (home / "nodes").write_text("stray", encoding="utf-8")
    now = see(watch, Engine())
    found = state_file.renewed(last, now, ["container"])
    assert set(state_file.drift(found, now)) == {"my_ip"}
    assert state_file.renewed({}, now, ["container"]) == now


def test_implied_reasons_are_not_repeated(home: Path, watch: dict[str, Any]) -> None:
    engine = Engine()
    before = see(watch, engine)
    engine.container["State"].update(Status="exited")
    engine.container["NetworkSettings"]["Networks"]["ibnet"]["IPAddress"] = ""
    (home / "ssh" / "id_ed25519").unlink()
    (home / "ssh").rmdir()
    assert state_file.drift(before, see(watch, engine))["container"] == [
        f"{home}/ssh is missing",
        "the container rdm is exited, not running",
    ]


def test_jobs_in_the_clusters_directory_are_not_checked(home: Path, watch: dict[str, Any]) -> None:
    watch = {**watch, "job_directory": str(home / "jobs")}
    (home / "jobs" / "gpt").mkdir(parents=True)
    before = see(watch, Engine())
    (home / "jobs" / "gpt" / "log").write_text("iteration 1", encoding="utf-8")
    assert state_file.drift(before, see(watch, Engine())) == {}


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", "{}", '{"inputs": {}, "found": {}, "watch": {"cluster": "rdm"}}']
)
def test_a_damaged_state_file_is_none_and_every_role_runs(
    home: Path, watch: dict[str, Any], damage: str
) -> None:
    assert state_file.read(str(home)) == {}, "there is none"
    odd: list[Any] = [[], {"container": []}]
    for text in (damage, *(state_file.text(INPUTS, watch, found) for found in odd)):
        (home / state_file.FILE_NAME).write_text(text, encoding="utf-8")
        assert state_file.read(str(home)) == {}
    assert set(state_file.to_do({}, INPUTS, {}, None)) == set(INPUTS)


@pytest.mark.parametrize(
    ("inputs", "roles"),
    [
        ({}, set()),
        ({"my_ip": "1" * 16}, {"my_ip"}),
        ({"images": ""}, {"images"}),  # unknown, and so work each time
    ],
)
def test_other_inputs_are_work_for_their_role(
    home: Path, watch: dict[str, Any], inputs: dict[str, str], roles: set[str]
) -> None:
    found = state_file.to_do(kept(watch, home), {**INPUTS, **inputs}, {}, see(watch, Engine()))
    assert set(found) == roles


@pytest.mark.parametrize(
    ("role", "now", "reason"),
    [
        ("my_ip", "1-b", "other variables or another plan"),
        ("images", "1-b", "other variables or another plan, or other archives"),
        ("my_ip", "2-a", "another version of rdm.provision"),
        ("network", "1-a", "other variables, another plan or another version"),  # of the previous release
        ("hostfile", "1-a", "other variables, another plan or another version"),  # it did not work then
    ],
)
def test_the_reason_says_which_inputs_differ(role: str, now: str, reason: str) -> None:
    before = {"found": {}, "inputs": {"my_ip": "1-a", "images": "1-a", "network": "c-v-p"}}
    assert state_file.to_do(before, {role: now}, {}, {}) == {role: [f"it was made from {reason}"]}


def test_disabled_role_has_no_work(home: Path, watch: dict[str, Any]) -> None:
    engine = Engine()
    engine.networks.clear()
    inputs = {role: digest for role, digest in INPUTS.items() if role != "network"}
    assert state_file.to_do(kept(watch, home), inputs, {}, see(watch, engine)) == {}


def test_unreachable_engine_makes_every_role_work(home: Path, watch: dict[str, Any]) -> None:
    assert set(state_file.to_do(kept(watch, home), INPUTS, {}, None)) == set(INPUTS)


def test_keys_are_those_of_the_controller(home: Path, watch: dict[str, Any]) -> None:
    now = see(watch, Engine())
    state = now["container"][str(home / "ssh" / "id_ed25519")]
    mine = state[-16:]
    assert state_file.to_do(kept(watch, home), INPUTS, {"id_ed25519": mine}, now) == {}
    assert set(state_file.to_do(kept(watch, home), INPUTS, {"id_ed25519": "f" * 16}, now)) == {"container"}
    assert set(state_file.to_do(kept(watch, home), INPUTS, {"id_ed25519": ""}, now)) == {"container"}
    gone = state_file.to_do(kept(watch, home), INPUTS, {"ssh_host_ed25519_key": mine}, now)
    assert gone == {"container": ["the cluster's key in ssh_host_ed25519_key is missing"]}


def test_a_large_file_counts_by_size_and_time(home: Path, watch: dict[str, Any]) -> None:
    large = home / "job" / "large"
    large.write_bytes(b"\0" * (1 << 21))
    before = see(watch, Engine())
    os.utime(large, (1, 1))
    assert set(state_file.drift(before, see(watch, Engine()))) == {"my_ip", "container", "hostfile"}


IB0 = "bus/pci/devices/0000:41:00.0"
GUIDS = [f"06:5e:91:ff:fe:06:40:0{number}" for number in range(4)]
Meddle = Callable[[FakeKernel], object]


@pytest.mark.parametrize(
    ("meddle", "message"),
    [
        (lambda kernel: kernel.make("0000:41:00.0", 0), "the number of VFs of ib0 is 0, not 4"),
        (
            lambda kernel: kernel.unbind("0000:41:00.3"),
            f"VF 2 of ib0 is unbound with {GUIDS[2]}, Follow, not bound with {GUIDS[2]}, Follow",
        ),
        (
            lambda kernel: kernel.write(f"{IB0}/sriov/1/policy", "Down"),
            f"VF 1 of ib0 is bound with {GUIDS[1]}, Down, not bound with {GUIDS[1]}, Follow",
        ),
        (
            lambda kernel: kernel.write(f"{IB0}/sriov/0/port", "00:00:00:00:00:00:00:01"),
            f"VF 0 of ib0 is bound with 00:00:00:00:00:00:00:01 and {GUIDS[0]}, Follow, "
            f"not bound with {GUIDS[0]}, Follow",
        ),
        (lambda kernel: kernel.unplug("ib0", 3), "VF 3 of ib0 is missing"),
        (
            lambda kernel: (kernel.sys / "class/net/ib0/device").unlink(),
            "the network card ib0 is missing",
        ),
        (lambda kernel: kernel.hold("ib0", 1), ""),  # what a container has is as it was
    ],
)
def test_foreign_changes_of_vfs_are_work(
    watch: dict[str, Any], tmp_path: Path, meddle: Meddle, message: str
) -> None:
    kernel = FakeKernel(tmp_path / "node")
    bring(kernel, DesiredPf("ib0", 4, GUIDS, "Follow"))
    watch["vfs"] = [["ib0", ["address", "policy"]]]
    before = see(watch, Engine(), kernel.root)
    assert state_file.drift(before, see(watch, Engine(), kernel.root)) == {}
    meddle(kernel)
    reasons = state_file.drift(before, see(watch, Engine(), kernel.root))
    assert set(reasons) <= {"sriov"}
    assert message in reasons.get("sriov", [""])

"""The module sriov_vf and its boot program, on a simulated node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base import systemd
from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import write_whole
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.base.zip_program import from_argument
from ansible_collections.rdm.provision.plugins.module_utils.sriov import kept_vfs
from ansible_collections.rdm.provision.plugins.module_utils.sriov.decision import DesiredPf
from ansible_collections.rdm.provision.plugins.module_utils.sriov.observed_vfs import read_pf
from ansible_collections.rdm.provision.plugins.modules import sriov_vf
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.node_programs import program_argument
from ansible_collections.rdm.provision.rdm_sriov import boot

from tests.ansible_playbook import played
from tests.unit.plugins.module_utils.sriov.fake_kernel import FakeKernel
from tests.unit.plugins.modules.running import Failed, run_module

FIRST = "06:5e:91:06:40:00"

PACKED = program_argument("boot")


class Node:
    """A node with cards, and the paths of the module's files."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kernel = FakeKernel(directory / "node")
        self.etc = directory / "etc/rdm-sriov"
        self.units = directory / "units"
        self.systemd = directory / "run-systemd"
        self.calls: list[list[str]] = []
        for name, path in (
            ("DIRECTORY", self.etc),
            ("PROGRAM", directory / "lib/rdm-sriov-vf"),
            ("UNIT_DIRECTORY", self.units),
        ):
            monkeypatch.setattr(kept_vfs, name, str(path))
        monkeypatch.setattr(systemd, "DIRECTORY", str(self.systemd))
        monkeypatch.setattr(sriov_vf, "Kernel", lambda _root: self.kernel)
        monkeypatch.setattr(AnsibleModule, "run_command", lambda _module, words: self._systemctl(words))

    def _systemctl(self, words: list[str]) -> tuple[int, str, str]:
        self.calls.append(words)
        link = Path(kept_vfs.enabled_link())
        if words[1] == "enable":
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(self.units / kept_vfs.UNIT)
        if words[1] == "disable":
            link.unlink()
        return 0, "", ""

    def run(self, *, check: bool = False, diff: bool = False, **params: Any) -> dict[str, Any]:
        """Run the module, by default for four VFs on ib0."""
        present = {"pfs": ["ib0"], "number": 4, "first_mac": FIRST}
        given = {"packed": PACKED, **({} if "state" in params else present), **params}
        return run_module(sriov_vf, given, check=check, diff=diff)

    @property
    def number(self) -> int:
        return self.kernel.read("ib0").number


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    node = Node(tmp_path, monkeypatch)
    node.systemd.mkdir()
    return node


def test_vfs_are_made_once(node: Node) -> None:
    first = node.run()
    assert first["changed"] is True
    (pf,) = first["pfs"]
    assert [vf["pci"] for vf in pf["vfs"]] == [f"0000:41:00.{number}" for number in (1, 2, 3, 4)]
    node.kernel.log.clear()
    node.calls.clear()
    assert node.run()["changed"] is False
    assert node.kernel.log == []
    assert node.calls == []


def test_check_mode_ignores_users_that_would_have_ended(node: Node) -> None:
    node.run(number=2)
    node.kernel.hold("ib0", 0)
    stand_against = (
        {"check": True},
        {"check": False, "containers_end": {"ib0": 1}},
        {"check": True, "containers_end": {"ib1": 1}},
    )
    for message in stand_against:
        with pytest.raises(Failed, match=r"cannot be changed .* while a container has VF 0"):
            node.run(**message)
    assert node.run(check=True, containers_end={"ib0": 1})["changed"] is True
    node.kernel.hold("ib0", 1)
    with pytest.raises(Failed, match=r"while a container has VF 0 .* and a container has VF 1"):
        node.run(check=True, containers_end={"ib0": 1})
    assert node.number == 2


def test_check_mode_changes_nothing_and_shows_the_diff(node: Node) -> None:
    result = node.run(check=True, diff=True)
    assert result["changed"] is True
    assert node.kernel.log == []
    assert node.calls == []
    assert not node.etc.exists()
    card = result["diff"][0]
    assert card["before"] == "ib0 (0000:41:00.0): 0 VFs\n"
    assert card["after"].splitlines()[1] == (
        "VF 0 (address follows): bound, policy Follow, node GUID 06:5e:91:ff:fe:06:40:00, "
        "port GUID 06:5e:91:ff:fe:06:40:00"
    )
    node.run()
    card = node.run(diff=True, policy="Up")["diff"][0]
    assert "VF 3 (0000:41:00.4): bound, policy Follow" in card["before"]
    assert "VF 3 (0000:41:00.4): bound, policy Up" in card["after"]


def test_several_rails_have_addresses_of_their_own(node: Node) -> None:
    pfs = node.run(pfs=["ib0", "ib1", "eth1"])["pfs"]
    given = [vf["address"] for pf in pfs for vf in pf["vfs"]]
    assert len(set(given)) == 12
    assert given[-1] == "06:5e:91:06:42:03"


def test_pinned_addresses_win(node: Node) -> None:
    pinned = ["0011:2233:4455:6677", "00:11:22:33:44:55:66:78", "06:00:00:00:00:01", "06-00-00-00-00-02"]
    (pf,) = node.run(addresses={"ib0": pinned})["pfs"]
    assert [vf["address"] for vf in pf["vfs"]] == [
        "00:11:22:33:44:55:66:77",
        "00:11:22:33:44:55:66:78",
        "06:00:00:ff:fe:00:00:01",
        "06:00:00:ff:fe:00:00:02",
    ]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"number": 0}, "name at least one PF and one VF"),
        ({"pfs": []}, "name at least one PF and one VF"),
        ({"number": 99}, "ib0 can have 16 VFs, and 99 are wanted"),
        ({"number": 257, "pfs": ["eth1"]}, "16 physical functions with 256 VFs each"),
        ({"pfs": ["ib0", "ib2"]}, "ib2 has the driver mlx4_core"),
        ({"addresses": {"ib9": []}}, "addresses has ib9, which is none of pfs"),
        ({"addresses": {"ib0": ["mine"]}}, "is neither a MAC (6 bytes) nor a GUID (8 bytes)"),
        ({"first_mac": "mine"}, "is neither a MAC (6 bytes) nor a GUID (8 bytes)"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_done(
    node: Node, params: dict[str, Any], message: str
) -> None:
    with pytest.raises(Failed) as failed:
        node.run(**params)
    assert message in str(failed.value)
    assert node.kernel.log == []
    assert node.calls == []
    assert not node.etc.exists()


def test_files_of_another_cluster_are_not_changed(node: Node) -> None:
    node.run(cluster="theirs")
    with pytest.raises(Failed, match="belong to the cluster theirs"):
        node.run(cluster="mine")
    assert node.run(state="absent", cluster="mine")["changed"] is False
    assert node.number == 4


# --- taking away ---


def test_absent_removes_its_vfs_and_all_files(node: Node) -> None:
    node.run()
    assert node.run(state="absent")["changed"] is True
    assert node.number == 0
    assert not list(node.units.rglob("*.service"))
    assert not node.etc.exists()
    assert not Path(kept_vfs.PROGRAM).parent.exists()
    assert node.run(state="absent")["changed"] is False


def test_absent_leaves_vfs_that_were_there_before(node: Node) -> None:
    node.kernel.make("0000:41:00.0", 4)
    node.run()
    node.run(state="absent")
    assert node.number == 4


def test_absent_keeps_held_vfs_until_they_are_free(node: Node) -> None:
    node.run()
    node.kernel.hold("ib0", 1)
    result = node.run(state="absent")
    assert result["kept"] == [
        "ib0 keeps its 4 VFs, because VF 1 (0000:41:00.2) is in use: run again when that has ended"
    ]
    assert (result["changed"], node.number) == (False, 4)
    node.kernel.unbind(node.kernel.vf("ib0", 1).name)
    node.run(state="absent")
    assert node.number == 0


def test_absent_leaves_vfs_that_the_node_itself_uses(node: Node) -> None:
    node.run()
    interface = node.kernel.use("ib0", 1, "address")
    assert node.run(state="absent")["kept"] == [
        f"ib0 keeps its 4 VFs, because VF 1 (0000:41:00.2, whose interface {interface} has the address "
        "10.1.0.5/24) is in use: run again when that has ended"
    ]
    assert node.number == 4


def test_a_pf_that_is_no_longer_named_is_given_back(node: Node) -> None:
    node.run(pfs=["ib0", "ib1"])
    assert node.run(pfs=["ib0"])["changed"] is True
    assert (node.number, node.kernel.read("ib1").number) == (4, 0)
    assert [one.pci for one in kept_vfs.read(str(node.etc)).pfs] == ["0000:41:00.0"]


def test_a_truncated_file_is_repaired(node: Node) -> None:
    node.run()
    file = node.etc / kept_vfs.FILE_NAME
    file.write_text(file.read_text()[:40])
    assert node.run()["changed"] is True
    assert kept_vfs.read(str(node.etc)).pfs[0].pci == "0000:41:00.0"


def test_a_boot_program_never_finds_a_record_of_a_later_version(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, record = Path(kept_vfs.PROGRAM), node.etc / kept_vfs.FILE_NAME
    node.run()
    program.write_bytes(b"of another version")
    former = of_the_release_before(record.read_text())
    record.write_text(former)

    class Killed(BaseException):
        pass

    def killed(path: str, *content: Any) -> None:
        write_whole(path, *content)
        raise Killed

    monkeypatch.setattr(sriov_vf, "write_whole", killed)
    with pytest.raises(Killed):
        node.run()
    assert (program.read_bytes(), record.read_text()) == (from_argument(PACKED), former)


def test_absent_after_a_file_was_cut_off_takes_nothing_that_may_be_others(node: Node) -> None:
    node.run()
    (node.etc / kept_vfs.FILE_NAME).write_text("{")
    (sentence,) = node.run(state="absent")["kept"]
    assert "no longer records which VFs were made here" in sentence
    assert node.number == 4


# --- a restart of the node ---


def restart(node: Node) -> None:
    for pf in ("0000:41:00.0", "0000:42:00.0"):
        node.kernel.make(pf, 0)


def test_the_program_makes_the_same_vfs_after_a_restart(node: Node) -> None:
    node.run(pfs=["ib0", "ib1"])
    before = [node.kernel.read(pf) for pf in ("ib0", "ib1")]
    restart(node)
    assert boot.main(["--directory", str(node.etc), "--wait", "0"], node.kernel) == 0
    assert [node.kernel.read(pf) for pf in ("ib0", "ib1")] == before
    assert node.run(pfs=["ib0", "ib1"])["changed"] is False


def test_program_configures_what_it_can_and_reports_the_rest(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    node.run(pfs=["ib0", "ib1"])
    restart(node)
    (node.kernel.sys / "bus/pci/devices/0000:41:00.0/sriov_totalvfs").write_text("2\n")
    assert boot.main(["--directory", str(node.etc), "--wait", "0"], node.kernel) == 1
    assert "rdm-sriov-vf: ib0 can have 2 VFs, and 4 are wanted" in capsys.readouterr().err
    assert node.kernel.read("ib1").number == 4


def test_the_program_waits_for_a_card_that_comes_late(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.run()
    restart(node)
    attempts = iter(range(1000))

    def late(*arguments: Any, **more: Any) -> Any:
        if next(attempts) < 3:
            raise NodeError("not yet")
        return read_pf(*arguments, **more)

    monkeypatch.setattr(boot, "read_pf", late)
    monkeypatch.setattr(boot, "_POLL_S", 0.01)
    assert boot.main(["--directory", str(node.etc), "--wait", "60"], node.kernel) == 0
    assert node.number == 4


def test_the_program_says_that_a_card_has_no_driver(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.run()
    restart(node)
    shutil.rmtree(node.kernel.sys / "bus/pci/devices/0000:41:00.0/net")
    assert boot.main(["--directory", str(node.etc), "--wait", "0"], node.kernel) == 1
    assert "the card 0000:41:00.0 (ib0) has no network interface: see" in capsys.readouterr().err


def test_the_program_runs_by_itself_under_any_python(node: Node, tmp_path: Path) -> None:
    node.run()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    words = [kept_vfs.PROGRAM, "--directory", str(elsewhere)]
    done = subprocess.run(
        [sys.executable, "-I", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert os.access(kept_vfs.PROGRAM, os.X_OK)
    (elsewhere / kept_vfs.FILE_NAME).write_text(
        (node.etc / kept_vfs.FILE_NAME).read_text().replace("0000:41:00.0", "ffff:41:00.0")
    )
    done = subprocess.run([*words, "--wait", "0"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "rdm-sriov-vf: there is no PCI device ffff:41:00.0 on this node: see that its driver is loaded, then "
        "restart rdm-sriov-vf.service\n",
    )


def test_systemd_starts_the_program_before_the_engine_and_the_plugin(node: Node) -> None:
    node.run()
    unit = (node.units / kept_vfs.UNIT).read_text().splitlines()
    assert "Before=docker.service rdm-sriov.service" in unit
    assert f"ExecStart={sys.executable} {kept_vfs.PROGRAM}" in unit
    assert node.calls == [["systemctl", "daemon-reload"], ["systemctl", "enable", kept_vfs.UNIT]]
    Path(kept_vfs.enabled_link()).unlink()
    assert node.run()["changed"] is True
    assert Path(kept_vfs.enabled_link()).is_symlink()


def test_files_are_written_without_systemd_with_a_hint(node: Node) -> None:
    node.systemd.rmdir()
    result = node.run()
    assert node.calls == []
    assert result["note"] == (
        f"systemd does not run here: let what starts the node run {kept_vfs.PROGRAM} before the Docker Engine"
    )
    assert json.loads((node.etc / kept_vfs.FILE_NAME).read_text())["cluster"] == "rdm"
    assert (node.units / kept_vfs.UNIT).exists()


# --- as Ansible sends it ---

PLAY = """
- name: Make virtual functions
  hosts: localhost
  connection: local
  gather_facts: false
  module_defaults:
    rdm.provision.sriov_vf:
      sysfs_root: "{{ tree }}/sys"
  tasks:
    - name: Make virtual functions
      ansible.builtin.include_role:
        name: rdm.provision.sriov
        tasks_from: vfs
"""


def test_the_role_hands_its_variables_to_the_module_with_its_program(tmp_path: Path) -> None:
    FakeKernel(tmp_path / "tree")
    (tmp_path / "play.yml").write_text(PLAY)
    variables = {
        "ansible_python_interpreter": sys.executable,
        "tree": str(tmp_path / "tree"),
        "sriov_vfs": 2,
        "network_parent": "eth1, eth2",
        "sriov_vf_first_mac": FIRST,
        "sriov_vf_addresses": {"eth2": ["06:00:00:00:00:01", "06:00:00:00:00:02"]},
        "sriov_vf_trust": False,
    }
    words = ["-i", "localhost,", "--check", "--diff", "-e", json.dumps(variables), tmp_path / "play.yml"]
    rc, tasks, output = played(*words, environment=os.environ | {"ANSIBLE_PIPELINING": "true"})
    assert rc == 0, output
    result = tasks[-1]["hosts"]["localhost"]
    assert result["changed"] is True
    shown = {one["after_header"]: one["after"] for one in result["diff"]}
    assert f"VF 1 (address follows): bound, MAC {FIRST[:-1]}1, trust off" in shown["eth1"]
    assert "VF 0 (address follows): bound, MAC 06:00:00:00:00:01, trust off" in shown["eth2"]
    assert shown[kept_vfs.PROGRAM] == "(a program)\n"
    kept = json.loads(shown[f"{kept_vfs.DIRECTORY}/{kept_vfs.FILE_NAME}"])
    assert [one["pf"] for one in kept["pfs"]] == ["eth1", "eth2"]


def of_the_release_before(record: str) -> str:
    """Return a record with the keys that releases before 0.6.0 write; it must have them."""
    kept = json.loads(record)
    former = [{key: value for key, value in one.items() if key != "pf"} for one in kept["functions"]]
    assert [one["parent"] for one in former] == [one["pf"] for one in kept["pfs"]]
    return json.dumps({"cluster": kept["cluster"], "functions": former}, indent=1) + "\n"


def test_records_are_compatible_with_the_previous_release(tmp_path: Path) -> None:
    wanted = DesiredPf("ib0", 4, ("06:5e:91:06:40:00",) * 4, "Follow")
    kept = kept_vfs.KeptVfs("rdm", (kept_vfs.KeptPf("0000:41:00.0", True, wanted),))
    path = tmp_path / kept_vfs.FILE_NAME
    text = kept_vfs.files(str(tmp_path), kept, b"")[str(path)][0].decode()
    for record in (text, of_the_release_before(text)):
        path.write_text(record)
        (one,) = kept_vfs.read(str(tmp_path)).pfs
        assert one == kept.pfs[0]._replace(wanted=wanted._replace(addresses=list(wanted.addresses)))

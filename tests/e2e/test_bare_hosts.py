# SPDX-License-Identifier: GPL-3.0-or-later
"""Training on bare hosts behind a jump host, in a virtual environment: the promises, and two users.

Only the installation of pdsh and Open MPI needs root.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.environments import (
    LOSSES,
    OTHER_VERSION,
    STEPS,
    TINY,
    Environment,
    jobs,
    pid,
    processes,
    wait_until_waiting,
    waiting,
)
from tests.e2e.product import ROOT, Lab, Product, changed, problems, running_lab
from tests.e2e.promises import Promises, Trained
from tests.labs import lab_name
from tests.printed_hints import follow
from trainer.tests.waiting import wait_until

pytestmark = pytest.mark.long

ADDRESSES = {"n1": "10.2.72.135", "n2": "10.2.72.136"}
PACKAGES = "/srv/packages"
LAUNCHERS = ("no_ssh", "torchrun", "deepspeed", "mpirun")
BOTH = ("--limit", "n1:n2")
JUMP = "n3"
# As on an ordinary host: sshd reads its users' files.
SSHD = "AuthorizedKeysFile /etc/rdm-lab/authorized_keys .ssh/authorized_keys\n"


@dataclass(frozen=True)
class BareHosts(Environment):
    """The nodes of a lab as hosts without containers, as one of their users sees them.

    Attributes:
        user: the user of ssh; the inventory has the same name.
    """

    user: str = "rdm"

    @property
    def inventory(self) -> Path:
        """The folder of the user's inventory."""
        return self.product.directory / "inventory" / f"bare-{self.user}"

    def argv(self, verb: str, *argv: str) -> list[str]:
        """The words of a verb, which may have subcommands."""
        return [verb, *argv, "--inventory", f"inventory/{self.inventory.name}"]

    def json(self, verb: str, *argv: str, expect: int = 0) -> Any:
        """Run a verb; return its JSON."""
        return json.loads(self.rdm(verb, *argv, "--json", expect=expect).stdout)

    def directory(self, node: str, job: str) -> str:
        return f"/home/{self.user}/.rdm/{node}/jobs/{job}"

    def inside(self, node: str, *argv: str, check: bool = True) -> str:
        return self.on(node, *argv, check=check)

    def protects(self, job: str) -> str:
        reason = str(self.json("env", "down", expect=1)["nodes"]["n1"]["why"])
        assert f"/home/{self.user}/.rdm/n1/python" in reason
        assert "is in use by process" in reason
        assert job in [one["job"] for one in follow(reason, "jobs", self.json)["jobs"]]
        return reason

    def plug_in(self, node: str) -> None:
        """Give a restarted node its address on the fabric and its firewall."""
        self.on(node, "ip", "address", "add", f"{ADDRESSES[node]}/24", "dev", "ib0")
        wall_off(self, node)

    def whole(self) -> bool:
        """Start a node that a test has stopped; return whether one had to be."""
        stopped = [node for node in ADDRESSES if not self.on(node, "uname", "-n", check=False)]
        for node in stopped:
            self.lab("start", node)
            self.plug_in(node)
            self.reached(node)
        return bool(stopped)

    def reached(self, node: str) -> None:
        """Wait until the other node, which may still have an old MAC address of it, reaches a node's sshd."""
        (other,) = ADDRESSES.keys() - {node}
        scan = ("ssh-keyscan", ADDRESSES[node])
        wait_until(f"{other} reaches {node}", lambda: self.on(other, *scan, check=False))


@pytest.fixture(scope="module")
def hosts(product: Product, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareHosts]:
    """Two nodes with addresses on the fabric, and packages on their disk, because they reach no index.

    When their containers are up, their sshd accepts only connections through the third node.
    """
    packages = tmp_path_factory.mktemp("packages")
    # The copy keeps the mode, and the nodes' user must read the directory.
    packages.chmod(0o755)
    pins = (ROOT / "trainer" / "requirements" / "runtime.txt").read_text(encoding="utf-8")
    version = next(line for line in pins.splitlines() if line.startswith("torch=="))
    (packages / "pins.txt").write_text(pins.replace(version, f"{version}+cpu"), encoding="utf-8")
    download = [
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        "download",
        "--no-deps",
    ]
    subprocess.run(
        [*download, "--no-build-isolation", "-d", str(packages), "-r", str(packages / "pins.txt")], check=True
    )
    with running_lab(product, lab_name("e2e-bare"), "--nodes", "3", "--trainer") as lab:
        lab.json("up", *BOTH)
        hosts = BareHosts(product, lab.name)
        for node in ADDRESSES:
            hosts.plug_in(node)
            subprocess.run(
                ["docker", "cp", "--quiet", str(packages), f"rdm-lab-{lab.name}-{node}:{PACKAGES}"],
                check=True,
            )
        written = (lab.inventory / "hosts.yml").read_text(encoding="utf-8")
        listing = yaml.safe_load(written.replace("{{ inventory_dir }}", str(lab.inventory)))
        (cluster,) = listing.values()
        jump = cluster["children"]["workers"]["hosts"].pop(JUMP)["ansible_host"]
        way = cluster["vars"]["ansible_ssh_common_args"].replace("'", "")
        key = cluster["vars"]["ansible_ssh_private_key_file"]
        for group in cluster["children"].values():
            for node, variables in group["hosts"].items():
                variables["my_ip"] = ADDRESSES[node]
        cluster["vars"].update(
            rdm_cluster="bare",
            rdm_runtime="host",
            rdm_become=False,
            rdm_subnet="10.2.72.0/24",
            ssh_config_jump_host=f"rdm@{jump}",
            ansible_ssh_common_args=f"{way} -o 'ProxyCommand=ssh -W %h:%p -i {key} {way} rdm@{jump}'",
            # Not the shared connections that were made without the jump host.
            ansible_control_path_dir=str(tmp_path_factory.mktemp("cp")),
            pdsh_install=True,
            openmpi_install=True,
            python_env_method="uv",
            python_env_torch=f"{version}+cpu",
            python_env_torch_backend="",
            python_env_no_index=True,
            python_env_find_links=[PACKAGES],
            python_env_controller_find_links=[str(packages)],
        )
        hosts.inventory.mkdir()
        (hosts.inventory / "hosts.yml").write_text(yaml.safe_dump(listing), encoding="utf-8")
        yield hosts


@pytest.fixture(autouse=True)
def whole(hosts: BareHosts) -> Iterator[None]:
    """Whatever a test did, both nodes run after it."""
    yield
    hosts.whole()


def wall_off(lab: Lab, node: str) -> None:
    """Let the node's sshd read its user's authorized_keys, and refuse this machine's connections."""
    lab.on(node, "sh", "-c", f"printf '{SSHD}' >/etc/ssh/sshd_config.d/bare.conf; pkill -HUP -o -x sshd")
    gateway = lab.on(node, "ip", "-4", "route", "show", "default").split()[2]
    refuse = ["-p", "tcp", "--dport", "22", "-s", gateway, "-j", "REJECT"]
    lab.on(node, "iptables", "-A", "INPUT", *refuse)


@pytest.fixture(scope="module")
def config(product: Product) -> str:
    (product.directory / "tiny.yaml").write_text(yaml.safe_dump(TINY), encoding="utf-8")
    return "tiny.yaml"


def test_env_up_prepares_hosts_behind_a_jump_host(hosts: BareHosts, config: str) -> None:
    refused = hosts.json("train", config, expect=2)
    assert "there is no environment with rdm-trainer" in problems(refused)
    made = follow(problems(refused), "env up", hosts.json)
    assert [node for node, one in made["nodes"].items() if one["changed"]] == ["n1", "n2"]
    again = hosts.json("env", "up")
    assert [node for node, one in again["nodes"].items() if one["changed"]] == []
    lines = [f"{address} slots=2" for address in ADDRESSES.values()]
    assert hosts.on("n2", "cat", "/home/rdm/.rdm/n2/job/hostfile").splitlines() == lines
    # By name and by address, each to itself and to the other node.
    for node in ADDRESSES:
        for other, address in ADDRESSES.items():
            for name in (other, address):
                words = ("runuser", "-u", "rdm", "--", "ssh", "-o", "BatchMode=yes", name, "uname", "-n")
                assert hosts.on(node, *words).strip() == other


def test_ssh_of_the_control_machine_uses_the_jump_host(hosts: BareHosts, tmp_path: Path) -> None:
    """The home is a temporary one. ssh ignores HOME, so each file is an argument."""
    hosts.json("env", "up")

    def run(verb: str) -> Any:
        command = hosts.argv(
            "env", verb, "--json", "--tags", "ssh_config", "-e", "ssh_config_controller=true"
        )
        return json.loads(hosts.product.run("rdm-provision", *command, HOME=str(tmp_path)).stdout)

    own = tmp_path / ".ssh"
    own.mkdir()
    (own / "config").write_text("Host mine\n  Port 2222\n")
    assert changed(run("up")) == ["n1"], "which has this machine's files in its report"
    assert changed(run("up")) == []
    assert "Include ~/.ssh/rdm-provision/bare/config" in (own / "config").read_text()
    (listing,) = yaml.safe_load((hosts.inventory / "hosts.yml").read_text(encoding="utf-8")).values()
    of = listing["vars"]
    jump = of["ssh_config_jump_host"].partition("@")[2]
    known = next(one for one in shlex.split(of["ansible_ssh_common_args"]) if one.startswith("UserKnown"))
    config = tmp_path / "config"
    config.write_text(
        f"Include {own}/rdm-provision/bare/config\nHost {jump}\n  {known.replace('=', ' ', 1)}\n"
        f"  IdentityFile {of['ansible_ssh_private_key_file']}\n  StrictHostKeyChecking yes\n"
    )
    believed = f"UserKnownHostsFile={own}/rdm-provision/bare/known_hosts"
    for node in ADDRESSES:
        ssh = ["ssh", "-F", str(config), "-o", "BatchMode=yes", "-o", believed]
        output = subprocess.run([*ssh, node, "uname", "-n"], capture_output=True, text=True, timeout=120)
        assert output.stdout == f"{node}\n", output.stderr
        # Without the jump host it fails.
        past = subprocess.run([*ssh, "-o", "ProxyJump=none", node, "true"], capture_output=True, timeout=120)
        assert past.returncode == 255
    run("down")
    assert (own / "config").read_text() == "Host mine\n  Port 2222\n"
    assert not (own / "rdm-provision").exists()


CURVES = {launcher: f"tiny-{launcher.replace('_', '-')}" for launcher in LAUNCHERS}
# The names of the document's scripts.
NAMES = {launcher: "mdx" if launcher in ("deepspeed", "mpirun") else "plain" for launcher in LAUNCHERS}


@pytest.fixture(scope="module")
def curves(hosts: BareHosts, config: str) -> dict[str, dict[str, Any]]:
    """The same training under each launcher: the last state of each job."""
    hosts.json("env", "up")
    return {
        launcher: hosts.json(
            "train", config, f"logging.names={NAMES[launcher]}", "--launcher", launcher, "--name", job
        )["job"]
        for launcher, job in CURVES.items()
    }


def test_every_launcher_has_the_loss_of_containers(
    hosts: BareHosts, curves: dict[str, dict[str, Any]]
) -> None:
    expected = {step: loss for step, loss in LOSSES.items() if step <= STEPS}
    for launcher, job in curves.items():
        assert (job["state"], job["launcher"]) == ("finished", launcher)
        assert dict(job["losses"]) == pytest.approx(expected, abs=1e-4), launcher
        # Each process wrote to its own node's directory of jobs.
        for node in ADDRESSES:
            assert hosts.on(node, "ls", f"{hosts.directory(node, job['job'])}/ranks/{node}").split() != []
    # Nothing of the jobs is left in /tmp.
    for node in ADDRESSES:
        assert [name for name in hosts.on(node, "ls", "/tmp").split() if name.startswith("rdm-")] == []


def test_job_outputs_have_the_names_of_the_document(
    hosts: BareHosts, curves: dict[str, dict[str, Any]]
) -> None:
    theirs = [job for launcher, job in CURVES.items() if NAMES[launcher] == "mdx"]
    for node in ADDRESSES:
        for kind, name, there in (
            ("log", f"gpt_*_{node}_*.log", f"logs/{node}.out"),
            ("log", f"gpt_*_{node}_*.err", f"logs/{node}.err"),
            ("checkpoint", "gpt_*", "checkpoints"),
        ):
            outputs = f"{hosts.directory(node, 'outputs')}/{kind}"
            links = hosts.on(node, "find", outputs, "-type", "l", "-name", name).split()
            assert {*hosts.on(node, "readlink", "-e", *links).split()} == {
                f"{hosts.directory(node, job)}/{there}" for job in theirs
            }


WRITE_TOKENS = """
import sys, numpy
from rdm_trainer.data.indexed_dataset import IndexedWriter
with IndexedWriter(sys.argv[1], numpy.uint16) as writer:
    for number in range(100):
        writer.add(numpy.arange(100) % 256)
        writer.end_document()
"""


def test_copied_data_has_the_same_paths_as_in_containers(
    hosts: BareHosts, config: str, tmp_path: Path
) -> None:
    """Each node has the data in another directory; one configuration works for all, and for containers."""
    hosts.json("env", "up")
    # The engine does not see /tmp, which is a file system of its own.
    made = "/srv/tokens"
    hosts.on("n1", "install", "-d", "-o", "rdm", made)
    rdm = ("runuser", "-u", "rdm", "--", "/home/rdm/.rdm/n1/python/bin/python")
    hosts.on("n1", *rdm, "-c", WRITE_TOKENS, f"{made}/text")
    source = f"rdm-lab-{hosts.name}-n1:{made}"
    subprocess.run(["docker", "cp", "--quiet", source, str(tmp_path)], check=True)
    output = hosts.rdm("data", str(tmp_path / "tokens")).stdout
    assert "to n1, n2: /jobs/data in a job's configuration" in " ".join(output.split())
    data = ["data.mock=false", "data.blend=[/jobs/data/text]"]
    job = hosts.json("train", config, *data, "optimisation.train_iterations=2", "--name", "data")["job"]
    assert (job["state"], job["iteration"]) == ("finished", 2)
    refused = hosts.json("train", config, "data.mock=false", "data.blend=[/jobs/data/txt]", expect=2)
    assert "/home/rdm/.rdm/n1/jobs/data/txt" in json.dumps(refused["problems"])


class TestBareHosts(Promises):
    """What every environment promises, under every launcher."""

    @pytest.fixture(params=LAUNCHERS)
    def launcher(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def environment(self, hosts: BareHosts, curves: dict[str, dict[str, Any]]) -> Environment:
        return hosts

    @pytest.fixture
    def trained(self, curves: dict[str, dict[str, Any]], launcher: str) -> Trained:
        return Trained(curves[launcher]["job"], ["parallel.pipeline=2"])


def test_bad_input_is_one_sentence_and_changes_nothing(
    hosts: BareHosts, curves: dict[str, dict[str, Any]], config: str
) -> None:
    wrong = ("-e", "python_env_version=3.10.10", "-e", "python_env_method=pyen")
    result = hosts.json("env", "up", *wrong, expect=3)
    assert {(problem["node"], problem["value"].split()[0]) for problem in result["problems"]} == {
        (node, name) for node in ADDRESSES for name in ("python_env_method", "python_env_version")
    }

    elsewhere = BareHosts(hosts.product, hosts.name, user="elsewhere")
    shutil.copytree(hosts.inventory, elsewhere.inventory)
    listing = elsewhere.inventory / "hosts.yml"
    listing.write_text(listing.read_text(encoding="utf-8").replace(ADDRESSES["n2"], "10.2.72.99"))
    (problem,) = elsewhere.json("env", "up", expect=2)["problems"]
    assert (problem["node"], problem["value"]) == ("n2", "my_ip 10.2.72.99")
    assert f"is no address of the host, which has {ADDRESSES['n2']}" in problem["reason"]

    other = "/home/rdm/other"
    there = ("-e", f"python_env_directory={other}/env")
    for word, message in (
        (
            "python_env_space=100000",
            "free, and the environment needs 97.7 TiB there: make room, or set",
        ),
        ("python_env_method=pyenv", "there is no pyenv in /home/rdm/.pyenv or on the PATH: install it, set"),
    ):
        result = hosts.json("env", "up", *there, "-e", word, expect=1)
        assert [message in one["why"] for one in result["nodes"].values()] == [True, True], result
        assert changed(result) == []
        assert not hosts.there("n1", other)


def test_unusable_environment_is_refused_with_the_command_that_makes_one(
    hosts: BareHosts, config: str
) -> None:
    hosts.json("env", "up")
    python = "/home/rdm/.rdm/{}/python"
    hosts.on("n1", "sh", "-c", f"rm -r {python.format('n1')}/lib/python3*/site-packages/torch-*.dist-info")
    before = hosts.on("n2", f"{python.format('n2')}/bin/python", "-c", OTHER_VERSION, "0.0.1").strip()
    lacks, differs = hosts.json("train", config, "--name", "differs", expect=2)["problems"]
    assert (lacks["node"], "has no torch" in lacks["reason"]) == ("n1", True), lacks
    assert [differs[key] for key in ("node", "value", "reason")] == [
        *("n2", "deepspeed 0.0.1", f"is not {before}, as on n1")
    ]
    assert "differs" not in jobs(hosts)
    found = problems({"problems": [lacks]})
    assert changed(follow(found, "env up", hosts.json, "--limit", "n1")) == ["n1"]
    found = problems({"problems": [differs]})
    assert changed(follow(found, "env up", hosts.json)) == ["n2"]
    assert hosts.json("train", config, "--check")["ok"]


def test_a_jump_host_that_refuses_is_named(hosts: BareHosts, tmp_path: Path) -> None:
    closed = "/etc/ssh/sshd_config.d/00-closed.conf"
    hosts.on(JUMP, "sh", "-c", f"echo AllowTcpForwarding no >{closed}; pkill -HUP -o -x sshd")
    try:
        # A new connection, not an existing one.
        result = hosts.json("env", "up", "-e", f"ansible_control_path_dir={tmp_path}", expect=1)
    finally:
        hosts.on(JUMP, "sh", "-c", f"rm {closed}; pkill -HUP -o -x sshd")
    for node in ADDRESSES:
        # ssh with persistent connections drops the messages of the jump host's ssh.
        refused = (
            "its jump host does not let it through: ",
            "its jump host cannot be reached or does not let it through, and ssh does not say why: ",
        )
        assert result["nodes"][node]["why"].startswith(refused)
    assert changed(result) == []


@pytest.fixture
def alice(hosts: BareHosts) -> BareHosts:
    """A user of the same nodes without root: the inventory of rdm under another name."""
    hosts.json("env", "up")
    theirs = BareHosts(hosts.product, hosts.name, user="alice")
    for node in ADDRESSES:
        hosts.on(node, "useradd", "--create-home", "--shell", "/bin/bash", theirs.user)
        hosts.on(node, "runuser", "-u", theirs.user, "--", "sh", "-c", "! sudo -n true")
    theirs.inventory.mkdir()
    (listing,) = yaml.safe_load((hosts.inventory / "hosts.yml").read_text(encoding="utf-8")).values()
    listing["vars"].update(ansible_user=theirs.user, pdsh_install=False, openmpi_install=False)
    (theirs.inventory / "hosts.yml").write_text(yaml.safe_dump({"all": listing}), encoding="utf-8")
    for file in ("python_env.lock", "ssh_host_keys"):
        shutil.copy(hosts.inventory / file, theirs.inventory)
    return theirs


def test_two_users_run_jobs_of_one_name_without_root(hosts: BareHosts, alice: BareHosts, config: str) -> None:
    """The same cluster, the same name of a job, at the same time, once what needs root is installed."""
    alice.json("env", "up")
    program, job = waiting(hosts, "connected"), "shared"
    both = {"rdm": hosts, "alice": alice}
    for one in both.values():
        one.json("train", config, program, "--name", job, "--launcher", "mpirun", "--detach")
    for one in both.values():
        wait_until_waiting(one, job)
    for user, one in both.items():
        assert jobs(one)[job]["state"] == "running"
        owner = one.on("n2", "stat", "-c", "%U", one.directory("n2", job)).strip()
        process = one.on("n2", "ps", "-o", "user=", "-p", pid(one, job, "n2")).strip()
        assert (owner, process) == (user, user)
    kept = pid(hosts, job, "n2")
    assert alice.json("stop", job, "--now")["changed"]
    assert alice.json("env", "down")["ok"]
    assert (jobs(hosts)[job]["state"], pid(hosts, job, "n2")) == ("running", kept)
    assert kept in processes(hosts, "n2", job)
    assert hosts.json("stop", job, "--now")["changed"]


def test_env_down_removes_what_env_up_made_and_keeps_job_directories(
    hosts: BareHosts, curves: dict[str, dict[str, Any]]
) -> None:
    output = hosts.rdm("env", "down").stdout
    assert f"Kept, because something is in it: {hosts.directory('n1', '').rstrip('/')}" in output
    assert not hosts.there("n1", "/home/rdm/.rdm/n1/python")
    assert not hosts.there("n1", "/home/rdm/.rdm/n1/ssh")
    for left in ("config", "authorized_keys", "rdm-provision"):
        assert not hosts.there("n1", f"/home/rdm/.ssh/{left}")
    assert hosts.there("n1", f"{hosts.directory('n1', CURVES['no_ssh'])}/checkpoints")

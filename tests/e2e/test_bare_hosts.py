# SPDX-License-Identifier: GPL-3.0-or-later
"""Training on bare hosts behind a jump host, in a virtual environment.

Every launcher has the loss of the containers, and the verbs are the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.product import ROOT, Lab, Product, running_lab, wait_until
from tests.e2e.test_train import ENDLESS, LOSSES, TINY
from tests.labs import lab_name

pytestmark = pytest.mark.long

ADDRESSES = {"n1": "10.2.72.135", "n2": "10.2.72.136"}
PACKAGES = "/srv/packages"
JOBS = "/home/rdm/.rdm/n1/jobs"
BOTH = ("--limit", "n1:n2")
JUMP = "n3"
# As on an ordinary host, whose sshd reads what its users write.
SSHD = "AuthorizedKeysFile /etc/rdm-lab/authorized_keys .ssh/authorized_keys\n"


@dataclass(frozen=True)
class BareHosts:
    """The nodes of a lab as hosts without containers.

    Attributes:
        lab: whose nodes they are.
        inventory: their own inventory.
    """

    lab: Lab
    inventory: Path

    def rdm(self, *argv: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a verb of ``rdm-provision`` on their inventory."""
        return self.lab.product.rdm(*argv, "--inventory", str(self.inventory), expect=expect)

    def json(self, *argv: str, expect: int = 0) -> Any:
        """The same, with what it printed as JSON."""
        return json.loads(self.rdm(*argv, "--json", expect=expect).stdout)

    def processes(self, node: str) -> list[str]:
        """The users of the processes that belong to jobs on a node."""
        shown = self.lab.on(node, "ps", "-eo", "user,args")
        return [line.split()[0] for line in shown.splitlines() if "rdm_job" in line]


@pytest.fixture(scope="module")
def hosts(product: Product, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareHosts]:
    """Two nodes with addresses on the fabric and the packages on their disk, since they reach no index.

    When their containers are up their sshd lets nobody in who does not come through the third node.
    """
    packages = tmp_path_factory.mktemp("packages")
    # Copied as it is, and the nodes' user has to look into it.
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
        for node, address in ADDRESSES.items():
            wall_off(lab, node)
            lab.on(node, "ip", "address", "add", f"{address}/24", "dev", "ib0")
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
            # Connections that were made past the jump host are elsewhere.
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
        inventory = product.directory / "inventory" / "bare"
        inventory.mkdir()
        (inventory / "hosts.yml").write_text(yaml.safe_dump(listing), encoding="utf-8")
        yield BareHosts(lab, inventory)


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


def test_env_up_makes_hosts_ready_that_only_a_jump_host_reaches(hosts: BareHosts, config: str) -> None:
    refused = hosts.json("train", config, expect=2)
    assert "there is no environment with rdm-trainer" in json.dumps(refused["problems"])
    made = hosts.json("env", "up")
    assert [node for node, one in made["nodes"].items() if one["changed"]] == ["n1", "n2"]
    again = hosts.json("env", "up")
    assert [node for node, one in again["nodes"].items() if one["changed"]] == []
    lines = [f"{address} slots=2" for address in ADDRESSES.values()]
    assert hosts.lab.on("n2", "cat", "/home/rdm/.rdm/n2/job/hostfile").splitlines() == lines
    # By name and by address, each to itself and to the other.
    for node in ADDRESSES:
        for other, address in ADDRESSES.items():
            for name in (other, address):
                words = ("runuser", "-u", "rdm", "--", "ssh", "-o", "BatchMode=yes", name, "uname", "-n")
                assert hosts.lab.on(node, *words).strip() == other


@pytest.mark.parametrize("launcher", ["no_ssh", "torchrun", "deepspeed", "mpirun"])
def test_every_launcher_has_the_loss_of_containers(hosts: BareHosts, config: str, launcher: str) -> None:
    hosts.json("env", "up")
    job = hosts.json("train", config, "--launcher", launcher, "--name", f"tiny-{launcher.replace('_', '-')}")[
        "job"
    ]
    assert job["state"] == "finished"
    assert dict(job["losses"]) == pytest.approx(LOSSES, abs=1e-4)
    # Each process wrote where its own node's jobs are, and nothing of the job is left in /tmp.
    for node in ADDRESSES:
        jobs = f"/home/rdm/.rdm/{node}/jobs/{job['job']}"
        assert hosts.lab.on(node, "ls", f"{jobs}/ranks/{node}").split() != []
        assert [name for name in hosts.lab.on(node, "ls", "/tmp").split() if name.startswith("rdm-")] == []


def test_a_job_of_the_user_outlives_who_started_it_and_ends_with_a_checkpoint(
    hosts: BareHosts, config: str
) -> None:
    hosts.json("env", "up")
    hosts.json("train", config, ENDLESS, "--name", "endless", "--detach")

    def progress() -> dict[str, Any]:
        text = hosts.lab.on("n1", "cat", f"{JOBS}/endless/progress.json", check=False)
        return dict(json.loads(text)) if text else {}

    wait_until(lambda: progress().get("iteration", 0) > 0, "it trains", seen=progress)
    assert {*hosts.processes("n1"), *hosts.processes("n2")} == {"rdm"}
    assert "is in use by process" in json.dumps(hosts.json("env", "down", expect=1)["nodes"])
    assert "iteration" in hosts.rdm("logs", "endless").stdout
    assert hosts.json("stop", "endless")["changed"]
    (job,) = hosts.json("jobs", "endless")["jobs"]
    assert (job["state"], job["checkpoint"]) == ("stopped", job["iteration"])
    assert hosts.processes("n1") + hosts.processes("n2") == []


def test_env_down_takes_away_what_env_up_made_and_keeps_what_jobs_left(hosts: BareHosts) -> None:
    said = hosts.rdm("env", "down").stdout
    assert f"Kept, because something is in it: {JOBS}" in said
    assert not hosts.lab.there("n1", "/home/rdm/.rdm/n1/python")
    assert not hosts.lab.there("n1", "/home/rdm/.rdm/n1/ssh")
    for left in ("config", "authorized_keys", "rdm-provision"):
        assert not hosts.lab.there("n1", f"/home/rdm/.ssh/{left}")
    assert hosts.lab.there("n1", f"{JOBS}/endless/checkpoints")

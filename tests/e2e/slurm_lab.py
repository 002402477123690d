"""A lab whose nodes are a Slurm cluster, and its use."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import yaml

from tests.e2e.product import COMMAND_S, Lab, Product, running_lab
from trainer.tests.waiting import wait_until

USER = "rdm"
SHARED = "/shared"
NODES = ("n1", "n2", "n3")


@dataclass(frozen=True)
class SlurmLab(Lab):
    """Three nodes: n1 is login host, controller and the partition hgx, n2 and n3 are the partition gpu2."""

    def user(self, *argv: str, node: str = "n1", check: bool = True) -> str:
        """Run a program as the user of ssh, in the shared directory; return its output."""
        done = subprocess.run(
            ["docker", "exec", "-u", USER, "-w", SHARED, f"rdm-lab-{self.name}-{node}", *argv],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )
        assert not check or done.returncode == 0, f"{argv} on {node}: {done.stdout}{done.stderr}"
        return done.stdout

    def rdm(
        self, verb: str, *argv: str, expect: int = 0, answer: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a verb of ``rdm-provision`` on this lab's inventory; ``slurm`` and ``env`` have their own."""
        if verb not in ("slurm", "env"):
            return super().rdm(verb, *argv, expect=expect, answer=answer)
        words = [one for one in argv if one != "--json"]
        flags = ["--json"] if "--json" in argv else []
        inventory = ["--inventory", f"inventory/{self.name}"]
        return self.product.rdm(verb, words[0], *inventory, *flags, *words[1:], expect=expect, answer=answer)

    def variables(self) -> dict[str, Any]:
        """The cluster's variables in the inventory."""
        text = (self.inventory / "hosts.yml").read_text(encoding="utf-8")
        return dict(yaml.safe_load(text)["cluster"]["vars"])

    def sbatch(self, script: str, *options: str) -> str:
        """Submit a script of /bin/sh, and return the job's id."""
        return self.user("sbatch", "--parsable", *options, "--wrap", script).strip()

    def state(self, job: str) -> str:
        """The state of a job in the accounting; empty until it is there."""
        output = self.user("sacct", "-X", "-n", "-P", "-D", "-j", job, "-o", "State", check=False)
        return output.splitlines()[-1].split()[0] if output.strip() else ""

    def ends(self, job: str, state: str = "COMPLETED") -> None:
        """Wait until a job is in a state."""
        wait_until(f"job {job} is {state}", lambda: self.state(job), lambda now: now == state)

    def nodes(self) -> dict[str, str]:
        """The state of each node."""
        output = self.user("sinfo", "-h", "-N", "-o", "%N %T", check=False)
        return dict(line.split() for line in output.splitlines())

    def idle(self) -> None:
        """Cancel all jobs in the queue, and wait until all nodes are idle."""
        self.on("n1", "scancel", "--state=pending", check=False)
        self.on("n1", "scancel", "--state=running", check=False)
        wait_until("all nodes are idle", self.nodes, lambda nodes: nodes == dict.fromkeys(NODES, "idle"))


@contextmanager
def running_slurm(product: Product, name: str) -> Iterator[SlurmLab]:
    """Yield a lab with a running Slurm cluster; the remains of a killed run are removed first."""
    command = ("--nodes", str(len(NODES)), "--slurm", "--trainer", "--extra", "finetune")
    with running_lab(product, name, *command) as lab:
        made = SlurmLab(lab.product, lab.name)
        made.json("slurm", "up")
        yield made

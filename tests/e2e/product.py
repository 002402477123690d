"""The product as a user installs it, and a lab to use it on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.labs import left_over
from trainer.tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
NODES = ("n1", "n2", "n3")
DEADLINE_S = 600.0
"""A timeout that only a hang reaches: a busy machine needs less."""
COMMAND_S = 3600.0
"""The same for a command: it may train a model, or wait until another suite has made the lab's images."""
ADDRESSES = {"n1": "192.169.16.100", "n2": "192.169.16.101", "n3": "192.169.16.102"}


def environment(**env: str) -> dict[str, str]:
    """Return this process's environment without a developer's settings for Ansible and for us."""
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "RDM_"))}
    for name in ("PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
        keep.pop(name, None)
    return keep | {"NO_COLOR": "1"} | env


def changed(result: Any) -> list[str]:
    """Return the nodes that a run changed, from its JSON."""
    return [name for name, node in result["nodes"].items() if node["changed"]]


def problems(result: Any) -> str:
    """Return the problems of a refused run, from its JSON: a sentence per line."""
    return "\n".join(
        " ".join(word for word in (one["value"], one["reason"], one["hint"]) if word)
        for one in result["problems"]
    )


@dataclass(frozen=True)
class Product:
    """A virtual environment that has the wheel, and a directory to work in.

    Attributes:
        bin: the environment's programs.
        directory: their working directory, without a checkout.
    """

    bin: Path
    directory: Path

    def environment(self, **env: str) -> dict[str, str]:
        """The environment of a user whose PATH has this installation."""
        return environment(PATH=f"{self.bin}:{os.environ['PATH']}", **env)

    def run(
        self, *argv: str | Path, expect: int = 0, cwd: Path | None = None, answer: str = "", **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment; fail the test with its output on another exit code.

        Its standard input is ``answer``.
        """
        done = subprocess.run(
            [str(part) for part in argv],
            cwd=cwd or self.directory,
            env=self.environment(**env),
            input=answer,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )
        assert done.returncode == expect, (
            f"{' '.join(map(str, argv))} exited with {done.returncode}, not {expect}\n"
            f"--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
        )
        assert "Traceback" not in done.stderr
        return done

    def rdm(self, *argv: str, expect: int = 0, answer: str = "") -> subprocess.CompletedProcess[str]:
        """Run ``rdm-provision`` with these arguments."""
        return self.run("rdm-provision", *argv, expect=expect, answer=answer)


@dataclass
class Background:
    """A running ``rdm-provision`` whose progress is read while it runs.

    Attributes:
        process: its pipe has no buffer, since what is in one is lost to ``communicate``.
    """

    process: subprocess.Popen[bytes]
    text: str = ""

    def after(self, phase: str) -> None:
        """Wait for the end of a phase; fail if the run ends without it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.text += line.decode()
            if line.split()[:1] == [phase.encode()]:
                return
        raise AssertionError(f"the run ended before the phase {phase} did:\n{self.text}")

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        assert self.process.poll() is None, f"the run has ended already:\n{self.text}"
        self.process.kill()
        self.process.communicate()

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def end(self, expect: int) -> str:
        """Wait for the end and return all output; fail on another exit code."""
        self.text += self.process.communicate(timeout=COMMAND_S)[0].decode()
        assert self.process.returncode == expect, self.text
        return self.text


@dataclass(frozen=True)
class Lab:
    """A lab, and access to its nodes from this machine.

    Attributes:
        product: the installed product.
        name: the lab's.
        made_in: the directory where it was made, and can be made again; default: the product's.
        started: the runs that were started in the background.
    """

    product: Product
    name: str
    made_in: Path | None = None
    started: list[Background] = field(default_factory=list, compare=False)

    @property
    def inventory(self) -> Path:
        """The folder of the lab's inventory."""
        return self.product.directory / "inventory" / self.name

    # --- the product

    def argv(self, verb: str, *argv: str) -> list[str]:
        """The words of a verb of ``rdm-provision`` on this lab's inventory."""
        return [verb, "--inventory", f"inventory/{self.name}", *argv]

    def rdm(
        self, verb: str, *argv: str, expect: int = 0, answer: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a verb of ``rdm-provision`` on this lab's inventory."""
        return self.product.rdm(*self.argv(verb, *argv), expect=expect, answer=answer)

    def json(self, verb: str, *argv: str, expect: int = 0) -> Any:
        """Run the same, and return its JSON."""
        return json.loads(self.rdm(verb, "--json", *argv, expect=expect).stdout)

    def start(self, verb: str, *argv: str, **env: str) -> Background:
        """Start the same in the background."""
        run = Background(
            subprocess.Popen(
                [str(self.product.bin / "rdm-provision"), *self.argv(verb, *argv)],
                cwd=self.product.directory,
                env=self.product.environment(**env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                start_new_session=True,
            )
        )
        self.started.append(run)
        return run

    def end_started(self) -> None:
        """End the runs that a failed test has left in the background: they would hold the cluster's lock."""
        for run in self.started:
            if run.process.poll() is None:
                run.kill()
        self.started.clear()

    def lab(self, verb: str, *argv: str) -> Any:
        """Run ``rdm-provision lab VERB`` for this lab, and return its JSON."""
        words = ["rdm-provision", "lab", verb, "--name", self.name, "--json", *argv]
        if self.made_in is None:
            return json.loads(self.product.run(*words).stdout)
        # There may be an ansible.cfg, and a collection that is not the wheel's.
        empty = self.product.bin.parent / "ansible.cfg"
        empty.write_text("[defaults]\n", encoding="utf-8")
        return json.loads(self.product.run(*words, cwd=self.made_in, ANSIBLE_CONFIG=str(empty)).stdout)

    def inventory_text(self, words: str) -> Path:
        """Write variables for all nodes next to the inventory; return the file, for its removal."""
        folder = self.inventory / "group_vars"
        folder.mkdir(exist_ok=True)
        file = folder / "all.yml"
        file.write_text(words, encoding="utf-8")
        return file

    # --- the nodes, without ssh

    def on(self, node: str, *argv: str, check: bool = True) -> str:
        """Run a program on a node, as root, and return what it wrote."""
        done = subprocess.run(
            ["docker", "exec", f"rdm-lab-{self.name}-{node}", *argv],
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def there(self, node: str, path: str) -> bool:
        """Whether the path exists on the node."""
        return self.on(node, "find", path, "-maxdepth", "0", check=False) != ""

    def container(self, node: str, what: str = "{{.State.Status}}") -> str:
        """Inspect a node's training container; empty if there is none."""
        return self.on(node, "docker", "inspect", "--format", what, "rdm", check=False).strip()

    def engine(self, node: str) -> str:
        """The process id of a node's engine; empty if it does not answer."""
        answers = self.on(node, "docker", "version", "--format", "{{.Server.Version}}", check=False).strip()
        return self.on(node, "pidof", "dockerd", check=False).strip() if answers else ""

    def pull_the_plug(self, node: str) -> None:
        """Do the same as ``lab stop``, but at once, because the run that it disturbs continues meanwhile."""
        subprocess.run(
            ["docker", "kill", f"rdm-lab-{self.name}-{node}"],
            check=True,
            capture_output=True,
            timeout=DEADLINE_S,
        )

    def kill_engine(self, node: str, signal_name: str = "TERM", when: str = "true") -> None:
        """End a node's engine as soon as a condition of the shell is true, and wait until it is back."""
        before = self.engine(node)
        # On the node, because the condition may be true only for a moment.
        script = f'until {when}; do sleep 0.02; done; kill -{signal_name} "$@"'
        self.on(node, "timeout", str(DEADLINE_S), "sh", "-c", script, "sh", *before.split())
        back = f"the engine of {node} is back"
        wait_until(back, lambda: self.engine(node), lambda engine: engine not in ("", before))

    def bare(self, *, images: bool = False) -> None:
        """Remove everything of ours from the nodes; with ``images``, images may stay."""
        for node in NODES:
            if self.there(node, "/etc/rdm") or self.container(node) or (self.images(node) and not images):
                self.json("down", *([] if images else ["--images"]))
                return

    def images(self, node: str) -> str:
        """The ids of the images that a node's engine has."""
        return self.on(node, "docker", "images", "--quiet")

    def provisioned(self) -> None:
        """Make every node run its container."""
        if any(self.container(node["name"]) != "running" for node in self.lab("status")["nodes"]):
            self.json("up")

    def whole(self) -> bool:
        """Whether all nodes run, are plugged in, and have an engine that answers."""
        return all(node["healthy"] for node in self.lab("status")["nodes"])


@contextmanager
def running_lab(product: Product, name: str, *argv: str) -> Iterator[Lab]:
    """Yield a lab made with these options of ``lab up``; the remains of a killed run are removed first."""
    lab = Lab(product, name)
    try:
        if left_over(name):
            lab.lab("down")
        lab.lab("up", *argv)
        yield lab
    finally:
        lab.lab("down")

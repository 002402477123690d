"""The README's two commands for people without hardware: `make demo` in a fresh clone, and its way back."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.e2e.product import ROOT, environment
from tests.labs import lab_name

NAME = lab_name("e2e-demo")
# A training as the demo's, but for its length.
SHORT = "TRAIN=optimisation.train_iterations=4 logging.interval=1"


def run(clone: Path, *argv: str) -> str:
    """Run a program in the clone and return all it printed."""
    done = subprocess.run(
        argv,
        cwd=clone,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=2400,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def make(clone: Path, *argv: str) -> str:
    """Run make in the clone, under a name that leaves a developer's own lab alone."""
    return run(clone, "make", *argv, f"LAB={NAME}")


def left() -> str:
    """What this machine's engine has of the demo."""
    mine = ["--quiet", "--filter", f"label=rdm.provision.lab={NAME}"]
    return "".join(
        subprocess.run(["docker", *kind, *mine], check=True, capture_output=True, text=True).stdout
        for kind in (["ps", "--all"], ["volume", "ls"], ["network", "ls"])
    )


def test_make_demo_twice_and_away(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    run(tmp_path, "git", "clone", "--quiet", str(ROOT), str(clone))
    try:
        shown = make(clone, "demo", "NODES=2", SHORT)
        for words in (
            "MY_IP",
            "192.169.16.101",
            "rdm (running)",
            "Every container of this run reaches every",
            "Brought .venv/demo/data to n1, n2",
            "loss 10.",
            "┤",
            "finished   4/4",
            "/checkpoints on each node, the newest of iteration 4",
        ):
            assert words in shown
        for command in (
            f"rdm-provision status -i inventory/{NAME}",
            "rdm-provision exec",
            "rdm-provision lab down",
            f"rdm-provision train -i inventory/{NAME} --resume demo-",
        ):
            assert command in shown

        tried = f". .venv/bin/activate && rdm-provision exec -i inventory/{NAME} -- hostname"
        assert tried.split(" && ")[0] in shown
        assert run(clone, "bash", "-c", tried).split() == ["n1", "n1", "n2", "n2"]

        again = make(clone, "demo", "NODES=2", SHORT)
        assert "Nothing was changed: the lab runs as asked for." in again
        assert "Nothing was changed: the cluster is as the inventory describes it." in again
        assert "Nothing was changed: every node has the data." in again
        assert "finished   4/4" in again
        assert "Setting up" not in again
    finally:
        make(clone, "demo-down")
    assert left() == ""
    assert not (clone / "inventory" / NAME).exists()
    assert run(clone, "git", "status", "--porcelain") == ""
    ignored = run(clone, "git", "status", "--porcelain", "--ignored").splitlines()
    # Python may keep compiled modules wherever it likes.
    assert [line for line in ignored if not line.endswith("__pycache__/")] == ["!! .venv/"]

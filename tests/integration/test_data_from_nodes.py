"""Files on disks of nodes go to other nodes through real ssh and sockets.

The nodes are this machine under three names, each with a disk of its own: a directory that only the processes
of one node see.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ansible_playbook import TIMEOUT_S
from tests.conftest import ROOT
from tests.integration.ssh_nodes import configure_ssh, own_disk, start_playbook
from trainer.tests.waiting import wait_until

NAMES = ("n1", "n2", "n3")
MANIFEST = "global_step4/manifest.json"
SHARDS = {"n1": "global_step4/__0_0.distcp", "n2": "global_step4/__1_0.distcp"}
SIZE = 12_000_000
TRANSFER = "rdm.provision.job : Transfer large files from node to node"
STORE = "rdm.provision.job : Copy files that are missing or differ"


@dataclass
class Nodes:
    """Three nodes.

    Attributes:
        folder: with all files of the controller and the nodes.
    """

    folder: Path

    def disk(self, name: str) -> Path:
        """Return the directory that is `node` for the processes of a node."""
        return self.folder / "disks" / name

    def data(self, name: str) -> dict[str, bytes]:
        """Return the files that a node's jobs find."""
        top = self.disk(name) / "jobs" / "data"
        return {
            path.relative_to(top).as_posix(): path.read_bytes() for path in top.rglob("*.*") if path.is_file()
        }

    def start(self, *flags: str, megabits: float = 0) -> subprocess.Popen[str]:
        """Start a run that brings the checkpoints to all nodes."""
        here = self.folder / "node"
        given = {
            "job_data": str(here / "checkpoints"),
            "job_data_from": ["n1", "n2"],
            "job_data_to": "gpt",
            "images_cache_dir": str(here / "cache"),
            "images_bandwidth": megabits,
            # Without a Docker Engine the directory of the jobs is unknown.
            "__job_listed": {"directory": str(here / "jobs")},
        }
        first = f"--start-at-task={TRANSFER.partition(' : ')[2]}"
        return start_playbook(self.folder, ROOT / "playbooks" / "job_data.yml", given, first, *flags)

    def run(self, *flags: str) -> dict[str, Any]:
        """Run it to its end; return the results of each task by node."""
        run = self.start(*flags)
        output, errors = run.communicate(timeout=TIMEOUT_S)
        assert run.returncode == 0, output + errors
        report = json.loads(output[output.index("{") :])
        return {task["task"]["name"]: task["hosts"] for play in report["plays"] for task in play["tasks"]}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """The nodes; two of them have their part of a checkpoint, and one of these left the cluster."""
    nodes = Nodes(tmp_path)
    configure_ssh(tmp_path)
    (tmp_path / "node").mkdir()
    with contextlib.ExitStack() as disks:
        lines = [f"{name} ansible_ssh_executable={_with_disk(nodes, name, disks)}" for name in NAMES]
        (tmp_path / "inventory").write_text("[former]\n{}\n[master]\n{}\n[workers]\n{}\n".format(*lines))
        yield nodes


def _with_disk(nodes: Nodes, name: str, disks: contextlib.ExitStack) -> Path:
    """Give a node its disk while `disks` is open, and return the ssh that reaches the node."""
    disk = nodes.disk(name)
    (disk / "jobs").mkdir(parents=True)
    if name in SHARDS:
        (disk / "checkpoints" / "global_step4").mkdir(parents=True)
        (disk / "checkpoints" / MANIFEST).write_text("of all ranks")
        (disk / "checkpoints" / SHARDS[name]).write_bytes(os.urandom(SIZE))
        (disk / "checkpoints" / "global_step6.partial").mkdir()
        (disk / "checkpoints" / "global_step6.partial" / "rank.distcp").write_text(name)
    ssh = nodes.folder / f"ssh-{name}"
    disks.enter_context(own_disk(ssh, f"--bind {disk} {nodes.folder}/node"))
    return ssh


def part_of(nodes: Nodes, name: str) -> dict[str, bytes]:
    """Return a node's part of the checkpoint, as it should arrive."""
    top = nodes.disk(name) / "checkpoints"
    return {f"gpt/{path}": (top / path).read_bytes() for path in (SHARDS[name], MANIFEST)}


def test_killed_run_is_continued_and_later_ones_copy_only_missing_files(nodes: Nodes) -> None:
    run = nodes.start("--limit", "n3", megabits=8)
    peers = nodes.disk("n3") / "cache" / "peers"

    def begun() -> bool:
        arrived = sum(file.stat().st_blocks * 512 for file in peers.glob("*.tar"))
        return arrived > SIZE // 4 or bool(nodes.data("n3"))

    wait_until("a quarter has arrived", begun)
    run.kill()
    run.communicate(timeout=TIMEOUT_S)
    whole = part_of(nodes, "n1") | part_of(nodes, "n2")
    sent = nodes.run("--limit", "n3")[TRANSFER]["n3"]["sent"]
    assert nodes.data("n3") == whole
    assert sent.keys() == {"n1", "n2"}
    assert sent["n1"] < SIZE
    # Another file of the same size, and one that is missing, and no other.
    (nodes.disk("n3") / "jobs" / "data" / "gpt" / MANIFEST).write_text("of no rank!!")
    (nodes.disk("n3") / "jobs" / "data" / "gpt" / SHARDS["n2"]).unlink()
    brought = nodes.run()
    assert sorted(brought[STORE]["n3"]["copied"]) == sorted([MANIFEST, SHARDS["n2"]])
    assert [nodes.data(name) == whole for name in NAMES] == [False, True, True]
    assert not nodes.data("n1")
    assert not [path for path in nodes.folder.rglob("peers/*") if path.is_file()]

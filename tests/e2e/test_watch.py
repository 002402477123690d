"""Faults that are planted in a lab's containers while a job runs: each is named, with node and rank.

The same on this machine's loopback network: trainer/tests/distributed/test_watched_faults.py.
"""

from __future__ import annotations

import json
import re
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.product import ROOT, Lab, Product, running_lab, wait_until
from tests.e2e.test_train import ENDLESS, NODES, TINY, read, trains
from tests.labs import lab_name

pytestmark = pytest.mark.long

JOB = "e2e-watch"
PROMISED_S = 30.0
"""Within which a fault is named on a machine that is for nothing else. One that took longer is a warning in
the summary, because this machine may be busy."""
BUSY = 4
"""So many times as long may a fault take until it is named, where others use the machine."""
GIB = 1024**3
OTHER = """
import importlib.metadata, pathlib, re, sys
record = pathlib.Path(importlib.metadata.distribution("deepspeed")._path) / "METADATA"
text = record.read_text()
print(re.search(r"(?m)^Version: (.*)", text)[1])
record.write_text(re.sub(r"(?m)^Version: .*", f"Version: {sys.argv[1]}", text, count=1))
"""
"""Gives a node's DeepSpeed another version, as another image would, and prints the one that it had."""


@pytest.fixture(scope="module")
def cluster(product: Product) -> Iterator[Lab]:
    """Two nodes with the training image, the second with a small disk and little memory."""
    with running_lab(product, lab_name("e2e-watch"), "--nodes", "2", "--trainer") as lab:
        jobs = f"/var/lib/rdm/{lab.name}"
        lab.on("n2", "mkdir", "-p", jobs)
        lab.on("n2", "mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", jobs)
        lab.json("up")
        planted = (ROOT / "trainer/tests/distributed/planted/sitecustomize.py").read_text()
        for node in NODES:
            lab.on(node, "mkdir", f"{jobs}/planted")
            plant(lab, node, "sitecustomize.py", planted)
        lab.on("n2", "docker", "update", "--memory", "3g", "--memory-swap", "3g", "rdm")
        yield lab


def plant(cluster: Lab, node: str, name: str, text: str) -> None:
    """Write a file of which the ranks of a node know what to do."""
    script = 'printf %s "$1" >"$2.new" && mv "$2.new" "$2"'
    cluster.on(node, "sh", "-c", script, "sh", text, f"/var/lib/rdm/{cluster.name}/planted/{name}")


def in_container(cluster: Lab, node: str, *argv: str) -> str:
    """Run a program in a node's training container."""
    return cluster.on(node, "docker", "exec", "rdm", *argv)


def arguments(cluster: Lab) -> tuple[str, ...]:
    """Return what starts the job, whose ranks do what is planted."""
    environment = {"PYTHONPATH": "/jobs/planted", "PLANTED": "/jobs/planted", "OMP_NUM_THREADS": "1"}
    config = {**TINY, "checkpoint": {"interval": 1000000}, "launcher": {"env": environment}}
    (cluster.product.directory / "watch.json").write_text(json.dumps(config))
    return ("watch.json", ENDLESS, "launcher.devices_per_node=1", "--name", JOB, "--detach")


def lose_agent(cluster: Lab) -> None:
    """Kill the job's agent on its second node."""
    in_container(cluster, "n2", "pkill", "-KILL", "-f", f"agent .*{JOB}")


@pytest.fixture
def failed(cluster: Lab) -> None:
    """The job has failed: in a test before, or now."""
    if not cluster.there("n1", f"/var/lib/rdm/{cluster.name}/{JOB}"):
        cluster.json("train", *arguments(cluster))
        trains(cluster, JOB)

    def state() -> str:
        found: str = read(cluster, JOB, "state.json")["state"]
        return found

    if state() != "failed":
        lose_agent(cluster)
        wait_until(lambda: state() == "failed", "the job has failed", seen=state)


def test_each_planted_fault_is_named(cluster: Lab) -> None:
    jobs = f"/var/lib/rdm/{cluster.name}"
    train = arguments(cluster)
    before = in_container(cluster, "n2", "python", "-c", OTHER, "0.0.1").strip()
    (problem,) = cluster.json("train", *train, expect=2)["problems"]
    refused = [problem[key] for key in ("node", "value", "reason")]
    assert refused == ["n2", "deepspeed 0.0.1", f"is not {before}, as on n1"]
    in_container(cluster, "n2", "python", "-c", OTHER, before)
    cluster.json("train", *train)
    trains(cluster, JOB)

    def verdict() -> dict[str, Any]:
        found: dict[str, Any] = read(cluster, JOB, "state.json").get("verdict") or {}
        return found

    def names(kind: str, node: str, rank: int | None, planted: Callable[[], object]) -> None:
        culprit = {"kind": kind, "node": node, "rank": rank}
        assert culprit not in verdict().get("culprits", [])
        planted()
        began = time.monotonic()
        wait_until(
            lambda: culprit in verdict().get("culprits", []),
            f"{culprit} is named",
            BUSY * PROMISED_S,
            verdict,
        )
        took = time.monotonic() - began
        print(f"{took:5.1f} s  {kind}: {verdict()['evidence']}")
        if took > PROMISED_S:
            warnings.warn(f"{culprit} was named after {took:.1f} s, not {PROMISED_S:.0f}.", stacklevel=2)

    def forgets(kind: str) -> None:
        wait_until(
            lambda: kind not in [one["kind"] for one in verdict().get("culprits", [])],
            f"{kind} is no longer said",
            seen=verdict,
        )

    names("slow", "n2", 1, lambda: plant(cluster, "n2", "slow.1", "0.4"))
    cluster.on("n2", "rm", f"{jobs}/planted/slow.1")
    forgets("slow")

    names("processors", "n2", 1, lambda: cluster.on("n2", "docker", "update", "--cpus", "0.05", "rdm"))
    cluster.on("n2", "docker", "update", "--cpus", "2", "rdm")
    forgets("processors")

    names("memory", "n2", 1, lambda: plant(cluster, "n2", "grow.1", str(1.3 * GIB)))
    cluster.on("n2", "rm", f"{jobs}/planted/grow.1")

    names(
        "disk",
        "n2",
        None,
        lambda: cluster.on("n2", "sh", "-c", f"cat /dev/zero >{jobs}/filler || true", check=False),
    )
    cluster.on("n2", "rm", f"{jobs}/filler")
    forgets("disk")

    names("nan", "n1", 0, lambda: plant(cluster, "n1", "nan.0", "1"))
    told = cluster.rdm("jobs", JOB, "--verdict", expect=4).stdout
    assert told.startswith("suspect: ")
    assert "The loss of rank 0 on n1 was not a number first" in told

    names("failure", "n2", None, lambda: lose_agent(cluster))
    assert cluster.rdm("jobs", JOB, "--verdict", expect=1).stdout.startswith("failed: ")


@pytest.mark.usefixtures("failed")
def test_a_job_that_has_ended_is_reported_and_goes_when_that_is_wanted(cluster: Lab) -> None:
    cluster.rdm("report", JOB)
    page = (cluster.product.directory / f"{JOB}.html").read_text()
    assert "has not been heard for 12 s" in page
    assert "lm loss" in page
    directory = f"/var/lib/rdm/{cluster.name}/{JOB}"
    assert "No job ended 1d ago, or earlier." in cluster.rdm("jobs", "--prune", "1d").stdout
    shown = cluster.rdm("jobs", "--prune", "0d", answer="n\n").stdout
    assert re.search(rf"{JOB} +failed +.* ago +n1 \d+\.\d [KM]iB, n2 \d+\.\d [KM]iB", shown), shown
    assert "Remove 1 job from the nodes? [y/N]" in shown
    assert "Nothing was removed." in shown
    assert all(cluster.there(node, directory) for node in NODES)
    removed = cluster.rdm("jobs", "--prune", "0d", answer="y\n").stdout
    assert re.search(r"Removed 1 job, \d+\.\d [KM]iB on 2 nodes\.", removed), removed
    assert not any(cluster.there(node, directory) for node in NODES)
    assert "There is no job." in cluster.rdm("jobs").stdout

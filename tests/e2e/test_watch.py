"""Inject faults into a lab's containers while a job runs: each is reported with node and rank.

The same on this machine's loopback network: trainer/tests/distributed/test_watched_faults.py.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.environments import ENDLESS, NODES, OTHER_VERSION, TINY, Containers, read, wait_for_step
from tests.e2e.product import ROOT, Product, running_lab
from tests.labs import lab_name
from trainer.tests.waiting import wait_until

pytestmark = pytest.mark.long

JOB = "e2e-watch"
PROMISED_S = 30.0
"""Seconds within which a fault is reported, without the time that other work on this machine delayed the
threads that report it."""
GIVEN_UP_S = 180.0
QUOTA = 0.4
"""The processors of each node while the second gets half of them."""
EQUAL_S = 45.0
"""Seconds with the same quota on all nodes, in which none may be reported: twice the time for a report."""
DELAYS = """\
cd /proc && grep -sH . $(printf "%s/task/*/schedstat " $(pgrep -f rdm_job))
grep -hs ^throttled_ /sys/fs/cgroup/cpu.stat /sys/fs/cgroup/cpu/cpu.stat || true
"""
"""Prints how long each thread of the job was ready but did not run, and how long the container's limit kept
all of them from running. Threads may end meanwhile."""
GIB = 1024**3


@pytest.fixture(scope="module")
def cluster(product: Product) -> Iterator[Containers]:
    """Two nodes with the training image, the second with a small disk and little memory."""
    with running_lab(product, lab_name("e2e-watch"), "--nodes", "2", "--trainer") as made:
        lab = Containers(product, made.name)
        jobs = f"/var/lib/rdm/{lab.name}"
        lab.on("n2", "mkdir", "-p", jobs)
        lab.on("n2", "mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", jobs)
        lab.json("up")
        program = (ROOT / "trainer/tests/distributed/planted/sitecustomize.py").read_text()
        for node in NODES:
            lab.on(node, "mkdir", f"{jobs}/planted")
            plant(lab, node, "sitecustomize.py", program)
        lab.on("n2", "docker", "update", "--memory", "3g", "--memory-swap", "3g", "rdm")
        yield lab


def plant(cluster: Containers, node: str, name: str, text: str) -> None:
    """Write a file that tells a node's ranks what to do."""
    script = 'printf %s "$1" >"$2.new" && mv "$2.new" "$2"'
    cluster.on(node, "sh", "-c", script, "sh", text, f"/var/lib/rdm/{cluster.name}/planted/{name}")


def in_container(cluster: Containers, node: str, *argv: str) -> str:
    """Run a program in a node's training container."""
    return cluster.on(node, "docker", "exec", "rdm", *argv)


def arguments(cluster: Containers) -> tuple[str, ...]:
    """Return the arguments that start the job; its ranks execute the planted code."""
    environment = {"PYTHONPATH": "/jobs/planted", "PLANTED": "/jobs/planted", "OMP_NUM_THREADS": "1"}
    config = {**TINY, "checkpoint": {"interval": 1000000}, "launcher": {"env": environment}}
    (cluster.product.directory / "watch.json").write_text(json.dumps(config))
    return ("watch.json", ENDLESS, "launcher.devices_per_node=1", "--name", JOB, "--detach")


def delays(cluster: Containers) -> dict[str, dict[str, float]]:
    """Return the seconds for which threads were ready but did not run, by node and thread.

    Other threads had the processor, or the container's own limit stopped them: ``throttled``, one figure for
    the whole container.
    Source: the second field of ``schedstat`` (Documentation/scheduler/sched-stats.rst).
    """
    found = {}
    for node in NODES:
        found[node] = {"throttled": 0.0}
        for line in in_container(cluster, node, "sh", "-c", DELAYS).splitlines():
            name, count, *_ = line.split()
            if name.startswith("throttled_"):
                found[node]["throttled"] = int(count) / (1e6 if name == "throttled_usec" else 1e9)
            else:
                found[node][name.partition(":")[0]] = int(count) / 1e9
    return found


def others_delay(before: dict[str, float], now: dict[str, float], seconds: float) -> float:
    """Return the longest time for which other work kept a thread of a node from a processor, in seconds.

    Time that the container's own limit may have caused is subtracted, so the result is too small for a
    container that is often throttled.
    """
    gained = {name: now[name] - before[name] for name in now.keys() & before.keys()}
    own = gained.pop("throttled")
    return max(0.0, max(gained.values(), default=0.0) - min(own, seconds))


def lose_agent(cluster: Containers) -> None:
    """Kill the job's agent on its second node."""
    in_container(cluster, "n2", "pkill", "-KILL", "-f", f"agent .*{JOB}")


@pytest.fixture
def failed(cluster: Containers) -> None:
    """Make the job fail, unless a previous test has."""
    if not cluster.there("n1", f"/var/lib/rdm/{cluster.name}/{JOB}"):
        cluster.json("train", *arguments(cluster))
        wait_for_step(cluster, JOB)

    def state() -> str:
        found: str = read(cluster, JOB, "state.json")["state"]
        return found

    if state() != "failed":
        lose_agent(cluster)
        wait_until("the job has failed", state, lambda now: now == "failed")


def test_each_planted_fault_is_named(cluster: Containers) -> None:
    jobs = f"/var/lib/rdm/{cluster.name}"
    train = arguments(cluster)
    before = in_container(cluster, "n2", "python", "-c", OTHER_VERSION, "0.0.1").strip()
    (problem,) = cluster.json("train", *train, expect=2)["problems"]
    refused = [problem[key] for key in ("node", "value", "reason")]
    assert refused == ["n2", "deepspeed 0.0.1", f"is not {before}, as on n1"]
    in_container(cluster, "n2", "python", "-c", OTHER_VERSION, before)
    cluster.json("train", *train)
    wait_for_step(cluster, JOB)

    def verdict() -> dict[str, Any]:
        found: dict[str, Any] = read(cluster, JOB, "state.json").get("verdict") or {}
        return found

    def inject(kind: str, node: str, rank: int | None, fault: Callable[[], object]) -> None:
        culprit = {"kind": kind, "node": node, "rank": rank}
        assert culprit not in verdict().get("culprits", [])
        before = delays(cluster)
        fault()
        began = queried = time.monotonic()

        def culprits() -> list[dict[str, Any]]:
            nonlocal queried
            queried = time.monotonic()
            found: list[dict[str, Any]] = verdict().get("culprits", [])
            return found

        wait_until(
            f"{culprit} is named", culprits, lambda found: culprit in found, timeout=GIVEN_UP_S, why=verdict
        )
        took, query = time.monotonic() - began, time.monotonic() - queried
        now = delays(cluster)
        delayed = query + max(others_delay(before[node], now[node], took + query) for node in NODES)
        output = f"{took:5.1f} s, {delayed:.1f} of delay: {kind}"
        print(f"{output}: {verdict()['evidence']}")
        assert took <= PROMISED_S + delayed, output

    def wait_until_cleared(kind: str) -> None:
        wait_until(
            f"{kind} is no longer reported",
            verdict,
            lambda found: kind not in [one["kind"] for one in found.get("culprits", [])],
        )

    inject("slow", "n2", 1, lambda: plant(cluster, "n2", "slow.1", "0.4"))
    cluster.on("n2", "rm", f"{jobs}/planted/slow.1")
    wait_until_cleared("slow")

    def processors(node: str, count: float) -> None:
        cluster.on(node, "docker", "update", "--cpus", str(count), "rdm")

    def held_back() -> list[str]:
        return [one["node"] for one in verdict().get("culprits", []) if one["kind"] == "processors"]

    for node in NODES:
        processors(node, QUOTA)
    until = time.monotonic() + EQUAL_S
    while time.monotonic() < until:
        assert held_back() == []
    inject("processors", "n2", 1, lambda: processors("n2", QUOTA / 2))
    assert held_back() == ["n2"]
    for node in NODES:
        processors(node, 2)
    wait_until_cleared("processors")

    inject("memory", "n2", 1, lambda: plant(cluster, "n2", "grow.1", str(1.3 * GIB)))
    cluster.on("n2", "rm", f"{jobs}/planted/grow.1")

    inject(
        "disk",
        "n2",
        None,
        lambda: cluster.on("n2", "sh", "-c", f"cat /dev/zero >{jobs}/filler || true", check=False),
    )
    cluster.on("n2", "rm", f"{jobs}/filler")
    wait_until_cleared("disk")

    inject("nan", "n1", 0, lambda: plant(cluster, "n1", "nan.0", "1"))
    output = cluster.rdm("jobs", JOB, "--verdict", expect=4).stdout
    assert output.startswith("suspect: ")
    assert "The loss of rank 0 on n1 was not a number first" in output

    inject("failure", "n2", None, lambda: lose_agent(cluster))
    assert cluster.rdm("jobs", JOB, "--verdict", expect=1).stdout.startswith("failed: ")


@pytest.mark.usefixtures("failed")
def test_ended_job_is_reported_and_pruned_on_request(cluster: Containers) -> None:
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

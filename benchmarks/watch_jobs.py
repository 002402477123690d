"""Measure the cost of the verdict on a job of 1,000 nodes with eight ranks each, for agent and reader.

Run `trainer/.venv/bin/python benchmarks/watch_jobs.py`. The nodes' reports are made here, as agents send them
once a second, and come over 1,000 real connections of `rdm_job.control` from a process that stands in for
the nodes. It prints CPU seconds, the best of five: of the master's agent, to receive all reports, to evaluate
them and to write the state; and of the reader, `rdm-trainer job state` on the master, a process of its own.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "trainer")]

from benchmarks.tables import markdown  # noqa: E402
from rdm_core.config import Config  # noqa: E402
from rdm_job.control import ControlClient, ControlServer  # noqa: E402
from rdm_job.directory import JobDirectory  # noqa: E402
from rdm_job.health import Health  # noqa: E402
from rdm_job.info import requested  # noqa: E402
from rdm_job.protocol import Node, Request, State  # noqa: E402

NODES, EACH, ROUNDS = 1000, 8, 5
REQUEST = Request("gpt", "n0", tuple(Node(f"n{n}", f"10.0.{n // 250}.{n % 250}", EACH) for n in range(NODES)))
CONFIG = Config(name="gpt")
PORT, KEY = 29871, b"of this run"
LINE = "[0] NVIDIA H200      | 49'C,  98 % | 71204 / 143771 MB |"


def report(node: int) -> dict[str, Any]:
    """Return a node's report."""
    ranks = range(EACH * node, EACH * (node + 1))
    heartbeats = [
        {
            "rank": rank,
            "group": f"stage {node % 8}",
            "iteration": 400,
            "waits": True,
            "compute_s": 1 + rank % 7 / 100,
            "before_s": 1.0,
            "nan_at": None,
            "retries": 0,
        }
        for rank in ranks
    ]
    watch = {
        "versions": {"Python": "3.12", "torch": "2.13.0", "deepspeed": "0.19.8", "configuration": "0123abcd"},
        "findings": [],
        "run": None,
        "since_s": 1.0,
        "phase": "",
        "reports_phases": True,
        "ranks": heartbeats,
        "signs": [],
        "held_back": "",
        "quota": None,
        "gpu_processes": EACH,
        "arguments": requested(REQUEST, CONFIG),
        "vocabulary": None,
    }
    return {
        "attempt": 0,
        "ranks": {str(rank): "running" for rank in ranks},
        "failed": [],
        "lines": [],
        "launcher": None,
        "gpu": [LINE] * EACH,
        "stop": None,
        "progress": {},
        "watch": watch,
    }


def stand_in(port: int, reports: Mapping[str, dict[str, Any]]) -> None:
    """Stand in for all nodes: each connects, and answers every message of the master with its report."""
    clients = {name: ControlClient("127.0.0.1", port, name, KEY) for name in reports}
    while True:
        for name, client in clients.items():
            for _ in client.receive():
                client.send(reports[name])
        time.sleep(0.1)


def receive_all(server: ControlServer) -> dict[str, dict[str, Any]]:
    """Receive a report of every node, as the master's agent does."""
    server.send({"go": True})
    reports_by_node: dict[str, dict[str, Any]] = {}
    while len(reports_by_node) < NODES:
        reports_by_node.update({name: messages[-1] for name, messages in server.receive(1).items()})
    return reports_by_node


def connected(reports: Mapping[str, dict[str, Any]]) -> tuple[ControlServer, multiprocessing.Process]:
    """Return the master's side of the connections, and the process that stands in for the nodes."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4 * NODES), most))
    server = ControlServer("127.0.0.1", PORT, KEY, NODES)
    nodes = multiprocessing.Process(target=stand_in, args=(PORT, reports), daemon=True)
    nodes.start()
    while any(server.silent_for(name) is None for name in reports):
        server.receive(1)
    return server, nodes


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its ended children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def best(work: Callable[[], object]) -> float:
    """Return the least CPU seconds of some rounds."""
    times = []
    for _ in range(ROUNDS):
        began = cpu_seconds()
        work()
        times.append(cpu_seconds() - began)
    return min(times)


def query(jobs: str) -> None:
    """Query the state of the job, as `rdm-provision jobs` does on the master."""
    command = [sys.executable, "-m", "rdm_trainer", "job", "state", "gpt"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "trainer"),
        "RDM_JOBS": jobs,
        "RDM_EXECUTION_ENVIRONMENT": "host",
    }
    answer = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)
    assert len(answer["job"]["nodes"]) == NODES, answer


def main() -> None:
    """Print the table."""
    made = {node.name: report(n) for n, node in enumerate(REQUEST.nodes)}
    server, others = connected(made)
    reports = receive_all(server)
    health = Health(REQUEST, CONFIG)
    state = State(job="gpt", state="running", started=1.0, nodes=dict.fromkeys(made, "running"))
    state.gpu = {name: one["gpu"] for name, one in reports.items()}
    state.verdict = health.verdict(state, reports)
    text = json.dumps(state.to_json())
    rows = [
        ("the master's agent hears all nodes", best(lambda: receive_all(server))),
        ("and evaluates", best(lambda: health.verdict(state, reports))),
        ("and writes the state", best(lambda: json.dumps(state.to_json()))),
    ]
    with tempfile.TemporaryDirectory() as jobs:
        directory = JobDirectory(Path(jobs) / state.job, REQUEST.master.name)
        directory.make(REQUEST)
        directory.write_state(state)
        rows.append(("the reader queries the master for it", best(lambda: query(jobs))))
    others.kill()
    server.close()
    size = len(json.dumps(made["n1"]))
    print(f"{NODES} nodes, {NODES * EACH} ranks; a report has {size} bytes, the state {len(text)}.")
    print(markdown([("work", "CPU ms"), *((name, f"{1000 * seconds:.0f}") for name, seconds in rows)]))


if __name__ == "__main__":
    main()

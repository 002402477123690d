"""What the verdict on a job of 1,000 nodes with eight ranks each costs its master's agent, and who asks it.

Run `trainer/.venv/bin/python benchmarks/watch_jobs.py`. The nodes' reports are made here, as agents send them
once a second. In CPU seconds, the best of five: to take all of them off their wire form, to judge, and to
write the state; and for the reader, to read the state and turn it into what `jobs JOB --json` prints.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "trainer")]

from benchmarks.tables import markdown  # noqa: E402
from rdm_job.health import Health  # noqa: E402
from rdm_job.info import asked  # noqa: E402
from rdm_job.protocol import Node, Request, State  # noqa: E402
from rdm_trainer.config import Config  # noqa: E402

NODES, EACH, ROUNDS = 1000, 8, 5
REQUEST = Request("gpt", "n0", tuple(Node(f"n{n}", f"10.0.{n // 250}.{n % 250}", EACH) for n in range(NODES)))
CONFIG = Config(name="gpt")
LINE = "[0] NVIDIA H200      | 49'C,  98 % | 71204 / 143771 MB |"


def report(node: int) -> dict[str, Any]:
    """Return a node's report."""
    ranks = range(EACH * node, EACH * (node + 1))
    paces = [
        {
            "rank": rank,
            "group": f"stage {node % 8}",
            "iteration": 400,
            "waits": True,
            "own_s": 1 + rank % 7 / 100,
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
        "tells_phases": True,
        "ranks": paces,
        "signs": [],
        "held_back": "",
        "gpu_processes": EACH,
        "arguments": asked(REQUEST, CONFIG),
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


def best(work: Callable[[], object]) -> float:
    """Return the CPU seconds of the best of some rounds."""
    times = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


def main() -> None:
    """Print the table."""
    wire = {node.name: json.dumps(report(n)).encode() for n, node in enumerate(REQUEST.nodes)}
    reports = {name: json.loads(line) for name, line in wire.items()}
    health = Health(REQUEST, CONFIG)
    state = State(job="gpt", state="running", started=1.0, nodes=dict.fromkeys(wire, "running"))
    state.gpu = {name: one["gpu"] for name, one in reports.items()}
    state.verdict = health.verdict(state, reports)
    text = json.dumps(state.to_json())
    rows = [
        ("the master's agent hears all nodes", best(lambda: [json.loads(line) for line in wire.values()])),
        ("and judges", best(lambda: health.verdict(state, reports))),
        ("and writes the state", best(lambda: json.dumps(state.to_json()))),
        ("the reader reads the state", best(lambda: json.dumps(State.of(json.loads(text)).to_json()))),
    ]
    print(
        f"{NODES} nodes, {NODES * EACH} ranks; a report has {len(wire['n1'])} bytes, the state {len(text)}."
    )
    print(markdown([("work", "CPU ms"), *((name, f"{1000 * seconds:.0f}") for name, seconds in rows)]))


if __name__ == "__main__":
    main()

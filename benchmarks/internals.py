"""Measure the CPU time that each use of Ansible's internals saves, over all processes of a run.

Run `python benchmarks/internals.py`. The nodes are simulated as in `benchmarks/scale.py`. Each round makes
every run with all of them, and once without each, so that other work on the machine affects all alike. The
least CPU time of all rounds counts. A ratio of 0.85 means that one saves 15 %.

* `plan`: plan the addresses, the shortest run;
* `second`: a run without work;
* `first`: the first run, which does everything on every node.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / ".collections"), str(ROOT)]

from benchmarks.scale import Cluster, Figures, sizes  # noqa: E402
from benchmarks.tables import markdown  # noqa: E402
from rdm_provision.environment import CALLBACKS  # noqa: E402

ENABLED = "ANSIBLE_CALLBACKS_ENABLED"
THREADS = "remote_executor"
PARTS = (*(name.rpartition(".")[2] for name in CALLBACKS.split(",")), THREADS)


def first(cluster: Cluster, *options: str) -> Figures:
    """Reset all nodes, and run."""
    cluster.reset()
    return cluster.playbook("site", *options)


RUNS: dict[str, Callable[..., Figures]] = {
    "plan": lambda cluster, *options: cluster.playbook("plan", *options),
    "first": first,
    "second": lambda cluster, *options: cluster.playbook("site", *options),
}


@contextlib.contextmanager
def without(part: str) -> Iterator[list[str]]:
    """Switch one of them off, none for an empty name; yield options for ansible-playbook."""
    os.environ[ENABLED] = ",".join(name for name in CALLBACKS.split(",") if not name.endswith(f".{part}"))
    try:
        yield ["-e", '{"preflight_threaded_connections": []}'] if part == THREADS else []
    finally:
        del os.environ[ENABLED]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--sizes", type=sizes, default="8,50", help="numbers of nodes, with commas (8,50)")
    parser.add_argument("--runs", default=",".join(RUNS), help=f"what to measure ({','.join(RUNS)})")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"what to leave out ({','.join(PARTS)})")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each; the least counts (3)")
    options = parser.parse_args()
    runs = [name for name in RUNS if name in options.runs.split(",")]
    parts = [name for name in PARTS if name in options.parts.split(",")]
    rows = [["nodes", "run", "with all, CPU s", *parts]]
    with tempfile.TemporaryDirectory(prefix="rdm-internals-") as directory:
        for count in options.sizes:
            cluster = Cluster(Path(directory, str(count)), count)
            first(cluster).expect(0)
            for name in runs:
                least = dict.fromkeys(("", *parts), float("inf"))
                for _ in range(options.rounds):
                    for part in least:
                        with without(part) as words:
                            found = RUNS[name](cluster, *words).expect(0)
                        least[part] = min(least[part], found.cpu)
                        what = f"{count} nodes, {name}, without {part or 'none'}"
                        print(f"  {what}: {found.cpu:.2f} CPU s", file=sys.stderr)
                ratios = [f"{least[''] / least[part]:.2f}" for part in parts]
                rows.append([f"{count:,}", name, f"{least['']:.2f}", *ratios])
    print(markdown(rows, words=2))


if __name__ == "__main__":
    main()

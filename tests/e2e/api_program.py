"""A user's program: every verb of the Python API on one cluster. Prints the results as JSON.

Arguments: lines of Python that bring the cluster up, and leave ``cluster`` and ``run``.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from typing import Any

from rdm_provision import Cluster, Run, RunFinished


def main() -> None:
    """Execute the lines, then plan, check, verify, status, exec and down."""
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(sys.argv[1], names)
    cluster: Cluster = names["cluster"]
    up: Run = names["run"]
    found: dict[str, Any] = {"printed": printed.getvalue().splitlines(), "up": up.result().to_json()}

    found["nodes"] = {node.name: (node.rank, node.my_ip) for node in Cluster.load(cluster.inventory).nodes}
    found["plan"] = {node.node: node.my_ip for node in cluster.plan().nodes}

    check = cluster.check()
    events = list(check)
    if not isinstance(events[-1], RunFinished) or events[-1].result is not check.result():
        sys.exit("the last event is not the result")
    found["check"] = {"events": [event.kind() for event in events], "changed": check.result().changed}

    with cluster.verify(limit="n1,n3") as verify:
        fabric = verify.result().fabric or {}
    found["verify"] = {name: verdict["ok"] for name, verdict in fabric["verdicts"].items()}

    states = cluster.states(cluster.status().result())
    found["status"] = {state.node: (state.container_ip, state.healthy) for state in states}

    outputs = cluster.outputs(cluster.exec(["printenv", "MY_IP"], limit="workers").result())
    found["exec"] = {output.node: (output.rc, output.stdout.strip()) for output in outputs}

    down = cluster.down(images=True).result()
    found["down"] = (down.exit_code, down.changed)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()

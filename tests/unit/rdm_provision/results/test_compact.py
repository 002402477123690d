"""The record of a thousand nodes is small, and still shows what changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible_collections.rdm.provision.plugins.plugin_utils.fabric import fabric
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.evaluation import evaluate
from hypothesis import given
from hypothesis import strategies as st

from rdm_provision.results.compact import FEW_NODES, compact
from rdm_provision.results.events import Change, NodeRecap, RunResult
from rdm_provision.runner.record import Record

MEGABYTE = 1_000_000
LINES = "".join(f"+node{number} 192.169.{number // 250}.{number % 250}\n" for number in range(1000))
NEW_FILE = f"--- /etc/rdm/nodes\n+++ /etc/rdm/nodes\n@@ -0,0 +1,1000 @@\n{LINES}"


def names(count: int) -> list[str]:
    return [f"node{number}" for number in range(count)]


def result(count: int, diff: Callable[[str], str], changes: int = 1, **more: Any) -> RunResult:
    """A run with this many nodes and changes on each of them."""
    tasks = [f"Bring a part of the node into the state it should have, {number}" for number in range(changes)]
    return RunResult(
        verb="up",
        nodes={
            name: NodeRecap(
                ok=20, changed=changes, changes=tuple(Change("container", task, diff(name)) for task in tasks)
            )
            for name in names(count)
        },
        **more,
    )


def written(tmp_path: Path, made: RunResult) -> tuple[int, dict[str, Any]]:
    """Return the size and the content of result.json."""
    record = Record(tmp_path, "up", "ansible-playbook")
    record.finish(made, None)
    assert record.folder is not None
    file = record.folder / "result.json"
    return file.stat().st_size, json.loads(file.read_text(encoding="utf-8"))


def plan(count: int) -> dict[str, Any]:
    """A plan for nodes with eight RDMA devices each."""
    devices = [f"/dev/infiniband/{kind}{n}" for n in range(8) for kind in ("uverbs", "umad", "issm")]
    return {
        "address_map": LINES,
        "hostfile": LINES,
        "nodes": {
            name: {
                "my_ip": "192.169.16.1",
                "rank": rank,
                "container": {"devices": [f"{path}:{path}:rwm" for path in devices], "groups": ["44", "109"]},
                "shells": {"bash": "/etc/bash.bashrc", "zsh": None},
            }
            for rank, name in enumerate(names(count))
        },
    }


def test_the_result_of_a_thousand_nodes_with_all_that_can_be_in_it_is_small(tmp_path: Path) -> None:
    nodes = names(1000)
    times = {name: fabric.Measurement(True, rtt_us=dict.fromkeys(nodes[:16], 95.1)) for name in nodes}
    measured = fabric.as_dict(evaluate(nodes, times))
    mine = "--- /etc/profile\n+++ /etc/profile\n+export MY_IP="
    made = result(1000, lambda name: f"{NEW_FILE}{mine}{name}\n", 10, plan=plan(1000), fabric=measured)
    size, held = written(tmp_path, made)
    assert size < 5 * MEGABYTE
    assert held["nodes"]["node0"]["changes"][0]["diff"].startswith(NEW_FILE[:200])
    seen = "--- /etc/rdm/nodes\n+++ /etc/rdm/nodes\n(as on node0)\n" + mine
    assert held["nodes"]["node7"]["changes"][0]["diff"] == f"{seen}node7\n"
    assert held["plan"]["nodes"]["node7"]["container"] == "(as on node0)"
    assert held["plan"]["nodes"]["node7"]["shells"] == {"bash": "/etc/bash.bashrc", "zsh": None}


def test_a_thousand_nodes_with_a_thousand_lines_of_their_own_are_cut(tmp_path: Path) -> None:
    size, held = written(tmp_path, result(1000, lambda name: NEW_FILE.replace("+node", f"+{name}-")))
    assert size < 5 * MEGABYTE
    diff = held["nodes"]["node999"]["changes"][0]["diff"]
    assert diff.splitlines()[3] == "+node999-0 192.169.0.0"
    assert diff.endswith("\n(cut)\n")


def test_the_result_of_a_few_nodes_is_as_it_is_for_programs(tmp_path: Path) -> None:
    made = result(FEW_NODES, lambda _name: NEW_FILE, plan=plan(FEW_NODES))
    _size, held = written(tmp_path, made)
    assert held == json.loads(json.dumps(made.to_json()))


@given(st.lists(st.text("ab\n-+ ", max_size=600), min_size=1, max_size=4), st.integers(1, 100))
def test_the_first_node_has_all_of_a_diff_and_no_node_has_more(parts: list[str], count: int) -> None:
    diff = "".join(f"--- f\n+++ f\n{part}\n" for part in parts)
    reported = compact(result(count, lambda _name: diff).to_json())["nodes"]
    assert reported["node0"]["changes"][0]["diff"] == diff
    for node in reported.values():
        assert len(node["changes"][0]["diff"]) <= len(diff)

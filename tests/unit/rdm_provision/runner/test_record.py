"""What the record of a run contains, and what it must not contain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rdm_provision.results.compact import FEW_NODES
from rdm_provision.results.events import NodeResult, RunResult, RunStarted, Status
from rdm_provision.runner.record import Record
from rdm_provision.runner.run_spec import RunSpec
from rdm_provision.runner.translator import Translator


def failed() -> RunResult:
    spec = RunSpec(verb="up", playbook="site", inventory="x", nodes=("a",))
    return Translator(spec).end(2, cancelled=False, record=None)


def test_the_log_of_a_failed_run_has_no_value_that_is_to_be_hidden(tmp_path: Path) -> None:
    log = tmp_path / "stdout"
    log.write_text(
        '+        "KEY=hush",\n+        "NOTE=a \\"b\\" \\u00e9",\n+        "KEY2=hush more",\n+ "MY_IP=1"\n'
    )
    record = Record(tmp_path, "up", "ansible-playbook")
    record.finish(failed(), log, {"KEY=hush", 'NOTE=a "b" é', "KEY2=hush more", "EMPTY="})
    assert record.folder is not None
    assert (record.folder / "ansible.log").read_text(encoding="utf-8") == (
        '+        "KEY=(hidden)",\n+        "NOTE=(hidden)",\n+        "KEY2=(hidden)",\n+ "MY_IP=1"\n'
    )


def test_a_verb_of_two_words_makes_a_folder_without_a_space(tmp_path: Path) -> None:
    folder = Record(tmp_path, "slurm up", "ansible-playbook").folder
    assert folder is not None
    assert folder.name.endswith("Z-slurm-up")


@pytest.mark.parametrize(("nodes", "whole"), [(FEW_NODES, FEW_NODES), (FEW_NODES + 1, 1)])
def test_change_on_all_nodes_is_shown_once(tmp_path: Path, nodes: int, whole: int) -> None:
    names = tuple(f"n{number}" for number in range(nodes))
    lines = "".join(f"+{name} 10.0.0.1\n" for name in names)
    diff = f"--- /etc/rdm/nodes\n+++ /etc/rdm/nodes\n{lines}"
    record = Record(tmp_path, "up", "ansible-playbook")
    record.add(RunStarted(at=0.0, verb="up", nodes=names, check=False))
    for name in names:
        changed = NodeResult(0.0, name, "my_ip", "Write", Status.CHANGED, True, "", diff, seconds=0.1)
        record.add(changed)
    record.finish(failed(), None)
    assert record.folder is not None
    events = [json.loads(line) for line in (record.folder / "events.jsonl").read_text().splitlines()][1:]
    assert [event["diff"] for event in events].count(diff) == whole
    assert events[0]["diff"] == diff
    assert {event["diff"].splitlines()[-1] for event in events[whole:]} <= {"(as on n0)"}


def test_shared_text_that_a_node_refers_to_is_never_dropped(tmp_path: Path) -> None:
    names = tuple(f"n{number}" for number in range(FEW_NODES + 1))
    long = "--- /a\n+++ /a\n" + "+x\n" * 40_000
    shared = "--- /b\n+++ /b\n" + "+shared\n" * 100
    record = Record(tmp_path, "up", "ansible-playbook")
    record.add(RunStarted(at=0.0, verb="up", nodes=names, check=False))
    for name, diff in (("n0", long + shared), ("n1", shared)):
        record.add(NodeResult(0.0, name, "my_ip", "Write", Status.CHANGED, True, "", diff, seconds=0.1))
    record.finish(failed(), None)
    assert record.folder is not None
    lines = (record.folder / "events.jsonl").read_text().splitlines()
    _, first, second = [json.loads(line).get("diff", "") for line in lines]
    assert second.endswith("(as on n0)\n")
    assert first.endswith("+x\n(cut)\n" + shared)
    assert len(first) < 66_000 + len(shared)

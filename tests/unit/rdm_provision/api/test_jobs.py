# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs of a cluster: what is requested of its nodes, and what their answers say together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rdm_provision import Cluster
from rdm_provision.errors import InputError
from rdm_provision.results.events import NodeRecap, RunResult
from tests.conftest import ROOT
from tests.unit.rdm_provision.conftest import MakeInventory
from tests.unit.rdm_provision.job_reports import (
    FAILED,
    NOW,
    REPORTED,
    answered,
)


def test_masters_report_of_a_job_wins(make_inventory: MakeInventory) -> None:
    cluster = Cluster.load(make_inventory("n1", "n2"))
    older = {**REPORTED, "job": "demo-0", "started": NOW - 900}
    result = answered(
        {
            "n2": {"jobs": [{**REPORTED, "state": "failed"}], "directory": "/d"},
            "n1": {"jobs": [older, REPORTED], "directory": "/d"},
        }
    )
    assert [(job.job, job.state) for job in cluster.job_states(result)] == [
        ("demo-1", "running"),
        ("demo-0", "running"),
    ]


def test_a_job_whose_master_is_silent_is_known_from_the_others(make_inventory: MakeInventory) -> None:
    cluster = Cluster.load(make_inventory("n1", "n2"))
    result = answered({"n2": {"job": FAILED, "known": True}})
    (job,) = cluster.job_states(result)
    assert job.failures[0].lines == ("last words",)
    assert cluster.knows_job(result)


def test_sections_of_nodes_are_joined_in_their_order(make_inventory: MakeInventory) -> None:
    def reported(name: str, total: int, times: list[str]) -> dict[str, Any]:
        out = {"title": "last output message", "lines": [f"==> {name}.out <=="], "total": total}
        time = {"title": "iteration time", "lines": times, "total": None, "is_whole": True}
        return {"sections": [{**out, "is_whole": False}, time], "known": True}

    cluster = Cluster.load(make_inventory("n1", "n2", "n3"))
    assert cluster.jobs("demo-1", sections=True).spec.extra_vars == {
        "job_name": "demo-1",
        "job_verb": "sections",
    }
    second, first = reported("n2", 4, ["iteration 1 : 2 s"]), reported("n1", 3, [])
    result = answered(
        {"n2": second, "n1": first, "n3": {"known": False}},
        nodes=dict.fromkeys(cluster.names, NodeRecap(ok=1)),
    )
    out, time = cluster.job_sections(result)
    assert (out.lines, out.total) == (("==> n1.out <==", "", "==> n2.out <=="), 7)
    assert (time.lines, time.total) == (("iteration 1 : 2 s",), None)


def test_parts_of_a_report_are_in_the_order_of_nodes(make_inventory: MakeInventory) -> None:
    cluster = Cluster.load(make_inventory("n1", "n2", "n3"))
    spec = cluster.jobs("demo-1", report=True).spec
    assert spec.extra_vars == {"job_name": "demo-1", "job_verb": "report"}
    reports = {"n2": {"report": {"name": "b"}}, "n1": {"report": {"name": "a"}}, "n3": {"report": None}}
    result = answered(reports, nodes=dict.fromkeys(cluster.names, NodeRecap(ok=1)))
    assert [part["name"] for part in cluster.report_parts(result)] == ["a", "b"]


def test_a_directory_that_nodes_share_is_shown_once(make_inventory: MakeInventory) -> None:
    def reported(size: int, identity: str) -> dict[str, Any]:
        kept = [{"job": "demo-2", "reason": "it is running"}]
        return {"removed": [{"job": "demo-1", "bytes": size, "identity": identity}], "kept": kept}

    answers = {"n1": reported(1, "1a-2b"), "n2": reported(9, "1a-2b"), "n3": reported(9, "3c-4d")}
    result = answered(answers, "prune")
    removals = Cluster.load(make_inventory("n1", "n2", "n3")).removals(result)
    gone = [(one.job, one.node, one.bytes) for one in removals if not one.reason]
    # Nodes that remove a shared directory later find fewer files in it.
    assert gone == [("demo-1", "n2", 9), ("demo-1", "n3", 9)]
    assert [one.node for one in removals if one.reason] == ["n1", "n2", "n3"]


def test_arguments_of_train_are_never_templated(make_inventory: MakeInventory, tmp_path: Path) -> None:
    config = tmp_path / "gpt.yaml"
    config.write_text("name: gpt\n")
    run = Cluster.load(make_inventory()).train(config, ["data.blend=[{{ x }}]"], watch=False)
    assert run.spec.literal_vars == {"job_overrides": ["data.blend=[{{ x }}]"]}
    assert run.spec.extra_vars == {"job_config": str(config), "job_watch": False}
    assert "!unsafe" in run.command


def test_data_comes_from_this_machine_or_from_nodes(make_inventory: MakeInventory, tmp_path: Path) -> None:
    cluster = Cluster.load(make_inventory())
    assert cluster.bring_data(tmp_path).spec.extra_vars == {"job_data": str(tmp_path)}
    run = cluster.bring_data("/jobs/gpt/checkpoints", from_nodes=["n1", "former"], to="gpt", check=True)
    assert run.spec.extra_vars == {
        "job_data": "/jobs/gpt/checkpoints",
        "job_data_from": ["n1", "former"],
        "job_data_to": "gpt",
    }
    assert run.spec.check


def test_a_check_says_which_files_nodes_lack(make_inventory: MakeInventory) -> None:
    answers: dict[str, Any] = {"n1": [{"copied": []}], "n2": [{"copied": ["a", "b"]}]}
    answers["n3"] = [{"failed": True, "msg": "it is not a directory"}]
    nodes = dict.fromkeys([*answers, "n4"], NodeRecap(ok=1))
    found = RunResult(verb="data", nodes=nodes, returned={"rdm.provision.job_data": answers})
    assert Cluster.load(make_inventory()).lacking_data(found) == {"n2": ["a", "b"]}


def test_train_releases_the_cluster_lock_when_it_watches(
    make_inventory: MakeInventory, tmp_path: Path
) -> None:
    config = tmp_path / "gpt.yaml"
    config.write_text("name: gpt\n")
    cluster = Cluster.load(make_inventory())
    assert cluster.train(config).spec.exclusive
    assert not cluster.train(config, check=True).spec.exclusive
    plays = yaml.safe_load((ROOT / "playbooks/train.yml").read_text())
    # The play before it starts the job. If no play had this name, the lock would be held for days.
    assert [play["vars"]["__play"] for play in plays].index(cluster.train(config).spec.observes_from) == 1


@pytest.mark.parametrize(
    ("verb", "arguments", "words"),
    [
        ("train", {}, "no configuration"),
        ("train", {"config": "/nowhere.yaml"}, "/nowhere.yaml"),
        ("jobs", {"watch": True}, "which job"),
        ("jobs", {"sections": True}, "which job"),
        ("jobs", {"job": "x", "watch": True, "sections": True}, "not both"),
        ("jobs", {"report": True}, "which job"),
        ("jobs", {"job": "x", "sections": True, "report": True}, "not both"),
        ("logs", {"job": "x", "stream": "stdout"}, "no log 'stdout'"),
        ("logs", {"job": "x", "grep": "("}, "no regular expression"),
        ("bring_data", {"directory": ""}, "no directory '' on this machine"),
        ("bring_data", {"directory": "/nowhere"}, "no directory /nowhere on this machine"),
        (
            "bring_data",
            {"directory": "ckpt", "from_nodes": ["n1"]},
            "ckpt is a directory on nodes: give its absolute path",
        ),
        ("bring_data", {"directory": "/tmp/..", "from_nodes": ["n1"]}, "without .."),
        ("bring_data", {"directory": "", "from_nodes": ["n1"]}, "'' is a directory on nodes"),
        ("bring_data", {"directory": "/", "from_nodes": "n1"}, "from_nodes 'n1' is a string, not a list"),
        ("train", {"config": __file__, "overrides": "a=1"}, "overrides 'a=1' is a string"),
        ("job_config", {"config": __file__, "overrides": "a=1"}, "overrides 'a=1' is a string"),
        ("profile", {"config": __file__, "overrides": "a=1"}, "overrides 'a=1' is a string"),
        ("profile", {"config": __file__, "options": "--links-only"}, "options '--links-only' is a string"),
        ("prune", {"jobs": "demo-1"}, "jobs 'demo-1' is a string"),
        ("bring_data", {"directory": "/", "to": "/gpt"}, "/gpt is not below /jobs/data"),
        ("bring_data", {"directory": "/", "to": "../gpt"}, "../gpt is not below /jobs/data"),
    ],
)
def test_meaningless_options_are_bad_input(
    make_inventory: MakeInventory, verb: str, arguments: dict[str, Any], words: str
) -> None:
    cluster = Cluster.load(make_inventory())
    with pytest.raises(InputError, match=words):
        getattr(cluster, verb)(**arguments)

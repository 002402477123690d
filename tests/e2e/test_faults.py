"""Faults of a cluster: the cluster survives each one, reports it clearly, and the next run repairs it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.product import DEADLINE_S, NODES, Lab, Product, changed, running_lab
from tests.labs import lab_name
from trainer.tests.waiting import wait_until

PHASES = ("preflight", "images", "network", "container")
# The first phase that changes a node, and the last.
ENDS = ("images", "container")


@pytest.fixture(autouse=True)
def whole(lab: Lab) -> Iterator[None]:
    """Leave three nodes that run and are plugged in, and no run, whatever a test did."""
    yield
    lab.end_started()
    if not lab.whole():
        lab.lab("up", "--nodes", "3")


def assert_repaired(lab: Lab, *argv: str) -> Any:
    """Assert that a run repairs everything: every container runs, and reaches every other.

    Returns:
        The run's result.
    """
    result = lab.json("up", *argv)
    assert result["ok"]
    nodes = list(result["nodes"])
    assert [lab.container(node) for node in nodes] == ["running"] * len(nodes)
    rtt = result["fabric"]["rtt_us"]
    assert all(rtt[one][other] > 0 for one in nodes for other in nodes if one != other)
    return result


def engine_restarts(lab: Lab, node: str) -> None:
    """End a node's engine, and wait until its container has come back with the next one."""
    lab.kill_engine(node)
    what = f"the container of {node} runs again"
    wait_until(what, lambda: lab.container(node), lambda state: state == "running")


@pytest.mark.parametrize("phases", [ENDS, pytest.param(PHASES, marks=pytest.mark.long)])
def test_run_recovers_from_killed_peers_engines_and_control_processes(
    lab: Lab, phases: tuple[str, ...]
) -> None:
    """Each run takes over from the one before; the last one repairs, and leaves nothing of any."""
    lab.bare()
    # Killed again and again, each time later. The next run finds a bare node, too.
    for phase in phases:
        run = lab.start("up", "--limit", "n1,n2")
        run.after(phase)
        run.kill()
    for node in ("n1", "n2"):
        lab.on(node, "sh", "-ec", "docker rm -f rdm; docker network rm ibnet; docker rmi -f rdm-lab/cpu:1")
    assert [lab.images(node) for node in NODES] == ["", "", ""]
    peers = ["--extra-vars", "images_distribution=peers"]
    # A peer dies while it fetches an image, and an engine while it loads it: only those nodes fail.
    run = lab.start("up", *peers, "--extra-vars", "images_bandwidth=200")
    fetched = "/var/cache/rdm/peers/*.tar"
    script = f'until [ -s {fetched} ]; do sleep 0.02; done; kill -9 "$(cut -d " " -f 1 {fetched[:-3]}lock)"'
    lab.on("n3", "timeout", str(DEADLINE_S), "sh", "-c", script)
    lab.kill_engine("n1", "KILL", when="ls /var/lib/docker/tmp/docker-import-* >/dev/null 2>&1")
    output = " ".join(run.end(expect=1).split())
    assert "2 nodes failed" in output
    assert re.search(r"cpu.tar did not reach n3, which was no longer heard at [1-9]?[0-9]%", output), output
    assert [lab.container(node) for node in NODES] == ["", "running", ""]
    assert lab.on("n3", "sh", "-c", f"ls {fetched}"), "the next run goes on with what has arrived"
    # Ctrl-C stops in an orderly way.
    run = lab.start("up", *peers)
    run.after("images")
    run.interrupt()
    output = run.end(expect=130)
    assert "Stopped." in output
    assert "Traceback" not in output
    assert_repaired(lab, *peers)
    image = ["docker", "image", "inspect", "--format", "{{.Id}} {{.RootFS.Layers}}", "rdm-lab/cpu:1"]
    assert lab.on("n1", *image) == lab.on("n2", *image) == lab.on("n3", *image)
    for node in NODES:
        assert lab.on(node, "find", "/var/cache/rdm/peers", "-type", "f") == ""
        assert lab.on(node, "ss", "-Hltn", "sport = :7077") == ""


def test_run_survives_a_stopped_node_and_a_restarted_engine(lab: Lab) -> None:
    note = ["--extra-vars", "container_env={NOTE: of this run}"]
    lab.provisioned()
    run = lab.start("up", *note)
    run.after("preflight")
    lab.pull_the_plug("n3")
    output = run.end(expect=1)
    assert "1 node unreachable" in output
    # The hint has the variables of this run; without them n3 would get other values.
    hint = rf"rdm-provision up -i inventory/{lab.name} .*container_env=.* --limit n3"
    assert re.search(hint, " ".join(output.split())), output
    for node in ("n1", "n2"):
        assert "NOTE=of this run" in lab.container(node, "{{.Config.Env}}")
    # A node that is down before a run does not stop it on the others, either.
    output = lab.json("up", *note, expect=1)
    assert (output["unreachable"], output["failed"]) == (["n3"], [])
    engine_restarts(lab, "n1")
    lab.lab("start", "n3")
    assert_repaired(lab, *note)
    assert "NOTE=of this run" in lab.container("n3", "{{.Config.Env}}")
    assert changed(lab.json("up")) == list(NODES), "as the next tests expect them"


def test_a_lost_shared_connection_is_reported_and_the_next_run_opens_another(lab: Lab) -> None:
    lab.provisioned()
    run = lab.start("exec", "--limit", "n2", "--", "sleep", "4321")
    sleeps = ("-xf", "sleep 4321")
    try:
        wait_until("the command runs", lambda: lab.on("n2", "pgrep", *sleeps, check=False))
        # The part of sshd that serves the connection's master, which gets no notice.
        lab.on("n2", "pkill", "-KILL", "-f", "^sshd(-session)?: rdm@notty")
        assert "n2: ssh to it ended without a word" in run.end(expect=1)
    finally:
        lab.on("n2", "pkill", *sleeps, check=False)
    assert lab.rdm("exec", "--limit", "n2", "--", "echo", "there").stdout == "there\n"


def test_cut_cable_and_refusing_sshd_are_named(lab: Lab) -> None:
    lab.provisioned()
    allowed = "/etc/rdm/ssh/authorized_keys"
    lab.on("n2", "sh", "-c", f"cp -p {allowed} /root/allowed; echo nobody > {allowed}")
    lab.lab("cut", "n3")
    # As after an upgrade: every role is checked, and nothing has to change.
    lab.on("n3", "sed", "-i", r's/": "[0-9a-f]*-/": "0-/', "/etc/rdm/state.json")
    # A run would repair the fault of n2.
    checked = lab.json("check", expect=1)
    assert (checked["failed"], checked["in_sync"]) == (["n3"], False)
    assert checked["fabric"]["verdicts"]["n3"]["reason"] in checked["nodes"]["n3"]["why"]
    assert [node["cable"] for node in lab.lab("status")["nodes"]] == ["plugged", "plugged", "cut"]
    result = lab.json("verify", expect=1)
    verdicts = result["fabric"]["verdicts"]
    assert [verdicts[node]["ok"] for node in NODES] == [True, False, False]
    assert verdicts["n3"]["reason"]
    assert "ssh from its container to itself fails" in verdicts["n2"]["reason"]
    assert "Permission denied" in verdicts["n2"]["reason"]
    assert result["failed"] == ["n2", "n3"]
    lab.on("n2", "cp", "-p", "/root/allowed", allowed)
    lab.lab("heal", "n3")
    assert lab.json("verify")["ok"]


def test_status_and_up_report_a_renamed_container_alike(lab: Lab) -> None:
    lab.provisioned()
    lab.on("n2", "docker", "rename", "rdm", "rdm-old")
    (problem,) = lab.json("up", expect=2)["problems"]
    (remark,) = lab.json("status", expect=1)["nodes"]["n2"]["remarks"]
    assert remark == f"{problem['value']} {problem['reason']}: {problem['hint']}"
    assert "rename it back (docker rename rdm-old rdm)" in remark
    lab.on("n2", "docker", "rename", "rdm-old", "rdm")
    assert lab.json("status")["healthy"]


def test_cluster_held_by_another_inventory_or_run_is_refused(lab: Lab, tmp_path: Path) -> None:
    lab.provisioned()
    hosts = (lab.inventory / "hosts.yml").read_text(encoding="utf-8")
    (tmp_path / "hosts.yml").write_text(hosts.replace("{{ inventory_dir }}", str(lab.inventory)))
    for verb in ("up", "down"):
        output = lab.product.rdm(verb, "-i", str(tmp_path), expect=2).stderr
        assert f"n1, n2, n3: the cluster {lab.name} in /etc/rdm was made from another inventory" in output
    # A run from elsewhere, whose call on n2 does not end.
    leader = {"what": "rdm-provision up", "pid": 7, "started": 1, "user": "eve", "host": "ctl", "space": ""}
    began = int(lab.on("n2", "cut", "-d", " ", "-f", "22", "/proc/1/stat"))
    record = {"run": "x", "home": "x", "leader": leader, "call": [1, began], "session": None}
    lock = f"/run/rdm-provision/{lab.name}.lock"
    lab.on("n2", "mkdir", "-m", "700", "/run/rdm-provision")
    lab.on("n2", "sh", "-c", f"echo {shlex.quote(json.dumps(record))} > {lock}")
    for verb in ("up", "down"):
        (problem,) = lab.json(verb, expect=2)["problems"]
        assert problem["node"] == "n2"
        assert problem["reason"].startswith("is being changed by rdm-provision up (process 7 of eve on ctl)")
    assert [lab.container(node) for node in NODES] == ["running"] * 3
    lab.on("n2", "rm", lock)
    assert changed(lab.json("up")) == []
    assert [lab.there(node, "/run/rdm-provision") for node in NODES] == [False, True, False]
    lab.on("n2", "rmdir", "/run/rdm-provision")


# --- with the stand-in of the SR-IOV plugin, which speaks Docker's network-plugin protocol ------------------

TWO = ("n1", "n2")


@pytest.fixture(scope="module")
def sriov(product: Product) -> Iterator[Lab]:
    """Two nodes whose container network is the plugin's."""
    with running_lab(product, lab_name("e2e-sriov"), "--nodes", "2", "--driver", "sriov") as lab:
        yield lab


def test_the_sriov_plugin_is_killed_and_the_engine_of_another_node_restarts(sriov: Lab) -> None:
    assert_repaired(sriov)
    engine_restarts(sriov, "n2")
    sriov.on("n1", "docker", "kill", "rdm-sriov-plugin")
    command = ["docker", "inspect", "--format", "{{.State.Status}}", "rdm-sriov-plugin"]
    wait_until("the plugin has ended", lambda: sriov.on("n1", *command).strip() == "exited")
    status = sriov.json("status", expect=1)
    assert status["nodes"]["n1"]["remarks"] == ["the SR-IOV plugin is exited"]
    assert not status["healthy"]
    assert changed(assert_repaired(sriov)) == ["n1"]
    # The plugin that came back can also drop the old link and make a new one.
    sriov.on("n1", "docker", "restart", "--time", "1", "rdm")
    assert sriov.json("verify")["ok"]


def test_down_takes_the_plugin_last_and_leaves_no_link(sriov: Lab) -> None:
    sriov.provisioned()
    result = sriov.json("down")
    # Preflight takes each node's lock before, and releases it afterwards.
    phases = [phase["phase"] for phase in result["phases"] if phase["phase"] != "preflight"]
    assert phases[:4] == ["container", "state_file", "network", "sriov"]
    for node in TWO:
        assert sriov.on(node, "docker", "ps", "--all", "--quiet") == ""
        links = {line.split()[0].split("@")[0] for line in sriov.on(node, "ip", "-br", "link").splitlines()}
        assert links <= {"lo", "eth0", "ib0", "docker0", "docker_gwbridge"}

"""Faults that a cluster meets: each is survived, said clearly, and mended by the next run."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Installed, Lab

NODES = ("n1", "n2", "n3")


def wait_until(condition: Callable[[], bool], what: str, timeout: float = 60) -> None:
    """Poll a condition; fail with its name when it does not come true in time."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout:.0f} s in vain until {what}"
        time.sleep(0.1)


def containers(lab: Lab, node: str) -> str:
    return lab.on(node, "docker", "ps", "--filter", "name=^rdm$", "--format", "{{.Status}}", check=False)


def start(lab: Lab, *argv: str) -> subprocess.Popen[str]:
    """Start ``rdm-provision`` in a process group of its own, its output in a pipe."""
    return subprocess.Popen(
        [str(lab.product.bin / "rdm-provision"), *argv, "--inventory", str(lab.inventory)],
        cwd=lab.product.directory,
        env=lab.product.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def assert_mended(lab: Lab) -> None:
    """A run puts everything right, and the one after it has nothing to do."""
    assert lab.json("up")["ok"]
    result = lab.json("up")
    assert [name for name, node in result["nodes"].items() if node["changed"]] == []
    assert all("Up" in containers(lab, node) for node in NODES)


@pytest.fixture(autouse=True)
def whole_lab(lab: Lab) -> Iterator[None]:
    """Every test begins and ends with three nodes that run."""
    lab.lab("up", "--nodes", "3")
    yield
    lab.lab("up", "--nodes", "3")


def test_a_node_that_is_down_before_the_run(lab: Lab) -> None:
    lab.json("down")
    lab.lab("stop", "n2")
    result = lab.json("up", expect=1)
    assert result["nodes"]["n2"]["status"] == "unreachable"
    assert "Up" in containers(lab, "n1")
    assert "Up" in containers(lab, "n3")
    lab.lab("start", "n2")
    assert_mended(lab)


def test_a_node_that_goes_down_during_the_run(lab: Lab) -> None:
    lab.json("down")
    run = start(lab, "up")
    wait_until(
        lambda: lab.on("n3", "sh", "-c", "ls /etc/rdm/nodes 2>/dev/null || true") != "",
        "the run is under way",
    )
    subprocess.run(["docker", "kill", f"rdm-lab-{lab.name}-n3"], check=True, capture_output=True)
    output, _ = run.communicate(timeout=300)
    assert run.returncode == 1, output
    assert "n3" in output
    assert "Up" in containers(lab, "n1")
    assert "Up" in containers(lab, "n2")
    lab.lab("start", "n3")
    assert_mended(lab)


@pytest.mark.parametrize("phase", ["images", "network", "my_ip", "container", "hostfile"])
def test_the_control_process_is_killed_between_two_phases(lab: Lab, phase: str) -> None:
    lab.json("down")
    run = start(lab, "up")
    assert run.stdout is not None
    for line in run.stdout:
        if phase in line:
            break
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    assert_mended(lab)


def test_the_engine_of_a_node_is_restarted(lab: Lab) -> None:
    assert lab.json("up")["ok"]
    engine = lab.on("n1", "pidof", "dockerd").strip()
    lab.on("n1", "kill", engine)
    wait_until(
        lambda: lab.on("n1", "pidof", "dockerd", check=False).strip() not in ("", engine),
        "n1's engine is back",
    )
    wait_until(lambda: "Up" in containers(lab, "n1"), "n1's container is back")
    assert_mended(lab)
    assert lab.json("verify")["ok"]


def test_a_cut_cable_is_found_and_named(lab: Lab) -> None:
    assert lab.json("up")["ok"]
    lab.lab("cut", "n3")
    result = lab.json("verify", expect=1)
    verdicts = result["fabric"]["verdicts"]
    assert not verdicts["n3"]["ok"]
    assert verdicts["n1"]["ok"]
    assert "n3" in lab.rdm("verify", expect=1).stdout
    lab.lab("heal", "n3")
    assert lab.json("verify")["ok"]


def test_ctrl_c_stops_cleanly_and_a_second_run_mends(lab: Lab) -> None:
    lab.json("down")
    run = start(lab, "up")
    assert run.stdout is not None
    for line in run.stdout:
        if "network" in line:
            break
    os.kill(run.pid, signal.SIGINT)
    assert run.wait(timeout=60) == 130
    assert_mended(lab)


@pytest.fixture(scope="module")
def sriov_lab(installed: Installed) -> Iterator[Lab]:
    lab = Lab(installed, "lab-sriov")
    try:
        installed.rdm("lab", "up", "--nodes", "2", "--name", lab.name, "--driver", "sriov")
        yield lab
    finally:
        installed.rdm("lab", "down", "--name", lab.name)


def test_the_sriov_plugin_is_killed(sriov_lab: Lab) -> None:
    lab = sriov_lab
    assert lab.json("up")["ok"]
    assert lab.json("up")["changed"] == []
    lab.on("n1", "docker", "kill", "rdm-sriov-plugin")
    lab.on("n1", "docker", "restart", "--time", "1", "rdm", check=False)
    assert lab.json("up")["ok"]
    assert lab.json("verify")["ok"]


def test_an_engine_restart_with_the_sriov_plugin(sriov_lab: Lab) -> None:
    lab = sriov_lab
    assert lab.json("up")["ok"]
    engine = lab.on("n2", "pidof", "dockerd").strip()
    lab.on("n2", "kill", engine)
    wait_until(lambda: lab.on("n2", "docker", "info", check=False) != "", "n2's engine answers")
    assert lab.json("up")["ok"]
    assert lab.json("verify")["ok"]


def test_down_takes_the_plugin_last_and_leaves_no_link(sriov_lab: Lab) -> None:
    lab = sriov_lab
    assert lab.json("up")["ok"]
    assert lab.json("down")["ok"]
    for node in ("n1", "n2"):
        assert lab.on(node, "docker", "ps", "--all", "--quiet").strip() == ""
        links = [line.split()[0] for line in lab.on(node, "ip", "-br", "link").splitlines()]
        assert all(
            link.split("@")[0] in {"lo", "eth0", "ib0", "docker0", "docker_gwbridge"} for link in links
        )


def test_a_half_finished_image_load(lab: Lab, tmp_path: Path) -> None:
    """The engine is killed while it loads; the next run loads the whole image."""
    lab.json("down", "--images")
    run = start(lab, "up")
    assert run.stdout is not None
    for line in run.stdout:
        if "images" in line:
            break
    engine = lab.on("n1", "pidof", "dockerd").strip()
    lab.on("n1", "kill", "-9", engine)
    run.communicate(timeout=300)
    wait_until(
        lambda: (
            lab.on("n1", "docker", "info", check=False) != ""
            and lab.on("n1", "pidof", "dockerd").strip() != engine
        ),
        "n1's engine is back",
    )
    assert_mended(lab)

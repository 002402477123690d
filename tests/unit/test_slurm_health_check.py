# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node's own health check, which Slurm runs before and after each job, sees on trees of files."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.slurm import host_facts

SCRIPT = Path(__file__).parents[2] / "roles/slurm/files/health-check"
HEALTHY: dict[str, Any] = {"drivers": ["nvidia"], "ports": ["mlx5_0/1"], "disks": {}, "devices": []}


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The sysfs of a node with one GPU's driver and one active port."""
    (tmp_path / "module/nvidia").mkdir(parents=True)
    for number, state in (("1", "4: ACTIVE"), ("2", "1: DOWN")):
        port = tmp_path / f"class/infiniband/mlx5_0/ports/{number}"
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
    return tmp_path


def problems(node: Path, **changed: Any) -> list[str]:
    return list(runpy.run_path(str(SCRIPT))["problems"]({**HEALTHY, **changed}, str(node)))


def test_node_with_all_devices_is_healthy(node: Path) -> None:
    assert problems(node, disks={str(node): 0}, devices=[str(node / "module")]) == []
    # Settings of an earlier version have the devices alone.
    assert list(runpy.run_path(str(SCRIPT))["problems"]({"devices": []}, str(node))) == []


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"drivers": ["amdgpu"]}, "the driver amdgpu is not loaded"),
        ({"devices": ["/nowhere/nvidia0"]}, "the device /nowhere/nvidia0 is gone"),
        ({"ports": ["mlx5_0/2"]}, "port 2 of mlx5_0 is DOWN"),
        ({"ports": ["mlx5_1/1"]}, "port 1 of mlx5_1 is gone"),
        ({"disks": {"/nowhere": 1}}, "/nowhere cannot be used: No such file or directory"),
    ],
)
def test_missing_device_is_one_sentence(node: Path, changed: dict[str, Any], message: str) -> None:
    assert problems(node, **changed) == [message]


def test_a_full_disk_is_seen(node: Path) -> None:
    (problem,) = problems(node, disks={str(node): 10**12})
    assert problem.startswith(f"{node} has ")
    assert problem.endswith(" MiB free, and needs 1000000000000")


def test_slurm_gets_the_exit_code_and_the_log(tmp_path: Path) -> None:
    script = tmp_path / "check"
    settings = tmp_path / "health.json"
    script.write_text(SCRIPT.read_text().replace("/etc/slurm/rdm/health.json", str(settings)))
    for devices, code, message in (
        ([], 0, ""),
        (["/nowhere"], 1, "rdm-provision: the device /nowhere is gone\n"),
    ):
        settings.write_text(json.dumps({"devices": devices}))
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (code, message)


def test_a_port_that_was_active_is_expected_while_its_card_is_there(node: Path, tmp_path: Path) -> None:
    kept = tmp_path / "health.json"
    assert host_facts.health(str(node), str(kept))["ports"] == ["mlx5_0/1"]
    kept.write_text(json.dumps({"ports": ["mlx5_0/1", "mlx5_9/1"]}))
    (node / "class/infiniband/mlx5_0/ports/1/state").write_text("1: DOWN\n")
    assert host_facts.health(str(node), str(kept))["ports"] == ["mlx5_0/1"]
    for nonsense in ("not JSON", "[1]", "7", '{"ports": 1, "drivers": {}}', '{"ports": [1, null]}'):
        kept.write_text(nonsense)
        assert host_facts.health(str(node), str(kept)) == {"drivers": [], "ports": []}


def test_a_driver_that_was_there_is_expected_while_one_of_its_gpus_is(tmp_path: Path) -> None:
    kept = tmp_path / "health.json"
    kept.write_text(json.dumps({"drivers": ["amdgpu", "nvidia"]}))
    assert host_facts.health(str(tmp_path), str(kept))["drivers"] == []
    gpu = tmp_path / "bus/pci/devices/0000:05:00.0"
    gpu.mkdir(parents=True)
    (gpu / "vendor").write_text("0x10de\n")
    (gpu / "class").write_text("0x030200\n")
    # Its module is not loaded now, which a new look must not take for how it shall be.
    assert host_facts.health(str(tmp_path), str(kept))["drivers"] == ["nvidia"]

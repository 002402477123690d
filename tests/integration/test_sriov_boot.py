"""sriov_firmware, sriov_kernel_parameters and sriov_reboot_ok on this machine, in a mount namespace.

There /sys is that of a node whose adapter offers no VFs. mstconfig, update-grub and shutdown are stand-ins:
what is set holds after shutdown, which gives the node another boot.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.sysfs.build import build
from tests.integration.engine import Engine
from tests.integration.plays import HOST, Played, run_plays
from tests.unit.plugins.job_locks import running_job
from tests.unit.plugins.modules.test_boot_settings import MSTCONFIG

# Ansible refuses to reboot over a local connection.
CONNECTION = """
from ansible.plugins.connection import local
DOCUMENTATION = local.DOCUMENTATION.replace("name: local", "name: namespace")
class Connection(local.Connection):
    transport = "namespace"
"""
SHUTDOWN = """#!/usr/bin/python3
import json, uuid
from pathlib import Path
here = Path({here!r})
settings = json.loads((here / "bin/settings").read_text())
settings = {{name: [after, after] for name, (_, after) in settings.items()}}
(here / "bin/settings").write_text(json.dumps(settings))
vfs = settings["NUM_OF_VFS"][0] if settings["SRIOV_EN"][0] and not (here / "bios").exists() else 0
(here / "sys/bus/pci/devices/0000:41:00.0/sriov_totalvfs").write_text(str(vfs))
drop_in = here / "default/grub.d/rdm.cfg"
line = drop_in.read_text().split('"')[1] if drop_in.exists() else ""
(here / "cmdline").write_text(line.replace("$GRUB_CMDLINE_LINUX", "quiet"))
(here / "boot_id").write_text(str(uuid.uuid4()))
with open(here / "reboots", "a") as reboots:
    reboots.write("once ")
"""
BIND = """
here=$1; shift
mount -t tmpfs rdm-test /run &&
mount --bind "$here/sys" /sys &&
mount --bind "$here/cmdline" /proc/cmdline &&
mount --bind "$here/boot_id" /proc/sys/kernel/random/boot_id &&
mount --bind "$here/default" /etc/default &&
mount --bind "$here/bin/shutdown" "$(readlink -f /sbin/shutdown)" &&
PATH="$here/bin:$PATH" exec "$@"
"""


class Machine:
    """A node whose firmware and kernel do not allow VFs yet."""

    def __init__(self, directory: Path) -> None:
        self.here = build("sriov", directory / "node")
        (self.here / "default").mkdir()
        (self.here / "bin").mkdir()
        (self.here / "sys/bus/pci/devices/0000:41:00.0/sriov_totalvfs").write_text("0\n")
        (self.here / "cmdline").write_text("quiet\n")
        (self.here / "boot_id").write_text("first\n")
        (self.here / "bin/settings").write_text(json.dumps({"SRIOV_EN": [0, 0], "NUM_OF_VFS": [0, 0]}))
        shutdown = SHUTDOWN.format(here=str(self.here))
        for name, text in {
            "mstconfig": MSTCONFIG,
            "update-grub": "#!/bin/sh\n",
            "shutdown": shutdown,
        }.items():
            (self.here / "bin" / name).write_text(text)
            (self.here / "bin" / name).chmod(0o755)
        self.directory = directory / "play"
        (self.directory / "connection_plugins").mkdir(parents=True)
        (self.directory / "connection_plugins/namespace.py").write_text(CONNECTION)

    def run(self, *flags: str, docker_host: str = "", **variables: Any) -> Played:
        """Run the role's part as `present.yml` does."""
        role = {"name": "rdm.provision.sriov", "tasks_from": "firmware"}
        play = {"tasks": [{"name": "Boot settings", "ansible.builtin.include_role": role}]}
        # The jobs of other tests are none of the node's; one that it is to see is none of its namespace's.
        alone = [] if docker_host else ["--pid", "--fork", "--mount-proc"]
        inside = ["unshare", "--mount", *alone, "sh", "-c", BIND, "sh", str(self.here)]
        settings = {
            "sriov_firmware": True,
            "sriov_kernel_parameters": True,
            "ansible_connection": "namespace",
        }
        return run_plays(
            self.directory,
            [play],
            *flags,
            docker_host=docker_host,
            inside=inside,
            **{**settings, **variables},
        )

    @property
    def reboots(self) -> int:
        path = self.here / "reboots"
        return len(path.read_text().split()) if path.exists() else 0


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_settings_take_effect_after_an_allowed_reboot(machine: Machine) -> None:
    checked = machine.run("--check", sriov_reboot_ok=True)
    assert checked.status == 0, checked.output
    assert (checked.changes, machine.reboots) == ([3], 0), (
        "firmware, kernel parameters, and the reboot, all to come"
    )
    assert not (machine.here / "default/grub.d/rdm.cfg").exists()

    stopped = machine.run(sriov_vfs=16)
    assert stopped.status == 2, stopped.output
    message = (
        f"{HOST}: ib0 (0000:41:00.0) offers 0 of 16 VFs, and the kernel was booted without intel_iommu=on"
    )
    assert message in stopped.output, stopped.output
    assert (stopped.changes, machine.reboots) == ([2], 0)

    done = machine.run(sriov_vfs=16, sriov_reboot_ok=True)
    assert done.status == 0, done.output
    assert (done.changes, machine.reboots) == ([1], 1), "only the reboot was left"
    again = machine.run(sriov_vfs=16, sriov_reboot_ok=True)
    assert (again.status, again.changes, machine.reboots) == (0, [0], 1), again.output


def test_bios_is_suspected_if_a_reboot_does_not_help(machine: Machine) -> None:
    (machine.here / "bios").touch()
    failed = machine.run(sriov_reboot_ok=True)
    assert (failed.status, machine.reboots) == (2, 1)
    message = f"{HOST}: after a reboot ib0 (0000:41:00.0) offers 0 of 8 VFs: switch SR-IOV and the IOMMU on"
    assert message in failed.output, failed.output


def test_no_reboot_ends_a_training_job(
    machine: Machine, engine: Engine, busybox_image: str, tmp_path: Path
) -> None:
    (tmp_path / "jobs").mkdir()
    labels = ["--label=rdm.provision.cluster=rdm", "--label=rdm.provision.role=container"]
    command = ["docker", "run", "--detach", "--network=none", f"--volume={tmp_path}/jobs:/jobs", *labels]
    container = subprocess.run(
        [*command, busybox_image, "sleep", "600"],
        env=engine.environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    try:
        with running_job(tmp_path / "jobs", "gpt-1", HOST):
            refused = machine.run(sriov_reboot_ok=True, docker_host=f"unix://{engine.socket}")
    finally:
        subprocess.run(
            ["docker", "rm", "--force", container], env=engine.environment, check=True, capture_output=True
        )
    assert (refused.status, machine.reboots) == (2, 0), refused.output
    assert "gpt-1" in refused.output

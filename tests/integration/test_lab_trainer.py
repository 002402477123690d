"""The lab's training image: what is in it, and that a change of the trainer makes only its top layer anew."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils import lab_trainer
from ansible_collections.rdm.provision.plugins.module_utils.docker_api import DockerAPI
from ansible_collections.rdm.provision.plugins.module_utils.image_archive import Image, index_archive
from ansible_collections.rdm.provision.plugins.module_utils.lab_trainer_build import BUILDER_LABEL

from tests.integration.test_lab import Lab

ROOT = Path(__file__).parents[2]
MODULE = "ansible_collections.rdm.provision.plugins.modules.lab_images"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A node whose engine has the training image."""
    lab = Lab(tmp_path_factory.mktemp("trainer"), f"tt{os.getpid()}")
    try:
        lab.run("up", "--nodes", "1", "--trainer")
        loaded = lab.on("n1", "docker", "load", "--quiet", "--input", archive(lab))
        assert lab_trainer.TRAIN_IMAGE in loaded.stdout, loaded.stderr
        yield lab
    finally:
        lab.run("down")


def archive(lab: Lab) -> str:
    """Return where a node sees the archive that the inventory names."""
    text = (lab.files / "hosts.yml").read_text()
    (path,) = [line.split()[-1] for line in text.splitlines() if line.strip().startswith("path:")]
    return path


def in_image(lab: Lab, *argv: str, user: str = "root") -> subprocess.CompletedProcess[str]:
    run = ("docker", "run", "--rm", "--network", "none", "--user", user, lab_trainer.TRAIN_IMAGE)
    return lab.on("n1", *run, *argv)


def images(**options: Any) -> dict[str, Any]:
    """Run the module that makes the images."""
    given = {"files": str(ROOT / "roles/lab/files"), **options}
    done = subprocess.run(
        [sys.executable, "-m", MODULE],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": given}),
        env={**os.environ, "PYTHONPATH": str(ROOT / ".collections")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def image_of(path: Path) -> Image:
    (image,) = index_archive(str(path)).images
    return image


@pytest.mark.timeout(900)  # where no earlier run left the image
def test_it_trains(lab: Lab) -> None:
    done = in_image(lab, "rdm-trainer", "--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, "rdm-trainer"), done.stderr
    done = in_image(lab, "python", "-c", "import torch, deepspeed; print(torch.__version__)")
    assert done.stdout.strip().endswith("+cpu"), done.stderr


def test_it_has_what_launchers_and_the_fabric_need(lab: Lab) -> None:
    programs = ("sshd", "ssh", "pdsh", "mpirun", "ibv_devinfo", "rping", "ip", "ps")
    script = 'for program; do command -v "$program" >/dev/null || echo "$program"; done'
    done = in_image(lab, "sh", "-c", script, "sh", *programs)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    drivers = in_image(lab, "cat", "/etc/libibverbs.d/mlx5.driver")
    assert "mlx5" in drivers.stdout


def test_what_needs_no_launcher_runs_without_root(lab: Lab) -> None:
    done = in_image(lab, "rdm-trainer", "--version", user="trainer")
    assert done.returncode == 0, done.stderr


def test_it_holds_no_secret_and_nothing_of_this_machine(lab: Lab) -> None:
    keys = in_image(lab, "sh", "-c", "ls /etc/ssh/ssh_host_* /root/.config /build /etc/pip.conf 2>/dev/null")
    assert keys.stdout == ""
    assert DockerAPI().get("/containers/json", all=True, filters={"label": [BUILDER_LABEL]}) == []


def test_a_change_of_the_trainer_makes_only_its_layer_anew(lab: Lab, tmp_path: Path) -> None:
    real = images(trainer=str(ROOT / "trainer"))
    source = Path(real["archives"])
    copy = tmp_path / "trainer"
    for name in ("configs", "images", "requirements", "rdm_trainer"):
        shutil.copytree(ROOT / "trainer" / name, copy / name)
    (copy / "rdm_trainer/added.py").write_text("x = 1\n")
    cache = source.parent.parent / f"test-{os.getpid()}"  # on the same disk, for the links
    try:
        mine = cache / "lab" / source.name
        mine.mkdir(parents=True)
        for name in ("cpu.tar", "sriov-plugin.tar", real["train_archive"]):
            os.link(source / name, mine / name)
        made = images(trainer=str(copy), cache=str(cache))
        assert made["changed"] is True
        before, after = image_of(mine / real["train_archive"]), image_of(mine / made["train_archive"])
        assert after.diff_ids[:-1] == before.diff_ids[:-1]
        assert after.diff_ids[-1] != before.diff_ids[-1]
        assert images(trainer=str(copy), cache=str(cache))["changed"] is False
    finally:
        shutil.rmtree(cache)

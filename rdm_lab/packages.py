# SPDX-License-Identifier: GPL-3.0-or-later
"""The packages of the trainer's environment, for lab nodes that train without containers."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from ansible_collections.rdm.provision.rdm_lab.builder import AT, builder
from ansible_collections.rdm.provision.rdm_lab.client import exec_run
from ansible_collections.rdm.provision.rdm_lab.host import new_directory, proxy_options
from ansible_collections.rdm.provision.rdm_lab.spec import LabProblem
from ansible_collections.rdm.provision.rdm_lab.trainer import lists
from ansible_collections.rdm.provision.rdm_lab.trainer_build import package_sources
from ansible_collections.rdm.provision.rdm_lab.work import work_directory
from docker import APIClient

SCRIPT = "packages.sh"
_NAME = "packages-"
# Labs may still use older ones.
_KEPT = 2

# Raised when the code below changes what it downloads.
FORMAT = 1


class Packages:
    """The packages, whether they are downloaded or not.

    Args:
        engine: this machine's engine.
        node_image: the name of the image of the nodes that install them.
        files: the directory with SCRIPT.
        trainer: the directory `trainer` of the project.
        archives: a directory that the nodes can read.
        extras: what they support besides training; see EXTRAS in trainer.py.
    """

    def __init__(
        self,
        engine: APIClient,
        node_image: str,
        files: Path,
        trainer: Path,
        archives: Path,
        extras: Sequence[str] = (),
    ) -> None:
        self.engine = engine
        self.node_image = node_image
        self.files = files
        self.trainer = trainer
        self.archives = archives
        self.extras = extras
        self.pins = "".join((trainer / name).read_text(encoding="utf-8") for name in lists(extras))
        digest = hashlib.sha256(json.dumps([FORMAT, node_image, self.pins]).encode())
        digest.update((files / SCRIPT).read_bytes())
        self.directory = archives / f"{_NAME}{digest.hexdigest()[:8]}"

    @property
    def torch(self) -> str:
        """The requirement of their torch."""
        (pin,) = [line.strip() for line in self.pins.splitlines() if line.startswith("torch==")]
        return pin + "+cpu"

    def present(self) -> bool:
        """Whether nothing has to be downloaded."""
        return self.directory.is_dir()

    def make(self) -> None:
        """Download them, and remove those that nobody needs any more.

        Raises:
            LabProblem: a package cannot be downloaded; it has pip's last lines.
        """
        with work_directory() as work:
            output = work / "out"
            output.mkdir()
            binds, environment, _ = package_sources(work, self.trainer, self.files, proxy_options())
            binds.append(f"{output}:{AT}/out")
            environment["EXTRAS"] = " ".join(self.extras)
            with builder(self.engine, self.node_image, binds, environment) as container:
                done = exec_run(self.engine, container, ["sh", f"{AT}/lab/{SCRIPT}"])
            if done.exit_code:
                raise LabProblem(
                    f"the trainer's packages cannot be downloaded; pip's last output: {done.output[-800:]}"
                )
            with new_directory(self.directory) as target:
                for path in output.iterdir():
                    shutil.move(str(path), str(target / path.name))
        found = sorted(self.archives.glob(_NAME + "*"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in found[_KEPT:]:
            shutil.rmtree(str(path))

# SPDX-License-Identifier: GPL-3.0-or-later
"""Images of lab nodes that add packages of the distribution to the node image: Podman, Slurm."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import ClassVar

from ansible_collections.rdm.provision.rdm_lab import recipe
from ansible_collections.rdm.provision.rdm_lab.builder import (
    AT,
    apt_conf,
    builder,
    certificates,
    given,
    text_file,
)
from ansible_collections.rdm.provision.rdm_lab.client import exec_run, image_id, removed
from ansible_collections.rdm.provision.rdm_lab.host import proxy_options
from ansible_collections.rdm.provision.rdm_lab.spec import LabProblem
from ansible_collections.rdm.provision.rdm_lab.work import work_directory
from docker import APIClient

# Raised when the code below changes what it makes.
FORMAT = 1


def version(node_image: str, contents: Iterable[bytes], packages: tuple[str, ...]) -> str:
    """Return 12 hex digits that change if the image would be made differently.

    Args:
        node_image: the name of the node image, which includes its version.
        contents: of the layer's files.
        packages: what is installed.
    """
    digest = hashlib.sha256(json.dumps([FORMAT, node_image, packages]).encode())
    for content in contents:
        digest.update(b"\0" + content)
    return digest.hexdigest()[:12]


class NodeLayer:
    """The image, whether it exists or not; subclasses say what is in it.

    Attributes:
        repository: its name without the version.
        label: its label with the version.
        what: the software, for messages.
        script: which of the files installs the packages.
        files: the files for making it.
        packages: what is installed.

    Args:
        engine: this machine's engine.
        node_image: the name of the image below.
        directory: the directory of the files.
    """

    repository: ClassVar[str]
    label: ClassVar[str]
    what: ClassVar[str]
    script: ClassVar[str]
    files: ClassVar[tuple[str, ...]]
    packages: ClassVar[tuple[str, ...]]

    def __init__(self, engine: APIClient, node_image: str, directory: Path) -> None:
        self.engine = engine
        self.node_image = node_image
        self.directory = directory
        contents = [(directory / name).read_bytes() for name in self.files]
        self.version = version(node_image, contents, self.packages)

    @property
    def name(self) -> str:
        """Its name in the engine."""
        return f"{self.repository}:{self.version}"

    def present(self) -> bool:
        """Whether nothing has to be made."""
        return bool(image_id(self.engine, self.name))

    def make(self) -> None:
        """Make it, and remove those of earlier recipes that no lab uses.

        Raises:
            LabProblem: the packages could not be installed; it has the last lines of output.
        """
        trusted = certificates()
        argv = ["sh", f"{AT}/lab/{self.script}", *self.packages]
        with work_directory() as work:
            binds = [given(str(self.directory.resolve()), "lab")]
            binds.append(text_file(work, "apt.conf", apt_conf(proxy_options(), trusted)))
            if trusted:
                binds.append(given(trusted, "certificates.pem"))
            with builder(self.engine, self.node_image, binds, {}) as container:
                done = exec_run(self.engine, container, argv)
                if done.exit_code:
                    raise LabProblem(f"{self.what} packages cannot be installed: {done.output[-800:]}")
                self.engine.commit(
                    container,
                    self.repository,
                    self.version,
                    pause=False,
                    conf={"Labels": {self.label: self.version}, "Env": [recipe.PATH], "Cmd": []},
                )
        self._forget_superseded()

    def _forget_superseded(self) -> None:
        for image in self.engine.images(filters={"label": [self.label]}):
            if image["Labels"][self.label] != self.version:
                removed(partial(self.engine.remove_image, image["Id"], force=True))


class PodmanImage(NodeLayer):
    """The image of lab nodes whose engine is Podman."""

    repository = "rdm-lab/podman"
    label = "rdm.provision.lab.podman"
    what = "Podman's"
    script = "podman-layer.sh"
    files = (script, "podman-node", "podman-runtime")
    # As the role docker_engine installs them. runc comes with the node image's Docker Engine.
    packages = ("podman", "netavark", "aardvark-dns", "catatonit")


class SlurmImage(NodeLayer):
    """The image of lab nodes for a Slurm cluster."""

    repository = "rdm-lab/slurm"
    label = "rdm.provision.lab.slurm"
    what = "Slurm's"
    script = "slurm-layer.sh"
    files = (script, "slurm-node")
    # With those of the controller: any node may be it, and there is only one layer.
    packages = (
        "mariadb-server",
        "munge",
        "slurm-client",
        "slurm-wlm-jwt-plugin",
        "slurmctld",
        "slurmd",
        "slurmdbd",
        "slurmrestd",
    )

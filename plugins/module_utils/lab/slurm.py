# SPDX-License-Identifier: GPL-3.0-or-later
"""The image of lab nodes for a Slurm cluster: the node image with the distribution's packages of Slurm."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Iterable, Tuple

from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI, DockerError
from ansible_collections.rdm.provision.plugins.module_utils.lab import recipe
from ansible_collections.rdm.provision.plugins.module_utils.lab.builder import (
    AT,
    LIMIT_S,
    apt_conf,
    builder,
    certificates,
    given,
    text_file,
)
from ansible_collections.rdm.provision.plugins.module_utils.lab.host import has_image, proxy_options
from ansible_collections.rdm.provision.plugins.module_utils.lab.spec import LabProblem
from ansible_collections.rdm.provision.plugins.module_utils.lab.work import work_directory

REPOSITORY = "rdm-lab/slurm"
RECIPE_LABEL = "rdm.provision.lab.slurm"
SCRIPT = "slurm-layer.sh"
FILES = (SCRIPT, "slurm-node")
# For the controller, too: any node may be it, and the layer is there only once.
PACKAGES = (
    "mariadb-server",
    "munge",
    "slurm-client",
    "slurm-wlm-jwt-plugin",
    "slurmctld",
    "slurmd",
    "slurmdbd",
    "slurmrestd",
)

# Raised when the code below changes what it makes.
FORMAT = 1


def version(node_image: str, contents: Iterable[bytes], packages: Tuple[str, ...] = PACKAGES) -> str:
    """Return 12 hex digits that change when the image would be made differently.

    Args:
        node_image: the name of the node image, which has its own version in it.
        contents: of FILES.
        packages: what is installed.
    """
    digest = hashlib.sha256(json.dumps([FORMAT, node_image, packages]).encode())
    for content in contents:
        digest.update(b"\0" + content)
    return digest.hexdigest()[:12]


class SlurmImage:
    """The image, made or not.

    Args:
        api: of this machine's engine.
        node_image: what it is made from, by name.
        files: the directory with FILES.
    """

    def __init__(self, api: DockerAPI, node_image: str, files: Path) -> None:
        self.api = api
        self.node_image = node_image
        self.files = files
        self.version = version(node_image, [(files / name).read_bytes() for name in FILES])

    @property
    def name(self) -> str:
        """Its name in the engine."""
        return f"{REPOSITORY}:{self.version}"

    def present(self) -> bool:
        """Whether nothing has to be made."""
        return has_image(self.api, self.name)

    def make(self) -> None:
        """Make it, and forget those of earlier recipes that no lab uses.

        Raises:
            LabProblem: the packages could not be installed; the last words are in it.
        """
        trusted = certificates()
        argv = ["sh", f"{AT}/lab/{SCRIPT}", *PACKAGES]
        with work_directory() as work:
            binds = [given(str(self.files.resolve()), "lab")]
            binds.append(text_file(work, "apt.conf", apt_conf(proxy_options(), trusted)))
            if trusted:
                binds.append(given(trusted, "certificates.pem"))
            with builder(self.api, self.node_image, binds, {}) as container:
                done = self.api.exec(container, argv, LIMIT_S)
                if done.exit_code:
                    said = (done.stdout + done.stderr).decode("utf-8", "replace").strip()
                    raise LabProblem(f"Slurm's packages cannot be installed: {said[-800:]}")
                self.api.post(
                    "/commit",
                    {"Labels": {RECIPE_LABEL: self.version}, "Env": [recipe.PATH], "Cmd": []},
                    container=container,
                    repo=REPOSITORY,
                    tag=self.version,
                    pause=False,
                )
        self._forget_superseded()

    def _forget_superseded(self) -> None:
        for image in self.api.get("/images/json", filters={"label": [RECIPE_LABEL]}):
            if image["Labels"][RECIPE_LABEL] == self.version:
                continue
            try:
                self.api.delete(f"/images/{image['Id']}", force=True)
            except DockerError as error:
                if error.status not in (404, 409):  # gone, or a lab uses it
                    raise

#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the images that a lab needs, from a registry or from the distribution's packages."""

from __future__ import annotations

DOCUMENTATION = r"""
module: lab_images
short_description: Make the images that a lab needs
description:
  - Makes three images. The node image stays in this machine's Docker Engine. The CPU image, which the cluster
    under test runs its containers from, and the stand-in of the SR-IOV plugin become archives in a cache.
  - With O(trainer) also the training image, the CPU image with torch and the trainer.
  - With O(machines) also the disk, kernel and initrd of nodes that are virtual machines, and the image of the
    containers that these run in.
  - They are made again only when their recipe has changed.
  - Runs on the control machine.
author:
  - The rdm-provision developers
attributes:
  check_mode:
    support: full
    description: Says whether images would be made.
  diff_mode:
    support: none
    description: Images have no readable difference.
  idempotent:
    support: full
    description: A second run changes nothing.
options:
  state:
    description: Whether the images are there. C(absent) removes them of every recipe, with the cache.
    type: str
    choices: [present, absent]
    default: present
  files:
    description: The directory with the files of the recipe; needed to make images.
    type: path
  cache:
    description:
      - The directory that keeps the archives.
      - Empty means C(rdm-provision) in the user's cache directory (C($XDG_CACHE_HOME), else C(~/.cache)).
    type: str
    default: ""
  source:
    description:
      - Where the images come from. C(registry) builds on O(base). C(packages) uses mmdebstrap with the
        machine's own package sources. C(auto) tries the registry and falls back to packages.
    type: str
    choices: [auto, registry, packages]
    default: auto
  base:
    description: The image that C(registry) builds on.
    type: str
    default: docker.io/library/debian:bookworm-slim
  trainer:
    description:
      - The directory C(trainer) of the project. Empty means that no training image is wanted.
      - What it installs is made again when its list changes, and the layer with its sources when these do.
      - With O(slurm) jobs run on the nodes themselves. So no image is made, and the packages that it would
        install are downloaded.
    type: str
    default: ""
  extras:
    description: What else than a training the packages of O(trainer) are for.
    type: list
    elements: str
    choices: [finetune]
    default: []
  slurm:
    description: Whether the nodes' image has Slurm's packages, on top of the others.
    type: bool
    default: false
  machines:
    description: Whether nodes are virtual machines. Their disk is always made from packages.
    type: bool
    default: false
  engine:
    description:
      - The Docker Engine of nodes that are virtual machines, C(20.10), C(26.1), or C(newest) for the last one
        that Debian has. Empty means C(26.1).
      - Nodes that are containers have that of this machine's release, or C(podman).
    type: str
    default: ""
  kernel:
    description:
      - The kernel of nodes that are virtual machines, C(6.12), or C(newest) for the last one that the
        backports of their release have. Empty means C(6.12).
    type: str
    default: ""
  pull_timeout:
    description: Seconds for which the registry may stay silent before C(auto) gives it up.
    type: int
    default: 10
"""

EXAMPLES = r"""
- name: Make the lab's images
  rdm.provision.lab_images:
    files: "{{ role_path }}/files"
"""

RETURN = r"""
node_image:
  description: The name of the node image in this machine's engine.
  returned: when O(state=present)
  type: str
  sample: rdm-lab/node:0123456789ab
archives:
  description: The directory with C(cpu.tar) and C(sriov-plugin.tar).
  returned: when O(state=present)
  type: str
train_archive:
  description: The name of the training image's archive, beside the others.
  returned: when O(state=present), O(trainer) is given and O(slurm=false)
  type: str
  sample: train-01234567-89abcdef.tar
packages:
  description: The name of the directory with the trainer's packages, beside the archives.
  returned: when O(state=present), O(trainer) is given and O(slurm=true)
  type: str
  sample: packages-01234567
torch:
  description: The requirement of the torch among the packages.
  returned: when RV(packages) is
  type: str
  sample: torch==2.13.0+cpu
machine_image:
  description: The name of the image of the containers that virtual machines run in.
  returned: when O(state=present) and O(machines=true)
  type: str
  sample: rdm-lab/machine:0123456789ab
machine:
  description: The directory with disk, kernel and initrd of the virtual machines.
  returned: when O(state=present) and O(machines=true)
  type: str
missing:
  description: Whether images were missing before.
  returned: when O(state=present)
  type: bool
needs_mmdebstrap:
  description: Whether mmdebstrap may be needed, is missing, and this user could install it.
  returned: when O(state=present)
  type: bool
source:
  description: Where images that were just made came from, C(registry) or C(packages).
  returned: when images were made
  type: str
"""

import fcntl
import os
import shutil
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import (
    DockerAPI,
    DockerError,
    DockerProblem,
)
from ansible_collections.rdm.provision.plugins.module_utils.lab import recipe, spec
from ansible_collections.rdm.provision.plugins.module_utils.lab import trainer as lab_trainer
from ansible_collections.rdm.provision.plugins.module_utils.lab.builder import sweep_builders
from ansible_collections.rdm.provision.plugins.module_utils.lab.host import (
    has_image,
    import_root,
    new_directory,
    proxy_options,
    release,
    source_files,
)
from ansible_collections.rdm.provision.plugins.module_utils.lab.packages import Packages
from ansible_collections.rdm.provision.plugins.module_utils.lab.podman import PodmanImage
from ansible_collections.rdm.provision.plugins.module_utils.lab.slurm import SlurmImage
from ansible_collections.rdm.provision.plugins.module_utils.lab.spec import PODMAN, LabProblem
from ansible_collections.rdm.provision.plugins.module_utils.lab.trainer_build import install_layer
from ansible_collections.rdm.provision.plugins.module_utils.lab.vm.build import Machines
from ansible_collections.rdm.provision.plugins.module_utils.lab.vm.recipe import RECIPE_LABEL as MACHINE_LABEL
from ansible_collections.rdm.provision.plugins.module_utils.lab.vm.recipe import (
    Choice,
    checked_engine,
    checked_kernel,
)
from ansible_collections.rdm.provision.plugins.module_utils.lab.work import (
    clean_up_when_told_to_end,
    run,
    sweep,
    work_directory,
)

ARGUMENT_SPEC: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "files": {"type": "path"},
    "cache": {"type": "str", "default": ""},
    "source": {"type": "str", "choices": ["auto", "registry", "packages"], "default": "auto"},
    "base": {"type": "str", "default": "docker.io/library/debian:bookworm-slim"},
    "trainer": {"type": "str", "default": ""},
    "extras": {"type": "list", "elements": "str", "choices": list(lab_trainer.EXTRAS), "default": []},
    "slurm": {"type": "bool", "default": False},
    "machines": {"type": "bool", "default": False},
    "engine": {"type": "str", "default": ""},
    "kernel": {"type": "str", "default": ""},
    "pull_timeout": {"type": "int", "default": 10},
}


# --- the cache -------------------------------------------------------------------------------------------


def cache_directory(given: str) -> Path:
    """Return the cache directory, which need not exist."""
    if given:
        return Path(given).expanduser() / "lab"
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if home.startswith("/") else Path("~/.cache").expanduser()) / "rdm-provision" / "lab"


@contextmanager
def locked(cache: Path) -> Iterator[None]:
    """Let only one process of this user make or remove images at a time; the lock dies with its holder."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# --- making them -----------------------------------------------------------------------------------------


class Images:
    """The images of one recipe."""

    def __init__(self, api: DockerAPI, files: Path, cache: Path, base: str) -> None:
        self.api = api
        self.files = files
        self.cache = cache
        self.base = base
        self.suite = release().get("VERSION_CODENAME", "")
        self.version = recipe.recipe_version(files, "{0} {1}".format(base, self.suite))
        self.node_image = "{0}:{1}".format(recipe.NODE_REPOSITORY, self.version)
        self.archives = cache / self.version

    def present(self) -> bool:
        """Whether nothing has to be made."""
        names = (recipe.CPU_ARCHIVE, recipe.SRIOV_ARCHIVE)
        return all((self.archives / name).is_file() for name in names) and has_image(
            self.api, self.node_image
        )

    def make(self, source: str, pull_timeout: int) -> str:
        """Make all of them; return where they came from."""
        if source != "packages":
            refused = self._pull(pull_timeout)
            if not refused:
                self._from_registry()
                return "registry"
            if source == "registry":
                raise LabProblem("the image {0} cannot be pulled: {1}".format(self.base, refused))
        self._from_packages()
        return "packages"

    def forget_superseded(self) -> None:
        """Remove images and archives of earlier recipes that no lab uses any more."""
        mounts = (one.get("Mounts") or [] for one in self.api.get("/containers/json", all=True))
        used = {mount.get("Source") for some in mounts for mount in some}
        for image in self.api.get("/images/json", filters={"label": [recipe.RECIPE_LABEL]}):
            version = str((image.get("Labels") or {}).get(recipe.RECIPE_LABEL, ""))
            # A lab of virtual machines has the archives, and another image.
            if version == self.version or str(self.cache / version) in used:
                continue
            try:
                tags = [tag for tag in image.get("RepoTags") or [] if "<none>" not in tag]
                for name in tags or [image["Id"]]:
                    self.api.delete("/images/{0}".format(name))
            except DockerError as error:
                if error.status != 409:  # a lab uses it
                    raise
            else:
                shutil.rmtree(str(self.cache / version), ignore_errors=True)

    def _pull(self, timeout: int) -> str:
        """Pull the base image unless it is there; return why that is impossible, or nothing."""
        if has_image(self.api, self.base):
            return ""
        name, _, tag = self.base.rpartition(":")
        try:
            for _line in self.api.post_stream(
                "/images/create", [], idle_timeout=timeout, fromImage=name, tag=tag
            ):
                pass
        except DockerProblem as problem:
            return str(problem)
        return ""

    def _from_registry(self) -> None:
        context = recipe.build_context(self.files, self.base)
        proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        labels = {recipe.RECIPE_LABEL: self.version}
        names = {"cpu": recipe.CPU_IMAGE, "sriov-plugin": recipe.SRIOV_IMAGE, "node": self.node_image}
        for stage, name in names.items():
            printed: List[str] = []
            headers = {"Content-Type": "application/x-tar"}
            query: Dict[str, Any] = {
                "t": name,
                "target": stage,
                "labels": labels,
                "buildargs": proxies,
                "forcerm": True,
            }
            try:
                for line in self.api.post_stream("/build", [context], headers, **query):
                    printed.append(str(line.get("stream", "")))
            except DockerError as error:
                raise LabProblem("{0}; the build said: {1}".format(error, "".join(printed)[-500:])) from error
        with work_directory() as work, new_directory(self.archives) as target:
            for archive, name in (
                (recipe.CPU_ARCHIVE, recipe.CPU_IMAGE),
                (recipe.SRIOV_ARCHIVE, recipe.SRIOV_IMAGE),
            ):
                save(self.api, name, work / archive)
                shutil.move(str(work / archive), str(target / archive))

    def _from_packages(self) -> None:
        if shutil.which("mmdebstrap") is None:
            raise LabProblem("no registry answers, and mmdebstrap is missing: install the package mmdebstrap")
        if not self.suite:
            raise LabProblem("/etc/os-release names no release of Debian or Ubuntu to take packages from")
        with work_directory() as work:
            output, files = work / "output", work / "files"
            output.mkdir()
            output.chmod(0o777)
            files.mkdir(mode=0o755)
            for name in recipe.FILES:
                shutil.copyfile(str(self.files / name), str(files / name))
                (files / name).chmod(0o644)
            cpu_tar, node_tar = output / "cpu.tar", output / "node.tar"
            texts = source_files()
            sources = recipe.apt_sources(texts, self.suite)
            run(
                recipe.mmdebstrap_command(self.suite, sources, files, cpu_tar, node_tar, proxy_options()),
                TMPDIR=str(output),
            )
            created = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            base = recipe.measured(cpu_tar)
            top = recipe.plugin_layer(self.files, work / "plugin.tar")
            with new_directory(self.archives) as target:
                with (target / recipe.CPU_ARCHIVE).open("wb") as file:
                    recipe.write_archive(file, recipe.CPU_IMAGE, [base], ["/bin/bash"], created)
                with (target / recipe.SRIOV_ARCHIVE).open("wb") as file:
                    command = ["/usr/local/bin/sriov-plugin"]
                    recipe.write_archive(file, recipe.SRIOV_IMAGE, [base, top], command, created)
            if not has_image(self.api, self.node_image):  # another user may have made it
                labels = {recipe.RECIPE_LABEL: self.version}
                import_root(self.api, node_tar, recipe.NODE_REPOSITORY, self.version, labels)


class TrainingImage:
    """The training image on top of the CPU image of one recipe."""

    def __init__(self, images: Images, trainer: Path, extras: Sequence[str] = ()) -> None:
        self.images = images
        self.trainer = trainer
        self.extras = extras
        if not (trainer / "rdm_trainer").is_dir():
            raise LabProblem("{0} has no trainer: give the directory of its project".format(trainer))
        self.versions = lab_trainer.versions(trainer, images.files, images.version, extras)
        self.archive = images.archives / self.versions.archive

    def present(self) -> bool:
        """Whether nothing has to be made."""
        return self.archive.is_file()

    def make(self) -> None:
        """Make the archive; only the upper layer when an earlier archive has the lower ones."""
        archives = self.images.archives
        with work_directory() as work:
            layers, created = lab_trainer.archive_layers(archives / recipe.CPU_ARCHIVE, work)
            alike = lab_trainer.with_same_installation(archives.iterdir(), self.versions)
            if alike:
                layers = lab_trainer.archive_layers(alike[0], work)[0][:-1]
            else:
                base = archives / recipe.CPU_ARCHIVE
                layers.append(
                    install_layer(
                        self.images.api,
                        self.trainer,
                        self.images.files,
                        base,
                        work,
                        proxy_options(),
                        self.extras,
                    )
                )
            layers.append(lab_trainer.source_layer(self.trainer, work / "sources.tar"))
            new = archives / "{0}.new".format(self.versions.archive)
            with new.open("wb") as file:
                recipe.write_archive(
                    file,
                    lab_trainer.TRAIN_IMAGE,
                    layers,
                    ["/bin/bash"],
                    created,
                    lab_trainer.ENVIRONMENT,
                )
            new.replace(self.archive)
        for path in lab_trainer.superseded(archives.iterdir()):
            path.unlink()


def save(api: DockerAPI, name: str, target: Path) -> None:
    """Write an image of the engine as an archive."""
    import docker

    client = docker.APIClient(base_url="unix://{0}".format(api.socket), version="auto")
    with target.open("wb") as file:
        for block in client.get_image(name):
            file.write(block)


# --- taking them away ------------------------------------------------------------------------------------


def remove(api: DockerAPI, cache: Path, check: bool) -> bool:
    """Remove the images of every recipe and the cache; return whether there was something to remove."""
    found = [
        image
        for label in (SlurmImage.label, PodmanImage.label, recipe.RECIPE_LABEL, MACHINE_LABEL)
        for image in api.get("/images/json", filters={"label": [label]})
    ]
    changed = bool(found) or cache.exists()
    if check or not changed:
        return changed
    with locked(cache):
        sweep_builders(api)
        for image in found:
            try:
                api.delete("/images/{0}".format(image["Id"]), force=True)
            except DockerError as error:
                if error.status == 409:
                    using = api.get("/containers/json", all=True, filters={"label": [spec.LABEL]})
                    down = [
                        f"rdm-provision lab down --name {name}"
                        for name in sorted({one["Labels"][spec.LABEL] for one in using})
                    ]
                    raise LabProblem(
                        f"the node image is used by a lab: take every lab down first: {'; '.join(down)}"
                    ) from error
                raise
        sweep()
        shutil.rmtree(str(cache))
    if cache.parent.exists() and not list(cache.parent.iterdir()):
        cache.parent.rmdir()
    return True


def main() -> None:
    """Run the module."""
    clean_up_when_told_to_end()
    module = AnsibleModule(
        argument_spec=ARGUMENT_SPEC, supports_check_mode=True, required_if=[("state", "present", ["files"])]
    )
    given = module.params
    cache = cache_directory(given["cache"])
    api = DockerAPI()
    try:
        if given["state"] == "absent":
            module.exit_json(changed=remove(api, cache, module.check_mode))
        made_of = Choice(
            checked_engine(given["engine"], given["machines"]),
            checked_kernel(given["kernel"], given["machines"]),
        )
        images = Images(api, Path(given["files"]), cache, given["base"])
        result: Dict[str, Any] = {"node_image": images.node_image, "archives": str(images.archives)}
        # Slurm's jobs run on the nodes themselves.
        in_containers = given["trainer"] and not given["slurm"]
        training = TrainingImage(images, Path(given["trainer"]), given["extras"]) if in_containers else None
        if training is not None:
            result["train_archive"] = training.archive.name
        machines = Machines(api, Path(given["files"]), cache, made_of) if given["machines"] else None
        if machines is not None:
            result.update(machine_image=machines.image, machine=str(machines.directory))
        kind = SlurmImage if given["slurm"] else PodmanImage if given["engine"] == PODMAN else None
        layer = kind(api, images.node_image, images.files) if kind is not None else None
        if layer is not None:
            result["node_image"] = layer.name
        packages = (
            Packages(
                api,
                images.node_image,
                images.files,
                Path(given["trainer"]),
                images.archives,
                given["extras"],
            )
            if given["trainer"] and given["slurm"]
            else None
        )
        if packages is not None:
            result.update(packages=packages.directory.name, torch=packages.torch)
        parts = [images, *(part for part in (training, machines, layer, packages) if part is not None)]
        lacking = not images.present() or (machines is not None and not machines.present())
        result["missing"] = not all(part.present() for part in parts)
        result["needs_mmdebstrap"] = lacking and shutil.which("mmdebstrap") is None and os.geteuid() == 0
        if result["missing"] and not module.check_mode:
            with locked(cache):
                # Another process may just have made them.
                made = False
                if not images.present():
                    result["source"] = images.make(given["source"], given["pull_timeout"])
                    images.forget_superseded()
                    made = True
                if training is not None and not training.present():
                    training.make()
                    made = True
                if layer is not None and not layer.present():
                    layer.make()
                    made = True
                if packages is not None and not packages.present():
                    packages.make()
                    made = True
                if machines is not None and not machines.present():
                    machines.make()
                    machines.forget_superseded()
                    made = True
                module.exit_json(changed=made, **result)
        module.exit_json(changed=result["missing"], **result)
    except (LabProblem, DockerProblem, OSError) as problem:
        module.fail_json(msg=str(problem))


if __name__ == "__main__":
    main()

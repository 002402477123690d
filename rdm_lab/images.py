# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the images that a lab needs, from a registry or from the distribution's packages."""

from __future__ import annotations

import fcntl
import io
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.rdm_lab import recipe, spec
from ansible_collections.rdm.provision.rdm_lab import trainer as lab_trainer
from ansible_collections.rdm.provision.rdm_lab.builder import sweep_builders
from ansible_collections.rdm.provision.rdm_lab.client import connect, image_id, import_root, removed
from ansible_collections.rdm.provision.rdm_lab.host import (
    new_directory,
    proxy_options,
    release,
    source_files,
)
from ansible_collections.rdm.provision.rdm_lab.node_layer import NodeLayer, PodmanImage, SlurmImage
from ansible_collections.rdm.provision.rdm_lab.packages import Packages
from ansible_collections.rdm.provision.rdm_lab.spec import PODMAN, LabProblem
from ansible_collections.rdm.provision.rdm_lab.trainer_build import install_layer
from ansible_collections.rdm.provision.rdm_lab.vm.build import Machines
from ansible_collections.rdm.provision.rdm_lab.vm.recipe import RECIPE_LABEL as MACHINE_LABEL
from ansible_collections.rdm.provision.rdm_lab.vm.recipe import (
    Choice,
    checked_engine,
    checked_kernel,
)
from ansible_collections.rdm.provision.rdm_lab.work import (
    run,
    sweep,
    work_directory,
)
from docker import APIClient
from docker.errors import DockerException
from requests.exceptions import RequestException

PULL_TIMEOUT_S = 10
"""Seconds that a registry may stay silent before packages are used."""


# --- the cache -------------------------------------------------------------------------------------------


def cache_directory(given: str) -> Path:
    """Return the path of the cache directory, which may not exist yet."""
    if given:
        return Path(given).expanduser() / "lab"
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if home.startswith("/") else Path("~/.cache").expanduser()) / "rdm-provision" / "lab"


@contextmanager
def locked(cache: Path) -> Iterator[None]:
    """Let one process of this user at a time make or remove images; the lock ends with its holder."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# --- make ------------------------------------------------------------------------------------------------


class Images:
    """The images of one recipe."""

    def __init__(self, engine: APIClient, files: Path, cache: Path, base: str, source: str = "auto") -> None:
        self.engine = engine
        self.files = files
        self.cache = cache
        self.base = base
        self.source = source
        self.suite = release().get("VERSION_CODENAME", "")
        self.version = recipe.recipe_version(files, f"{base} {self.suite}")
        self.node_image = f"{recipe.NODE_REPOSITORY}:{self.version}"
        self.archives = cache / self.version

    def present(self) -> bool:
        """Whether nothing has to be made."""
        names = (recipe.CPU_ARCHIVE, recipe.SRIOV_ARCHIVE)
        return all((self.archives / name).is_file() for name in names) and bool(
            image_id(self.engine, self.node_image)
        )

    def make(self) -> None:
        """Make all of them, from a registry or packages, and remove those of earlier recipes."""
        refused = self._pull() if self.source != "packages" else "it is not queried"
        if not refused:
            self._from_registry()
        elif self.source == "registry":
            raise LabProblem(f"the image {self.base} cannot be pulled: {refused}")
        else:
            self._from_packages()
        self.forget_superseded()

    def forget_superseded(self) -> None:
        """Remove images and archives of earlier recipes that no lab uses any more."""
        mounts = (one.get("Mounts") or [] for one in self.engine.containers(all=True))
        used = {mount.get("Source") for some in mounts for mount in some}
        for image in self.engine.images(filters={"label": [recipe.RECIPE_LABEL]}):
            version = str((image.get("Labels") or {}).get(recipe.RECIPE_LABEL, ""))
            # A lab of virtual machines uses the archives, and another image.
            if version == self.version or str(self.cache / version) in used:
                continue
            tags = [tag for tag in image.get("RepoTags") or [] if "<none>" not in tag]
            if all(removed(partial(self.engine.remove_image, name)) for name in tags or [image["Id"]]):
                shutil.rmtree(str(self.cache / version), ignore_errors=True)

    def _pull(self) -> str:
        """Pull the base image unless the engine has it; return why that fails, or nothing."""
        if image_id(self.engine, self.base):
            return ""
        name, _, tag = self.base.rpartition(":")
        try:
            # A pull has no timeout, so first check whether a registry answers.
            connect(timeout=PULL_TIMEOUT_S).inspect_distribution(self.base)
            self.engine.pull(name, tag)
        except (DockerException, RequestException) as problem:
            return str(getattr(problem, "explanation", None) or problem)
        return ""

    def _from_registry(self) -> None:
        context = recipe.build_context(self.files, self.base)
        proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        labels = {recipe.RECIPE_LABEL: self.version}
        names = {"cpu": recipe.CPU_IMAGE, "sriov-plugin": recipe.SRIOV_IMAGE, "node": self.node_image}
        for stage, name in names.items():
            printed: list[str] = []
            for line in self.engine.build(
                fileobj=io.BytesIO(context),
                custom_context=True,
                tag=name,
                target=stage,
                labels=labels,
                buildargs=proxies,
                forcerm=True,
                decode=True,
            ):
                printed.append(str(line.get("stream", "")))
                if "error" in line:
                    tail = "".join(printed)[-500:]
                    raise LabProblem(f"{name} cannot be built: {line['error']}; its last output: {tail}")
        with work_directory() as work, new_directory(self.archives) as target:
            for archive, name in (
                (recipe.CPU_ARCHIVE, recipe.CPU_IMAGE),
                (recipe.SRIOV_ARCHIVE, recipe.SRIOV_IMAGE),
            ):
                save(self.engine, name, work / archive)
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
            created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            base = recipe.measured(cpu_tar)
            top = recipe.plugin_layer(self.files, work / "plugin.tar")
            with new_directory(self.archives) as target:
                with (target / recipe.CPU_ARCHIVE).open("wb") as file:
                    recipe.write_archive(file, recipe.CPU_IMAGE, [base], ["/bin/bash"], created)
                with (target / recipe.SRIOV_ARCHIVE).open("wb") as file:
                    command = ["/usr/local/bin/sriov-plugin"]
                    recipe.write_archive(file, recipe.SRIOV_IMAGE, [base, top], command, created)
            if not image_id(self.engine, self.node_image):  # another user may have made it
                labels = {recipe.RECIPE_LABEL: self.version}
                import_root(self.engine, node_tar, recipe.NODE_REPOSITORY, self.version, labels)


class TrainingImage:
    """The training image on top of the CPU image of one recipe."""

    def __init__(self, images: Images, trainer: Path, extras: Sequence[str] = ()) -> None:
        self.images = images
        self.trainer = trainer
        self.extras = extras
        if not (trainer / "rdm_trainer").is_dir():
            raise LabProblem(f"{trainer} has no trainer: give the directory of its project")
        self.versions = lab_trainer.versions(trainer, images.files, images.version, extras)
        self.archive = images.archives / self.versions.archive

    def present(self) -> bool:
        """Whether nothing has to be made."""
        return self.archive.is_file()

    def make(self) -> None:
        """Make the archive; only its upper layer if an earlier archive has the lower ones."""
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
                        self.images.engine,
                        self.trainer,
                        self.images.files,
                        base,
                        work,
                        proxy_options(),
                        self.extras,
                    )
                )
            layers.append(lab_trainer.source_layer(self.trainer, work / "sources.tar"))
            new = archives / f"{self.versions.archive}.new"
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


def save(engine: APIClient, name: str, target: Path) -> None:
    """Write an image of the engine as an archive."""
    with target.open("wb") as file:
        for block in engine.get_image(name):
            file.write(block)


# --- remove ----------------------------------------------------------------------------------------------


def remove(engine: APIClient, cache: Path, check: bool) -> bool:
    """Remove the images of every recipe and the cache; return whether there were any."""
    found = [
        image
        for label in (SlurmImage.label, PodmanImage.label, recipe.RECIPE_LABEL, MACHINE_LABEL)
        for image in engine.images(filters={"label": [label]})
    ]
    changed = bool(found) or cache.exists()
    if check or not changed:
        return changed
    with locked(cache):
        sweep_builders(engine)
        for image in found:
            if not removed(partial(engine.remove_image, image["Id"], force=True)):
                using = engine.containers(all=True, filters={"label": [spec.LABEL]})
                down = [
                    f"rdm-provision lab down --name {name}"
                    for name in sorted({one["Labels"][spec.LABEL] for one in using})
                ]
                raise LabProblem(
                    f"the node image is used by a lab: take every lab down first: {'; '.join(down)}"
                )
        sweep()
        shutil.rmtree(str(cache))
    if cache.parent.exists() and not list(cache.parent.iterdir()):
        cache.parent.rmdir()
    return True


# --- everything that a lab needs -------------------------------------------------------------------------


Part = Images | TrainingImage | NodeLayer | Packages | Machines
"""Something that a lab is made from: `make` makes it, and removes what it supersedes."""


class Wanted(NamedTuple):
    """What a lab is made from.

    Attributes:
        parts: images, archives and disks, each after those that it is made from.
        names: the images `node_image` and `machine_image`, the directories `archives` and `machine`; in
            `archives` the file `train_archive` and the directory `packages`, whose torch has the requirement
            `torch`. Only those that this lab has.
    """

    parts: list[Part]
    names: dict[str, str]

    @property
    def missing(self) -> list[Part]:
        """The parts that do not exist yet."""
        return [part for part in self.parts if not part.present()]

    def lacks_mmdebstrap(self) -> bool:
        """Whether a root file system has to be made without mmdebstrap on this machine."""
        made = any(isinstance(part, Images | Machines) for part in self.missing)
        return made and shutil.which("mmdebstrap") is None

    def make(self, cache: Path) -> bool:
        """Make the missing parts; return whether there were any."""
        with locked(cache):
            # Another process may have made them meanwhile.
            missing = self.missing
            for part in missing:
                part.make()
            return bool(missing)


def wanted(engine: APIClient, desired: Mapping[str, Any], collection: Path, cache: Path) -> Wanted:
    """Return what a lab is made from.

    Args:
        engine: of this machine.
        desired: the variables of the role lab.
        collection: the directory that has the role's files, and the trainer's project in `trainer`.
        cache: the directory of the archives.
    """
    files, trainer = collection / "roles/lab/files", collection / "trainer"
    slurm, extras = desired["lab_slurm"], desired["lab_trainer_extras"]
    machine = desired["lab_hardware"] == "vm"
    made_of = Choice(
        checked_engine(desired["lab_engine"], machine), checked_kernel(desired["lab_kernel"], machine)
    )
    images = Images(engine, files, cache, desired["lab_image_base"], desired["lab_image_source"])
    names = {"node_image": images.node_image, "archives": str(images.archives)}
    parts: list[Part] = [images]
    # Slurm's jobs run on the nodes themselves, and need no training image.
    if desired["lab_trainer"] and not slurm:
        training = TrainingImage(images, trainer, extras)
        names["train_archive"] = training.archive.name
        parts.append(training)
    kind = SlurmImage if slurm else PodmanImage if desired["lab_engine"] == PODMAN else None
    if kind is not None:
        layer = kind(engine, images.node_image, files)
        names["node_image"] = layer.name
        parts.append(layer)
    if desired["lab_trainer"] and slurm:
        packages = Packages(engine, images.node_image, files, trainer, images.archives, extras)
        names.update(packages=packages.directory.name, torch=packages.torch)
        parts.append(packages)
    if machine:
        machines = Machines(engine, files, cache, made_of)
        names.update(machine_image=machines.image, machine=str(machines.directory))
        parts.append(machines)
    return Wanted(parts, names)

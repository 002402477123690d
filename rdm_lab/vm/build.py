# SPDX-License-Identifier: GPL-3.0-or-later
"""Build disk, kernel and initrd of a lab's virtual machines, and their container's image."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

from ansible_collections.rdm.provision.rdm_lab.client import image_id, import_root, removed
from ansible_collections.rdm.provision.rdm_lab.host import (
    new_directory,
    proxy_options,
    release,
    source_files,
)
from ansible_collections.rdm.provision.rdm_lab.recipe import apt_sources, file_content
from ansible_collections.rdm.provision.rdm_lab.spec import LabProblem
from ansible_collections.rdm.provision.rdm_lab.vm import recipe
from ansible_collections.rdm.provision.rdm_lab.work import run, work_directory
from docker import APIClient

PREFIX = "machine-"
# The programs that build them, by package.
NEEDED = {
    "mmdebstrap": "/usr/bin/mmdebstrap",
    "e2fsprogs": "/sbin/mke2fs",
    "debian-archive-keyring": "/usr/share/keyrings/debian-archive-keyring.gpg",
}


class Machines:
    """The disk with one engine and one kernel, and the image, of one recipe."""

    def __init__(self, engine: APIClient, files: Path, cache: Path, made_of: recipe.Choice) -> None:
        recipe.checked_architecture(os.uname().machine)
        self.engine = engine
        self.files = files
        self.version = recipe.version(files)
        self.image = f"{recipe.REPOSITORY}:{self.version}"
        self.made_of = made_of
        self.cache = cache
        self.directory = cache / "-".join((PREFIX + self.version, *made_of))

    def present(self) -> bool:
        """Whether nothing has to be made."""
        return self.directory.is_dir() and bool(image_id(self.engine, self.image))

    def make(self) -> None:
        """Make what is missing, and remove what it supersedes.

        Raises:
            LabProblem: a program failed; it has the last lines of output.
        """
        lacking = [package for package, path in NEEDED.items() if not os.path.exists(path)]
        if lacking:
            raise LabProblem(f"virtual machines are made with {', '.join(lacking)}: install that first")
        with work_directory() as work:
            output, files = work / "output", work / "files"
            output.mkdir()
            output.chmod(0o777)
            (files / "vm").mkdir(parents=True, mode=0o755)
            files.chmod(0o755)
            for name in (*recipe.GUEST_FILES, *(f"vm/{name}" for name in recipe.FILES)):
                (files / name).write_bytes(file_content(self.files, name))
                (files / name).chmod(0o644)
            own = release()
            suite = own.get("VERSION_CODENAME", "")
            packages = recipe.sources(apt_sources(source_files(), suite), own.get("ID", ""), suite)
            if not (image_id(self.engine, self.image)):
                root = output / "container.tar"
                command = recipe.container_command(packages, files / "vm/rdm-lab", root, proxy_options())
                run(command, TMPDIR=str(output))
                labels = recipe.image_labels(self.version)
                import_root(self.engine, root, recipe.REPOSITORY, self.version, labels)
            if not self.directory.is_dir():
                self._make_disk(packages, files, output)
        self.forget_superseded()

    def forget_superseded(self) -> None:
        """Remove images and disks of earlier recipes that no lab uses any more."""
        for image in self.engine.images(filters={"label": [recipe.RECIPE_LABEL]}):
            version = str((image.get("Labels") or {}).get(recipe.RECIPE_LABEL, ""))
            if version != self.version and removed(partial(self.engine.remove_image, image["Id"])):
                for disk in self.cache.glob(f"{PREFIX}{version}*"):
                    shutil.rmtree(str(disk), ignore_errors=True)

    def _make_disk(self, packages: list[str], files: Path, output: Path) -> None:
        boot, root = output / "boot", output / "root"
        for directory in (boot, root):
            directory.mkdir()
            directory.chmod(0o777)
        tar, disk = output / "guest.tar", output / recipe.DISK
        command = recipe.guest_command(self.made_of, packages, files, boot, tar, proxy_options())
        run(command, TMPDIR=str(output))
        # Files of several users, which need a user namespace without root.
        mapped = [] if os.geteuid() == 0 else ["mmdebstrap", "--unshare-helper"]
        for command in recipe.disk_commands(tar, root, disk):
            run([*mapped, *command])
        with new_directory(self.directory) as target:
            for path in (disk, boot / recipe.KERNEL, boot / recipe.INITRD):
                # Sparse, even if the cache is on another file system.
                run(["cp", "--sparse=always", "--reflink=auto", str(path), str(target)])
                (target / path.name).chmod(0o644)

# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the layer with torch in a container of this machine's engine, with this machine's package sources."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI, DockerError
from ansible_collections.rdm.provision.rdm_lab import recipe
from ansible_collections.rdm.provision.rdm_lab import trainer as lab_trainer
from ansible_collections.rdm.provision.rdm_lab.builder import (
    AT,
    LIMIT_S,
    apt_conf,
    builder,
    certificates,
    given,
    text_file,
)
from ansible_collections.rdm.provision.rdm_lab.spec import LabProblem

_BLOCK = 1024 * 1024


def install_layer(
    api: DockerAPI,
    trainer: Path,
    files: Path,
    base: Path,
    work: Path,
    apt_options: list[str],
    extras: Sequence[str] = (),
) -> recipe.Layer:
    """Make the layer that turns the CPU image into one that trains.

    Args:
        api: of this machine's engine.
        trainer: the directory `trainer` of the project.
        files: the directory with lab_trainer.SCRIPT.
        base: the archive of the CPU image.
        work: a directory that the engine can mount.
        apt_options: options of apt, such as a proxy.
        extras: of :data:`lab_trainer.EXTRAS`.

    Raises:
        LabProblem: the installation failed; its last words are in it.
    """
    output = work / "out"
    output.mkdir()
    binds, environment, directories = package_sources(work, trainer, files, apt_options)
    binds.append(f"{output}:{AT}/out")
    environment["EXTRAS"] = " ".join(extras)
    argv = ["sh", f"{AT}/lab/{lab_trainer.SCRIPT}", *directories]
    with _base_image(api, base) as image, builder(api, image, binds, environment) as container:
        done = api.exec(container, argv, LIMIT_S)
    if done.exit_code:
        printed = (done.stdout + done.stderr).decode("utf-8", "replace").strip()
        raise LabProblem(f"the training image cannot be made; the installation said: {printed[-800:]}")
    return recipe.measured(output / "layer.tar")


def package_sources(
    work: Path, trainer: Path, files: Path, apt_options: list[str]
) -> tuple[list[str], dict[str, str], list[str]]:
    """Return what lets a builder take packages from where this machine does.

    Args:
        work: a directory that the engine can mount.
        trainer: the directory `trainer` of the project.
        files: the directory with the builder's scripts.
        apt_options: options of apt, such as a proxy.

    Returns:
        Binds, the environment, and the directories of this machine that are among the binds.
    """
    settings = lab_trainer.pip_settings(_pip("config", "list"))
    binds = [given(str(trainer.resolve()), "trainer"), given(str(files.resolve()), "lab")]
    directories = lab_trainer.local_directories(settings)
    binds += [f"{path}:{path}:ro" for path in directories]
    trusted = settings.get("cert", "") or certificates()
    if trusted:
        binds.append(given(trusted, "certificates.pem"))
    cache = _pip("cache", "dir").strip()
    if cache and os.path.isdir(cache) and os.stat(cache).st_uid == 0:
        # What a checkout's own environment has downloaded is not downloaded again.
        binds.append(f"{cache}:{AT}/pip-cache")
    else:
        cache = ""
    seen = f"{AT}/certificates.pem" if trusted else ""
    binds.append(text_file(work, "apt.conf", apt_conf(apt_options, trusted)))
    binds.append(text_file(work, "pip.conf", lab_trainer.pip_conf(settings, seen)))
    environment = {
        "PIP_CACHE_DIR": f"{AT}/pip-cache" if cache else "",
        "PIP_CONFIG_FILE": f"{AT}/pip.conf",
        "SSL_CERT_FILE": seen,
    }
    return binds, environment, directories


@contextmanager
def _base_image(api: DockerAPI, archive: Path) -> Iterator[str]:
    """The CPU image in the engine, for the time of a build if it is not there anyway."""
    before = _image_id(api)
    with archive.open("rb") as file:
        blocks = iter(lambda: file.read(_BLOCK), b"")
        headers = {"Content-Type": "application/x-tar"}
        for _line in api.post_stream("/images/load", blocks, headers, quiet=True):
            pass
    image = _image_id(api)
    try:
        yield image
    finally:
        if not before:
            try:
                api.delete(f"/images/{recipe.CPU_IMAGE}")
            except DockerError as error:
                if error.status not in (404, 409):  # another build has removed it, or uses it
                    raise


def _image_id(api: DockerAPI) -> str:
    try:
        return str(api.get(f"/images/{recipe.CPU_IMAGE}/json")["Id"])
    except DockerError as error:
        if error.status == 404:
            return ""
        raise


def _pip(*argv: str) -> str:
    """Return what this machine's pip says; nothing where there is none."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
        text=True,
    )
    return done.stdout if done.returncode == 0 else ""

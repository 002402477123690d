# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the layer with torch in a container of this machine's engine, with this machine's package sources."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ansible_collections.rdm.provision.rdm_lab import recipe
from ansible_collections.rdm.provision.rdm_lab import trainer as lab_trainer
from ansible_collections.rdm.provision.rdm_lab.builder import (
    AT,
    apt_conf,
    builder,
    certificates,
    given,
    text_file,
)
from ansible_collections.rdm.provision.rdm_lab.client import exec_run, image_id, removed
from ansible_collections.rdm.provision.rdm_lab.spec import LabProblem
from docker import APIClient


def install_layer(
    engine: APIClient,
    trainer: Path,
    files: Path,
    base: Path,
    work: Path,
    apt_options: list[str],
    extras: Sequence[str] = (),
) -> recipe.Layer:
    """Make the layer that turns the CPU image into the training image.

    Args:
        engine: this machine's engine.
        trainer: the directory `trainer` of the project.
        files: the directory with SCRIPT of trainer.py.
        base: the archive of the CPU image.
        work: a directory that the engine can mount.
        apt_options: options of apt, such as a proxy.
        extras: of `EXTRAS` in trainer.py.

    Raises:
        LabProblem: the installation failed; it has the last lines of output.
    """
    output = work / "out"
    output.mkdir()
    binds, environment, directories = package_sources(work, trainer, files, apt_options)
    binds.append(f"{output}:{AT}/out")
    environment["EXTRAS"] = " ".join(extras)
    argv = ["sh", f"{AT}/lab/{lab_trainer.SCRIPT}", *directories]
    with _base_image(engine, base) as image, builder(engine, image, binds, environment) as container:
        done = exec_run(engine, container, argv)
    if done.exit_code:
        raise LabProblem(f"the training image cannot be made; its last output: {done.output[-800:]}")
    return recipe.measured(output / "layer.tar")


def package_sources(
    work: Path, trainer: Path, files: Path, apt_options: list[str]
) -> tuple[list[str], dict[str, str], list[str]]:
    """Return what gives a builder this machine's package sources.

    Returns:
        Binds, the environment, and this machine's package directories among the binds.
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
        # Reuse packages that the checkout's own environment has downloaded.
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
def _base_image(engine: APIClient, archive: Path) -> Iterator[str]:
    """Yield the CPU image in the engine; remove it after the build if it was not there before."""
    before = image_id(engine, recipe.CPU_IMAGE)
    with archive.open("rb") as file:
        errors = [line["error"] for line in engine.load_image(file, quiet=True) if "error" in line]
    image = image_id(engine, recipe.CPU_IMAGE)
    if errors or not image:
        raise LabProblem(f"{archive} cannot be loaded: {' '.join(errors) or 'it has no image of that name'}")
    try:
        yield image
    finally:
        if not before:
            removed(lambda: engine.remove_image(recipe.CPU_IMAGE))


def _pip(*argv: str) -> str:
    """Return the output of this machine's pip; empty if there is none."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
        text=True,
    )
    return done.stdout if done.returncode == 0 else ""

# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the layer with torch in a container of this machine's engine, with this machine's package sources."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List

from ansible_collections.rdm.provision.plugins.module_utils.engine.docker_api import DockerAPI, DockerError
from ansible_collections.rdm.provision.plugins.module_utils.lab import recipe
from ansible_collections.rdm.provision.plugins.module_utils.lab import trainer as lab_trainer
from ansible_collections.rdm.provision.plugins.module_utils.lab.spec import LabProblem

BUILDER_LABEL = "rdm.provision.lab.builder"
LIMIT_S = 1800
_BLOCK = 1024 * 1024
_CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)
_AT = "/build"


def install_layer(
    api: DockerAPI, trainer: Path, files: Path, base: Path, work: Path, apt_options: List[str]
) -> recipe.Layer:
    """Make the layer that turns the CPU image into one that trains.

    Args:
        api: of this machine's engine.
        trainer: the directory `trainer` of the project.
        files: the directory with lab_trainer.SCRIPT.
        base: the archive of the CPU image.
        work: a directory that the engine can mount.
        apt_options: options of apt, such as a proxy.

    Raises:
        LabProblem: the installation failed; its last words are in it.
    """
    sweep_builders(api)
    output = work / "out"
    output.mkdir()
    settings = lab_trainer.pip_settings(_pip("config", "list"))
    binds = [
        f"{trainer.resolve()}:{_AT}/trainer:ro",
        f"{files.resolve()}:{_AT}/lab:ro",
        f"{output}:{_AT}/out",
    ]
    directories = lab_trainer.local_directories(settings)
    binds += [f"{path}:{path}:ro" for path in directories]
    certificates = settings.get("cert", "") or next(filter(os.path.isfile, _CERTIFICATES), "")
    if certificates:
        binds.append(f"{certificates}:{_AT}/certificates.pem:ro")
        apt_options = [*apt_options, f'Acquire::https::CAInfo "{_AT}/certificates.pem";']
    cache = _pip("cache", "dir").strip()
    if cache and os.path.isdir(cache) and os.stat(cache).st_uid == 0:
        # What a checkout's own environment has downloaded is not downloaded again.
        binds.append(f"{cache}:{_AT}/pip-cache")
    else:
        cache = ""
    seen = f"{_AT}/certificates.pem" if certificates else ""
    for name, text in (
        ("apt.conf", "\n".join([*apt_options, ""])),
        ("pip.conf", lab_trainer.pip_conf(settings, seen)),
    ):
        (work / name).write_text(text, encoding="utf-8")
        (work / name).chmod(0o644)
        binds.append(f"{work / name}:{_AT}/{name}:ro")
    environment = {
        "APT_CONFIG": f"{_AT}/apt.conf",
        "PIP_CACHE_DIR": f"{_AT}/pip-cache" if cache else "",
        "PIP_CONFIG_FILE": f"{_AT}/pip.conf",
        "SSL_CERT_FILE": seen,
        **{name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")},
    }
    body = {
        "Cmd": ["sleep", str(LIMIT_S)],
        "Env": [f"{name}={value}" for name, value in environment.items() if value],
        "Labels": {BUILDER_LABEL: str(os.getpid())},
        "HostConfig": {"AutoRemove": True, "Binds": binds, "Init": True, "NetworkMode": "host"},
    }
    argv = ["sh", f"{_AT}/lab/{lab_trainer.SCRIPT}", *directories]
    with _base_image(api, base) as image, _container(api, {**body, "Image": image}) as container:
        done = api.exec(container, argv, LIMIT_S)
    if done.exit_code:
        said = (done.stdout + done.stderr).decode("utf-8", "replace").strip()
        raise LabProblem(f"the training image cannot be made; the installation said: {said[-800:]}")
    return recipe.measured(output / "layer.tar")


def sweep_builders(api: DockerAPI) -> None:
    """Remove the containers of builds that were killed."""
    for found in api.get("/containers/json", all=True, filters={"label": [BUILDER_LABEL]}):
        if not Path(f"/proc/{found['Labels'][BUILDER_LABEL]}").exists():
            _remove(api, found["Id"])


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


@contextmanager
def _container(api: DockerAPI, body: Dict[str, Any]) -> Iterator[str]:
    container = api.post("/containers/create", body)["Id"]
    try:
        api.post(f"/containers/{container}/start")
        yield container
    finally:
        _remove(api, container)


def _remove(api: DockerAPI, container: str) -> None:
    try:
        api.delete(f"/containers/{container}", force=True)
    except DockerError as error:
        if error.status not in (404, 409):  # it is gone, or just going
            raise


def _pip(*argv: str) -> str:
    """Return what this machine's pip says; nothing where there is none."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
        universal_newlines=True,
    )
    return done.stdout if done.returncode == 0 else ""

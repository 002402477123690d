# SPDX-License-Identifier: GPL-3.0-or-later
"""Containers in this machine's engine that build images, with this machine's package sources."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ansible_collections.rdm.provision.rdm_lab.client import removed
from ansible_collections.rdm.provision.rdm_lab.spec import LABEL
from docker import APIClient

BUILDER_LABEL = "rdm.provision.lab.builder"
LIMIT_S = 4 * 3600
"""Seconds after which a builder ends by itself. Over a slow connection, torch alone takes an hour."""
AT = "/build"
"""Where a builder has its binds."""

_CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)


def certificates() -> str:
    """Return the file of this machine's trusted certificates, or nothing."""
    return next(filter(os.path.isfile, _CERTIFICATES), "")


def given(path: str, name: str) -> str:
    """Return the bind that shows a builder a file or directory of this machine as AT/NAME."""
    return f"{path}:{AT}/{name}:ro"


def text_file(work: Path, name: str, text: str) -> str:
    """Write a file, and return the bind that shows it to a builder."""
    (work / name).write_text(text, encoding="utf-8")
    (work / name).chmod(0o644)
    return given(str(work / name), name)


def apt_conf(options: list[str], certificates: str) -> str:
    """Return the text of apt's configuration in a builder.

    Args:
        options: of this machine, such as a proxy.
        certificates: the file that the builder has as AT/certificates.pem; may be empty.
    """
    trusted = [f'Acquire::https::CAInfo "{AT}/certificates.pem";'] if certificates else []
    return "\n".join([*options, *trusted, ""])


@contextmanager
def builder(engine: APIClient, image: str, binds: list[str], environment: dict[str, str]) -> Iterator[str]:
    """Yield the id of a container to work in, on this machine's network; remove it afterwards."""
    settings = {**environment, "APT_CONFIG": f"{AT}/apt.conf"}
    settings.update({name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")})
    body = {
        "Image": image,
        "Cmd": ["sleep", str(LIMIT_S)],
        "Env": [f"{name}={value}" for name, value in settings.items() if value],
        "Labels": {BUILDER_LABEL: str(os.getpid())},
        "HostConfig": {"AutoRemove": True, "Binds": binds, "Init": True, "NetworkMode": "host"},
    }
    sweep_builders(engine)
    container = engine.create_container_from_config(body)["Id"]
    try:
        engine.start(container)
        yield container
    finally:
        removed(lambda: engine.remove_container(container, force=True))


def sweep_builders(engine: APIClient) -> None:
    """Remove the containers of builds that were killed."""
    for found in engine.containers(all=True, filters={"label": [BUILDER_LABEL]}):
        labels = found["Labels"]
        # A lab's node inherits the builder's label from its image.
        if LABEL not in labels and not Path(f"/proc/{labels[BUILDER_LABEL]}").exists():
            removed(partial(engine.remove_container, found["Id"], force=True))

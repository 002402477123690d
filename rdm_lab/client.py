# SPDX-License-Identifier: GPL-3.0-or-later
"""This machine's engine through the Docker SDK: the connection, and what takes more than one call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.docker.api import (
    DockerAPI,
    DockerProblem,
    socket_path,
)
from ansible_collections.rdm.provision.rdm_lab import recipe
from ansible_collections.rdm.provision.rdm_lab.spec import LabProblem
from docker import APIClient
from docker.errors import APIError, DockerException, ImageNotFound
from requests.exceptions import RequestException

_EXIT_STATUS_S = 60.0
_POLL_S = 0.01


class EngineProblem(LabProblem):
    """The engine refuses, or does not answer."""


class ExecResult(NamedTuple):
    """Exit status and output of a command in a container."""

    exit_code: int
    stdout: bytes
    stderr: bytes

    @property
    def output(self) -> str:
        """Standard output and standard error."""
        return (self.stdout + self.stderr).decode("utf-8", "replace").strip()


def connect(socket: str = "", timeout: float = 300) -> APIClient:
    """Return a client of this machine's engine.

    Args:
        socket: path or unix:// address; empty means DOCKER_HOST, else Docker's default.
        timeout: seconds that the engine may stay silent. It answers a removal only when the container is
            gone, which takes minutes on a busy machine.

    Raises:
        EngineProblem: no engine answers.
    """
    with clear():
        # Our client has clear errors; the SDK passes on those of its HTTP library.
        DockerAPI(socket).version()
        return APIClient(base_url=f"unix://{socket_path(socket)}", version="auto", timeout=timeout)


@contextmanager
def clear() -> Iterator[None]:
    """Turn the engine's errors into one sentence.

    Raises:
        EngineProblem: the engine refuses, or does not answer.
    """
    try:
        yield
    except DockerProblem as problem:
        raise EngineProblem(str(problem)) from problem
    except APIError as error:
        raise EngineProblem(
            f"Docker Engine refused: {error.explanation} (status {error.status_code})"
        ) from error
    except (DockerException, RequestException) as error:
        raise EngineProblem(f"no Docker Engine answers: {error}") from error


def exec_run(engine: APIClient, container: str, argv: list[str]) -> ExecResult:
    """Run a command in a running container, without a terminal, and wait for its end.

    The engine cannot end a started command: one that may hang needs its own timeout.

    Args:
        engine: of the container.
        container: name or id.
        argv: the command and its arguments; no shell is involved.

    Raises:
        APIError: there is no such container, or it does not run.
    """
    made = engine.exec_create(container, argv)["Id"]
    stdout, stderr = engine.exec_start(made, demux=True)
    deadline = time.monotonic() + _EXIT_STATUS_S
    # The output may end before the engine has collected the exit status.
    while (code := engine.exec_inspect(made)["ExitCode"]) is None:
        if time.monotonic() > deadline:
            raise LabProblem(f"{argv[0]} in container {container} ended, and the engine does not say how")
        time.sleep(_POLL_S)
    return ExecResult(code, stdout or b"", stderr or b"")


def removed(remove: Callable[[], object]) -> bool:
    """Remove an object of the engine; return False if it is still in use."""
    try:
        remove()
    except APIError as error:
        if error.status_code not in (404, 409):
            raise
        return bool(error.status_code == 404)
    return True


def image_id(engine: APIClient, name: str) -> str:
    """Return the id of an image in the engine; empty if there is none of this name."""
    try:
        return str(engine.inspect_image(name)["Id"])
    except ImageNotFound:
        return ""


def import_root(
    engine: APIClient, rootfs: Path, repository: str, tag: str, labels: Mapping[str, str]
) -> None:
    """Make an image in the engine from a root file system.

    Raises:
        LabProblem: the engine cannot read the tar.
    """
    with rootfs.open("rb") as file:
        output = engine.import_image_from_data(
            file, repository=repository, tag=tag, changes=recipe.import_changes(labels)
        )
    if not image_id(engine, f"{repository}:{tag}"):
        raise LabProblem(f"the image {repository}:{tag} cannot be made: {str(output).strip()[-800:]}")

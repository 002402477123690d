# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a program of ours inside a container: its source is an argument of python3, its output is JSON.

So the image needs no file of ours. This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import importlib.util
import json
from typing import Any, Dict, List, Mapping, Sequence
from urllib.parse import quote

from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import (
    DockerAPI,
    DockerError,
    DockerProblem,
)

ARGUMENT_LENGTH = 100_000  # Linux allows 128 KiB per argument
START_ALLOWANCE = 10.0  # seconds for the engine to start a process on a busy node


class NotMeasuredError(NodeError):
    """No measurement was made; the text says why.

    Attributes:
        state: the container's state, as the engine reports it; `missing` if there is no container.
    """

    def __init__(self, reason: str, state: str) -> None:
        self.state = state
        super().__init__(reason)


def pieces(settings: Mapping[str, Any]) -> List[str]:
    """Return settings as JSON, split into arguments of at most ARGUMENT_LENGTH."""
    text = json.dumps(settings, separators=(",", ":"))
    return [text[start : start + ARGUMENT_LENGTH] for start in range(0, len(text), ARGUMENT_LENGTH)]


def command(program: str, arguments: Sequence[str]) -> List[str]:
    """Return the command line of a program of ours.

    Args:
        program: the full name of its module. The source comes from the import system, because Ansible ships
            it in a zip file. The module is not imported, since its own imports take long.
        arguments: its arguments.

    Raises:
        ImportError: there is no such module.
    """
    spec = importlib.util.find_spec(program)
    loader: Any = spec and spec.loader
    source = loader and loader.get_source(program)
    if not source:
        raise ImportError("there is no source of {0}".format(program))
    return ["python3", "-I", "-S", "-c", source, *arguments]


def run(
    docker: DockerAPI, container: str, program: str, arguments: Sequence[str], seconds: float
) -> Dict[str, Any]:
    """Run a program in a container and return the JSON object that it prints.

    Args:
        docker: the node's engine.
        container: its name.
        program: the full name of its module.
        arguments: its arguments.
        seconds: its own timeout.

    Raises:
        NotMeasuredError: there is no such container, it does not run, or the program fails in it.
    """
    state = running(docker, container)
    try:
        done = docker.exec(
            container, command(program, arguments), timeout=seconds + START_ALLOWANCE, user="0"
        )
    except DockerError as error:
        raise NotMeasuredError(_failed_start(container, error.message), state) from error
    except DockerProblem as error:
        raise NotMeasuredError(str(error), state) from error
    if done.exit_code == 0:
        try:
            value: Dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            pass
        else:
            return value
    output = (done.stderr + done.stdout).decode("utf-8", "replace").strip()
    if done.exit_code in (126, 127):  # the runtime could not start it
        raise NotMeasuredError(_failed_start(container, output), state)
    last = output.splitlines()[-1] if output else "nothing was printed"
    raise NotMeasuredError(
        "the measurement in container {0} ended with code {1}: {2}".format(container, done.exit_code, last),
        state,
    )


def start(
    docker: DockerAPI,
    container: str,
    program: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
) -> None:
    """Start a program in a container; it outlives this process.

    Args:
        docker: the node's engine.
        container: its name.
        program: the full name of its module.
        arguments: its arguments.
        environment: further variables for it.

    Raises:
        NotMeasuredError: there is no such container, it does not run, or the program cannot be started in it.
    """
    state = running(docker, container)
    spec = {
        "Cmd": command(program, arguments),
        "User": "0",
        "Env": ["{0}={1}".format(*item) for item in environment.items()],
    }
    try:
        found = docker.post("/containers/{0}/exec".format(quote(container, safe="")), spec)
        docker.post("/exec/{0}/start".format(found["Id"]), {"Detach": True})
    except DockerError as error:
        raise NotMeasuredError(_failed_start(container, error.message), state) from error
    except DockerProblem as error:
        raise NotMeasuredError(str(error), state) from error


def running(docker: DockerAPI, container: str) -> str:
    """Return the state of a container; raise unless it runs.

    Raises:
        NotMeasuredError: there is no such container, or it does not run.
    """
    try:
        found = docker.get("/containers/{0}/json".format(quote(container, safe="")))
    except DockerError as error:
        if error.status == 404:
            raise NotMeasuredError("there is no container {0}".format(container), "missing") from error
        raise NotMeasuredError(str(error), "unknown") from error
    except DockerProblem as error:
        raise NotMeasuredError(str(error), "unknown") from error
    state = str(found["State"]["Status"])
    if state != "running":
        raise NotMeasuredError("container {0} does not run: it is {1}".format(container, state), state)
    return state


def _failed_start(container: str, output: str) -> str:
    if "not found" in output or "no such file" in output:
        return "container {0} has no python3 in its PATH, which the measurement needs".format(container)
    return "nothing can be run in container {0}: {1}".format(container, output)

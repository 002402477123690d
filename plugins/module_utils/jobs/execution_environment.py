# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a node's jobs are: how their agent's program is run there, and which directory has the jobs.

All else about a job is the same in every place. This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import os
import re
import subprocess
from typing import Any, Dict, List, NamedTuple, Optional, Union

from ansible_collections.rdm.provision.plugins.module_utils.base.local_path import local_path
from ansible_collections.rdm.provision.plugins.module_utils.constants import JOBS
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI, ExecResult
from ansible_collections.rdm.provision.plugins.module_utils.docker.engine_facts import (
    job_directory,
    listed_name,
)
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import label_filter, the_one
from ansible_collections.rdm.provision.plugins.module_utils.jobs.running_jobs import running_jobs

PROGRAM = "rdm-trainer"

# What the engine says when the container has no such program.
_NOT_STARTED = re.compile(r"executable file not found|no such file or directory")
_BRING_UP = "bring the cluster up first (rdm-provision up)"


class NoAgent(Exception):  # noqa: N818  # one sentence for fail_json
    """Why the agent cannot be asked, or what it answered instead; the text is one sentence."""


class Container(NamedTuple):
    """The training container of a cluster.

    Attributes:
        api: the node's engine.
        name: of the container.
        directory: the jobs' directory on the node.
    """

    api: DockerAPI
    name: str
    directory: str

    def run(self, words: List[str], stdin: Optional[bytes], timeout: float) -> ExecResult:
        """Run the agent's program to its end.

        Args:
            words: its arguments.
            stdin: what it reads.
            timeout: seconds.

        Raises:
            NoAgent: there is no such program.
            DockerProblem: the engine cannot be asked, or the time was up.
        """
        ended = self.api.exec(self.name, [PROGRAM, *words], timeout=timeout, stdin=stdin)
        if ended.exit_code in (126, 127) and _NOT_STARTED.search(ended.stdout.decode("utf-8", "replace")):
            raise NoAgent(
                "the container {0} has no {1}: use a training image (docs/train-on-your-cluster.md)".format(
                    self.name, PROGRAM
                )
            )
        return ended


class Host(NamedTuple):
    """The node itself, in a virtual environment, as the user who is logged in.

    Attributes:
        environment: the virtual environment's directory.
        directory: the jobs' directory.
        key: the file with the key that the cluster's agents know each other by; empty under Slurm.
        my_ip: the node's address on the fabric.
    """

    environment: str
    directory: str
    key: str
    my_ip: str

    def run(self, words: List[str], stdin: Optional[bytes], timeout: float) -> ExecResult:
        """Run the agent's program to its end, as `Container.run` does.

        Raises:
            NoAgent: there is no such program, or the time was up.
        """
        programs = os.path.join(self.environment, "bin")
        program = os.path.join(programs, PROGRAM)
        try:
            ended = subprocess.run(
                [program, *words],
                input=stdin if stdin is not None else b"",
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self.directory,
                env=self.variables(),
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NoAgent("{0} has not ended within {1:.0f} s".format(program, timeout)) from None
        except OSError as error:
            raise NoAgent(
                "{0} cannot be run: {1}; make the environment anew (rdm-provision env up)".format(
                    program, error.strerror
                )
            ) from None
        return ExecResult(ended.returncode, ended.stdout, ended.stderr)

    def variables(self) -> Dict[str, str]:
        """Return the environment of the agent, and of all that it starts."""
        programs = os.path.join(self.environment, "bin")
        inherited = {
            name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "PYTHONPATH")
        }
        own = {
            "PATH": programs + os.pathsep + os.environ.get("PATH", os.defpath),
            "VIRTUAL_ENV": self.environment,
            "MY_IP": self.my_ip,
            "RDM_JOBS": self.directory,
            "RDM_PLACE": "host",
        }
        return dict(inherited, **own, **({"RDM_CLUSTER_KEY": self.key} if self.key else {}))


ExecutionEnvironment = Union[Container, Host]


def find(place: Dict[str, Any], cluster: str) -> ExecutionEnvironment:
    """Return where the cluster's jobs are on this node.

    Args:
        place: `runtime`, and for the host what Host has.
        cluster: the cluster's name.

    Raises:
        NoAgent: what runs jobs there is missing.
        DockerProblem: the engine cannot be asked.
    """
    return find_host(place) if place["runtime"] == "host" else find_container(DockerAPI(), cluster)


def find_container(api: DockerAPI, cluster: str) -> Container:
    """Return the cluster's training container.

    Raises:
        NoAgent: there is none, or it does not run, or has no directory for jobs.
        DockerProblem: the engine cannot be asked.
    """
    found = api.get("/containers/json", all=True, filters={"label": label_filter(cluster, "container")})
    if not found:
        raise NoAgent("there is no training container of cluster {0}: {1}".format(cluster, _BRING_UP))
    container = the_one(found)
    name = listed_name(container)
    state = container.get("State", "")
    if state != "running":
        raise NoAgent("the container {0} does not run (it is {1}): {2}".format(name, state, _BRING_UP))
    directory = job_directory(container)
    if directory:
        return Container(api, name, directory)
    raise NoAgent(
        "the container {0} has no {1}: it is older than this rdm-provision, so {2}".format(
            name, JOBS, _BRING_UP.replace(" first", " again")
        )
    )


def find_host(place: Dict[str, Any]) -> Host:
    """Return the node itself, where jobs run on the bare host.

    Raises:
        NoAgent: the environment, the directory of the jobs or the key is missing.
    """
    environment, directory, key = (
        local_path(str(place[one])) if place[one] else "" for one in ("environment", "directory", "key")
    )
    host = Host(environment, directory, key, place["my_ip"])
    hint = "make it with rdm-provision env up"
    if place.get("slurm"):
        # The inventory of these may have containers, or no nodes.
        hint += ", from an inventory with rdm_runtime: host that has this host among its nodes"
    if not os.path.isfile(os.path.join(host.environment, "bin", PROGRAM)):
        raise NoAgent("there is no environment with {0} at {1}: {2}".format(PROGRAM, host.environment, hint))
    if not os.path.isdir(host.directory):
        raise NoAgent("there is no directory {0} for jobs: {1}".format(host.directory, hint))
    if host.key and not os.access(host.key, os.R_OK):
        raise NoAgent("the cluster's key {0} cannot be read: {1}".format(host.key, hint))
    return host


def find_running(place: Dict[str, Any], cluster: str, node: str) -> List[str]:
    """Return the names of the cluster's jobs that run on this node, without asking the agent.

    Args:
        place: as for `find`.
        cluster: the cluster's name.
        node: this node's name in the inventory.

    Raises:
        DockerProblem: the engine cannot be asked.
    """
    if place["runtime"] == "host":
        return running_jobs(local_path(str(place["directory"])), node)
    found = DockerAPI().get("/containers/json", filters={"label": label_filter(cluster, "container")})
    directories = {job_directory(container) for container in found} - {""}
    return sorted({job for directory in directories for job in running_jobs(directory, node)})

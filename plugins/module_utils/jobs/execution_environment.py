# SPDX-License-Identifier: GPL-3.0-or-later
"""The execution environments of a node's jobs: how the agent is run there, and the jobs' directory.

All else about a job is the same in every environment. This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import os
import re
import subprocess
from typing import Any, Dict, List, NamedTuple, Optional, Union

from ansible_collections.rdm.provision.plugins.module_utils.base.local_path import local_path
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.constants import JOBS
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI, ExecResult
from ansible_collections.rdm.provision.plugins.module_utils.docker.engine_facts import (
    job_directory,
    listed_name,
)
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import label_filter, the_one
from ansible_collections.rdm.provision.plugins.module_utils.jobs.running_jobs import running_jobs

PROGRAM = "rdm-trainer"

# The engine's message when the container has no such program.
_NOT_STARTED = re.compile(r"executable file not found|no such file or directory")
_BRING_UP = "bring the cluster up first (rdm-provision up)"


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
            stdin: its standard input.
            timeout: seconds.

        Raises:
            NodeError: there is no such program.
            DockerProblem: the engine failed, or the program timed out.
        """
        ended = self.api.exec(self.name, [PROGRAM, *words], timeout=timeout, stdin=stdin)
        if ended.exit_code in (126, 127) and _NOT_STARTED.search(ended.stdout.decode("utf-8", "replace")):
            raise NodeError(
                "the container {0} has no {1}: use a training image (docs/train-on-your-cluster.md)".format(
                    self.name, PROGRAM
                )
            )
        return ended


class Host(NamedTuple):
    """The bare host, in a virtual environment, as the logged-in user.

    Attributes:
        environment: the virtual environment's directory.
        directory: the jobs' directory.
        key: the file with the key by which the cluster's agents authenticate; empty under Slurm.
        my_ip: the node's address on the fabric.
    """

    environment: str
    directory: str
    key: str
    my_ip: str

    def run(self, words: List[str], stdin: Optional[bytes], timeout: float) -> ExecResult:
        """Run the agent's program to its end, as `Container.run` does.

        Raises:
            NodeError: there is no such program, or it timed out.
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
            raise NodeError("{0} has not ended within {1:.0f} s".format(program, timeout)) from None
        except OSError as error:
            raise NodeError(
                "{0} cannot be run: {1}; recreate the environment (rdm-provision env up)".format(
                    program, error.strerror
                )
            ) from None
        return ExecResult(ended.returncode, ended.stdout, ended.stderr)

    def variables(self) -> Dict[str, str]:
        """Return the environment variables of the agent and its children."""
        programs = os.path.join(self.environment, "bin")
        inherited = {
            name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "PYTHONPATH")
        }
        own = {
            "PATH": programs + os.pathsep + os.environ.get("PATH", os.defpath),
            "VIRTUAL_ENV": self.environment,
            "MY_IP": self.my_ip,
            "RDM_JOBS": self.directory,
            "RDM_EXECUTION_ENVIRONMENT": "host",
            "RDM_PLACE": "host",  # for a trainer of 0.5 or older
        }
        return dict(inherited, **own, **({"RDM_CLUSTER_KEY": self.key} if self.key else {}))


ExecutionEnvironment = Union[Container, Host]


def find(options: Dict[str, Any], cluster: str) -> ExecutionEnvironment:
    """Return the execution environment of the cluster's jobs on this node.

    Args:
        options: `runtime`, and for the host the fields of Host.
        cluster: the cluster's name.

    Raises:
        NodeError: there is none.
        DockerProblem: the engine cannot be queried.
    """
    return find_host(options) if options["runtime"] == "host" else find_container(DockerAPI(), cluster)


def find_container(api: DockerAPI, cluster: str) -> Container:
    """Return the cluster's training container.

    Raises:
        NodeError: there is none, it does not run, or it has no directory for jobs.
        DockerProblem: the engine cannot be queried.
    """
    found = api.get("/containers/json", all=True, filters={"label": label_filter(cluster, "container")})
    if not found:
        raise NodeError("there is no training container of cluster {0}: {1}".format(cluster, _BRING_UP))
    container = the_one(found)
    name = listed_name(container)
    state = container.get("State", "")
    if state != "running":
        raise NodeError("the container {0} does not run (it is {1}): {2}".format(name, state, _BRING_UP))
    directory = job_directory(container)
    if directory:
        return Container(api, name, directory)
    raise NodeError(
        "the container {0} has no {1}: it is older than this rdm-provision, so {2}".format(
            name, JOBS, _BRING_UP.replace(" first", " again")
        )
    )


def find_host(options: Dict[str, Any]) -> Host:
    """Return the bare host.

    Raises:
        NodeError: the environment, the jobs' directory or the key is missing.
    """
    environment, directory, key = (
        local_path(str(options[one])) if options[one] else "" for one in ("environment", "directory", "key")
    )
    host = Host(environment, directory, key, options["my_ip"])
    hint = "make it with rdm-provision env up"
    if options.get("slurm"):
        # A Slurm inventory may use containers, or have no nodes.
        hint += ", from an inventory with rdm_runtime: host that has this host among its nodes"
    if not os.path.isfile(os.path.join(host.environment, "bin", PROGRAM)):
        raise NodeError(
            "there is no environment with {0} at {1}: {2}".format(PROGRAM, host.environment, hint)
        )
    if not os.path.isdir(host.directory):
        raise NodeError("there is no directory {0} for jobs: {1}".format(host.directory, hint))
    if host.key and not os.access(host.key, os.R_OK):
        raise NodeError("the cluster's key {0} cannot be read: {1}".format(host.key, hint))
    return host


def find_running(options: Dict[str, Any], cluster: str, node: str) -> List[str]:
    """Return the names of the cluster's jobs that run on this node, without the agent.

    Args:
        options: as for `find`.
        cluster: the cluster's name.
        node: this node's name in the inventory.

    Raises:
        DockerProblem: the engine cannot be queried.
    """
    if options["runtime"] == "host":
        return running_jobs(local_path(str(options["directory"])), node)
    found = DockerAPI().get("/containers/json", filters={"label": label_filter(cluster, "container")})
    directories = {job_directory(container) for container in found} - {""}
    return sorted({job for directory in directories for job in running_jobs(directory, node)})

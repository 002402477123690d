# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask the job agent in a node's training container: JSON in, JSON out.

The agent is `rdm-trainer job VERB`; what it takes and returns is described in docs/launchers.md. This runs on
nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, NamedTuple, Optional

from ansible_collections.rdm.provision.plugins.module_utils.engine.docker_api import DockerAPI, ExecResult
from ansible_collections.rdm.provision.plugins.module_utils.engine.docker_state import JOBS, job_directory
from ansible_collections.rdm.provision.plugins.module_utils.engine.ownership import label_filter, the_one
from ansible_collections.rdm.provision.plugins.module_utils.job.running_jobs import running_jobs

PROGRAM = "rdm-trainer"
BAD_INPUT = 3
"""Its exit code for what its user can mend."""

# What the engine says when the container has no such program.
_NOT_STARTED = re.compile(r"executable file not found|no such file or directory")
_BRING_UP = "bring the cluster up first (rdm-provision up)"


class NoAgent(Exception):  # noqa: N818  # one sentence for fail_json
    """Why the agent cannot be asked, or what it answered instead; the text is one sentence."""


class BadConfiguration(NoAgent):
    """Everything that is wrong with a configuration."""


class Place(NamedTuple):
    """Where a node's jobs are.

    Attributes:
        container: name of the training container.
        directory: the jobs' directory on the node.
    """

    container: str
    directory: str


def find(api: DockerAPI, cluster: str) -> Place:
    """Return where the cluster's jobs are on this node.

    Raises:
        NoAgent: there is no training container, or it does not run, or has no directory for jobs.
        DockerProblem: the engine cannot be asked.
    """
    found = api.get("/containers/json", all=True, filters={"label": label_filter(cluster, "container")})
    if not found:
        raise NoAgent("there is no training container of cluster {0}: {1}".format(cluster, _BRING_UP))
    container = the_one(found)
    name = str(container["Names"][0]).lstrip("/")
    if container["State"] != "running":
        raise NoAgent(
            "the container {0} does not run (it is {1}): {2}".format(name, container["State"], _BRING_UP)
        )
    directory = job_directory(container)
    if directory:
        return Place(name, directory)
    raise NoAgent(
        "the container {0} has no {1}: it is older than this rdm-provision, so {2}".format(
            name, JOBS, _BRING_UP.replace(" first", " again")
        )
    )


def find_running(api: DockerAPI, cluster: str, node: str) -> List[str]:
    """Return the names of the cluster's jobs that run on this node, without asking the agent.

    Args:
        api: the node's engine.
        cluster: the cluster's name.
        node: this node's name in the inventory.

    Raises:
        DockerProblem: the engine cannot be asked.
    """
    found = api.get("/containers/json", filters={"label": label_filter(cluster, "container")})
    directories = {job_directory(container) for container in found} - {""}
    return sorted({job for directory in directories for job in running_jobs(directory, node)})


class Agent:
    """The agent in one container.

    Args:
        api: the node's engine.
        container: name of the training container.
        timeout: seconds until it must have answered.
    """

    def __init__(self, api: DockerAPI, container: str, timeout: float) -> None:
        self._api = api
        self._container = container
        self._timeout = timeout

    def ask(
        self, verb: str, words: List[str], request: Optional[Dict[str, Any]] = None, refused: bool = False
    ) -> Dict[str, Any]:
        """Return what the agent answers.

        Args:
            verb: of the agent.
            words: its further arguments.
            request: what it reads from its standard input.
            refused: whether an answer that something stands in the way is one to return.

        Raises:
            NoAgent: it is not there, did not answer as agents do, or refuses.
            DockerProblem: the engine cannot be asked, or the time was up.
        """
        ended = self._run(["job", verb, *words], None if request is None else json.dumps(request))
        try:
            answer = json.loads(ended.stdout.decode("utf-8", "replace"))
        except ValueError:
            raise NoAgent(self._last_words("job " + verb, ended)) from None
        if not answer.get("ok") and not refused:
            problems = [
                str(problem).rstrip(". ") for problem in answer.get("problems") or ["it gives no reason"]
            ]
            raise NoAgent("; ".join(problems))
        return dict(answer)

    def resolve(self, config: str, overrides: List[str]) -> str:
        """Return a configuration with every key.

        Raises:
            BadConfiguration: it is not sound.
            NoAgent: the agent failed otherwise.
            DockerProblem: the engine cannot be asked, or the time was up.
        """
        ended = self._run(["config", "/dev/stdin", *overrides], config)
        if ended.exit_code != 0:
            said = re.sub(r"^Error: ", "", ended.stderr.decode("utf-8", "replace").strip())
            raise (BadConfiguration if ended.exit_code == BAD_INPUT else NoAgent)(said)
        return ended.stdout.decode("utf-8", "replace")

    def _run(self, words: List[str], stdin: Optional[str]) -> ExecResult:
        data = None if stdin is None else stdin.encode()
        ended = self._api.exec(self._container, [PROGRAM, *words], timeout=self._timeout, stdin=data)
        text = ended.stdout.decode("utf-8", "replace")
        if ended.exit_code in (126, 127) and _NOT_STARTED.search(text):
            raise NoAgent(
                "the container {0} has no {1}: use a training image (docs/train-on-your-cluster.md)".format(
                    self._container, PROGRAM
                )
            )
        return ended

    @staticmethod
    def _last_words(what: str, ended: ExecResult) -> str:
        said = (ended.stderr or ended.stdout).decode("utf-8", "replace").strip().splitlines()
        return "{0} {1} ended with exit code {2}: {3}".format(
            PROGRAM, what, ended.exit_code, said[-1] if said else "it wrote nothing"
        )

# SPDX-License-Identifier: GPL-3.0-or-later
"""Queries the job agent of a node, with JSON in and out.

The agent is `rdm-trainer job VERB`; docs/launchers.md describes its input and output. This runs on
nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, Optional

from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import ExecResult
from ansible_collections.rdm.provision.plugins.module_utils.jobs.execution_environment import (
    PROGRAM,
    ExecutionEnvironment,
)

BAD_INPUT = 3
"""Its exit code for errors that the user can fix."""


class BadConfiguration(NodeError):  # noqa: N818  # a state of the node, not an error
    """All errors in a configuration, one per line."""


class Agent:
    """The agent in one execution environment, which must answer a call within `timeout` seconds."""

    def __init__(self, environment: ExecutionEnvironment, timeout: float) -> None:
        self._environment = environment
        self._timeout = timeout

    def call(
        self, verb: str, words: List[str], request: Optional[Dict[str, Any]] = None, refused: bool = False
    ) -> Dict[str, Any]:
        """Run a verb of the agent and return its answer.

        Args:
            verb: of the agent.
            words: further arguments.
            request: its standard input.
            refused: whether to return an answer that reports a failed precondition, instead of raising.

        Raises:
            NodeError: it is missing, printed something else than an answer, or refuses.
            DockerProblem: the engine failed, or the agent timed out.
        """
        ended = self._run(["job", verb, *words], None if request is None else json.dumps(request))
        try:
            answer = json.loads(ended.stdout.decode("utf-8", "replace"))
        except ValueError:
            raise NodeError(self._last_words("job " + verb, ended)) from None
        if not answer.get("ok") and not refused:
            problems = [
                str(problem).rstrip(". ") for problem in answer.get("problems") or ["it gives no reason"]
            ]
            raise NodeError("; ".join(problems))
        return dict(answer)

    def resolve(self, config: str, overrides: List[str]) -> str:
        """Return a configuration with every key.

        Raises:
            BadConfiguration: it has errors.
            NodeError: the agent failed otherwise.
            DockerProblem: the engine failed, or the agent timed out.
        """
        ended = self._run(["config", "/dev/stdin", *overrides], config)
        if ended.exit_code != 0:
            output = ended.stderr.decode("utf-8", "replace").strip()
            # Python, a locale or libraries may print warnings, too.
            errors = re.findall(r"(?m)^Error: (.+)", output)
            text = "\n".join(errors) or output
            raise (BadConfiguration if errors and ended.exit_code == BAD_INPUT else NodeError)(text)
        return ended.stdout.decode("utf-8", "replace")

    def _run(self, words: List[str], stdin: Optional[str]) -> ExecResult:
        return self._environment.run(words, None if stdin is None else stdin.encode(), self._timeout)

    @staticmethod
    def _last_words(what: str, ended: ExecResult) -> str:
        output = (ended.stderr or ended.stdout).decode("utf-8", "replace").strip().splitlines()
        return "{0} {1} ended with exit code {2}: {3}".format(
            PROGRAM, what, ended.exit_code, output[-1] if output else "it wrote nothing"
        )

# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask the job agent of a node: JSON in, JSON out.

The agent is `rdm-trainer job VERB`; what it takes and returns is described in docs/launchers.md. This runs on
nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, Optional

from ansible_collections.rdm.provision.plugins.module_utils.docker.api import ExecResult
from ansible_collections.rdm.provision.plugins.module_utils.jobs.execution_environment import (
    PROGRAM,
    ExecutionEnvironment,
    NoAgent,
)

BAD_INPUT = 3
"""Its exit code for what its user can mend."""


class BadConfiguration(NoAgent):
    """Everything that is wrong with a configuration, a line each."""


class Agent:
    """The agent in one place.

    Args:
        place: where it is.
        timeout: seconds until it must have answered.
    """

    def __init__(self, place: ExecutionEnvironment, timeout: float) -> None:
        self._place = place
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
            output = ended.stderr.decode("utf-8", "replace").strip()
            # Python, a locale and libraries may complain beside them.
            errors = re.findall(r"(?m)^Error: (.+)", output)
            text = "\n".join(errors) or output
            raise (BadConfiguration if errors and ended.exit_code == BAD_INPUT else NoAgent)(text)
        return ended.stdout.decode("utf-8", "replace")

    def _run(self, words: List[str], stdin: Optional[str]) -> ExecResult:
        return self._place.run(words, None if stdin is None else stdin.encode(), self._timeout)

    @staticmethod
    def _last_words(what: str, ended: ExecResult) -> str:
        output = (ended.stderr or ended.stdout).decode("utf-8", "replace").strip().splitlines()
        return "{0} {1} ended with exit code {2}: {3}".format(
            PROGRAM, what, ended.exit_code, output[-1] if output else "it wrote nothing"
        )

# SPDX-License-Identifier: GPL-3.0-or-later
"""How a query of all hosts ended: whose answer is taken, and who is left to an ordinary task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible.errors import AnsibleConnectionFailure
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.thread_pool import Outcome

INTERPRETER = "discovered_interpreter_python"
"""The fact in which Ansible keeps the Python that it found on a host."""

_INTERNAL = ("invocation", "ansible_facts")


class QueryResults(NamedTuple):
    """What became of it.

    Attributes:
        answers: host -> what the module returned.
        lost: host -> why it could not be reached, in the words of the connection plugin.
        others: host -> why it is left to an ordinary task.
        interpreters: host -> the Python that Ansible found there, where it had to look for one.
    """

    answers: dict[str, dict[str, Any]]
    lost: dict[str, str]
    others: dict[str, str]
    interpreters: dict[str, str]

    def plays(self, hosts: Sequence[str]) -> dict[str, list[str]]:
        """Return the hosts of the plays that see to those who gave no answer.

        Where there is one, a host that was reached is added at the end: when all hosts of a play are lost,
        Ansible ends the whole run.

        Args:
            hosts: all that were queried; the plays have theirs in this order.
        """
        plays = {}
        for play, chosen in (("lost", self.lost), ("others", self.others)):
            mine = [host for host in hosts if host in chosen]
            extra_host = next((host for host in hosts if host in self.answers), None)
            if extra_host is None and play == "lost":
                extra_host = next((host for host in hosts if host in self.others), None)
            plays[play] = [*mine, *([extra_host] if mine and extra_host is not None else [])]
        return plays


def sort(
    outcomes: Iterable[Outcome], timeout: float, report_done: Callable[[str], None] = lambda _name: None
) -> QueryResults:
    """Sort how the calls ended.

    Only what is beyond doubt is taken: an answer without anything to tell beside it, or that a host cannot be
    reached. For the rest Ansible itself is to find the words.

    Args:
        outcomes: of the calls, as they come.
        timeout: seconds that each call had.
        report_done: called with the name of each host that has answered.
    """
    results = QueryResults({}, {}, {}, {})
    known: dict[str, str] = {}
    for name, value, error in outcomes:
        if isinstance(error, TimeoutError):
            results.others[name] = f"it has not answered within {timeout:g} s"
        elif isinstance(error, AnsibleConnectionFailure):
            results.lost[name] = str(error)
        elif error is not None:
            results.others[name] = f"{type(error).__name__}: {error}"
        elif not _is_clean(value):
            results.others[name] = str(value.get("msg") or "the module has more to tell")
        else:
            interpreter = (value.get("ansible_facts") or {}).get(INTERPRETER)
            if interpreter:
                results.interpreters[name] = interpreter
            answer = {
                key: one
                for key, one in value.items()
                if key not in _INTERNAL and not key.startswith("_ansible")
            }
            results.answers[name] = _shared(answer, known)
            report_done(name)
    return results


def _is_clean(value: Mapping[str, Any]) -> bool:
    """Whether a module did well, and has nothing to say that Ansible shows by itself."""
    bad = ("failed", "changed", "skipped", "warnings", "deprecations", "exception")
    return not any(value.get(key) for key in bad)


def _shared(value: Any, known: dict[str, str]) -> Any:
    """Return an answer in which each string that is known is the known one.

    Nodes say the same in the same words, and Ansible keeps every answer for as long as it runs.
    """
    if isinstance(value, dict):
        return {_shared(key, known): _shared(one, known) for key, one in value.items()}
    if isinstance(value, list):
        return [_shared(one, known) for one in value]
    # Ansible's string classes carry more than their text.
    return known.setdefault(value, value) if type(value) is str else value

# SPDX-License-Identifier: GPL-3.0-or-later
"""Sort the results of a query of all hosts: answers, unreachable hosts, and hosts for an ordinary task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible.errors import AnsibleConnectionFailure
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.thread_pool import Outcome

INTERPRETER = "discovered_interpreter_python"
"""The fact with the Python interpreter that Ansible discovered on a host."""

_INTERNAL = ("invocation", "ansible_facts")


class QueryResults(NamedTuple):
    """The results by host.

    Attributes:
        answers: host -> what the module returned.
        lost: host -> why it could not be reached, in the connection plugin's words.
        others: host -> why it needs an ordinary task.
        interpreters: host -> the Python interpreter, if Ansible had to discover it.
    """

    answers: dict[str, dict[str, Any]]
    lost: dict[str, str]
    others: dict[str, str]
    interpreters: dict[str, str]

    def plays(self, hosts: Sequence[str]) -> dict[str, list[str]]:
        """Return the hosts of the plays for hosts without an answer.

        Each play ends with one host that was reached, if there is one: Ansible ends the whole run when all
        hosts of a play are unreachable.

        Args:
            hosts: all queried hosts, in the order for the plays.
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
    """Sort the outcomes of the calls.

    Only clean answers and unreachable hosts are accepted; for all others an ordinary task lets Ansible
    report.

    Args:
        outcomes: of the calls, as they end.
        timeout: the timeout of each call in seconds.
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
            results.others[name] = str(value.get("msg") or "its answer is not a plain one")
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
    """Return whether a module succeeded, without anything that Ansible would display."""
    bad = ("failed", "changed", "skipped", "warnings", "deprecations", "exception")
    return not any(value.get(key) for key in bad)


def _shared(value: Any, known: dict[str, str]) -> Any:
    """Return an answer with equal strings replaced by one object.

    Nodes mostly return the same strings, and Ansible keeps every answer until it ends.
    """
    if isinstance(value, dict):
        return {_shared(key, known): _shared(one, known) for key, one in value.items()}
    if isinstance(value, list):
        return [_shared(one, known) for one in value]
    # Instances of Ansible's string classes have more than their text.
    return known.setdefault(value, value) if type(value) is str else value

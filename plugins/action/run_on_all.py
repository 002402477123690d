# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a module on all hosts of a play from one task, in threads; see plugins/modules/run_on_all.py."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ansible.errors import AnsibleError
from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals.remote_executor import (
    Host,
    OrdinaryError,
    RemoteExecutor,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.controller_action import Decision
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.progress import Progress
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.query_results import INTERPRETER, sort
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.thread_pool import run_all


class ActionModule(Decision):
    """The action; it makes the calls, and returns the hosts that need an ordinary task."""

    def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return the answers, and the hosts without one."""
        hosts = [str(host) for host in variables["ansible_play_hosts"]]
        others: dict[str, str] = {}
        calls = self._calls(hosts, options, variables, others)
        threads = max(1, int(variables["ansible_forks"]))
        # On stderr, since programs may parse stdout as JSON.
        display = functools.partial(self._display.display, stderr=True)
        progress = Progress(display, variables["inventory_hostname"])
        outcomes = run_all(calls, threads, options["timeout"], progress.flush)
        results = sort(outcomes, options["timeout"], progress.add)
        results.others.update(others)
        for host, why in results.others.items():
            self._display.vv(f"left to an ordinary task: {why}", host=host)
        return {"plays": results.plays(hosts), **results._asdict()}

    def _calls(
        self,
        hosts: Sequence[str],
        options: dict[str, Any],
        variables: dict[str, Any],
        others: dict[str, str],
    ) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Yield the calls with their hosts; add to ``others`` why a host has none."""
        if not options["connections"]:
            others.update(dict.fromkeys(hosts, "no connection plugin is used in threads"))
            return
        executor = RemoteExecutor(self, variables, options["connections"])
        try:
            own = executor.host(variables["inventory_hostname"]).values(options["alike"])
        except AnsibleError as error:
            others.update(dict.fromkeys(hosts, str(error)))
            return
        for name in hosts:
            try:
                host = executor.host(name)
                if host.values(options["alike"]) != own:
                    raise OrdinaryError("variables that the arguments depend on differ")
                _remember(host, options["interpreters"])
                arguments = {**options["common"], **options["arguments"].get(name, {})}
                call = executor.call(host, options["module"], arguments)
            except (OrdinaryError, AnsibleError) as error:
                others[name] = str(error)
            except Exception as error:
                # An unexpected error, of an inventory or of Ansible, must only make the run slower.
                others[name] = f"{type(error).__name__}: {error}"
            else:
                yield name, call


def _remember(host: Host, interpreters: dict[str, str]) -> None:
    """Give a host's plugins the interpreter that was discovered before."""
    if host.name in interpreters:
        host.variables["ansible_facts"].setdefault(INTERPRETER, interpreters[host.name])

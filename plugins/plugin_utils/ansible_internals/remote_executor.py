# SPDX-License-Identifier: GPL-3.0-or-later
"""Run modules on hosts other than the task's, through Ansible's connection, become and shell plugins."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible import constants
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.plugins.loader import action_loader, become_loader, connection_loader
from ansible.template import Templar
from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals.play_variables import (
    variables_in_play,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals.upload_directory import (
    upload,
    upload_directory,
)

Result = dict[str, Any]


class OrdinaryError(Exception):
    """A host needs an ordinary task; the text says why."""


class RemoteExecutor:
    """Runs modules on the hosts of a play.

    Each host has its own plugin objects, so that its calls can run in a thread.

    Args:
        action: the action that makes the calls, as part of its task.
        task_vars: of that task.
        connections: names of the connection plugins that work in threads.
        root: whether to become root whatever `rdm_become` says.
    """

    def __init__(
        self,
        action: ActionBase,
        task_vars: Mapping[str, Any],
        connections: Sequence[str] = ("ssh",),
        root: bool = False,
    ) -> None:
        self._action = action
        self._root = root
        # The task's environment is already evaluated for its own host; the play's is not.
        self._task = action._task.copy()
        self._task.environment = action._task.get_play().environment
        self._hostvars = task_vars["hostvars"]
        self._raw = variables_in_play(self._task, task_vars)
        self._connections = {name.removeprefix("ansible.builtin.") for name in connections}

    def host(self, name: str) -> Host:
        """Return a host of the play with its current variables."""
        variables = {**self._raw(name), "hostvars": self._hostvars}
        # A module may add the discovered interpreter of its host, so each host gets a copy.
        variables["ansible_facts"] = dict(variables.get("ansible_facts") or {})
        return Host(name, variables, Templar(loader=self._action._loader, variables=variables))

    def call(self, host: Host, module: str, arguments: Mapping[str, Any]) -> Callable[[], Result]:
        """Return a function that runs a module on a host; it is not connected to yet.

        Raises:
            OrdinaryError: the host cannot be reached in a thread.
            AnsibleError: a variable cannot be evaluated.
        """
        return functools.partial(
            self._handler(host)._execute_module,
            module_name=module,
            module_args=dict(arguments),
            task_vars=host.variables,
        )

    def copy(self, host: Host, path: str, name: str) -> tuple[str, Callable[[], Any]]:
        """Return a file's path on a host, among Ansible's temporary files, and a function that copies it.

        Raises:
            OrdinaryError: the host cannot be reached in a thread, or its modules could not read the file.
            AnsibleError: a variable cannot be evaluated, the host does not answer, or others can write there.
        """
        handler = self._handler(host)
        if handler._is_become_unprivileged():
            raise OrdinaryError("its modules run as a user who cannot read what the user of ssh uploads")
        directory = handler._make_tmp_path()
        try:
            remote = str(handler._connection._shell.join_path(upload_directory(handler), name))
        finally:
            handler._remove_tmp_path(directory)
        return remote, functools.partial(upload, handler._connection, path, remote)

    def _handler(self, host: Host) -> Any:
        """Return an action plugin for the host."""
        context = self._play_context(host)
        connection = self._connection(host, context)
        handler = action_loader.get(
            "ansible.legacy.normal",
            task=self._task,
            connection=connection,
            play_context=context,
            loader=self._action._loader,
            templar=host.templar,
            shared_loader_obj=self._action._shared_loader_obj,
        )
        _fix_environment(handler)
        return handler

    def _play_context(self, host: Host) -> Any:
        """Return the play context, which Ansible and older plugins read instead of options."""
        context = self._action._play_context.copy()
        # The copy has the address of the task's own host.
        context.remote_addr = None
        context = context.set_task_and_variable_override(self._task, host.variables, host.templar)
        context.post_validate(host.templar)
        context.remote_addr = context.remote_addr or host.name
        if context.password or context.become_pass:
            raise OrdinaryError("a password is used")
        return context

    def _connection(self, host: Host, context: Any) -> Any:
        name = host.value("ansible_connection") or self._task.connection
        if name.removeprefix("ansible.builtin.") not in self._connections:
            raise OrdinaryError(f"the connection plugin {name} is not known to work in threads")
        connection = connection_loader.get(name, context, ansible_playbook_pid=str(os.getppid()))
        # The task's keyword `timeout` limits the task, not the connection.
        keys = {**self._task.dump_attrs(), "timeout": context.timeout}
        keys.pop("retries", None)
        _set_options("connection", connection, host, keys)
        _set_options("shell", connection._shell, host, keys)
        if _option(connection, "password"):
            raise OrdinaryError("ssh needs a password")
        become = self._become(host)
        connection.set_become_plugin(become)
        if become:
            _set_options("become", become, host, keys)
            if _option(become, "become_pass"):
                raise OrdinaryError("becoming another user needs a password")
            context.set_become_plugin(become.name)
        if not connection.is_pipelining_enabled():
            raise OrdinaryError("pipelining is off")
        return connection

    def _become(self, host: Host) -> Any:
        """Return the become plugin; None for none. Most plays become root according to rdm_become."""
        own = host.value("ansible_become")
        if own is None:
            own = self._root or host.value("rdm_become", True)
        if not boolean(own, strict=False):
            return None
        name = host.value("ansible_become_method") or self._task.become_method
        plugin = become_loader.get(name)
        if plugin is None or getattr(plugin, "require_tty", False):
            raise OrdinaryError(f"the become plugin {name} is not known to work in threads")
        return plugin


class Host:
    """A host's unevaluated variables, and the templar that evaluates them."""

    def __init__(self, name: str, variables: dict[str, Any], templar: Any) -> None:
        self.name = name
        self.variables = variables
        self.templar = templar

    def value(self, name: str, otherwise: Any = None) -> Any:
        """Return a variable's value; AnsibleError if it cannot be evaluated."""
        if name not in self.variables:
            return otherwise
        return self.templar.template(self.variables[name])

    def values(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the values of these variables, without those that the host lacks."""
        return {name: self.value(name) for name in names if name in self.variables}


def _fix_environment(handler: Any) -> None:
    """Evaluate the environment of a host's module now: Ansible cannot evaluate templates in threads."""
    evaluated: dict[str, Any] = {}
    prefix = handler._compute_environment_string(evaluated)

    def known(raw_environment_out: Any = None) -> Any:
        if isinstance(raw_environment_out, dict):
            raw_environment_out.clear()
            raw_environment_out.update(evaluated)
        return prefix

    handler._compute_environment_string = known


def _set_options(kind: str, plugin: Any, host: Host, keys: Mapping[str, Any]) -> None:
    """Set a plugin's options from the host's variables and the task's keywords."""
    names = constants.config.get_plugin_vars(kind, plugin._load_name)
    plugin.set_options(task_keys=keys, var_options=host.values(names))


def _option(plugin: Any, name: str) -> Any:
    """Return a plugin's option; None if it has no such option."""
    try:
        return plugin.get_option(name)
    except KeyError:
        return None

# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the ssh configuration of bare hosts; see plugins/modules/ssh_config_plan.py."""

from __future__ import annotations

import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import write_whole
from ansible_collections.rdm.provision.plugins.module_utils.base.local_path import HOST_NAME
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.controller_action import Decision
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    Problem,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.host_variables import HostVariables
from ansible_collections.rdm.provision.plugins.plugin_utils.ssh import host_config as host_ssh
from ansible_collections.rdm.provision.plugins.plugin_utils.ssh.known_hosts import known_keys

SSH_HOST_NAME = "%l"
"""ssh's token for HOST_NAME, so that hosts may share the file."""
_AT_ONCE = 16


class ActionModule(Decision):
    """The action; it works on the controller only, and keeps the file of the hosts' keys."""

    def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return the contents of ssh's files, or the precondition failure."""
        reader = HostVariables(variables)
        order = sorted(options["nodes"], key=lambda name: int(options["nodes"][name]["rank"]))
        hosts = [_host(reader, name, str(options["nodes"][name]["my_ip"])) for name in order]
        there = [_from_controller(reader, name) for name in order]
        problems = host_ssh.check([*hosts, *there], options["jump_host"], options["keep_alive"])
        file = Path(str(variables["inventory_dir"])) / host_ssh.KEYS_FILE
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        known, wrong = host_ssh.parse_keys(before, str(file))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = pool.map(known_keys, [_ssh_arguments(reader, one) for one in there])
            met = dict(zip(order, found, strict=True))
        keys, other = host_ssh.merge_trusted(known, met, str(file))
        if problems := list(dict.fromkeys([*problems, *wrong, *other])):
            raise PreconditionFailed(problems)
        saved = not self._task.check_mode and any(host not in known for host in keys)
        if saved:
            # Existing lines, including comments, stay unchanged.
            new = {host: some for host, some in keys.items() if host not in known}
            _write(file, before + host_ssh.format_keys(new, *([""] if before else [])))
        cluster, keep_alive = options["cluster"], options["keep_alive"]
        return {
            "config": host_ssh.client_config(
                hosts,
                cluster,
                f"{options['directory']}/known_hosts",
                keep_alive,
                identity=options["identity"].replace(HOST_NAME, SSH_HOST_NAME),
            ),
            "known_hosts": host_ssh.format_keys(keys),
            "controller_config": host_ssh.client_config(
                there, cluster, f"{options['directory']}/known_hosts", keep_alive, jump=options["jump_host"]
            ),
            "saved": saved,
        }


def _host(reader: HostVariables, name: str, address: str) -> host_ssh.Host:
    """Return a host as the others reach it on the fabric."""
    variables = reader.node(name)
    user = variables.text("ssh_config_user") or variables.text("ansible_user")
    port = int(variables.text("ssh_config_port") or 0) or int(variables.text("ansible_port") or 22)
    return host_ssh.Host(name, address, user, port)


def _from_controller(reader: HostVariables, name: str) -> host_ssh.Host:
    """Return a host as Ansible reaches it."""
    variables = reader.node(name)
    return host_ssh.Host(
        name,
        variables.text("ansible_host") or name,
        variables.text("ansible_user"),
        int(variables.text("ansible_port") or 22),
        variables.text("ansible_ssh_private_key_file"),
    )


def _ssh_arguments(reader: HostVariables, host: host_ssh.Host) -> list[str]:
    """Return the arguments that Ansible passes to ssh for a host."""
    variables = reader.node(host.name)
    names = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
    given = (variables.text(name) for name in names)
    return [*(word for text in given for word in shlex.split(text)), "-p", str(host.port), host.address]


def _write(file: Path, text: str) -> None:
    try:
        write_whole(str(file), text.encode(), 0o644)
    except OSError as error:
        hint = "let this user write beside the inventory"
        raise PreconditionFailed(
            [Problem(None, str(file), f"cannot be written: {error.strerror}", hint)]
        ) from None

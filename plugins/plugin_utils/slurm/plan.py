# SPDX-License-Identifier: GPL-3.0-or-later
"""What each host of a Slurm cluster gets: files, packages, daemons. Pure decisions."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names
from ansible_collections.rdm.provision.plugins.module_utils.slurm.distributions import DISTRIBUTIONS
from ansible_collections.rdm.provision.plugins.module_utils.slurm.host_facts import (
    CONFIG,
    CONFIG_DIR,
    HEALTH_SETTINGS,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm import cluster as slurm_cluster
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm import conf as slurm_conf
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm.changes import HINT
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm.cluster import Cluster
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm.conf import PORTS, STATE_DIR

OWN_DIR = f"{CONFIG_DIR}/rdm"  # has the owner marker, which marks a host's Slurm as ours
CONFIGLESS_DIR = f"{OWN_DIR}/configless"
HOOKS = {"Prolog": f"{CONFIG_DIR}/prolog.d", "Epilog": f"{CONFIG_DIR}/epilog.d"}
HEALTH_CHECK = "00-rdm-health-check"
# In order of removal: without its settings the check fails and drains the node.
HEALTH_FILES = (*(f"{directory}/{HEALTH_CHECK}" for directory in HOOKS.values()), HEALTH_SETTINGS)
UNIT_FILE = "/etc/systemd/system/slurmd.service.d/rdm-provision.conf"
REST_UNIT_FILE = "/etc/systemd/system/slurmrestd.service.d/rdm-provision.conf"
REST_FILES = (REST_UNIT_FILE, slurm_cluster.TOKEN_KEY)  # the key signs tokens of every user
# Reads the configuration, and queries no daemon.
VALIDATE = ["env", "SLURM_CONF=%s", "scontrol", "show", "hostnames", "localhost"]
DEFAULTS = {manager: one.slurmd_defaults for manager, one in DISTRIBUTIONS.items()}
BLOCK = "slurmd"

_ACCOUNT = re.compile(r"[a-z0-9_][a-z0-9_.-]*")


def check_accounts(accounts: Mapping[str, Any]) -> list[Problem]:
    """Return what is wrong with `slurm_accounts`."""
    problems = []
    for account, users in accounts.items():
        what = f"slurm_accounts: {account}"
        if not _ACCOUNT.fullmatch(str(account)):
            hint = "use small letters, digits, '_', '.' and '-'"
            problems.append(Problem(None, what, "is no name of an account", hint))
        if not isinstance(users, list) or not all(_ACCOUNT.fullmatch(str(user)) for user in users):
            problems.append(Problem(None, what, "is no list of users", f"write {account}: [USER]"))
    return problems


def check_key(digest: str, hosts: Mapping[str, Mapping[str, Any]], path: str) -> list[Problem]:
    """Refuse to replace the key of a cluster that exists, or one that another program uses.

    Args:
        digest: of the key on this machine; empty if there is none.
        hosts: what rdm.provision.slurm_facts found, by host.
        path: of the key on this machine.
    """
    differ = {name: facts for name, facts in hosts.items() if facts["munge_key"] not in ("", digest)}
    problems = [
        Problem(
            name,
            "munge runs here for another program,",
            "with a key of its own that Slurm's would replace",
            "stop munge if nothing needs it, or take the host out of the inventory",
        )
        for name, facts in differ.items()
        if not facts["owner"] and "munged" in facts["running"]
    ]
    other = [name for name, facts in differ.items() if facts["owner"]]
    if not other:
        return problems
    what = "is not there" if not digest else "is another"
    hint = "copy it there from where the cluster was made"
    reason = f"{what} than that of the cluster, on {names(other, 3)}"
    return [*problems, Problem(None, f"munge's key {path}", reason, hint)]


def hosts_of(
    cluster: Cluster, key: str, accounts: Mapping[str, Any], health: str
) -> dict[str, dict[str, Any]]:
    """Return the desired state of each host.

    Args:
        cluster: as the inventory describes it.
        key: the digest of munge's key.
        accounts: the accounts with their users.
        health: the text of the health check; empty for none.
    """
    return {name: _host(cluster, name, key, accounts, health) for name in cluster.hosts}


def _host(cluster: Cluster, name: str, key: str, accounts: Mapping[str, Any], health: str) -> dict[str, Any]:
    facts = cluster.hosts[name].facts
    controls, computes = name == cluster.controller, name in cluster.nodes
    rests = controls and bool(cluster.rest)
    digests = slurm_conf.digests(cluster)
    files: dict[str, str] = {}
    blocks = {}
    daemons: dict[str, dict[str, str]] = {"munge": {"restart": key[:16]}}
    packages = ["munge", "client"]
    directories = []
    if controls or name == cluster.login:
        files[CONFIG] = slurm_conf.slurm_conf(cluster)
    if controls:
        files[f"{CONFIG_DIR}/gres.conf"] = slurm_conf.gres_conf(cluster)
        files[f"{CONFIG_DIR}/cgroup.conf"] = slurm_conf.cgroup_conf(cluster)
        packages += ["mariadb", "slurmdbd", "slurmctld"]
        text = slurm_conf.slurmdbd_conf(cluster)
        daemons.update(mariadb={}, slurmdbd={"restart": slurm_conf.digest(text)}, slurmctld=digests)
        directories.append(f"{STATE_DIR}/slurmctld")
    if rests:
        unit = slurm_conf.slurmrestd_unit(cluster)
        files[REST_UNIT_FILE] = unit
        packages += ["jwt", "slurmrestd"]
        started = slurm_conf.digest(unit + digests["restart"])
        daemons["slurmrestd"] = {"restart": started, "address": cluster.rest}
    if computes:
        packages.append("slurmd")
        directories.append(f"{STATE_DIR}/slurmd")
        started = digests["restart"]
        if not controls:
            server = f"{cluster.hosts[cluster.controller].address}:{PORTS['slurmctld']}"
            # Without systemd, the package's init script starts slurmd only if a slurm.conf exists.
            where = "" if facts["systemd"] else f"CONFDIR={CONFIGLESS_DIR}\n"
            blocks[DEFAULTS.get(facts["manager"], DEFAULTS["apt"])] = (
                f'SLURMD_OPTIONS="--conf-server {server}"\n{where}'
            )
            if facts["systemd"]:
                files[UNIT_FILE] = slurm_conf.header(cluster) + "[Unit]\nConditionPathExists=\n"
            else:
                files[f"{CONFIGLESS_DIR}/slurm.conf"] = slurm_conf.header(cluster)
            started = slurm_conf.digest(started + server)
        daemons["slurmd"] = {"restart": started}
        if health:
            settings = health_settings(cluster.hosts[name])
            files[HEALTH_SETTINGS] = json.dumps(settings, indent=1, sort_keys=True) + "\n"
            files.update({f"{directory}/{HEALTH_CHECK}": health for directory in HOOKS.values()})
    gone = [*(() if rests else REST_FILES), *(HEALTH_FILES if computes and not health else ())]
    folders = [{"path": path} for path in sorted({CONFIG_DIR, OWN_DIR, *map(os.path.dirname, files)})]
    if not rests:
        folders.append({"path": os.path.dirname(REST_UNIT_FILE), "state": "absent"})
    return {
        "files": [
            {
                "path": path,
                "content": text,
                "mode": "0755" if path.endswith(HEALTH_CHECK) else "0644",
                "validate": VALIDATE if path == CONFIG else [],
            }
            for path, text in files.items()
        ]
        + [{"path": path, "state": "absent"} for path in gone],
        "folders": folders,
        "private_files": [{"path": f"{CONFIG_DIR}/slurmdbd.conf", "content": text, "mode": "0600"}]
        if controls
        else [],
        "blocks": [{"path": path, "name": BLOCK, "content": text} for path, text in blocks.items()],
        "packages": [facts["names"][one] for one in packages if not facts["packages"].get(one)],
        "daemons": daemons,
        "directories": directories,
        "accounts": dict(accounts) if controls else {},
        "token_key": slurm_cluster.TOKEN_KEY if rests else "",
        "munge_owner": "munge" if facts["packages"].get("munge") else "",
    }


def health_settings(host: slurm_cluster.Host) -> dict[str, Any]:
    """Return the settings of a node's health check; see roles/slurm/files/health-check.

    Args:
        host: the node. Device files that the user names may be stand-ins without a driver.
    """
    found = host.facts["health"]
    return {
        "devices": host.devices,
        "drivers": found["drivers"] if not host.gpu_devices else [],
        "ports": [port for port in found["ports"] if port not in host.health_ignored_ports],
        "disks": {f"{STATE_DIR}/slurmd": host.health_disk} if host.health_disk else {},
    }


def removed() -> dict[str, Any]:
    """Return what is removed from every host on take-down, whatever its role was."""
    own = [
        *(f"{CONFIG_DIR}/{name}.conf" for name in ("slurm", "gres", "cgroup", "slurmdbd")),
        *HEALTH_FILES,
        *(
            UNIT_FILE,
            *REST_FILES,
            f"{CONFIGLESS_DIR}/slurm.conf",
            "/etc/munge/munge.key",
        ),
    ]
    folders = sorted({path.rpartition("/")[0] for path in own} - {"/etc/munge"}, reverse=True)
    return {
        "files": [{"path": path, "state": "absent"} for path in own],
        "folders": [{"path": path, "state": "absent"} for path in folders],
        "blocks": [{"path": path, "name": BLOCK, "state": "absent"} for path in DEFAULTS.values()],
    }


def check_queue(jobs: Sequence[Mapping[str, str]], hidden: Sequence[str] = ()) -> list[Problem]:
    """Refuse to take down a cluster that has jobs; `hidden` is what changes.unseen() returned."""
    if hidden:
        return [Problem(None, "the queue", f"cannot be read, and jobs run on {names(hidden)}", HINT)]
    if not jobs:
        return []
    ids = [job["id"] for job in jobs]
    what = f"job {ids[0]}" if len(ids) == 1 else f"{len(ids)} jobs"
    hint = f"wait, or cancel with scancel {' '.join(ids[:8])}"
    return [Problem(None, what, f"{'is' if len(ids) == 1 else 'are'} in the queue", hint)]

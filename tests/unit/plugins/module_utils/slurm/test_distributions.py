# SPDX-License-Identifier: GPL-3.0-or-later
"""The names of Slurm's parts in distributions, and the queries to their package managers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.slurm import daemons, host_facts
from ansible_collections.rdm.provision.plugins.module_utils.slurm.distributions import DISTRIBUTIONS, packages
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm import plan as slurm_plan

# dpkg-query and rpm of a host with munge and slurmd, as they print it and with their exit codes.
DPKG = 'case "$3" in munge) echo "installed 0.5.15-2";; slurmd) echo "installed 22.05.8-4";; *) exit 1;; esac'
RPM = (
    'case "$4" in munge) echo "installed 0.5.13";; slurm-slurmd) echo "installed 22.05.9";; '
    '*) echo "package $4 is not installed"; exit 1;; esac'
)
REPOQUERY = '[ "$*" = "-q repoquery --qf %{VERSION} slurm-slurmd" ] && echo 20.11.9 && echo 22.05.9'
POLICY = 'printf "slurmd:\\n  Installed: (none)\\n  Candidate: 22.05.8-4+deb12u3\\n"'

StandIn = Callable[[str, str], None]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Installs a shell script as the only program of a host."""
    monkeypatch.setenv("PATH", f"{tmp_path}")
    monkeypatch.setattr(host_facts, "find_program", lambda name: str(tmp_path / name))

    def make(name: str, script: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    return make


def test_each_distribution_has_a_name_for_each_part() -> None:
    parts = set(packages("apt"))
    assert parts == {"munge", "client", "slurmd", "slurmctld", "slurmdbd", "slurmrestd", "jwt", "mariadb"}
    assert all(set(one.packages) == parts for one in DISTRIBUTIONS.values())
    assert packages("zypper") == {}


@pytest.mark.parametrize(
    ("manager", "program", "script", "found"),
    [
        ("apt", "dpkg-query", DPKG, {"munge": "0.5.15-2", "slurmd": "22.05.8-4"}),
        ("dnf", "rpm", RPM, {"munge": "0.5.13", "slurmd": "22.05.9"}),
    ],
)
def test_installed_packages_are_reported_by_part(
    manager: str, program: str, script: str, found: dict[str, str], stand_in: StandIn
) -> None:
    stand_in(program, script)
    installed = host_facts.installed_versions(manager)
    assert {name: version for name, version in installed.items() if version} == found
    assert set(installed) == set(packages(manager))


@pytest.mark.parametrize(
    ("manager", "program", "script", "version"),
    [
        ("apt", "apt-cache", POLICY, "22.05.8-4+deb12u3"),
        # The newest is the last.
        ("dnf", "dnf", REPOQUERY, "22.05.9"),
        ("dnf", "dnf", "exit 0", ""),
    ],
)
def test_package_candidates_are_reported(
    manager: str, program: str, script: str, version: str, stand_in: StandIn
) -> None:
    stand_in(program, script)
    assert host_facts.candidate(manager) == version


def test_where_slurmd_gets_its_options() -> None:
    assert slurm_plan.DEFAULTS == {"apt": "/etc/default/slurmd", "dnf": "/etc/sysconfig/slurmd"}


@pytest.mark.parametrize(("manager", "pids"), [("apt", [1]), ("dnf", [1, 2])])
def test_mariadb_unit_is_the_distributions_and_not_a_containers(
    manager: str, pids: list[int], tmp_path: Path
) -> None:
    for pid, name, inside in (
        (1, "mariadbd", ""),
        (2, "mysqld", ""),
        (3, "mariadbd", "\t7"),
        (4, "munged", ""),
    ):
        process = tmp_path / str(pid)
        process.mkdir()
        (process / "comm").write_text(f"{name}\n")
        (process / "status").write_text(f"Name:\t{name}\nNSpid:\t{pid}{inside}\nNSpgid:\t{pid}{inside}\n")
    services = daemons.Services(manager, str(tmp_path))
    assert (sorted(services.pids("mariadb")), services.pids("munge")) == (pids, [4])

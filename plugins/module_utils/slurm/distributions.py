# SPDX-License-Identifier: GPL-3.0-or-later
"""The distributions' packages, files and process names for Slurm.

Sources: the packages of Debian 12 and Ubuntu 24.04; the spec files of EPEL 9 (slurm, munge) and RHEL 9
(mariadb).

This runs on nodes (Python 3.8 or newer), and on the controller.
"""

from __future__ import annotations

from typing import Dict, NamedTuple, Tuple


class Distribution(NamedTuple):
    """A family of distributions.

    Attributes:
        packages: our name of a component -> its package.
        slurmd_defaults: the file with the environment variables of slurmd's service.
        mariadb_log: MariaDB's error log.
        mariadb_processes: possible names of MariaDB's process; older versions have MySQL's.
    """

    packages: Dict[str, str]
    slurmd_defaults: str
    mariadb_log: str
    mariadb_processes: Tuple[str, ...]


DISTRIBUTIONS = {
    "apt": Distribution(
        {
            "munge": "munge",
            "client": "slurm-client",
            "slurmd": "slurmd",
            "slurmctld": "slurmctld",
            "slurmdbd": "slurmdbd",
            "slurmrestd": "slurmrestd",
            "jwt": "slurm-wlm-jwt-plugin",
            "mariadb": "mariadb-server",
        },
        "/etc/default/slurmd",
        "/var/log/mysql/error.log",
        ("mariadbd",),
    ),
    "dnf": Distribution(
        {
            "munge": "munge",
            "client": "slurm",
            "slurmd": "slurm-slurmd",
            "slurmctld": "slurm-slurmctld",
            "slurmdbd": "slurm-slurmdbd",
            "slurmrestd": "slurm-slurmrestd",
            "jwt": "libjwt",
            "mariadb": "mariadb-server",
        },
        "/etc/sysconfig/slurmd",
        "/var/log/mariadb/mariadb.log",
        ("mariadbd", "mysqld"),
    ),
}
"""By package manager."""


def packages(manager: str) -> Dict[str, str]:
    """Return our name of each component -> its package; empty for another package manager."""
    known = DISTRIBUTIONS.get(manager)
    return known.packages if known else {}

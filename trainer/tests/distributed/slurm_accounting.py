# SPDX-License-Identifier: GPL-3.0-or-later
"""A Slurm cluster of three nodes on this machine, with its release's slurmdbd and this machine's MariaDB."""

from __future__ import annotations

import getpass
import socket
import subprocess
from pathlib import Path

from tests.distributed.slurm_cluster import Slurm
from tests.waiting import DEADLINE_S, wait_until

ACCOUNT, ABOVE = "physics", "science"
"""The user's account, and the one above it."""
_QOS = "long"
_TABLES = Path("/usr/share/mysql/mysql_system_tables.sql")
_DATABASE = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser={user}
StorageLoc=slurm
"""


class AccountedSlurm(Slurm):
    """A cluster that enforces the limits of its accounting, and soon forgets jobs that have ended.

    MariaDB has no users and no network: access to its socket, in the tests' directory, allows everything.
    """

    more_configuration = (
        "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\n"
        "AccountingStoragePort={ports[4]}\nAccountingStoragePass={folder}/munge.socket\n"
        "AccountingStorageEnforce=safe,qos\nAccountingStorageTRES=gres/gpu\nMinJobAge=2\n"
    )

    def accounting_up(self, port: int) -> None:
        """Start MariaDB and slurmdbd, and add the cluster, the user's account, and a QOS."""
        data, at = self.folder / "mariadb", self.folder / "mariadb.socket"
        (data / "mysql").mkdir(parents=True)
        program = ("mariadbd", "--no-defaults", f"--user={getpass.getuser()}", f"--datadir={data}")
        # slurmdbd creates procedures, and MariaDB needs a table for them.
        made = subprocess.run(
            [*program, "--bootstrap"],
            input=f"CREATE DATABASE slurm;\nUSE mysql;\n{_TABLES.read_text()}",
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert made.returncode == 0, made.stderr
        self._start(*program, "--skip-grant-tables", "--skip-networking", f"--socket={at}", within=())
        wait_until("MariaDB listens", at.exists)
        # The client library uses this instead of the usual path.
        self.environment["MYSQL_UNIX_PORT"] = str(at)
        conf = self.folder / "slurmdbd.conf"
        host = socket.gethostname().partition(".")[0]
        conf.write_text(_DATABASE.format(folder=self.folder, host=host, port=port, user=getpass.getuser()))
        # Slurm requires this mode.
        conf.chmod(0o600)
        self._start("slurmdbd", "-D")
        wait_until("slurmdbd answers", lambda: "Cluster" in self.slurm("sacctmgr", "show", "cluster"))
        self.sacctmgr("add", "cluster", "test")
        self.sacctmgr("add", "account", ABOVE)
        self.sacctmgr("add", "account", ACCOUNT, f"parent={ABOVE}")
        self.sacctmgr("add", "qos", _QOS)
        self.sacctmgr("add", "user", getpass.getuser(), f"account={ACCOUNT}", f"qos=normal,{_QOS}")

    def sacctmgr(self, *words: str) -> None:
        done = subprocess.run(
            [*self.within, "sacctmgr", "--immediate", *words],
            env=self.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"

    def is_in_slurmctld(self, job: str) -> bool:
        """Return whether slurmctld still knows a job that has ended."""
        return bool(self.slurm("squeue", "--noheader", "--states=all", f"--jobs={self.number(job)}").strip())

"""The role slurm on a host with systemd: the packages' own units, slurmrestd, and control groups."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import yaml

from tests.integration.systemd_host import ADDRESS, NAME, ROOT, Host, booted
from trainer.tests.waiting import wait_until

pytestmark = pytest.mark.long

DAEMONS = ("munge", "mariadb", "slurmdbd", "slurmctld", "slurmd", "slurmrestd")
GPUS = ("/dev/nvidia0", "/dev/nvidia1")
"""Device files without a driver: opening one that is permitted gives a distinct error."""
OPENS = """
import errno, os
for path in ("/dev/nvidia0", "/dev/nvidia1"):
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        print(path, errno.errorcode[error.errno])
"""
PING = """
import sys, urllib.error, urllib.request
headers = {"X-SLURM-USER-NAME": "root", "X-SLURM-USER-TOKEN": sys.argv[1]}
request = urllib.request.Request("http://127.0.0.1:6820/slurm/v0.0.38/ping", headers=headers)
try:
    print(urllib.request.urlopen(request, timeout=60).status)
except urllib.error.HTTPError as error:
    print(error.code)
except urllib.error.URLError:
    print("silent")
"""
PROGRAM = """
import getpass, os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("of", getpass.getuser(), flush=True)
while not (pathlib.Path(os.environ["RDM_JOB_DIR"]) / "end").exists():
    time.sleep(0.05)
"""


def play(host: Host, name: str, **variables: object) -> str:
    """Run a playbook of the collection on the host; return its last line, which counts changes."""
    inventory = f"/tmp/{name}.yml"
    mine = {
        "ansible_connection": "local",
        "ansible_host": ADDRESS,
        "ansible_become": False,
        "ansible_python_interpreter": sys.executable,
        "rdm_cluster": "units",
        "slurm_rest": True,
        "slurm_gpu_devices": list(GPUS),
        "slurm_accounts": {"physics": ["root"]},
        # Without a value, a variable has its default.
        **dict.fromkeys(("slurm_cpus", "slurm_node_options", "slurm_options", "slurm_partitions")),
        **variables,
    }
    hosts = {"cluster": {"children": {"master": {"hosts": {NAME: {}}}}, "vars": mine}}
    host.run(sys.executable, "-c", f"open({inventory!r}, 'w').write({yaml.safe_dump(hosts)!r})")
    collections = f"ANSIBLE_COLLECTIONS_PATH={ROOT / '.collections'}"
    result = host.run("env", collections, "ansible-playbook", "-i", inventory, f"rdm.provision.{name}")
    return next(line for line in reversed(result.splitlines()) if line.startswith(NAME))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    root = tmp_path_factory.mktemp("systemd") / "root"
    root.mkdir()
    with booted(root) as host:
        # The role would install them, but this host cannot reach a mirror.
        install = ("apt-get", "install", "--yes", "--no-install-recommends", "mariadb-server")
        host.run("env", "DEBIAN_FRONTEND=noninteractive", *install, outside=True)
        for number, path in enumerate(GPUS):
            host.run("mknod", "-m", "666", path, "c", "195", str(number))
        assert "failed=0" in play(host, "slurm_up")
        yield host


def states(host: Host) -> dict[str, str]:
    return {name: host.run("systemctl", "is-active", name, check=False).strip() for name in DAEMONS}


def test_systemd_runs_all_daemons_and_a_second_run_changes_nothing(host: Host) -> None:
    assert states(host) == dict.fromkeys(DAEMONS, "active")
    assert host.run("sinfo", "--noheader", "--format=%R %T %G").split() == ["main", "idle", "gpu:2"]
    assert "changed=0" in play(host, "slurm_up")


def _ping(host: Host, token: str) -> str:
    return host.run(sys.executable, "-c", PING, token).strip()


def test_slurmrestd_has_no_rights_and_takes_tokens_only(host: Host) -> None:
    pid = host.run("systemctl", "show", "--property=MainPID", "--value", "slurmrestd").strip()
    user, command = host.run("ps", "--no-headers", "-o", "uid=,args=", "-p", pid).split(maxsplit=1)
    # A dynamic user of systemd's.
    assert 61184 <= int(user) <= 65519
    assert command.split() == ["/usr/sbin/slurmrestd", "-a", "rest_auth/jwt", "127.0.0.1:6820"]
    assert host.run("stat", "--format=%U %a", "/etc/slurm/rdm/jwt.key").split() == ["slurm", "600"]
    token = host.run("scontrol", "token", "lifespan=600").strip().partition("=")[2]
    assert _ping(host, token) == "200"
    # The answer of 22.05 to a bad token.
    assert _ping(host, "none") == "500"
    host.run("kill", "-KILL", pid)
    wait_until("it comes back", lambda: _ping(host, token), lambda answer: answer == "200")


def _last_state(host: Host) -> str:
    # Accounting may not know it yet.
    return host.run("sacct", "-X", "-n", "-P", "-o", "State").strip().rpartition("\n")[2]


def test_control_groups_hold_a_job_to_its_memory_and_its_gpus(host: Host) -> None:
    opened = host.run("srun", "--gres=gpu:1", sys.executable, "-c", OPENS).splitlines()
    assert opened == ["/dev/nvidia0 ENXIO", "/dev/nvidia1 EPERM"]
    greedy = "x = bytearray(300 * 1024 * 1024); print('all of it')"
    assert host.run("srun", "--mem=50M", sys.executable, "-c", greedy, check=False) == ""
    wait_until("the job is killed", lambda: _last_state(host), lambda state: state == "OUT_OF_MEMORY")


class User:
    """An unprivileged user with jobs."""

    def __init__(self, host: Host, name: str) -> None:
        self.host, self.name, self.home = host, name, f"/tmp/{name}"
        host.run("install", "--directory", f"--owner={name}", "--mode=700", self.home, f"{self.home}/jobs")
        self.run(sys.executable, "-c", f"open('program.py', 'w').write({PROGRAM!r})")

    def run(self, *argv: str, stdin: str = "") -> str:
        own = (
            "env",
            f"--chdir={self.home}",
            f"HOME={self.home}",
            f"RDM_JOBS={self.home}/jobs",
            "RDM_EXECUTION_ENVIRONMENT=host",
        )
        return self.host.run("setpriv", *self.rights(), *own, *argv, stdin=stdin)

    def rights(self) -> list[str]:
        return [f"--reuid={self.name}", "--regid=nogroup", "--clear-groups", "--no-new-privs"]

    def agent(self, *words: str, **request: Any) -> dict[str, Any]:
        program = ROOT / "trainer/.venv/bin/rdm-trainer"
        answer: dict[str, Any] = json.loads(
            self.run(str(program), "job", *words, stdin=json.dumps(request) if request else "")
        )
        return answer

    def submit(self, job: str) -> None:
        launcher = {"kind": "slurm", "devices_per_node": 1, "program": [f"{self.home}/program.py"]}
        request: dict[str, Any] = {
            "version": 1,
            "name": job,
            "node": NAME,
            "nodes": [{"name": NAME, "address": ADDRESS, "slots": 1}],
            "config": json.dumps({"name": job, "launcher": launcher}),
            "overrides": [],
        }
        checked = self.agent("check", **request)
        assert checked["problems"] == []
        assert self.agent("start", **request, offer=checked["offer"])["started"]

    def begins(self, job: str) -> None:
        def output() -> str:
            return "".join(self.agent("logs", job)["parts"].values())

        self.reaches(job, "running")
        wait_until("it writes its log", output, lambda text: text == f"of {self.name}\n")

    def state(self, job: str) -> str:
        return str(self.agent("state", job)["job"]["state"])

    def reaches(self, job: str, state: str) -> None:
        agent = partial(self.agent, "state", job)
        wait_until(f"{job} is {state}", lambda: self.state(job), lambda now: now == state, why=agent)


def test_two_users_have_jobs_of_one_name_on_one_node_at_the_same_time(host: Host) -> None:
    one, other = users = [User(host, name) for name in ("daemon", "nobody")]
    for user in users:
        user.submit("mine")
    for user in users:
        user.begins("mine")
    running = host.run("squeue", "--noheader", "--states=running", "--format=%u %j").split("\n")
    assert sorted(filter(None, running)) == ["daemon mine", "nobody mine"]
    assert one.agent("stop", "mine")["job"]["state"] == "stopped"
    assert other.state("mine") == "running"
    other.run("touch", "jobs/mine/end")
    other.reaches("mine", "finished")
    for user in users:
        assert host.run("find", user.home, "!", "-user", user.name) == ""


def test_daemons_start_at_boot_and_are_removed_by_down(host: Host) -> None:
    assert set(host.run("systemctl", "is-enabled", *DAEMONS).split()) == {"enabled"}
    # Its key is removed with slurmrestd.
    assert "failed=0" in play(host, "slurm_up", slurm_rest=False)
    assert states(host)["slurmrestd"] == "inactive"
    host.run("test", "!", "-e", "/etc/slurm/rdm/jwt.key")
    assert "failed=0" in play(host, "slurm_down")
    # The package had enabled it before.
    assert states(host) == {**dict.fromkeys(DAEMONS, "inactive"), "mariadb": "active"}
    host.run("test", "!", "-e", "/etc/slurm/slurm.conf")

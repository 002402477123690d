"""Users, distribution, disk, and the limits of the Docker daemon."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base import host

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max open files            1024                 1048576              files
Max locked memory         {soft:<20} {hard:<20} bytes
"""
ALL_CAPABILITIES = "CapEff:\t000001ffffffffff\n"
WITHOUT_SYS_RESOURCE = "CapEff:\t000001fffeffffff\n"
HOST_IDS = "         0          0 4294967295\n"


def daemon(
    proc: Path, pid: int, *, hard: str, status: str, ids: str = HOST_IDS, name: str = "dockerd"
) -> None:
    """Create the procfs files of one process."""
    directory = proc / str(pid)
    directory.mkdir()
    (directory / "comm").write_text(f"{name}\n")
    (directory / "limits").write_text(LIMITS.format(soft=8388608, hard=hard))
    (directory / "status").write_text(f"Name:\t{name}\n{status}")
    (directory / "uid_map").write_text(ids)


@pytest.mark.parametrize(
    ("hard", "status", "ids", "allowed"),
    [
        ("unlimited", WITHOUT_SYS_RESOURCE, HOST_IDS, True),
        ("8388608", ALL_CAPABILITIES, HOST_IDS, True),
        ("8388608", WITHOUT_SYS_RESOURCE, HOST_IDS, False),
        ("8388608", ALL_CAPABILITIES, "0 1000 1\n1 100000 65536\n", False),
    ],
)
def test_memlock(tmp_path: Path, hard: str, status: str, ids: str, allowed: bool) -> None:
    daemon(tmp_path, 7, hard=hard, status=status, ids=ids)
    expected = -1 if hard == "unlimited" else int(hard)
    assert host.memlock(7, str(tmp_path)) == {
        "hard": expected,
        "raise_allowed": allowed,
    }


def test_memlock_of_a_process_that_is_gone(tmp_path: Path) -> None:
    assert host.memlock(9, str(tmp_path)) == {"hard": 0, "raise_allowed": False}


def test_memlock_of_this_process_agrees_with_the_kernel() -> None:
    import resource

    assert host.memlock(0)["hard"] == resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]


def test_daemon_is_found_by_name_when_its_socket_does_not_show_it(tmp_path: Path) -> None:
    daemon(tmp_path, 5, hard="0", status="", name="containerd")
    daemon(tmp_path, 7, hard="0", status="")
    assert host.daemon_pid(str(tmp_path / "docker.sock"), str(tmp_path)) == 7
    assert host.daemon_pid(str(tmp_path / "docker.sock"), str(tmp_path / "missing")) == 0


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("dockerd\0--config-file=/srv/docker.json\0", "/srv/docker.json"),
        ("dockerd\0--config-file\0/srv/docker.json\0", "/srv/docker.json"),
        ("dockerd\0-H\0fd://\0", "/etc/docker/daemon.json"),
        ("", "/etc/docker/daemon.json"),
    ],
)
def test_daemon_config(tmp_path: Path, command: str, path: str) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cmdline").write_text(command)
    assert host.daemon_config(7, str(tmp_path)) == path


def test_distribution() -> None:
    text = 'NAME="Ubuntu"\nVERSION_ID="22.04"\nID=ubuntu\nPRETTY_NAME="Ubuntu 22.04.3 LTS"\n\nodd line\n'
    assert host.distribution(text) == {"id": "ubuntu", "version": "22.04", "name": "Ubuntu 22.04.3 LTS"}
    assert host.distribution("") == {"id": "linux", "version": "", "name": "Linux"}


def test_disk_of_a_directory_that_is_not_there_yet(tmp_path: Path) -> None:
    there = host.disk(str(tmp_path))
    not_yet = host.disk(str(tmp_path / "var/lib/docker"))
    assert not_yet["path"] == str(tmp_path / "var/lib/docker")
    assert not_yet["total"] == there["total"] > there["free"] > 0


MOUNTS = r"""
21 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 21 0:40 / /shared rw - autofs systemd-1 rw
31 30 0:52 / /shared rw,relatime shared:9 master:2 - nfs4 server:/export rw,vers=4.2
32 31 0:53 / /shared/my\040images rw - xfs /dev/sdb rw
33 21 0:54 / /cut
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/srv/a.tar", "ext4"),
        ("/shared", "nfs4"),
        ("/shared/a.tar", "nfs4"),
        ("/shared2/a.tar", "ext4"),
        ("/shared/my images/a.tar", "xfs"),
        ("/shared/my images2/a.tar", "nfs4"),
        ("/cut/a.tar", "ext4"),
    ],
)
def test_file_system_type(path: str, kind: str) -> None:
    assert host.file_system_type(path, MOUNTS) == kind
    assert host.file_system_type(path, "") == ""


def test_space_reserved_for_root_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1000 blocks 100 are unused, 50 of them for root: preflight, the load and df agree."""
    usage = os.statvfs_result((4096, 4096, 1000, 100, 50, 1, 1, 1, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: usage)
    assert host.disk("/")["free"] == 50 * 4096


@pytest.mark.parametrize(
    ("blocks", "inodes", "flag", "why"),
    [
        ((100_000, 50_000), (100, 9, 9), 0, ""),
        ((100_000, 50_000), (0, 0, 0), 0, ""),  # btrfs creates inodes on demand
        ((100_000, 50_000), (100, 9, 9), os.ST_RDONLY, "read-only"),
        ((10, 0), (100, 9, 9), 0, "full"),
        ((100_000, 50_000), (100, 0, 0), 0, "full"),
    ],
)
def test_where_nothing_can_be_written(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    blocks: tuple[int, int],
    inodes: tuple[int, int, int],
    flag: int,
    why: str,
) -> None:
    usage = os.statvfs_result((4096, 4096, 200_000, *blocks, *inodes, flag, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: usage)
    assert host.not_writable(str(tmp_path / "not" / "yet")) == why


def test_where_the_user_may_write_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    assert host.not_writable(str(tmp_path)) == "forbidden"


def test_the_user_who_became_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "nobody")
    assert host.login_user()["name"] == "nobody"
    monkeypatch.setenv("SUDO_USER", "no such user")
    assert host.login_user()["name"] == getpass.getuser()


def test_user_and_groups() -> None:
    assert host.user()["uid"] == os.geteuid()
    assert host.groups("root", "no such group") == {"root": 0, "no such group": None}


def test_installed() -> None:
    assert host.installed("sh")
    assert not host.installed("no-such-program")

"""A host whose init is systemd: this machine's own packages, in namespaces and control groups of its own.

What it writes goes with it. It has no network but its own, to which nothing else is joined.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from trainer.tests.waiting import wait_until

__all__ = ["ADDRESS", "NAME", "Host", "booted"]

ROOT = Path(__file__).parents[2]
NAME, ADDRESS = "n1", "10.77.0.1"
BOOT_S, RUN_S = 240.0, 600.0
_WRITTEN = ("etc", "usr", "var")
_DEVICES = {"full": 7, "null": 3, "random": 8, "urandom": 9, "zero": 5}
"""With their minor numbers."""
# Units that change the kernel, which is not the host's own.
_MASKED = ("binfmt", "modules-load", "pstore", "sysctl", "timesyncd", "udevd", "udev-trigger", "update-utmp")
_ENTER = (
    'for group in "$@"; do echo $$ > "$group/cgroup.procs"; done; exec unshare --mount --propagation=private \
--pid --fork --kill-child --uts --ipc --net --cgroup sh -ec "$INSIDE" "$0"'
)
_INSIDE = "\n".join(
    (
        'mount -t tmpfs tmpfs "$0" && cd "$0"',
        f"mkdir -p dev proc run sys tmp .old {' '.join(_WRITTEN)}",
        "for name in bin sbin lib lib64; do ln -s usr/$name $name; done",
        f"for name in {' '.join(_WRITTEN)}; do",
        "  mkdir -p .written/$name .work/$name",
        "  mount -t overlay -o lowerdir=/$name,upperdir=.written/$name,workdir=.work/$name overlay $name",
        "done",
        # If nothing is mounted, systemd mounts this machine's own.
        "mount -t tmpfs -o mode=755 tmpfs dev; mkdir dev/pts dev/shm",
        *(f"mknod -m 666 dev/{name} c 1 {minor}" for name, minor in _DEVICES.items()),
        "mknod -m 666 dev/tty c 5 0; ln -s /proc/self/fd dev/fd; ln -s pts/ptmx dev/ptmx",
        "mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts",
        "mount -t tmpfs tmpfs run; for path in dev/shm tmp; do mount -t tmpfs -o mode=1777 tmpfs $path; done",
        'for path in $SHARED; do mkdir -p ".$path" && mount --rbind "$path" ".$path"; done',
        "mount -t proc proc proc; mount -t sysfs sysfs sys; mount -o bind,ro proc/sys proc/sys",
        f"for unit in {' '.join(_MASKED)}; do",
        "  ln -sf /dev/null etc/systemd/system/systemd-$unit.service",
        "done",
        f"hostname {NAME}; echo {ADDRESS} {NAME} >> etc/hosts",
        "ip link set lo up; ip link add eth0 type veth peer name eth1",
        f"ip addr add {ADDRESS}/24 dev eth0; ip link set eth0 up; ip link set eth1 up",
        "pivot_root . .old; umount --lazy .old",
        "exec env -i container=rdm PATH=/usr/sbin:/usr/bin /lib/systemd/systemd --unit=basic.target",
    )
)


class Host:
    """The host.

    Attributes:
        pid: of its systemd.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def enter(self, *argv: str, outside: bool = False) -> list[str]:
        """Return a command that runs another on the host; `outside` leaves it this machine's network."""
        spaces = ("--mount", "--uts", "--ipc", "--pid", "--cgroup", *(() if outside else ("--net",)))
        return ["nsenter", f"--target={self.pid}", *spaces, "--root", "--wd", *argv]

    def run(self, *argv: str, check: bool = True, outside: bool = False, stdin: str = "") -> str:
        """Run a command on the host; return its output."""
        path = f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
        done = subprocess.run(
            self.enter("env", "-i", f"PATH={path}", "HOME=/root", "LC_ALL=C.UTF-8", *argv, outside=outside),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=RUN_S,
        )
        assert not check or done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout

    def is_up(self) -> bool:
        """Whether it has booted, without a failed unit."""
        return self.run("systemctl", "is-system-running", check=False).strip() == "running"


@contextmanager
def booted(directory: Path) -> Iterator[Host]:
    """A host that has booted.

    Args:
        directory: an empty one, where its root is mounted.
    """
    groups = _groups(f"rdm-test-{os.getpid()}")
    # This machine's Python, which may be anywhere, also runs on the host.
    shared = {str(ROOT), sys.base_prefix, sys.prefix}
    environment = {
        **os.environ,
        "INSIDE": _INSIDE,
        "SHARED": " ".join(sorted(path for path in shared if path.split("/")[1] not in _WRITTEN)),
    }
    with (directory.parent / "boot.log").open("w") as log:
        outer = subprocess.Popen(
            ["sh", "-ec", _ENTER, str(directory), *map(str, groups)], env=environment, stdout=log, stderr=log
        )
    try:
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        with contextlib.suppress(OSError):
            wait_until(
                "it boots", lambda: outer.poll() is not None or children.read_text().split(), timeout=BOOT_S
            )
        output = (directory.parent / "boot.log").read_text()
        assert outer.poll() is None, output
        host = Host(int(children.read_text().split()[0]))
        failed = partial(host.run, "systemctl", "--failed", check=False)
        wait_until("it is up", host.is_up, timeout=BOOT_S, why=lambda: output + failed())
        yield host
    finally:
        outer.kill()
        outer.wait()
        for group in groups:
            _remove(group)


def _groups(name: str) -> list[Path]:
    """Create a control group in each hierarchy of this machine."""
    top = Path("/sys/fs/cgroup")
    tops = [top] if (top / "cgroup.procs").exists() else sorted({path.resolve() for path in top.iterdir()})
    made = []
    for one in tops:
        if not (one / "cgroup.procs").exists():
            continue
        group = one / name
        group.mkdir()
        made.append(group)
        for key in ("cpuset.cpus", "cpuset.mems"):
            if (group / key).exists():
                (group / key).write_text((one / key).read_text())
    return made


def _remove(group: Path) -> None:
    """Remove a control group and its children when their last process has ended."""
    deadline = time.monotonic() + BOOT_S
    while group.exists():
        for path in [*sorted(group.rglob("*/"), reverse=True), group]:
            with contextlib.suppress(OSError):
                path.rmdir()
        assert time.monotonic() < deadline, f"{group} is still in use"
        time.sleep(0.05)

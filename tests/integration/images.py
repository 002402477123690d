"""Images built on the spot, without a registry: a root file system of one static busybox."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI

LEFT_OUT = {
    "__pycache__",
    "site-packages",
    "dist-packages",
    "test",
    "idlelib",
    "lib2to3",
    "ensurepip",
    "tkinter",
}


def busybox_rootfs(extra: dict[str, bytes] | None = None) -> bytes:
    """Return a tar of a root file system: busybox under all its names, and `extra` files by path."""
    program = shutil.which("busybox")
    if program is None:
        pytest.fail("the integration tests need a static busybox: apt-get install busybox-static")
    applets = subprocess.run([program, "--list"], check=True, capture_output=True, text=True).stdout.split()
    files = {
        "bin/busybox": Path(program).read_bytes(),
        "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
        "etc/group": b"root:x:0:\nvideo:x:44:\nnogroup:x:65534:\n",
        **(extra or {}),
    }
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as archive:
        for directory in ("bin", "etc", "root", "tmp"):
            entry = tarfile.TarInfo(directory)
            entry.type = tarfile.DIRTYPE
            entry.mode = 0o1777 if directory == "tmp" else 0o755
            archive.addfile(entry)
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            entry.mode = 0o755 if path.startswith("bin/") else 0o644
            archive.addfile(entry, io.BytesIO(content))
        for name in applets:
            if name != "busybox":
                entry = tarfile.TarInfo(f"bin/{name}")
                entry.type = tarfile.SYMTYPE
                entry.linkname = "busybox"
                archive.addfile(entry)
    return output.getvalue()


def python_rootfs(extra: dict[str, bytes] | None = None) -> bytes:
    """Return a tar of busybox, of the Python that runs this test with its libraries, and of `extra` files."""
    program = Path(sys.executable).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    objects = [program, *library.glob("lib-dynload/*.so")]
    needed = subprocess.run(["ldd", *map(str, objects)], check=True, capture_output=True, text=True).stdout
    shared = {word for word in needed.replace(":", "").split() if word.startswith("/") and ".so" in word}
    output = io.BytesIO(busybox_rootfs(extra))
    with tarfile.open(fileobj=output, mode="a", dereference=True) as archive:
        for path in sorted(shared - {str(path) for path in objects}):
            archive.add(path, path.lstrip("/"))
        archive.add(program, str(program).lstrip("/"))
        archive.add(
            library,
            str(library).lstrip("/"),
            filter=lambda entry: None if LEFT_OUT & set(Path(entry.name).parts) else entry,
        )
        link = tarfile.TarInfo("bin/python3")
        link.type = tarfile.SYMTYPE
        link.linkname = str(program)
        archive.addfile(link)
    return output.getvalue()


def import_image(api: DockerAPI, name: str, rootfs: bytes) -> str:
    """Import a root file system as the image `name` (with tag), whose command sleeps; return its id."""
    repository, _, tag = name.rpartition(":")
    lines = list(
        api.post_stream(
            "/images/create",
            [rootfs],
            {"Content-Type": "application/x-tar"},
            fromSrc="-",
            repo=repository,
            tag=tag,
            changes='CMD ["/bin/sleep", "infinity"]',
        )
    )
    return str(lines[-1]["status"])


def ssh_rootfs(owner: int, settings: dict[str, bytes]) -> bytes:
    """Return a tar of busybox and the ssh client of this machine.

    Args:
        owner: of what is in /etc/ssh, and of /run/sshd.
        settings: what is there, by name.
    """
    program = Path(shutil.which("ssh") or "/usr/bin/ssh")
    needed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    output = io.BytesIO(busybox_rootfs())
    with tarfile.open(fileobj=output, mode="a", dereference=True) as archive:
        for path in (str(program), *(word for word in needed.split() if word.startswith("/"))):
            archive.add(path, path.lstrip("/"))
        for name, content in settings.items():
            entry = tarfile.TarInfo(f"etc/ssh/{name}")
            entry.size = len(content)
            entry.mode, entry.uid, entry.gid = 0o644, owner, owner
            archive.addfile(entry, io.BytesIO(content))
        entry = tarfile.TarInfo("run/sshd")
        entry.type, entry.mode, entry.uid = tarfile.DIRTYPE, 0o755, owner
        archive.addfile(entry)
    return output.getvalue()

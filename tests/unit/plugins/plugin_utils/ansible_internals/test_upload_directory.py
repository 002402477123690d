"""The directory for uploads, as the shell of a node makes it, and the ways of an upload."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleError
from ansible.playbook.play_context import PlayContext
from ansible.plugins.loader import connection_loader
from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals.upload_directory import (
    upload,
    upload_directory,
)


def action(tmp_path: Path) -> Any:
    """Return an action whose node is this machine."""

    def execute(command: str, sudoable: bool) -> dict[str, Any]:
        assert not sudoable, "the file is sent by the user of ssh"
        done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
        return {"stdout": done.stdout}

    shell = SimpleNamespace(tmpdir=f"{tmp_path}/ansible-tmp-1/")
    return SimpleNamespace(_connection=SimpleNamespace(_shell=shell), _low_level_execute_command=execute)


def test_upload_directory_is_private_and_reused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    made = upload_directory(action(tmp_path))
    assert made == f"{tmp_path}/rdm-uploads-{os.geteuid()}"
    assert stat.S_IMODE(os.lstat(made).st_mode) == 0o700
    (Path(made) / "left").touch()
    assert upload_directory(action(tmp_path)) == made
    assert (Path(made) / "left").exists()


def test_uploads_of_a_killed_run_are_removed_after_a_week(tmp_path: Path) -> None:
    made = Path(upload_directory(action(tmp_path)))
    for name, days in (("left", 9), ("on its way", 0)):
        (made / name).touch()
        os.utime(made / name, (time.time() - days * 86400,) * 2)
    assert upload_directory(action(tmp_path)) == str(made)
    assert [path.name for path in made.iterdir()] == ["on its way"]


def link(path: Path) -> None:
    (path.parent / "elsewhere").mkdir(mode=0o700)
    path.symlink_to(path.parent / "elsewhere")


def open_to_all(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def file(path: Path) -> None:
    path.touch(mode=0o700)


def of_another(path: Path) -> None:
    path.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        path.chmod(0o711)


@pytest.mark.parametrize("plant", [link, open_to_all, file, of_another])
def test_upload_directory_open_to_others_is_refused(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    plant(tmp_path / f"rdm-uploads-{os.geteuid()}")
    with pytest.raises(AnsibleError, match="must be a directory that only its user can enter: remove it"):
        upload_directory(action(tmp_path))


class Connection:
    """A connection with which some ways to copy a file fail."""

    def __init__(self, method: str | None, fail: tuple[str, ...] = ()) -> None:
        self.method = method
        self.tried: list[str | None] = []
        self._fail = fail

    def get_option(self, _name: str) -> str:
        if self.method is None:
            raise KeyError
        return self.method

    def set_option(self, _name: str, value: str) -> None:
        self.method = value

    def put_file(self, _path: str, _remote: str) -> None:
        self.tried.append(self.method)
        if self.method in self._fail:
            raise AnsibleError(f"{self.method} failed")


@pytest.mark.parametrize(
    ("method", "size", "tried"),
    [
        ("smart", 1 << 30, ["sftp"]),
        ("smart", 1000, ["smart"]),
        ("piped", 1 << 30, ["piped"]),
        (None, 1 << 30, [None]),
    ],
)
def test_how_a_file_is_uploaded(
    tmp_path: Path, method: str | None, size: int, tried: list[str | None]
) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(size)
    connection = Connection(method)
    upload(connection, str(tmp_path / "file"), "/remote")
    assert (connection.tried, connection.method) == (tried, method)


def test_a_large_file_that_cannot_be_uploaded_is_not_read_into_memory(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(1 << 30)
    connection = Connection("smart", ("sftp",))
    upload(connection, str(tmp_path / "file"), "/remote")
    assert connection.tried == ["sftp", "scp"]
    connection = Connection("smart", ("sftp", "scp"))
    with pytest.raises(AnsibleError, match="scp failed"):
        upload(connection, str(tmp_path / "file"), "/remote")
    assert (connection.tried, connection.method) == (["sftp", "scp"], "smart")


def test_ansible_has_the_option_that_an_upload_sets() -> None:
    connection = connection_loader.get("ssh", PlayContext(), os.devnull)
    connection.set_options()
    assert connection.get_option("ssh_transfer_method") == "smart"
    connection.set_option("ssh_transfer_method", "scp")
    assert connection.get_option("ssh_transfer_method") == "scp"

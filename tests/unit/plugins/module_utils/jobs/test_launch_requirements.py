"""What launchers find on a host, with stand-ins that print the output of the real programs."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.jobs.launch_requirements import (
    program,
    unreachable,
)

PDSH = "pdsh-2.34 (+readline+debug)\nrcmd modules: {0} (default: rsh)\nmisc modules: (none)"


def prints(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("name", "command", "text", "version", "problem"),
    [
        ("pdsh", "pdsh", PDSH.format("ssh,rsh,exec"), "2.34", ""),
        ("pdsh", "pdsh", PDSH.format("rsh,exec"), "", "without its module for ssh"),
        ("openmpi", "mpirun", "mpirun (Open MPI) 4.1.4\n\nReport bugs to …", "4.1.4", ""),
        ("openmpi", "mpirun", "HYDRA build details:\n    Version: 4.0.2", "", "is not Open MPI"),
        ("pdsh", "mpirun", "", "", "has no pdsh on the PATH of commands over ssh"),
    ],
)
def test_which_program_is_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    command: str,
    text: str,
    version: str,
    problem: str,
) -> None:
    prints(tmp_path / command, text)
    monkeypatch.setenv("PATH", str(tmp_path) if problem.startswith("has no") else f"{tmp_path}:/usr/bin:/bin")
    found = program(name)
    assert found.version == version
    assert problem in found.problem
    assert bool(found.problem) == bool(problem)


def test_unreachable_host_is_named_with_sshs_last_message(tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(
        '#!/bin/sh\nfor word; do case $word in 10.0.0.2) echo "Warning: x" >&2; '
        'echo "ops@10.0.0.2: Permission denied (publickey)." >&2; exit 255;; esac; done\n'
    )
    ssh.chmod(0o755)
    peers = [("n1", "10.0.0.1"), ("n2", "10.0.0.2")]
    assert unreachable(peers, [str(ssh)]) == {"n2": "ops@10.0.0.2: Permission denied (publickey)."}
    assert unreachable(peers[:1], ["/nowhere/ssh"]) == {"n1": "ssh cannot be run: No such file or directory"}

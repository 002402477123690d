"""Modules repeat their arguments only with -vvv, and never a secret."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.state import state_file as state
from ansible_collections.rdm.provision.plugins.modules import (
    container_exec,
    fabric_probe,
    job,
    job_data,
    node_files,
    python_env,
    ssh_reach,
    state_file,
)

NODES = "".join(f"node{number} 10.0.{number // 250}.{number % 250}\n" for number in range(1000))
SECRETS = ("hush-hush", "a long secret " * 50)


def printed(module: Any, capsys: pytest.CaptureFixture[str], **arguments: Any) -> dict[str, Any]:
    """Return what a module prints for Ansible."""
    with patch_module_args(arguments), pytest.raises(SystemExit):
        module.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def files(tmp_path: Path) -> dict[str, Any]:
    return {
        "files": [
            {"path": str(tmp_path / "nodes"), "content": NODES},
            *(
                {"path": str(tmp_path / f"key{number}"), "secret_content": secret}
                for number, secret in enumerate(SECRETS)
            ),
        ],
    }


def test_arguments_are_not_reported_without_debug_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = printed(node_files, capsys, **files(tmp_path))
    assert result["invocation"] == {}
    assert len(json.dumps(result)) < 500


@pytest.mark.parametrize("verbosity", [0, 3])
@pytest.mark.parametrize("module", [job_data, python_env, state_file])
def test_arguments_are_reported_with_debug_output(
    module: Any, verbosity: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = dict.fromkeys(state.WATCH, "another")
    arguments: dict[Any, dict[str, Any]] = {
        job_data: {"source": "train"},
        python_env: {"cluster": "rdm", "state": "absent"},
        state_file: {"worked": [], "inputs": {}, "watch": watch, "hardware": ""},
    }
    directory = str(tmp_path / "none")
    result = printed(module, capsys, **arguments[module], directory=directory, _ansible_verbosity=verbosity)
    shown = result["invocation"].get("module_args", {}).get("directory", "")
    assert (result.get("failed", False), shown) == (False, directory if verbosity == 3 else "")


@pytest.mark.parametrize("verbosity", [0, 3])
def test_secrets_stay_hidden(tmp_path: Path, capsys: pytest.CaptureFixture[str], verbosity: int) -> None:
    result = printed(node_files, capsys, **files(tmp_path), _ansible_verbosity=verbosity)
    assert (json.dumps(NODES) in json.dumps(result)) == (verbosity == 3)
    for secret in SECRETS:
        assert secret[:9] not in json.dumps(result)


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        (fabric_probe, {"node": "node1", "nodes": NODES, "docker_socket": "/nonexistent"}),
        (fabric_probe, {"node": "other", "nodes": NODES}),
        (job, {"cluster": "rdm", "verb": "check", "plan": {"config": NODES, "nodes": NODES.split()}}),
        (container_exec, {"cluster": "rdm", "argv": ["sh", "-c", NODES]}),
        (job_data, {"directory": "/proc/version", "source": "x", "sizes": {NODES: 1}}),
        (python_env, {"cluster": "rdm", "directory": "none", "lock": NODES}),
        (
            state_file,
            {"directory": "/x", "worked": [], "inputs": {}, "watch": {"users": NODES}, "hardware": ""},
        ),
        (node_files, {"files": [{"path": "not absolute", "content": NODES}]}),
        (ssh_reach, {"nodes": NODES, "within": ["node1"]}),
    ],
)
def test_secrets_stay_hidden_in_a_failure(
    module: Any,
    arguments: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    monkeypatch.setattr(ssh_reach, "unreachable", lambda nodes: {name: "refused" for name, _ in nodes})
    assert len(json.dumps(printed(module, capsys, **arguments))) < 2000


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.EIO, os.strerror(errno.EIO)), "the operating system reports: Input/output error"),
        (OSError(errno.ENOENT, os.strerror(errno.ENOENT), "/x"), "/x: No such file or directory"),
        (TimeoutError("timed out"), "the operating system reports: timed out"),
    ],
)
def test_an_error_of_the_operating_system_is_one_sentence(
    error: OSError, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing:
        @staticmethod
        @as_module({})
        def main(module: Any) -> dict[str, Any]:
            raise error

    result = printed(Failing, capsys)
    assert (result["failed"], result["msg"]) == (True, sentence)

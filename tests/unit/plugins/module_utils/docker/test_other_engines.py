"""A user's rootless engine and Docker context, found in files."""

from __future__ import annotations

import hashlib
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.docker.other_engines import other_engines


@pytest.fixture
def ops(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "home/.docker").mkdir(parents=True)
    (tmp_path / "run/1000").mkdir(parents=True)
    return {"name": "ops", "uid": 1000, "home": str(tmp_path / "home")}


def use_context(user: dict[str, Any], name: str, address: str) -> None:
    docker = Path(user["home"]) / ".docker"
    (docker / "config.json").write_text(json.dumps({"currentContext": name}))
    meta = docker / "contexts/meta" / hashlib.sha256(name.encode()).hexdigest()
    meta.mkdir(parents=True)
    (meta / "meta.json").write_text(json.dumps({"Name": name, "Endpoints": {"docker": {"Host": address}}}))


def found(user: dict[str, Any], tmp_path: Path) -> list[dict[str, str]]:
    return other_engines(user, "/var/run/docker.sock", str(tmp_path / "run"))


def test_a_rootless_engine(ops: dict[str, Any], tmp_path: Path) -> None:
    path = str(tmp_path / "run/1000/docker.sock")
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(path)
        assert found(ops, tmp_path) == [{"kind": "rootless", "name": "ops", "address": path, "user": "ops"}]
        assert other_engines(ops, path, str(tmp_path / "run")) == [], "it is the one in use"


@pytest.mark.parametrize(
    ("address", "shown"),
    [("unix:///srv/docker.sock", "/srv/docker.sock"), ("ssh://ops@far", "ssh://ops@far")],
)
def test_a_context(ops: dict[str, Any], tmp_path: Path, address: str, shown: str) -> None:
    use_context(ops, "big", address)
    assert found(ops, tmp_path) == [{"kind": "context", "name": "big", "address": shown, "user": "ops"}]


def test_a_context_of_the_engine_in_use_is_no_other(ops: dict[str, Any], tmp_path: Path) -> None:
    use_context(ops, "same", "unix:///var/run/docker.sock")
    assert found(ops, tmp_path) == []


@pytest.mark.parametrize(
    "config", ["", "{", "[]", "{}", '{"currentContext": "default"}', '{"currentContext": "gone"}']
)
def test_no_other(ops: dict[str, Any], tmp_path: Path, config: str) -> None:
    (Path(ops["home"]) / ".docker/config.json").write_text(config)
    (tmp_path / "run/1000/docker.sock").touch()
    assert found(ops, tmp_path) == []

"""node_facts on laid-out nodes, on an empty root, and with errors."""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

import pytest
import yaml
from ansible_collections.rdm.provision.plugins.module_utils.base import host, iproute2
from ansible_collections.rdm.provision.plugins.module_utils.base.facts import (
    NO_ENGINE,
    Container,
    Engine,
    NodeFacts,
)
from ansible_collections.rdm.provision.plugins.module_utils.docker import engine_facts
from ansible_collections.rdm.provision.plugins.module_utils.hardware import sysfs
from ansible_collections.rdm.provision.plugins.module_utils.network import interfaces
from ansible_collections.rdm.provision.plugins.modules import node_facts
from ansible_collections.rdm.provision.plugins.plugin_utils.ssh import cluster_keys

from tests.fixtures.sysfs.build import build
from tests.unit.plugins.job_locks import running_job
from tests.unit.plugins.modules.running import run_module

ROOT = Path(__file__).parents[4]


def facts(tree: Path, socket: str = "", *, check: bool = False, **more: Any) -> dict[str, Any]:
    """Return the facts of the node under `tree`, by default without an engine."""
    params = {
        "sysfs_root": str(tree / "sys"),
        "dev_root": str(tree / "dev"),
        "docker_socket": socket or str(tree / "docker.sock"),
        **more,
    }
    result = run_module(node_facts, params, check=check)
    assert result["changed"] is False
    node: dict[str, Any] = result["node"]
    return node


def what(node: dict[str, Any]) -> list[str]:
    return [finding["what"] for finding in node["findings"]]


def test_mi250(tmp_path: Path) -> None:
    node = facts(build("mi250", tmp_path))
    assert (node["accelerator"], len(node["gpus"])) == ("rocm", 8)
    assert len(node["infiniband"]) == 5
    assert node["sriov"][0]["pf"] == "ib0"
    assert what(node) == []


def test_cuda_with_a_port_that_has_no_cable(tmp_path: Path) -> None:
    node = facts(build("cuda", tmp_path))
    assert (node["accelerator"], len(node["gpus"])) == ("cuda", 8)
    assert what(node) == []
    states = {device["name"]: device["ports"][0]["physical_state"] for device in node["infiniband"]}
    assert states["mlx5_1"] == "Disabled"


def test_cpu(tmp_path: Path) -> None:
    node = facts(build("cpu", tmp_path))
    assert (node["accelerator"], node["gpus"], node["infiniband"], node["sriov"]) == ("cpu", [], [], [])
    assert what(node) == []


def test_empty_root_gives_facts_without_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iproute2, "_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    node = facts(tmp_path)
    assert (node["accelerator"], node["docker"], node["interfaces"]) == ("cpu", None, [])
    assert what(node) == ["ip-missing"]


def test_directory_of_a_cluster_has_its_name(tmp_path: Path) -> None:
    (tmp_path / "cluster").write_text("north\n")
    socket, config_dir = str(tmp_path / "docker.sock"), str(tmp_path)
    node = run_module(node_facts, {"docker_socket": socket, "config_dir": config_dir})["node"]
    assert node["config_owner"] == "north"
    assert node["origin"] == {"authority": "", "my_ip": ""}


def test_files_of_a_cluster_say_where_it_was_made(tmp_path: Path) -> None:
    keys = cluster_keys.make(str(tmp_path / "keys"), "north")
    (tmp_path / "ssh").mkdir()
    for name, text in cluster_keys.of_node(keys, "north", "n1", "10.0.0.1").items():
        (tmp_path / "ssh" / name).write_text(text)
    (tmp_path / "env").write_text("MY_IP=10.0.0.1\nMASTER_ADDR=10.0.0.2\n")
    params = {"config_dir": str(tmp_path), "state_file_directory": str(tmp_path)}
    node = run_module(node_facts, {"docker_socket": str(tmp_path / "docker.sock"), **params})["node"]
    assert node["origin"] == {"authority": keys.fingerprints["host_ca"], "my_ip": "10.0.0.1"}
    (tmp_path / "ssh" / "known_hosts").write_text("@cert-authority * ssh-ed25519 no-key north\n")
    node = run_module(node_facts, {"docker_socket": str(tmp_path / "docker.sock"), **params})["node"]
    assert node["origin"]["authority"] == ""


def test_jobs_that_run_in_the_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def engine(*arguments: Any) -> Engine:
        containers: list[Container] = [{"job_directory": str(tmp_path)}, {"job_directory": ""}]
        return {**NO_ENGINE, "containers": containers, "image_dir": str(tmp_path)}

    monkeypatch.setattr(engine_facts, "read", engine)
    params = {"docker_socket": str(tmp_path / "docker.sock")}
    with running_job(tmp_path, "one"):
        found = run_module(node_facts, {**params, "node": "n1"})["node"]
        without_jobs = run_module(node_facts, params)["node"]
    assert [container["jobs"] for container in found["docker"]["containers"]] == [["one"], []]
    assert [container["jobs"] for container in without_jobs["docker"]["containers"]] == [[], []]


def test_engine_facts_are_complete_or_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*arguments: Any) -> list[str]:
        raise RuntimeError("no jobs")

    containers: list[Container] = [{"job_directory": str(tmp_path)}]
    monkeypatch.setattr(engine_facts, "read", lambda *_: {**NO_ENGINE, "containers": containers})
    monkeypatch.setattr(node_facts, "running_jobs", unreadable)
    node = facts(build("cpu", tmp_path), str(tmp_path / "docker.sock"), node="n1")
    assert (node["docker"], node["docker_state"]) == (None, "stopped")
    assert node["docker_error"].endswith("cannot be read: RuntimeError('no jobs')")


def plain(kind: Any) -> Any:
    """The kind of what may be null."""
    return next(one for one in get_args(kind) if one is not NoneType) if get_origin(kind) is Union else kind


def entries(kind: Any) -> Any:
    """The kind of the entries of a list; None for others."""
    return get_args(kind)[0] if get_origin(kind) is list else None


def keys(kind: Any) -> set[str]:
    """The keys of a kind of facts, and of all facts in it."""
    inner = get_type_hints(kind) if is_typeddict(kind) else {}
    return {*inner, *(key for one in inner.values() for key in keys(entries(one) or plain(one)))}


def name_of(kind: Any) -> str:
    """What Ansible calls a kind."""
    return (get_origin(kind) or (dict if is_typeddict(kind) else kind)).__name__


def undocumented(kind: Any, documented: dict[str, Any]) -> Iterator[str]:
    """Facts whose keys or types the documentation does not have, or that are not facts."""
    facts = {key: plain(hint) for key, hint in get_type_hints(kind).items()}
    yield from sorted(set(facts) ^ set(documented))
    for key in set(facts) & set(documented):
        one, fact = documented[key], facts[key]
        if (one["type"], one.get("elements")) != (name_of(fact), entries(fact) and name_of(entries(fact))):
            yield f"{key}: {one}"
        if "contains" in one:
            yield from undocumented(fact, one["contains"])
        else:
            shown = f"{one['description']} {one.get('sample')}"
            yield from (f"{key}.{inner}" for inner in keys(entries(fact) or fact) if inner not in shown)


def unlike(value: Any, kind: Any, where: str = "node") -> Iterator[str]:
    """Where a value is not of a kind."""
    if is_typeddict(kind):
        hints = get_type_hints(kind)
        yield from (f"{where}.{key}" for key in set(value) - set(hints))
        yield from (one for key in set(value) & set(hints) for one in unlike(value[key], hints[key], key))
    elif get_origin(kind) is list:
        yield from (one for entry in value for one in unlike(entry, entries(kind), where))
    elif not (value is None and plain(kind) is not kind):
        kind = plain(kind)
        if is_typeddict(kind):
            yield from unlike(value, kind, where)
        elif kind is not Any and not isinstance(value, get_origin(kind) or kind):
            yield f"{where}: {value!r}"


def test_documentation_has_every_fact_with_its_type() -> None:
    assert list(undocumented(NodeFacts, yaml.safe_load(node_facts.RETURN)["node"]["contains"])) == []


@pytest.mark.parametrize("tree", ["cpu", "cuda", "mi250", "sriov"])
def test_facts_are_as_documented(tmp_path: Path, tree: str) -> None:
    found = facts(build(tree, tmp_path), sriov={"interfaces": ["ib0"], "vfs": 2})
    assert set(found) == set(get_type_hints(NodeFacts))
    assert list(unlike(found, NodeFacts)) == []


def test_every_fact_is_read() -> None:
    """By a subscript or `get` in Python, or by `node.KEY` in YAML."""
    read = set()
    for path in (*ROOT.glob("plugins/*/**/*.py"), *ROOT.glob("rdm_provision/**/*.py")):
        for one in ast.walk(ast.parse(path.read_text())):
            if isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Load):
                read.add(getattr(one.slice, "value", None))
            elif isinstance(one, ast.Call) and getattr(one.func, "attr", "") == "get" and one.args:
                read.add(getattr(one.args[0], "value", None))
    for path in (*ROOT.glob("roles/**/*.yml"), *ROOT.glob("playbooks/**/*.yml")):
        read.update(re.findall(r"\.node\.(\w+)", path.read_text()))
    # Read in loops over names; and `what` is for programs that run the module themselves.
    assert keys(NodeFacts) - read == {"kfd", "dri", "host_use", "what"}


def test_check_mode_is_the_same(tmp_path: Path) -> None:
    build("cpu", tmp_path)
    assert set(facts(tmp_path, check=True)) == set(facts(tmp_path))


@pytest.mark.parametrize(("installed", "state"), [(True, "stopped"), (False, "absent")])
def test_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool, state: str) -> None:
    monkeypatch.setattr(host, "installed", lambda program: installed)
    node = facts(tmp_path)
    assert (node["docker"], node["docker_state"]) == (None, state)
    socket = tmp_path / "docker.sock"
    assert node["docker_error"] == f"no Docker Engine answers at {socket}: there is no such socket"
    assert node["disk"]["path"] == "/var/lib/docker"
    assert node["disk"]["total"] > 0


def test_an_engine_that_is_paused_is_not_one_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = subprocess.Popen(["sleep", "600"])
    try:
        monkeypatch.setattr(host, "daemon_pid", lambda socket, *_: daemon.pid)
        assert facts(tmp_path)["docker_state"] in ("stopped", "absent")
        daemon.send_signal(signal.SIGSTOP)
        os.waitpid(daemon.pid, os.WUNTRACED)
        node = facts(tmp_path)
    finally:
        daemon.kill()
        daemon.wait()
    assert (node["docker"], node["docker_state"]) == (None, "paused")
    assert node["docker_error"].endswith(
        f"; its process {daemon.pid} is paused (kill -CONT {daemon.pid} lets it go on)"
    )


def test_an_address_that_is_no_socket(tmp_path: Path) -> None:
    node = facts(tmp_path, "tcp://192.0.2.1:2375")
    assert node["docker"] is None
    assert node["docker_error"] == "tcp://192.0.2.1:2375 is not the address of a unix socket (unix:///path)"


def test_gpus_without_a_driver(tmp_path: Path) -> None:
    tree = build("cuda", tmp_path)
    for driver in tree.glob("sys/bus/pci/devices/*/driver"):
        driver.unlink()
    node = facts(tree)
    assert node["accelerator"] == "cpu"
    assert "no compute driver serves nvidia GPU 0000:07:00.0 (none), " in node["findings"][0]["text"]


def test_rdma_without_its_user_interface(tmp_path: Path) -> None:
    tree = build("mi250", tmp_path)
    shutil.rmtree(tree / "dev/infiniband")
    (finding,) = facts(tree)["findings"]
    assert finding["what"] == "uverbs-missing"
    assert finding["text"].startswith("mlx5_0, mlx5_1, mlx5_2, mlx5_3, mlx5_4 cannot be used from programs")


@pytest.mark.parametrize("vf_devices", [True, False])
def test_a_vf_that_a_container_has_taken_along_is_other_hardware_where_it_gets_all(
    tmp_path: Path, vf_devices: bool
) -> None:
    tree = build("rdma", tmp_path)

    def digest() -> str:
        return str(facts(tree, sriov={"vf_devices": vf_devices})["hardware"])

    before = digest()
    # In RDMA's mode exclusive the kernel shows it only in the container's namespace.
    shutil.rmtree(tree / "sys/class/infiniband/mlx5_5")
    assert (digest() == before) is vf_devices
    shutil.rmtree(tree / "sys/class/infiniband/mlx5_3")
    assert digest() != before, "a physical function is gone"


def test_failed_reader_is_a_finding_and_hides_no_other_fact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = build("mi250", tmp_path)

    def broken(*arguments: Any) -> Any:
        raise ValueError("odd file")

    monkeypatch.setattr(sysfs, "infiniband", broken)
    monkeypatch.setattr(interfaces, "interfaces", lambda entries: entries[0]["nothing"])
    node = facts(tree)
    assert node["infiniband"] == []
    assert len(node["gpus"]) == 8
    assert [entry["name"] for entry in node["interfaces"]] == ["ib0", "ib1", "ib2", "ib3", "lo"]
    assert what(node) == ["ip-unreadable", "unreadable-infiniband"]
    assert node["findings"][1]["text"] == "infiniband cannot be read: ValueError: odd file"


def test_mirrors_that_the_engine_lacks_are_work() -> None:
    docker = {"socket": "/srv/docker.sock", "registry_mirrors": ["http://127.0.0.1:2"]}
    named = "rdm-test.invalid=http://127.0.0.1:1/project"
    found: Any = {"docker": docker, "work": {}}
    assert node_facts._mirrors(found, ["http://127.0.0.1:2/"], compares=True) == {
        "unreachable_mirrors": {},
        "foreign_mirror_files": {},
    }
    assert found["work"] == {}, "without work no mirror is queried"
    reported = node_facts._mirrors(found, ["http://127.0.0.1:2/", named, "../x=y"], compares=True)
    assert found["work"] == {"images": [f"the engine does not use the mirror {named}"]}
    refused = "does not answer (Connection refused)"
    assert reported["unreachable_mirrors"] == {"http://127.0.0.1:2/": refused, named: refused}

"""The training container is created, changed and replaced on a real engine, and no job is lost."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import labels
from ansible_collections.rdm.provision.plugins.module_utils.state.state_file import (
    WATCH,
    drift,
    observe,
    read,
)
from ansible_collections.rdm.provision.plugins.modules import docker_owned

from tests.integration.container_module import up
from tests.integration.engine import Engine, net
from tests.unit.plugins.modules.running import Failed, run_module
from trainer.tests.waiting import wait_until

NET = net(1)
MY_IP = f"{NET}.9"
Options = dict[str, Any]


class Killed(BaseException):
    """The run was killed here."""


@pytest.fixture
def api(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[DockerAPI]:
    """An engine with the network; it is empty again afterwards."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{engine.socket}")
    network = {"Name": "fabric", "IPAM": {"Config": [{"Subnet": f"{NET}.0/24"}]}}
    engine.api.post("/networks/create", network)
    yield engine.api
    engine.clear()


@pytest.fixture
def options(api: DockerAPI, busybox_image: str, tmp_path: Path) -> Options:
    """The desired container; it has a directory of jobs."""
    (tmp_path / "jobs" / "gpt").mkdir(parents=True)
    return {
        "name": "rdm",
        "cluster": "c",
        "node": "n1",
        "image": busybox_image,
        "command": ["sh", "-c", "echo up; exec sleep infinity"],
        "hostname": "n1",
        "network": "fabric",
        "my_ip": MY_IP,
        "env": {"MY_IP": MY_IP, "EMPTY": "", "NOTE": 'it\'s = "so"\nand so'},
        "volumes": [f"{tmp_path / 'jobs'}:/jobs", f"{tmp_path}:/etc/rdm:ro"],
        "devices": ["/dev/null:/dev/mine:rw", "/dev/zero"],
        "groups": ["44"],
        "ulimits": ["nofile:1000:2000"],
        "capabilities": ["IPC_LOCK"],
        "security_opts": ["no-new-privileges"],
        "shm_size": "64M",
        "stop_timeout": 0,
        "ready_line": "up",
    }


def found(api: DockerAPI, name: str = "rdm") -> dict[str, Any]:
    one: dict[str, Any] = api.get(f"/containers/{name}/json")
    return one


def names(api: DockerAPI) -> list[str]:
    return sorted(one["Names"][0] for one in api.get("/containers/json", all=True))


def test_container_is_created_once_as_requested(api: DockerAPI, options: Options) -> None:
    assert up(options, check=True)["actions"] == ["make"]
    assert names(api) == []
    result = up(options)
    assert (result["changed"], result["container"]["state"]) == (True, "running")
    made = found(api)
    assert made["NetworkSettings"]["Networks"]["fabric"]["IPAddress"] == MY_IP
    assert made["Config"]["Hostname"] == "n1"
    assert {f"{name}={value}" for name, value in options["env"].items()} <= set(made["Config"]["Env"])
    host = made["HostConfig"]
    assert (host["ShmSize"], host["Init"], host["Privileged"]) == (64 << 20, True, False)
    assert [one["PathInContainer"] for one in host["Devices"]] == ["/dev/mine", "/dev/zero"]
    assert (host["Ulimits"][0]["Soft"], host["GroupAdd"]) == (1000, ["44"])
    assert all(options["env"]["NOTE"] not in value for value in made["Config"]["Labels"].values())
    for check in (True, False):
        again = up(options, check=check)
        assert (again["changed"], again["actions"]) == (False, [])
        assert again["diff"]["before"] == again["diff"]["after"]
    assert found(api)["Id"] == made["Id"]


def test_a_container_of_another_directory_leaves_none_of_its_keys(
    api: DockerAPI, options: Options, tmp_path: Path
) -> None:
    """Without root the directory has the host's name, which can change."""

    def at(name: str) -> Options:
        home = tmp_path / ".rdm" / name
        key = {"path": str(home / "ssh/id_ed25519"), "secret_content": "key", "mode": "0600"}
        return {
            **options,
            "volumes": [f"{tmp_path / 'jobs'}:/jobs", f"{home}:/etc/rdm:ro"],
            "owner_markers": [{"path": str(home / "cluster"), "name": "c"}],
            "directories": [{"path": str(home / "ssh")}],
            "files": [key],
        }

    up(at("old"))
    key = tmp_path / ".rdm" / "old" / "ssh/id_ed25519"
    assert key.exists()
    assert up(at("new"), check=True)["actions"] == ["replace"]
    assert key.exists()
    result = up(at("new"))
    assert (result["actions"], str(key) in result["paths"]) == (["replace"], True)
    assert not (tmp_path / ".rdm" / "old").exists()
    assert (tmp_path / ".rdm" / "new" / "ssh/id_ed25519").exists()
    assert not up(at("new"))["changed"]


@pytest.mark.parametrize(
    "other",
    [
        {"env": {"MY_IP": MY_IP}},
        {"command": ["sleep", "1000"], "ready_line": ""},
        {"my_ip": f"{NET}.10"},
        {"devices": []},
        {"security_opts": []},
        {"stop_timeout": 1},
        {"reads": "another digest"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_changed_setting_recreates_the_container(api: DockerAPI, options: Options, other: Options) -> None:
    up(options)
    before = found(api)["Id"]
    predicted = up(options, check=True, **other)
    assert predicted["actions"] == ["replace"]
    assert set(other) & set(predicted["diff"]["after"])
    assert found(api)["Id"] == before
    assert up(options, **other)["actions"] == ["replace"]
    assert names(api) == ["/rdm"]
    assert found(api)["Id"] != before
    assert not up(options, **other)["changed"]


def disconnect(api: DockerAPI, network: str) -> None:
    api.post(f"/networks/{network}/disconnect", {"Container": "rdm", "Force": True})


def connect_to_another(api: DockerAPI) -> None:
    api.post("/networks/create", {"Name": "other", "Internal": True})
    api.post("/networks/other/connect", {"Container": "rdm"})


def lose_the_interface(api: DockerAPI) -> None:
    inside = ["nsenter", "--net", "--target", str(found(api)["State"]["Pid"])]
    subprocess.run([*inside, "ip", "link", "del", "eth0"], check=True)


@pytest.mark.parametrize(
    ("done", "actions"),
    [
        (lambda api: api.post("/containers/rdm/update", {"RestartPolicy": {"Name": "no"}}), ["update"]),
        (
            lambda api: api.post("/containers/rdm/update", {"Memory": 1 << 28, "MemorySwap": 1 << 29}),
            ["replace"],
        ),
        (lambda api: api.post("/containers/rdm/update", {"NanoCpus": 500_000_000}), ["replace"]),
        (lambda api: disconnect(api, "fabric"), ["replace"]),
        (connect_to_another, ["disconnect"]),
        (lose_the_interface, ["restart"]),
        (lambda api: api.post("/containers/rdm/pause"), ["unpause"]),
        (lambda api: api.post("/containers/rdm/stop", t=0), ["start"]),
        (lambda api: api.delete("/containers/rdm", force=True), ["make"]),
    ],
    ids=[
        *("policy", "memory", "cpus", "off the network", "another network"),
        *("no interface", "paused", "stopped", "removed"),
    ],
)
def test_changes_by_others_are_predicted_and_repaired(
    api: DockerAPI, options: Options, done: Any, actions: list[str]
) -> None:
    up(options)
    before = found(api)["Id"]
    done(api)
    assert up(options, check=True)["actions"] == actions
    assert up(options)["actions"] == actions
    now = found(api)
    assert now["State"]["Status"] == "running"
    assert (now["Id"] == before) == (actions[0] not in ("replace", "make"))
    assert now["HostConfig"]["RestartPolicy"]["Name"] == "always"
    assert (now["HostConfig"]["Memory"], now["HostConfig"]["NanoCpus"]) == (0, 0)
    assert list(now["NetworkSettings"]["Networks"]) == ["fabric"]
    assert not up(options)["changed"]


def test_a_tag_that_has_moved_is_a_predicted_replacement(api: DockerAPI, options: Options) -> None:
    api.post(f"/images/{options['image']}/tag", repo="rdm-test/moving", tag="1")
    moving = {**options, "image": "rdm-test/moving:1"}
    up(moving)
    was = found(api)["Image"]
    api.post("/commit", {"Cmd": ["true"]}, container="rdm", repo="rdm-test/moving", tag="1")
    assert up(moving, check=True)["actions"] == ["replace"]
    # The role images will move it back.
    assert up(moving, check=True, image_comes=was)["actions"] == []
    assert up(moving)["actions"] == ["replace"]
    assert found(api)["Image"] != was
    assert up(moving, check=True, image_comes=was)["actions"] == ["replace"]


def test_a_recreated_network_is_joined_again(api: DockerAPI, options: Options) -> None:
    up(options)
    disconnect(api, "fabric")
    api.delete("/networks/fabric")
    subnet = {"Name": "fabric", "IPAM": {"Config": [{"Subnet": f"{NET}.0/24"}]}}
    api.post("/networks/create", subnet)
    assert up(options)["actions"] == ["replace"]
    assert found(api)["NetworkSettings"]["Networks"]["fabric"]["IPAddress"] == MY_IP


@pytest.mark.parametrize(
    "refused",
    [
        {"security_opts": ["no-such-option=1"]},
        {"devices": ["/dev/no-such-device"]},
        {"command": ["no-such-program"]},
        {"command": ["sh", "-c", "echo no such device; exit 3"]},
    ],
    ids=["when it is created", "its device", "its program", "by itself"],
)
def test_the_old_container_stays_until_its_successor_works(
    api: DockerAPI, options: Options, refused: Options
) -> None:
    up(options)
    before = found(api)
    for _ in range(2):
        with pytest.raises(Failed, match=r"no.such"):
            up(options, **refused)
        assert names(api) == ["/rdm"]
        now = found(api)
        assert (now["Id"], now["State"]["Status"]) == (before["Id"], "running")
        assert now["NetworkSettings"]["Networks"]["fabric"]["IPAddress"] == MY_IP
    assert not up(options)["changed"]


def test_stopped_container_is_restored_when_its_successor_fails(api: DockerAPI, options: Options) -> None:
    up(options)
    before = found(api)["Id"]
    api.post("/containers/rdm/stop", t=0)
    # A run that is killed while it replaces the container leaves this, too.
    api.post("/containers/rdm/update", {"RestartPolicy": {"Name": "no"}})
    with pytest.raises(Failed, match="place of another, which is there again"):
        up(options, devices=["/dev/no-such-device"])
    assert (found(api)["Id"], names(api)) == (before, ["/rdm"])
    assert up(options)["actions"] == ["start"], "it has the policy again, too"


def test_a_job_that_has_just_started_is_protected(api: DockerAPI, options: Options, tmp_path: Path) -> None:
    up(options)
    before = found(api)
    with (tmp_path / "jobs" / "gpt" / ".agent.n1.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mounted = tmp_path / "etc"
        ends: list[Options] = [{"env": {}}, {"directories": [{"path": str(mounted)}]}]
        for other in ends:
            assert up(options, check=True, **other)["running"] == ["gpt"]
            with pytest.raises(Failed, match="the job gpt has started in it: run it again when it has ended"):
                up(options, **other)
        assert not mounted.exists()
        now = found(api)
        assert (now["Id"], now["State"]["StartedAt"]) == (before["Id"], before["State"]["StartedAt"])
        assert names(api) == ["/rdm"]
        # Changes that end nothing are made.
        api.post("/containers/rdm/update", {"RestartPolicy": {"Name": "no"}})
        assert up(options)["actions"] == ["update"]
        assert up(options, env={}, protect_jobs=False)["actions"] == ["replace"]


@pytest.mark.parametrize("step", range(7))
def test_the_next_run_repairs_one_that_was_killed_between_two_steps(
    api: DockerAPI, options: Options, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are the changing requests: create, stop, update, rename, rename, start, remove."""
    up(options)
    taken: list[str] = []

    def until_killed(call: Any) -> Any:
        def one(self: DockerAPI, path: str, *arguments: Any, **query: Any) -> Any:
            if len(taken) == step:
                raise Killed
            taken.append(path)
            return call(self, path, *arguments, **query)

        return one

    with monkeypatch.context() as patch:
        patch.setattr(DockerAPI, "post", until_killed(DockerAPI.post))
        patch.setattr(DockerAPI, "delete", until_killed(DockerAPI.delete))
        with pytest.raises(Killed):
            up(options, env={})
    left = names(api)
    up(options, check=True, env={})
    assert names(api) == left
    up(options, env={})
    assert names(api) == ["/rdm"]
    now = found(api)
    assert now["State"]["Status"] == "running"
    assert now["NetworkSettings"]["Networks"]["fabric"]["IPAddress"] == MY_IP
    assert not any(line.startswith("NOTE=") for line in now["Config"]["Env"] or [])
    again = up(options, env={})
    assert (again["changed"], again["actions"]) == (False, [])


def test_leftover_containers_are_removed_with_the_others(api: DockerAPI, options: Options) -> None:
    up(options)
    for name in ("rdm.next", "rdm.old"):
        spec = {"Image": options["image"], "Labels": labels("c", "container")}
        api.post("/containers/create", spec, name=name)
    assert up(options, check=True)["actions"] == ["remove rdm.next", "remove rdm.old"]
    result = run_module(docker_owned, {"cluster": "c", "role": "container", "stop_timeout": 0})
    assert result["removed"] == ["rdm", "rdm.next", "rdm.old"]


def test_foreign_containers_stay(api: DockerAPI, options: Options) -> None:
    api.post("/containers/create", {"Image": options["image"]}, name="rdm")
    for check in (True, False):
        with pytest.raises(Failed, match="container rdm is not ours"):
            up(options, check=check)
    api.delete("/containers/rdm")
    up(options)
    api.post("/containers/create", {"Image": options["image"]}, name="rdm.next")
    with pytest.raises(Failed, match=r"rdm\.next"):
        up(options, env={})
    assert found(api)["State"]["Status"] == "running"
    assert names(api) == ["/rdm", "/rdm.next"]


def watch(**more: Any) -> dict[str, Any]:
    """A watch of a state file, empty except for the given keys."""
    none: dict[str, Any] = {name: [] for name in WATCH}
    return {**none, "cluster": "c", "job_directory": "", "system": False, "paths": {}, "plugin": {}, **more}


def test_files_are_written_before_it_starts_and_a_state_file_when_it_is_ready(
    api: DockerAPI, options: Options, tmp_path: Path
) -> None:
    home = tmp_path / "etc"
    files: Options = {
        "owner_markers": [{"path": str(home / "cluster"), "name": "c"}],
        "directories": [{"path": str(home)}],
        "files": [
            {"path": str(home / "key"), "secret_content": "hush", "mode": "0600"},
            {"path": str(home / "nodes"), "content": f"n1 {NET}.9\n"},
        ],
        "volumes": [*options["volumes"], f"{home}:/etc/home:ro"],
    }
    kept = {"worked": ["container"], "inputs": {"container": "1"}, "hardware": "none"}
    files["state_file"] = {**kept, "directory": str(home), "watch": watch(config_dirs=[str(home)])}
    predicted = up(options, check=True, **files)
    assert not home.exists()
    done = up(options, **files)
    written = [str(home), *(str(home / name) for name in ("key", "nodes", "cluster"))]
    assert (done["changed"], done["paths"], done["actions"]) == (True, written, ["make"])
    assert {key: predicted[key] for key in ("paths", "actions", "diff")} == {
        key: done[key] for key in ("paths", "actions", "diff")
    }
    assert "hush" not in str(done)
    assert read(str(home))["inputs"] == {"container": "1"}
    before = found(api)["State"]["StartedAt"]

    (home / "nodes").write_text("stray\n")
    again = up(options, **files)
    assert (again["paths"], again["actions"]) == ([str(home / "nodes")], [])
    assert found(api)["State"]["StartedAt"] == before
    assert not up(options, **files)["changed"]

    with pytest.raises(Failed, match="belongs to the cluster c"):
        up(options, **{**files, "owner_markers": [{"path": str(home / "cluster"), "name": "other"}]}, env={})
    # Then its mount shows the old directory.
    shutil.rmtree(home)
    assert up(options, **files)["actions"] == ["restart"]


def test_no_state_file_is_kept_of_a_container_that_does_not_come_up(options: Options, tmp_path: Path) -> None:
    (tmp_path / "cluster").write_text("c")
    kept = {"worked": [], "inputs": {}, "watch": watch(), "hardware": ""}
    with pytest.raises(Failed, match="status 3"):
        up(options, command=["sh", "-c", "exit 3"], state_file={**kept, "directory": str(tmp_path)})
    assert not (tmp_path / "state.json").exists()


def test_container_resolves_all_node_names_after_changes_and_restarts(
    api: DockerAPI, options: Options, tmp_path: Path
) -> None:
    role = Path(__file__).parents[2] / "roles" / "container" / "files"
    home = tmp_path / "etc"
    start = ["sh", "/etc/rdm/ssh/start", *options["command"]]

    def cluster(address_map: str) -> Options:
        return {
            "command": start,
            "directories": [{"path": str(home)}, {"path": str(home / "ssh")}],
            "files": [
                {"path": str(home / "ssh/config"), "ssh_client_config": {"address_map": address_map}},
                *(
                    {"path": str(home / f"ssh/{name}"), "content": (role / f"{name}.sh").read_text()}
                    for name in ("start", "hosts")
                ),
            ],
            "volumes": [*options["volumes"][:1], f"{home}:/etc/rdm:ro"],
        }

    def known() -> list[str]:
        lines = Path(found(api)["HostsPath"]).read_text().splitlines()
        return [line.split(" ")[1] for line in lines if line.startswith(NET) and " " in line]

    def since() -> str:
        return str(found(api)["State"]["StartedAt"])

    two = cluster(f"n1 {MY_IP}\nn2 {NET}.10\n")
    assert up(options, **two)["actions"] == ["make"]
    assert known() == ["n1", "n2"]
    assert not up(options, **two)["changed"]
    before = since()

    three = cluster(f"n1 {MY_IP}\nn2 {NET}.10\nn3 {NET}.11\n")
    predicted = up(options, check=True, **three)
    assert known() == ["n1", "n2"]
    done = up(options, **three)
    assert predicted["actions"] == done["actions"] == ["name nodes"]
    assert any(f"{NET}.11 n3" in part["after"] for part in predicted["diff"] if "after_header" in part)
    assert (known(), since()) == (["n1", "n2", "n3"], before)

    watched = watch(config_dirs=[])
    seen = observe(watched, "none", api)
    api.exec("rdm", ["sh", "-c", "grep -v n3 /etc/hosts > /tmp/hosts; cat /tmp/hosts > /etc/hosts"], 60)
    assert drift(seen, observe(watched, "none", api)) == {
        "container": ["the container rdm (names of nodes) has changed"]
    }
    assert up(options, **three)["actions"] == ["name nodes"]
    assert observe(watched, "none", api) == seen

    api.post("/containers/rdm/restart", t=0)
    wait_until("it knows all nodes", known, lambda names: names == ["n1", "n2", "n3"])
    assert not up(options, **three)["changed"]

"""What the engine would refuse later is refused before, all at once, with hints."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.container_options import (
    MOUNT_OPTIONS,
    container_problems,
    missing_over_ssh,
    own_memory,
    unlabelled_volumes,
)
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"volumes": ["/data:/data"]}, []),
        ({"volumes": ["/data:/data"], "shm_size": "64G"}, ["/data"]),
        ({"volumes": ["/data:/data"], "ipc_mode": "private"}, ["/data"]),
        ({"volumes": "/data:/data,/m:/m:z", "ipc_mode": "private"}, ["/data"]),
        ({"volumes": ["/data:/data:ro,z", "/m:/m:ro", "name:/n"], "ipc_mode": "private"}, ["/m"]),
        ({"volumes": ["/m:/m"], "ipc_mode": "private", "security_opts": ["label=disable"]}, []),
        ({}, []),
    ],
)
def test_mounts_that_selinux_would_have_to_allow(options: dict[str, Any], found: list[str]) -> None:
    assert unlabelled_volumes({**dict.fromkeys(MOUNT_OPTIONS), **options}) == found


@pytest.mark.parametrize("value", ['{"key": "s3cret"}', "s3cret\\", "s3cret\nline"])
def test_values_that_commands_over_ssh_do_not_get_are_named_without_the_value(value: str) -> None:
    options = {"container_env": {"GOOD": "it's a $plain one", "COUNT": 3, "ODD": value}}
    (warning,) = missing_over_ssh("n1", options)
    assert warning.sentence == (
        "container_env ODD has a double quote, a backslash or a newline in its value, and commands over ssh "
        "do not get it: use `rdm-provision exec`, which gets it, or keep the value in a file"
    )
    assert missing_over_ssh("n1", {**options, "container_sshd": False}) == []
    assert missing_over_ssh("n1", {}) == []


def sentences(**options: Any) -> list[str]:
    return [problem.sentence for problem in container_problems("n1", options)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"container_shm_size": ""},
        {"container_shm_size": "64G", "container_ipc_mode": "private"},
        {"container_shm_size": 1024},
        {"container_ssh_port": "2222"},
        {"container_stop_timeout": 900, "container_ready_timeout": 0},
        {"container_env": {"NCCL_DEBUG": "INFO", "EMPTY": "", "N": 4, "RATE": 0.5}},
        {"container_env": "A=B"},
        {"container_volumes": ["/data:/data", "/scratch:/tmp/scratch:ro,z", "cache:/root/.cache", "~/x:/x/"]},
        {"container_volumes": "/data:/data,/more:/more"},
        {"container_ulimits": ["memlock:-1:-1", "nofile:1048576"]},
        {"container_devices": ["/dev/fuse", "/dev/kfd:/dev/kfd:rw"]},
        {"container_capabilities": ["IPC_LOCK", "cap_sys_nice", "ALL"]},
        {"container_capabilities": "IPC_LOCK,CAP_SYS_NICE"},
        {"container_volumes": None, "container_env": None},
        {"container_hostname": "node_1.example.org"},
        {"job_directory": ""},
        {"job_directory": "/mnt", "container_job_directory": "/data/a b/%n/jobs/"},
        {"job_directory": "~/jobs"},
        {"job_directory": "~ops/jobs"},
    ],
)
def test_options_that_the_engine_accepts_pass(options: dict[str, Any]) -> None:
    assert sentences(**options) == []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("container_hostname", "n" * 65, f"{'n' * 65} has 65 characters, and a host name 64 at most: set"),
        ("container_hostname", "a b", "'a b' is not a host name"),
        ("job_directory", "jobs", "'jobs' is not a usable directory: give an absolute path"),
        ("job_directory", "/a:b", "'/a:b' is not a usable directory"),
        (
            "job_directory",
            "/",
            "'/' is a directory of the operating system: give jobs a directory of their own",
        ),
        ("container_job_directory", "/home/", "'/home/' is a directory of the operating system"),
        ("container_shm_size", "lots", "lots is not a size: write a number with K, M, G or T"),
        ("container_shm_size", "0", "is not a size"),
        ("container_shm_size", "64Gi", "is not a size"),
        ("container_ssh_port", 70000, "70000 is not a port"),
        ("container_ssh_port", 0, "is not a port"),
        ("container_stop_timeout", -1, "is not a time"),
        ("container_env", {"": "x"}, "'' is not the name of an environment variable"),
        ("container_env", {"A=B": "x"}, "'A=B' is not the name"),
        ("container_env", {"A B": "x"}, "'A B' is not the name"),
        ("container_env", {True: "x"}, "True is not the name"),
        ("container_env", {"MY_IP": "10.0.0.1"}, "MY_IP is what the plan gives each container"),
        ("container_env", {"MASTER_ADDR": "n1"}, "MASTER_ADDR is what the plan"),
        ("container_env", {"MASTER_ADDR": "n1"}, "pin the master's my_ip in the inventory"),
        ("container_env", {"DEBUG": True}, "DEBUG has a truth value for a value"),
        ("container_env", {"DEBUG": None}, "DEBUG has nothing for a value"),
        ("container_env", {"DEBUG": ["a"]}, "DEBUG has a structure for a value"),
        ("container_volumes", ["/data"], "'/data' is not a mount"),
        ("container_volumes", ["/data:data"], "is not a mount"),
        ("container_volumes", ["/a:/b:ro:z"], "is not a mount"),
        ("container_volumes", ["da/ta:/data"], "which is neither a path nor a volume's name"),
        ("container_volumes", ["/a:/b:readonly"], "has the mode 'readonly'"),
        ("container_volumes", ["/a:/b:ro,rw"], "has the mode 'ro,rw'"),
        ("container_volumes", ["/a:/"], "would hide the whole image"),
        ("container_volumes", ["/a:/jobs"], "mounts on /jobs, where the cluster's own files are"),
        ("container_volumes", ["/a:/data", "/b:/data/"], "mounts on /data, where those of '/a:/data' are"),
        ("container_ulimits", ["memlock"], "'memlock' is not a limit"),
        ("container_devices", ["dev/fuse"], "'dev/fuse' is not a device"),
        ("container_capabilities", ["IPC_LOK"], "'IPC_LOK' is no capability of Linux"),
        ("container_capabilities", ["CAP_ALL"], "'CAP_ALL' is no capability of Linux"),
        ("sriov_capabilities", ["NET_ADMIN", "IPC_LOK"], "'IPC_LOK' is no capability of Linux"),
    ],
)
def test_options_that_the_engine_would_refuse_are_named(name: str, value: Any, words: str) -> None:
    (sentence,) = sentences(**{name: value})
    assert sentence.startswith(f"{name} ")
    assert words in sentence


def test_everything_is_reported_at_once() -> None:
    found = sentences(
        container_shm_size="x", container_env={"": "1", "MY_IP": "2"}, container_volumes=["/a:/b:q", "c"]
    )
    assert len(found) == 5


def test_a_size_of_its_own_and_the_nodes_memory_exclude_each_other() -> None:
    (sentence,) = sentences(container_shm_size="1G", container_ipc_mode="host")
    assert "has no effect with container_ipc_mode host" in sentence


@pytest.mark.parametrize(
    ("shm_size", "ipc_mode", "size"),
    [
        (None, None, None),
        ("", "host", None),
        ("64M", None, 64 << 20),
        (1024, "private", 1024),
        ("", "private", 1 << 30),  # that or more, as the node has
        (None, "shareable", 1 << 30),
    ],
)
def test_scope_of_shared_memory(shm_size: Any, ipc_mode: str | None, size: int | None) -> None:
    assert own_memory(shm_size, ipc_mode) == size


@given(st.dictionaries(st.text(max_size=6), st.text(max_size=6), max_size=3))
def test_an_environment_that_is_let_through_can_be_written_as_lines(env: dict[str, str]) -> None:
    if not sentences(container_env=env):
        lines = [f"{name}={value}" for name, value in env.items()]
        assert {line.partition("=")[0]: line.partition("=")[2] for line in lines} == env

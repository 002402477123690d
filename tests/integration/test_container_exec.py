"""container_exec with a real engine: the right container, unchanged arguments, clear failures."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import remove_container
from ansible_collections.rdm.provision.plugins.modules import container_exec

from tests.integration.engine import Engine
from tests.unit.plugins.modules.running import Failed, run_module

CLUSTER = "exec-test"


@pytest.fixture(scope="module")
def container(engine: Engine, busybox_image: str) -> Iterator[str]:
    """A running training container of CLUSTER, and one of another cluster."""
    names = {"exec-ours": CLUSTER, "exec-theirs": "another"}
    for name, cluster in names.items():
        labels = {"rdm.provision.cluster": cluster, "rdm.provision.role": "container"}
        spec = {
            "Image": busybox_image,
            "Cmd": ["/bin/busybox", "sleep", "1000"],
            "Env": [f"NAME={name}"],
            "Labels": labels,
            "HostConfig": {"NetworkMode": "none", "Init": True},
        }
        engine.api.post("/containers/create", spec, name=name)
        engine.api.post(f"/containers/{name}/start")
    yield "exec-ours"
    for name in names:
        remove_container(engine.api, name)


@pytest.fixture(autouse=True)
def this_engine(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{engine.socket}")


def run(*argv: str, **options: Any) -> dict[str, Any]:
    words = ["/bin/busybox", *argv]
    return run_module(container_exec, {"cluster": CLUSTER, "argv": words, **options})


def test_the_container_is_found_by_its_labels(container: str) -> None:
    result = run("sh", "-c", "echo $NAME")
    assert result["container"] == container
    assert (result["rc"], result["stdout"], result["stderr"]) == (0, f"{container}\n", "")
    assert result["changed"]


def test_arguments_reach_the_command_unchanged(container: str) -> None:
    words = ["a 'b' \"c\"", "$(id) `id`", "two\nlines", "", "é"]
    assert run("printf", "%s|", *words)["stdout"] == "".join(f"{word}|" for word in words)


def test_output_is_kept_apart_and_need_not_be_text(container: str) -> None:
    result = run("sh", "-c", "printf '\\377x'; echo oops >&2")
    assert (result["stdout"], result["stderr"]) == ("\ufffdx", "oops\n")


def test_standard_input_is_passed_on_or_empty(container: str) -> None:
    given = b"two\nlines\xff\0"
    result = run("md5sum", stdin=base64.b64encode(given).decode())["stdout"]
    assert result.split()[0] == hashlib.md5(given).hexdigest()
    assert run("cat")["stdout"] == ""


def test_another_user(container: str) -> None:
    assert run("id", "-u", user="65534")["stdout"] == "65534\n"


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["/bin/busybox", "sh", "-c", "exit 3"], "exit code 3"),
        (["/no/such/program", "x"], 'it cannot be run: "/no/such/program": .*no such file'),
        (["nosuch"], 'it cannot be run: "nosuch": executable file not found'),
        (["/bin/busybox", "sh", "-c", "exit 127"], "exit code 127"),
    ],
)
def test_a_command_that_fails(container: str, argv: list[str], sentence: str) -> None:
    with pytest.raises(Failed, match=sentence):
        run_module(container_exec, {"cluster": CLUSTER, "argv": argv})


def test_a_command_that_takes_too_long(container: str) -> None:
    with pytest.raises(Failed, match="did not finish within"):
        run("sleep", "1000", timeout=0.5)


def test_no_command(container: str) -> None:
    with pytest.raises(Failed, match="argv is empty"):
        run_module(container_exec, {"cluster": CLUSTER, "argv": []})


def test_no_container_of_this_cluster(container: str) -> None:
    with pytest.raises(Failed, match="no training container of cluster nobody"):
        run_module(container_exec, {"cluster": "nobody", "argv": ["true"]})


def test_a_container_that_does_not_run(engine: Engine, container: str) -> None:
    engine.api.post(f"/containers/{container}/kill")
    try:
        with pytest.raises(Failed, match="does not run"):
            run("true")
    finally:
        engine.api.post(f"/containers/{container}/start")


def test_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(Failed, match=r"/nowhere/docker\.sock"):
        run("true")

"""On a real engine: only ours is removed, and a container that does not start reports why."""

from __future__ import annotations

import socketserver
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.container import readiness
from ansible_collections.rdm.provision.plugins.module_utils.docker import ownership
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import labels, last_words
from ansible_collections.rdm.provision.plugins.modules import container_ready, docker_owned, node_files

from tests.integration.engine import Engine
from tests.integration.images import import_image, ssh_rootfs
from tests.unit.plugins.modules.running import Failed, run_module

START = Path(__file__).parents[2] / "roles" / "container" / "files" / "start.sh"


class Node:
    """A node: an engine with containers and networks."""

    def __init__(self, engine: Engine, image: str) -> None:
        self.api: DockerAPI = engine.api
        self.image = image

    def network(self, name: str, of: dict[str, str] | None = None) -> None:
        """Make a network."""
        spec = {"Name": name, "Driver": "bridge", "Internal": True, "Labels": of or {}}
        self.api.post("/networks/create", spec)

    def run(
        self, name: str, argv: list[str], of: dict[str, str] | None = None, network: str = "none", **more: Any
    ) -> str:
        """Start a container; return its id."""
        host = {"NetworkMode": network, "Init": True, **more.pop("HostConfig", {})}
        spec = {"Image": self.image, "Cmd": argv, "Labels": of or {}, "HostConfig": host, **more}
        made: str = self.api.post("/containers/create", spec, name=name)["Id"]
        self.api.post(f"/containers/{made}/start")
        return made

    def names(self) -> set[str]:
        """All containers, and all networks but Docker's own."""
        containers = {one["Names"][0].lstrip("/") for one in self.api.get("/containers/json", all=True)}
        networks = {one["Name"] for one in self.api.get("/networks")}
        return containers | networks - {"bridge", "host", "none"}


@pytest.fixture
def node(engine: Engine, busybox_image: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{engine.socket}")
    yield Node(engine, busybox_image)
    engine.clear()


SLEEP = ["sleep", "1000"]


def owned(role: str, *, check: bool = False, **params: Any) -> list[str]:
    """Run docker_owned for the cluster c; return what it removed."""
    given = {"cluster": "c", "role": role, "stop_timeout": 0, **params}
    result = run_module(docker_owned, given, check=check)
    assert result["changed"] == bool(result["removed"])
    removed: list[str] = result["removed"]
    return removed


def test_only_labelled_objects_are_removed(node: Node) -> None:
    node.network("net", labels("c", "network"))
    node.network("foreign-net")
    node.network("neighbour-net", labels("d", "network"))
    node.run("rdm", SLEEP, labels("c", "container"), "net")
    node.run("renamed", SLEEP, labels("c", "container"))
    node.run("neighbour", SLEEP, labels("d", "container"))
    node.run("foreign", SLEEP)
    before = node.names()
    assert owned("container", check=True) == ["rdm", "renamed"]
    assert owned("network", check=True) == ["net"]
    assert node.names() == before
    assert owned("container") == ["rdm", "renamed"]
    assert owned("network") == ["net"]
    assert node.names() == {"foreign-net", "neighbour-net", "neighbour", "foreign"}
    assert owned("container") == owned("network") == owned("plugin") == []


def test_files_under_a_former_host_name_are_removed_with_the_container(node: Node, tmp_path: Path) -> None:
    """Without root the directory has the host's name; `down` knows only the new one."""
    old, other = tmp_path / ".rdm" / "old", tmp_path / ".rdm" / "other"
    for directory in (old, other):  # the other's node shares the home
        owner_marker = {"path": str(directory / "cluster"), "name": "c"}
        key = {"path": str(directory / "ssh/id_ed25519"), "secret_content": "k", "mode": "0600"}
        made = {
            "owner_marker": owner_marker,
            "directories": [{"path": str(directory / "ssh")}],
            "files": [key],
        }
        run_module(node_files, made)
    binds = [f"{old}:/etc/rdm:ro"]
    node.run("rdm", SLEEP, labels("c", "container"), HostConfig={"Binds": binds})
    now = str(tmp_path / ".rdm" / "new")
    removed = owned("container", check=True, config_dir=now)
    assert (removed[0], str(old / "ssh/id_ed25519") in removed, old.exists()) == ("rdm", True, True)
    assert owned("container", config_dir=now) == removed
    assert (old.exists(), (other / "ssh/id_ed25519").exists()) == (False, True)


def test_a_container_may_take_longer_to_end_than_the_engine_may_be_silent(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Less than the container takes to end, and more than a busy engine takes for all else.
    monkeypatch.setattr(docker_owned, "_TIMEOUT", 15.0)
    node.run("rdm", ["sh", "-c", "trap '' TERM; while true; do sleep 1; done"], labels("c", "container"))
    assert owned("container", stop_timeout=16) == ["rdm"]
    assert node.names() == set()


@pytest.mark.parametrize("disconnect", [True, False])
@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
def test_network_with_a_foreign_container_and_our_containers_stay(
    node: Node, running: bool, disconnect: bool
) -> None:
    node.network("net", labels("c", "network"))
    node.run("rdm", SLEEP, labels("c", "container"), "net")
    foreign = node.run("foreign", SLEEP, network="net")
    if not running:
        node.api.post(f"/containers/{foreign}/stop", t=0)
    before = node.names()
    with pytest.raises(Failed, match="network net stays: foreign containers are on it: foreign;"):
        owned("network", disconnect=disconnect)
    assert node.names() == before


@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
def test_replaced_network_is_removed_and_our_containers_stay_stopped(node: Node, running: bool) -> None:
    node.network("net", labels("c", "network"))
    node.network("other", labels("c", "network"))
    mine = node.run("rdm", SLEEP, labels("c", "container"), "net")
    node.run("rdm2", SLEEP, labels("c", "container"), "other")
    if not running:
        node.api.post(f"/containers/{mine}/stop", t=0)
    assert owned("network", name="net", disconnect=True) == ["net"]
    assert node.names() == {"rdm", "rdm2", "other"}
    left = node.api.get(f"/containers/{mine}/json")
    assert (left["State"]["Running"], left["NetworkSettings"]["Networks"]) == (False, {})
    with pytest.raises(Failed, match="the cluster's containers are on it: rdm2"):
        owned("network")


def test_the_plugin_stays_as_long_as_a_network_needs_it(node: Node) -> None:
    node.network("foreign-net")
    node.run("plugin", SLEEP, labels("c", "plugin"))
    with pytest.raises(Failed, match=r"container plugin stays: .* driver bridge need it: .*foreign-net"):
        owned("plugin", driver="bridge")
    assert owned("plugin", driver="sriov") == ["plugin"]


def test_a_stopped_plugin_is_started_for_the_removal(node: Node) -> None:
    plugin = node.run("plugin", SLEEP, labels("c", "plugin"))
    node.api.post(f"/containers/{plugin}/kill")
    assert owned("network") == []
    assert node.api.get(f"/containers/{plugin}/json")["State"]["Running"]


def test_a_started_plugin_is_queried_at_the_given_socket(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    queried: list[str] = []
    monkeypatch.setattr(docker_owned, "plugin_answers", queried.append)
    for socket, expected in (("", "/run/docker/plugins/bridge.sock"), ("/run/other.sock", "/run/other.sock")):
        plugin = node.run(f"plugin-{len(queried)}", SLEEP, labels("c", "plugin"))
        node.api.post(f"/containers/{plugin}/kill")
        node.network("net", labels("c", "network"))
        assert owned("network", socket=socket) == ["net"]
        assert queried[-1] == expected


def test_a_node_without_an_engine_has_nothing_to_remove(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(Failed, match="no Docker Engine answers"):
        owned("container")  # dockerd is installed here: it may have containers, though it does not answer
    monkeypatch.setattr(ownership, "_PROGRAMS", str(tmp_path))
    assert owned("container") == []


# ---- container_ready


def ready(name: str, **params: Any) -> dict[str, Any]:
    return run_module(container_ready, {"name": name, "cluster": "c", "timeout": 240, **params})


@pytest.fixture
def just_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every container count as just started, however slow this machine is."""
    monkeypatch.setattr(readiness, "up_for", lambda _container: 0.0)


@pytest.fixture
def plugin_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], str]]:
    """Start a plugin with the same answer to every request; return its socket."""
    monkeypatch.setattr(ownership, "_PLUGIN_TIMEOUT", 120.0)
    servers = []

    def start(answer: bytes) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

            def address_string(self) -> str:
                return "test"

        server = socketserver.UnixStreamServer(str(tmp_path / "plugin.sock"), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return str(tmp_path / "plugin.sock")

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_container_ready_waits_for_the_line_and_the_plugin(
    node: Node, plugin_socket: Callable[[bytes], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []

    def last(*arguments: Any, **options: Any) -> str:
        """Make the container ready at the third check."""
        results.append(last_words(*arguments, **options))
        if len(results) == 3:
            (tmp_path / "go").touch()
        return results[-1]

    monkeypatch.setattr(readiness, "last_words", last)
    script = "echo starting; until test -e /there/go; do sleep 0.1; done; echo 'Ready to accept.' >&2"
    node.run(
        "our",
        ["sh", "-c", f"{script}; sleep 1000"],
        labels("c", "plugin"),
        HostConfig={"Binds": [f"{tmp_path}:/there:ro"]},
    )
    socket = plugin_socket(b'{"Scope": "local"}')
    ready("our", ready_line="Ready to accept.", socket=socket)
    assert ["Ready to accept." in seen for seen in results] == [False] * (len(results) - 1) + [True]
    assert len(results) > 3
    results.clear()
    ready("our", ready_line="Ready to accept.", socket=socket)
    assert len(results) == 1


@pytest.mark.usefixtures("just_started")
def test_logs_before_a_containers_last_start_do_not_count(node: Node) -> None:
    container = node.run(
        "our", ["sh", "-c", "test -e /started && sleep 1000; touch /started; echo Ready; sleep 1000"]
    )
    ready("our", ready_line="Ready")
    node.api.post(f"/containers/{container}/restart", t=0)
    with pytest.raises(Failed, match=r"is not ready after 1 s: it has not written 'Ready'"):
        ready("our", ready_line="Ready", timeout=1)


def test_container_up_for_long_needs_no_ready_line(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.run("our", SLEEP)
    with monkeypatch.context() as patch:
        patch.setattr(readiness, "up_for", lambda _container: 0.0)
        with pytest.raises(Failed, match="has not written"):
            ready("our", ready_line="Ready", timeout=1)
    # By now it has been up for longer than that.
    ready("our", ready_line="Ready", timeout=1)


@pytest.mark.parametrize("policy", ["no", "unless-stopped"])
def test_container_that_ends_is_reported_with_its_last_log_lines(
    node: Node, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.run(
        "our",
        ["sh", "-c", "echo one; echo 'no such device' >&2; exit 3"],
        HostConfig={"RestartPolicy": {"Name": policy}},
    )
    monkeypatch.setattr(readiness, "_WORDS_TIMEOUT", 120.0)
    with pytest.raises(Failed, match=r"container our ended with status 3; its last output: .*no such device"):
        ready("our", ready_line="Ready", timeout=240)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b'{"Implements": ["VolumeDriver"]}', "not a network driver's"),
        (b"what?", "does not answer"),
        (b"[]", "not as a plugin does"),
    ],
)
def test_socket_with_another_answer_is_not_ready(
    node: Node, plugin_socket: Callable[[bytes], str], answer: bytes, why: str
) -> None:
    node.run("our", SLEEP)
    with pytest.raises(Failed, match=why):
        ready("our", socket=plugin_socket(answer), timeout=1)


def test_names_and_sockets_of_others_are_refused(node: Node, plugin_socket: Callable[[bytes], str]) -> None:
    assert "waited" in ready("our", state="unclaimed", socket="/nowhere/plugin.sock")
    socket = plugin_socket(b"{}")
    node.run("their-plugin", SLEEP, HostConfig={"Binds": [f"{Path(socket).parent}:/run/docker/plugins"]})
    with pytest.raises(
        Failed, match=r"something else serves .*plugin.sock already \(container their-plugin\)"
    ):
        ready("our", state="unclaimed", socket=socket)
    with pytest.raises(Failed, match="container their-plugin is not ours"):
        ready("their-plugin", state="unclaimed")
    node.run("our", SLEEP, labels("c", "plugin"))
    assert "waited" in ready("our", state="unclaimed", socket=socket)


# ---- what the training container runs


def started(
    node: Node, tmp_path: Path, environment: dict[str, str], *command: str, sshd: bool = True
) -> tuple[int, str]:
    """Run start.sh in a container whose sshd only prints its configuration."""
    (tmp_path / "ssh").mkdir(exist_ok=True)
    (tmp_path / "ssh" / "start").write_bytes(START.read_bytes())
    (tmp_path / "ssh" / "sshd_config").write_text("Port 22\n")
    (tmp_path / "sbin").mkdir(exist_ok=True)
    if sshd:
        (tmp_path / "sbin" / "sshd").write_text(
            f'#!/bin/sh\n{REVIVED}; echo "$@"; cat "$4"; readlink /etc/ssh/ssh_config; umask\n'
            'stat -c "%a %n" /run/sshd "$(dirname "$4")" "$4"\n'
        )
        (tmp_path / "sbin" / "sshd").chmod(0o755)
    name = node.run(
        "rdm",
        ["sh", "/etc/rdm/ssh/start", *command],
        Env=[f"{key}={value}" for key, value in environment.items()],
        HostConfig={"Binds": [f"{tmp_path}:/etc/rdm:ro", f"{tmp_path}/sbin:/usr/sbin:ro"]},
    )
    status = node.api.post(f"/containers/{name}/wait")["StatusCode"]
    logs = subprocess.run(
        ["docker", "logs", "rdm"], check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return status, logs.stdout


def test_ssh_uses_the_images_configuration_of_any_owner(engine: Engine, node: Node, tmp_path: Path) -> None:
    """In a container without userns-remap, the image's files belong to a remapped user."""
    settings = {
        "ssh_config": b"Include /etc/ssh/ssh_config.d/*.conf\n",
        "ssh_config.d/site.conf": b"Host gate\n  HostName 10.9.9.9\n",
    }
    import_image(engine.api, "rdm-test/ssh:1", ssh_rootfs(100_000, settings))
    node.image = "rdm-test/ssh:1"
    for name, text in {
        "ssh/start": START.read_text(),
        "ssh/sshd_config": "",
        "ssh/config": "Host *\n  Include /etc/ssh/ssh_config.image\n",
        "sbin/sshd": "#!/bin/sh\nstat -c 'owner %u' /run/sshd\nexec ssh -G gate\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    binds = [f"{tmp_path}:/etc/rdm:ro", f"{tmp_path}/sbin:/usr/sbin:ro"]
    made = node.run("rdm", ["sh", "/etc/rdm/ssh/start"], HostConfig={"Binds": binds})
    status = node.api.post(f"/containers/{made}/wait")["StatusCode"]
    last = last_words(node.api, node.api.get(f"/containers/{made}/json"), ever=True)
    assert (status, "owner 0\n" in last, "hostname 10.9.9.9\n" in last) == (0, True, True), last


def test_a_session_has_the_containers_environment_and_no_value_reaches_a_shell(
    node: Node, tmp_path: Path
) -> None:
    status, logs = started(
        node,
        tmp_path,
        {
            "MY_IP": "10.0.0.1",
            "NOTE": "a 'b' $(touch /etc/pwned) `id` # ; *",
            "LINES": "one\nEVIL=two",
            "QUOTED": 'say "so"',
            "SLASH": "a\\b",
            "EMPTY": "",
        },
    )
    assert status == 0
    first, *rest = logs.splitlines()
    assert first == "-D -e -f /run/rdm/sshd_config"
    assert rest[0] == "Port 22"
    words = rest[1]
    assert words.startswith("SetEnv ")
    assert '"MY_IP=10.0.0.1"' in words
    assert '"EMPTY="' in words
    assert "\"NOTE=a 'b' $(touch /etc/pwned) `id` # ; *\"" in words
    assert all(name not in words for name in ("LINES", "EVIL", "QUOTED", "SLASH", "HOME"))
    assert rest[2] == "/etc/rdm/ssh/config"
    assert rest[3] == "0022"  # sessions have sshd's
    assert rest[4:] == ["755 /run/sshd", "700 /run/rdm", "600 /run/rdm/sshd_config"]


def test_image_without_sshd_is_reported(node: Node, tmp_path: Path) -> None:
    status, logs = started(node, tmp_path, {}, sshd=False)
    assert status == 78
    assert logs == "this image has no sshd: install openssh-server in it, or set container_sshd: false\n"


REVIVED = "until [ ! -e /etc/rdm/trainer ] || [ -e /revived ]; do sleep 0.1; done"


@pytest.mark.parametrize("command", [(), ("sh", "-c", f"{REVIVED}; echo in place of an sshd")])
@pytest.mark.parametrize("end", ["exec sleep 1000", "exit 3"])
def test_agents_are_restarted_without_delaying_the_container(
    node: Node, tmp_path: Path, command: tuple[str, ...], end: str
) -> None:
    (tmp_path / "trainer").mkdir()
    trainer = tmp_path / "trainer" / "rdm-trainer"
    trainer.write_text(f'#!/bin/sh\necho "called with $*"; touch /revived; {end}\n')
    trainer.chmod(0o755)
    status, logs = started(node, tmp_path, {"PATH": "/etc/rdm/trainer:/bin"}, *command)
    assert status == 0
    assert "called with job revive" in logs
    assert ("in place of an sshd" if command else "-D -e -f /run/rdm/sshd_config") in logs

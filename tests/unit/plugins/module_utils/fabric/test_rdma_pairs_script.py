"""The rounds of measurements: real processes on the loopback network, with a stand-in for perftest."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.fabric import rdma_pairs_script as script
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.pair_schedule import partners, rounds

from tests.conftest import ROOT
from trainer.tests.waiting import DEADLINE_S, Begun, Test, begin, wait_until

# A test may collect the results late.
PROGRAM = Path(script.__file__).read_text().replace(f"KEPT = {script.KEPT}", f"KEPT = {DEADLINE_S}")


def own_mark() -> str:
    """Return a mark for a test's programs: a program ends what other runs with its mark have left here."""
    return f"{script.MARK}_{random.getrandbits(64):x}"


class Cluster:
    """The programs of N nodes, each with its own address."""

    def __init__(self, directory: Path, mark: str, devices: dict[str, str], **changes: Any) -> None:
        self.mark = mark
        self.program = PROGRAM.replace(f'MARK = "{script.MARK}"', f'MARK = "{mark}"')
        for name in (script.BANDWIDTH, script.LATENCY):
            shutil.copy(ROOT / "tests/standins/perftest.py", directory / name)
        self.path = f"{directory}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.net = f"127.{random.randrange(1, 255)}.{random.randrange(1, 255)}"
        self.run = f"test-{random.getrandbits(64):x}"
        self.names = list(devices)
        first = random.randrange(20000, 30000)
        met = partners(rounds(self.names))
        self.settings = {
            name: {
                "run": self.run,
                "name": name,
                "address": self.address(name),
                "ports": list(range(first, first + 4)),
                "device": device,
                "ib_port": 1,
                "gid_index": None,
                "rounds": [
                    [peer, self.address(peer), self.names.index(name) < self.names.index(peer)]
                    if peer
                    else None
                    for peer in met[name]
                ],
                "seconds": 1,
                "size": 65536,
                "tries": 100,
                "timeout": 30.0,
                "gather": 60.0,
                "pair_limit": 120.0,
                "limit": 240.0,
                **changes,
            }
            for name, device in devices.items()
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def address(self, name: str) -> str:
        return f"{self.net}.{1 + self.names.index(name)}"

    def start(self, *names: str) -> None:
        for name in names or self.names:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", self.program, json.dumps(self.settings[name])],
                env={"PATH": self.path, self.mark: self.run},
            )

    def collect(self, name: str, seconds: float = 240.0, appears: float = script.APPEARS) -> dict[str, Any]:
        request = json.dumps({**self.settings[name], "collect": seconds})
        program = self.program.replace(f"APPEARS = {script.APPEARS}", f"APPEARS = {appears}")
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", program, request], check=True, capture_output=True, text=True
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def results(self, *names: str) -> dict[str, dict[str, Any]]:
        return {name: self.collect(name) for name in names or self.names}

    def running(self) -> set[int]:
        """Return the processes of its run."""
        found = set()
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"{self.mark}={self.run}".encode() in path.read_bytes().split(b"\0"):
                    found.add(int(path.parent.name))
            except OSError:
                continue
        return found


@contextlib.contextmanager
def clusters(directory: Path) -> Iterator[Callable[..., Cluster]]:
    """Provide a function that makes a test's clusters, which have one mark."""
    made: list[Cluster] = []
    mark = own_mark()

    def make(devices: dict[str, str], **changes: Any) -> Cluster:
        made.append(Cluster(directory, mark, devices, **changes))
        return made[-1]

    yield make
    for one in made:
        for process in one.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    with clusters(tmp_path) as make:
        yield make


@pytest.mark.parametrize(
    ("sent", "received", "tries"), [(190.0, 198.0, 100), (0.0089, 0.0298, 20), (0.0298, 0.0267, 50)]
)
def test_a_slow_link_gets_fewer_tries(tmp_path: Path, sent: float, received: float, tries: int) -> None:
    settings = script.Settings(
        **Cluster(tmp_path, own_mark(), {"n1": "mlx5_0", "n2": "mlx5_0"}).settings["n1"]
    )
    for found in ([sent, received, None], [received, sent, None]):
        assert script.options(settings, script.LATENCY, found) == ["-s", "2", "-n", str(tries)]
    assert "-D" in script.options(settings, script.BANDWIDTH, [None, None, None])


def hung_pair_is_ended_without_affecting_others(cluster: Callable[..., Cluster]) -> Iterator[None]:
    devices = {"n1": "mlx5_0", "n2": "mlx5_0", "n3": "mlx5_hang"}
    nodes = cluster(devices, pair_limit=20.0)
    nodes.start()
    yield
    found = nodes.results()
    assert found["n1"]["pairs"]["n2"] == [96.61, 96.61, 2.07]
    for name in ("n1", "n2"):
        assert list(found[name]["errors"]) == ["n3"]
    assert set(found["n3"]["errors"]) == {"n1", "n2"}
    messages = [text for one in found.values() for text in one["errors"].values()]
    assert "it did not end within 20 s" in messages
    wait_until("no program is left", lambda: not nodes.running())


def absent_or_frozen_node_fails_only_its_pairs(
    cluster: Callable[..., Cluster],
) -> Iterator[None]:
    nodes = cluster({"n1": "mlx5_0", "n2": "mlx5_0", "n3": "mlx5_0", "n4": "mlx5_0"}, gather=15.0)
    nodes.start("n4")
    wait_until("n4 has no problem", lambda: nodes.collect("n4", 0.0), lambda found: "problem" not in found)
    # Before it has connected to a partner.
    nodes.processes["n4"].send_signal(signal.SIGSTOP)
    nodes.start("n1", "n2")
    yield
    found = nodes.results("n1", "n2")
    for one in found.values():
        assert set(one["errors"]) == {"n3", "n4"}
        assert "connection refused" in one["errors"]["n3"]
    assert found["n1"]["pairs"]["n2"] == [96.61, 96.61, 2.07]
    assert nodes.collect("n3", appears=0.1) == {"problem": script.GONE}


TIMEOUT_TESTS = (
    hung_pair_is_ended_without_affecting_others,
    absent_or_frozen_node_fails_only_its_pairs,
)


@pytest.fixture(scope="module", autouse=True)
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    """The tests of timeouts, which begin before all others."""
    with contextlib.ExitStack() as stack:
        yield begin(TIMEOUT_TESTS, lambda: stack.enter_context(clusters(tmp_path_factory.mktemp("limit"))))


def test_every_pair_is_measured_in_both_directions_and_reported_by_both(cluster: Any) -> None:
    nodes = cluster({"n1": "mlx5_0", "n2": "mlx5_slow", "n3": "mlx5_late"})
    nodes.start("n3", "n2")
    nodes.start("n1")  # the last one
    found = nodes.results()
    for one in found.values():
        assert one["done"]
        assert one["errors"] == {}
        assert (one["round"], one["of"]) == (3, 3)
    assert found["n1"]["pairs"] == {"n2": [24.11, 24.11, 2.07], "n3": [96.61, 96.61, 19.7]}
    assert found["n2"]["pairs"] == {"n1": [24.11, 24.11, 2.07], "n3": [24.11, 24.11, 19.7]}
    for process in nodes.processes.values():  # collected, they end by themselves
        assert process.wait(240) == 0


def test_perftest_error_is_reported_for_the_node_that_failed(cluster: Any) -> None:
    nodes = cluster({"n1": "mlx5_0", "n2": "mlx5_broken"})
    nodes.start()
    found = nodes.results()
    message = "ib_write_bw on n2: Couldn't get device mlx5_broken"
    assert found["n1"]["errors"] == {"n2": message}
    assert found["n2"]["errors"] == {"n1": message}


def test_program_that_does_not_answer_is_queried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [script.PairError("n1 does not answer"), {"done": True}]

    class Channel:
        async def receive(self, _seconds: float) -> Any:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        def close(self) -> None:
            pass

    async def knock(*_: Any) -> tuple[Any, dict[str, Any]]:
        return Channel(), {}

    monkeypatch.setattr(script, "knock", knock)
    request = SimpleNamespace(run="r", address="127.0.0.1")
    assert asyncio.run(script.collect(request, 1.0)) == {"done": True}


def test_programs_end_at_the_time_limit(cluster: Any) -> None:
    nodes = cluster({"n1": "mlx5_0", "n2": "mlx5_hang"})
    # The other one would stop if its time were up before.
    nodes.settings["n1"]["limit"] = 2.0
    nodes.start()
    found = nodes.results()
    assert found["n1"]["errors"] == {"n2": "n1 had no time left for it"}
    assert found["n2"]["done"]
    wait_until("no program is left", lambda: not nodes.running())


def test_processes_of_a_killed_run_are_ended_by_the_next(cluster: Any) -> None:
    before = cluster({"n1": "mlx5_0", "n2": "mlx5_hang"})
    before.start()
    wait_until("both programs run, perftest's server and client", lambda: len(before.running()) == 4)
    nodes = cluster({"n1": "mlx5_0", "n2": "mlx5_0"})
    nodes.start()
    assert nodes.results()["n1"]["pairs"] == {"n2": [96.61, 96.61, 2.07]}
    wait_until("no program is left", lambda: not before.running())


def test_child_processes_end_with_the_program(cluster: Any) -> None:
    nodes = cluster({"n1": "mlx5_0", "n2": "mlx5_hang"})
    nodes.start()
    wait_until("both programs run, perftest's server and client", lambda: len(nodes.running()) == 4)
    for process in nodes.processes.values():
        process.kill()
        process.wait()
    wait_until("no program is left", lambda: not nodes.running())


def test_a_port_that_another_program_has_is_skipped(cluster: Any) -> None:
    nodes = cluster({"n1": "mlx5_0", "n2": "mlx5_0"})
    other = cluster({"n1": "mlx5_0", "n2": "mlx5_0"})
    other.net, other.run = nodes.net, nodes.run  # so that neither ends the other
    for name, settings in other.settings.items():
        settings.update(nodes.settings[name], run="another")
    other.start("n1")
    wait_until("n1 has no problem", lambda: other.collect("n1", 0.0), lambda found: "problem" not in found)
    nodes.start()
    assert nodes.results()["n2"]["pairs"] == {"n1": [96.61, 96.61, 2.07]}


def test_foreign_connections_are_bounded_and_block_no_member(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "GREETING", 600.0)
    settings = script.Settings(
        *("run", "n1", "127.0.0.1", [0], "mlx5_0", 1, None, []), *(1, 65536, 100, 60.0, 60.0, 60.0, 60.0)
    )

    async def flood() -> dict[str, Any]:
        node = script.Node(settings)
        server = await node.listen()
        port = server.sockets[0].getsockname()[1]
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2 * script.GREETERS)]
        # The first are closed for the last.
        for reader, _ in silent[: script.GREETERS]:
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        assert len(node.greeters) == script.GREETERS
        for line in (b"[" * 50_000, b"{", b"[]", b'{"run": "run", "collect": []}'):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(line + b"\n")
            while await reader.readline():
                pass
        channel = script.Channel(await asyncio.open_connection("127.0.0.1", port), "n1")
        channel.send(run="run", collect=0)
        await channel.receive(60.0)
        found = await channel.receive(60.0)
        for _, writer in silent:
            writer.close()
        server.close()
        return found

    assert asyncio.run(flood())["done"] is False


@pytest.mark.parametrize(
    ("unit", "value"), [("Gb", 96.58), ("MB", 96.58 * 8 * 2**20 / 1e9), ("MiB", 96.58 * 8 * 2**20 / 1e9)]
)
def test_bandwidth_is_read_in_every_unit(unit: str, value: float) -> None:
    text = (
        f" #bytes     #iterations    BW peak[{unit}/sec]    BW average[{unit}/sec]   MsgRate[Mpps]\n"
        " 65536      5000             97.02              96.58\t\t   0.184211\n"
        "-----\n"
    )
    assert script.bandwidth(text) == pytest.approx(value)
    assert script.latency(text) is None


def test_invalid_output_is_no_result() -> None:
    header = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
    for text in (
        "",
        header,
        f"{header}---\n",
        f"{header} Completion with error at client\n",
        f"{header} 1 2\n",
    ):
        assert script.bandwidth(text) is None


@pytest.mark.parametrize("test", TIMEOUT_TESTS, ids=lambda test: test.__name__)
def test_timeouts(begun: Begun, test: Test) -> None:
    next(begun[test], None)

# SPDX-License-Identifier: GPL-3.0-or-later
"""Agents of two nodes on this machine, with real launchers, processes that fail, and agents that are lost.

The processes run a small program through ``launcher.program``, as a user's own Megatron would run.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from rdm_job import network, processes
from rdm_job.control import ControlClient
from rdm_job.directory import JobDirectory
from rdm_job.job_key import job_key
from rdm_job.root_cause import SETTLE_S
from tests.distributed.doors import open_doors
from tests.distributed.nodes import PROGRAM, Nodes, running
from tests.waiting import Begun, Test, begin, wait_until

SOON_S = 120.0
"""The time within which a fault ends a job everywhere: ten times the silence that agents tolerate."""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with running(Nodes(tmp_path)) as made:
        yield made


def a_lost_agent_ends_the_job_on_the_other_node(nodes: Nodes) -> Iterator[None]:
    cases = {"n2": ("n1", "n2 has not been heard"), "n1": ("n2", "nothing from the master n1")}
    jobs = {lost: f"lost-{lost}" for lost in cases}
    for job in jobs.values():
        nodes.run(job)
    agents = {lost: nodes.agent_of(lost, job) for lost, job in jobs.items()}
    began = time.time()
    for agent in agents.values():
        # To the other side, a frozen agent looks like a cut cable.
        os.kill(agent, signal.SIGSTOP)
    yield
    for lost, (other, words) in cases.items():
        state = nodes.ended(jobs[lost], other)
        assert state["ended"] - began < SOON_S
        assert state["state"] == "failed"
        assert words in state["reason"]
        os.kill(agents[lost], signal.SIGKILL)
    for lost, job in jobs.items():
        # Without their agent, processes end.
        left = functools.partial(nodes.left, job)
        wait_until("no process of the job is left", left, lambda found: not found)
        assert "is gone" in nodes.ended(job, lost)["reason"]
        assert nodes.ask(lost, "revive")["revived"] == [], "a job without restarts does not come back"


def a_restart_waits_for_a_node_that_comes_back(nodes: Nodes) -> Iterator[None]:
    frozen, restarted = jobs = ("back-frozen", "back-restarted")
    for job in jobs:
        nodes.run(job, "launcher.max_restarts=1")
    agents = {job: nodes.agent_of("n2", job) for job in jobs}
    os.kill(agents[frozen], signal.SIGSTOP)
    os.kill(agents[restarted], signal.SIGKILL)
    nodes.end(0, "lose 0")
    yield
    for job in jobs:
        look = JobDirectory(nodes.folder / "n1" / job, "n1").read_state
        lost = wait_until(f"n2 is lost to {job}", look, lambda state: state.nodes["n2"] == "lost")
        assert not lost.has_ended
    os.kill(agents[frozen], signal.SIGCONT)
    # The container does this when it has been restarted.
    assert nodes.ask("n2", "revive")["revived"] == [restarted]
    for job in jobs:
        nodes.wait_for_attempt(job, 1)
    nodes.end(0)
    nodes.end(1)
    for job in jobs:
        state = nodes.ended(job)
        assert (state["state"], state["restarts"]) == ("finished", 1)
        assert [(failure["node"], failure["rank"]) for failure in state["failures"]] == [("n2", None)]
        assert nodes.ended(job, "n2")["state"] == "finished"
        assert nodes.left(job) == []


SILENCES = (a_restart_waits_for_a_node_that_comes_back, a_lost_agent_ends_the_job_on_the_other_node)


@pytest.fixture(scope="module", autouse=True)
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    """The tests of silent agents, which begin before all others."""
    with contextlib.ExitStack() as stack:
        yield begin(SILENCES, lambda: stack.enter_context(running(Nodes(tmp_path_factory.mktemp("silent")))))


# Other tests below end jobs under torchrun, too.
@pytest.mark.parametrize("launcher", ["no_ssh", pytest.param("torchrun", marks=pytest.mark.long)])
def test_a_job_runs_to_its_end(nodes: Nodes, launcher: str) -> None:
    # Ranks follow the order of the nodes, not of their addresses.
    nodes.nodes[0]["address"], nodes.nodes[1]["address"] = "127.0.0.2", "127.0.0.1"
    job = f"to-the-end-{launcher.replace('_', '-')}"
    nodes.run(job, f"launcher.kind={launcher}")
    taken = nodes.ask("n1", "check", request=nodes.request(job, "n1"))
    assert "already" in taken["problems"][0]
    # A second start does not make a second agent.
    again = nodes.request(job, "n1", offer={"agent_port": 1, "master_port": 2})
    assert not nodes.ask("n1", "start", request=again)["started"]
    assert nodes.ask("n1", "remove", job)["kept"] == [{"job": job, "reason": "it is running"}]
    nodes.end(0)
    nodes.end(1)
    state = nodes.ended(job)
    assert (state["state"], state["failures"]) == ("finished", [])
    assert state["nodes"] == {"n1": "done", "n2": "done"}
    assert nodes.ended(job, "n2")["state"] == "finished"
    assert "rank 0 of 2 at 127.0.0.2\n" in nodes.ask("n1", "logs", job)["text"]
    assert "rank 1 of 2 at 127.0.0.2\n" in nodes.ask("n2", "logs", job)["text"]
    assert "MB |" in nodes.ask("n2", "logs", job, "--stream", "gpu")["text"]
    assert nodes.left(job) == []
    # Once its agent has gone, its directory on this node is removed, but nothing that a link leads to.
    elsewhere = nodes.folder / "program.py"
    (nodes.folder / "n1" / job / "link").symlink_to(nodes.folder)
    seen = wait_until(
        "its agent has gone", lambda: nodes.ask("n1", "remove", job, "--dry-run"), lambda a: a["removed"]
    )
    assert seen["removed"][0]["bytes"] >= 4096
    assert nodes.ask("n1", "remove", job)["removed"] == seen["removed"]
    assert [path.name for path in (nodes.folder / "n1").iterdir()] == []
    assert elsewhere.exists()
    assert (nodes.folder / "n2" / job).is_dir()
    (nodes.folder / "n1" / job).symlink_to(nodes.folder / "n2" / job)
    assert "is a link" in nodes.ask("n1", "remove", job)["kept"][0]["reason"]


@pytest.mark.parametrize(
    ("launcher", "is_marked"),
    [("torchrun", False), ("mpirun", True), pytest.param("mpirun", False, marks=pytest.mark.long)],
)
def test_a_ranks_lines_are_told_apart_when_its_program_or_the_job_does_what_logs_say(
    nodes: Nodes, tmp_path_factory: pytest.TempPathFactory, launcher: str, is_marked: bool
) -> None:
    """Two ranks share a node. A rank that is alone on its node needs no mark, whatever started it."""
    # In one write: ranks of a node share a log, and an unbuffered print writes the line's end separately.
    mark = "import os\nos.write(2, f\"[rank{os.environ['RANK']}]: here\\n\".encode())\n"
    (nodes.folder / "program.py").write_text(mark + PROGRAM)
    nodes.nodes[0]["slots"] = 2
    job = f"marked-{launcher}"
    with open_doors(nodes, tmp_path_factory.mktemp("doors")):
        nodes.run(job, f"launcher.kind={launcher}", f"logging.mark_ranks={str(is_marked).lower()}")

        def has(node: str, rank: int, line: str, stream: str = "out") -> None:
            """Wait for a program's line, which other processes may forward."""
            words = ("logs", job, "--rank", str(rank), "--stream", stream)
            wait_until(
                f"{line} of rank {rank} is told apart",
                functools.partial(nodes.ask, node, *words),
                lambda told: (told["text"], told.get("notice")) == (f"{line}\n", None),
            )

        mark = "[rank{}]: " if is_marked else ""
        has("n2", 2, f"{mark.format(2)}rank 2 of 3 at 127.0.0.1")
        if is_marked:
            has("n1", 1, "[rank1]: rank 1 of 3 at 127.0.0.1")
        else:
            found = nodes.ask("n1", "logs", job, "--rank", "1")
            assert "With logging.mark_ranks each line of the next job does" in found["notice"]
        has("n1", 1, "[rank1]: here", "err")


SPEAKS = """

def tell(iteration, loss="9.0E+00"):
    if rank == 1:
        print(f" iteration {iteration:8d}/      50 | elapsed time per iteration (ms): 500.0 |"
              f" learning rate: 1.0E-04 | global batch size: 4 | lm loss: {loss} |", flush=True)

"""


@pytest.mark.parametrize(
    ("loss", "word", "reason"),
    [
        ("8.0E+00", "finished", "It came to iteration 50."),
        # tests/unit/log/test_verdict.py tests the verdicts on lines.
        pytest.param(
            "nan",
            "suspect",
            "The loss was not a number 1 time, first at iteration 50.",
            marks=pytest.mark.long,
        ),
    ],
)
def test_what_a_program_of_the_user_s_came_to_is_known_to_its_last_line(
    nodes: Nodes, loss: str, word: str, reason: str
) -> None:
    """The lines are on a node other than the master, and the last one comes just before the end."""
    before, after = PROGRAM.split("signal.signal(", 1)
    text = f"{before}{SPEAKS}tell(30)\nsignal.signal({after}\ntell(50, {loss!r})\n"
    (nodes.folder / "program.py").write_text(text)
    job = f"speaks-{word}"
    nodes.run(job, "launcher.kind=torchrun")
    master = JobDirectory(nodes.folder / "n1" / job, "n1")
    found = wait_until(
        "the master knows how far it is", lambda: master.read_state().progress, lambda told: bool(told)
    )
    assert (found["iteration"], found["loss"], found["step_seconds"]) == (30, 9.0, 0.5)
    nodes.end(0)
    nodes.end(1)
    state = nodes.ended(job)
    assert (state["state"], state["progress"]["iteration"]) == ("finished", 50)
    assert (state["verdict"]["verdict"], state["verdict"]["reason"]) == (word, reason)
    assert state["verdict"]["since"] == state["ended"]


def test_any_command_runs_once_per_device_and_ends_the_job_by_its_exit_code(nodes: Nodes) -> None:
    job = "any"
    # The process that fails waits until the other has written.
    script = (
        'echo "rank $RANK of $WORLD_SIZE"; touch "$0.$RANK"; '
        'until [ -e "$0.1" ]; do sleep 0.1; done; exit $((7 * (1 - RANK)))'
    )
    command = ["bash", "-c", script, str(nodes.folder / "said")]
    config = json.dumps({"name": job, "workload": "command", "command": command})
    nodes.start(job, "launcher.kind=torchrun", config=config)
    state = nodes.ended(job)
    failure = state["failures"][0]
    assert (state["state"], failure["node"], failure["rank"]) == ("failed", "n1", 0)
    assert "exit code 7" in failure["reason"]
    for rank, node in enumerate(("n1", "n2")):
        assert f"rank {rank} of 2\n" in nodes.ask(node, "logs", job)["text"]


def test_a_killed_process_ends_the_job_everywhere(nodes: Nodes) -> None:
    job = "killed"
    nodes.run(job)
    began = time.time()
    os.kill(nodes.process_of(1, job), signal.SIGKILL)
    state = nodes.ended(job)
    assert state["ended"] - began < SOON_S
    assert state["state"] == "failed"
    assert [(one["node"], one["rank"]) for one in state["failures"]] == [("n2", 1)]
    assert "killed" in state["reason"]
    assert nodes.ended(job, "n2")["reason"] == state["reason"]
    assert nodes.left(job) == []


@pytest.mark.parametrize("launcher", ["deepspeed", "mpirun"])
def test_of_two_processes_the_one_that_failed_is_named(nodes: Nodes, launcher: str) -> None:
    nodes.nodes[:] = [{"name": "n1", "address": "127.0.0.1", "slots": 2}]
    job = launcher
    nodes.run(job, f"launcher.kind={launcher}")
    assert {record.name for record in (nodes.folder / f"n1/{job}/ranks/n1").iterdir()} == {"0.json", "1.json"}
    nodes.end(1, "fail 0")
    state = nodes.ended(job)
    (failure,) = state["failures"]
    assert (failure["node"], failure["rank"]) == ("n1", 1)
    assert any("the sky is falling" in line for line in failure["lines"])
    assert nodes.left(job) == []


def test_nodes_may_share_the_directory_of_the_jobs(nodes: Nodes) -> None:
    (nodes.folder / "n2").rmdir()
    (nodes.folder / "n2").symlink_to("n1")
    nodes.addresses_in_environment = True
    job = "shared"
    nodes.run(job)
    nodes.end(0)
    nodes.end(1)
    assert nodes.ended(job)["nodes"] == {"n1": "done", "n2": "done"}
    assert nodes.ended(job, "n2")["state"] == "finished"
    assert "rank 1 of 2" in nodes.ask("n2", "logs", job)["text"]


def test_an_error_is_shown_with_its_last_lines_and_a_restart_goes_on(nodes: Nodes) -> None:
    job = "restarted"
    nodes.run(job, "launcher.max_restarts=1")
    nodes.end(1, "fail 0")
    nodes.wait_for_attempt(job, 1)
    nodes.end(0)
    nodes.end(1)
    state = nodes.ended(job)
    assert (state["state"], state["restarts"]) == ("finished", 1)
    (failure,) = state["failures"]
    assert (failure["node"], failure["rank"]) == ("n2", 1)
    assert any("the sky is falling" in line for line in failure["lines"])


@pytest.mark.parametrize("test", SILENCES, ids=lambda test: test.__name__)
def test_silence(begun: Begun, test: Test) -> None:
    next(begun[test], None)


def metric(place: str, name: str) -> dict[str, str]:
    """Wait until an agent exports a metric, and return the labels of its first value."""

    def look() -> dict[str, dict[str, str]]:
        with urllib.request.urlopen(f"http://{place}/metrics") as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        return {family.name: family.samples[0].labels for family in families}

    return wait_until(f"{place} tells {name}", look, lambda told: name in told)[name]


def test_a_job_that_is_stopped_saves_first_and_another_job_goes_on(nodes: Nodes) -> None:
    first, second = "first", "second"
    ports = [str(port) for port in network.take_free_ports("127.0.0.2", 2, os.getpid()) or ()]
    nodes.run(first, f"logging.metrics_port={ports[0]}")
    # Both jobs are on these nodes, and Prometheus scrapes each of them.
    request = nodes.request(second, "n2", f"logging.metrics_port={ports[0]}")
    (problem,) = nodes.ask("n2", "check", request=request)["problems"]
    assert problem.startswith(f"logging.metrics_port {ports[0]} is in use on n2")
    nodes.run(second, f"logging.metrics_port={ports[1]}")
    for job, port in zip((first, second), ports, strict=True):
        labels = metric(f"127.0.0.2:{port}", "rdm_rank_resident_memory_bytes")
        assert labels == {"job": job, "node": "n2", "rank": "1"}
    assert metric(f"127.0.0.1:{ports[0]}", "rdm_job_start_time_seconds") == {"job": first}
    answer = nodes.ask("n1", "stop", first)
    assert answer["stopped"]
    assert (answer["job"]["state"], answer["job"]["reason"]) == (
        "stopped",
        "It saved and ended, as requested.",
    )
    assert (nodes.folder / "saved.0").exists()
    assert (nodes.folder / "saved.1").exists()
    # The other node's agent learns of the end a little later.
    assert nodes.ended(first, "n2")["state"] == "stopped"
    assert not nodes.ask("n2", "stop", first)["stopped"]
    assert nodes.left(first) == []
    assert nodes.ask("n1", "state", second)["job"]["state"] == "running"
    assert nodes.ask("n2", "stop", second, "--now")["stopped"]
    assert nodes.ended(second)["state"] == "stopped"
    assert nodes.left(second) == []
    assert {job["job"]: job["state"] for job in nodes.ask("n1", "list")["jobs"]} == {
        first: "stopped",
        second: "stopped",
    }


def test_a_job_of_another_cluster_on_the_same_hosts_goes_on_though_its_name_is_the_same(
    nodes: Nodes, tmp_path: Path
) -> None:
    (tmp_path / "others").mkdir()
    others = Nodes(tmp_path / "others")
    job = "of-one-name"
    nodes.nodes[:], others.nodes[:] = nodes.nodes[:1], others.nodes[:1]
    for cluster in (nodes, others):
        for node in cluster.nodes:
            node["slots"] = 2
    with running(others):
        others.run(job)
        theirs = others.left(job)
        # Neither starting, nor resuming, nor stopping it may end the others' job.
        nodes.run(job)
        assert nodes.ask("n1", "stop", job, "--now")["stopped"]
        mark = nodes.mark(job)
        nodes.run(job, config="", resume=True)
        assert nodes.mark(job) == mark
        assert nodes.ask("n1", "stop", job)["stopped"]
        assert nodes.left(job) == []
        assert theirs
        assert others.left(job) == theirs
        assert others.ask("n1", "state", job)["job"]["state"] == "running"


def owners(folder: Path) -> set[str]:
    """Return the owners of the files in a folder, except files that are replaced in the meantime."""
    found = set()
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            found.add(path.owner())
    return found


def test_two_users_of_the_same_hosts_are_not_in_each_others_way() -> None:
    """Two accounts that every Debian has, neither of them root, run jobs of one name at the same time."""
    users = ("daemon", "nobody")
    job = "of-two-users"
    with contextlib.ExitStack() as stack:
        both = []
        for user in users:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"rdm-{user}-")))
            made = stack.enter_context(running(Nodes(folder, user=user)))
            made.nodes[:] = [{"name": "n1", "address": "127.0.0.1", "slots": 2}]
            for path in (folder, *folder.iterdir()):
                shutil.chown(path, user, "nogroup")
            (folder / "key").chmod(0o600)
            both.append(made)
        for made in both:
            made.run(job)
        one, other = both
        offers = [JobDirectory(made.folder / "n1" / job, "n1").request().offer for made in both]
        ports = [{offer.agent_port, offer.master_port} for offer in offers if offer]
        assert len(ports) == 2
        assert ports[0].isdisjoint(ports[1])
        for made, user in zip(both, users, strict=True):
            assert {psutil.Process(pid).username() for pid in made.left(job)} == {user}
            assert owners(made.folder / "n1" / job) == {user}
        theirs = other.left(job)
        assert one.ask("n1", "stop", job)["stopped"]
        assert one.left(job) == []
        assert other.left(job) == theirs
        assert other.ask("n1", "state", job)["job"]["state"] == "running"


def test_a_job_whose_master_was_restarted_keeps_its_failures_and_counts_on(nodes: Nodes) -> None:
    """Otherwise, a container that is restarted again and again would restart its job forever, unreported."""
    job = "master-restarted"
    nodes.run(job, "launcher.max_restarts=2")
    master = JobDirectory(nodes.folder / "n1" / job, "n1")

    def lose_master() -> None:
        os.kill(nodes.agent_of("n1", job), signal.SIGKILL)
        wait_until("the master's agent is gone", lambda: not master.has_agent)

    lose_master()
    assert nodes.ask("n1", "revive")["revived"] == [job]
    nodes.wait_for_attempt(job, 1)
    # No process of the first attempt is left on any node.
    found = map(processes.environment_of, nodes.left(job))
    assert {one["RDM_ATTEMPT"] for one in found if one is not None} == {"1"}
    nodes.end(1, "fail 1")
    nodes.wait_for_attempt(job, 2)
    known = master.read_state()
    assert known.restarts == 2
    assert [(failure.node, failure.rank) for failure in known.failures] == [("n1", None), ("n2", 1)]
    lose_master()
    assert nodes.ask("n1", "revive")["revived"] == [job]
    state = nodes.ended(job)
    assert state["state"] == "failed", "it was restarted as often as it may be"
    assert [(one["node"], one["rank"]) for one in state["failures"]] == [
        ("n1", None),
        ("n2", 1),
        ("n1", None),
    ]
    assert state["reason"] == "The agent of n1 was started again: its container was restarted."
    assert nodes.ended(job, "n2")["state"] == "failed"
    wait_until("no process of the job is left", lambda: nodes.left(job), lambda found: not found)


def test_a_node_that_connects_again_and_is_too_busy_to_speak_is_waited_for(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = "back-busy"
    # Unlike DeepSpeed's, torch's launcher writes to its processes' standard error, after them.
    nodes.run(job, "launcher.max_restarts=1", "launcher.kind=torchrun")
    monkeypatch.setenv("RDM_CLUSTER_KEY", str(nodes.folder / "key"))
    master = JobDirectory(nodes.folder / "n1" / job, "n1")
    greeted: list[float] = []

    def connect_again() -> None:
        port = master.request().offer.agent_port
        client = ControlClient("127.0.0.1", port, "n2", job_key(job))
        wait_until("both have proved who they are", lambda: client.receive() or client.is_proven)
        greeted.append(time.monotonic())
        client.close()

    os.kill(nodes.agent_of("n2", job), signal.SIGKILL)
    connect_again()
    # It may have noticed that its agent is gone.
    with contextlib.suppress(ProcessLookupError):
        os.kill(nodes.process_of(1, job), signal.SIGKILL)
    nodes.end(0, "lose 0")
    wait_until("a failure is recorded", master.read_state, lambda state: state.failures, pause=connect_again)
    # Also after the failure had settled: the master considered it connected when it sent the query.
    assert greeted[-1] - greeted[0] > SETTLE_S
    assert nodes.ask("n2", "revive")["revived"] == [job]
    nodes.wait_for_attempt(job, 1)
    nodes.end(0)
    nodes.end(1)
    state = nodes.ended(job)
    assert [(failure["node"], failure["rank"]) for failure in state["failures"]] == [("n2", None)]


@contextlib.contextmanager
def speaking_for(node: str, address: str, port: int, job: str) -> Iterator[None]:
    """Act as the agent of a node that stays connected, but never reports its state."""
    ended = threading.Event()
    client = ControlClient(address, port, node, job_key(job))

    def speak() -> None:
        while not ended.wait(0.1):
            client.receive()
            client.send({"attempt": 0, "quiet": True})
        client.close()

    thread = threading.Thread(target=speak)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_a_job_can_be_seen_and_stopped_while_it_is_asked_who_failed(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = "asked"
    nodes.run(job)
    monkeypatch.setenv("RDM_CLUSTER_KEY", str(nodes.folder / "key"))
    master = JobDirectory(nodes.folder / "n1" / job, "n1")
    os.kill(nodes.agent_of("n2", job), signal.SIGKILL)
    with speaking_for("n2", "127.0.0.1", master.request().offer.agent_port, job):
        nodes.end(0, "lose 0")
        seen = wait_until("it is seen", master.read_state, lambda state: state.nodes["n1"] == "failed")
        assert (seen.state, seen.failures) == ("running", [])
        assert nodes.ask("n1", "stop", job, "--now")["stopped"]
        state = nodes.ended(job)
    assert (state["state"], state["failures"]) == ("stopped", [])


def test_what_is_wrong_is_said_before_anything_starts(nodes: Nodes) -> None:
    request = nodes.request("bad", "n1", "launcher.kind=torchrum", "optimisation.lr=fast")
    answer = nodes.ask("n1", "check", request=request)
    assert len(answer["problems"]) == 2
    assert "torchrun" in answer["problems"][0] + answer["problems"][1]
    (nodes.folder / "key").unlink()
    nodes.nodes[0]["address"] = "203.0.113.7"
    problems = nodes.ask("n1", "check", request=nodes.request("bad", "n1"))["problems"]
    assert any("203.0.113.7" in problem for problem in problems)
    assert any("key" in problem for problem in problems)
    assert "no job 'bad'" in nodes.ask("n1", "state", "bad")["problems"][0]
    assert not (nodes.folder / "n1/bad").exists()

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
from tests.distributed.nodes import PROGRAM, Nodes, running
from tests.distributed.sshd import run_sshd
from tests.waiting import Begun, Test, begin, wait_until

SOON_S = 120.0
"""The time within which a fault ends a job everywhere: ten times the silence that agents tolerate."""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with running(Nodes(tmp_path)) as made:
        yield made


def lost_agent_ends_the_job_on_the_other_node(nodes: Nodes) -> Iterator[None]:
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
        assert nodes.run_verb(lost, "revive")["revived"] == [], "a job without restarts does not come back"


def restart_waits_for_a_node_that_comes_back(nodes: Nodes) -> Iterator[None]:
    frozen, restarted = jobs = ("back-frozen", "back-restarted")
    for job in jobs:
        nodes.run(job, "launcher.max_restarts=1")
    agents = {job: nodes.agent_of("n2", job) for job in jobs}
    os.kill(agents[frozen], signal.SIGSTOP)
    os.kill(agents[restarted], signal.SIGKILL)
    nodes.end(0, "lose 0")
    yield
    for job in jobs:
        read_state = JobDirectory(nodes.folder / "n1" / job, "n1").read_state
        lost = wait_until(f"n2 is lost to {job}", read_state, lambda state: state.nodes["n2"] == "lost")
        assert not lost.has_ended
    os.kill(agents[frozen], signal.SIGCONT)
    # The container does this when it has been restarted.
    assert nodes.run_verb("n2", "revive")["revived"] == [restarted]
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


SILENT_AGENT_TESTS = (restart_waits_for_a_node_that_comes_back, lost_agent_ends_the_job_on_the_other_node)


@pytest.fixture(scope="module", autouse=True)
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    """The tests of silent agents, which begin before all others."""
    with contextlib.ExitStack() as stack:
        yield begin(
            SILENT_AGENT_TESTS, lambda: stack.enter_context(running(Nodes(tmp_path_factory.mktemp("silent"))))
        )


# Other tests below end jobs under torchrun, too.
@pytest.mark.parametrize("launcher", ["no_ssh", pytest.param("torchrun", marks=pytest.mark.long)])
def test_job_runs_to_its_end(nodes: Nodes, launcher: str) -> None:
    # Ranks follow the order of the nodes, not of their addresses.
    nodes.nodes[0]["address"], nodes.nodes[1]["address"] = "127.0.0.2", "127.0.0.1"
    job = f"to-the-end-{launcher.replace('_', '-')}"
    nodes.run(job, f"launcher.kind={launcher}")
    taken = nodes.run_verb("n1", "check", request=nodes.request(job, "n1"))
    assert "already" in taken["problems"][0]
    # A second start does not make a second agent.
    again = nodes.request(job, "n1", offer={"agent_port": 1, "master_port": 2})
    assert not nodes.run_verb("n1", "start", request=again)["started"]
    assert nodes.run_verb("n1", "remove", job)["kept"] == [{"job": job, "reason": "it is running"}]
    nodes.end(0)
    nodes.end(1)
    state = nodes.ended(job)
    assert (state["state"], state["failures"]) == ("finished", [])
    assert state["nodes"] == {"n1": "done", "n2": "done"}
    assert nodes.ended(job, "n2")["state"] == "finished"
    assert "rank 0 of 2 at 127.0.0.2\n" in nodes.run_verb("n1", "logs", job)["text"]
    assert "rank 1 of 2 at 127.0.0.2\n" in nodes.run_verb("n2", "logs", job)["text"]
    assert "MB |" in nodes.run_verb("n2", "logs", job, "--stream", "gpu")["text"]
    assert nodes.left(job) == []
    # Once its agent has gone, its directory on this node is removed, but nothing that a link leads to.
    elsewhere = nodes.folder / "program.py"
    (nodes.folder / "n1" / job / "link").symlink_to(nodes.folder)
    seen = wait_until(
        "its agent has gone", lambda: nodes.run_verb("n1", "remove", job, "--dry-run"), lambda a: a["removed"]
    )
    assert seen["removed"][0]["bytes"] >= 4096
    assert nodes.run_verb("n1", "remove", job)["removed"] == seen["removed"]
    assert [path.name for path in (nodes.folder / "n1").iterdir()] == []
    assert elsewhere.exists()
    assert (nodes.folder / "n2" / job).is_dir()
    (nodes.folder / "n1" / job).symlink_to(nodes.folder / "n2" / job)
    assert "is a link" in nodes.run_verb("n1", "remove", job)["kept"][0]["reason"]


@pytest.mark.parametrize(
    ("launcher", "is_marked"),
    [("torchrun", False), ("mpirun", True), pytest.param("mpirun", False, marks=pytest.mark.long)],
)
def test_each_line_of_the_log_names_its_rank_when_the_program_or_launcher_marks_lines(
    nodes: Nodes, tmp_path_factory: pytest.TempPathFactory, launcher: str, is_marked: bool
) -> None:
    """Two ranks share a node. A rank that is alone on its node needs no mark, whatever started it."""
    # In one write: ranks of a node share a log, and an unbuffered print writes the line's end separately.
    mark = "import os\nos.write(2, f\"[rank{os.environ['RANK']}]: here\\n\".encode())\n"
    (nodes.folder / "program.py").write_text(mark + PROGRAM)
    nodes.nodes[0]["slots"] = 2
    job = f"marked-{launcher}"
    with run_sshd(nodes, tmp_path_factory.mktemp("sshd")):
        nodes.run(job, f"launcher.kind={launcher}", f"logging.mark_ranks={str(is_marked).lower()}")

        def has(node: str, rank: int, line: str, stream: str = "out") -> None:
            """Wait for a program's line, which other processes may forward."""
            words = ("logs", job, "--rank", str(rank), "--stream", stream)
            wait_until(
                f"{line} of rank {rank} is found by its rank",
                functools.partial(nodes.run_verb, node, *words),
                lambda log: (log["text"], log.get("notice")) == (f"{line}\n", None),
            )

        mark = "[rank{}]: " if is_marked else ""
        has("n2", 2, f"{mark.format(2)}rank 2 of 3 at 127.0.0.1")
        if is_marked:
            has("n1", 1, "[rank1]: rank 1 of 3 at 127.0.0.1")
        else:
            found = nodes.run_verb("n1", "logs", job, "--rank", "1")
            assert "With logging.mark_ranks each line of the next job does" in found["notice"]
        has("n1", 1, "[rank1]: here", "err")


PRINT_STEP_LINES = """

def print_step(iteration, loss="9.0E+00"):
    if rank == 1:
        print(f" iteration {iteration:8d}/      50 | elapsed time per iteration (ms): 500.0 |"
              f" learning rate: 1.0E-04 | global batch size: 4 | lm loss: {loss} |", flush=True)

"""


@pytest.mark.parametrize(
    ("loss", "word", "reason"),
    [
        ("8.0E+00", "finished", "It reached iteration 50."),
        # tests/unit/log/test_verdict.py tests the verdicts on lines.
        pytest.param(
            "nan",
            "suspect",
            "The loss was not a number 1 time, first at iteration 50.",
            marks=pytest.mark.long,
        ),
    ],
)
def test_progress_of_a_users_program_is_known_up_to_its_last_line(
    nodes: Nodes, loss: str, word: str, reason: str
) -> None:
    """The lines are on a node other than the master, and the last one comes just before the end."""
    before, after = PROGRAM.split("signal.signal(", 1)
    text = f"{before}{PRINT_STEP_LINES}print_step(30)\nsignal.signal({after}\nprint_step(50, {loss!r})\n"
    (nodes.folder / "program.py").write_text(text)
    job = f"speaks-{word}"
    nodes.run(job, "launcher.kind=torchrun")
    master = JobDirectory(nodes.folder / "n1" / job, "n1")
    found = wait_until("the master knows how far it is", lambda: master.read_state().progress, bool)
    assert (found["iteration"], found["loss"], found["step_seconds"]) == (30, 9.0, 0.5)
    nodes.end(0)
    nodes.end(1)
    state = nodes.ended(job)
    assert (state["state"], state["progress"]["iteration"]) == ("finished", 50)
    assert (state["verdict"]["verdict"], state["verdict"]["reason"]) == (word, reason)
    assert state["verdict"]["since"] == state["ended"]


def test_command_runs_once_per_device_and_its_exit_code_ends_the_job(nodes: Nodes) -> None:
    job = "any"
    # The process that fails waits until the other has written.
    script = (
        'echo "rank $RANK of $WORLD_SIZE"; touch "$0.$RANK"; '
        'until [ -e "$0.1" ]; do sleep 0.1; done; exit $((7 * (1 - RANK)))'
    )
    command = ["bash", "-c", script, str(nodes.folder / "output")]
    config = json.dumps({"name": job, "workload": "command", "command": command})
    nodes.start(job, "launcher.kind=torchrun", config=config)
    state = nodes.ended(job)
    failure = state["failures"][0]
    assert (state["state"], failure["node"], failure["rank"]) == ("failed", "n1", 0)
    assert "exit code 7" in failure["reason"]
    for rank, node in enumerate(("n1", "n2")):
        assert f"rank {rank} of 2\n" in nodes.run_verb(node, "logs", job)["text"]


def test_killed_process_ends_the_job_on_all_nodes(nodes: Nodes) -> None:
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
def test_failed_rank_is_named_and_not_the_one_that_lost_its_connection(nodes: Nodes, launcher: str) -> None:
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


def test_nodes_may_share_the_job_directory(nodes: Nodes) -> None:
    (nodes.folder / "n2").rmdir()
    (nodes.folder / "n2").symlink_to("n1")
    nodes.addresses_in_environment = True
    job = "shared"
    nodes.run(job)
    nodes.end(0)
    nodes.end(1)
    assert nodes.ended(job)["nodes"] == {"n1": "done", "n2": "done"}
    assert nodes.ended(job, "n2")["state"] == "finished"
    assert "rank 1 of 2" in nodes.run_verb("n2", "logs", job)["text"]


def test_error_is_shown_with_its_last_lines_and_the_job_restarts(nodes: Nodes) -> None:
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


@pytest.mark.parametrize("test", SILENT_AGENT_TESTS, ids=lambda test: test.__name__)
def test_silent_agents(begun: Begun, test: Test) -> None:
    next(begun[test], None)


def metric(address: str, name: str) -> dict[str, str]:
    """Wait until an agent exports a metric, and return the labels of its first value."""

    def scrape() -> dict[str, dict[str, str]]:
        with urllib.request.urlopen(f"http://{address}/metrics") as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        return {family.name: family.samples[0].labels for family in families}

    return wait_until(f"{address} exports {name}", scrape, lambda metrics: name in metrics)[name]


def test_stopped_job_saves_first_and_another_job_continues(nodes: Nodes) -> None:
    first, second = "first", "second"
    ports = [str(port) for port in network.take_free_ports("127.0.0.2", 2, os.getpid()) or ()]
    nodes.run(first, f"logging.metrics_port={ports[0]}")
    # Both jobs are on these nodes, and Prometheus scrapes each of them.
    request = nodes.request(second, "n2", f"logging.metrics_port={ports[0]}")
    (problem,) = nodes.run_verb("n2", "check", request=request)["problems"]
    assert problem.startswith(f"logging.metrics_port {ports[0]} is in use on n2")
    nodes.run(second, f"logging.metrics_port={ports[1]}")
    for job, port in zip((first, second), ports, strict=True):
        labels = metric(f"127.0.0.2:{port}", "rdm_rank_resident_memory_bytes")
        assert labels == {"job": job, "node": "n2", "rank": "1"}
    assert metric(f"127.0.0.1:{ports[0]}", "rdm_job_start_time_seconds") == {"job": first}
    answer = nodes.run_verb("n1", "stop", first)
    assert answer["stopped"]
    assert (answer["job"]["state"], answer["job"]["reason"]) == (
        "stopped",
        "It saved and ended, as requested.",
    )
    assert (nodes.folder / "saved.0").exists()
    assert (nodes.folder / "saved.1").exists()
    # The other node's agent learns of the end a little later.
    assert nodes.ended(first, "n2")["state"] == "stopped"
    assert not nodes.run_verb("n2", "stop", first)["stopped"]
    assert nodes.left(first) == []
    assert nodes.run_verb("n1", "state", second)["job"]["state"] == "running"
    assert nodes.run_verb("n2", "stop", second, "--now")["stopped"]
    assert nodes.ended(second)["state"] == "stopped"
    assert nodes.left(second) == []
    assert {job["job"]: job["state"] for job in nodes.run_verb("n1", "list")["jobs"]} == {
        first: "stopped",
        second: "stopped",
    }


def test_job_of_the_same_name_in_another_cluster_on_the_same_hosts_continues(
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
        assert nodes.run_verb("n1", "stop", job, "--now")["stopped"]
        mark = nodes.mark(job)
        nodes.run(job, config="", resume=True)
        assert nodes.mark(job) == mark
        assert nodes.run_verb("n1", "stop", job)["stopped"]
        assert nodes.left(job) == []
        assert theirs
        assert others.left(job) == theirs
        assert others.run_verb("n1", "state", job)["job"]["state"] == "running"


def owners(folder: Path) -> set[str]:
    """Return the owners of the files in a folder, except files that are replaced in the meantime."""
    found = set()
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            found.add(path.owner())
    return found


def test_two_users_run_jobs_of_one_name_on_the_same_hosts() -> None:
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
        assert one.run_verb("n1", "stop", job)["stopped"]
        assert one.left(job) == []
        assert other.left(job) == theirs
        assert other.run_verb("n1", "state", job)["job"]["state"] == "running"


def test_failures_and_restart_count_survive_a_restart_of_the_master(nodes: Nodes) -> None:
    """Otherwise, a container that is restarted again and again would restart its job forever, unreported."""
    job = "master-restarted"
    nodes.run(job, "launcher.max_restarts=2")
    master = JobDirectory(nodes.folder / "n1" / job, "n1")

    def lose_master() -> None:
        os.kill(nodes.agent_of("n1", job), signal.SIGKILL)
        wait_until("the master's agent is gone", lambda: not master.has_agent)

    lose_master()
    assert nodes.run_verb("n1", "revive")["revived"] == [job]
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
    assert nodes.run_verb("n1", "revive")["revived"] == [job]
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


def test_busy_node_that_reconnects_is_waited_for(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
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
    # Also after the root cause was decided: the master considered it connected when it sent the query.
    assert greeted[-1] - greeted[0] > SETTLE_S
    assert nodes.run_verb("n2", "revive")["revived"] == [job]
    nodes.wait_for_attempt(job, 1)
    nodes.end(0)
    nodes.end(1)
    state = nodes.ended(job)
    assert [(failure["node"], failure["rank"]) for failure in state["failures"]] == [("n2", None)]


@contextlib.contextmanager
def connected_but_silent_agent(node: str, address: str, port: int, job: str) -> Iterator[None]:
    """Act as the agent of a node that stays connected, but never reports its state."""
    ended = threading.Event()
    client = ControlClient(address, port, node, job_key(job))

    def send_heartbeats() -> None:
        while not ended.wait(0.1):
            client.receive()
            client.send({"attempt": 0, "quiet": True})
        client.close()

    thread = threading.Thread(target=send_heartbeats)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_job_can_be_queried_and_stopped_while_the_root_cause_is_determined(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = "queried"
    nodes.run(job)
    monkeypatch.setenv("RDM_CLUSTER_KEY", str(nodes.folder / "key"))
    master = JobDirectory(nodes.folder / "n1" / job, "n1")
    os.kill(nodes.agent_of("n2", job), signal.SIGKILL)
    with connected_but_silent_agent("n2", "127.0.0.1", master.request().offer.agent_port, job):
        nodes.end(0, "lose 0")
        seen = wait_until("it is seen", master.read_state, lambda state: state.nodes["n1"] == "failed")
        assert (seen.state, seen.failures) == ("running", [])
        assert nodes.run_verb("n1", "stop", job, "--now")["stopped"]
        state = nodes.ended(job)
    assert (state["state"], state["failures"]) == ("stopped", [])


def test_invalid_job_is_refused_before_anything_starts(nodes: Nodes) -> None:
    request = nodes.request("bad", "n1", "launcher.kind=torchrum", "optimisation.lr=fast")
    answer = nodes.run_verb("n1", "check", request=request)
    assert len(answer["problems"]) == 2
    assert "torchrun" in answer["problems"][0] + answer["problems"][1]
    (nodes.folder / "key").unlink()
    nodes.nodes[0]["address"] = "203.0.113.7"
    problems = nodes.run_verb("n1", "check", request=nodes.request("bad", "n1"))["problems"]
    assert any("203.0.113.7" in problem for problem in problems)
    assert any("key" in problem for problem in problems)
    assert "no job 'bad'" in nodes.run_verb("n1", "state", "bad")["problems"][0]
    assert not (nodes.folder / "n1/bad").exists()

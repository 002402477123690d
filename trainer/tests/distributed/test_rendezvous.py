# SPDX-License-Identifier: GPL-3.0-or-later
"""Members that know no inventory, as processes of this machine: they meet, start and end together."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from rdm_job.culprit import GONE
from rdm_job.processes import alive
from rdm_log.report.write import write
from tests.distributed.members import Members, codes, interface
from tests.distributed.processes import Command, run_job_verb
from tests.tiny import CONFIG, LOSSES
from tests.waiting import Begun, Test, begin, wait_until

PRINT_RANK = 'echo "$NODE_RANK of $NNODES at $MASTER_ADDR" && env | grep -c ^RDZV_SECRET'

ALL_REDUCE = """
import os, torch.distributed as dist, torch
dist.init_process_group("gloo")
sum_of_ranks = torch.tensor(float(dist.get_rank()))
dist.all_reduce(sum_of_ranks)
print(f"{dist.get_world_size()} ranks, sum {sum_of_ranks.item():g}", flush=True)
dist.destroy_process_group()
"""


def test_members_are_ranked_by_name_in_any_order_of_arrival_and_see_no_secret(members: Members) -> None:
    command = ["sh", "-c", f"{PRINT_RANK}; true"]
    workers = [members.start(f"n{number}", command) for number in (3, 1)]
    members.wait_for_output("n1", "looks for the launcher")
    launcher = members.start("n0", command, count=4)
    members.wait_for_output("n0", "3 of 4 are here")
    workers.append(members.start("n2", command))
    assert codes(launcher, *workers) == [0, 0, 0, 0]
    for number in range(4):
        address = psutil.net_if_addrs()[interface()]
        own = next(entry.address for entry in address if entry.family == socket.AF_INET)
        assert f"{number} of 4 at {own}\n0\n" in members.log(f"n{number}")


def test_torchrun_needs_only_its_environment_and_leaves_no_files(members: Members, tmp_path: Path) -> None:
    script = tmp_path / "all_reduce.py"
    script.write_text(ALL_REDUCE)
    command = [sys.executable, "-m", "torch.distributed.run", str(script)]
    launcher = members.start("n0", command, "--gpus-per-node", "2", count=2)
    worker = members.start("n1", command, "--gpus-per-node", "1")
    assert codes(launcher, worker) == [0, 0], members.log("n0") + members.log("n1")
    assert members.log("n0").count("3 ranks, sum 3") == 2
    assert members.log("n1").count("3 ranks, sum 3") == 1
    assert not list(members.scratch.iterdir())


def _job(members: Members, *words: str) -> dict[str, Any]:
    """Return what the general job verbs report about the members' job."""
    # All are on one host, and share the directory.
    environment = {**os.environ, "RDM_JOBS": str(members.folder / "jobs"), "RDM_NODE": "n0"}
    found, code = run_job_verb(*words, environment=environment)
    assert code == 0
    return found


def test_training_has_the_losses_of_one_process_and_is_reported_like_any_job(
    members: Members, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    (tmp_path / "tiny.yaml").write_text(json.dumps(CONFIG))
    command = ["train", str(tmp_path / "tiny.yaml")]
    launcher = members.start("n0", command, count=2)
    worker = members.start("n1", command)
    assert codes(launcher, worker) == [0, 0], members.log("n0")
    job = _job(members, "state", "test")["job"]
    assert (job["state"], job["master"]) == ("finished", "n0")
    assert job["nodes"] == {"n0": "done", "n1": "done"}
    assert job["progress"]["iteration"] == 6
    for step, loss in job["progress"]["losses"]:
        assert loss == pytest.approx(LOSSES[int(step)], abs=1e-3)
    folder = tmp_path / "jobs/test"
    assert len(list((folder / "logs/ranks").rglob("stdout.log"))) == 2
    written = write([folder], tmp_path / "page.html")
    assert [(one.name, one.verdict().word) for one in written] == [("test", "finished")]


def test_invalid_configuration_is_refused_before_members_are_waited_for(
    members: Members, tmp_path: Path
) -> None:
    (tmp_path / "wrong.yaml").write_text("model: {layers: -1}\n")
    assert codes(members.start("n0", ["train", str(tmp_path / "wrong.yaml")], count=2)) == [3]
    assert "layers" in members.log("n0")
    assert "waits for" not in members.log("n0")


def test_job_stop_stops_a_rendezvous_job(members: Members) -> None:
    # All run the same command; otherwise the verdict would name those that do not.
    command = ["sh", "-c", "echo is at work; exec sleep 1000"]
    launcher, worker = members.start("n0", command, count=2), members.start("n1", command)
    members.wait_for_output("n0", "is at work")
    state = members.folder / "jobs/test/state.json"
    wait_until("both are watched", lambda: json.loads(state.read_text())["gpu"].keys() == {"n0", "n1"})
    job = _job(members, "state", "test")["job"]
    assert (job["state"], job["verdict"]["culprits"]) == ("running", [])
    assert _job(members, "logs", "test")["text"] == "is at work\n"
    assert _job(members, "stop", "test")["stopped"]
    assert {130, 143} >= set(codes(launcher, worker))
    assert _job(members, "state", "test")["job"]["state"] == "stopped"


def test_job_continues_when_its_directory_cannot_be_written(members: Members) -> None:
    launcher = members.start("n0", ["echo", "has ended"], "--job-dir", "/proc/jobs", count=1)
    assert codes(launcher) == [0]
    assert "Nothing is kept of this job: /proc/jobs cannot be written" in members.log("n0")
    assert "has ended\n" in members.log("n0")


@pytest.mark.parametrize(
    ("end", "code", "how"), [("exit 7", 7, "it ended with exit code 7"), ("kill -KILL $$", 137, GONE)]
)
def test_first_failed_member_ends_all_with_its_exit_code_and_last_errors(
    members: Members, end: str, code: int, how: str
) -> None:
    launcher = members.start("n0", ["sleep", "1000"], count=3)
    worker = members.start("n1", ["sh", "-c", "sleep 1000"])
    failing = members.start("n2", ["sh", "-c", f"echo CUDA out of memory >&2; {end}"])
    assert codes(failing, worker, launcher) == [code, code, code]
    for name in ("n0", "n1"):
        assert f"n2 failed: {how}." in members.log(name)
        assert "CUDA out of memory" in members.log(name)
    job = _job(members, "state", "test")["job"]
    assert (job["state"], job["reason"]) == ("failed", f"n2 failed: {how}.")
    assert job["nodes"] == {"n0": "done", "n1": "done", "n2": "failed"}
    assert (job["failures"][0]["node"], job["failures"][0]["lines"]) == ("n2", ["CUDA out of memory"])
    assert (members.folder / "jobs/test/logs/n2.err").read_text() == "CUDA out of memory\n"


def test_command_that_one_member_lacks_ends_all(members: Members) -> None:
    script = members.folder / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    launcher = members.start("n0", ["sleep", "1000"], count=2)
    worker = members.start("n1", [str(script)])
    assert codes(worker, launcher) == [127, 127]
    assert "script cannot be started: No such file or directory." in members.log("n0")


def test_errors_without_a_newline_are_forwarded_and_bounded(members: Members) -> None:
    write = "import os, sys; os.write(2, b'\\xff' * 3_000_000 + b' the end'); sys.exit(3)"
    launcher = members.start("n0", ["sleep", "1000"], count=2)
    worker = members.start("n1", [sys.executable, "-c", write])
    assert codes(worker, launcher) == [3, 3]
    assert (members.folder / "n1.log").stat().st_size > 3_000_000
    assert len(members.log("n0")) < 50_000


def test_worker_that_dies_during_the_exchange_is_replaced_before_any_member_starts(members: Members) -> None:
    launcher = members.start("n0", ["true"], count=3)
    first = members.start("n1", ["true"])
    members.wait_for_output("n0", "n1 (")
    # The list reaches its host, but is not acknowledged.
    first.send_signal(signal.SIGSTOP)
    other = members.start("n2", ["true"])
    members.wait_for_output("n0", "n2 (")
    first.send_signal(signal.SIGKILL)
    again = members.start("n1", ["true"])
    members.wait_for_output("n0", "has come again. All 3 are here.")
    assert codes(launcher, again, other) == [0, 0, 0]
    started = [members.log(name).count("All 3 members start") for name in ("n0", "n1", "n2")]
    assert started == [1, 1, 1]


def test_launcher_that_is_killed_and_restarted_finds_all_members(members: Members) -> None:
    launcher = members.start("n0", ["true"], count=3)
    worker = members.start("n1", ["true"])
    members.wait_for_output("n0", "n1 (")
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    again = members.start("n0", ["true"], count=3)
    last = members.start("n2", ["true"])
    assert codes(again, worker, last) == [0, 0, 0]


def test_superfluous_member_is_refused(members: Members, tmp_path: Path) -> None:
    go = tmp_path / "go"
    launcher = members.start("n0", ["sh", "-c", f"until test -e {go}; do sleep 0.2; done"], count=2)
    worker = members.start("n1", ["true"])
    members.wait_for_output("n1", "All 2 members start")
    late = members.start("n2", ["true"])
    assert codes(late) == [1]
    go.touch()
    assert codes(worker, launcher) == [0, 0]
    assert "The job has started without this member" in members.log("n2")


@pytest.mark.parametrize("reader", ["is gone", "was never there"])
def test_job_continues_when_its_stderr_is_not_read(members: Members, tmp_path: Path, reader: str) -> None:
    write = "echo to the log >&2; touch ran-$NODE_RANK; test -e ran-$NODE_RANK"
    command = ["sh", "-c", f"cd {tmp_path} && {write}"]
    worker = members.start("n1", command)
    read, written = os.pipe()
    os.close(read)
    closes = ("sh", "-c", 'exec "$@" 2>&-', "closes") if reader == "was never there" else ()
    launcher = members.start("n0", command, count=2, stderr=written, within=closes)
    os.close(written)
    assert codes(launcher, worker) == [0, 0]
    assert (tmp_path / "ran-0").exists()


def test_no_process_of_a_command_is_left_in_any_session(members: Members, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = ["sh", "-c", f"setsid sleep 1000 & echo $! >> {pids}; exit $((NODE_RANK * 3))"]
    launcher = members.start("n0", command, count=2)
    worker = members.start("n1", command)
    assert codes(launcher, worker) == [3, 3]
    assert not any(alive(int(line)) for line in pids.read_text().split())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_worker_stopped_after_its_command_has_ended_ends_the_job(
    members: Members, number: signal.Signals
) -> None:
    launcher = members.start("n0", ["sleep", "1000"], count=2)
    worker = members.start("n1", ["sh", "-c", "echo has ended"])
    members.wait_for_output("n1", "has ended")
    worker.send_signal(number)
    assert codes(worker, launcher) == [143, 143]


def test_rank_variables_of_a_batch_service_are_ignored(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "PET_STANDALONE"):
        monkeypatch.setenv(name, "64")
    show = ["sh", "-c", "env | grep -c =64$ || true"]
    launcher = members.start("n0", show, "--gpus-per-node", "2", count=1)
    assert codes(launcher) == [0]
    assert "\n0\n" in members.log("n0")


def test_names_are_in_etc_hosts_while_the_job_runs(members: Members, tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("127.0.0.1 localhost\n")
    show = ["sh", "-c", f"cat {file}"]
    launcher = members.start("n0", show, "--hosts-file", str(file), count=2)
    worker = members.start("n1", ["true"], "--hosts-file", "/proc/version")
    assert codes(launcher, worker) == [0, 0]
    assert "rank1" in members.log("n0")
    assert file.read_text() == "127.0.0.1 localhost\n"
    assert "The members' names are not in /proc/version" in members.log("n1")


def test_stopped_launcher_stops_all_members(members: Members) -> None:
    launcher = members.start("n0", ["sleep", "1000"], count=2)
    worker = members.start("n1", ["sleep", "1000"])
    members.wait_for_output("n1", "All 2 members start")
    launcher.send_signal(signal.SIGTERM)
    assert codes(launcher, worker) == [130, 130]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--role", "launcher", "--id", "x", "--nodes", "2", "--timout", "5"], "--timout"),
        (["--role", "launcher", "--id", " ", "--nodes", "2"], "needs a name"),
        (["--role", "launcher", "--id", "x", "--nodes", "2", "--timeout", "nan"], "--timeout is nan"),
        (["--role", "launcher", "--id", "x", "--insecure"], "how many members"),
        (["--role", "worker", "--id", "x", "--insecure"], "must know the launcher's address"),
        (["--role", "worker", "--id", "x", "--master", "10.1.2.3:29501"], "the port with --port"),
        (["--role", "launcher", "--id", "x", "--nodes", "2"], "There is no secret"),
        (["--role", "launcher", "--id", "x", "--nodes", "2", "--insecure", "--interface", "lo"], "127.0.0.1"),
        (
            ["--role", "worker", "--id", "x", "--insecure", "--master", "no.host.invalid", "--timeout", "1"],
            "no IPv4 address",
        ),
    ],
)
def test_bad_input_is_one_sentence(options: list[str], problem: str) -> None:
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("ROLE", "NUM_NODES", "MASTER_ADDR") and not key.startswith("RDZV_")
    }
    with Command("rendezvous", *options, "--", "true", environment=environment) as member:
        _, errors = member.communicate()
    assert member.returncode == 3
    assert problem in errors
    assert errors.count("Error: ") == 1


class CuttableProxy:
    """A connection to the launcher that can be cut: nothing passes then, and neither end notices.

    Args:
        port: The launcher's port.
    """

    def __init__(self, port: int) -> None:
        self._to, self._open = ("127.0.0.1", port), threading.Event()
        self._open.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Let nothing pass meanwhile."""
        self._open.clear()
        yield
        self._open.set()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._to)
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while block := source.recv(65536):
                self._open.wait()
                sink.sendall(block)
            self._open.wait()
            sink.shutdown(socket.SHUT_WR)


def member_without_the_secret_cannot_join(members: Members) -> Iterator[None]:
    ran = members.folder / "ran"
    (members.folder / "other").write_text("another secret, just as long\n")
    launcher = members.start("n0", ["true"], "--timeout", "3600", count=2)
    members.wait_for_output("n0", "waits for 1 members")
    stranger = members.start("n1", ["touch", str(ran)], "--timeout", "20", secret="other")
    yield
    assert codes(stranger) == [1]
    assert "does not know this job and its secret" in members.log("n1")
    # It tries every second, but is reported once.
    assert members.log("n0").count("Somebody at 127.0.0.1 has another secret or RDZV_ID") == 1
    assert not ran.exists()
    worker = members.start("n2", ["true"])
    assert codes(launcher, worker) == [0, 0]


def timeout_names_the_missing_count_and_the_present_members(members: Members) -> Iterator[None]:
    worker = members.start("n1", ["true"])
    members.wait_for_output("n1", "looks for the launcher")
    # Long enough that the worker, which tries every second, has come, however busy the machine is.
    launcher = members.start("n0", ["true"], "--timeout", "30", count=4)
    yield
    assert codes(launcher, worker) == [1, 1]
    for name in ("n0", "n1"):
        assert "2 of 4 members have not come" in members.log(name)
        assert "n1 (" in members.log(name)


def worker_that_dies_after_the_start_ends_the_job(members: Members) -> Iterator[None]:
    pid = members.folder / "pid"
    # Longer than a busy machine needs until the worker, which counts as lost otherwise, runs the command.
    launcher = members.start("n0", ["sleep", "1000"], "--lost-after", "20", count=2)
    worker = members.start("n1", ["sh", "-c", f"echo $$ > {pid}; exec sleep 1000"])
    members.wait_for_output("n1", "All 2 members start")
    wait_until("the command runs", pid.exists)
    number = int(wait_until("its number is there", pid.read_text))
    worker.send_signal(signal.SIGKILL)
    yield
    wait_until("the command is gone", lambda: not alive(number))
    assert codes(launcher) == [1]
    assert "n1 has not been heard of for" in members.log("n0")


def launcher_restarted_during_the_job_ends_it(members: Members) -> Iterator[None]:
    launcher = members.start("n0", ["sleep", "1000"], count=2)
    worker = members.start("n1", ["sleep", "1000"])
    members.wait_for_output("n1", "All 2 members start")
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    again = members.start("n0", ["sleep", "1000"], "--timeout", "20", count=2)
    yield
    assert codes(worker) == [1]
    assert "The launcher was started again" in members.log("n1")
    assert codes(again) == [1]


def job_survives_a_network_cut_of_20_s(members: Members) -> Iterator[None]:
    go = members.folder / "go"
    command = ["sh", "-c", f"while ! test -e {go}; do sleep 0.2; done; echo rank $NODE_RANK has ended"]
    launcher = members.start("n0", command, "--timeout", "3600", count=3)
    members.wait_for_output("n0", "waits for 2 members")
    with closing(CuttableProxy(members.port)) as line:
        first = members.start("n1", command, port=line.port)
        members.wait_for_output("n0", "n1 (")
        with line.cut():
            yield
            # Before the start, its rank becomes free meanwhile.
            members.wait_for_output("n0", "has gone")
        second = members.start("n2", command)
        members.wait_for_output("n1", "All 3 members start")
        with line.cut():
            time.sleep(20.0)
        with line.cut():
            # It ends while nothing passes; the launcher learns of it later.
            go.touch()
            members.wait_for_output("n1", "rank 1 has ended")
        assert codes(launcher, first, second) == [0, 0, 0], members.log("n0")


TIMEOUT_TESTS = (
    job_survives_a_network_cut_of_20_s,
    member_without_the_secret_cannot_join,
    timeout_names_the_missing_count_and_the_present_members,
    worker_that_dies_after_the_start_ends_the_job,
    launcher_restarted_during_the_job_ends_it,
)


@pytest.fixture(scope="module", autouse=True)
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    """The tests of timeouts, which begin before all others."""
    with ExitStack() as stack:
        yield begin(TIMEOUT_TESTS, lambda: stack.enter_context(Members(tmp_path_factory.mktemp("limit"))))


@pytest.mark.parametrize("test", TIMEOUT_TESTS, ids=lambda test: test.__name__)
def test_rendezvous_timeouts(begun: Begun, test: Test) -> None:
    next(begun[test], None)

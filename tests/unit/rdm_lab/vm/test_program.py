"""The program of a virtual machine's container: KVM only if it really works, and queries with a timeout."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.rdm_lab import role_program

RUNS = "echo 'rdm-lab: the kernel runs'; exec sleep 600"
# The last two words of QEMU's command line are `-accel WHAT`.
ONLY_WITHOUT_KVM = 'case "$*" in *" kvm") {broken};; esac; ' + RUNS


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = role_program.load("vm/rdm-lab")
    for name in ("KVM_START_S", "REPORT_TIMEOUT_S"):  # for a busy machine
        monkeypatch.setattr(module, name, 120.0)
    (tmp_path / "kvm").touch()
    (tmp_path / "ib0/master").mkdir(parents=True)
    for name, path in (
        ("KVM", "kvm"),
        ("ACCELERATOR", "accelerator"),
        ("REPORT", "report"),
        ("NET", "."),
    ):
        setattr(module, name, tmp_path / path)
    return module


def switched_on(program: ModuleType, script: str) -> str:
    """Start a machine, for which a script stands in; return its accelerator."""
    machine = program.switch_on(["sh", "-c", script, "qemu"])
    try:
        assert machine.process.poll() is None
        return str(machine.process.args[-1]).split(",")[0]
    finally:
        machine.end()
        assert machine.process.returncode is not None


def test_kvm_is_used_where_a_kernel_starts_with_it(program: ModuleType) -> None:
    assert switched_on(program, RUNS) == "kvm"
    assert program.ACCELERATOR.read_text() == "kvm\n"


@pytest.mark.parametrize(
    "broken",
    ["exit 1", "kill -ABRT $$", "echo 'KVM internal error. Suberror: 1' >&2; exec sleep 600"],
    ids=["refused", "aborted", "stopped"],
)
def test_a_kvm_that_is_there_and_runs_nothing_is_not_used(program: ModuleType, broken: str) -> None:
    assert switched_on(program, ONLY_WITHOUT_KVM.format(broken=broken)) == "tcg"
    assert program.ACCELERATOR.read_text() == "tcg\n"


def test_a_machine_that_hangs_with_kvm_is_waited_for_only_so_long(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "KVM_START_S", 0.5)
    assert switched_on(program, ONLY_WITHOUT_KVM.format(broken="exec sleep 600")) == "tcg"


def test_failed_kvm_is_not_tried_again(program: ModuleType) -> None:
    program.ACCELERATOR.write_text("tcg\n")
    assert switched_on(program, RUNS) == "tcg"


def test_a_machine_without_the_device(program: ModuleType) -> None:
    program.KVM.unlink()
    assert switched_on(program, RUNS) == "tcg"


def answering(path: Path, answer: bytes) -> None:
    """Answer the first query at a socket."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    server.listen()

    def serve() -> None:
        client, _ = server.accept()
        with server, client:
            client.recv(16)
            client.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()


def test_a_machine_that_is_ready(program: ModuleType) -> None:
    answering(program.REPORT, b"\n")
    assert program.wait(240.0) == 0


@pytest.mark.parametrize(
    ("answer", "words"),
    [(b"sshd does not answer\n", "sshd does not answer"), (b"half a li", "has not finished booting")],
)
def test_machine_that_is_not_ready_reports_the_reason(
    program: ModuleType, answer: bytes, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answering(program.REPORT, answer)
    assert program.wait(0.0) == 1
    assert words in capsys.readouterr().out


def test_machine_that_does_not_answer_is_still_booting(program: ModuleType) -> None:
    assert "has not finished booting" in program.missing(0.1)  # no socket
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(program.REPORT))
        server.listen()
        assert "has not finished booting" in program.missing(0.1)  # no server answers


def test_a_machine_without_its_cable_is_not_ready(program: ModuleType) -> None:
    (program.NET / "ib0/master").rmdir()
    answering(program.REPORT, b"\n")
    assert program.missing(60.0) == "ib0 is not plugged in"


def test_a_machine_with_two_cards_needs_both_cables(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "RAILS", range(2))
    answering(program.REPORT, b"\n")
    assert program.missing(60.0) == "ib1 is not plugged in"
    (program.NET / "ib1/master").mkdir(parents=True)
    program.REPORT.unlink()
    answering(program.REPORT, b"\n")
    assert program.missing(60.0) == ""

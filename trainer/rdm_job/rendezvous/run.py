# SPDX-License-Identifier: GPL-3.0-or-later
"""A member of a rendezvous from its start to its end."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rdm_core import config as configuration
from rdm_core.errors import FAILED, STOPPED, TrainerError
from rdm_job import devices
from rdm_job.control import ControlClient, ControlServer
from rdm_job.network import is_free, take_free_ports
from rdm_job.processes import allow_files
from rdm_job.rendezvous import fabric as fabrics
from rdm_job.rendezvous import hosts_file as hosts
from rdm_job.rendezvous.command import Command
from rdm_job.rendezvous.meeting import End, Launcher, Started, Worker
from rdm_job.rendezvous.record import Record
from rdm_job.rendezvous.roster import Member, Roster

if TYPE_CHECKING:
    from rdm_job.rendezvous.fabric import Fabric
    from rdm_job.rendezvous.workers import Workers

_VARIABLE = "RDZV_SECRET"
_SHORTEST = 16
_RETRY_S = 1.0
# The service that started this member may have set these for its own job.
_OTHERS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
)
_TORCHRUN_LOGS = ("--log-dir", "--log_dir", "--redirects", "--tee", "-r", "-t")
OWN_WORKLOADS = ("finetune", "train")


@dataclass(frozen=True)
class Plan:
    """The settings of a member.

    Args:
        command: The command to run after the start; ``train CONFIG`` is this program's own workload.
        member: This member.
        fabric: The fabric on which others reach it.
        port: The launcher's.
        secret: The key that all members share.
        timeout: Seconds that members wait for each other.
        lost_after: Seconds of silence after which a member is lost.
        hosts_file: The file to write members' names to, if any.
        job: The job's name, in the form of any job's.
        folder: The job's directory; nothing is kept without one.
        config: The job's configuration, YAML.
        master_port: The launcher's port for torch's store; by default a free one.
    """

    command: tuple[str, ...]
    member: Member
    fabric: Fabric
    port: int
    secret: bytes
    timeout: float
    lost_after: float
    hosts_file: Path | None = None
    job: str = ""
    folder: Path | None = None
    config: str = ""
    master_port: int | None = None


def read_secret(file: Path | None, *, is_insecure: bool, is_made: bool = False) -> str:
    """Return the secret that all members share.

    Args:
        file: The file that holds it; without one, RDZV_SECRET does.
        is_insecure: The user wants no secret.
        is_made: Make one if there is none: this launcher passes it on to all others.

    Raises:
        TrainerError: There is no valid secret.
    """
    if file is not None:
        try:
            text = file.read_text().strip()
            if file.stat().st_mode & 0o077:
                show(f"Others can read the secret in {file}: chmod 600 {file}.")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise TrainerError(f"The secret in {file} cannot be read: {reason}.") from None
        if not text:
            raise TrainerError(f"{file} is empty; write a secret with `openssl rand -base64 32`.")
    else:
        text = os.environ.get(_VARIABLE, "").strip()
    if not text and is_made:
        text = secrets.token_urlsafe(32)
    if text and is_insecure:
        source = file or _VARIABLE
        raise TrainerError(f"--insecure means no secret, but {source} has one; leave out one of the two.")
    if is_insecure:
        text = "no secret at all"
    if not text:
        raise TrainerError(
            "There is no secret, so that whoever reaches the launcher's port could take a place: set "
            "RDZV_SECRET or --secret-file on all members, or say --insecure on all."
        )
    if len(text) < _SHORTEST:
        raise TrainerError(f"The secret has {len(text)} characters; it needs {_SHORTEST} at least.")
    if len(text.splitlines()) > 1:
        raise TrainerError(
            "The secret has several lines; it must be one, as `openssl rand -base64 32` writes."
        )
    return text


def session_key(job: str, secret: str) -> bytes:
    """Return the key of a job's members, derived from their secret and different for each job."""
    # fsencode, because the environment may hold any bytes.
    return hmac.digest(os.fsencode(secret), os.fsencode(f"rdm-rendezvous {job}"), "sha256")


def own_member(
    name: str | None,
    interface: str,
    launcher: str,
    processes: int | None,
    timeout: float,
    versions: Mapping[str, str],
) -> tuple[Member, Fabric]:
    """Return this member and its fabric.

    Args:
        name: Its name; by default host name and address.
        interface: The interface on which others reach it, if the user chose one.
        launcher: The launcher's address or name; empty on the launcher itself.
        processes: How many it runs; by default one per GPU.
        timeout: Seconds to wait for the launcher's name to resolve, since a pod's may take a while.
        versions: Versions that must match on all members.

    Raises:
        TrainerError: Others could not reach it, or its name is invalid.
    """
    if launcher:
        launcher = _resolved(launcher, timeout)
    fabric = fabrics.find_fabric(interface, launcher)
    host = socket.gethostname().partition(".")[0]
    found = next(
        ((accelerator, count) for accelerator in ("cuda", "rocm") if (count := devices.count(accelerator))),
        ("", 0),
    )
    try:
        member = Member.read(
            {
                "name": name or f"{host}@{fabric.address}",
                "host": host,
                "address": fabric.address,
                "gpus": processes or found[1] or 1,
                "gpu": f"{found[0]} GPU" if found[1] else "",
                "versions": versions,
            }
        )
    except ValueError as error:
        raise TrainerError(f"This member cannot take part: {error}.") from None
    return member, fabric


def _resolved(name: str, timeout: float) -> str:
    """Return the IPv4 address of the launcher's name, as soon as it resolves."""
    until = time.monotonic() + timeout
    is_shown = False
    while True:
        try:
            return str(socket.getaddrinfo(name, None, socket.AF_INET)[0][4][0])
        except (OSError, UnicodeError) as error:
            is_final = not isinstance(error, socket.gaierror)
            if is_final or time.monotonic() > until:
                raise TrainerError(f"The launcher's name {name} has no IPv4 address here.") from None
        if not is_shown:
            is_shown = True
            show(f"The launcher's name {name} has no IPv4 address yet.")
        time.sleep(_RETRY_S)


def launch(plan: Plan, count: int, rank_by: str, workers: Workers | None = None) -> int:
    """Be the launcher.

    Args:
        plan: What this member does.
        count: The number of members, including this one.
        rank_by: As for :class:`Roster`.
        workers: The workers to start, if any.

    Returns:
        The job's exit code.

    Raises:
        TrainerError: It could not begin, or not all joined.
    """
    _prepare(plan)
    try:
        server = ControlServer("", plan.port, plan.secret, count)
    except OSError as error:
        raise TrainerError(
            f"Port {plan.port} cannot be listened on: {error.strerror}; choose another for all: --port."
        ) from None
    # The names in our templates; members with other names are only counted.
    ours = [] if workers is None else [f"worker-{number}" for number in range(1, count)]
    roster = Roster(plan.member, count, rank_by, [plan.member.name, *ours])
    show(f"{plan.member} waits for {count - 1} members at {plan.member.address}:{server.port}.")
    with contextlib.closing(server), _signalled() as is_signalled, contextlib.ExitStack() as stack:
        if workers is not None:
            stack.callback(workers.cancel)
            workers.start()
        launcher = Launcher(server, roster, secrets.token_hex(8), show)
        port = _store_port(plan)
        members = launcher.gather(
            plan.timeout, lambda: is_signalled() or bool(workers is not None and workers.problem)
        )
        if members is None:
            if workers is not None and workers.problem:
                raise TrainerError(workers.problem, exit_code=FAILED)
            return _ended(End(STOPPED, "The launcher was stopped before the start."))
        launcher.start(port)
        with _names(plan, members), _command(plan, Started(members, 0, port)) as (command, record):
            end = launcher.run(
                command, plan.lost_after, lambda: is_signalled() or record.should_stop, record.receive_report
            )
            record.end(end)
        if workers is not None and not is_signalled():
            # The workers have ended with the job: do not cancel them.
            stack.pop_all()
            workers.leave()
    return _ended(end)


def _store_port(plan: Plan) -> int:
    """Return a free port of the launcher for torch's store.

    Raises:
        TrainerError: No port is free, or the user's choice is in use.
    """
    if plan.master_port is not None:
        if is_free(plan.member.address, plan.master_port):
            return plan.master_port
        raise TrainerError(
            f"launcher.master_port {plan.master_port} is in use on {plan.member.name}; leave it out to take "
            "a free one."
        )
    ports = take_free_ports(plan.member.address, 1, secrets.randbelow(1 << 16))
    if ports is None:
        raise TrainerError("No port is free here for torch's store.", exit_code=FAILED)
    return ports[0]


def work(plan: Plan, launcher: str) -> int:
    """Be a worker.

    Args:
        plan: What this member does.
        launcher: The launcher's address or name.

    Returns:
        The job's exit code.

    Raises:
        TrainerError: It could not begin.
    """
    _prepare(plan)
    where = f"{launcher}:{plan.port}"
    connection = f"{plan.member.name}#{secrets.token_hex(8)}"
    client = ControlClient(launcher, plan.port, connection, plan.secret)
    show(f"{plan.member} looks for the launcher at {where}.")
    with contextlib.closing(client), _signalled() as is_signalled:
        worker = Worker(client, plan.member, show)
        found = worker.gather(plan.timeout, where, is_signalled)
        if isinstance(found, End):
            return _ended(found)
        with _names(plan, found.members), _command(plan, found) as (command, record):
            end = worker.run(
                command, plan.lost_after, lambda: is_signalled() or record.should_stop, record.report
            )
            record.end(end)
    return _ended(end)


def _prepare(plan: Plan) -> None:
    for library, package in fabrics.missing_libraries(plan.fabric).items():
        show(f"This host has an RDMA port, but no {library} for it: install {package}.")
    allow_files()


@contextlib.contextmanager
def _command(plan: Plan, started: Started) -> Iterator[tuple[Command, Record]]:
    """Run the command, record its output, and end all its processes."""
    # All members have joined, so the job's processes need no secret.
    left_out = {_VARIABLE, f"{_VARIABLE}_FILE", *_OTHERS}
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in left_out and (not name.startswith("PET_") or name == "PET_LOG_DIR")
    }
    if plan.config:
        environment |= configuration.load_text(plan.config).launcher.env
    environment |= started.variables()
    show(f"All {len(started.members)} members start; this one has rank {started.rank}.")
    with contextlib.ExitStack() as stack:
        record = Record(plan.job, plan.folder, plan.config, started, show)
        stack.callback(record.close)
        settings = fabrics.library_settings(plan.fabric)
        if not any(word.startswith(_TORCHRUN_LOGS) for word in plan.command):
            if record.logs is not None:
                settings |= {"PET_LOG_DIR": str(record.ranks), "PET_TEE": "3"}
            else:
                # torchrun leaves an empty log directory behind, so give it a temporary one.
                made = tempfile.TemporaryDirectory(prefix="rdm-rendezvous-", ignore_cleanup_errors=True)
                settings["PET_LOG_DIR"] = stack.enter_context(made)
        if record.logs is not None:
            # Python buffers its output to a pipe by default.
            settings["PYTHONUNBUFFERED"] = "1"
        fabrics.adopt(settings, environment)
        command = Command(_arguments(plan.command), environment, record.mark, record.logs)
        stack.callback(command.close)
        stack.callback(command.kill)
        yield command, record


def _arguments(command: Sequence[str]) -> list[str]:
    """Return the command, run by torchrun if it is a workload of ours."""
    if command[0] not in OWN_WORKLOADS:
        return list(command)
    return [sys.executable, "-m", "rdm_trainer.torchrun", "-m", "rdm_trainer", *command]


@contextlib.contextmanager
def _names(plan: Plan, members: Sequence[Member]) -> Iterator[None]:
    """Keep all members' names in the hosts file, if the user wants that and the file can be written."""
    file = plan.hosts_file
    if file is None:
        yield
        return
    # Two members or jobs on one host each have their own block.
    name = secrets.token_hex(4)
    try:
        hosts.change_in_place(file, lambda text: hosts.with_block(text, name, members))
    except (OSError, UnicodeDecodeError) as error:
        show(f"The members' names are not in {file}, which cannot be written: {error}.")
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            hosts.change_in_place(file, lambda text: hosts.without_block(text, name))


@contextlib.contextmanager
def _signalled() -> Iterator[Callable[[], bool]]:
    """Record signals instead of dying of them while the command still runs."""
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _frame: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ended(end: End) -> int:
    if end.reason:
        show(f"The job has ended: {end.reason}")
    for line in end.errors:
        show(f"  {line}")
    return end.code


def show(line: str) -> None:
    """Print a line for the user; a closed terminal does not end the job."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            # One write, so that lines of several processes do not mix.
            print(f"rendezvous: {line}\n", end="", file=sys.stderr, flush=True)

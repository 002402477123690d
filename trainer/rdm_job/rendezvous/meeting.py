# SPDX-License-Identifier: GPL-3.0-or-later
"""The messages between the launcher and the workers of a rendezvous.

    worker    join     its name, address and GPUs; again on every new connection, until the start
    worker    cannot   why neither it nor a successor can take part: the job does not start
    launcher  status   who has joined; every two seconds, as a heartbeat
    launcher  members  the list of all members by rank, and its round; once to each, when all have joined
    worker    ack      the round of the list that it has received
    launcher  start    the round that all have acknowledged: the command starts
    worker    alive    every two seconds, as a heartbeat; while the command runs, with this member's report
    worker    ended    its command's exit code and last errors; or that it was requested to stop
    launcher  end      the job's exit code and the reason: all commands are stopped
    worker    left     it has received the end, and its command has ended

A member that is lost before the start is replaced by a successor, and all get a new list. A slow one is
disconnected, and joins again. After the start, the first member that fails or is lost ends the job for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rdm_core.errors import DONE, FAILED, STOPPED, TrainerError
from rdm_job.culprit import how_it_ended
from rdm_job.rendezvous.command import TERM_S, Command
from rdm_job.rendezvous.roster import Member, Roster, differing
from rdm_job.rendezvous.transports import ClientTransport, ServerTransport
from rdm_log.printable import printable
from rdm_log.wording import listed

BEAT_S = 2.0
_GONE_S = 12.0
"""Before the start, a member whose connection has been closed for this many seconds is lost."""
_SILENT_S = 30.0
"""The same for a member that is connected but silent: its host is busy, or has died."""
_POLL_S = 0.2
_AGAIN_S = 0.5
"""Seconds after which the end is sent again to members that have not confirmed it."""
_LINGER_S = 15.0
"""How many seconds beyond ``TERM_S`` the launcher waits for all to confirm the end."""
_MUTE_S = 4 * BEAT_S
TERMINATED = 143
_STARTED = "The job has started without this member: all had come."
_REMIND_S = 30.0
_BAR = 20


@dataclass(frozen=True)
class Started:
    """The result of a rendezvous: everything a member needs to start its command.

    Args:
        members: All members by rank.
        rank: This one's.
        port: On the launcher, for torch's store.
    """

    members: tuple[Member, ...]
    rank: int
    port: int

    def variables(self) -> dict[str, str]:
        """Return the variables of this member's command; torchrun reads the PET ones as its options."""
        own = self.members[self.rank]
        count, processes = str(len(self.members)), str(own.gpus)
        master = self.members[0].address
        found = {
            "MASTER_ADDR": master,
            "MASTER_PORT": str(self.port),
            "NNODES": count,
            "NUM_NODES": count,
            "NODE_RANK": str(self.rank),
            "GROUP_RANK": str(self.rank),
            "NPROC_PER_NODE": processes,
            "GPUS_PER_NODE": processes,
            "PET_MASTER_ADDR": master,
            "PET_MASTER_PORT": str(self.port),
            "PET_NNODES": count,
            "PET_NODE_RANK": str(self.rank),
            "PET_NPROC_PER_NODE": processes,
        }
        if all(member.gpus == 1 for member in self.members):
            # With one process each, the command is the rank itself.
            found |= {"RANK": str(self.rank), "WORLD_SIZE": count, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        return found


@dataclass(frozen=True)
class End:
    """How a job ended.

    Args:
        code: The exit code of all members.
        reason: One sentence; empty after success.
        errors: The last lines of errors of the first member that failed.
        member: Its name.
    """

    code: int
    reason: str = ""
    errors: tuple[str, ...] = ()
    member: str = ""

    @classmethod
    def read(cls, message: Mapping[str, Any]) -> End:
        """Return the end from the launcher's message."""
        return cls(
            _number(message, "code", FAILED),
            printable(str(message.get("reason") or "")),
            _lines(message.get("errors")),
            printable(str(message.get("member") or "")),
        )


class Launcher:
    """The launcher's end.

    Args:
        server: The transport of workers' messages.
        roster: The members.
        session: Distinguishes this launcher from an earlier one that was killed.
        show: Prints a line for the user.
    """

    def __init__(
        self, server: ServerTransport, roster: Roster, session: str, show: Callable[[str], None]
    ) -> None:
        self._server, self._roster, self._session, self._show = server, roster, session, show
        self._beat = 0.0
        # Connection → the round of the list that it was sent.
        self._listed: dict[str, int] = {}
        self._shown_refused = 0
        self._problem = ""
        self._start: dict[str, Any] = {}

    def gather(
        self, timeout: float, should_stop: Callable[[], bool] = lambda: False
    ) -> tuple[Member, ...] | None:
        """Wait for all, and return the members by rank when all have acknowledged the list.

        Args:
            timeout: Seconds.
            should_stop: Whether to stop waiting, and return None.

        Raises:
            TrainerError: Not all joined in time, one cannot take part, or their versions differ.
        """
        until = time.monotonic() + timeout
        reminded = time.monotonic()
        while not should_stop():
            for connection, messages in self._server.receive(_POLL_S).items():
                for message in messages:
                    self._handle(connection, message)
            if self._roster.is_acknowledged:
                return tuple(self._roster.by_rank())
            if self._is_time():
                self._drop_silent()
                self._send_status()
            self._show_refused()
            if self._roster.is_complete:
                self._problem = self._problem or differing(self._roster.by_rank())
            if time.monotonic() > until:
                self._problem = self._problem or self._timeout_reason(timeout)
            if self._problem:
                self.cancel(self._problem)
                raise TrainerError(self._problem, exit_code=FAILED)
            self._send_list()
            if time.monotonic() - reminded >= _REMIND_S:
                reminded = time.monotonic()
                self._show(f"Still waiting: {self._state()}")
        self.cancel("The launcher was stopped before the start.", STOPPED)
        return None

    def cancel(self, reason: str, code: int = FAILED) -> None:
        """Cancel the job for all members before the start.

        Args:
            reason: One sentence.
            code: The exit code of all members.
        """
        self._server.send({"type": "end", "code": code, "reason": reason})

    def start(self, port: int) -> None:
        """Let all workers start.

        Args:
            port: On this host, for torch's store.
        """
        self._start = {
            "type": "start",
            "round": self._roster.round,
            "port": port,
            "session": self._session,
        }
        self._server.send(self._start)

    def run(
        self,
        command: Command,
        lost_after: float,
        should_stop: Callable[[], bool],
        receive_report: Callable[[str, Mapping[str, Any]], None],
    ) -> End:
        """Watch the job until all have ended, and return how it ended.

        Args:
            command: This member's own.
            lost_after: After this many seconds of silence a worker is lost.
            should_stop: Whether the user wants the job to end.
            receive_report: Gets a worker's name and its report.
        """
        names = {
            connection: member.name
            for connection in self._roster.connections
            if (member := self._roster.member(connection)) is not None
        }
        for connection in self._roster.waiting:
            self._refuse(connection, _STARTED)
        codes: dict[str, int] = {}
        left: set[str] = set()
        end: End | None = None
        ended_at = sent_at = 0.0
        while True:
            for connection, messages in self._server.receive(_POLL_S).items():
                for message in messages:
                    kind = message.get("type")
                    if kind == "join" and connection not in names:
                        self._refuse(connection, _STARTED)
                    elif kind == "join" and end is None:
                        # Its connection broke before it received the start.
                        self._server.send(self._start, to=[connection])
                    elif kind == "leave" and connection in names and end is None:
                        # It was stopped before it received the start.
                        codes[connection] = TERMINATED
                        left.add(connection)
                        end = End(TERMINATED, f"{names[connection]} was stopped.")
                    elif kind == "alive" and connection in names and message.get("report"):
                        receive_report(names[connection], message["report"])
                    elif kind in ("ended", "left") and connection in names:
                        codes[connection] = _number(message, "code", FAILED)
                        if kind == "left":
                            left.add(connection)
                        if end is None and message.get("is_stopped"):
                            end = End(TERMINATED, f"{names[connection]} was stopped.")
                        elif end is None and codes[connection]:
                            end = _failed(names[connection], codes[connection], message.get("errors"))
            own = command.poll()
            if own and end is None:
                end = _failed(self._roster.launcher.name, own, command.errors())
            lost = {one for one in names if (self._server.silent_for(one) or 0.0) > lost_after}
            for connection in lost - codes.keys():
                if end is None:
                    name = names[connection]
                    end = End(FAILED, f"{name} has not been heard of for {lost_after:g} s.", member=name)
            if end is None and should_stop():
                end = End(STOPPED, "The launcher was stopped.")
            if end is None and own == 0 and len(codes) == len(names):
                end = End(DONE)
            now = time.monotonic()
            if end is None:
                if self._is_time():
                    self._send_status()
                continue
            if not ended_at:
                ended_at = now
                command.stop()
            if now - sent_at >= _AGAIN_S:
                # To all, and again to those that do not confirm, since a connection may break meanwhile.
                lacking = names.keys() - left if sent_at else names.keys()
                self._server.send({"type": "end", **asdict(end)}, to=lacking)
                sent_at = now
            if own is not None and (names.keys() <= left | lost or now - ended_at > _LINGER_S + TERM_S):
                return end

    def _handle(self, connection: str, message: Mapping[str, Any]) -> None:
        kind = message.get("type")
        if kind == "ack":
            self._roster.acknowledge(connection, _number(message, "round", -1))
        if kind == "leave" and (gone := self._roster.leave(connection)) is not None:
            self._show(f"{gone} has gone. {self._state()}")
        if kind == "cannot":
            self._problem = printable(str(message.get("reason")))
        if kind != "join":
            return
        given = message.get("member")
        try:
            member = Member.read(given if isinstance(given, dict) else {})
            known = self._roster.member(connection)
            replaced = self._roster.join(connection, member)
        except ValueError as error:
            self._refuse(connection, f"The launcher refuses this member: {error}.")
            return
        if replaced is not None:
            self._refuse(replaced, f"A later process is called {member.name}, too, and takes its place.")
        # A member's new connection has missed the messages sent meanwhile.
        self._listed.pop(connection, None)
        if known is None and self._roster.member(connection) is not None:
            self._show(f"{member} has come{' again' if replaced else ''}. {self._state()}")

    def _refuse(self, connection: str, reason: str) -> None:
        self._server.send({"type": "end", "code": FAILED, "reason": reason}, to=[connection])

    def _send_list(self) -> None:
        """Send the list of members, once it is complete, to those that do not have it yet."""
        roster = self._roster
        if not roster.is_complete:
            return
        lacking = [one for one in roster.connections if self._listed.get(one) != roster.round]
        if lacking:
            self._listed.update(dict.fromkeys(lacking, roster.round))
            listed = [member.to_dict() for member in roster.by_rank()]
            message = {"members": listed, "round": roster.round, "session": self._session}
            self._server.send({"type": "members", **message}, to=lacking)

    def _drop_silent(self) -> None:
        for connection in [*self._roster.connections, *self._roster.waiting]:
            most = _SILENT_S if self._server.is_connected(connection) else _GONE_S
            if (self._server.silent_for(connection) or 0.0) > most:
                member = self._roster.leave(connection)
                self._server.disconnect(connection)
                self._show(f"{member} has gone. {self._state()}")

    def _show_refused(self) -> None:
        for address in self._server.refused[self._shown_refused :]:
            self._show(f"Somebody at {address} has another secret or RDZV_ID, and takes no part.")
        self._shown_refused = len(self._server.refused)

    def _state(self) -> str:
        """Return who has joined and who is missing, with a progress bar."""
        required, missing = self._roster.required, self._roster.missing
        if not missing:
            return f"All {required} are here."
        width = min(required, _BAR)
        bar = ("#" * (width * (required - missing) // required)).ljust(width, ".")
        here = listed([member.name for member in self._roster.by_rank()])
        away = listed(self._roster.missing_names)
        return (
            f"[{bar}] {required - missing} of {required} are here: {here}; "
            f"{away or missing} {'is' if missing == 1 else 'are'} missing."
        )

    def _is_time(self) -> bool:
        """Whether the next heartbeat is due."""
        now = time.monotonic()
        if now - self._beat < BEAT_S:
            return False
        self._beat = now
        return True

    def _send_status(self) -> None:
        self._server.send({"type": "status", "session": self._session, "state": self._state()})

    def _timeout_reason(self, timeout: float) -> str:
        roster = self._roster
        here = ", ".join(str(member) for member in roster.by_rank())
        missing = f"{roster.missing} of {roster.required} members have not come"
        if names := roster.missing_names:
            missing += f" ({listed(names)})"
        if roster.is_complete:
            missing = "not all members have acknowledged the list of members"
        refused = ", ".join(self._server.refused)
        others = f"; with another secret or RDZV_ID came {refused}" if refused else ""
        return f"After {timeout:g} s, {missing}; here are {here}{others}."


class Worker:
    """A worker's end."""

    def __init__(self, client: ClientTransport, member: Member, show: Callable[[str], None]) -> None:
        self._client, self._member, self._show = client, member, show
        self._beat = 0.0
        self._was_proven = False
        self._connected = 0.0
        self._session = ""
        self._state = ""
        self._ended: dict[str, Any] | None = None
        self._listed: tuple[int, list[dict[str, Any]]] | None = None
        self._reminded = time.monotonic()
        self._report: Callable[[], Mapping[str, Any]] = dict

    def gather(self, timeout: float, where: str, should_stop: Callable[[], bool]) -> Started | End:
        """Wait for the start.

        Args:
            timeout: Seconds.
            where: The launcher, for messages.
            should_stop: Whether the user wants this member to end.

        Returns:
            The start, or the end if this member does not start.

        Raises:
            TrainerError: The launcher did not let it start in time.
        """
        until = time.monotonic() + timeout
        while not should_stop():
            for message in self._receive(joins=True):
                kind = message.get("type")
                if kind == "members" and self._member.to_dict() in message["members"]:
                    self._listed = int(message["round"]), message["members"]
                    self._client.send({"type": "ack", "round": message["round"]})
                if kind == "start" and self._listed is not None and message["round"] == self._listed[0]:
                    # Parsed only now: the list may be long, and could still change before the start.
                    members = tuple(map(Member.read, self._listed[1]))
                    return Started(members, members.index(self._member), int(message["port"]))
                if kind == "end":
                    return End.read(message)
            self._remind(where)
            if time.monotonic() > until:
                raise TrainerError(f"After {timeout:g} s, {self._waiting_reason(where)}.", exit_code=FAILED)
        self._client.send({"type": "leave"})
        self._client.receive(_POLL_S)
        return End(STOPPED, "This member was stopped before the start.")

    def run(
        self,
        command: Command,
        lost_after: float,
        should_stop: Callable[[], bool],
        report: Callable[[], Mapping[str, Any]],
    ) -> End:
        """Run the command until the launcher ends the job; return how it ended.

        Args:
            command: This member's.
            lost_after: After this many seconds of silence the launcher is lost.
            should_stop: Whether the user wants this member to end.
            report: Returns this member's report.
        """
        self._report = report
        own: int | None = None
        end: End | None = None
        session = self._session
        is_stopped = False
        while end is None:
            for message in self._receive(joins=False):
                if message.get("type") == "end":
                    end = End.read(message)
            if end is None and self._session != session:
                end = End(FAILED, "The launcher was started again, and knows nothing of this job.")
            if end is None and self._client.silent_for() > lost_after:
                end = End(FAILED, f"The launcher has not been heard of for {lost_after:g} s.")
            if should_stop() and not is_stopped:
                is_stopped = True
                command.stop()
                if not own:
                    # Not the command's own exit code: torchrun's is 1 after a signal.
                    self._send_end(code=TERMINATED, is_stopped=True)
            if own is None and (own := command.poll()) is not None and not is_stopped:
                self._send_end(code=own, errors=command.errors() if own else [])
        command.stop()
        while own is None and (own := command.poll()) is None:
            self._receive(joins=False)
        self._client.send({"type": "left", "code": own})
        self._client.receive(_POLL_S)
        return end

    def _send_end(self, **how: Any) -> None:
        """Send how this member has ended, now and on every later connection."""
        self._ended = {"type": "ended", **how}
        self._client.send(self._ended)

    def _receive(self, *, joins: bool) -> list[dict[str, Any]]:
        messages = self._client.receive(_POLL_S)
        if self._client.is_proven and not self._was_proven:
            self._connected = time.monotonic()
            if joins:
                self._client.send({"type": "join", "member": self._member.to_dict()})
            elif self._ended is not None:
                self._client.send(self._ended)
        self._was_proven = self._client.is_proven
        for message in messages:
            self._session = str(message.get("session") or self._session)
            self._state = printable(str(message.get("state") or self._state))
        now = time.monotonic()
        if self._client.is_proven and self._client.silent_for() > _MUTE_S < now - self._connected:
            # Four heartbeats are missing: a firewall may have dropped the connection.
            self._client.connect_again()
        if now - self._beat >= BEAT_S:
            self._beat = now
            self._client.send({"type": "alive", "report": self._report()})
        return messages

    def _remind(self, where: str) -> None:
        if time.monotonic() - self._reminded >= _REMIND_S:
            self._reminded = time.monotonic()
            self._show(f"Still waiting: {self._waiting_reason(where)}.")

    def _waiting_reason(self, where: str) -> str:
        if self._client.is_proven and self._state:
            return f"the launcher at {where} waits for others: {self._state.removesuffix('.')}"
        if self._client.was_refused:
            return f"what answers at {where} does not know this job and its secret"
        return f"nothing answers at {where}"


def _failed(name: str, code: int, errors: Any) -> End:
    return End(code, f"{name} failed: {how_it_ended(code)}.", _lines(errors), name)


def _lines(given: Any) -> tuple[str, ...]:
    """Return another member's lines, made safe for a terminal."""
    return tuple(printable(str(line)) for line in given) if isinstance(given, list) else ()


def _number(message: Mapping[str, Any], key: str, otherwise: int) -> int:
    value = message.get(key, otherwise)
    return value if isinstance(value, int) else otherwise

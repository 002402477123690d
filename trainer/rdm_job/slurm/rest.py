# SPDX-License-Identifier: GPL-3.0-or-later
"""Slurm through slurmrestd, with a token: the same queries and actions as in ``commands``."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import re
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rdm_core.config.job import SlurmConfig, at_home
from rdm_job.slurm import commands, rest_forms, states, token
from rdm_job.slurm.accounting import Accounting, Association
from rdm_job.slurm.commands import SlurmError
from rdm_job.slurm.limits import ClusterNode, Partition
from rdm_job.slurm.states import SlurmJob

_TIMEOUT_S = 60
_UNIX = "unix:"
_Found = TypeVar("_Found")


class _NotServedError(SlurmError):
    """The server has no such path, such as those of the accounting without slurmdbd."""


class Access(Protocol):
    """The interface to Slurm, through its programs (the module ``commands``) or slurmrestd."""

    def is_there(self) -> bool:
        """Whether jobs can be submitted from here."""

    def cluster(self) -> tuple[list[Partition], list[ClusterNode]]:
        """Return the cluster's partitions and nodes."""

    def accounting(self) -> Accounting:
        """Return what the accounting allows this user's jobs, as far as it can be queried."""

    def would_run(self, script: Path) -> str:
        """Return why Slurm refuses a script; empty if it accepts it."""

    def submit(self, directory: Path, script: str) -> int:
        """Submit a script from its directory, and return the job's id."""

    def queue(self) -> list[SlurmJob]:
        """Return the jobs in Slurm's memory."""

    def recorded(self, number: int) -> SlurmJob | None:
        """Return a job's record in the accounting; None if there is no accounting or no record."""

    def cancel(self, number: int) -> None:
        """Cancel a job. It is no error if the job has ended."""


@dataclass(frozen=True)
class Rest:
    """A slurmrestd server.

    Attributes:
        address: ``http://HOST:PORT``, ``https://HOST:PORT`` or ``unix:/PATH``.
        token_file: The file with the user's token, unless ``SLURM_JWT`` has it.

    All methods raise SlurmError, with one sentence, without a valid token or a reply.
    """

    address: str
    token_file: str

    def is_there(self) -> bool:
        """Whether jobs can be submitted from here. The first request shows whether the server replies."""
        return True

    def cluster(self) -> tuple[list[Partition], list[ClusterNode]]:
        """Return the cluster's partitions and nodes."""
        found = (self._get("partitions"), self._get("nodes"))
        return self._read(rest_forms.partitions, found[0]), self._read(rest_forms.nodes, found[1])

    def accounting(self) -> Accounting:
        """Return this user's accounts; their limits and enforcement cannot be queried this way."""
        with contextlib.suppress(SlurmError):
            answer = self._get("associations", "slurmdb")
            user = self._token().user
            names = self._read(lambda found: rest_forms.accounts(found, user), answer)
            return Accounting(user=user, associations=[Association(name, user) for name in names])
        return Accounting()

    def would_run(self, script: Path) -> str:
        """Return why a script cannot be sent. slurmrestd has no test run, so Slurm may still refuse it."""
        try:
            rest_forms.submission(script.read_text(encoding="utf-8"), "", {}, _api(self))
        except ValueError as error:
            return str(error)
        return ""

    def submit(self, directory: Path, script: str) -> int:
        """Submit a script from its directory, and return the job's id."""
        text = (directory / script).read_text(encoding="utf-8")
        try:
            request = rest_forms.submission(text, str(directory), commands.environment(), _api(self))
        except ValueError as error:
            raise SlurmError(str(error)) from None
        answer = self._request("POST", f"/slurm/{rest_forms.name(_api(self))}/job/submit", request)
        number = answer.get("job_id")
        if not isinstance(number, int) or number <= 0:
            raise SlurmError(f"slurmrestd at {self.address} returned no number of a job.")
        return number

    def queue(self) -> list[SlurmJob]:
        """Return the jobs in Slurm's memory."""
        return self._read(states.of_answer, self._get("jobs"))

    def recorded(self, number: int) -> SlurmJob | None:
        """Return a job's record in the accounting; None if there is no accounting or no record."""
        try:
            answer = self._get(f"job/{number}", "slurmdb")
        except _NotServedError:
            return None
        return states.the_job(self._read(states.of_answer, answer), number)

    def cancel(self, number: int) -> None:
        """Cancel a job. It is no error if the job has ended."""
        try:
            self._request("DELETE", f"/slurm/{rest_forms.name(_api(self))}/job/{number}")
        except SlurmError as error:
            if not _HAS_ENDED.search(str(error)):
                raise

    def specification(self) -> str:
        """Return the server's OpenAPI specification."""
        status, text = self._exchange("GET", "/openapi/v3", None, self._token())
        if status != http.client.OK:
            raise self._error(status, text.strip()[:200])
        return text

    def _token(self) -> token.Token:
        return token.read(self.token_file, os.environ)

    def _get(self, what: str, part: str = "slurm") -> dict[str, Any]:
        return self._request("GET", f"/{part}/{rest_forms.name(_api(self))}/{what}")

    def _request(self, method: str, path: str, request: Any = None) -> dict[str, Any]:
        """Send a request, and return the reply.

        Raises:
            SlurmError: It is refused, or there is no reply.
        """
        status, text = self._exchange(method, path, request, self._token())
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if status != http.client.OK or not isinstance(answer, dict) or rest_forms.error_text(answer):
            # A reply that is not JSON is a short text.
            raise self._error(
                status, rest_forms.error_text(answer) if answer is not None else text.strip()[:200]
            )
        return answer

    def _read(self, reader: Callable[[dict[str, Any]], _Found], answer: dict[str, Any]) -> _Found:
        """Parse a reply.

        Raises:
            SlurmError: It has another form.
        """
        try:
            return reader(answer)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise SlurmError(f"slurmrestd at {self.address} answers in a form that is not known.") from None

    def _error(self, status: int, message: str) -> SlurmError:
        where = f"slurmrestd at {self.address}"
        source = self._token().source
        # Slurm 24.11 sends the second one for a token signed with another key.
        if status in (http.client.UNAUTHORIZED, http.client.NETWORK_AUTHENTICATION_REQUIRED):
            return SlurmError(
                f"{where} does not take the token in {source}: make another with scontrol token."
            )
        if status == http.client.NOT_FOUND:
            return _NotServedError(f"{where} does not serve this request.")
        text = re.sub(r"\s+", " ", message).rstrip(".") or f"status {status}"
        silent = status >= http.client.INTERNAL_SERVER_ERROR and _SILENT.search(text)
        if silent or status == http.client.BAD_GATEWAY:
            return SlurmError(
                f"{where} says {text!r}: Slurm's controller does not answer it, or does not take the token "
                f"in {source}."
            )
        return SlurmError(f"{where} says: {text}.")

    def _exchange(self, method: str, path: str, request: Any, mine: token.Token) -> tuple[int, str]:
        """Send a request, and return the status and the text of the reply."""
        headers = {
            "Accept": "application/json",
            "X-SLURM-USER-NAME": mine.user,
            "X-SLURM-USER-TOKEN": mine.text,
        }
        body = None
        if request is not None:
            headers["Content-Type"] = "application/json"
            body = json.dumps(request).encode()
        connection = _connection(self.address)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        except UnicodeError:
            # From IDNA: a label is empty or too long.
            raise SlurmError(f"slurmrestd at {self.address} has a name that no host can have.") from None
        except (OSError, http.client.HTTPException) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error) or "it hung up"
            raise SlurmError(f"slurmrestd at {self.address} does not answer: {why.rstrip('.')}.") from None
        finally:
            connection.close()


_HAS_ENDED = re.compile(r"already complet|Invalid job id|Unable to find", re.IGNORECASE)
"""slurmrestd's errors for a job that has ended."""
_SILENT = re.compile(
    r"Unspecified error|Failed while looking|Zero Bytes|Protocol authentication|Unable to contact"
    r"|unable to load",
    re.IGNORECASE,
)
"""slurmrestd's errors when the controller did not answer, or did not accept the token."""


def access(address: str | None, token_file: str | None) -> Access:
    """Return the interface to Slurm: slurmrestd if there is an address, otherwise Slurm's programs."""
    return Rest(address, at_home(token_file or "~/.slurm.jwt")) if address else commands


def of_config(slurm: SlurmConfig) -> Access:
    """Return the interface to Slurm for a job's configuration."""
    return access(slurm.rest, slurm.rest_jwt)


@functools.cache
def _api(server: Rest) -> int:
    """Return the newest API version that both a server and this trainer support.

    Raises:
        SlurmError: There is none, or the server does not answer.
    """
    found = rest_forms.newest(server.specification())
    if found is None:
        known = ", ".join(map(rest_forms.name, rest_forms.APIS))
        raise SlurmError(f"slurmrestd at {server.address} speaks none of {known}.")
    return found


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        """Connect."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _connection(address: str) -> http.client.HTTPConnection:
    """Return a connection that opens with the first request. Certificates are verified."""
    if address.startswith(_UNIX):
        return _UnixConnection(address.removeprefix(_UNIX))
    scheme, _, host = address.partition("://")
    if scheme == "https":
        return http.client.HTTPSConnection(
            host.rstrip("/"), timeout=_TIMEOUT_S, context=ssl.create_default_context()
        )
    return http.client.HTTPConnection(host.rstrip("/"), timeout=_TIMEOUT_S)

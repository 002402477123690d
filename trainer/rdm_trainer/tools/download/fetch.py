# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetch a file over HTTP: resumed where it broke off, verified, and given its name when it is complete."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdm_core.errors import FAILED, TrainerError

_READ = 1 << 20
_TIMEOUT = 30.0
# How many attempts in a row may fetch nothing, and the seconds before the second of them, doubled each time.
FRUITLESS = 5
_PAUSE = 0.5


@dataclass
class Transfer:
    """The progress of a transfer: bytes done and in all (None if the server does not say)."""

    name: str
    done: int = 0
    total: int | None = None


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(
    url: str,
    path: Path,
    *,
    sha256: str | None = None,
    report: Callable[[Transfer], None] = lambda _: None,
    attempts: int = FRUITLESS,
    pause: float = _PAUSE,
) -> bool:
    """Fetch a file.

    Args:
        url: Where it is.
        path: Its path here. An existing file is kept if its checksum is right or not known.
        sha256: Its checksum, if it is known.
        report: Called as bytes arrive.
        attempts: How many attempts in a row may fetch nothing.
        pause: Seconds before the second of several attempts that fetch nothing.

    Returns:
        Whether anything was fetched; False if the file existed.

    Raises:
        TrainerError: It cannot be fetched, or has another checksum. What has arrived is kept for the next
            attempt.
    """
    if path.is_file():
        if sha256 is None or digest(path) == sha256:
            return False
        raise TrainerError(
            f"{path} is there, but is not the file from {url} (SHA-256 {sha256}): remove it, or fetch into "
            "another directory."
        )
    part = path.with_name(f".{path.name}.part")
    note = path.with_name(f".{path.name}.from")
    fruitless = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            before = part.stat().st_size if part.exists() else 0
            try:
                if _continue(url, part, note, Transfer(path.name), report):
                    break
                reason = "the connection broke off"
            except urllib.error.HTTPError as error:
                if error.code < 500 and error.code not in (408, 429):
                    raise TrainerError(
                        f"{url} answers {error.code} {error.reason}: give another place with --mirror."
                    ) from None
                reason = f"{error.code} {error.reason}"
            except (
                urllib.error.URLError,
                http.client.HTTPException,
                TimeoutError,
                ConnectionError,
                ssl.SSLError,
            ) as error:
                reason = str(getattr(error, "reason", error) or type(error).__name__)
            fruitless = 0 if part.exists() and part.stat().st_size > before else fruitless + 1
            if fruitless >= attempts:
                raise TrainerError(
                    f"{url} cannot be fetched ({reason}); what has arrived is kept: try again, or give "
                    "another place with --mirror.",
                    exit_code=FAILED,
                )
            if fruitless:
                time.sleep(pause * 2 ** (fruitless - 1))
        if sha256 is not None and (found := digest(part)) != sha256:
            part.unlink()
            note.unlink(missing_ok=True)
            raise TrainerError(
                f"what {url} gives is not {path.name}: its SHA-256 is {found} instead of {sha256}."
            )
        part.replace(path)
        note.unlink(missing_ok=True)
    except OSError as error:
        raise TrainerError(
            f"{error.filename or path} cannot be written: {error.strerror}.", exit_code=FAILED
        ) from error
    return True


def _continue(
    url: str, part: Path, note: Path, transfer: Transfer, report: Callable[[Transfer], None]
) -> bool:
    """Fetch the missing rest of a part; return whether it is complete.

    ``note`` keeps the address and the server's name of this version, so that no two versions are mixed.
    """
    if not url.startswith(("http://", "https://")):
        raise TrainerError(f"{url!r} is no address: it must begin with http:// or https://.")
    begun = _read_note(note, url) if part.exists() else None
    size = part.stat().st_size if begun is not None else 0
    request = urllib.request.Request(url, headers={"User-Agent": "rdm-trainer"})  # noqa: S310  # checked above
    if begun is not None and size:
        request.add_header("Range", f"bytes={size}-")
        request.add_header("If-Range", begun)
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT)  # noqa: S310  # checked above
    except urllib.error.HTTPError as error:
        if error.code == 416 and size:
            # Nothing is left, or the file has become shorter; only its length shows which.
            if error.headers.get("Content-Range") == f"bytes */{size}":
                return True
            part.unlink()
            return False
        raise
    with response, contextlib.ExitStack() as stack:
        whole, length = _lengths(response.headers, size)
        resumed = response.status == 206
        if not resumed:
            size, whole = 0, length
            version = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
            note.write_text(json.dumps([url, "" if version.startswith("W/") else version]))
        elif whole is None:
            part.unlink()
            return False
        file = stack.enter_context(part.open("ab" if resumed else "wb"))
        transfer.done, transfer.total = size, whole
        while data := response.read(_READ):
            file.write(data)
            transfer.done += len(data)
            report(transfer)
    return whole is None or transfer.done == whole


def _read_note(note: Path, url: str) -> str | None:
    """Return the server's name of the version that was begun; None if it is not known."""
    try:
        address, version = json.loads(note.read_text())
    except (OSError, ValueError):
        return None
    return version if address == url and version else None


def _lengths(headers: Any, begin: int) -> tuple[int | None, int | None]:
    """Return the file's length from a Content-Range that begins at this byte, and the answer's length."""
    whole = None
    unit, _, rest = headers.get("Content-Range", "").partition(" ")
    span, _, total = rest.partition("/")
    if unit == "bytes" and span.startswith(f"{begin}-") and total.isdigit():
        whole = int(total)
    length = headers.get("Content-Length")
    return whole, int(length) if length and length.isdigit() else None

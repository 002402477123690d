# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the variables that a shell file sets, with a bash that can do nothing else.

Bash is restricted (``bash -r``), finds no program, may open no file, pipe or socket, and has only the
builtins that settings need. So it can neither start programs nor read or write files. Processes that it forks
are killed with it.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import secrets
import shutil
import signal
import subprocess

from rdm_core.errors import ConfigError

_SECONDS = 10
_BUILTINS = (
    ": [ break compgen continue declare echo enable eval exit export false let local printf readonly return "
    "shift test true typeset ulimit unset"
)
_LIMITS = "; ".join(
    (
        f"for __name in $(compgen -b); do case ' {_BUILTINS} ' in "
        '*" $__name "*) ;; *) enable -n "$__name"; esac; done',
        # No core dump; no open file, not even after closing one; 2 s of CPU time; no further process, which
        # does not apply to root; 100,000 KiB of memory.
        "ulimit -c 0 -n 0 -t 2 -u 1 -v 100000",
        # Print the names of bash's own variables.
        "compgen -v",
        "enable -n compgen enable ulimit",
    )
)
_PRINT = """for __letter in {a..z} {A..Z} _; do
eval 'for __name in ${!'$__letter'@}; do printf "%s\\0%s\\0" "$__name" "${!__name-}"; done'; done"""
_ENVIRONMENT = {"PATH": "/nonexistent", "HOME": "$HOME", "USER": "$USER", "LC_ALL": "C.UTF-8"}
"""Variables that every shell has keep their names as values, because the job may run on another host."""
_MESSAGE = re.compile(r"bash: (?:eval: )?line (\d+): (.*)")
_UNSET = re.compile(r"(\w+): unbound variable")


def variables(text: str, source: str) -> dict[str, str]:
    """Return the variables that a file sets, by name, with their values in the shell.

    Raises:
        ConfigError: The file does more than set variables, is not a shell file, or exits.
    """
    # Add nothing that shifts the file's lines, so that bash's line numbers are right.
    word = f"rdm-{secrets.token_hex(16)}"
    mark, print_mark = f"\0{word}\0", rf"printf '\0{word}\0'"
    script = f"{_LIMITS}; {print_mark}; {text}\n{print_mark}; {_PRINT}\n"
    try:
        status, output, errors = _run(script.encode())
    except OSError as error:
        raise ConfigError(
            [f"{source} is read by bash, which does not start here: {error.strerror}."]
        ) from None
    except subprocess.TimeoutExpired:
        raise ConfigError(
            [f"{source} takes bash longer than {_SECONDS} seconds; it may only set variables."]
        ) from None
    parts = output.decode("utf-8", "replace").split(mark)
    if status or errors or len(parts) != 3:
        raise ConfigError([_problem(parts, errors.decode("utf-8", "replace"), text, source)])
    own = {*parts[0].split(), "__letter", "__name"}
    names, values = (parts[2].split("\0")[which::2] for which in (0, 1))
    return {name: value for name, value in zip(names, values, strict=False) if name not in own}


def _run(script: bytes) -> tuple[int, bytes, bytes]:
    """Run a script with bash; return its status, output and errors."""
    with subprocess.Popen(
        ["bash", "--noprofile", "--norc", "-reuf", "-s"],
        executable=shutil.which("bash") or "/bin/bash",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_ENVIRONMENT,
        cwd="/",
        start_new_session=True,
    ) as bash:
        try:
            output, errors = bash.communicate(script, timeout=_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(bash.pid, signal.SIGKILL)
    return bash.returncode, output, errors


def _problem(parts: list[str], errors: str, text: str, source: str) -> str:
    message = next(filter(None, map(_MESSAGE.fullmatch, errors.splitlines())), None)
    printed = parts[1].strip().rpartition("\n")[2] if len(parts) > 1 else ""
    if message is None:
        return (
            f"{source} ends itself{f': {_short(printed)!r}' if printed else ''}; it may only set variables."
        )
    line, why = int(message[1]), message[2]
    if unset := _UNSET.fullmatch(why):
        names = re.findall(r"\b([A-Za-z_]\w*)=", text)
        near = difflib.get_close_matches(unset[1], names, n=1)
        why = f"{unset[1]} is not set before{f'; did you mean {near[0]}?' if near else ''}"
    if printed and "return" in why:
        why = f"the file ends itself there: {_short(printed)!r}"
    return f"{source} (line {line}): {_short(why)}{'' if why.endswith('?') else '.'}"


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:197]}..."

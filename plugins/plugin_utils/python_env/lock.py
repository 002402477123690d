# SPDX-License-Identifier: GPL-3.0-or-later
"""The sources of bare hosts' Python environments: a lock file and a wheel, made on the controller.

uv makes the lock file. It has the trainer's pinned requirements, torch's dependencies, and the digests of
their files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import write_whole
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    Problem,
)

LOCK_FILE = "python_env.lock"
"""Next to the inventory, so that everybody who uses the inventory makes the same environments."""
_LIMIT_S = 1800.0
"""Timeout of uv and hatchling: an index can be slow, and uv may have to build a package for its metadata."""
_NEEDS = "install it: pip install 'rdm-provision[env]'"
_SOURCES = ("pyproject.toml", "README.md", "rdm_core", "rdm_job", "rdm_log", "rdm_planner", "rdm_trainer")


class Sources(NamedTuple):
    """Where the controller looks for packages; empty values mean uv's default.

    Attributes:
        index_url: the index.
        extra_index_urls: further indexes.
        find_links: directories, or URLs of pages, with packages.
        torch_backend: uv's option, such as cpu or cu128.
        proxy: for HTTP and HTTPS.
    """

    index_url: str = ""
    extra_index_urls: Sequence[str] = ()
    find_links: Sequence[str] = ()
    torch_backend: str = ""
    proxy: str = ""

    def variables(self) -> dict[str, str]:
        """Return them as environment variables of uv."""
        found = {
            "UV_DEFAULT_INDEX": self.index_url,
            "UV_INDEX": " ".join(self.extra_index_urls),
            "UV_FIND_LINKS": ",".join(self.find_links),
            "UV_TORCH_BACKEND": self.torch_backend,
            "HTTP_PROXY": self.proxy,
            "HTTPS_PROXY": self.proxy,
        }
        return {name: value for name, value in found.items() if value}


def lock_file(build: str) -> str:
    """Return the name of the lock file, which has the build's name if each node may have another build."""
    return LOCK_FILE.replace(".lock", f".{build}.lock") if build else LOCK_FILE


def find_uv() -> str:
    """Return the path of uv, next to this Python or on the PATH.

    Raises:
        PreconditionFailed: there is none.
    """
    bundled = os.path.join(os.path.dirname(sys.executable), "uv")
    found = bundled if os.access(bundled, os.X_OK) else shutil.which("uv")
    if found is None:
        raise PreconditionFailed(
            [Problem(None, "uv", "is not on this machine, and makes the lock file", _NEEDS)]
        )
    return found


def requirements_of(trainer: Path, torch: str, extras: Iterable[str] = ()) -> str:
    """Return the trainer's pins.

    Args:
        trainer: the directory `trainer` of the project.
        torch: a requirement of torch that replaces the pinned one; may be empty.
        extras: further sets of requirements, such as ``finetune``.
    """
    names = ["runtime", *sorted(set(extras))]
    text = "".join((trainer / f"requirements/{name}.txt").read_text(encoding="utf-8") for name in names)
    lines = [line for line in text.splitlines() if line and line[0] != "#"]
    return "".join(f"{torch if torch and line.startswith('torch==') else line}\n" for line in lines)


def first_line(requirements: str, python: str, torch_backend: str) -> str:
    """Return the first line of a lock file, with a digest of what it was made from."""
    of = hashlib.sha256("\0".join([requirements, python, torch_backend]).encode()).hexdigest()[:16]
    why = "Commit it: what it names is all that goes into the environments."
    return f"# Made by rdm-provision of {of}. {why}\n"


def lock(
    file: Path, requirements: str, python: str, sources: Sources, write: bool, keep: bool = False
) -> tuple[str, bool]:
    """Return the text of the lock file, and whether it is a new one.

    Args:
        file: its path.
        requirements: the pins.
        python: the version of the environments' Python.
        sources: where packages come from.
        write: whether to write a new one.
        keep: whether to refuse to replace an existing one, because nodes outside this run use it too.

    Raises:
        PreconditionFailed: it cannot be made, or would have to be replaced.
    """
    head = first_line(requirements, python, sources.torch_backend)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError:
        text = ""
    if text.startswith(head):
        return text, False
    if text and keep:
        raise PreconditionFailed(
            [
                Problem(
                    None,
                    file.name,
                    "was made of other requirements, another Python or build of torch, and is for all nodes",
                    "run without --limit, or give these nodes what the others have",
                )
            ]
        )
    with tempfile.TemporaryDirectory() as work:
        pins = Path(work, "requirements.txt")
        pins.write_text(requirements, encoding="utf-8")
        argv = [
            find_uv(),
            "pip",
            "compile",
            "--quiet",
            "--color",
            "never",
            "--generate-hashes",
            "--no-header",
            "--no-annotate",
        ]
        # The pins are tested together, whatever constraints the packages declare.
        argv += ["--python-version", python, "--override", str(pins), str(pins)]
        done = run_program(argv, "the lock file", env={"UV_NO_CONFIG": "1", **sources.variables()})
    if done.returncode:
        output = " ".join(done.stderr.split())
        hint = (
            "set python_env_index_url, python_env_controller_find_links, python_env_torch_backend or "
            "python_env_torch"
        )
        raise PreconditionFailed([Problem(None, "the lock file", f"cannot be made: {output[-600:]}", hint)])
    text = head + done.stdout
    if write:
        write_whole(str(file), text.encode(), 0o644)
    return text, True


def run_program(
    argv: Sequence[str],
    makes: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    text: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run a program on the controller and wait for its end.

    Args:
        argv: the program and its arguments.
        makes: what it makes, for the error message.
        env: additional environment variables.
        cwd: its working directory.
        text: its standard input.

    Raises:
        PreconditionFailed: it timed out.
    """
    try:
        return subprocess.run(
            argv,
            input=text,
            capture_output=True,
            text=True,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        reason = f"was not there after {_LIMIT_S:.0f} s of {' '.join(argv[:3])}"
        hint = "see that this machine reaches the package index (python_env_index_url, python_env_proxy)"
        raise PreconditionFailed([Problem(None, makes, reason, hint)]) from None


def trainer_digest(trainer: Path) -> str:
    """Return the digest of the trainer's sources."""
    state = hashlib.sha256()
    for name in _SOURCES:
        top = trainer / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and "__pycache__" not in path.parts:
                state.update(
                    f"{path.relative_to(trainer)}\0".encode() + hashlib.sha256(path.read_bytes()).digest()
                )
    return state.hexdigest()[:16]


def trainer_wheel(trainer: Path, directory: Path) -> Path:
    """Return a wheel of the trainer; hatchling builds it if there is none of the same sources.

    Raises:
        PreconditionFailed: it cannot be made.
    """
    target = directory / trainer_digest(trainer)
    if found := sorted(target.glob("*.whl")):
        return found[0]
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as work:
        source, made = Path(work, "source"), Path(work, "made")
        source.mkdir()
        for name in _SOURCES:
            if (trainer / name).is_dir():
                ignore = shutil.ignore_patterns("__pycache__")
                shutil.copytree(trainer / name, source / name, ignore=ignore)
            else:
                shutil.copy(trainer / name, source / name)
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(made)]
        done = run_program(build, "the trainer's wheel", cwd=source)
        if done.returncode:
            output = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
            raise PreconditionFailed(
                [Problem(None, "the trainer's wheel", f"cannot be built: {output}", _NEEDS)]
            )
        if not target.exists():
            made.rename(target)
    return sorted(target.glob("*.whl"))[0]

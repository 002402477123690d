# SPDX-License-Identifier: GPL-3.0-or-later
"""The image of a job on a node: what runs it there, made ready once, and the agent started in it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from rdm_core import config as configuration
from rdm_core.config.job import SlurmConfig
from rdm_core.config.slurm import can_run, image_kind
from rdm_core.errors import FAILED, TrainerError
from rdm_job.directory import JobDirectory
from rdm_job.slurm import container, docker_archive
from rdm_job.slurm.image_paths import is_there

__all__ = ["enter", "of_pyxis", "prepare", "problems"]

_KEPT = ".images"
"""Where images that were made ready are, beside the jobs."""


def problems(slurm: SlurmConfig) -> list[str]:
    """Return what is wrong with a job's image, seen from here; all nodes see the same files."""
    assert slurm.image is not None
    if image_kind(slurm.image) == "registry":
        return []
    path = Path(slurm.image)
    if (there := is_there(slurm.image)) is None:
        return []
    if not there:
        return [f"launcher.slurm.image {path} is not there."]
    if image_kind(slurm.image) == "directory" and not path.is_dir():
        return [
            f"launcher.slurm.image {path} is no image: it takes .sqsh, .sif, .tar, .tar.gz, docker://NAME or "
            "a directory."
        ]
    if _is_plain_archive(slurm.image):
        try:
            docker_archive.image_id(path)
        except TrainerError as error:
            return list(error.problems)
    return []


def _key(slurm: SlurmConfig) -> str:
    """Return what tells a job's image from others; see :func:`rdm_job.slurm.container.key`."""
    image = slurm.image or ""
    kind = image_kind(image)
    if kind == "registry":
        return container.key(image, "")
    # What is made of an archive has a directory for each mount.
    mounts = " ".join(sorted(slurm.mounts)) if kind == "archive" else ""
    # One that was made without a look at the archive's digest is none that was.
    verified = f" {slurm.image_sha256.lower()}" if slurm.image_sha256 else ""
    try:
        status = Path(image).stat()
    except OSError as error:
        raise TrainerError(
            f"{_node()} cannot read launcher.slurm.image {image}: {error.strerror}.", exit_code=FAILED
        ) from None
    if _is_plain_archive(image):
        # Whatever file it is in, and whenever that was written.
        return container.key("", f"{docker_archive.image_id(Path(image))} {mounts}{verified}")
    return container.key(image, f"{status.st_size} {status.st_mtime_ns} {mounts}{verified}")


def _is_plain_archive(image: str) -> bool:
    """Whether an image can be told by looking into the file: a compressed one would have to be unpacked."""
    return image.endswith(".tar")


def of_pyxis(jobs: Path, slurm: SlurmConfig) -> list[str]:
    """Return srun's options for a job in an image.

    Args:
        jobs: The directory of all jobs.
        slurm: What the job asks for.
    """
    assert slurm.image is not None
    key = _key(slurm)
    run = container.ready("pyxis", slurm.image, jobs / _KEPT, key)
    keep = "" if slurm.reload_container else f"rdm-{key}"
    return container.pyxis(run, container.mounted(jobs, slurm.mounts), keep)


def prepare(path: Path) -> None:
    """Make the image of a job ready, on the first of its nodes; other jobs may have done so.

    Args:
        path: The job's directory.

    Raises:
        TrainerError: The node has nothing to do it with, or it fails.
    """
    slurm = configuration.load_job(JobDirectory(path).resolved).launcher.slurm
    assert slurm.image is not None
    runtime = _runtime(slurm)
    kept = path.parent / _KEPT
    made = container.ready(runtime, slurm.image, kept, _key(slurm))
    if made == slurm.image:
        return
    kept.mkdir(exist_ok=True)
    with _alone(Path(f"{made}.lock")):
        new = Path(f"{made}.{os.getpid()}.new")
        if Path(made).exists() and not (slurm.reload_container and image_kind(slurm.image) == "registry"):
            return
        print(f"Making {made} of {slurm.image}.", flush=True)
        _verify(slurm)
        try:
            if image_kind(slurm.image) == "archive" and runtime != "apptainer":
                mounts = container.mounted(path.parent, slurm.mounts)
                _squash(Path(slurm.image), new, [target for _, target in mounts])
            else:
                for command in container.import_commands(runtime, slurm.image, str(new)):
                    _run(command)
            new.replace(made)
        finally:
            new.unlink(missing_ok=True)


def _verify(slurm: SlurmConfig) -> None:
    """Hold an archive to its digest, where one is given.

    Raises:
        TrainerError: It is another one.
    """
    if slurm.image_sha256 is None or slurm.image is None:
        return
    try:
        with Path(slurm.image).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise TrainerError(
            f"{_node()} cannot read launcher.slurm.image {slurm.image}: {error.strerror}.", exit_code=FAILED
        ) from None
    if found != slurm.image_sha256.lower():
        raise TrainerError(
            f"launcher.slurm.image {slurm.image} has the sha256 {found}, and not the "
            f"{slurm.image_sha256.lower()} that it must have; nothing was made of it.",
            exit_code=FAILED,
        )


def enter(path: Path) -> NoReturn:
    """Become the agent of this node, in the job's image.

    Args:
        path: The job's directory.

    Raises:
        TrainerError: The image does not run here.
    """
    try:
        _enter(path)
    except OSError as error:
        # Such as a file system without locks.
        raise TrainerError(f"{_node()} cannot enter the image: {error}.", exit_code=FAILED) from error


def _enter(path: Path) -> NoReturn:
    job = JobDirectory(path)
    slurm = configuration.load_job(job.resolved).launcher.slurm
    assert slurm.image is not None
    runtime = _runtime(slurm)
    key = _key(slurm)
    image = container.ready(runtime, slurm.image, path.parent / _KEPT, key)
    if runtime == "enroot" and not slurm.reload_container:
        image = _created(image, f"rdm-{key}", path.parent / _KEPT)
    mounts = container.mounted(path.parent, slurm.mounts)
    if missing := [source for source, _ in mounts if not Path(source).exists()]:
        raise TrainerError(
            f"{_node()} has no {', '.join(missing)}, which launcher.slurm.mounts names.", exit_code=FAILED
        )
    accelerator = job.stored().accelerator
    command = container.command(runtime, image, mounts, accelerator, os.environ)
    if runtime == "charliecloud" and _succeeds([*command, "test", "-f", "/ch/environment"]):
        command = container.command(runtime, image, mounts, accelerator, has_environment=True)
    command.append(slurm.image_program)
    # A wrong image is one sentence here, and not a node that the others wait for.
    _run([*command, "--version"])
    os.execvp(command[0], [*command, "job", "step", str(path)])  # noqa: S606 - no shell is wanted


def _runtime(slurm: SlurmConfig) -> str:
    """Return the runtime to use on this node, whose programs find the user's name in the environment.

    Raises:
        TrainerError: It is not here, or the user has no name.
    """
    wanted: list[str] = [slurm.container]
    if slurm.container == "auto":
        wanted = [runtime for runtime in container.PROGRAMS if can_run(runtime, slurm.image or "")]
    if slurm.container == "pyxis":
        # Its images are enroot's.
        wanted = ["enroot"]
    for runtime in wanted:
        if shutil.which(container.PROGRAMS[runtime]):
            if "USER" not in os.environ:
                # Charliecloud's programs ask for it, and Slurm may not have it.
                os.environ["USER"] = _user()
            return runtime
    raise TrainerError(
        f"{_node()} has no {' or '.join(container.PROGRAMS[runtime] for runtime in wanted)}, which would run "
        f"launcher.slurm.image {slurm.image}.",
        exit_code=FAILED,
    )


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError as error:
        raise TrainerError(f"{_node()} cannot enter the image: {error}.", exit_code=FAILED) from error


def _created(image: str, name: str, kept: Path) -> str:
    """Return the name of enroot's container of an image, made where this node has none."""
    kept.mkdir(exist_ok=True)
    with _alone(kept / f"{name}.{_node()}.lock"):
        if name not in _run(["enroot", "list"]).split():
            _run(["enroot", "create", "-n", name, image])
    return name


def _squash(archive: Path, made: Path, directories: Sequence[str]) -> None:
    """Make a squashfs file of a Docker archive."""
    if shutil.which("sqfstar") is None:
        raise TrainerError(
            f"{_node()} has no sqfstar, which makes a squashfs file of {archive}: install squashfs-tools 4.5 "
            "or newer, or give a .sqsh file.",
            exit_code=FAILED,
        )
    command = ["sqfstar", "-all-root", "-no-progress", "-quiet", str(made)]
    # In a file, since nobody reads what it says while it is being written to.
    with tempfile.TemporaryFile() as said:
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said
        ) as process:
            assert process.stdin is not None
            try:
                # Where it has ended early, its own words say why.
                with contextlib.suppress(BrokenPipeError):
                    docker_archive.flatten(archive, process.stdin, directories, made.parent)
            except BaseException:
                process.kill()
                raise
            finally:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
        said.seek(0)
        words = said.read().decode(errors="replace")
    if process.returncode != 0:
        raise _failed(command, words)


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Let others of this user wait, on all nodes where the file system has locks for all of them."""
    with lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _run(command: Sequence[str]) -> str:
    """Return what a program prints.

    Raises:
        TrainerError: It fails; with its last words.
    """
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode != 0:
        raise _failed(command, done.stderr)
    return done.stdout


def _succeeds(command: Sequence[str]) -> bool:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


def _failed(command: Sequence[str], said: str) -> TrainerError:
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["it said nothing"]
    return TrainerError(f"{command[0]} failed on {_node()}: {lines[-1].rstrip('.')}.", exit_code=FAILED)


def _node() -> str:
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]

# SPDX-License-Identifier: GPL-3.0-or-later
"""The image of a job on a node: prepares it once, and starts the agent in it."""

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

_KEPT = ".images"
"""The directory of prepared images, next to the jobs."""


def problems(slurm: SlurmConfig) -> list[str]:
    """Return the problems of a job's image, as seen from this host; all nodes see the same files."""
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
    """Return the unique key of a job's image; see :func:`rdm_job.slurm.container.key`."""
    image = slurm.image or ""
    kind = image_kind(image)
    if kind == "registry":
        return container.key(image, "")
    # An image made from an archive has a directory for each mount.
    mounts = " ".join(sorted(slurm.mounts)) if kind == "archive" else ""
    # An image whose archive was not verified must not be used as a verified one.
    verified = f" {slurm.image_sha256.lower()}" if slurm.image_sha256 else ""
    try:
        status = Path(image).stat()
    except OSError as error:
        raise TrainerError(
            f"{_node()} cannot read launcher.slurm.image {image}: {error.strerror}.", exit_code=FAILED
        ) from None
    if _is_plain_archive(image):
        # Independent of the file's path and time.
        return container.key("", f"{docker_archive.image_id(Path(image))} {mounts}{verified}")
    return container.key(image, f"{status.st_size} {status.st_mtime_ns} {mounts}{verified}")


def _is_plain_archive(image: str) -> bool:
    """Whether the image's id can be read from the file without unpacking it."""
    return image.endswith(".tar")


def of_pyxis(jobs: Path, slurm: SlurmConfig) -> list[str]:
    """Return srun's pyxis options for a job in an image."""
    assert slurm.image is not None
    key = _key(slurm)
    run = container.ready("pyxis", slurm.image, jobs / _KEPT, key)
    keep = "" if slurm.reload_container else f"rdm-{key}"
    return container.pyxis(run, container.mounted(jobs, slurm.mounts), keep)


def prepare(path: Path) -> None:
    """Prepare the image of the job in a directory, on its first node, unless an earlier job has done so.

    Raises:
        TrainerError: The node lacks the program for it, or it fails.
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
    """Verify an archive's digest, if one is given.

    Raises:
        TrainerError: The digest differs.
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
    # With a wrong image, fail here with one sentence, instead of letting the other nodes wait.
    _run([*command, "--version"])
    os.execvp(command[0], [*command, "job", "step", str(path)])  # noqa: S606 - no shell is wanted


def _runtime(slurm: SlurmConfig) -> str:
    """Return the runtime to use on this node, and set the variable USER for its programs.

    Raises:
        TrainerError: It is not installed here, or the user has no name.
    """
    usable: list[str] = [slurm.container]
    if slurm.container == "auto":
        usable = [runtime for runtime in container.PROGRAMS if can_run(runtime, slurm.image or "")]
    if slurm.container == "pyxis":
        # pyxis uses enroot's images.
        usable = ["enroot"]
    for runtime in usable:
        if shutil.which(container.PROGRAMS[runtime]):
            if "USER" not in os.environ:
                # Charliecloud's programs need it, and Slurm may not set it.
                os.environ["USER"] = _user()
            return runtime
    raise TrainerError(
        f"{_node()} has no {' or '.join(container.PROGRAMS[runtime] for runtime in usable)}, which would run "
        f"launcher.slurm.image {slurm.image}.",
        exit_code=FAILED,
    )


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError as error:
        raise TrainerError(f"{_node()} cannot enter the image: {error}.", exit_code=FAILED) from error


def _created(image: str, name: str, kept: Path) -> str:
    """Return the name of the image's enroot container, created if this node has none."""
    kept.mkdir(exist_ok=True)
    with _alone(kept / f"{name}.{_node()}.lock"):
        if name not in _run(["enroot", "list"]).split():
            _run(["enroot", "create", "-n", name, image])
    return name


def _squash(archive: Path, made: Path, directories: Sequence[str]) -> None:
    """Convert a Docker archive to a squashfs file."""
    if shutil.which("sqfstar") is None:
        raise TrainerError(
            f"{_node()} has no sqfstar, which makes a squashfs file of {archive}: install squashfs-tools 4.5 "
            "or newer, or give a .sqsh file.",
            exit_code=FAILED,
        )
    command = ["sqfstar", "-all-root", "-no-progress", "-quiet", str(made)]
    # Errors go to a file: nobody reads a pipe while the archive is being written.
    with tempfile.TemporaryFile() as error_file:
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=error_file
        ) as process:
            assert process.stdin is not None
            try:
                # If sqfstar ended early, its own error says why.
                with contextlib.suppress(BrokenPipeError):
                    docker_archive.flatten(archive, process.stdin, directories, made.parent)
            except BaseException:
                process.kill()
                raise
            finally:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
        error_file.seek(0)
        text = error_file.read().decode(errors="replace")
    if process.returncode != 0:
        raise _failed(command, text)


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Exclude this user's other processes; on all nodes if the file system has cluster-wide locks."""
    with lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _run(command: Sequence[str]) -> str:
    """Return the output of a program.

    Raises:
        TrainerError: It fails; with the last line of its errors.
    """
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode != 0:
        raise _failed(command, done.stderr)
    return done.stdout


def _succeeds(command: Sequence[str]) -> bool:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


def _failed(command: Sequence[str], errors: str) -> TrainerError:
    lines = [line.strip() for line in errors.splitlines() if line.strip()] or ["it said nothing"]
    return TrainerError(f"{command[0]} failed on {_node()}: {lines[-1].rstrip('.')}.", exit_code=FAILED)


def _node() -> str:
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]

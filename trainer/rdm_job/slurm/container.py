# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands and options with which container runtimes run a node's agent in an image. Pure functions.

enroot, apptainer and charliecloud are commands that precede the agent's own; pyxis adds options to srun. All
run as the user, and share the node's network, devices and processes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from rdm_core.config.slurm import image_kind, takes

PROGRAMS = {"enroot": "enroot", "apptainer": "apptainer", "charliecloud": "ch-run"}
"""The runtimes in order of preference, and their programs."""
_GPUS = {"cuda": ["--nv"], "rocm": ["--rocm"]}
# Variables that control enroot's hooks for drivers and devices.
_HOOKS = {
    "cuda": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"],
    "": ["MELLANOX_VISIBLE_DEVICES=all"],
}
# enroot starts from the image's environment, the others from the node's. For enroot, pass these on by name.
_PASSED = (
    "SLURM_",
    "SLURMD_",
    "RDM_",
    "NCCL_",
    "RCCL_",
    "UCX_",
    "CUDA_",
    "HIP_",
    "ROCR_",
    "GPU_DEVICE_ORDINAL",
)
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TEMPORARY = "/tmp"  # noqa: S108  # of the node


def command(
    runtime: str,
    image: str,
    mounts: Iterable[tuple[str, str]],
    accelerator: str,
    environment: Iterable[str] = (),
    has_environment: bool = False,
) -> list[str]:
    """Return the prefix of a command that makes it run in an image.

    Args:
        runtime: ``enroot``, ``apptainer`` or ``charliecloud``.
        image: For enroot a container's name or a squashfs file, otherwise the image's path.
        mounts: Pairs of a path on the node and its path in the image.
        accelerator: ``cuda``, ``rocm`` or ``cpu``.
        environment: The names of the node's variables.
        has_environment: Whether the image has charliecloud's file of variables, ``/ch/environment``.
    """
    mounts = list(mounts)
    pairs = [f"{source}:{target}" for source, target in mounts]
    if runtime == "enroot":
        names = sorted(name for name in environment if name.startswith(_PASSED))
        names = [*_HOOKS.get(accelerator, ()), *_HOOKS[""], *names]
        return ["enroot", "start", "--root", "--rw", *_each("-m", pairs), *_each("-e", names), image]
    if runtime == "apptainer":
        return ["apptainer", "exec", *_GPUS.get(accelerator, ()), *_each("--bind", pairs), image]
    if any(target.startswith(f"{_TEMPORARY}/") for _, target in mounts):
        # If TMPDIR is set, ch-run mounts that at /tmp, and cannot create mount points in it.
        pairs.insert(0, f"{_TEMPORARY}:{_TEMPORARY}")
    # If the image has no variables, at least do not use the node's PATH.
    variables = "--set-env" if has_environment else f"--set-env={_PATH}"
    return ["ch-run", variables, *_each("-b", pairs), image, "--"]


def pyxis(image: str, mounts: Iterable[tuple[str, str]], keep: str) -> list[str]:
    """Return srun's options that run its tasks in an image.

    Args:
        image: That of ``launcher.slurm``, or the prepared file.
        mounts: Pairs of a path on the node and its path in the image.
        keep: The name under which the node keeps the container; empty to remove it after the job.
    """
    pairs = ",".join(f"{source}:{target}" for source, target in mounts)
    return [
        f"--container-image={_enroot_name(image)}",
        f"--container-mounts={pairs}",
        *((f"--container-name={keep}",) if keep else ()),
        "--container-writable",
    ]


def import_commands(runtime: str, image: str, made: str) -> list[list[str]]:
    """Return the commands that prepare an image with the runtime's own programs, in order.

    Args:
        runtime: ``enroot``, ``apptainer`` or ``charliecloud``.
        image: That of ``launcher.slurm``: one in a registry, or with apptainer also a Docker archive.
        made: The file to make.
    """
    if runtime == "enroot":
        return [["enroot", "import", "-o", made, f"docker://{_enroot_name(image)}"]]
    if runtime == "apptainer":
        source = image if image_kind(image) == "registry" else f"docker-archive:{image}"
        return [["apptainer", "build", made, source]]
    name = image.removeprefix("docker://")
    return [["ch-image", "pull", name], ["ch-convert", "-i", "ch-image", "-o", "squash", name, made]]


def key(image: str, content: str) -> str:
    """Return the unique key of an image: 16 hexadecimal digits.

    Args:
        image: That of ``launcher.slurm``.
        content: A text that changes with the image's content, if known without fetching it.
    """
    return hashlib.sha256(f"{image}\n{content}".encode()).hexdigest()[:16]


def ready(runtime: str, image: str, kept: Path, its_key: str) -> str:
    """Return the image or file that the runtime runs: the image itself, or the file prepared from it.

    Args:
        runtime: One of ``launcher.slurm.container``.
        image: That of ``launcher.slurm``.
        kept: The directory of prepared images, for all nodes.
        its_key: See :func:`key`.
    """
    if image_kind(image) in takes(runtime):
        return image
    return str(kept / f"{its_key}.{'sif' if runtime == 'apptainer' else 'sqsh'}")


def mounted(jobs: Path, mounts: Sequence[str]) -> list[tuple[str, str]]:
    """Return the mounts, pairs of a path on the node and in the image: all jobs, and the user's own."""
    pairs = [mount.partition(":")[::2] for mount in mounts]
    return [(str(jobs), str(jobs)), *((source, target or source) for source, target in pairs)]


def _each(option: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def _enroot_name(image: str) -> str:
    """Return a registry image's name in enroot's form, with ``#`` after the registry; a path unchanged."""
    if image_kind(image) != "registry":
        return image
    host, slash, rest = image.removeprefix("docker://").partition("/")
    is_host = slash and ("." in host or ":" in host or host == "localhost")
    return f"{host}#{rest}" if is_host else f"{host}{slash}{rest}"

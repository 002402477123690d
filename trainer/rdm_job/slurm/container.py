# SPDX-License-Identifier: GPL-3.0-or-later
"""What container runtimes are told, so that a node's agent runs in an image. Pure functions.

enroot, apptainer and charliecloud are programs before the agent's own command; pyxis is options of srun. All
run as the user, and share the node's network, devices and processes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from rdm_core.config.slurm import image_kind, takes

__all__ = ["PROGRAMS", "command", "import_commands", "key", "mounted", "pyxis", "ready"]

PROGRAMS = {"enroot": "enroot", "apptainer": "apptainer", "charliecloud": "ch-run"}
"""The runtimes that a node is searched for, in this order, and their programs."""
_GPUS = {"cuda": ["--nv"], "rocm": ["--rocm"]}
# What the hooks of enroot that bring drivers and devices in go by.
_HOOKS = {
    "cuda": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"],
    "": ["MELLANOX_VISIBLE_DEVICES=all"],
}
# enroot begins with the image's environment; the others keep the node's. What Slurm gives goes in by name.
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
    """Return the command that stands before one that is to run in an image.

    Args:
        runtime: ``enroot``, ``apptainer`` or ``charliecloud``.
        image: What it runs: of enroot a container's name or a squashfs file, else the image's path.
        mounts: What of the node is there, and where.
        accelerator: ``cuda``, ``rocm`` or ``cpu``.
        environment: The names of the node's variables.
        has_environment: Whether the image keeps its variables where charliecloud looks: ``/ch/environment``.
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
        # At /tmp it would have TMPDIR's directory, where that is set, and could make no place for them there.
        pairs.insert(0, f"{_TEMPORARY}:{_TEMPORARY}")
    # Without variables of its own the image has at least not the node's PATH.
    variables = "--set-env" if has_environment else f"--set-env={_PATH}"
    return ["ch-run", variables, *_each("-b", pairs), image, "--"]


def pyxis(image: str, mounts: Iterable[tuple[str, str]], keep: str) -> list[str]:
    """Return srun's options that have its tasks run in an image.

    Args:
        image: Of ``launcher.slurm``, or what was made of it.
        mounts: What of the node is there, and where.
        keep: The name to keep the container under on the node; empty to take it away after the job.
    """
    pairs = ",".join(f"{source}:{target}" for source, target in mounts)
    return [
        f"--container-image={_enroot_name(image)}",
        f"--container-mounts={pairs}",
        *((f"--container-name={keep}",) if keep else ()),
        "--container-writable",
    ]


def import_commands(runtime: str, image: str, made: str) -> list[list[str]]:
    """Return the commands that make an image ready with the runtime's own programs, in order.

    Args:
        runtime: ``enroot``, ``apptainer`` or ``charliecloud``.
        image: As in ``launcher.slurm``: one in a registry, or with apptainer also a Docker archive.
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
    """Return what tells an image from others: 16 hexadecimal digits.

    Args:
        image: As in ``launcher.slurm``.
        content: What changes with its content, where that is known without fetching it.
    """
    return hashlib.sha256(f"{image}\n{content}".encode()).hexdigest()[:16]


def ready(runtime: str, image: str, kept: Path, its_key: str) -> str:
    """Return what the runtime runs: the image itself, or the file that is made of it, once.

    Args:
        runtime: One of ``launcher.slurm.container``.
        image: As in ``launcher.slurm``.
        kept: Where images that were made are kept, for all nodes.
        its_key: See :func:`key`.
    """
    if image_kind(image) in takes(runtime):
        return image
    return str(kept / f"{its_key}.{'sif' if runtime == 'apptainer' else 'sqsh'}")


def mounted(jobs: Path, mounts: Sequence[str]) -> list[tuple[str, str]]:
    """Return what of the node is in the image, and where: all jobs, and what the user names."""
    pairs = [mount.partition(":")[::2] for mount in mounts]
    return [(str(jobs), str(jobs)), *((source, target or source) for source, target in pairs)]


def _each(option: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def _enroot_name(image: str) -> str:
    """Return an image of a registry as enroot names it, with ``#`` behind the registry; a path as it is."""
    if image_kind(image) != "registry":
        return image
    host, slash, rest = image.removeprefix("docker://").partition("/")
    is_host = slash and ("." in host or ":" in host or host == "localhost")
    return f"{host}#{rest}" if is_host else f"{host}{slash}{rest}"

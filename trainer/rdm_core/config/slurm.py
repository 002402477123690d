# SPDX-License-Identifier: GPL-3.0-or-later
"""A job's request to Slurm, as components: the nodes of one partition each. Pure functions.

Every value must match a pattern as a whole, because it becomes part of a batch script: a value that matches
can neither end its line nor begin another option.
"""

from __future__ import annotations

import collections
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from rdm_core.config.job import JobConfig, SlurmConfig

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*"
_COUNT = r"[1-9][0-9]{0,6}"
_HOSTS = r"[A-Za-z0-9_][A-Za-z0-9_.,\[\]-]*"
_GRES = rf"{_NAME}(:{_NAME})?(:[0-9]{{1,12}}[KMGT]?)?"
_TIME = (
    r"(?:(?P<days>[0-9]{1,5})-)?(?P<first>[0-9]{1,6})(?::(?P<second>[0-9]{1,2}))?(?::(?P<third>[0-9]{1,2}))?"
)
_PATH = r"/[A-Za-z0-9_./+@=-]*"
_SUFFIXES = {
    "squashfs": (".sqsh", ".sqfs", ".squashfs"),
    "sif": (".sif",),
    "archive": (".tar", ".tar.gz", ".tgz"),
}
_TAKES = {
    "enroot": ("squashfs",),
    "pyxis": ("squashfs", "registry"),
    "apptainer": ("squashfs", "sif", "directory"),
    "charliecloud": ("squashfs", "directory"),
}
# key → the pattern that it must match, and an example.
_FORMS = {
    "partition": (_NAME, "gpu2"),
    "gres": (rf"{_GRES}(,{_GRES})*", "gpu:a10:4"),
    "gpus_per_node": (rf"({_NAME}:)?{_COUNT}", "4 or a10:4"),
    "cpus": (_COUNT, "14"),
    "mem": (r"0|[1-9][0-9]{0,11}[KMGT]?", "64G"),
    "time": (_TIME, '"02:00:00"'),
    "account": (_NAME, "physics"),
    "qos": (_NAME, "normal"),
    "nodelist": (_HOSTS, "n[060-067]"),
    "exclude": (_HOSTS, "n061,n062"),
    "constraint": (r"[A-Za-z0-9_][A-Za-z0-9_.&|*()\[\]:-]*", "ib&nvme"),
    "interface": (r"[A-Za-z0-9_.:@-]{1,15}", "ib0"),
    "image": (rf"{_PATH}|docker://[A-Za-z0-9][A-Za-z0-9_./:@-]*", "/shared/train.sqsh"),
    "image_sha256": (r"[0-9a-fA-F]{64}", "64 hexadecimal digits, which sha256sum prints"),
    "rest": (
        r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?|unix:/[A-Za-z0-9_./+@-]+",
        "https://slurm1:6820",
    ),
    "image_program": (r"[A-Za-z0-9_./+@=-]+", "/opt/env/bin/rdm-trainer"),
}
_BY_PARTITION = ("gres", "gpus_per_node", "cpus", "mem", "nodelist", "exclude", "constraint")


@dataclass(frozen=True)
class Component:
    """The nodes of a job in one partition.

    Attributes:
        partition: Its name; empty for Slurm's default partition.
        nodes: The number of nodes.
        slots: Processes on each node.
        gres, gpus_per_node, cpus, mem, nodelist, exclude, constraint: Values for Slurm's options, or empty.
    """

    partition: str
    nodes: int
    slots: int
    gres: str = ""
    gpus_per_node: str = ""
    cpus: str = ""
    mem: str = ""
    nodelist: str = ""
    exclude: str = ""
    constraint: str = ""

    @property
    def generic(self) -> dict[str, int]:
        """The generic resources requested on each node, including GPUs: ``{"gpu:a10": 4}``."""
        found = generic_resources(self.gres)
        if self.gpus_per_node:
            kind, _, count = self.gpus_per_node.rpartition(":")
            found[f"gpu:{kind}" if kind else "gpu"] = int(count)
        return found

    @property
    def gpus(self) -> int:
        """The number of GPUs requested on each node."""
        return sum(count for name, count in self.generic.items() if name.split(":")[0] == "gpu")


def generic_resources(text: str) -> dict[str, int]:
    """Return the entries of a list in Slurm's format: ``{"gpu:a10": 4}`` for ``gpu:a10:4``."""
    found = {}
    for word in filter(None, text.split(",")):
        name, _, last = word.rpartition(":")
        known = re.fullmatch(r"([0-9]+)([KMGT]?)", last) if name else None
        found[name if known else word] = (
            int(known[1]) * 1024 ** " KMGT".index(known[2] or " ") if known else 1
        )
    return found


def components(config: JobConfig) -> list[Component]:
    """Return the job's components in the order of ranks. Their values may be invalid.

    Raises:
        ValueError: ``nodes`` has a value that is not a number.
    """
    slurm = config.launcher.slurm
    wanted: Mapping[str, str] = slurm.nodes or {"": str(config.launcher.nodes or 1)}
    found = []
    for partition, count in wanted.items():
        name = partition or slurm.partition or ""
        requested = {key: _of(getattr(slurm, key), name) for key in _BY_PARTITION}
        component = Component(name, int(count), 1, **requested)
        found.append(replace(component, slots=config.launcher.devices_per_node or component.gpus or 1))
    return found


def world_size(config: JobConfig) -> int:
    """Return the number of processes of a job."""
    return sum(component.nodes * component.slots for component in components(config))


def limit_seconds(text: str) -> int:
    """Return a time limit in seconds, from a text in Slurm's format."""
    found = re.fullmatch(_TIME, text)
    assert found is not None
    numbers = [int(found[name] or 0) for name in ("first", "second", "third")]
    if found["days"] is not None or found["third"] is not None:
        hours, minutes, seconds = numbers
    else:
        # Minutes, or minutes and seconds.
        hours, minutes, seconds = 0, numbers[0], numbers[1]
    return int(found["days"] or 0) * 86400 + hours * 3600 + minutes * 60 + seconds


def runs_in_image(slurm: SlurmConfig) -> bool:
    """Return whether the agents run in an image."""
    return slurm.image is not None and slurm.container != "none"


def image_kind(image: str) -> str:
    """Return the kind of an image by its name: registry, squashfs, sif, archive (Docker's) or directory."""
    if image.startswith("docker://"):
        return "registry"
    return next((kind for kind, ends in _SUFFIXES.items() if image.endswith(ends)), "directory")


def takes(runtime: str) -> tuple[str, ...]:
    """Return the kinds of images that a container runtime runs without conversion."""
    return _TAKES[runtime]


def can_run(runtime: str, image: str) -> bool:
    """Return whether a container runtime runs an image, with or without conversion to squashfs."""
    kind = image_kind(image)
    return kind in ("squashfs", "archive", "registry") or kind in takes(runtime)


def problems(config: JobConfig) -> list[str]:
    """Return the problems of the job's request to Slurm, one sentence each."""
    slurm = config.launcher.slurm
    found = [*_nodes(config), *_forms(slurm), *_image(slurm)]
    # A user without a home directory still has the ~.
    if slurm.rest_jwt is not None and not re.fullmatch(r"~?/[A-Za-z0-9_./+@=-]+", slurm.rest_jwt, re.ASCII):
        # Do not print the value: it may be the token itself, given by mistake.
        found.append("launcher.slurm.rest_jwt must be the path of a file with the token, as ~/.slurm.jwt.")
    if found:
        return found
    if any(part.gpus_per_node and replace(part, gpus_per_node="").gpus for part in components(config)):
        found.append("launcher.slurm has GPUs in gres and in gpus_per_node; give one.")
    if slurm.time and slurm.signal and limit_seconds(slurm.time) < slurm.signal + 60:
        found.append(
            f"launcher.slurm.time {slurm.time} leaves nothing before launcher.slurm.signal {slurm.signal} s "
            "and the minute that Slurm may be early; give more time, or a smaller signal."
        )
    return found


def _of(values: Mapping[str, str], partition: str) -> str:
    return values.get(partition, values.get("", ""))


def _nodes(config: JobConfig) -> Iterator[str]:
    slurm = config.launcher.slurm
    for partition, count in slurm.nodes.items():
        where = f"launcher.slurm.nodes{'.' if partition else ''}{partition}"
        if partition and not re.fullmatch(_NAME, partition):
            yield f"launcher.slurm.nodes has {partition!r}, which is no name of a partition."
        elif not re.fullmatch(_COUNT, count):
            yield f"{where} is {count!r}; it must be a number of nodes."
    named = [partition for partition in slurm.nodes if partition]
    if named and slurm.partition:
        yield "launcher.slurm.nodes names partitions, and launcher.slurm.partition another; give one of them."
    counts = [int(count) for count in slurm.nodes.values() if re.fullmatch(_COUNT, count)]
    if slurm.nodes and config.launcher.nodes not in (None, sum(counts)):
        yield "launcher.nodes and launcher.slurm.nodes say how many nodes; give one of them."
    for key in _BY_PARTITION:
        for partition in getattr(slurm, key):
            if partition and partition not in slurm.nodes and partition != slurm.partition:
                yield (
                    f"launcher.slurm.{key} is given for {partition!r}, which is none of the job's "
                    "partitions; they are named in launcher.slurm.nodes."
                )


def _image(slurm: SlurmConfig) -> Iterator[str]:
    for mount in slurm.mounts:
        if not re.fullmatch(rf"{_PATH}(:{_PATH})?", mount, re.ASCII):
            yield (
                f"launcher.slurm.mounts has {mount!r}; it takes /of/the/node:/in/the/image, or one path for "
                "both."
            )
    targets = collections.Counter(_target(mount) for mount in slurm.mounts)
    for target in (target for target, count in targets.items() if count > 1):
        yield f"launcher.slurm.mounts has {target} of the image more than once; give it one mount."
    if slurm.step == "ranks" and runs_in_image(slurm):
        yield "launcher.slurm.step is ranks, for which the image would need Slurm's programs; use agents."
    if slurm.mpi != "none" and slurm.step == "agents":
        yield f"launcher.slurm.mpi is {slurm.mpi}, but srun starts no ranks; use launcher.slurm.step=ranks."
    if slurm.image is None:
        if slurm.image_sha256:
            yield "launcher.slurm.image_sha256 is given, but there is no launcher.slurm.image to hold to it."
        if slurm.container in _TAKES:
            yield (
                f"launcher.slurm.container is {slurm.container}, but there is no launcher.slurm.image to run."
            )
        return
    if slurm.image_sha256 and image_kind(slurm.image) != "archive":
        yield (
            "launcher.slurm.image_sha256 is for a Docker archive, and launcher.slurm.image "
            f"{slurm.image} is a {image_kind(slurm.image)}."
        )
    if slurm.container in _TAKES and not can_run(slurm.container, slurm.image):
        able = " or ".join(name for name in _TAKES if can_run(name, slurm.image))
        yield (
            f"launcher.slurm.image {slurm.image} is a {image_kind(slurm.image)}, which {slurm.container} "
            f"does not run; {able} does, and all of them run a .sqsh or a Docker archive (.tar)."
        )


def _target(mount: str) -> str:
    """Return the target path of a mount in the image."""
    source, _, target = mount.partition(":")
    return posixpath.normpath(target or source)


def _forms(slurm: SlurmConfig) -> Iterator[str]:
    for key, (form, example) in _FORMS.items():
        given = getattr(slurm, key)
        values = given if isinstance(given, dict) else {"": given} if given is not None else {}
        for partition, value in values.items():
            if not re.fullmatch(form, value, re.ASCII):
                where = f"launcher.slurm.{key}{'.' if partition else ''}{partition}"
                yield f"{where} is {value!r}; Slurm takes it as {example}."

# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of a node's GPUs a process sees, by the variables that CUDA and HIP read. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Lists = Sequence[Sequence[str]]
"""The entries of each variable that is set; each selects from the previous one's selection."""


def lists_of(environment: Mapping[str, str], accelerator: str) -> Lists:
    """Return the lists of visible devices in an environment.

    Source: CUDA's programming guide, "CUDA Environment Variables"; ROCm's "GPU isolation techniques":
    ``ROCR_VISIBLE_DEVICES`` is applied first, then HIP's variable, or CUDA's in its place.

    Args:
        environment: A process's.
        accelerator: ``cuda``, ``rocm`` or ``cpu``.
    """
    variables: dict[str, list[tuple[str, ...]]] = {
        "cuda": [("CUDA_VISIBLE_DEVICES",)],
        "rocm": [("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")],
    }
    found = []
    for names in variables.get(accelerator, ()):
        text = next((environment[name] for name in names if name in environment), None)
        if text is not None:
            found.append([entry.strip() for entry in text.split(",")])
    return found


def chosen(gpus: Sequence[str], lists: Lists, parts: Sequence[str] = ()) -> list[int]:
    """Return the visible devices in their order, as indices into ``gpus`` followed by ``parts``.

    As in CUDA, a list ends at its first invalid entry.

    Args:
        gpus: Their UUIDs, by index.
        lists: See ``lists_of``.
        parts: UUIDs of their MIG partitions, which only a UUID selects.
    """
    names = [*gpus, *parts]
    found = list(range(len(gpus)))
    for entries in lists:
        left: list[int] = []
        for entry in entries:
            index = _index(entry, names, found)
            if index is None or index in left:
                break
            left.append(index)
        found = left
    return found


def _index(entry: str, names: Sequence[str], found: Sequence[int]) -> int | None:
    if entry.isdecimal():
        return found[int(entry)] if int(entry) < len(found) else None
    # An unambiguous abbreviation suffices. A partition may be selected without its GPU.
    matching = [index for index, name in enumerate(names) if entry and name.startswith(entry)]
    return matching[0] if len(matching) == 1 else None

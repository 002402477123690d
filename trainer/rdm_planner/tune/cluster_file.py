# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes from a file, for planning a cluster that is not available.

.. code-block:: yaml

    inter: 100                                     # Gbit/s of a node, by default
    intra: 600                                     # Gbit/s between a node's GPUs
    nodes:
      - {gpu: A100-40, nodes: 1, gpus: 4, price: 2.5}
      - {gpu: A10, nodes: 7, gpus: 4, inter: 50}
      - {gpu: A10, nodes: 1, gpus: 4, speed: 0.8}    # relative to the other A10 nodes
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rdm_core.errors import TrainerError
from rdm_planner.cluster_profile import FASTEST
from rdm_planner.tune.fleet import NodeGroup

MOST_NODES, MOST_GPUS = 4096, 64
"""Limits: nodes of a kind, and GPUs of a node."""
_BANDWIDTHS = ("inter", "intra")
_MOST = {"price": math.inf, "speed": FASTEST, **dict.fromkeys(_BANDWIDTHS, math.inf)}
_KEYS = ("gpu", "nodes", "gpus", *_MOST)


def read(path: Path) -> list[NodeGroup]:
    """Return the nodes that a file describes.

    Raises:
        TrainerError: The file cannot be read, or does not describe nodes.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TrainerError(f"The cluster's file {path} cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeError):
        raise TrainerError(f"The cluster's file {path} is not YAML.") from None
    kinds = data.get("nodes") if isinstance(data, dict) else None
    if not isinstance(kinds, list) or not kinds or not all(isinstance(kind, dict) for kind in kinds):
        raise TrainerError(f"{path} names no nodes; write nodes: [{{gpu: H100, nodes: 2, gpus: 8}}].")
    common = {key: value for key, value in data.items() if key != "nodes"}
    if unknown := sorted(map(str, common.keys() - set(_BANDWIDTHS))):
        raise TrainerError(
            f"{path} has the key {unknown[0][:40]!r}; besides nodes there are inter and intra."
        )
    return [_group(common | kind, f"{path}, nodes[{index}]") for index, kind in enumerate(kinds)]


def _group(values: Mapping[Any, Any], where: str) -> NodeGroup:
    if unknown := sorted(map(str, values.keys() - set(_KEYS))):
        raise TrainerError(f"{where} has the key {unknown[0][:40]!r}; known are {', '.join(_KEYS)}.")
    if missing := [key for key in ("gpu", "nodes", "gpus") if key not in values]:
        raise TrainerError(f"{where} lacks {missing[0]}; write {{gpu: H100, nodes: 2, gpus: 8}}.")
    if not isinstance(values["gpu"], str):
        raise TrainerError(f"{where}.gpu is {str(values['gpu'])[:40]!r}; write a GPU's name, as H100.")
    for key, most in (("nodes", MOST_NODES), ("gpus", MOST_GPUS)):
        if type(values[key]) is not int or not 0 < values[key] <= most:
            raise TrainerError(
                f"{where}.{key} is {str(values[key])[:40]!r}; write a number from 1 to {most}."
            )
    numbers = {}
    for key, limit in _MOST.items():
        value = values.get(key)
        if value is None:
            continue
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 < value < math.inf
            or value > limit
        ):
            wanted = (
                "a number above 0" if limit == math.inf else f"a share of its GPU's, above 0 to {limit:g}"
            )
            raise TrainerError(f"{where}.{key} is {str(value)[:40]!r}; write {wanted}.")
        numbers[key] = float(value)
    return NodeGroup(values["gpu"], values["gpus"], [""] * values["nodes"], **numbers)

# SPDX-License-Identifier: GPL-3.0-or-later
"""The measurements of a cluster, kept in a file next to its inventory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

from rdm_core.config.schema import Config
from rdm_core.errors import TrainerError
from rdm_planner.profile import Profile, shape_of

FASTEST = 2.0
"""The highest speed of a node. It catches a percentage such as 90, which should be 0.9."""

# Nodes of one kind differ by a few percent. A larger difference makes a kind of its own.
_ALIKE = 0.05
_ROUNDED = 0.05

_HEAD = """\
# Measured by `rdm-provision profile` for `rdm-provision tune`. Times are seconds, bandwidths bit/s.
"""


@dataclass(frozen=True)
class ClusterProfile:
    """Profiles of a cluster's GPUs, each for layers of one shape.

    Args:
        nodes: The GPU found on each node, by the node's name.
        speeds: Compute speeds relative to the profiled node, only for nodes that differ from it.
        profiles: One for each GPU and shape.
        validations: Layouts that were run, with their predicted times: plain data, the newest last.
    """

    nodes: Mapping[str, str] = field(default_factory=dict)
    speeds: Mapping[str, float] = field(default_factory=dict)
    profiles: tuple[Profile, ...] = ()
    validations: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a cluster's profile, or the profile of one GPU that ``rdm-trainer profile`` wrote.

        Raises:
            TrainerError: The file cannot be read, or is neither.
        """
        try:
            text = path.read_text(encoding="utf-8")
            if text.lstrip().startswith("{"):
                return cls(profiles=(Profile.read(path),))
            data = yaml.safe_load(text)
            return cls(
                nodes={str(name): str(gpu) for name, gpu in data["nodes"].items()},
                speeds={str(name): _speed(share) for name, share in (data.get("speeds") or {}).items()},
                profiles=tuple(Profile.of(one, str(path)) for one in data["profiles"]),
                validations=tuple(dict(one) for one in data.get("validations") or ()),
            )
        except OSError as error:
            raise TrainerError(f"The profile {path} cannot be read: {error.strerror}.") from None
        except KeyError as error:
            raise TrainerError(f"{path} is no profile of a cluster: it lacks {error}.") from None
        except (yaml.YAMLError, UnicodeError):
            raise TrainerError(f"{path} is no profile of a cluster: it is not YAML.") from None
        except (AttributeError, TypeError, ValueError):
            raise TrainerError(f"{path} is no profile of a cluster: it has no nodes and profiles.") from None

    def text(self) -> str:
        """Return the file's content."""
        data: dict[str, Any] = {
            "nodes": dict(self.nodes),
            "speeds": dict(self.speeds),
            "profiles": [one.plain() for one in self.profiles],
            "validations": [dict(one) for one in self.validations],
        }
        return _HEAD + yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=120)

    def of_job(self, config: Config) -> list[Profile]:
        """Return one profile of each GPU, preferably of the job's shape; other shapes are rejected later."""
        shape = shape_of(config)
        found: dict[str, Profile] = {}
        for one in self.profiles:
            if one.gpu not in found or one.shape == shape:
                found[one.gpu] = one
        return list(found.values())

    def with_measured(
        self, nodes: Mapping[str, str], profile: Profile, seconds: Mapping[str, float] | None = None
    ) -> Self:
        """Return a copy in which a new profile replaces the older one of the same GPU and shape.

        Args:
            nodes: The GPU of each node where one was found.
            profile: The new profile.
            seconds: The time of each node for the same work, the profiled node first; None if nodes were not
                compared. Earlier speeds of nodes with this GPU refer to another node and are dropped.
        """
        others = (one for one in self.profiles if (one.gpu, one.shape) != (profile.gpu, profile.shape))
        speeds = {name: share for name, share in self.speeds.items() if self.nodes.get(name) != profile.gpu}
        return dataclasses.replace(
            self,
            nodes={**self.nodes, **nodes},
            speeds=speeds | _speeds(seconds or {}),
            profiles=(*others, profile),
        )

    def with_validation(self, record: Mapping[str, Any]) -> Self:
        """Return a copy with one more validation record."""
        return dataclasses.replace(self, validations=(*self.validations, record))


def _speeds(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the speeds of nodes that differ from the first, rounded to keep the number of kinds small."""
    shares = {name: next(iter(seconds.values())) / own for name, own in seconds.items()}
    return {
        name: min(FASTEST, max(_ROUNDED, round(_ROUNDED * round(share / _ROUNDED), 2)))
        for name, share in shares.items()
        if abs(share - 1) > _ALIKE
    }


def _speed(share: Any) -> float:
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= FASTEST:
        raise ValueError(share)
    return float(share)

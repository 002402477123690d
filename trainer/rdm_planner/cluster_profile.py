# SPDX-License-Identifier: GPL-3.0-or-later
"""What was measured on a cluster: the file beside its inventory."""

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

__all__ = ["FASTEST", "ClusterProfile"]

FASTEST = 2.0
"""The highest speed that a node can have; who writes 90 means 0.9."""

# Nodes of a kind differ by some percent; a kind of its own is worth it from here on.
_ALIKE = 0.05
_ROUNDED = 0.05

_HEAD = """\
# Measured by `rdm-provision profile` for `rdm-provision tune`. Times are seconds, bandwidths bit/s.
"""


@dataclass(frozen=True)
class ClusterProfile:
    """Profiles of a cluster's GPUs, each for layers of one shape.

    Args:
        nodes: The GPU that was found on each node, by the node's name.
        speeds: How fast nodes compute, as a share of the one that was profiled; of those that differ.
        profiles: One for each GPU and shape.
        validations: Layouts that were run, with what was predicted: plain data, the newest last.
    """

    nodes: Mapping[str, str] = field(default_factory=dict)
    speeds: Mapping[str, float] = field(default_factory=dict)
    profiles: tuple[Profile, ...] = ()
    validations: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file, or one that ``rdm-trainer profile`` wrote.

        Args:
            path: The file.

        Raises:
            TrainerError: It cannot be read, or is no such file.
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
        """Return a profile of each GPU: that of the job's shape, or another, which is refused later.

        Args:
            config: The job.
        """
        shape = shape_of(config)
        found: dict[str, Profile] = {}
        for one in self.profiles:
            if one.gpu not in found or one.shape == shape:
                found[one.gpu] = one
        return list(found.values())

    def with_measured(
        self, nodes: Mapping[str, str], profile: Profile, seconds: Mapping[str, float] | None = None
    ) -> Self:
        """Return it with a new profile in place of an older one of that GPU and shape.

        Args:
            nodes: The GPU of each node, as far as it was found.
            profile: What was measured.
            seconds: What each of the nodes took for the same work, that of the profile first; None where
                they were not compared. Speeds of other nodes with this GPU compare with another node, and go.
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
        """Return it with one more record of layouts that were run.

        Args:
            record: Plain data.
        """
        return dataclasses.replace(self, validations=(*self.validations, record))


def _speeds(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the speeds of nodes that differ from the first, rounded, so that there are few kinds."""
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

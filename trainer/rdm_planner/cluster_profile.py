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

__all__ = ["ClusterProfile"]

_HEAD = """\
# Measured by `rdm-provision profile` for `rdm-provision tune`. Times are seconds, bandwidths bit/s.
"""


@dataclass(frozen=True)
class ClusterProfile:
    """Profiles of a cluster's GPUs, each for layers of one shape.

    Args:
        nodes: The GPU that was found on each node, by the node's name.
        profiles: One for each GPU and shape.
        validations: Layouts that were run, with what was predicted: plain data, the newest last.
    """

    nodes: Mapping[str, str] = field(default_factory=dict)
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

    def with_measured(self, nodes: Mapping[str, str], profile: Profile) -> Self:
        """Return it with a new profile in place of an older one of that GPU and shape.

        Args:
            nodes: The GPU of each node, as far as it was found.
            profile: What was measured.
        """
        others = (one for one in self.profiles if (one.gpu, one.shape) != (profile.gpu, profile.shape))
        return dataclasses.replace(self, nodes={**self.nodes, **nodes}, profiles=(*others, profile))

    def with_validation(self, record: Mapping[str, Any]) -> Self:
        """Return it with one more record of layouts that were run.

        Args:
            record: Plain data.
        """
        return dataclasses.replace(self, validations=(*self.validations, record))

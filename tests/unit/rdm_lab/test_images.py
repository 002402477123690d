# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's images without an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerError
from ansible_collections.rdm.provision.rdm_lab import images, spec


class InUse:
    """An engine whose lab images have running containers."""

    def get(self, path: str, **_: Any) -> list[dict[str, Any]]:
        if path == "/images/json":
            return [{"Id": "sha256:1"}]
        return [{"Labels": {spec.LABEL: lab}} for lab in ("two", "lab", "two")]

    def delete(self, _path: str, **_: Any) -> None:
        raise DockerError(409, "conflict")


def test_labs_that_use_the_images_are_named_with_how_to_take_them_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "sweep_builders", lambda _: None)
    with pytest.raises(spec.LabProblem) as refused:
        images.remove(InUse(), tmp_path, check=False)  # type: ignore[arg-type]
    commands = "rdm-provision lab down --name lab; rdm-provision lab down --name two"
    assert str(refused.value).endswith(f"take every lab down first: {commands}")

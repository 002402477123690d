# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's images without an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.rdm_lab import images, spec
from docker.errors import APIError
from requests import Response


class InUse:
    """An engine whose lab images have running containers."""

    def images(self, **_: Any) -> list[dict[str, Any]]:
        return [{"Id": "sha256:1"}]

    def containers(self, **_: Any) -> list[dict[str, Any]]:
        return [{"Labels": {spec.LABEL: lab}} for lab in ("two", "lab", "two")]

    def remove_image(self, _image: str, **_: Any) -> None:
        answer = Response()
        answer.status_code = 409
        raise APIError("conflict", answer)


def test_labs_that_use_the_images_are_named_with_how_to_take_them_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "sweep_builders", lambda _: None)
    with pytest.raises(spec.LabProblem) as refused:
        images.remove(InUse(), tmp_path, check=False)
    commands = "rdm-provision lab down --name lab; rdm-provision lab down --name two"
    assert str(refused.value).endswith(f"take every lab down first: {commands}")

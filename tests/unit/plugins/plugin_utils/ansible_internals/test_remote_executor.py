"""Files for modules that run as another user than the one of ssh."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals.remote_executor import (
    OrdinaryError,
    RemoteExecutor,
)


def test_a_file_is_not_uploaded_for_a_user_who_cannot_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = SimpleNamespace(_is_become_unprivileged=lambda: True)
    monkeypatch.setattr(RemoteExecutor, "_handler", lambda _self, _host: handler)
    executor: Any = RemoteExecutor.__new__(RemoteExecutor)
    with pytest.raises(OrdinaryError, match="run as a user who cannot read what the user of ssh uploads"):
        executor.copy(None, "image.tar", "rdm-image-1")

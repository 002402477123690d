"""What the integration tests share: a real Docker Engine of their own and a tiny image in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.engine import Engine, private_engine
from tests.integration.images import busybox_rootfs, import_image

BUSYBOX = "rdm-test/busybox:1"


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """A private Docker Engine, for the whole run."""
    with private_engine() as engine:
        yield engine


@pytest.fixture(scope="session")
def busybox_image(engine: Engine) -> str:
    """The name of an image of one static busybox, in the private engine."""
    import_image(engine.api, BUSYBOX, busybox_rootfs())
    return BUSYBOX

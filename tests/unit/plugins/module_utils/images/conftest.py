# SPDX-License-Identifier: GPL-3.0-or-later
"""An image to put into archives."""

from __future__ import annotations

import pytest

from tests.image_archives import MadeImage, layer


@pytest.fixture
def image() -> MadeImage:
    return MadeImage([layer("one", 5000), layer("two")], ["example/app:1"])

"""Which layers an engine can load."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import Image
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_index import index_archive
from ansible_collections.rdm.provision.plugins.module_utils.images.engine_layers import require_readable

from tests.image_archives import MadeImage, oci_layout, put


def images(directory: Any, image: MadeImage, packing: str) -> list[Image]:
    return index_archive(put(directory, oci_layout(image, packing))).images


def engine(version: str, podman: str = "") -> Any:
    return SimpleNamespace(version=lambda: {"Version": version}, podman=podman)


def test_an_engine_that_cannot_read_zstd_layers_is_named(tmp_path: Any, image: MadeImage) -> None:
    with pytest.raises(NodeError) as raised:
        require_readable(engine("20.10.24+dfsg1"), "/shared/a.tar", images(tmp_path, image, "zstd"))
    assert raised.value.sentence == (
        "/shared/a.tar has layers that are compressed with zstd, which Docker Engine 20.10.24+dfsg1 cannot "
        "read: update it to 23.0 or newer, or make an archive with plain or gzip layers"
    )


@pytest.mark.parametrize(
    ("version", "podman", "packing"),
    [
        ("23.0.0", "", "zstd"),
        ("4.3.1", "4.3.1", "zstd"),
        ("dev", "", "zstd"),
        ("0.0.0-20230101010101-0123456", "", "zstd"),
        ("20.10.24", "", "gzip"),
    ],
)
def test_supported_layers_are_not_refused(
    tmp_path: Any, image: MadeImage, version: str, podman: str, packing: str
) -> None:
    require_readable(engine(version, podman), "/shared/a.tar", images(tmp_path, image, packing))

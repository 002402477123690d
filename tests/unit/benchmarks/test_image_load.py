"""The ways to load an image are compared on archives of the same image."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.rdm.provision.plugins.module_utils.images.archive_index import index_archive

from benchmarks.image_load import Cost, table_rows, write_archives


def test_the_archives_hold_the_same_image(tmp_path: Path) -> None:
    paths = write_archives(tmp_path, size=1, layers=2)
    plain, packed = (index_archive(str(paths[name])).images[0] for name in ("plain", "gzip"))
    assert plain.ids == packed.ids
    assert len(set(plain.diff_ids)) == 2
    assert plain.tags == packed.tags == ["rdm-benchmark-load:1"]
    assert sum(packed.layer_sizes) < 0.6 * sum(plain.layer_sizes), "half of the bytes compress well"


def test_ratios_are_of_medians_and_shares_of_the_way_itself() -> None:
    load = [Cost(10, 4), Cost(20, 8), Cost(30, 40)]
    own = [Cost(10, 4, (2, 1)), Cost(10, 4, (3, 2)), Cost(40, 8, (4, 2))]
    rows = list(table_rows({"docker load": load, "image_archive": own}))
    assert rows == [
        ["docker load", "1.00", "1.00", "", ""],
        ["image_archive", "0.50", "0.50", "0.20", "0.25"],
    ]

"""Packed modules are reused as long as their sources have not changed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals import module_cache
from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals.module_cache import (
    cache_home,
    keep,
    key,
    link,
)

NAME = "ansible_collections.rdm.provision.plugins.modules.node_facts-ZIP_DEFLATED-none"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that has packed one module of ours and one of Ansible's, and has not finished a third."""
    run = tmp_path / "run"
    run.mkdir()
    for name in (NAME, f"{NAME}.lock", f"{NAME}-part", "ansible.modules.ping-ZIP_DEFLATED-none"):
        (run / name).write_text("packed", encoding="utf-8")
    return run


def test_next_run_finds_packed_modules(tmp_path: Path, run: Path) -> None:
    kept, following = tmp_path / "home" / "key", tmp_path / "following"
    link(kept, following)
    assert not following.exists()
    keep(run, kept)
    assert kept.stat().st_mode & 0o077 == 0
    link(kept, following)
    assert [entry.name for entry in following.iterdir()] == [NAME]
    assert (following / NAME).read_text(encoding="utf-8") == "packed"
    assert list(kept.parent.iterdir()) == [kept], "nothing is left of the copying"


def test_packing_a_module_again_does_not_change_the_cache(tmp_path: Path, run: Path) -> None:
    kept, following = tmp_path / "home" / "key", tmp_path / "following"
    keep(run, kept)
    link(kept, following)
    again = following / "again"
    again.write_text("other", encoding="utf-8")
    again.rename(following / NAME)  # as Ansible does
    keep(following, kept)
    assert (kept / NAME).read_text(encoding="utf-8") == "packed"


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_cache_that_others_can_write_to_is_not_used(tmp_path: Path, run: Path, mode: int) -> None:
    kept, following = tmp_path / "home" / "key", tmp_path / "following"
    keep(run, kept)
    kept.chmod(mode)
    link(kept, following)
    assert not following.exists()
    kept.chmod(0o700)
    kept.rename(kept.with_name("elsewhere"))
    kept.symlink_to(kept.with_name("elsewhere"))
    link(kept, following)
    assert not following.exists()


def test_a_disk_that_is_full_leaves_nothing(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        keep(run, tmp_path / "home" / "key")
    assert [path for path in (tmp_path / "home").rglob("*") if path.is_file()] == []


def test_the_key_changes_with_a_source_and_with_the_versions(tmp_path: Path) -> None:
    source = tmp_path / "module_utils" / "deep"
    source.mkdir(parents=True)
    (source / "one.py").write_text("1", encoding="utf-8")
    before = key("2.19.0", [tmp_path])
    assert key("2.19.0", [tmp_path]) == before
    assert key("2.19.1", [tmp_path]) != before
    (source / "one.py").write_text("12", encoding="utf-8")
    assert key("2.19.0", [tmp_path]) != before
    (source / "one.py").write_text("1", encoding="utf-8")
    os.utime(source / "one.py", ns=(0, 0))
    changed = key("2.19.0", [tmp_path])
    assert changed != before
    (source / "two.py").touch()
    assert key("2.19.0", [tmp_path]) != changed


def test_old_sets_are_removed_unless_a_run_may_use_them(tmp_path: Path, run: Path) -> None:
    home = tmp_path / "home"
    for number in range(module_cache.KEPT + 3):
        (home / str(number)).mkdir(parents=True)
        old = time.time() - module_cache.OLD_S - 60 * (10 - number)
        os.utime(home / str(number), (old, old))
    recent = home / "recent"
    recent.mkdir()
    keep(run, home / "key")
    left = {entry.name for entry in home.iterdir()}
    assert {"key", "recent"} <= left
    assert len(left) == module_cache.KEPT


def test_it_is_below_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_home() == tmp_path / "rdm-provision" / "modules"

"""What the lab's images are made of."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_index import index_archive
from ansible_collections.rdm.provision.rdm_lab import packages, recipe
from ansible_collections.rdm.provision.rdm_lab import trainer as lab_trainer
from ansible_collections.rdm.provision.rdm_lab.node_layer import PodmanImage, SlurmImage

FILES = Path(__file__).parents[3] / "roles/lab/files"

DEB822 = """\
# The distribution
Types: deb
URIs: http://deb.example.org/debian
Suites: bookworm bookworm-updates bookworm-backports
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb deb-src
URIs: http://security.example.org/debian-security
Suites: bookworm-security
Components: main
 contrib
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mQINBF

Types: deb
Enabled: no
URIs: http://off.example.org/debian
Suites: bookworm
Components: main

Types: deb-src
URIs: http://sources.example.org/debian
Suites: bookworm
Components: main
"""
ONE_LINE = """\
# deb http://commented.example.org/ubuntu jammy main
deb [arch=amd64 signed-by=/k.gpg] http://archive.example.org/ubuntu jammy main universe # the archive
deb http://archive.example.org/ubuntu jammy-updates main
deb-src http://archive.example.org/ubuntu jammy main
deb https://third.example.org/apt cloud-sdk-jammy main
"""


def test_only_the_machines_own_release_is_taken_from_deb822() -> None:
    assert recipe.apt_sources({"debian.sources": DEB822}, "bookworm") == [
        "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] "
        "http://deb.example.org/debian bookworm main",
        "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] "
        "http://deb.example.org/debian bookworm-updates main",
        "deb http://security.example.org/debian-security bookworm-security main contrib",
    ]


def test_only_the_machines_own_release_is_taken_from_one_line_sources() -> None:
    assert recipe.apt_sources({"sources.list": ONE_LINE}, "jammy") == [
        "deb [signed-by=/k.gpg] http://archive.example.org/ubuntu jammy main universe",
        "deb http://archive.example.org/ubuntu jammy-updates main",
    ]


def test_a_source_named_twice_is_taken_once() -> None:
    assert len(recipe.apt_sources({"a.list": ONE_LINE, "b.list": ONE_LINE}, "jammy")) == 2


def test_the_version_changes_with_every_file_and_with_the_base(tmp_path: Path) -> None:
    copy = tmp_path / "roles/lab/files"
    shutil.copytree(FILES, copy)
    for name in ("plugins", "rdm_sriov"):
        (tmp_path / name).symlink_to(FILES.parents[2] / name)
    versions = {recipe.recipe_version(copy, "bookworm")}
    assert recipe.recipe_version(FILES, "bookworm") in versions
    versions.add(recipe.recipe_version(copy, "noble"))
    for name in recipe.FILES:
        with (copy / name).open("a") as file:
            file.write("# changed\n")
        versions.add(recipe.recipe_version(copy, "bookworm"))
    assert len(versions) == 2 + len(recipe.FILES)


def test_every_file_of_the_role_is_part_of_the_recipe() -> None:
    scripts = {lab_trainer.SCRIPT, packages.SCRIPT, *SlurmImage.files, *PodmanImage.files}
    assert {path.name for path in FILES.iterdir()} == {*recipe.FILES, *scripts, "vm"}


def test_packages_are_downloaded_again_when_their_pins_or_the_nodes_change(tmp_path: Path) -> None:
    trainer = tmp_path / "trainer"
    (trainer / "requirements").mkdir(parents=True)
    pins = trainer / "requirements/runtime.txt"
    (trainer / "requirements/finetune.txt").write_text("trl==1\n")
    pins.write_text("numpy==1\ntorch==2.13.0\n")

    def wanted(image: str = "node:1", extras: Sequence[str] = ()) -> packages.Packages:
        return packages.Packages(None, image, FILES, trainer, tmp_path, extras)

    first = wanted()
    assert (first.torch, first.present()) == ("torch==2.13.0+cpu", False)
    first.directory.mkdir()
    assert wanted().present()
    assert not wanted("node:2").present()
    assert not wanted(extras=["finetune"]).present()
    pins.write_text("numpy==2\ntorch==2.13.0\n")
    assert not wanted().present()


def test_paths_with_quotes_are_quoted_in_hooks() -> None:
    directory = Path("/a'dir $(id)")
    argv = recipe.mmdebstrap_command("bookworm", [], directory, directory / "c.tar", directory / "n.tar", [])
    hooks = [part for part in argv if part.startswith("--customize-hook")]
    assert hooks
    for hook in hooks:
        assert "/a'dir" not in hook
    assert any("'/a'\"'\"'dir $(id)/rdm-lab'" in hook for hook in hooks)


def test_the_build_context_has_the_dockerfile_and_all_files() -> None:
    with tarfile.open(fileobj=io.BytesIO(recipe.build_context(FILES, "debian:x"))) as tar:
        assert set(tar.getnames()) == {"Dockerfile", *recipe.FILES}
        member = tar.extractfile("Dockerfile")
        assert member is not None
        text = member.read().decode()
    assert text.startswith("FROM debian:x AS cpu\n")
    for package in (*recipe.CPU_PACKAGES, *recipe.NODE_PACKAGES):
        assert package in text


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    path = tmp_path / "rootfs.tar"
    with tarfile.open(path, "w") as tar:
        entry = tarfile.TarInfo("etc/hostname")
        entry.size = 2
        tar.addfile(entry, io.BytesIO(b"x\n"))
    return path


def test_the_archive_is_one_that_the_product_reads(rootfs: Path, tmp_path: Path) -> None:
    layers = [recipe.measured(rootfs), recipe.plugin_layer(FILES, tmp_path / "plugin.tar")]
    target = tmp_path / "image.tar"
    with target.open("wb") as file:
        recipe.write_archive(
            file, recipe.SRIOV_IMAGE, layers, ["/usr/local/bin/sriov-plugin"], "2026-01-01T00:00:00Z"
        )
    with tarfile.open(target) as tar:
        names = tar.getnames()
        manifest = json.load(tar.extractfile("manifest.json") or io.BytesIO())
        config = json.load(tar.extractfile(manifest[0]["Config"]) or io.BytesIO())
    assert set(manifest[0]["Layers"]) < set(names)
    assert manifest[0]["RepoTags"] == [recipe.SRIOV_IMAGE]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{layer.digest}" for layer in layers]
    assert config["config"]["Cmd"] == ["/usr/local/bin/sriov-plugin"]
    (image,) = index_archive(str(target)).images
    assert list(image.tags) == [recipe.SRIOV_IMAGE]

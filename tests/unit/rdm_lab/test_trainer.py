"""The contents of the lab's training image, and what a change rebuilds."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_index import index_archive
from ansible_collections.rdm.provision.rdm_lab import recipe
from ansible_collections.rdm.provision.rdm_lab import trainer as lab_trainer

ROOT = Path(__file__).parents[3]
FILES = ROOT / "roles/lab/files"


@pytest.fixture
def trainer(tmp_path: Path) -> Path:
    """A copy of what the image is made of."""
    sources = ("rdm_core", "rdm_job", "rdm_log", "rdm_planner", "rdm_trainer")
    for name in ("configs", "images", "requirements", *sources):
        shutil.copytree(
            ROOT / "trainer" / name,
            tmp_path / "trainer" / name,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    return tmp_path / "trainer"


def versions(trainer: Path, base: str = "base") -> lab_trainer.Versions:
    return lab_trainer.versions(trainer, FILES, base)


# --- what is made again


@pytest.mark.parametrize(
    "file", ["rdm_job/agent.py", "rdm_trainer/__init__.py", "rdm_trainer/cli/__init__.py"]
)
def test_a_change_of_the_sources_rebuilds_only_their_layer(trainer: Path, file: str) -> None:
    before = versions(trainer)
    (trainer / file).write_text("# changed\n")
    after = versions(trainer)
    assert after.installation == before.installation
    assert after.sources != before.sources
    assert after.archive != before.archive


@pytest.mark.parametrize(
    "file",
    ["requirements/runtime.txt", "images/install.sh", "images/python.sh", "images/packages/debian-12.txt"],
)
def test_change_of_requirements_reinstalls(trainer: Path, file: str) -> None:
    before = versions(trainer)
    with (trainer / file).open("a") as text:
        text.write("# changed\n")
    assert versions(trainer).installation != before.installation


@pytest.mark.parametrize(
    "file", ["requirements/dev.txt", "images/cpu.Dockerfile", "rdm_trainer/__pycache__/x.pyc", "README.md"]
)
def test_change_outside_the_image_rebuilds_nothing(trainer: Path, file: str) -> None:
    before = versions(trainer)
    (trainer / file).parent.mkdir(exist_ok=True)
    (trainer / file).write_text("changed")
    assert versions(trainer) == before


def test_a_file_that_is_added_moved_or_taken_away_is_a_change(trainer: Path) -> None:
    seen = {versions(trainer)}
    new = trainer / "rdm_trainer/new.py"
    new.write_text("x = 1\n")
    seen.add(versions(trainer))
    new.rename(trainer / "rdm_trainer/other.py")
    seen.add(versions(trainer))
    assert len(seen) == 3
    (trainer / "rdm_trainer/other.py").unlink()
    assert versions(trainer) in seen


def test_an_extra_is_another_installation_which_a_change_of_its_list_makes_again(trainer: Path) -> None:
    def with_extra() -> lab_trainer.Versions:
        return lab_trainer.versions(trainer, FILES, "base", ["finetune"])

    plain, before = versions(trainer), with_extra()
    assert before.installation != plain.installation
    with (trainer / "requirements/finetune.txt").open("a") as text:
        text.write("# changed\n")
    assert with_extra().installation != before.installation
    assert versions(trainer) == plain


def test_another_cpu_image_is_another_installation(trainer: Path) -> None:
    assert versions(trainer, "one").installation != versions(trainer, "two").installation


def test_the_newest_archive_with_the_same_installation_is_taken_over(tmp_path: Path) -> None:
    names = ["train-0123abcd-00000001.tar", "train-0123abcd-00000002.tar", "train-ffffffff-00000003.tar"]
    others = ["cpu.tar", "train-0123abcd-00000004.tar.new", "sriov-plugin.tar"]
    for age, name in enumerate([*names, *others]):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1000 + age, 1000 + age))
    wanted = lab_trainer.Versions("0123abcd", "00000009")
    found = lab_trainer.with_same_installation(tmp_path.iterdir(), wanted)
    assert [path.name for path in found] == [names[1], names[0]]
    assert [path.name for path in lab_trainer.superseded(tmp_path.iterdir())] == [names[0]]


# --- layers


def test_the_same_sources_give_the_same_layer(trainer: Path, tmp_path: Path) -> None:
    first = lab_trainer.source_layer(trainer, tmp_path / "first.tar")
    for path in trainer.rglob("*"):
        os.utime(path, (1, 1))
    (trainer / "rdm_trainer/__pycache__").mkdir(exist_ok=True)
    (trainer / "rdm_trainer/__pycache__/x.pyc").write_bytes(b"x")
    assert lab_trainer.source_layer(trainer, tmp_path / "second.tar").digest == first.digest
    with tarfile.open(first.path) as tar:
        names = set(tar.getnames())
    assert "opt/rdm/trainer/rdm_trainer/cli/__init__.py" in names
    assert any(name.startswith("opt/rdm/trainer/configs/") for name in names)
    assert not any("pycache" in name for name in names)


def rootfs(name: str) -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as tar:
        recipe.add_file(tar, name, name.encode() * 100, 0o644)
    return output.getvalue()


def as_layer(path: Path, content: bytes) -> recipe.Layer:
    path.write_bytes(content)
    return recipe.measured(path)


def test_layers_are_taken_over_from_one_archive_to_the_next(tmp_path: Path) -> None:
    contents = [rootfs(name) for name in ("base", "torch", "sources", "newer")]
    layers = [as_layer(tmp_path / f"{number}.tar", content) for number, content in enumerate(contents)]
    first, second = tmp_path / "first.tar", tmp_path / "second.tar"
    with first.open("wb") as file:
        recipe.write_archive(file, "x:1", layers[:3], ["/bin/sh"], "2026-01-02T03:04:05Z")
    taken, created = lab_trainer.archive_layers(first, tmp_path)
    with second.open("wb") as file:
        recipe.write_archive(
            file, "x:1", [*taken[:-1], layers[3]], ["/bin/sh"], created, lab_trainer.ENVIRONMENT
        )
    (image,) = index_archive(str(second)).images
    assert image.diff_ids == [f"sha256:{layers[number].digest}" for number in (0, 1, 3)]
    assert image.layer_sizes == [len(contents[number]) for number in (0, 1, 3)]
    assert image.traits["config"]["Env"][0].startswith("PATH=/opt/rdm/bin:/usr/local/sbin:")
    with tarfile.open(second) as tar:
        for path, number in zip(image.layer_paths, (0, 1, 3), strict=True):
            member = tar.extractfile(path)
            assert member is not None
            assert member.read() == contents[number]


def test_layers_of_other_engines_are_read_compressed_and_linked(tmp_path: Path) -> None:
    content = rootfs("base")
    digest = as_layer(tmp_path / "plain.tar", content).digest
    config = json.dumps({"created": "x", "rootfs": {"diff_ids": [f"sha256:{digest}"] * 2}}).encode()
    manifest = [{"Config": "config.json", "Layers": ["blobs/a", "b/layer.tar"]}]
    with tarfile.open(tmp_path / "image.tar", "w") as tar:
        recipe.add_file(tar, "manifest.json", json.dumps(manifest).encode(), 0o644)
        recipe.add_file(tar, "config.json", config, 0o644)
        recipe.add_file(tar, "blobs/a", gzip.compress(content), 0o644)
        link = tarfile.TarInfo("b/layer.tar")
        link.type, link.linkname = tarfile.SYMTYPE, "../blobs/a"
        tar.addfile(link)
    layers, _created = lab_trainer.archive_layers(tmp_path / "image.tar", tmp_path)
    assert [layer.digest for layer in layers] == [digest, digest]
    assert {layer.path.read_bytes() for layer in layers} == {content}


# --- pip's configuration

LISTING = """\
global.cert='/etc/company/ca.pem'
global.index-url='https://user:word@pip.example.org/simple'
global.find-links='/wheels'
install.find-links='/more /even more'
install.user='true'
freeze.timeout='10'
:env:.cert='/env/ca.pem'
:env:.default-timeout='180'
:env:.disable-pip-version-check='1'
WARNING: something
"""


def test_only_pip_settings_about_packages_are_passed_on() -> None:
    assert lab_trainer.pip_settings(LISTING) == {
        "cert": "/env/ca.pem",
        "index-url": "https://user:word@pip.example.org/simple",
        "find-links": "/more /even more",
        "default-timeout": "180",
    }


def test_pip_conf_equals_its_source_settings(tmp_path: Path) -> None:
    import configparser

    settings = {
        "cert": "/host/ca.pem",
        "index-url": "https://x/simple",
        "find-links": "/a /b",
        "retries": "3",
    }
    text = lab_trainer.pip_conf(settings, "/build/certificates.pem")
    parser = configparser.RawConfigParser()
    parser.read_string(text)
    assert {name: value.split() for name, value in parser["global"].items()} == {
        "index-url": ["https://x/simple"],
        "find-links": ["/a", "/b"],
        "retries": ["3"],
        "cert": ["/build/certificates.pem"],
    }
    assert "cert" not in lab_trainer.pip_conf({}, "")


def test_directories_of_this_machine_are_found_once(tmp_path: Path) -> None:
    for name in ("wheels/inner", "an index/simple", "page"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "page/links.html").touch()
    settings = {
        "index-url": "https://pip.example.org/simple",
        "extra-index-url": f"file://{tmp_path}/an%20index/simple file:///nowhere/simple",
        "find-links": f"{tmp_path}/wheels {tmp_path}/wheels/inner {tmp_path}/page/links.html https://x /none",
    }
    assert lab_trainer.local_directories(settings) == [
        f"{tmp_path}/an index",
        f"{tmp_path}/wheels",
        f"{tmp_path}/page",
    ]

"""The training images: every version is named, and the three and the lab install the same way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRAINER = ROOT / "trainer"
IMAGES = TRAINER / "images"
DOCKERFILES = sorted(IMAGES.glob("*.Dockerfile"))
PACKAGES = sorted((IMAGES / "packages").glob("*.txt"))
PIN = re.compile(r"[\w.-]+==[\w.!+]+")
INSTRUCTIONS = {"ARG", "CMD", "COPY", "ENV", "FROM", "RUN", "USER"}


def instructions(path: Path) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile, as (word, rest)."""
    text = path.read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def pins(path: Path) -> dict[str, str]:
    """Return the exact versions that a requirements file names."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith(("#", "-r "))]
    assert all(PIN.fullmatch(line) for line in lines), lines
    found = dict(line.split("==") for line in lines)
    assert len(found) == len(lines)
    return {name.lower().replace("_", "-"): version for name, version in found.items()}


def test_there_is_one_for_each_accelerator() -> None:
    assert [path.name.partition(".")[0] for path in DOCKERFILES] == ["cpu", "cuda", "rocm"]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_a_dockerfile_pins_its_base_and_runs_the_shared_script(path: Path) -> None:
    found = instructions(path)
    assert {word for word, _rest in found} <= INSTRUCTIONS, "an engine without BuildKit must understand it"
    (base,) = [rest for word, rest in found if word == "ARG" and rest.startswith("BASE=")]
    tag = base.rpartition("/")[2].partition(":")[2]
    assert re.search(r"\d+\.\d+", tag), base
    assert [rest.split()[0] for word, rest in found if word == "FROM"] == ["${BASE}", "system", "system"]
    runs = [rest for word, rest in found if word == "RUN"]
    assert runs[0] == "sh /build/images/install.sh system"
    assert runs[1].startswith("sh /build/images/install.sh python ")
    assert len(runs) == 2
    for requirement in re.findall(r"torch\S*", runs[1].rpartition("whl/")[2]):
        assert PIN.fullmatch(requirement.strip('"')), requirement


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_pip_settings_are_not_kept_in_the_image(path: Path) -> None:
    stage, message, copied = "", [], []
    for word, rest in instructions(path):
        if word == "FROM":
            stage = rest.partition(" AS ")[2]
        elif word == "ARG" and rest.startswith("PIP_CONFIG"):
            message.append(stage)
        elif word == "COPY" and not stage:
            copied.append(rest)
    assert message == ["python"]
    assert "--from=python /opt/rdm /opt/rdm" in copied
    for package in ("rdm_core", "rdm_job", "rdm_log", "rdm_planner", "rdm_trainer"):
        assert f"{package} /opt/rdm/trainer/{package}" in copied


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_copied_files_are_in_the_build_context(path: Path) -> None:
    context = {line[1:] for line in (TRAINER / ".dockerignore").read_text().splitlines() if line[0] == "!"}
    copied = [rest.split()[0] for word, rest in instructions(path) if word == "COPY" and "--from" not in rest]
    assert set(copied) <= context
    assert all((TRAINER / name).is_dir() for name in copied)


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: path.name)
def test_every_debian_package_has_a_version(path: Path) -> None:
    lines = [line.partition("#")[0].strip() for line in path.read_text().splitlines()]
    names = [line.partition("=")[0] for line in filter(None, lines)]
    for line in filter(None, lines):
        assert re.fullmatch(r"[a-z0-9.+-]+=(\d+:)?\d[\w.+~]*-?\*", line), line
    assert names == sorted(set(names))
    assert {
        "ibverbs-providers",
        "ibverbs-utils",
        "libibverbs1",
        "openmpi-bin",
        "openssh-server",
        "pdsh",
        "python3-venv",
    } <= set(names)


def test_every_python_package_has_an_exact_version() -> None:
    runtime = TRAINER / "requirements/runtime.txt"
    assert next(line for line in runtime.read_text().splitlines() if "==" in line).startswith("torch==")
    dev = TRAINER / "requirements/dev.txt"
    assert "-r runtime.txt" in dev.read_text().splitlines()
    finetune = TRAINER / "requirements/finetune.txt"
    names = [name for file in (runtime, dev, finetune) for name in pins(file)]
    assert len(names) == len(set(names))

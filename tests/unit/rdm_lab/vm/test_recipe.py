"""What a lab's virtual machines are made of."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from ansible_collections.rdm.provision.rdm_lab.spec import PODMAN, LabProblem
from ansible_collections.rdm.provision.rdm_lab.vm import recipe

from rdm_provision.cli.verbs.lab import lab

FILES = Path(__file__).parents[4] / "roles/lab/files"
OWN = [
    "deb [signed-by=/k.gpg] http://deb.example.org/bookworm bookworm main",
    "deb [signed-by=/k.gpg] http://deb.example.org/bookworm bookworm-updates main contrib",
    "deb http://security.example.org/debian-security bookworm-security main",
]


def test_packages_come_from_where_this_machine_takes_its_own() -> None:
    assert recipe.sources(OWN, "debian", "bookworm") == [
        f"deb [signed-by=/k.gpg] http://deb.example.org/bookworm {recipe.SUITE} main",
        f"deb [signed-by=/k.gpg] http://deb.example.org/bookworm {recipe.SUITE}-updates main contrib",
        f"deb http://security.example.org/debian-security {recipe.SUITE}-security main",
    ]


def test_another_distribution_has_no_sources_of_debian() -> None:
    own = ["deb http://archive.example.org/ubuntu noble main universe"]
    assert recipe.sources(own, "ubuntu", "noble") == []
    assert recipe.sources([], "debian", "") == []


@pytest.mark.parametrize("name", [*recipe.GUEST_FILES, *(f"vm/{name}" for name in recipe.FILES)])
def test_the_version_changes_with_every_file(name: str, tmp_path: Path) -> None:
    copy = tmp_path / "roles/lab/files"
    shutil.copytree(FILES, copy)
    assert recipe.version(copy) == recipe.version(FILES)
    with (copy / name).open("a") as file:
        file.write("# changed\n")
    assert recipe.version(copy) != recipe.version(FILES)


def test_every_file_is_part_of_the_recipe() -> None:
    # Another test that loads one of them as a module leaves its compiled form in a directory there.
    assert {path.name for path in (FILES / "vm").iterdir() if path.is_file()} == set(recipe.FILES)


def test_another_processor_is_refused_before_anything_is_made() -> None:
    recipe.checked_architecture("x86_64")
    with pytest.raises(LabProblem, match="need an x86_64 machine, and this is aarch64"):
        recipe.checked_architecture("aarch64")


def test_the_engine_alone_is_of_another_release() -> None:
    argv = {
        engine: recipe.guest_command(recipe.Choice(engine), [], FILES, Path("/boot"), Path("/g.tar"), [])
        for engine in recipe.ENGINES
    }
    for engine, (release, packages) in recipe.ENGINES.items():
        (hook,) = [part for part in argv[engine] if "engine.sh" in part]
        assert f" -s -- {recipe.SUITE} {release} {' '.join(packages)} <" in hook
        # Until then there is no engine, and the release of the others stays out of all the rest.
        others = [part for part in argv[engine] if part != hook]
        assert not any("docker" in part for part in others)
        assert release == recipe.SUITE or not any(f" {release} " in part for part in others)
        assert argv[engine][-2] == recipe.SUITE
        # The kernel is fetched after it, and the engine's services are enabled there.
        hooks = [part for part in argv[engine] if part.startswith("--customize-hook")]
        assert hooks.index(hook) < hooks.index(next(part for part in hooks if "guest.sh" in part))


def test_which_engines_machines_can_have() -> None:
    assert recipe.checked_engine("", True) == recipe.checked_engine("", False) == recipe.DEFAULT_ENGINE
    assert [recipe.checked_engine(engine, True) for engine in recipe.ENGINES] == list(recipe.ENGINES)
    with pytest.raises(LabProblem, match=r"have no engine '19.03': it is one of 20.10, 26.1, newest"):
        recipe.checked_engine("19.03", True)
    assert recipe.checked_engine(PODMAN, False) == PODMAN
    with pytest.raises(LabProblem, match=r"have no engine 'podman'"):
        recipe.checked_engine(PODMAN, True)
    with pytest.raises(LabProblem, match=r"--engine 20.10 goes with --hardware vm"):
        recipe.checked_engine("20.10", False)


def test_the_kernel_alone_is_of_another_release() -> None:
    for kernel, release in recipe.KERNELS.items():
        argv = recipe.guest_command(
            recipe.Choice(kernel=kernel), [], FILES, Path("/boot"), Path("/g.tar"), []
        )
        (hook,) = [part for part in argv if "guest.sh" in part]
        assert f" -s -- {recipe.SUITE} {release} <" in hook
        assert argv[-2] == recipe.SUITE


def test_which_kernels_machines_can_have() -> None:
    assert recipe.checked_kernel("", True) == recipe.checked_kernel("", False) == recipe.DEFAULT_KERNEL
    assert [recipe.checked_kernel(kernel, True) for kernel in recipe.KERNELS] == list(recipe.KERNELS)
    with pytest.raises(LabProblem, match=r"have no kernel '5.10': it is one of 6.12, newest"):
        recipe.checked_kernel("5.10", True)
    with pytest.raises(LabProblem, match=r"--kernel newest goes with --hardware vm"):
        recipe.checked_kernel("newest", False)


@pytest.mark.parametrize(
    ("choice", "known", "default"),
    [
        ("engine", {**recipe.ENGINES, PODMAN: ""}, recipe.DEFAULT_ENGINE),
        ("kernel", recipe.KERNELS, recipe.DEFAULT_KERNEL),
    ],
)
def test_every_module_knows_the_same_engines_and_kernels(
    choice: str, known: dict[str, object], default: str
) -> None:
    specs = yaml.safe_load((FILES.parent / "meta/argument_specs.yml").read_text())
    choices = specs["argument_specs"]["main"]["options"][f"lab_{choice}"]["choices"]
    (option,) = [one.to_info_dict() for one in lab.commands["up"].params if one.name == choice]
    assert choices == ["", *known]
    assert list(option["type"]["choices"]) == list(known)
    assert f"[default: {default}]" in option["help"]


def test_paths_with_quotes_are_quoted_in_hooks() -> None:
    directory = Path("/a'dir $(id)")
    commands = [
        recipe.guest_command(recipe.Choice(), [], directory, directory / "boot", directory / "g.tar", []),
        recipe.container_command([], directory / "rdm-lab", directory / "c.tar", []),
    ]
    hooks = [part for argv in commands for part in argv if part.startswith("--customize-hook")]
    assert len([hook for hook in hooks if "'/a'\"'\"'dir $(id)" in hook]) >= 5
    assert not any("/a'dir" in hook for hook in hooks)

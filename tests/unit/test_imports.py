"""What imports what: no module needs, through others, itself, and no side what it may not know."""

from __future__ import annotations

import ast
import functools
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COLLECTION = "ansible_collections.rdm.provision.plugins"
SRIOV = "ansible_collections.rdm.provision.rdm_sriov"
LAB = "ansible_collections.rdm.provision.rdm_lab"
PACKAGES = {
    "rdm_provision": ROOT / "rdm_provision",
    f"{COLLECTION}.plugin_utils": ROOT / "plugins/plugin_utils",
    f"{COLLECTION}.module_utils": ROOT / "plugins/module_utils",
    SRIOV: ROOT / "rdm_sriov",
    LAB: ROOT / "rdm_lab",
}


def modules(packages: dict[str, Path] = PACKAGES) -> dict[str, Path]:
    """Return the modules of packages, by name."""
    found = {}
    for package, folder in packages.items():
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


def imports(tree: ast.AST, *, types: bool = False) -> Iterator[str]:
    """Yield the names that a piece of a program imports, in functions too, and with `types` for types."""
    for node in ast.iter_child_nodes(tree):
        is_for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if is_for_types and not types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        yield from imports(node, types=types)


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """Return the names that a file imports."""
    return frozenset(imports(ast.parse(path.read_text(encoding="utf-8"))))


def circle(sources: dict[str, str], *, types: bool = False) -> list[str]:
    """Return the modules of a circle of imports, by the names and sources of all; none if there is none."""
    graph = {
        name: {other for other in imports(ast.parse(text), types=types) if other in sources and other != name}
        for name, text in sources.items()
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_through_others() -> None:
    sources = {name: path.read_text(encoding="utf-8") for name, path in modules().items()}
    assert len(sources) > 150
    assert circle(sources) == []
    # For types, the package imports all of its modules, which import each other through it.
    del sources["rdm_provision"]
    assert circle(sources, types=True) == []


def test_a_circle_is_found_in_functions_too_and_not_where_only_types_are_imported() -> None:
    there = {"a": "from b import x", "b": "def x():\n    import c", "c": "from b import y"}
    assert set(circle(there)) == {"b", "c"}
    types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from b import x"
    assert circle({"a": types, "b": "import a"}) == []


ARROWS = {
    # Which packages of the trainer a package may import; nothing else, not for types either.
    "rdm_core": set(),
    "rdm_log": {"rdm_core"},
    "rdm_job": {"rdm_core", "rdm_log"},
    "rdm_planner": {"rdm_core"},
    "rdm_trainer": {"rdm_core"},
}
TRAINER = {package: ROOT / "trainer" / package for package in ARROWS}
TRAINER_FOLDERS = tuple(f"trainer/{package}" for package in ARROWS)
SIDES = {
    # What is promised: (folders, what of them is left out, packages that the rest may not import).
    "the product does not know the lab": (
        ("rdm_provision", "rdm_sriov", "plugins"),
        ("rdm_provision/api/lab.py", "rdm_provision/cli/verbs/lab.py", "plugins/action/lab"),
        (LAB, "rdm_provision.api.lab"),
    ),
    "what nodes run does not need what only the controller has": (
        ("plugins/module_utils", "plugins/modules", "rdm_sriov"),
        (),
        (f"{COLLECTION}.plugin_utils", "rdm_provision"),
    ),
    "modules do not need the network plugin, which is a program of its own": (
        ("plugins/module_utils", "plugins/modules"),
        (),
        (SRIOV,),
    ),
    "the collection does not need the API": (("plugins", "rdm_lab"), (), ("rdm_provision",)),
    "the control side has no torch": (
        ("rdm_provision", "plugins"),
        # It reads how the trainer's engine takes a step, from a file without torch.
        ("rdm_provision/api/tuning.py",),
        ("torch", "rdm_trainer", "rdm_job"),
    ),
    "the node side has no Ansible": (
        TRAINER_FOLDERS,
        (),
        ("ansible", "rdm_provision"),
    ),
    "who reads logs or plans needs neither torch nor the trainer": (
        ("trainer/rdm_core", "trainer/rdm_log", "trainer/rdm_planner"),
        (),
        ("torch", "rdm_trainer", "rdm_job"),
    ),
    "agents and launchers need no torch": (("trainer/rdm_job",), (), ("torch", "deepspeed")),
    "no product knows its tests": (
        ("rdm_provision", "plugins", *TRAINER_FOLDERS),
        (),
        ("tests", "benchmarks"),
    ),
}


MORE_ARROWS = {
    # The program of all verbs. What it starts, it starts with `python -m`.
    "rdm_trainer.cli": {"rdm_job", "rdm_log", "rdm_planner"},
    # Its page looks like those of reports.
    "rdm_planner.tune": {"rdm_log"},
    # A training that was started by hand is its own agent.
    "rdm_trainer.prometheus": {"rdm_job"},
    # How the engine takes a step, in the planner's terms, next to its code.
    "rdm_trainer.engine_step": {"rdm_planner"},
    # What a rank that hangs reports, as the verdict reads it.
    "rdm_trainer.flight_recorder": {"rdm_log"},
    # What was measured is written as the planner reads it.
    "rdm_trainer.profile_model": {"rdm_planner"},
    # Names of directories and files that agents and reports know, too.
    "rdm_trainer.profiler": {"rdm_job"},
    "rdm_trainer.step_trace": {"rdm_log"},
}


LAYERS = {
    # Package -> its parts. Each imports only what stands above it.
    f"{COLLECTION}.plugin_utils": (
        "errors",
        "ansible_internals",
        "inventory",
        "addresses",
        "ssh",
        "controller",
        "python_env",
        "jobs",
        "fabric",
        "desired",
        "checks",
        "slurm",
    ),
    f"{COLLECTION}.module_utils": (
        "constants",
        "base",
        "hardware",
        "network",
        "sriov",
        "docker",
        "images",
        "fabric",
        "network_plugin",
        "jobs",
        "container",
        "state",
        "slurm",
        "python_env",
    ),
    "rdm_provision": (
        "errors",
        "nearest",
        "environment",
        "constants",
        "wording",
        "problem",
        "results",
        "runner",
        "api",
        "cli",
    ),
    "rdm_provision.cli": ("verb_list", "render", "common", "verbs"),
}


def upward(package: str, sources: dict[str, str], order: tuple[str, ...]) -> list[str]:
    """Return the imports, for types too, of what stands below in the order of a package's parts."""
    found = []
    for name, text in sources.items():
        mine = order.index(name.removeprefix(f"{package}.").partition(".")[0])
        others = {
            other.removeprefix(f"{package}.").partition(".")[0]
            for other in imports(ast.parse(text), types=True)
            if other.startswith(f"{package}.")
        }
        found += [f"{name}: {other}" for other in order[mine + 1 :] if other in others]
    return found


@pytest.mark.parametrize("package", LAYERS)
def test_a_package_s_parts_import_only_what_stands_above_them(package: str) -> None:
    sources = {
        name: path.read_text(encoding="utf-8")
        for name, path in modules().items()
        if name.startswith(f"{package}.")
    }
    assert len(sources) > 30
    assert upward(package, sources, LAYERS[package]) == []
    assert circle(sources, types=True) == []


def test_an_import_of_a_package_below_is_found() -> None:
    types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.b import x"
    assert upward("p", {"p.a.m": types, "p.b.m": "import p.a.m"}, ("a", "b")) == ["p.a.m: b"]


def back(sources: dict[str, str], exceptions: dict[str, set[str]]) -> list[str]:
    """Return the imports between the trainer's packages that no arrow allows, for types too."""
    found = []
    for name, text in sources.items():
        mine = name.partition(".")[0]
        more = [arrows for part, arrows in exceptions.items() if f"{name}.".startswith(f"{part}.")]
        allowed = {mine}.union(ARROWS[mine], *more)
        others = {other.partition(".")[0] for other in imports(ast.parse(text), types=True)}
        found += [f"{name}: {other}" for other in sorted((others & ARROWS.keys()) - allowed)]
    return found


def test_the_trainer_s_packages_import_only_what_stands_above_them() -> None:
    sources = {name: path.read_text(encoding="utf-8") for name, path in modules(TRAINER).items()}
    assert len(sources) > 150
    assert back(sources, MORE_ARROWS) == []
    assert circle(sources, types=True) == []
    # An unused exception must be removed.
    needed = {tuple(found.replace(":", ".").split(".")[:2]) for found in back(sources, {})}
    assert needed == {tuple(part.split(".")) for part in MORE_ARROWS}


def test_an_arrow_that_runs_back_is_found_for_types_too() -> None:
    types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from {} import x"
    assert back({"rdm_log.a": types.format("rdm_job.b")}, {}) == ["rdm_log.a: rdm_job"]
    assert back({"rdm_job.a": "def x():\n    import rdm_trainer.train"}, MORE_ARROWS) == [
        "rdm_job.a: rdm_trainer"
    ]
    both = {"rdm_trainer.cli.a": "import rdm_job.b", "rdm_trainer.client": "import rdm_job.b"}
    assert back(both, MORE_ARROWS) == ["rdm_trainer.client: rdm_job"]
    assert circle({"a": types.format("b"), "b": "import a"}, types=True) != []


def names(source: str) -> set[str]:
    """Return the names that a module has, whatever makes them."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def missing(source: str, sources: dict[str, str]) -> list[str]:
    """Return what a file imports from the trainer and the trainer does not have."""
    return [
        f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in ARROWS
        for alias in node.names
        if f"{node.module}.{alias.name}" not in sources
        and alias.name not in names(sources.get(str(node.module), ""))
    ]


def test_benchmarks_import_existing_names_of_the_trainer() -> None:
    # mypy skips the trainer there, and no test runs most of them.
    sources = {name: path.read_text(encoding="utf-8") for name, path in modules(TRAINER).items()}
    files = sorted((ROOT / "benchmarks").rglob("*.py"))
    found = {path.name: missing(path.read_text(encoding="utf-8"), sources) for path in files}
    assert {name: absent for name, absent in found.items() if absent} == {}
    assert missing("from rdm_job.info import job_info, absent", sources) == ["rdm_job.info.absent"]
    assert missing("from rdm_job import info, absent", sources) == ["rdm_job.absent"]
    assert missing("from rdm_job.absent import info", sources) == ["rdm_job.absent.info"]


def wrong(folders: tuple[str, ...], without: tuple[str, ...], forbidden: tuple[str, ...]) -> list[str]:
    """Return the files that import what they may not, with what that is."""
    names = {
        path.relative_to(ROOT).as_posix(): path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
    }
    mine = [path for name, path in sorted(names.items()) if not (without and name.startswith(without))]
    assert len(mine) > 10
    return [
        f"{path}: {name}"
        for path in mine
        for name in imported(path)
        if any(name == package or name.startswith(f"{package}.") for package in forbidden)
    ]


@pytest.mark.parametrize("side", SIDES)
def test_no_side_imports_forbidden_packages(side: str) -> None:
    assert wrong(*SIDES[side]) == []


def test_an_import_of_the_other_side_is_found() -> None:
    assert wrong(("rdm_provision",), (), (LAB,)) != []

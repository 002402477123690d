"""Clusters for the tests of the control side: real inventories, local connections."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from rdm_provision.api import cluster
from rdm_provision.cli import main
from rdm_provision.runner import inventory
from rdm_provision.runner.inventory import read_inventory
from rdm_provision.runner.run import Run
from rdm_provision.runner.run_spec import RunSpec
from tests.ansible_playbook import ansible_inventory

LOCAL = {
    "ansible_connection": "local",
    "ansible_python_interpreter": sys.executable,
    "rdm_accelerator": "cpu",
    "rdm_subnet": "10.77.0.0/24",
    "rdm_become": False,
    "network_driver": "macvlan",
    "images_list": [{"name": "training:1", "source": "registry"}],
}
NODES = ("node1", "node2", "node3")

JOB = {
    "name": "tiny",
    "model": {"layers": 8, "hidden_size": 512, "attention_heads": 8, "seq_length": 512, "vocab_size": 1000},
    "optimisation": {"micro_batch_size": 1, "global_batch_size": 16, "train_iterations": 4},
    "data": {"mock": True},
}
VERSIONS = {"torch": "2.9.0", "deepspeed": "0.18.0"}


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def complaints(self) -> list[str]:
        """Lines on stderr, except those about tasks over 10 s, which are normal on a busy machine."""
        return [
            line for line in self.err.splitlines() if not (line.startswith("    ") and line.endswith("…"))
        ]


Call = Callable[..., CommandResult]
MakeInventory = Callable[..., Path]
Play = Callable[..., Run]
_ANSWERS: dict[tuple[Any, ...], str] = {}


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run without the developer's own settings, in a folder without an inventory."""
    for name in ("RDM_INVENTORY", "ANSIBLE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)


@pytest.fixture(autouse=True)
def inventories_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Ansible read inventories with the same files only once, in a process that need not import it."""

    def served(
        argv: Sequence[str], env: Mapping[str, str], seconds: float
    ) -> subprocess.CompletedProcess[str]:
        return ansible_inventory(*argv[1:], environment=env, timeout=int(seconds))

    def read(path: Path, vault: str = "") -> dict[str, Any]:
        files = sorted(file for file in path.rglob("*") if file.is_file() and ".rdm" not in file.parts)
        own = vault or Path("ansible.cfg").exists() or any(os.access(file, os.X_OK) for file in files)
        if own or not files:
            return read_inventory(path, vault)
        settings = sorted(item for item in os.environ.items() if item[0].startswith("ANSIBLE_"))
        key = (*((str(file.relative_to(path)), file.read_bytes()) for file in files), *settings)
        if key not in _ANSWERS:
            with monkeypatch.context() as patched:
                patched.setattr(inventory, "_bounded", served)
                _ANSWERS[key] = json.dumps(read_inventory(path))
        answer: dict[str, Any] = json.loads(_ANSWERS[key])
        return answer

    monkeypatch.setattr(cluster, "read_inventory", read)


@pytest.fixture
def make_inventory(tmp_path: Path) -> MakeInventory:
    """Write an inventory of NODES nodes, with variables for single hosts."""

    def make(
        *nodes: str, hosts: dict[str, dict[str, Any]] | None = None, name: str = "inventory", **variables: Any
    ) -> Path:
        own = hosts or {}
        names = nodes or NODES
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        data = {
            "all": {
                "vars": {**LOCAL, **variables},
                "children": {
                    "master": {"hosts": {names[0]: own.get(names[0], {})}},
                    "workers": {"hosts": {node: own.get(node, {}) for node in names[1:]}},
                },
            }
        }
        (folder / "hosts.yml").write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
        return folder

    return make


@pytest.fixture
def play(tmp_path: Path, make_inventory: MakeInventory) -> Play:
    """Return a run of a playbook with these tasks."""

    def make(tasks: list[dict[str, Any]], **spec: Any) -> Run:
        book = tmp_path / "book.yml"
        document = [{"name": "Play", "hosts": "master:workers", "gather_facts": False, "tasks": tasks}]
        book.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        inventory = spec.pop("inventory", None) or make_inventory()
        given = {"verb": "up", "playbook": str(book), "inventory": str(inventory), "nodes": NODES}
        return Run(RunSpec(**{**given, "home": inventory, **spec}))

    return make


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    """Run the program in this process."""

    def run(*argv: str | Path) -> CommandResult:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in argv])
        captured = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return CommandResult(ended.value.code, captured.out, captured.err)

    return run


def profiled(gpu: str, **changed: Any) -> dict[str, Any]:
    """Return what `rdm-trainer profile` measures of the job."""
    from rdm_core import config as configuration
    from rdm_planner.profile import shape_of

    times = {"forward": 1e-3, "backward": 2e-3, "checkpointed": 3e-3}
    kinds = {kind: {"1": times} for kind in ("Block", "Embedding", "Head")}
    found = {
        "format": 1,
        "gpu": gpu,
        "shape": shape_of(configuration.from_dict(JOB)),
        "versions": dict(VERSIONS),
        "date": "2026-11-26T11:00:00+00:00",
        "memory_gib": 20.0,
        "optimiser": 1e-11,
        "layers": {"1": kinds},
        "links": {},
    }
    return found | changed

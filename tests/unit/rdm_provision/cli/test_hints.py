"""A hint is a promise: the commands in our messages and pages exist, with their options."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import pytest

from rdm_provision import Cluster, cli
from rdm_provision.api import doctor
from rdm_provision.cli import main
from rdm_provision.cli.render import commands, live
from rdm_provision.cli.verb_list import VERBS
from rdm_provision.results.events import NodeRecap, RunResult
from rdm_provision.results.outcomes import CommandOutput
from tests.unit.rdm_provision.cli.hints import hints, wrong
from tests.unit.rdm_provision.conftest import MakeInventory


def test_every_command_that_is_named_exists_with_its_options() -> None:
    found = list(hints())
    assert len(found) > 300, "the texts are not found any more"
    refused = [
        f"{hint.where}: rdm-provision {' '.join(hint.words)}: {why}"
        for hint in found
        if (why := wrong(hint.words))
    ]
    assert not refused, "\n".join(refused)


@pytest.mark.parametrize(
    "command", ["upp", "up --recheks", "env", "lab up --slrum", "slurm status --limit n1", "jobs --wach x"]
)
def test_unknown_command_is_found(command: str) -> None:
    assert wrong(command.split())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("verify --rdma --all-pairs", "verify --all-pairs --rdma"),
        ("verify --collective --max-size 64M", "verify --collective --max-size 64M"),
        ("up --recheck --tags network -f 2 -v", "up --recheck -t network -f 2"),
        ("up -e 'rdm_slots=[1, 2]' -e a=b", "up -e 'rdm_slots=[1, 2]' -e a=b"),
        # Both nodes of its limit failed.
        ("up --limit node1,node2", "up --limit node1,node2"),
        ("down --images", "down --images"),
        ("slurm down --purge", "slurm down --purge"),
    ],
)
def test_command_to_run_again_keeps_its_options(
    given: str,
    expected: str,
    make_inventory: MakeInventory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    nodes = {name: NodeRecap(failed=1) for name in ("node1", "node2")}
    monkeypatch.setattr(live, "watch", lambda run, **_: RunResult(verb=run.spec.verb, nodes=nodes))
    inventory = ["-i", str(make_inventory("node1", "node2", "node3"))]
    with pytest.raises(SystemExit) as ended:
        main([*shlex.split(given), *inventory])
    assert ended.value.code == 1
    (again,) = [
        line for line in capsys.readouterr().out.splitlines() if "when it is fixed, run again" in line
    ]
    words = shlex.split(again.partition("when it is")[0])
    for word in inventory:
        words.remove(word)
    assert words == ["rdm-provision", *shlex.split(expected)]


def test_up_command_after_a_check_keeps_its_options(
    make_inventory: MakeInventory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = {"node1": NodeRecap(changed=1)}
    monkeypatch.setattr(live, "watch", lambda run, **_: RunResult(verb="check", check=True, nodes=nodes))
    path = str(make_inventory("node1", "node2"))
    with pytest.raises(SystemExit):
        main(["check", "-i", path, "--limit", "node1", "-e", "network_replace=true", "--tags", "network"])
    (step,) = [line for line in capsys.readouterr().out.splitlines() if "make it so" in line]
    assert shlex.split(step.partition("make it so")[0]) == [
        *("rdm-provision", "up", "-i", path, "-e", "network_replace=true"),
        *("--limit", "node1", "--tags", "network"),
    ]


@pytest.mark.parametrize(
    ("words", "shell"),
    [(["hostname; date"], "-- sh -c 'hostname; date'"), (["false"], ""), (["sh", "-c", "a b"], "")],
)
def test_command_line_with_shell_syntax_gets_a_shell(
    words: list[str],
    shell: str,
    make_inventory: MakeInventory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = RunResult(verb="exec", nodes={"node1": NodeRecap(failed=1)})
    monkeypatch.setattr(live, "watch", lambda *_, **__: result)
    monkeypatch.setattr(Cluster, "outputs", lambda *_: (CommandOutput("node1", 127),))
    with pytest.raises(SystemExit):
        main(["exec", "-i", str(make_inventory("node1")), "--", *words])
    output = capsys.readouterr().err
    assert (shell in output) if shell else ("shell" not in output)


def test_doctor_does_not_say_no_inventory_of_an_inventory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    well, message = doctor._inventory(None)
    assert (well, message.startswith("there is none in ./inventory"), "-i PATH" in message) == (
        True,
        True,
        True,
    )


def test_hints_name_the_inventory_for_every_verb_that_takes_one() -> None:
    takers = set()
    for verb in VERBS:
        command = cli.Verbs("rdm-provision").get_command(click.Context(click.Command("x")), verb)
        assert command is not None
        below = command.commands if isinstance(command, click.Group) else {"": command}
        takers |= {f"{verb} {name}".strip() for name, one in below.items() if "inventory" in names(one)}
    # `doctor` checks the control machine; the inventory only adds to that.
    found = {verb for verb in takers if commands._HINTED.search(f"rdm-provision {verb}")}
    assert takers - found == {"doctor"}


def names(command: click.Command) -> set[str | None]:
    """Return the names of a command's parameters."""
    return {param.name for param in command.params}

"""The command line: its output, on which stream, and its exit codes."""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from ansible.parsing.vault import VaultLib, VaultSecret
from ansible_collections.rdm.provision.rdm_lab.vm import recipe

from rdm_provision.api.cluster import Cluster
from rdm_provision.cli import cli, verb_list
from rdm_provision.cli.verb_list import VERBS
from rdm_provision.errors import RdmError
from rdm_provision.results.events import NodeRecap, RunResult
from rdm_provision.results.outcomes import CommandOutput
from tests.conftest import ROOT
from tests.unit.rdm_provision.conftest import NODES, Call, CommandResult, MakeInventory


def _command(verb: str) -> click.Command:
    command = cli.get_command(None, verb)  # type: ignore[arg-type]
    assert command is not None
    return command


# --- help and typing errors --------------------------------------------------------------------------


def test_help_lists_every_verb(call: Call) -> None:
    result = call("--help")
    assert result.code == 0
    for verb in VERBS:
        assert f"\n  {verb} " in result.out


def test_every_file_with_a_command_is_a_verb_of_a_group() -> None:
    """A group that is none would leave the verb out, without a word."""
    files = Path(verb_list.__file__).with_name("verbs").glob("*.py")
    commands = {path.stem for path in files if re.search("^@click.(command|group)", path.read_text(), re.M)}
    assert commands == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_examples(call: Call, verb: str) -> None:
    result = call(verb, "--help")
    assert result.code == 0
    assert "Examples:" in result.out
    assert f"rdm-provision {verb}" in result.out
    assert max(len(line) for line in result.out.splitlines()) <= 100


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("lab", "completion")])
def test_every_verb_speaks_json(verb: str) -> None:
    command = _command(verb)
    for one in command.commands.values() if isinstance(command, click.Group) else [command]:
        assert "--json" in [name for param in one.params for name in param.opts]


def test_no_arguments_show_the_help(call: Call) -> None:
    result = call()
    assert result.code == 3
    assert "Jobs:" in result.out + result.err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["chek"], ["chek", "check"]),
        (["xyzzy"], ["xyzzy", "check, completion, data"]),
        (["up", "--limt", "x"], ["--limt", "--limit"]),
        (["up", "--forks", "none"], ["none"]),
        (["logs", "x", "--rank", "two"], ["'two' is not an integer."]),
        (["lab", "up", "--nodes", "two"], ["'two' is not an integer."]),
        (["exec", "--timeout", "long", "--", "true"], ["'long' is not a number."]),
        (["up", "stray"], ["stray"]),
        (["up", "--check"], ["--check", "rdm-provision check"]),
        (["up", "--diff", "--check"], ["See: rdm-provision check, which"]),
        (["train", "x.yaml", "--resume", ""], ["--resume is empty"]),
        (["jobs", "--prune"], ["--prune", "rdm-provision jobs --help"]),
        (["jobs", "--yes"], ["--yes is for --prune."]),
        (["jobs", "log2/123"], ["log2/123", "--verdict or --sections", "rdm-provision jobs lists"]),
        (["jobs", "log2/123", "--watch"], ["log2/123", "--verdict or --sections"]),
        (["jobs", "/etc/hosts", "--sections"], ["/etc/hosts is a file", "rdm-provision report /etc/hosts"]),
        (["jobs", "log2/nosuch", "--verdict"], ["no directory log2/nosuch", "or a log"]),
        (["report", "log2/nosuch"], ["no file log2/nosuch", "the name of a job"]),
        (["tune", "x.yaml", "--inter", "0"], ["--inter is 0; it must be a number above 0"]),
        (["tune", "x.yaml", "--html", "nosuch/x.html"], ["the directory nosuch does not exist"]),
        (["exec"], ["COMMAND"]),
        (["completion", "tcsh"], ["bash"]),
        (["plan", "-e", "novalue"], ["novalue", "KEY=VALUE"]),
        (["plan", "-e", "@/nowhere.yml"], ["/nowhere.yml"]),
        (["plan", "-e", "x=[1"], ["YAML"]),
        (["plan", "--vault-password-file", "/nowhere", "-i", "/"], ["/nowhere", "password"]),
        (["plan", "-e", "{x: 1"], ["YAML"]),
        (["plan", "-e", "[1, 2]"], ["[1, 2]", "KEY: VALUE"]),
        (["plan", "-e", '{"x": !unsafe ["{{ y }}"]}'], ["{{ y }}", "templated"]),
    ],
)
def test_bad_command_lines_are_bad_input_with_a_way_out(
    call: Call, argv: list[str], words: list[str]
) -> None:
    result = call(*argv)
    assert result.code == 3
    assert result.out == ""
    assert "Error:" in result.err
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err


def _verbs_with_an_inventory_and_no_arguments() -> list[str]:
    found = []
    for verb in VERBS:
        command = _command(verb)
        commands = command.commands if isinstance(command, click.Group) else {"": command}
        for name, one in commands.items():
            options = {option for param in one.params for option in param.opts}
            if "-i" in options and not any(isinstance(param, click.Argument) for param in one.params):
                found.append(f"{verb} {name}".strip())
    return found


@pytest.mark.parametrize("verb", _verbs_with_an_inventory_and_no_arguments())
def test_an_inventory_without_its_option_is_answered_with_the_option(call: Call, verb: str) -> None:
    result = call(*verb.split(), "inventory/mine", "--json")
    answer = json.loads(result.out)
    assert result.code == answer["exit_code"] == 3
    assert answer["error"] == f"{verb} takes no arguments, but got inventory/mine; an inventory goes with -i"
    assert answer["hint"] == f"rdm-provision {verb} -i inventory/mine --json"


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["up", "--limit", "n1", "my cluster"], "rdm-provision up --limit n1 -i 'my cluster'"),
        (["up", "nosuch"], "rdm-provision up --help"),
        (["up", 300 * "x"], "rdm-provision up --help"),
        (["up", "-i", "my cluster", "other/cluster"], "rdm-provision up --help"),
        (["up", "a/b", "c/d"], "rdm-provision up --help"),
        (["lab", "up", "inventory/mine"], "rdm-provision lab up --help"),
        (["stop", "job", "inventory/mine"], "rdm-provision stop --help"),
    ],
)
def test_only_a_path_that_may_be_the_inventory_is_taken_for_it(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my cluster").mkdir()
    result = call(*argv)
    assert result.code == 3
    assert result.err.endswith(f"See: {hint}\n")


def test_the_state_of_a_lab_that_is_not_there_is_bad_input(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rdm_provision.api.lab.Lab.status", lambda _self: [])
    result = call("lab", "status", "--name", "nosuch")
    assert (result.code, result.out) == (3, "")
    assert "there is no lab nosuch" in result.err
    assert "lab up --name nosuch" in result.err
    assert json.loads(call("lab", "status", "--name", "nosuch", "--json").out)["exit_code"] == 3


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--nodes", "0"], "a lab of 0 nodes cannot be made"),
        (["--nodes", "101"], "a lab of 101 nodes cannot be made"),
        (["--name", "$(touch x)"], "is no name for a lab"),
        (["--name", "Lab"], "is no name for a lab"),
        (["--hardware", "vm", "--driver", "macvlan"], "--hardware vm goes with --driver sriov"),
        (["--engine", "20.10"], "--engine 20.10 goes with --hardware vm"),
        (["--hardware", "vm", "--trainer"], "--trainer goes with --hardware container"),
    ],
)
def test_a_lab_that_cannot_be_made_is_refused_in_one_sentence(
    call: Call, monkeypatch: pytest.MonkeyPatch, words: list[str], sentence: str
) -> None:
    # If it is not refused, none must be made.
    monkeypatch.delattr("rdm_provision.api.lab.Lab._run")
    # On a machine of any architecture.
    monkeypatch.setattr(recipe, "checked_architecture", lambda _machine: None)
    result = call("lab", "up", *words)
    assert (result.code, result.out) == (3, "")
    assert sentence in result.err
    assert len(result.err.strip().splitlines()) <= 2


@pytest.mark.parametrize(
    ("words", "about"), [(["up", "--nodes", "5"], "5 nodes"), (["up", "-n", "1"], "1 node"), (["down"], "")]
)
def test_a_run_on_a_lab_is_about_its_nodes(
    call: Call, monkeypatch: pytest.MonkeyPatch, words: list[str], about: str
) -> None:
    messages = []

    def watch(_run: Any, **given: Any) -> RunResult:
        messages.append(given["about"])
        return RunResult(verb="lab", message="it failed")

    monkeypatch.setattr("rdm_provision.cli.render.live.watch", watch)
    call("lab", *words, "--name", "nosuch")
    assert messages == [about]


def test_help_loads_neither_ansible_nor_rich() -> None:
    program = (
        "import sys\nfrom rdm_provision.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'ansible', 'ansible_runner', 'rich', 'yaml', 'docker'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_version(call: Call) -> None:
    assert "rdm-provision" in call("--version").out


# --- errors -------------------------------------------------------------------------------------------


def test_errors_go_to_stderr_in_words(call: Call, make_inventory: MakeInventory) -> None:
    path = make_inventory(hosts={"node2": {"my_ip": "10.9.9.9"}}, rdm_accelerator="tpu")
    result = call("plan", "-i", path)
    assert result.code == 3
    assert result.out == ""
    lines = result.err.splitlines()
    assert any("node2" in line and "10.9.9.9" in line and "10.77.0.0/24" in line for line in lines)
    assert any(all(word in line for word in (*NODES, "tpu", "rocm, cuda or cpu")) for line in lines)


def test_errors_go_to_stdout_as_json_on_request(call: Call, make_inventory: MakeInventory) -> None:
    result = call("plan", "-i", make_inventory(rdm_accelerator="tpu"), "--json")
    data = json.loads(result.out)
    assert (result.code, data["ok"], data["exit_code"]) == (3, False, 3)
    assert {problem["node"] for problem in data["problems"]} == set(NODES)
    assert result.complaints == []


@pytest.mark.parametrize("verb", ["plan", "up"])
def test_warnings_are_printed_with_an_error(call: Call, make_inventory: MakeInventory, verb: str) -> None:
    path = make_inventory(rdm_accelerator="tpu", rdm_clustr="mine")
    result = call(verb, "-i", path)
    assert result.code == 3
    assert "tpu" in result.err
    assert "Did you mean rdm_cluster?" in " ".join(result.err.split())
    warned = json.loads(call(verb, "-i", path, "--json").out)["warnings"]
    assert ["rdm_clustr" in warning for warning in warned] == [True]


def test_output_that_cannot_be_written_is_one_sentence_and_nothing_if_nobody_reads_it(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, written = os.pipe()
    os.close(read)
    full = "Error: the output cannot be written: No space left on device\n"
    for words, output, err in ((("--version",), "/dev/full", full), (("nonsense", "--json"), written, "")):
        with open(output, "w") as stdout:  # noqa: PTH123  # a path or a descriptor
            monkeypatch.setattr(sys, "stdout", stdout)
            result = call(*words)
        assert (result.code, result.err) == (1, err)


def test_usage_errors_as_json(call: Call) -> None:
    result = call("up", "--json", "--limt")
    assert json.loads(result.out)["exit_code"] == 3


def test_json_has_no_terminal_control_character(call: Call) -> None:
    result = call("up", "--json", "--inventory", "no\x9b31m\x7fsuch")
    assert "\x9b" not in result.out
    assert "\x7f" not in result.out
    assert json.loads(result.out)["error"].endswith("no\x9b31m\x7fsuch")


def test_json_after_the_command_of_exec_is_a_word_of_the_command(call: Call) -> None:
    result = call("exec", "--nonsense", "--", "ls", "--json")
    assert result.out == ""
    assert "--nonsense" in result.err


# --- verbs --------------------------------------------------------------------------------------------


def test_plan_prints_a_table_and_saves_on_demand(call: Call, make_inventory: MakeInventory) -> None:
    path = make_inventory()
    result = call("plan", "-i", path)
    assert result.code == 0
    for number, node in enumerate(NODES):
        assert any(node in line and f"10.77.0.{100 + number}" in line for line in result.out.splitlines())
    assert "--save" in result.out
    assert not (path / "address_plan.cfg").exists()
    assert "Saved" in call("plan", "-i", path, "--save").out
    assert "As saved" in call("plan", "-i", path).out


def test_plan_as_json(call: Call, make_inventory: MakeInventory) -> None:
    path = make_inventory()
    data = json.loads(call("plan", "-i", path, "--json").out)
    assert data["ok"]
    assert not (path / ".rdm").exists(), "it was made where the inventory was read, without a run"
    assert [(node["rank"], node["node"], node["note"]) for node in data["nodes"]] == [
        (0, "node1", "new"),
        (1, "node2", "new"),
        (2, "node3", "new"),
    ]


def test_extra_variables_are_yaml(call: Call, make_inventory: MakeInventory, tmp_path: Path) -> None:
    more = tmp_path / "more.yml"
    more.write_text("rdm_subnet: 10.78.0.0/24\n", encoding="utf-8")
    result = call("plan", "-i", make_inventory(), "-e", f"@{more}", "-e", "rdm_slots=3", "--json")
    data = json.loads(result.out)
    assert data["subnet"] == "10.78.0.0/24"
    assert {node["slots"] for node in data["nodes"]} == {3}


def test_extra_variables_are_taken_as_recorded_commands_have_them(
    call: Call, make_inventory: MakeInventory
) -> None:
    path = make_inventory()
    given = ["-e", "rdm_slots=3", "-e", 'words=["x: y", "ü"]']
    shown = shlex.split(call("up", "-i", path, *given, "--recheck", "--show-command").out)
    printed = shown[shown.index("-e") + 1]
    assert printed.startswith("{")
    assert call("up", "-i", path, "-e", printed, "--show-command").out.strip() == shlex.join(shown)
    release = call("plan", "-i", path, "-e", '{"rdm_slots": 3, "plan_release": !unsafe []}', "--json")
    assert {node["slots"] for node in json.loads(release.out)["nodes"]} == {3}


def test_the_password_of_encrypted_variables_is_taken_from_a_file_or_a_prompt(
    call: Call, make_inventory: MakeInventory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_inventory(rdm_cluster=None)
    encrypted, inline = path / "group_vars" / "all" / "file.yml", path / "group_vars" / "all" / "inline.yml"
    encrypted.parent.mkdir(parents=True)
    password = VaultLib([("default", VaultSecret(b"open sesame"))])
    encrypted.write_bytes(password.encrypt("rdm_slots: 3"))
    secret = password.encrypt("10.79.0.0/24").decode()
    inline.write_text(yaml.safe_dump({"rdm_subnet": secret}).replace("rdm_subnet:", "rdm_subnet: !vault"))

    result = call("plan", "-i", path)
    assert (result.code, str(encrypted) in result.err, "--ask-vault-pass" in result.err) == (3, True, True)
    for file, words in (
        (encrypted, f"{encrypted} is encrypted: "),
        (inline, "an encrypted value in line 1: "),
    ):
        result = call("plan", "-i", path, "-e", f"@{file}")
        assert (result.code, words in " ".join(result.err.split())) == (3, True), result.err

    file = tmp_path / "password"
    file.write_text("open sesame\n", encoding="utf-8")
    plan = json.loads(call("plan", "-i", path, "--vault-password-file", file, "--json").out)
    assert (plan["subnet"], {node["slots"] for node in plan["nodes"]}) == ("10.79.0.0/24", {3})
    monkeypatch.setattr("getpass.getpass", lambda _prompt: "open sesame")
    prompted = call("plan", "-i", path, "--ask-vault-pass", "--json")
    assert json.loads(prompted.out[prompted.out.index("{") :]) == plan
    shown = call("up", "-i", path, "--ask-vault-pass", "--show-command").out
    assert shown.rstrip().endswith("--ask-vault-pass")

    shown = call("up", "-i", path, "--ask-vault-pass", "-K", "--show-command").out
    assert shown.rstrip().endswith("--ask-vault-pass --ask-become-pass")

    encrypted.unlink()
    result = call("plan", "-i", path)
    assert result.code == 3
    assert "rdm_subnet is encrypted and cannot be read: Attempting to decrypt" in result.err


@pytest.mark.parametrize("verb", ["up", "check", "verify", "status", "down"])
def test_show_command_prints_one_line_and_does_nothing(
    call: Call, make_inventory: MakeInventory, verb: str
) -> None:
    path = make_inventory()
    result = call(verb, "-i", path, "--limit", "node2", "--show-command")
    assert result.code == 0
    assert len(result.out.splitlines()) == 1
    assert "ansible-playbook" in result.out
    assert "--limit node2" in result.out
    assert ("--check" in result.out) == (verb == "check")
    assert not (path / ".rdm").exists()


def test_up_is_advised_after_verify_unless_the_nodes_have_no_device() -> None:
    from rdm_provision.cli.verbs.verify import next_steps

    nodes = {name: NodeRecap(failed=1) for name in ("node1", "node2")}

    def advised(*without: str) -> list[str]:
        result = RunResult(verb="verify", nodes=nodes, rdma={"without_device": list(without)})
        return [step.split()[1] for _, step in next_steps(result, " -i x", "rdm-provision verify -i x")]

    assert advised("node1") == ["up", "verify"]
    assert advised("node1", "node2") == ["verify"]


def test_a_size_without_an_all_reduce_is_bad_input(call: Call, make_inventory: MakeInventory) -> None:
    result = call("verify", "-i", make_inventory(), "--max-size", "64M")
    assert result.code == 3
    assert "--max-size needs --collective." in result.err


def test_exec_without_a_container_fails_per_node(call: Call, make_inventory: MakeInventory) -> None:
    path = make_inventory(rdm_cluster="no-such-cluster")
    result = call("exec", "-i", path, "--limit", "node1", "--", "hostname")
    assert result.code == 1
    assert result.out == ""
    assert result.err.startswith("node1: ")
    data = json.loads(call("exec", "-i", path, "--json", "--", "hostname").out)
    assert data["failed"] == list(NODES)
    assert data["nodes"]["node1"]["rc"] is None


def test_exec_ends_as_its_command_did_on_a_single_node(
    call: Call, make_inventory: MakeInventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_inventory(rdm_cluster="no-such-cluster")

    def outputs(_self: Cluster, result: RunResult) -> tuple[CommandOutput, ...]:
        return tuple(CommandOutput(node, 7) for node in result.nodes)

    monkeypatch.setattr(Cluster, "outputs", outputs)
    assert call("exec", "-i", path, "--limit", "node1", "--", "false").code == 7
    outcome = call("exec", "-i", path, "--limit", "node1", "--json", "--", "false")
    assert (outcome.code, json.loads(outcome.out)["exit_code"]) == (7, 7)
    assert call("exec", "-i", path, "--", "false").code == 1


@pytest.mark.parametrize("limit", ["node1", "node1,node2"])
def test_output_of_a_command_cannot_control_the_terminal(
    call: Call, make_inventory: MakeInventory, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    evil = "\x1b]0;title\x07\x1b[31mred\x1b[0m\x9b2Jend\tof it\n"

    def outputs(_self: Cluster, result: RunResult) -> tuple[CommandOutput, ...]:
        return tuple(CommandOutput(node, 0, stdout=evil, stderr=evil, error=evil) for node in result.nodes)

    monkeypatch.setattr(Cluster, "outputs", outputs)
    path = make_inventory(rdm_cluster="no-such-cluster")
    outcome = call("exec", "-i", path, "--limit", limit, "--", "x")
    for text in (outcome.out, outcome.err):
        assert "redend\tof it\n" in text
        assert not set(text) & {"\x1b", "\x07", "\x9b"}
    shown = json.loads(call("exec", "-i", path, "--limit", limit, "--json", "--", "x").out)
    assert (shown["nodes"]["node1"]["stdout"], shown["nodes"]["node1"]["stderr"]) == (evil, evil)


@pytest.mark.parametrize("part", ["message", "hint", "warnings"])
def test_error_message_cannot_control_the_terminal(
    call: Call, make_inventory: MakeInventory, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    evil = "a node said \x1b]0;title\x07\x1b[31mred\x1b[0m\x9b2J"
    more: dict[str, Any] = {} if part == "message" else {part: [evil] if part == "warnings" else evil}

    def load(*_: Any, **__: Any) -> Cluster:
        raise RdmError("it failed" if more else evil, **more)

    monkeypatch.setattr(Cluster, "load", load)
    result = call("status", "-i", make_inventory())
    assert "a node said red\n" in result.err
    assert not set(result.err) & {"\x1b", "\x07", "\x9b"}


def test_exec_gives_standard_input_to_the_command_or_says_that_it_does_not(
    make_inventory: MakeInventory,
) -> None:
    path = make_inventory(rdm_cluster="no-such-cluster")

    def execute(*options: str) -> tuple[str, str]:
        argv = [sys.executable, "-c", "from rdm_provision.cli import main; main()"]
        argv += ["exec", "-i", str(path), *options, "--", "cat"]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(argv, env=env, input="abc", capture_output=True, text=True, check=False)
        return done.stdout, done.stderr

    assert "add --stdin" in execute()[1]
    assert "add --stdin" not in execute("--stdin")[1]
    assert '"exec_stdin": "YWJj"' in execute("--stdin", "--show-command")[0]


def test_status_of_nodes_without_an_engine(
    call: Call, make_inventory: MakeInventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/docker.sock")  # whatever this machine has
    path = make_inventory(rdm_cluster="no-such-{{ what }}", what="cluster")
    result = call("status", "-i", path, "--json")
    data = json.loads(result.out)
    assert (result.code, data["ok"], data["healthy"]) == (1, True, False)
    assert all(node["reachable"] and node["remarks"] for node in data["nodes"].values())
    assert result.complaints == []
    shown = call("status", "-i", path, "--limit", "node1").out
    assert "no-such-cluster" in shown
    assert "no Docker Engine answers at /no/docker.sock" in shown
    assert not (path / "address_plan.cfg").exists()


LIMITED = [name for name in VERBS if any("--limit" in p.opts for p in _command(name).params)]


@pytest.mark.parametrize(
    ("verb", "limit"), [*((verb, "") for verb in LIMITED), ("check", "!"), ("down", ",")]
)
def test_a_limit_that_is_none_widens_no_verb_to_all_nodes(
    call: Call, make_inventory: MakeInventory, verb: str, limit: str
) -> None:
    words = {"exec": ["--", "id"], "data": ["."]}.get(
        verb, ["x"] if verb in ("logs", "profile", "report", "stop", "tune") else []
    )
    # A verb that runs several playbooks, or none, has no command to show.
    shown = [] if verb in ("profile", "tune") else ["--show-command"]
    result = call(verb, "-i", make_inventory(), *shown, "--limit", limit, *words)
    assert (result.code, result.out) == (3, "")
    assert "--limit" in result.err
    assert result.err.count("Error:") == 1


@pytest.mark.parametrize("words", [["up"], ["check"], ["down"], ["env", "up"], ["env", "down"]])
def test_tags_that_are_none_widen_no_verb_to_all_parts(
    call: Call, make_inventory: MakeInventory, words: list[str]
) -> None:
    inventory = make_inventory(rdm_runtime="host" if words[0] == "env" else "container")
    result = call(*words, "-i", inventory, "--show-command", "--tags", "")
    assert (result.code, result.out) == (3, "")
    assert "--tags is empty" in result.err


def test_a_node_without_a_name_is_not_all_of_them(call: Call, make_inventory: MakeInventory) -> None:
    result = call("logs", "x", "-i", make_inventory(), "--show-command", "--node", "")
    assert (result.code, result.out) == (3, "")


def test_nodes_that_have_data_may_be_written_with_spaces(call: Call, make_inventory: MakeInventory) -> None:
    words = ["data", "/jobs", "-i", make_inventory(), "--show-command", "--from"]
    assert '"job_data_from": ["n1", "n2"]' in call(*words, "n1, n2").out
    assert "--from names no node" in call(*words, ",").err


def test_check_of_data_lists_missing_files(
    call: Call, make_inventory: MakeInventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [f"f{number}" for number in range(10)]
    answers = {"rdm.provision.job_data": {"n2": [{"copied": files}]}}
    nodes = {"n1": NodeRecap(ok=1), "n2": NodeRecap(ok=1, changed=1)}
    result = RunResult(verb="data", nodes=nodes, returned=answers)
    monkeypatch.setattr("rdm_provision.cli.render.live.watch", lambda *_given, **_more: result)
    words = ["data", "/jobs", "-i", make_inventory(), "--from", "n1"]
    assert call(*words, "--check").out == "n2 lacks f0, f1, f2, f3, f4, f5, f6, f7 and 2 more\n"
    assert json.loads(call(*words, "--check", "--json").out)["lacking"] == {"n2": files}
    assert "lacking" not in json.loads(call(*words, "--json").out)


# --- completion -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(call: Call, shell: str) -> None:
    result = call("completion", shell)
    assert result.code == 0
    assert "_RDM_PROVISION_COMPLETE" in result.out


def complete(words: str, inventory: Path | None = None) -> list[str]:
    """Query the program's completions as bash does."""
    env: dict[str, Any] = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "_RDM_PROVISION_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    if inventory:
        env["RDM_INVENTORY"] = str(inventory)
    program = "from rdm_provision.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_verbs_and_options_are_completed() -> None:
    assert complete("rdm-provision ver") == ["verify"]
    assert "--limit" in complete("rdm-provision up --li")


def test_node_names_are_completed_after_limit(make_inventory: MakeInventory) -> None:
    path = make_inventory()
    assert complete("rdm-provision up --limit no", path) == list(NODES)
    assert complete("rdm-provision up --limit node1,node2", path) == ["node1,node2"]
    assert complete("rdm-provision up --limit wo", path) == ["workers"]
    assert complete("rdm-provision up --limit no", path.with_name("nowhere")) == []


# --- doctor -----------------------------------------------------------------------------------------------


def test_doctor_has_a_line_per_check(call: Call, make_inventory: MakeInventory) -> None:
    result = call("doctor", "-i", make_inventory())
    lines = [line for line in result.out.splitlines() if line.startswith(("ok ", "FAIL", "note"))]
    for name in ("python", "ansible-core", "ssh-keygen", "disk", "memory", "inventory", "docker engine"):
        assert sum(name in line.split("  ")[1] + line for line in lines) >= 1, name
    assert any("inventory" in line and "3 nodes" in line for line in lines)
    assert result.code == 0, result.out


def test_doctor_as_json_and_with_something_to_repair(call: Call, tmp_path: Path) -> None:
    result = call("doctor", "--json", "-i", tmp_path / "nowhere")
    data = json.loads(result.out)
    assert (result.code, data["ok"]) == (1, False)
    bad = [check for check in data["checks"] if not check["ok"] and check["needed_for"] == "runs"]
    assert [check["name"] for check in bad] == ["inventory"]
    assert "nowhere" in bad[0]["detail"]
    assert all(check["detail"] for check in data["checks"])


# --- logs that others wrote ---------------------------------------------------------------------------


STEP = (
    " iteration {0:8d}/      3 | elapsed time per iteration (ms): 100.0 | global batch size: 8 |"
    " lm loss: 9.{0}E+00 |\n"
)


def test_a_directory_is_read_without_a_trainer(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    logs = tmp_path / "log2"
    result = call("jobs", f"{logs}/", "--sections")
    assert (result.code, f"there is no directory {logs}" in result.err) == (3, True)
    logs.mkdir()
    result = call("jobs", f"{logs}/", "--sections", "--json")
    assert (result.code, "log2 has no NODE.out files" in result.out + result.err) == (3, True)
    (logs / "n1.out").write_text("".join(STEP.format(number) for number in (1, 2, 3)))
    result = call("jobs", f"{logs}/", "--sections")
    assert (result.code, "lm loss: 9.3E+00" in result.out) == (0, True)
    result = call("jobs", f"{logs}/", "--verdict")
    assert (result.code, result.out) == (0, "finished: It reached iteration 3.\n")
    # The path may also be one log, even a name without a directory.
    monkeypatch.chdir(logs)
    assert call("jobs", "n1.out", "--verdict").out == result.out
    assert call("jobs", "n1.out", "--verdict", "--state", "FAILED").code == 1
    refused = call("jobs", "n1.out", "--verdict", "--state", "RUNNINGG")
    assert (refused.code, "did you mean RUNNING?" in refused.err) == (3, True)
    assert call("jobs", f"{logs}/", "--verdict", "--sections").code == 3


INFO = "NODE_RANK: {}\nNNODES: 2\nWORLD_SIZE: 4\nTENSOR_MP_SIZE: 1\nPIPELINE_MP_SIZE: 1\nNUM_LAYERS: 24\n"
GPU = "[{}] NVIDIA A10       | 49'C,  90 % | {:5d} / 22731 MB |\n"


def fasop_layout(
    logs: Path, *, gpus: str = "", err: str = "", layers: int = 24, slow_ms: float = 500
) -> None:
    """Write the logs of a healthy job on two nodes, with the given differences."""
    logs.mkdir(parents=True)
    line = " iteration {:8d}/    5000 | elapsed time per iteration (ms): 900.0 | lm loss: {:.3f}E+00 |\n"
    timers = "times across ranks (ms):\n  forward-compute:\n" + "".join(
        f"     rank {rank:2d}: {slow_ms if rank == 3 else 500:.2f}\n" for rank in range(4)
    )
    steps = "".join(line.format(10 * n, 9 - n / 10) + timers for n in range(1, 41))
    (logs / "n060.out").write_text(INFO.format(0) + f"  num_layers ....................... {layers}\n")
    (logs / "n061.out").write_text(INFO.format(1) + f"  num_layers ........ {layers}\n" + steps)
    (logs / "n060.err").write_text("  warnings.warn(\n")
    (logs / "n061.err").write_text(err)
    (logs / "n060.gpu").write_text(GPU.format(0, 9000) + GPU.format(1, 9000))
    (logs / "n061.gpu").write_text(gpus or GPU.format(0, 9000) + GPU.format(1, 9000))


@pytest.mark.parametrize(
    ("faults", "state", "silent_s", "word", "reason"),
    [
        ({}, {}, 0, "healthy", r"Iteration 400 of 5000, 0\.90 s a step, lm loss 5\.0000\."),
        ({}, {"state": "failed", "reason": "n061 is gone."}, 0, "failed", r"n061 is gone\."),
        (
            {},
            {"state": "finished"},
            0,
            "suspect",
            r"It ended at iteration 400 of 5000, .*",
        ),
        ({"gpus": GPU.format(0, 3)}, {}, 0, "suspect", r"No process is on the GPUs of n061\."),
        ({"err": "[rank3]: OSError: [Errno 28] No space left on device\n"}, {}, 0, "failed", "A disk or .*"),
        ({"layers": 12}, {}, 0, "suspect", r"num_layers is 12, and 24 was requested\."),
        ({"slow_ms": 900}, {}, 0, "suspect", "Rank 3 on n061 is slow: .*"),
        ({}, {}, 2000, "stalled", r"No step for 20\d\d s after iteration 400: usual are 9\.0 s\."),
        ({}, {}, 10**7, "suspect", "Its logs end at iteration 400, were written last at .*"),
    ],
    ids=["no fault", "state", "end", "GPUs", "errors", "configuration", "slow", "late", "silence"],
)
def test_report_on_a_path_shows_its_verdict(
    call: Call,
    tmp_path: Path,
    faults: dict[str, Any],
    state: dict[str, str],
    silent_s: int,
    word: str,
    reason: str,
) -> None:
    """Each rule, on a directory in FASOP's layout or on a job's directory with the scheduler's state."""
    job = tmp_path / "10932251"
    fasop_layout(job / "logs" if state else job, **faults)
    if state:
        (job / "state.json").write_text(json.dumps(state))
    for file in job.glob("*.out"):
        then = file.stat().st_mtime - silent_s
        os.utime(file, (then, then))
    verdict = json.loads(call("jobs", f"{job}/", "--verdict", "--json").out)
    outcome = call("report", str(job), "-o", tmp_path / "page.html", "--json")
    shown = json.loads(outcome.out)["jobs"]["10932251"]
    assert (verdict["verdict"], shown["verdict"]) == (word, word)
    assert re.fullmatch(reason, verdict["reason"]), verdict["reason"]

    def without_seconds(texts: list[str]) -> list[str]:
        return [re.sub(r"No step for \d+ s", "", text) for text in texts]

    assert without_seconds(shown["evidence"]) == without_seconds(verdict["evidence"])
    assert shown["culprits"] == verdict["culprits"]
    page = (tmp_path / "page.html").read_text()
    assert f"</span> {word}</strong> {html.escape(shown['reason'])}</p>" in page


def test_verdict_on_a_path_uses_the_schedulers_state_and_the_request(call: Call, tmp_path: Path) -> None:
    logs = tmp_path / "10932251"
    fasop_layout(logs)
    conf = tmp_path / "_00_conf.sh"
    conf.write_text("NNODES=2\n")
    verdict = ("jobs", f"{logs}/", "--verdict")
    result = call(*verdict, "--state", "NODE_FAIL", "--conf", str(conf))
    assert (result.code, result.out.partition(":")[0]) == (1, "failed")
    conf.write_text("NNODES=4\n")
    result = call(*verdict, "--state", "RUNNING", "--conf", str(conf), "--json")
    found = json.loads(result.out)
    assert (result.code, found["verdict"], found["reason"]) == (
        4,
        "suspect",
        "NNODES is 2, and 4 was requested.",
    )
    for words in (("jobs", "gpt", "--verdict"), ("jobs", f"{logs}/", "--sections"), ("jobs",)):
        refused = call(*words, "--state", "RUNNING")
        assert refused.code == 3
        assert "--state and --conf are for --verdict of a directory" in refused.err


@pytest.mark.parametrize("program", ["rdm-provision", "rdm-trainer"])
def test_report_on_a_path_uses_them_and_shows_the_same_verdict(
    call: Call, tmp_path: Path, program: str
) -> None:
    logs = tmp_path / "10932251"
    fasop_layout(logs)
    conf, output = tmp_path / "_00_conf.sh", tmp_path / "page.html"

    def page(*words: str) -> CommandResult:
        if program == "rdm-provision":
            return call("report", *words, "-o", output, "--json")
        command = [sys.executable, "-P", "-m", "rdm_trainer", "report", *words, "-o", str(output), "--json"]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "trainer")}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        return CommandResult(done.returncode, done.stdout, done.stderr)

    for state, partition in (("NODE_FAIL", 2), ("RUNNING", 2), ("RUNNING", 4), ("", 4)):
        conf.write_text(f"NNODES={partition}\n")
        given = ("--state", state, "--conf", str(conf))
        verdict = json.loads(call("jobs", f"{logs}/", "--verdict", *given, "--json").out)
        shown = json.loads(page(str(logs), *given).out)["jobs"]["10932251"]
        assert (shown["verdict"], shown["reason"], shown["culprits"]) == (
            verdict["verdict"],
            verdict["reason"],
            verdict["culprits"],
        )
        assert html.escape(shown["reason"]) in output.read_text()
    assert (verdict["verdict"], verdict["reason"]) == ("suspect", "NNODES is 2, and 4 was requested.")
    output.unlink()
    for words, problem in (
        ((str(logs), str(logs), "--state", "RUNNING"), "--state and --conf are for one PATH"),
        ((str(logs), "--conf", str(tmp_path / "nosuch")), "nosuch cannot be read"),
    ):
        refused = page(*words)
        assert refused.code == 3
        assert problem in refused.out + refused.err
        assert not output.exists()
    if program == "rdm-provision":
        assert "are for one PATH" in page("gpt-1121-081512", "--state", "RUNNING").out


def test_a_report_of_a_path_needs_no_cluster_and_no_trainer(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "n1.out").write_text("".join(STEP.format(number) for number in (1, 2, 3)))
    result = call("report", "./one")
    assert (result.code, result.out) == (0, "one: finished. It reached iteration 3.\nWritten to one.html.\n")
    page = (tmp_path / "one.html").read_text()
    assert "<title>one</title>" in page
    assert "plotly" in page
    assert 'src="' not in page.partition("<script>")[0]
    result = call("report", "one", "two", "--json")
    shown = json.loads(result.out)
    assert (result.code, shown["output"], set(shown["jobs"])) == (0, "comparison.html", {"one", "two"})
    (tmp_path / "Makefile").write_text("all:\n")
    result = call("report", "./one", "-o", "Makefile")
    stays = "Error: Makefile is there and is no report, so it stays: give another output\n"
    assert (result.code, result.err) == (3, stays)
    result = call("report", "./three")
    hint = "give a job's directory, one with NODE.out files, a log, or the name of a job"
    assert (result.code, result.err) == (3, f"Error: there is no file three\nHint: {hint}\n")


def test_a_report_of_a_job_queries_the_nodes(call: Call, make_inventory: MakeInventory) -> None:
    result = call("report", "demo-1", "-i", make_inventory("n1", "n2"), "--show-command")
    assert result.code == 0
    assert '"job_verb": "report"' in result.out


def test_newest_measurement_of_each_kind_of_network_is_found(make_inventory: MakeInventory) -> None:
    from rdm_provision.api.report import last_known

    home = Path(make_inventory("n1", "n2")).parent
    assert last_known(home) == {}
    for stamp, time in (
        ("20261101T000000Z-verify", 8.0),
        ("20261102T000000Z-up", 9.0),
        ("20261103T000000Z-jobs", 0),
    ):
        record = home / ".rdm" / "runs" / stamp
        record.mkdir(parents=True)
        fabric = {"nodes": ["n1", "n2"], "rtt_us": {"n1": {"n2": time}}} if time else None
        result: dict[str, Any] = {"fabric": fabric, "rdma": {"bandwidth_gbit": {}}, "plan": None}
        if stamp.endswith("verify"):
            result |= {"rdma": {"bandwidth_gbit": {"n1": {"n2": 96.6}}}, "plan": {"nodes": {"n1": {}}}}
        (record / "result.json").write_text(json.dumps(result))
    assert last_known(home) == {
        "fabric": {"nodes": ["n1", "n2"], "rtt_us": {"n1": {"n2": 9.0}}},
        "rdma": {"bandwidth_gbit": {"n1": {"n2": 96.6}}},
        "plan": {"nodes": {"n1": {}}},
    }

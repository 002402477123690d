"""A hint is a promise: its command is not refused in the state in which the hint is given.

States that need no node are made here, and their hints are followed until a run would start. For the others,
a table names the test that follows the hint.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from rdm_provision import Cluster
from rdm_provision.api.lab import Lab, LabNode
from rdm_provision.api.tuning import PROFILE_FILE
from rdm_provision.cli import main
from rdm_provision.cli.render import job_view, live
from rdm_provision.errors import BAD_INPUT, REFUSED
from rdm_provision.results.events import NodeRecap, RunResult
from rdm_provision.results.job_state import JobState
from rdm_provision.results.node_state import NodeState, _remarks
from rdm_provision.results.outcomes import CommandOutput
from rdm_provision.results.plan_table import PlanTable
from tests.conftest import ROOT
from tests.printed_hints import commands, follow, only_the_command
from tests.unit.rdm_provision.cli.hints import GAP, hints
from tests.unit.rdm_provision.conftest import JOB, MakeInventory, profiled

BARE = ("-e", "rdm_runtime=host", "-e", "my_ip=10.77.0.100")
REPORTED = {
    "version": 1,
    "job": "demo-1",
    "launcher": "no_ssh",
    "master": "n1",
    "nodes": {"n1": "running"},
    "started": 1.0,
    "directory": "/jobs/demo-1",
    "progress": {"iteration": 3, "train_iterations": 4, "checkpoint": 2},
}


class Begun(Exception):  # noqa: N818  # the expected end
    """A run would start now: nothing has refused it."""


@dataclass
class World:
    """The parts of a state."""

    make_inventory: MakeInventory
    patch: pytest.MonkeyPatch

    def cluster(self, name: str = "inventory") -> list[str]:
        """Make an inventory outside the default path; one of its nodes submits jobs to Slurm."""
        path = self.make_inventory("n1", name=name) / "hosts.yml"
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        data["all"]["children"]["login"] = {"hosts": {"n1": {}}}
        path.write_text(yaml.safe_dump(data), encoding="utf-8")
        return ["-i", os.path.relpath(path.parent)]

    def config(self) -> str:
        Path("CONFIG.yaml").write_text(yaml.safe_dump(JOB), encoding="utf-8")
        return "CONFIG.yaml"

    def ends(
        self,
        node: NodeRecap | None = None,
        *,
        job: dict[str, Any] | None = None,
        reported: dict[str, Any] | None = None,
        module: str = "job",
        **more: Any,
    ) -> None:
        """Make every run end with this node's result and this module's report."""
        returned = {f"rdm.provision.{module}": {"n1": [reported or {"known": True, "job": job}]}}

        def result(run: Any) -> RunResult:
            nodes = {"n1": node or NodeRecap(ok=1)}
            spec = run.spec
            return RunResult(verb=spec.verb, check=spec.check, nodes=nodes, returned=returned, **more)

        state = JobState.of(job, "/jobs", 9.0) if job else None
        self.patch.setattr(live, "watch", lambda run, **_: result(run))
        self.patch.setattr(job_view, "watch", lambda run, *_, **__: (result(run), state))
        self.patch.setattr(job_view, "read", lambda run, *_, **__: (result(run), {}))

    def fails_with(self, state: str, **more: Any) -> None:
        """Make every run find a job in this state."""
        self.ends(job={**REPORTED, "state": state, "ended": None if state == "running" else 5.0, **more})


State = Callable[[World], list[str]]
STATES: dict[str, tuple[State, tuple[str, ...]]] = {}
"""States by name: a function that makes the state and returns the verb, and the hints that it gives."""
NODE = LabNode("n1", "10.0.0.2", "running", "plugged", "ready")


def gives(*which: str) -> Callable[[State], State]:
    """Register a state with the hints that it gives, each ``file: command``."""

    def register(state: State) -> State:
        STATES[state.__name__] = (state, which)
        return state

    return register


# --- the cluster ------------------------------------------------------------------------------------------


@gives("rdm_provision/cli/verbs/check.py: upVALUE")
def something_would_change(world: World) -> list[str]:
    world.ends(NodeRecap(changed=1))
    return ["check", *world.cluster()]


@gives("rdm_provision/cli/__init__.py: check VALUE")
def up_only_checks(world: World) -> list[str]:
    return ["up", "--check", *world.cluster()]


@gives(
    "rdm_provision/cli/verbs/up.py: status",
    "rdm_provision/cli/verbs/up.py: exec -- hostname",
    "rdm_provision/cli/verbs/up.py: verify",
    "rdm_provision/cli/verbs/up.py: down",
)
def containers_are_up(world: World) -> list[str]:
    world.ends(NodeRecap(changed=1))
    return ["up", *world.cluster()]


@gives(
    "rdm_provision/cli/verbs/up.py: env up",
    "rdm_provision/cli/verbs/up.py: train CONFIG.yaml",
    "rdm_provision/cli/verbs/up.py: env down",
)
def bare_hosts_are_up(world: World) -> list[str]:
    world.ends(NodeRecap(changed=1))
    world.config()
    return ["up", *world.cluster(), *BARE]


@gives("rdm_provision/cli/verbs/down.py: up", "rdm_provision/cli/common.py: lab downVALUE")
def a_lab_is_down(world: World) -> list[str]:
    world.ends(NodeRecap(changed=1))
    inventory = world.cluster()
    (Path(inventory[1]) / ".rdm" / "lab").mkdir(parents=True)
    return ["down", *inventory]


@gives("rdm_provision/cli/verbs/verify.py: up")
def node_reaches_no_other(world: World) -> list[str]:
    world.ends(NodeRecap(failed=1))
    return ["verify", *world.cluster()]


@gives("rdm_provision/cli/verbs/exec.py: exec -- sh -c VALUE")
def a_line_for_a_shell_had_none(world: World) -> list[str]:
    world.ends(NodeRecap(failed=1))
    world.patch.setattr(Cluster, "outputs", lambda *_: (CommandOutput("n1", 127),))
    return ["exec", *world.cluster(), "--", "hostname; date"]


@gives("rdm_provision/results/node_state.py: up")
def a_container_is_paused(world: World) -> list[str]:
    world.ends(NodeRecap(ok=1))
    remarks = tuple(_remarks("10.77.0.100", "", {"name": "rdm", "state": "paused"}, {"name": "ibnet"}, ""))
    world.patch.setattr(
        Cluster, "states", lambda *_: (NodeState("n1", True, "10.77.0.100", remarks=remarks),)
    )
    return ["status", *world.cluster()]


@gives("rdm_provision/cli/verbs/plan.py: up", "rdm_provision/cli/verbs/plan.py: plan --save")
def a_plan_is_not_saved(world: World) -> list[str]:
    table = PlanTable(
        "c", "10.77.0.0/24", "10.77.0.1", Path("address_plan.cfg"), (), saved=False, warnings=()
    )
    world.patch.setattr(Cluster, "plan", lambda *_, **__: table)
    return ["plan", *world.cluster()]


def refused(name: str, hint: str, verb: str, *variables: str) -> None:
    """Register a verb for the other kind of nodes."""

    def state(world: World) -> list[str]:
        world.config()
        return [*verb.split(), *world.cluster(), *variables]

    state.__name__ = name
    gives(f"rdm_provision/api/cluster.py: {hint}")(state)


refused("bare_hosts_are_verified", "train CONFIG.yaml --check inspects every node", "verify", *BARE)
refused("bare_hosts_are_taken_down", "env down takes away what up and env up have made there", "down", *BARE)
refused("bare_hosts_status_is_queried", "jobs shows what runs there", "status", *BARE)
refused("containers_get_an_environment", "up makes a cluster of them", "env up")
refused("containers_lose_an_environment", "down takes a cluster of them away", "env down")


# --- this machine -----------------------------------------------------------------------------------------


@gives("rdm_provision/runner/inventory.py: lab up")
def there_is_no_inventory(_: World) -> list[str]:
    return ["plan"]


@gives("rdm_provision/runner/inventory.py: lab up")
def the_labs_inventory_is_gone(_: World) -> list[str]:
    return ["plan", "-i", "inventory/lab"]


@gives("rdm_provision/runner/inventory.py: lab up")
def an_inventory_is_empty(_: World) -> list[str]:
    Path("empty").mkdir()
    return ["plan", "-i", "empty"]


@gives("rdm_provision/environment.py: doctor")
def ansible_is_missing(world: World) -> list[str]:
    world.patch.setattr("shutil.which", lambda *_, **__: None)
    Path("empty").mkdir()
    return ["plan", "-i", "empty"]


@gives("rdm_provision/api/doctor.py: lab up")
def there_is_no_engine(world: World) -> list[str]:
    world.patch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    return ["doctor"]


@gives("rdm_provision/cli/verbs/lab.py: lab up")
def there_is_no_lab(world: World) -> list[str]:
    world.patch.setattr(Lab, "status", lambda _: [])
    return ["lab", "status", "--name", "two"]


def made_lab(slurm: bool, *which: str) -> None:
    """Register a lab that is up."""

    def state(world: World) -> list[str]:
        reported = {"actions": ["made it"], "inventory": "inventory/two/hosts.yml"}
        world.ends(NodeRecap(changed=1), reported=reported, module="lab")
        world.patch.setattr(Lab, "status", lambda _: [NODE])
        # As the lab has written it.
        Path("inventory").mkdir()
        world.cluster(name="cwd/inventory/two")
        return ["lab", "up", "--name", "two", *(["--slurm"] if slurm else [])]

    state.__name__ = f"a_lab_is_up_{'for_slurm' if slurm else 'for_containers'}"
    gives(*(f"rdm_provision/cli/verbs/lab.py: {what}" for what in which))(state)


made_lab(False, "up", "lab down")
made_lab(True, "slurm up", "lab down")


# --- jobs -------------------------------------------------------------------------------------------------


@gives("rdm_provision/cli/common.py: jobs lists them")
def there_is_no_such_job(world: World) -> list[str]:
    world.ends(reported={"known": False, "ended": True})
    return ["logs", *world.cluster(), "nosuch"]


@gives("rdm_provision/api/jobs.py: jobs lists them")
def which_job_is_watched(world: World) -> list[str]:
    return ["jobs", *world.cluster(), "--watch"]


@gives("rdm_provision/cli/verbs/jobs.py: jobs lists those of the cluster")
def a_path_that_is_not_there_is_no_job(world: World) -> list[str]:
    return ["jobs", *world.cluster(), "log2/1093"]


@gives("rdm_provision/cli/verbs/jobs.py: report VALUE")
def a_path_is_no_job_of_the_cluster(world: World) -> list[str]:
    return ["jobs", *world.cluster(), local_logs()]


@gives("rdm_provision/cli/verbs/jobs.py: report VALUE")
def sections_are_of_a_file(world: World) -> list[str]:
    return ["jobs", *world.cluster(), "--sections", f"{local_logs()}/n1.out"]


@gives("rdm_provision/cli/verbs/jobs.py: jobs VALUE shows its state")
def there_is_no_verdict(world: World) -> list[str]:
    world.fails_with("starting")
    return ["jobs", *world.cluster(), "demo-1", "--verdict"]


def job_is(name: str, state: str, verb: str, file: str, *which: str) -> None:
    """Register a verb for a job in this state."""

    def make(world: World) -> list[str]:
        world.fails_with(state, reason="it was killed" if state == "failed" else "")
        return [verb, *world.cluster(), "demo-1"]

    make.__name__ = name
    gives(*(f"rdm_provision/cli/{file}: {what}" for what in which))(make)


VIEW, RESUME = "render/job_view.py", "train --resume VALUE"
job_is("a_job_runs", "running", "jobs", VIEW, "jobs VALUE --watch", "logs VALUE", "stop VALUE")
job_is("a_job_has_failed", "failed", "jobs", VIEW, f"{RESUME} VALUE", "logs VALUE --err")
job_is("a_job_has_finished", "finished", "jobs", VIEW, f"{RESUME} VALUE")
job_is("a_job_is_stopped", "stopped", "stop", "verbs/stop.py", RESUME, "logs VALUE")
job_is("a_job_has_written_nothing", "starting", "report", "verbs/report.py", "jobs VALUE")


@gives("rdm_provision/api/jobs.py: train CONFIG.yaml")
def there_is_nothing_to_train_with(world: World) -> list[str]:
    world.config()
    return ["train", *world.cluster()]


@gives(
    *(
        f"rdm_provision/cli/verbs/env.py: {what}"
        for what in ("train CONFIG.yaml", "train CONFIG.yaml --launcher slurm", "env down")
    )
)
def an_environment_is_up(world: World) -> list[str]:
    world.ends(NodeRecap(changed=1))
    world.config()
    return ["env", "up", *world.cluster(), *BARE]


@gives(
    *(
        f"rdm_provision/cli/verbs/slurm.py: {what}"
        for what in ("slurm status", "env up", "train CONFIG.yaml --launcher slurm", "slurm down")
    )
)
def slurm_is_up(world: World) -> list[str]:
    world.ends(NodeRecap(changed=1))
    world.config()
    return ["slurm", "up", *world.cluster(), *BARE]


@gives("plugins/modules/slurm_nodes.py: slurm up makes a cluster")
def slurm_is_not_installed(world: World) -> list[str]:
    why = "Slurm is not installed here: rdm-provision slurm up makes a cluster"
    world.ends(NodeRecap(failed=1, why=why))
    return ["slurm", "status", *world.cluster()]


# --- layouts ----------------------------------------------------------------------------------------------


@gives("rdm_provision/cli/verbs/tune.py: profile VALUE")
def gpus_are_unknown(world: World) -> list[str]:
    return ["tune", *world.cluster(), "-e", "rdm_accelerator=cuda", world.config()]


@gives("rdm_provision/cli/verbs/tune.py: trainVALUE VALUE")
def a_layout_is_found(world: World) -> list[str]:
    gpus = ("-e", "rdm_gpu=A10", "-e", "rdm_slots=2")
    return ["tune", *world.cluster(), *gpus, "--limit", "n1", world.config()]


@gives("rdm_provision/cli/verbs/tune.py: train VALUE --layout auto")
def a_profile_is_not_compared_with_the_nodes(world: World) -> list[str]:
    inventory = world.cluster()
    profile = {"nodes": {}, "profiles": [profiled("A10")]}
    Path(inventory[1], PROFILE_FILE).write_text(yaml.safe_dump(profile), encoding="utf-8")
    return ["tune", *inventory, "-e", "rdm_gpu=A10", "-e", "rdm_slots=2", world.config()]


@gives("rdm_provision/cli/verbs/profile.py: exec -- nvidia-smi")
def a_node_does_not_report_its_gpus(world: World) -> list[str]:
    world.ends(reported={"facts": {}})
    return ["profile", *world.cluster(), world.config()]


@gives("rdm_provision/cli/verbs/profile.py: logs VALUE --err")
def nothing_was_measured(world: World) -> list[str]:
    world.ends(reported={"facts": {"gpu": "A10"}})
    return ["profile", *world.cluster(), world.config()]


@gives("rdm_provision/cli/verbs/profile.py: tune VALUE")
def a_cluster_is_measured(world: World) -> list[str]:
    measured = {"measured": profiled("A10")}
    world.ends(reported={"facts": {"gpu": "A10"}, "job": {**REPORTED, "progress": measured}})
    return ["profile", *world.cluster(), world.config()]


def local_logs() -> str:
    """A local directory with a log; a shell would split its name."""
    folder = Path("log 2/1093")
    folder.mkdir(parents=True, exist_ok=True)
    line = "iteration 1/ 4 | elapsed time per iteration (ms): 10.0 | lm loss: 1.0E+00 |\n"
    (folder / "n1.out").write_text(line, encoding="utf-8")
    return str(folder)


# --- following --------------------------------------------------------------------------------------------


FILLED = {
    "JOB": "demo-1",
    "COMMAND": "true",
    "optimisation.train_iterations=N": "optimisation.train_iterations=9",
}


def named(text: str) -> Iterator[list[str]]:
    """Yield the commands in an output, with the reader's values."""
    for words in commands(text):
        yield [FILLED.get(word, word) for word in words]


def pattern(hint: str) -> str:
    """Return a pattern for the commands that the source writes in this form."""
    words = re.escape(only_the_command(hint))
    return words.replace(rf"\ {GAP}", "( .*)?").replace(GAP, ".*") + "( .*)?"


def up_to_a_run(words: list[str], patch: pytest.MonkeyPatch) -> int:
    """Run a command until a run would start, and return its exit code: 0 if one would."""

    def begun(*_: Any, **__: Any) -> None:
        raise Begun

    code: Any = 0
    with patch.context() as patched:
        for target, name in ((live, "watch"), (job_view, "watch"), (job_view, "read"), (Cluster, "plan")):
            patched.setattr(target, name, begun)
        try:
            main(words)
        except Begun:
            pass
        except SystemExit as ended:
            code = ended.code
    return int(code)


@pytest.mark.parametrize("name", STATES)
def test_suggested_command_works_in_its_state(
    name: str,
    make_inventory: MakeInventory,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    bring_about, hinted = STATES[name]
    argv = bring_about(World(make_inventory, monkeypatch))
    with pytest.raises(SystemExit):
        main(argv)
    output = "".join(capfd.readouterr())
    commands = list(named(output))
    where = {argv[at + more] for at, word in enumerate(argv) if word in ("-i", "-e") for more in (0, 1)}
    plain = [" ".join(word for word in words if word not in where) for words in commands]
    for hint in hinted:
        wanted = pattern(hint.partition(": ")[2])
        assert any(re.fullmatch(wanted, one) for one in plain), (hint, output)
    for words in commands:
        code = up_to_a_run(words, monkeypatch)
        why = "".join(capfd.readouterr())
        assert code not in (REFUSED, BAD_INPUT), f"{output}\nrdm-provision {shlex.join(words)}\n{why}"


def test_playbooks_name_the_one_for_the_other_kind_of_nodes(
    make_inventory: MakeInventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    inventory = World(make_inventory, monkeypatch).cluster()
    monkeypatch.setattr(Cluster, "_refuse_containers", lambda *_: None)
    cluster = Cluster.load(inventory[1])
    reasons = [run.result().nodes["n1"].why for run in (cluster.env_up(), cluster.env_down())]

    def begins(*words: str) -> bool:
        return up_to_a_run([*words, *inventory], monkeypatch) == 0

    assert follow(reasons[0], "up", begins)
    assert follow(reasons[1], "down", begins)


# --- where there are nodes --------------------------------------------------------------------------------

ON_NODES = {
    # State: there is no container, or no environment.
    "tests/e2e/test_cycle.py::test_up_provisions_every_node_and_shows_the_fabric": (
        "plugins/module_utils/jobs/execution_environment.py: up",
    ),
    "tests/e2e/test_bare_hosts.py::test_env_up_prepares_hosts_behind_a_jump_host": (
        "plugins/module_utils/jobs/execution_environment.py: env up",
    ),
    # It lacks a package, or nodes have different versions of one.
    "tests/e2e/test_bare_hosts.py::test_unusable_environment_is_refused_with_the_command_that_makes_one": (
        "plugins/plugin_utils/jobs/job_plan.py: env up",
        "trainer/rdm_job/check.py: env up",
    ),
    "tests/e2e/test_slurm_jobs.py::test_a_fine_tuning_has_the_losses_of_one_process": (
        "trainer/rdm_trainer/finetune/packages.py: env up",
    ),
    # The cluster has the other kind of nodes, and no earlier check has refused it.
    "tests/unit/rdm_provision/cli/test_hints_followed.py"
    "::test_playbooks_name_the_one_for_the_other_kind_of_nodes": (
        "playbooks/env_down.yml: down takes a cluster of containers away",
        "playbooks/env_up.yml: up makes a cluster of containers",
    ),
    # A job runs.
    "tests/e2e/test_bare_hosts.py::protects": (
        "plugins/module_utils/python_env/environment.py: jobs lists them",
    ),
    "tests/e2e/promises.py::test_unwatched_jobs_run_side_by_side": (
        "plugins/module_utils/python_env/environment.py: stop JOB",
        "plugins/plugin_utils/checks/running_jobs.py: stop VALUE saves a checkpoint",
    ),
    # Its values have characters that ssh does not carry.
    "tests/e2e/test_cycle.py::test_a_value_of_the_inventory_reaches_no_shell": (
        "plugins/plugin_utils/inventory/container_options.py: exec",
    ),
    # Something of the cluster's has another name.
    "tests/e2e/test_down.py::test_down_removes_only_our_objects_and_a_second_down_nothing": (
        "plugins/plugin_utils/checks/existing.py: down",
    ),
    # The network plugin has lost its state, or a container's VF is gone, or its device has another name.
    "tests/integration/test_sriov_plugin.py"
    "::test_a_plugin_without_state_and_engine_socket_is_sent_its_networks": (
        "rdm_sriov/driver.py: up restores it",
    ),
    "tests/integration/test_container_vfs.py"
    "::test_stopped_container_does_not_start_with_the_devices_of_another": (
        "rdm_sriov/driver.py: up recreates the container",
    ),
    "tests/integration/test_container_vfs.py::test_a_device_that_its_move_renamed_recreates_the_container": (
        "rdm_sriov/rdma_namespace.py: up recreate it",
    ),
    # Addresses of removed nodes are needed.
    "tests/unit/plugins/plugin_utils/addresses/test_address_plan.py"
    "::test_release_names_addresses_that_it_cannot_release": (
        "plugins/plugin_utils/addresses/address_plan.py: plan --release NODE does that",
    ),
    "tests/unit/plugins/plugin_utils/addresses/test_address_plan.py"
    "::test_pin_on_a_reserved_address_is_refused_until_it_is_released": (
        "plugins/plugin_utils/addresses/address_plan.py: plan --release VALUE",
    ),
    "tests/unit/plugins/plugin_utils/addresses/test_address_plan.py"
    "::test_suggested_release_makes_room_and_useless_ones_are_not_suggested": (
        "plugins/plugin_utils/addresses/address_plan.py: plan VALUE",
    ),
    # Slurm is not installed.
    "tests/e2e/test_slurm.py::test_slurm_down_removes_what_up_made": (
        "plugins/modules/slurm_nodes.py: slurm up makes a cluster",
    ),
    # A lab, or a node of it, does not run; or a lab runs.
    "tests/integration/test_lab.py::test_a_stopped_node_comes_back_with_the_same_address_key_and_cable": (
        "rdm_lab/engine.py: lab start VALUE --name VALUE",
    ),
    "tests/integration/test_lab.py::test_two_labs_side_by_side": (
        "rdm_lab/engine.py: lab up --name VALUE makes it",
    ),
    "tests/integration/test_lab.py::test_images_of_a_lab_are_removed_after_it": (
        "rdm_lab/images.py: lab down --name VALUE",
    ),
}
"""Tests that take a hint from its message and follow it, if that needs nodes or an engine."""
NO_HINTS = {
    "plugins/module_utils/base/text_blocks.py: VALUE",  # the marks of a block
    "rdm_lab/files.py: lab up",  # who has written a file
    "rdm_provision/runner/lock.py: VALUE",  # what another run is
    "trainer/rdm_job/slurm/view.py: stopVALUE.VALUE",  # who did not stop a job
}


def test_every_hint_in_the_sources_is_followed_somewhere() -> None:
    found = {f"{hint.where.partition(':')[0]}: {' '.join(hint.words)}" for hint in hints() if hint.in_message}
    followed = {hint for _, which in STATES.values() for hint in which}
    followed |= {hint for which in ON_NODES.values() for hint in which} | NO_HINTS
    assert found - followed == set(), "these are in no row"
    assert followed - found == set(), "these are not in the sources any more"


def followed_by(test: str) -> list[list[str]]:
    """Return the hints that a test follows, from its source: the first words of each."""
    file, _, name = test.partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    (function, *others) = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        if node.name == name and not any("abstract" in ast.unparse(one) for one in node.decorator_list)
    ]
    assert others == [], f"{test} is not one"
    return [
        str(ast.literal_eval(node.args[1])).split()
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "follow"
    ]


@pytest.mark.parametrize("test", ON_NODES)
def test_hints_declared_as_followed_on_nodes_are(test: str) -> None:
    followed = followed_by(test)
    for hint in ON_NODES[test]:
        words = hint.partition(": ")[2].split()
        assert any(words[: len(one)] == one for one in followed), f"{hint} is not followed"


@pytest.mark.parametrize("hint", sorted({hint for hints in ON_NODES.values() for hint in hints}))
def test_hint_followed_on_nodes_is_the_command_alone(hint: str) -> None:
    words = only_the_command(hint.partition(": ")[2]).split()
    assert not {"a", "it", "that", "the", "them"} & set(words), "the sentence goes on: see printed_hints.py"

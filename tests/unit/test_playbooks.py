"""What every play that changes or reads nodes has in common."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rdm_provision import environment
from tests.ansible_playbook import ansible_playbook

PLAYBOOKS = Path(__file__).parents[2] / "playbooks"
ROLES = Path(__file__).parents[2] / "roles"
PREFLIGHT = "rdm.provision.preflight"
ON_NODES = PLAYBOOKS / "parts/on_nodes.yml"


def _read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def _variables(name: str) -> list[dict[str, Any]]:
    """Return what each play of a playbook gives on_nodes.yml, with its tags."""
    return [{**entry["vars"], "tags": entry.get("tags", [])} for entry in _read(PLAYBOOKS / name)]


def plays() -> list[tuple[str, dict[str, Any]]]:
    """Return the plays with the names of their files; a play that a file imports is its own file's."""
    return [
        (path.name, play)
        for path in PLAYBOOKS.rglob("*.yml")
        for play in _read(path)
        if "ansible.builtin.import_playbook" not in play
    ]


def test_common_variables_of_plays_are_written_once() -> None:
    """In on_nodes.yml: the engine's address, and that the plan has validated the arguments of all roles."""
    (play,) = _read(ON_NODES)
    assert {"become", "environment", "gather_facts", "strategy", "timeout"} <= set(play)
    assert play["tasks"][0]["ansible.builtin.import_role"]["rolespec_validate"] is False
    every = [*PLAYBOOKS.rglob("*.yml"), *ROLES.glob("*/tasks/*.yml")]
    assert [path.name for path in every if "DOCKER_HOST" in path.read_text()] == [ON_NODES.name]
    site = _read(PLAYBOOKS / "site.yml")
    own = [{line for key in play for line in (key, str(play[key]))} for play in site]
    assert set.intersection(*own) == {"ansible.builtin.import_playbook", "vars"}
    keywords = {keyword for entry in site for keyword in entry}
    assert keywords == {"name", "ansible.builtin.import_playbook", "vars", "when", "tags"}


def _imports_of_on_nodes(path: Path, outer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what each play of a playbook gives on_nodes.yml; outer imports win."""
    for entry in _read(path):
        if imported := entry.get("ansible.builtin.import_playbook"):
            given = {**entry.get("vars", {}), **outer}
            inner = path.parent / imported
            yield from [given] if inner == ON_NODES else _imports_of_on_nodes(inner, given)


def test_each_play_that_imports_on_nodes_gives_its_name_and_a_file_of_a_role() -> None:
    found = [
        (path.name, given) for path in PLAYBOOKS.glob("*.yml") for given in _imports_of_on_nodes(path, {})
    ]
    assert len(found) > 40
    for name, given in found:
        assert given["__play"], name
        assert len({"__work", "__part", "__hosts"} & set(given)) == 1, (name, given)
        role, tasks = given.get("__role") or given["__work"], given.get("__tasks", "present")
        assert (ROLES / role / "tasks" / f"{tasks}.yml").is_file(), (name, given)


def test_a_role_whose_arguments_ansible_would_check_again_says_not_to() -> None:
    """Only an entry point that its argument_specs.yml names; the check costs a task per node."""
    unneeded: list[tuple[str, object]] = []
    checked: list[tuple[str, object]] = []
    for path in [*PLAYBOOKS.glob("*.yml"), *ROLES.glob("*/tasks/*.yml")]:
        for task in _tasks(_read(path)):
            for word in ("import_role", "include_role"):
                if called := task.get(f"ansible.builtin.{word}"):
                    again = called.get("tasks_from", "main") == "main"
                    name = str(path.relative_to(ROLES.parent))
                    (checked if again else unneeded).append((name, called.get("rolespec_validate")))
    assert {given for _, given in unneeded} == {None}
    # No plan has validated the lab's.
    assert [one for one, given in checked if given is not False] == ["roles/lab/tasks/present.yml"]


def _tasks(entries: Any) -> Iterator[dict[str, Any]]:
    for entry in entries or ():
        yield entry
        for inner in ("tasks", "block"):
            yield from _tasks(entry.get(inner) or ())


def test_a_role_imports_its_tasks_by_their_whole_path() -> None:
    """Else Ansible takes `tasks/NAME.yml` of the working directory for an import within imported tasks."""
    files = [path for path in ROLES.glob("*/tasks/*.yml") if "import_tasks" in path.read_text()]
    imports = [
        task["ansible.builtin.import_tasks"]
        for path in files
        for task in _tasks(_read(path))
        if "ansible.builtin.import_tasks" in task
    ]
    assert len(imports) > 20
    assert all(file.startswith("{{ role_path }}/tasks/") for file in imports)


def test_missing_parts_of_the_all_reduce_are_refused_before_measurements() -> None:
    """Planned, and queried on all nodes, by the tasks that start it, short of the start."""
    parts = [
        play.get("vars", {}).get("__tasks") or play["ansible.builtin.import_playbook"]
        for play in _read(PLAYBOOKS / "verify.yml")[-4:]
    ]
    assert parts == ["collective_agree", "parts/measure.yml", "rdma", "collective"]
    tasks = {name: _read(ROLES / f"job/tasks/{name}.yml") for name in ("agree", "start")}
    assert tasks["start"][0]["ansible.builtin.import_tasks"] == "{{ role_path }}/tasks/agree.yml"
    verbs = [task["rdm.provision.job"]["verb"] for task in tasks["agree"] if "rdm.provision.job" in task]
    assert verbs == ["check"]
    before, after = (
        next(
            task["vars"]
            for task in _read(ROLES / f"verify/tasks/{name}.yml")
            if task.get("ansible.builtin.import_role", {}).get("name") == "rdm.provision.job"
        )
        for name in ("collective_agree", "collective")
    )
    assert before == after


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    """Two nodes that are this machine."""
    path = tmp_path / "hosts.ini"
    path.write_text(
        "[master]\nn1\n[workers]\nn2\n[all:vars]\nansible_connection=local\nrdm_become=false\n"
        f"ansible_python_interpreter={sys.executable}\n"
    )
    return path


@pytest.mark.parametrize(("chosen", "verb"), [("remove", ""), ("report", "report"), ("", "state")])
def test_the_playbook_that_shows_jobs_changes_none(inventory: Path, chosen: str, verb: str) -> None:
    inventory.with_name("host_vars").mkdir()
    (inventory.parent / "host_vars/n2.yml").write_text("job_verb: stop\n")  # which changes nothing
    words = ["-vvv", "--inventory", inventory, PLAYBOOKS / "jobs.yml", "-e", "job_name=gpt"]
    words += ["-e", f"job_verb={chosen}"] if chosen else []
    run = ansible_playbook(*words, environment={**os.environ, **environment.ansible_environment()})
    assert run.returncode == 2, "no job runs here"
    refused = f"job_verb {chosen} does not only read jobs, as sections and report do;" in run.stdout
    assert (refused, "Query each node" in run.stdout) == (not verb, bool(verb))
    assert re.findall(r" verb: (.*)", run.stdout) == 2 * [verb] * bool(verb)


def test_the_playbook_that_shows_jobs_refuses_the_verb_of_a_single_host(inventory: Path) -> None:
    play = inventory.with_name("ours.yml")
    change = {"ansible.builtin.set_fact": {"job_verb": "stop"}}
    jobs = {"ansible.builtin.import_playbook": str(PLAYBOOKS / "jobs.yml")}
    play.write_text(yaml.safe_dump([{"hosts": "n2", "gather_facts": False, "tasks": [change]}, jobs]))
    words = ["-vvv", "--inventory", inventory, play, "-e", "job_name=gpt"]
    run = ansible_playbook(*words, environment={**os.environ, **environment.ansible_environment()})
    assert "job_verb stop does not only read jobs" in run.stdout
    assert re.findall(r" verb: (\w+)", run.stdout) == ["state"]


@pytest.mark.parametrize(
    ("playbook", "needs"),
    [
        ("logs", "set job_name to the name of a job"),
        ("prune", "set job_names to a list of names of jobs"),
        ("exec", "set exec_argv to a list: a program and its arguments"),
    ],
)
def test_playbook_reports_a_missing_variable(inventory: Path, playbook: str, needs: str) -> None:
    words = ["--inventory", inventory, PLAYBOOKS / f"{playbook}.yml"]
    run = ansible_playbook(*words, environment={**os.environ, **environment.ansible_environment()})
    assert run.returncode == 2
    assert needs in " ".join(run.stdout.split())


def test_every_play_says_which_strategy_it_has_been_made_for() -> None:
    """A user's own, such as free, would let each node run what is for one of them to decide."""
    strategies = [
        (name, play["name"], play.get("strategy"))
        for name, play in plays()
        # A play on one host alone is the same under each.
        if "hosts" in play and play["hosts"] != "localhost"
    ]
    assert len(strategies) == 7
    assert [one for one in strategies if one[2] != "ansible.builtin.linear"] == []


def test_a_part_of_env_up_has_the_plan_that_it_goes_by() -> None:
    (play,) = _read(PLAYBOOKS / "env_up.yml")
    roles = [task.get("ansible.builtin.import_role", {}) for task in play["tasks"]]
    plan = [
        task["tags"]
        for task, role in zip(play["tasks"], roles, strict=True)
        if role.get("name") == PREFLIGHT and role["tasks_from"] in ("gather", "plan")
    ]
    assert plan == [["always"]] * 2


def test_playbook_without_gathering_locks_nodes_first_and_releases_them_last() -> None:
    """With any tags; `site` takes the locks as it gathers."""
    clean = _variables("parts/clean.yml")
    assert [(play["__role"], play["__tasks"]) for play in (clean[0], clean[-1])] == [
        ("preflight", "lock"),
        ("preflight", "release"),
    ]
    assert all("always" in play["tags"] for play in (clean[0], clean[-1]))
    for name in ("env_up", "env_down", "slurm_up", "slurm_down"):
        (play,) = _read(PLAYBOOKS / f"{name}.yml")
        tasks = [task for task in play["tasks"] if "ansible.builtin.import_role" in task]
        ends = [(task["ansible.builtin.import_role"], task["tags"]) for task in (tasks[0], tasks[-1])]
        assert [(role["name"], role["tasks_from"]) for role, _ in ends] == [
            (PREFLIGHT, "lock"),
            (PREFLIGHT, "release"),
        ], name
        assert all("always" in tags for _, tags in ends), name
        # Whoever takes it, the lock of what only root changes is root's.
        assert play.get("vars", {}).get("__preflight_root", False) == (play.get("become") is True), name


def test_node_whose_login_shell_hangs_times_out() -> None:
    """Its first task has a timeout; sudo and the facts of the nodes have timeouts of their own."""
    endless = []
    for path in sorted(PLAYBOOKS.glob("*.yml")):
        first = _read(path)[0]
        if first.get("hosts") == "localhost" or path.name == "plan.yml":  # which connects to no node
            continue
        imported = first.get("ansible.builtin.import_playbook")
        if imported == "parts/gather.yml":
            continue
        if imported:
            given = next(_imports_of_on_nodes(path, {}))
            steps = _read(ROLES / given["__role"] / "tasks" / f"{given['__tasks']}.yml")
            limited = given.get("__timeout")
            gathers = str(steps[0].get("ansible.builtin.import_tasks")).endswith("/gather.yml")
        else:
            limited, steps = first.get("timeout") or first.get("become") is True, first["tasks"]
            roles = [task.get("ansible.builtin.import_role", {}) for task in steps]
            gathers = any(role.get("name") == PREFLIGHT and role["tasks_from"] == "gather" for role in roles)
        if not (limited or gathers or steps[0].get("timeout")):
            endless.append(path.name)
    assert endless == []

"""What every play that changes or reads nodes has in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

PLAYBOOKS = Path(__file__).parents[2] / "playbooks"
ROLES = Path(__file__).parents[2] / "roles"
PREFLIGHT = "rdm.provision.preflight"
ENGINE = "{{ {'DOCKER_HOST': 'unix://' ~ rdm_docker_socket} if rdm_docker_socket | default('') else {} }}"


def _read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def plays() -> list[tuple[str, dict[str, Any]]]:
    """Return the plays with the names of their files."""
    return [
        (path.name, play) for path in PLAYBOOKS.rglob("*.yml") for play in yaml.safe_load(path.read_text())
    ]


def test_what_the_all_reduce_lacks_is_refused_before_anything_is_measured() -> None:
    """Planned and asked of all nodes by the tasks that start it, short of the start."""
    parts = [play["ansible.builtin.import_playbook"] for play in _read(PLAYBOOKS / "verify.yml")[-4:]]
    assert parts == [f"parts/{name}.yml" for name in ("collective_agree", "measure", "rdma", "collective")]
    tasks = {name: _read(ROLES / f"job/tasks/{name}.yml") for name in ("agree", "start")}
    assert tasks["start"][0]["ansible.builtin.import_tasks"] == "agree.yml"
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


def test_whoever_works_on_nodes_gives_modules_the_engines_socket() -> None:
    found = [
        (name, play["name"], play.get("environment"))
        for name, play in plays()
        if "become" in play and not name.startswith("slurm_")  # which has nothing to do with an engine
    ]
    assert len(found) > 20
    assert [one for one in found if one[2] != ENGINE] == []


def test_every_play_says_which_strategy_it_has_been_made_for() -> None:
    """A user's own, such as free, would let each node run what is for one of them to decide."""
    strategies = [
        (name, play["name"], play.get("strategy"))
        for name, play in plays()
        # A play on one host alone is the same under each.
        if "hosts" in play and play["hosts"] != "localhost"
    ]
    assert len(strategies) > 30
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


def test_what_changes_nodes_without_gathering_locks_them_first_and_releases_them_last() -> None:
    """With any tags; `site` takes the locks with its look."""
    for name in ("clean", "env_up", "env_down", "slurm_up", "slurm_down"):
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


def test_a_node_whose_shell_waits_at_login_keeps_no_verb_for_ever() -> None:
    """Its first task ends; sudo and the look at the nodes have ends of their own."""
    endless = []
    for path in sorted(PLAYBOOKS.glob("*.yml")):
        entries = _read(path)
        play = next((entry for entry in entries if entry.get("hosts", "localhost") != "localhost"), None)
        gathers = entries[0].get("ansible.builtin.import_playbook") == "parts/gather.yml"
        if gathers or play is None or path.name == "plan.yml":  # which connects to no node
            continue
        roles = [task.get("ansible.builtin.import_role", {}) for task in play["tasks"]]
        gathers = any(role.get("name") == PREFLIGHT and role["tasks_from"] == "gather" for role in roles)
        ends = play.get("timeout") or play["tasks"][0].get("timeout") or play.get("become") is True
        if not gathers and not ends:
            endless.append(path.name)
    assert endless == []

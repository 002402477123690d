# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan a job on the controller, from the inventory and the job's configuration.

The trainer checks the configuration in the container. Only the keys that choose the job's nodes and its name
are read here.
"""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import yaml
from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names
from ansible_collections.rdm.provision.plugins.module_utils.constants import LAUNCHERS
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    Problem,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.task_failure import not_reached
from ansible_collections.rdm.provision.plugins.plugin_utils.jobs import job_image

JOB_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
_CORRECT = "correct the configuration"
# These must be the same on all nodes of a job; the agents' checks report them.
_VERSIONS = ("python", "torch", "deepspeed", "rdm_trainer")


class Node(NamedTuple):
    """One node of a job.

    Attributes:
        name: its name in the inventory.
        address: its MY_IP.
        slots: the most processes it may run.
    """

    name: str
    address: str
    slots: int


class Wanted(NamedTuple):
    """The job that the user wants.

    Attributes:
        text: the configuration, YAML; empty when a job is resumed with its own.
        source: where the configuration came from, for messages.
        overrides: `key.sub=value`; the last one counts.
        name: the job's name; empty for the configuration's name and the time.
        resume: name of the job to resume; empty for a new one.
    """

    text: str
    source: str
    overrides: Sequence[str] = ()
    name: str = ""
    resume: str = ""


class Slurm(NamedTuple):
    """How jobs are submitted to Slurm.

    Attributes:
        login: inventory name of the host that submits jobs; empty for none.
        here: whether this machine has sbatch.
        images: the inventory's `images_list`; a job's image may be a name of it.
    """

    login: str = ""
    here: bool = False
    images: Sequence[Mapping[str, Any]] = ()


NO_SLURM = Slurm()
"""An inventory without a login host."""


class Past(NamedTuple):
    """The last run of the job to resume.

    Attributes:
        slurm: whether Slurm ran it.
        nodes: the names of its nodes, by rank; none if that is not known.
    """

    slurm: bool = False
    nodes: Sequence[str] = ()


NO_PAST = Past()
"""For a new job, and for a job that no host knows."""


def past(answers: Mapping[str, Mapping[str, Any]]) -> Past:
    """Return the last run of a job, from the results of its hosts.

    A node that was left out of the last run still has the run before it, so the newest result counts.

    Args:
        answers: for each queried host, what the module returned for C(verb=past).
    """
    runs = [answer["past"] for answer in answers.values() if answer.get("past")]
    newest: Mapping[str, Any] = max(runs, key=lambda one: float(one["time"]), default={})
    return Past(bool(newest.get("slurm")), tuple(newest.get("nodes") or ()))


class JobPlan(NamedTuple):
    """A job that the nodes can check and start.

    Attributes:
        name: the job's name, the same on every node.
        resume: whether it resumes the job of that name.
        config: the configuration, YAML; empty when the job keeps its own.
        overrides: `key.sub=value`.
        nodes: the job's nodes; rank 0 is on the first. Through Slurm, the host that submits it.
        slurm: whether Slurm runs it.
        problems: reasons why it cannot start, deferred so that the nodes can report theirs too.
    """

    name: str
    resume: bool
    config: str
    overrides: list[str]
    nodes: list[Node]
    slurm: bool = False
    problems: Sequence[Problem] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        nodes, problems = ([one._asdict() for one in many] for many in (self.nodes, self.problems))
        return dict(self._asdict(), nodes=nodes, master=self.nodes[0].name, problems=problems)


def plan_job(
    wanted: Wanted,
    nodes: Sequence[Node],
    in_run: Iterable[str],
    now: float,
    slurm: Slurm = NO_SLURM,
    before: Past = NO_PAST,
    *,
    put_off: bool = False,
) -> JobPlan:
    """Return the plan of a job.

    Args:
        wanted: the job that the user wants.
        nodes: the cluster's nodes, by rank; none if there is only Slurm, which then runs every job.
        in_run: names of the nodes that the run is limited to.
        now: seconds since 1970, for the job's name.
        slurm: how jobs are submitted to Slurm, for jobs with that launcher.
        before: the last run of the job to resume.
        put_off: whether to defer problems with which the nodes can still check the job.

    Raises:
        PreconditionFailed: with every problem of the job.
    """
    problems: list[Problem] = []
    config = _config(wanted, problems)
    launcher = config.get("launcher") or {}
    kind = _chosen("launcher.kind", launcher, wanted.overrides)
    overrides, minor = _evaluated(wanted.overrides, kind)
    chosen = set(in_run)
    only = bool(slurm.login) and not nodes
    through = kind == "slurm" or (kind is None and (only or before.slurm))
    problems += _way(kind, through, only, slurm, chosen)
    taking_part = [node for node in nodes if node.name in chosen]
    # A job continues on its former nodes unless the user names others.
    again = set(before.nodes) if len(taking_part) == len(nodes) else set()
    if through:
        # The login host runs no process of the job, even if it is one of the nodes.
        taking_part = [Node(slurm.login, "127.0.0.1", 1)]
        overrides += ["launcher.kind=slurm"] if kind is None and wanted.text else []
        given = launcher.get("slurm")
        section = given if isinstance(given, dict) else {}  # the trainer reports what is not a dictionary
        image = _chosen(job_image.KEY, section, wanted.overrides)
        sha256 = _chosen(job_image.DIGEST, section, wanted.overrides)
        where, wrong = job_image.from_list(image, slurm.images, sha256)
        overrides += where
        problems += wrong
    listed, wrong = _listed(_chosen("launcher.nodelist", launcher, wanted.overrides), taking_part, through)
    problems += wrong
    if listed or wrong:
        taking_part, again = listed or taking_part, set()
    elif not through:
        taking_part = _in_order(taking_part, before.nodes)
    count = _chosen("launcher.nodes", launcher, wanted.overrides)
    if count is None and again and not through:
        # Another node replaces one that has left the inventory.
        taking_part = _first(len(before.nodes), taking_part, again)
    elif count is not None:
        what = f"launcher.nodes {count}"
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            problems.append(Problem(None, what, "is no number of nodes", "give 1 or more"))
        elif count > len(taking_part) and not through:
            reason = f"is more than the {len(taking_part)} nodes of this run"
            problems.append(Problem(None, what, reason, "give fewer, or add nodes to the inventory"))
        elif not through:
            taking_part = _first(count, taking_part, again)
    name = wanted.resume or wanted.name or _new_name(config, wanted.source, now)
    if not JOB_NAME.fullmatch(name):
        reason = "is no name for a job"
        hint = "use lower-case letters, digits, '-', '_' and '.', and begin with a letter or digit"
        problems.append(Problem(None, repr(name), reason, hint))
    # With Slurm as launcher the nodes are others, and so would be the problems that they report.
    slurm_meant = bool(difflib.get_close_matches(str(kind), ["slurm"]))
    if problems or (minor and not (put_off and taking_part and not through and not slurm_meant)):
        raise PreconditionFailed([*minor, *problems])
    return JobPlan(name, bool(wanted.resume), wanted.text, overrides, taking_part, through, minor)


def _listed(value: Any, nodes: Sequence[Node], through: bool) -> tuple[list[Node], list[Problem]]:
    """Return the nodes of `launcher.nodelist`, by rank, and what is wrong with it."""
    if value is None or value == []:
        return [], []
    what = "launcher.nodelist"
    if through:
        reason = "names nodes of the inventory, and Slurm chooses this job's"
        return [], [Problem(None, what, reason, "use launcher.slurm.nodelist")]
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        return [], [Problem(None, what, "is no list of nodes", "write it as [n2, n1]")]
    known = {node.name: node for node in nodes}
    problems = []
    for name in dict.fromkeys(value):
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else "they are " + names(list(known))
            problems.append(Problem(None, f"{what} {name}", "is no node of this run", hint))
        elif value.count(name) > 1:
            problems.append(Problem(None, f"{what} {name}", "is named twice", "name each node once"))
    return ([] if problems else [known[name] for name in value]), problems


def _in_order(nodes: Sequence[Node], before: Sequence[str]) -> list[Node]:
    """Return the nodes; if all nodes of the resumed job are among them, those keep their former order."""
    ranks = {name: rank for rank, name in enumerate(before)}
    if not ranks.keys() <= {node.name for node in nodes}:
        return list(nodes)
    ranked = iter(sorted((node for node in nodes if node.name in ranks), key=lambda node: ranks[node.name]))
    return [next(ranked) if node.name in ranks else node for node in nodes]


def _first(count: int, nodes: Sequence[Node], before: Container[str]) -> list[Node]:
    """Return `count` nodes by rank, preferring those that ran the job before."""
    chosen = sorted(nodes, key=lambda node: node.name not in before)[:count]
    return [node for node in nodes if node in chosen]


def _evaluated(overrides: Sequence[str], kind: Any) -> tuple[list[str], list[Problem]]:
    """Return the valid overrides, and what is wrong with the others and with the launcher.

    Invalid overrides are left out, so that the nodes do not report them again.
    """
    problems: list[Problem] = []
    sound = []
    for override in overrides:
        if re.match(r"[A-Za-z_][\w.]*=", override):
            sound.append(override)
        else:
            problems.append(Problem(None, repr(override), "is no override", "write key.sub=value"))
    if kind is not None and kind not in LAUNCHERS:
        close = difflib.get_close_matches(str(kind), LAUNCHERS, n=1)
        hint = f"did you mean {close[0]}?" if close else "use one of " + ", ".join(LAUNCHERS)
        problems.append(Problem(None, f"launcher.kind {kind}", "is not known", hint))
        sound.append(f"launcher.kind={LAUNCHERS[0]}")
    return sound, problems


def _way(kind: Any, through: bool, only: bool, slurm: Slurm, in_run: Container[str]) -> Iterator[Problem]:
    """Yield a problem if the inventory has not what the job's launcher needs."""
    what = f"launcher.kind {kind}" if kind is not None else "Slurm"
    if through and not slurm.login:
        hint = "put it into the group login of the inventory"
        if slurm.here:
            here = "login: {hosts: {localhost: {ansible_connection: local}}}"
            hint += f", as {here}, since this machine has sbatch"
        yield Problem(None, what, "needs a host that jobs are submitted to Slurm from", hint)
    elif through and slurm.login not in in_run:
        reason = f"needs {slurm.login}, from which jobs are submitted"
        yield Problem(None, what, reason, "do not leave it out of --limit")
    elif only and kind in LAUNCHERS and kind != "slurm":
        reason = f"needs nodes, and this inventory has only Slurm (group login: {slurm.login})"
        yield Problem(None, what, reason, "leave it out, or name the nodes in the groups master and workers")


def evaluate(plan: Mapping[str, Any], answers: Mapping[str, Mapping[str, Any]]) -> list[Problem]:
    """Return every problem that keeps a job from starting.

    Args:
        plan: what plan_job() returned, as plain data.
        answers: for each queried node, what its check returned; `unreachable` if it was not reached.
    """
    problems = []
    for node in plan["nodes"]:
        name = node["name"]
        answer = answers.get(name)
        if answer is None or answer.get("unreachable"):
            output = str((answer or {}).get("msg") or "")
            reason = "cannot be reached" + (": " + not_reached(output) if output else "")
            hint = "repair it, or leave it out with --limit or launcher.nodes"
            problems.append(Problem(name, "", reason, hint))
        elif answer.get("failed"):
            problems.append(Problem(name, "", _first_line(str(answer.get("msg") or "it failed")), ""))
        else:
            problems += [Problem(name, "", str(output), "") for output in answer.get("problems") or []]
    # Every node reports the problems of the configuration; they are shown once.
    everywhere = [
        {problem.reason for problem in problems if problem.node == node["name"]} for node in plan["nodes"]
    ]
    common = set.intersection(*everywhere) if len(everywhere) > 1 else set()
    shared: dict[str, Problem] = {}
    for problem in problems:
        if problem.reason in common:
            shared.setdefault(problem.reason, problem._replace(node=None))
    problems = list(shared.values()) + [problem for problem in problems if problem.reason not in common]
    return problems + _differences(plan["nodes"], answers)


def _differences(
    nodes: Iterable[Mapping[str, Any]], answers: Mapping[str, Mapping[str, Any]]
) -> list[Problem]:
    """Return a problem for each node whose versions differ from those of most nodes."""
    problems = []
    for what in _VERSIONS:
        found: dict[str, list[str]] = {}
        for name in (node["name"] for node in nodes):
            version = (answers.get(name) or {}).get("facts", {}).get(what)
            if version:
                found.setdefault(str(version), []).append(name)
        most = max(found, key=lambda version: len(found[version]), default="")
        for version, having in found.items():
            if version != most:
                reason = f"is not {most}, as on {found[most][0]}"
                hint = "give all nodes the same image, or the same environment (rdm-provision env up)"
                problems += [Problem(name, f"{what} {version}", reason, hint) for name in having]
    return problems


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0].rstrip(". ")


def _config(wanted: Wanted, problems: list[Problem]) -> Mapping[str, Any]:
    """Return the configuration as data; empty when a job is resumed with its own."""
    if wanted.resume and not wanted.text:
        return {}
    try:
        config = yaml.safe_load(wanted.text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        what = wanted.source + where
        problems.append(Problem(None, what, f"is not YAML: {error.problem}", _CORRECT))
        return {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = f"is not YAML: {' '.join(str(error).split())}"
        problems.append(Problem(None, wanted.source, reason, _CORRECT))
        return {}
    if not isinstance(config, dict) or not config:
        what = "is empty" if not config else "is a list" if isinstance(config, list) else "holds no keys"
        reason = f"{what}, and no configuration of a job"
        hint = "write keys with values, such as model: {kind: gpt, layers: 4}"
        problems.append(Problem(None, wanted.source, reason, hint))
        return {}
    if not isinstance(config.get("launcher") or {}, dict):
        problems.append(Problem(None, "launcher", "holds no keys", _CORRECT))
        return {}
    return config


def _chosen(key: str, section: Mapping[str, Any], overrides: Sequence[str]) -> Any:
    """Return the value of a key of a section; the last override wins."""
    value: Any | None = section.get(key.rpartition(".")[2])
    for override in overrides:
        name, _, text = override.partition("=")
        if name == key:
            try:
                value = yaml.safe_load(text)
            except (yaml.YAMLError, ValueError, RecursionError):
                value = text
    return value


def _new_name(config: Mapping[str, Any], source: str, now: float) -> str:
    base = str(config.get("name") or re.sub(r"\.ya?ml$", "", source.rpartition("/")[2]) or "job")
    base = re.sub(r"[^a-z0-9_.-]+", "-", base.lower()).strip("-._") or "job"
    return "{}-{}".format(base[:40], time.strftime("%m%d-%H%M%S", time.localtime(now)))

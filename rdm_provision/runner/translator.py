"""Translate ansible-runner's dictionaries into our events and the result. Nothing else reads them."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdm_provision import environment
from rdm_provision.constants import JOB_MODULE
from rdm_provision.problem import Problem
from rdm_provision.results.diffs import environment_values, unified_diff
from rdm_provision.results.events import (
    Change,
    Event,
    InProgress,
    NodeRecap,
    NodeResult,
    NodeStarted,
    Notice,
    Output,
    PhaseStarted,
    PhaseTime,
    Progress,
    RunResult,
    RunStarted,
    Status,
    TaskGoesOn,
    TaskStarted,
    WorkFound,
)
from rdm_provision.results.job_state import job_news
from rdm_provision.wording import names

if TYPE_CHECKING:
    from rdm_provision.runner.run_spec import RunSpec

PLAN_ACTION = "rdm.provision.plan"
RUN_ON_ALL_ACTION = "rdm.provision.run_on_all"
WORK_ACTION = "rdm.provision.work"
FABRIC_ACTION = "rdm.provision.fabric_result"
LAUNCH_ACTION = "rdm.provision.launch_programs"
RDMA_ACTION = "rdm.provision.rdma_pairs"
PEER_ACTIONS = ("rdm.provision.image_distribution", "rdm.provision.data_distribution")
PROBE_ACTION = "rdm.provision.rdma_probe"
COLLECTIVE_ACTION = "rdm.provision.collective_result"
PROTECT_ACTION = "rdm.provision.protect_jobs"
LONG_S = 10.0
"""Seconds after which a task takes long."""
ARGSPEC_ACTIONS = ("ansible.builtin.validate_argument_spec", "validate_argument_spec")

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_WRAPPERS = re.compile(r"^(?:(?:Task|Module|Action) failed: )+")
# The inspection of a role, before anything changes, belongs to the phase that includes it: preflight.
_INSPECTION = re.compile(r"/tasks/inspect\.yml:\d+$")
_NO_HOSTS = "leaves us with no hosts to target"


@dataclass
class _Counts:
    """The results of one node so far."""

    ok: int = 0
    changed: int = 0
    failed: int = 0
    skipped: int = 0
    unreachable: bool = False
    phase: str = ""
    why: str = ""
    changes: list[Change] = field(default_factory=list)

    def frozen(self) -> NodeRecap:
        return NodeRecap(**{**vars(self), "changes": tuple(self.changes)})


class Translator:
    """Translates ansible-runner's event dictionaries into our events, and sums up the result."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        self.started = time.monotonic()
        self.phase = ""
        self.task = ""
        self.task_began = self.started
        self.long_from: float | None = None
        self.counts: dict[str, _Counts] = {name: _Counts() for name in spec.nodes}
        self.running: dict[str, InProgress] = {}
        self.phase_seconds: dict[str, float] = {}
        self.phase_began = self.started
        self.warnings: dict[str, list[str]] = {}
        self.hidden: set[str] = set()
        self.refused = ""
        self.problems: list[Problem] = []
        self.message = ""
        self.work: dict[str, dict[str, list[str]]] = {}
        self.plan: dict[str, Any] | None = None
        self.fabric: dict[str, Any] | None = None
        self.rdma: dict[str, Any] | None = None
        self.collective: dict[str, Any] | None = None
        self.returned: dict[str, dict[str, list[dict[str, Any]]]] = {}
        self.any_change = False
        self.playing = False
        self.errors: list[str] = []

    def _now(self) -> float:
        return round(time.monotonic() - self.started, 3)

    def begin(self) -> Iterator[Event]:
        """Yield the first events of a run."""
        yield RunStarted(at=self._now(), verb=self.spec.verb, nodes=self.spec.nodes, check=self.spec.check)

    def translate(self, data: Mapping[str, Any]) -> Iterator[Event]:
        """Yield our events for an event of ansible-runner."""
        kind = str(data.get("event", ""))
        details: Mapping[str, Any] = data.get("event_data") or {}
        text = plain(data.get("stdout"))
        if text:
            yield Output(at=self._now(), text=text)
        if kind in ("playbook_on_play_start", "playbook_on_stats"):
            # The last task has ended.
            self.long_from = None
        if kind == "playbook_on_play_start":
            self.playing = True
        elif kind == "playbook_on_task_start":
            yield from self._task_started(details)
        elif kind == "runner_on_start":
            for node in self._hosts_in(details):
                self.running[node] = InProgress(node=node, phase=self.phase, task=self.task)
                yield NodeStarted(at=self._now(), node=node, phase=self.phase, task=self.task)
        elif kind in _RESULTS:
            yield from self._news(details)
            yield from self._node_result(kind, details, text)
            if _action(details) == RUN_ON_ALL_ACTION:
                yield from self._answered((details.get("res") or {}).get("answers") or ())
                # A node that did not answer gets a task of its own next.
                self.running.clear()
        elif kind == "runner_retry":
            yield from self._news(details)
        elif kind == "verbose" and _action(details) == RUN_ON_ALL_ACTION:
            yield from self._answered(_hosts_answered(text))
        elif kind == "verbose" and _action(details) in PEER_ACTIONS:
            progress = _image_progress(text)
            if progress:
                yield Progress(self._now(), progress)
        elif kind in ("warning", "system_warning"):
            yield from self._warn(text, node=None)
        elif kind == "playbook_on_stats":
            self._stats(details)
        elif text.startswith(("[ERROR]:", "ERROR!", "ERROR:")) or kind == "error":
            self.errors.append(text)

    def _news(self, details: Mapping[str, Any]) -> Iterator[Event]:
        """Yield the progress in a result; a watched job reports it with each retry."""
        if details.get("resolved_action") == JOB_MODULE:
            yield from job_news(self._now(), str(details.get("host")), details.get("res") or {})
            return
        text = str((details.get("res") or {}).get("progress") or "")
        if text and details.get("resolved_action") == PROBE_ACTION:
            yield Progress(self._now(), text)

    def _task_started(self, details: Mapping[str, Any]) -> Iterator[Event]:
        role = str(details.get("resolved_role") or details.get("role") or "")
        phase = role.rpartition(".")[2] if role else str(details.get("play") or "")
        if self.phase and _INSPECTION.search(str(details.get("task_path") or "")):
            phase = self.phase
        self.task = str(details.get("name") or details.get("task") or "")
        # Ansible prefixes the task with the full name of its role.
        if role and " : " in self.task:
            self.task = self.task.partition(" : ")[2]
        if phase != self.phase:
            self._close_phase()
            self.phase = phase
            yield PhaseStarted(at=self._now(), phase=phase)
        self.task_began = time.monotonic()
        self.long_from = self.task_began + LONG_S
        yield TaskStarted(at=self._now(), phase=self.phase, task=self.task)

    def waited(self) -> Iterator[Event]:
        """Yield, once per task, that it takes long. To be called regularly."""
        if self.long_from is not None and time.monotonic() >= self.long_from:
            self.long_from = None
            yield TaskGoesOn(at=self._now(), phase=self.phase, task=self.task)

    def _close_phase(self) -> None:
        now = time.monotonic()
        if self.phase:
            self.phase_seconds[self.phase] = self.phase_seconds.get(self.phase, 0.0) + now - self.phase_began
        self.phase_began = now

    def _node_result(self, kind: str, details: Mapping[str, Any], text: str) -> Iterator[Event]:
        node = str(details.get("host"))
        res: Mapping[str, Any] = details.get("res") or {}
        action = _action(details)
        started = self.running.pop(node, None)
        phase, task = (started.phase, started.task) if started else (self.phase, self.task)
        status = _RESULTS[kind]
        changed = _changed(res, text) and status is not Status.SKIPPED
        if status is Status.OK and changed:
            status = Status.CHANGED
        ignored = bool(details.get("ignore_errors"))
        bad = status in (Status.FAILED, Status.UNREACHABLE)
        message = _why(res, unreachable=status is Status.UNREACHABLE) if bad else ""
        diff = sys.intern(unified_diff(res))  # the same on many nodes
        self.hidden.update(environment_values(res))
        cluster_wide = action in (PLAN_ACTION, FABRIC_ACTION, PROTECT_ACTION, LAUNCH_ACTION)
        self._keep(action, node, res)
        if action == WORK_ACTION and "why" in res:
            self.work = dict(res["why"])
            yield WorkFound(at=self._now(), work=self.work)
        for warning in _warnings(res):
            yield from self._warn(warning, node=None if cluster_wide else node)
        if bad and not ignored and action in ARGSPEC_ACTIONS and not self.any_change:
            self._bad_arguments(node, res)
        yield NodeResult(
            at=self._now(),
            node=node,
            phase=phase,
            task=task,
            status=status,
            changed=changed,
            message=message,
            diff=diff,
            seconds=round(float(details.get("duration") or 0.0), 3),
            ignored=ignored,
            refused=bool(res.get("rdm_refused")),
        )
        counts = self.counts.setdefault(node, _Counts())
        if bad and ignored:
            counts.ok += 1
        elif status is Status.UNREACHABLE:
            counts.unreachable = True
        elif status is Status.FAILED:
            counts.failed += 0 if self.refused else 1
        elif status is Status.SKIPPED:
            counts.skipped += 1
        else:
            counts.ok += 1
        if bad and not ignored:
            # The last failure counts: a rescue that fails explains the failure better.
            counts.why, counts.phase = message, phase
        if status is Status.CHANGED:
            self.any_change = True
            counts.changed += 1
            counts.changes.append(Change(phase=phase, task=task, diff=diff))

    def _hosts_in(self, details: Mapping[str, Any]) -> list[str]:
        """Return the nodes of a task: one, or all for the action ``run_on_all``."""
        node = str(details.get("host"))
        if _action(details) != RUN_ON_ALL_ACTION:
            return [node]
        return [name for name, counts in self.counts.items() if name == node or not counts.unreachable]

    def _answered(self, nodes: Iterable[str]) -> Iterator[Event]:
        """Yield a result, once, for each node that answered ``run_on_all``, as for a task there."""
        for node in nodes:
            started = self.running.pop(node, None)
            if started is None:
                continue
            yield NodeResult(
                at=self._now(),
                node=node,
                phase=started.phase,
                task=started.task,
                status=Status.OK,
                changed=False,
                message="",
                diff="",
                seconds=round(time.monotonic() - self.task_began, 3),
            )
            self.counts.setdefault(node, _Counts()).ok += 1

    def _keep(self, action: str, node: str, res: Mapping[str, Any]) -> None:
        """Keep results of the collection's own modules."""
        if res.get("rdm_refused"):
            self.refused = str(res["rdm_refused"])
            found = [Problem.from_result(problem) for problem in res.get("problems") or []]
            # Several nodes may refuse for the same reason.
            self.problems += [problem for problem in found if problem not in self.problems]
            if not self.problems:
                self.problems.append(Problem(None, "", _why(res, unreachable=False), ""))
        elif action == PLAN_ACTION and "nodes" in res:
            hidden = (
                "changed",
                "diff",
                "invocation",
                "warnings",
                "failed",
                "msg",
                "exception",
                "state_files",
            )
            self.plan = {k: v for k, v in res.items() if k not in hidden and not k.startswith("_ansible")}
        elif action == FABRIC_ACTION and isinstance(res.get("fabric"), Mapping):
            self.fabric = dict(res["fabric"])
        elif action == RDMA_ACTION and isinstance(res.get("rdma"), Mapping):
            self.rdma = dict(res["rdma"])
        elif action == COLLECTIVE_ACTION and isinstance(res.get("collective"), Mapping):
            self.collective = dict(res["collective"])
        if action in self.spec.keep:
            # The changes already have the diff.
            left_out = ("invocation", "diff")
            kept = {k: v for k, v in res.items() if k not in left_out and not k.startswith("_ansible")}
            self.returned.setdefault(action, {}).setdefault(node, []).append(kept)

    def _bad_arguments(self, node: str, res: Mapping[str, Any]) -> None:
        errors = res.get("argument_errors") or [_why(res, unreachable=False)]
        self.refused = "inventory"
        for error in errors:
            problem = Problem(
                node, "", _one_line(str(error)), "every variable is described in docs/variables.md"
            )
            if problem not in self.problems:
                self.problems.append(problem)

    def _warn(self, text: str, node: str | None) -> Iterator[Event]:
        text = _one_line(re.sub(r"^\[WARNING\]: ", "", text))
        if not text or text.startswith("Could not match supplied host pattern, ignoring: workers"):
            return
        known = text in self.warnings
        nodes = self.warnings.setdefault(text, [])
        if node is not None and node not in nodes:
            nodes.append(node)
        if not known:
            yield Notice(at=self._now(), text=f"{node}: {text}" if node else text)

    def _stats(self, details: Mapping[str, Any]) -> None:
        """Correct the counts by Ansible's own, which know what was rescued."""
        failures: Mapping[str, int] = details.get("failures") or {}
        dark: Mapping[str, int] = details.get("dark") or {}
        for node, counts in self.counts.items():
            if node not in failures:
                counts.failed = 0
            if node not in dark:
                counts.unreachable = False
            if node not in failures and node not in dark:
                counts.why = counts.phase = ""

    def end(self, rc: int | None, *, cancelled: bool, record: Path | None) -> RunResult:
        """Return the result of a run.

        Args:
            rc: the exit status of ansible-playbook; None if it never started.
            cancelled: the user cancelled it.
            record: the folder of its record, if one is kept.
        """
        self._close_phase()
        if not self.refused and not cancelled and rc != 0 and not self._has_failed_node():
            self._failed_as_a_whole(rc)
        return RunResult(
            verb=self.spec.verb,
            check=self.spec.check,
            nodes={name: counts.frozen() for name, counts in self.counts.items()},
            refused="" if cancelled else self.refused,
            problems=tuple(self.problems),
            message=self.message,
            phases=tuple(PhaseTime(name, round(s, 3)) for name, s in self.phase_seconds.items()),
            warnings=tuple(
                _with_nodes(text, self._in_order(nodes), len(self.counts))
                for text, nodes in self.warnings.items()
            ),
            work=self.work,
            plan=self.plan,
            fabric=self.fabric,
            rdma=self.rdma,
            collective=self.collective,
            returned={
                action: {name: results[name] for name in self._in_order(results)}
                for action, results in self.returned.items()
            },
            in_progress=tuple(self.running.values()) if cancelled else (),
            cancelled=cancelled,
            seconds=self._now(),
            record=record,
        )

    def _in_order(self, nodes: Collection[str]) -> list[str]:
        """Return nodes in the inventory's order."""
        return [name for name in self.counts if name in nodes]

    def _has_failed_node(self) -> bool:
        return any(counts.failed or counts.unreachable for counts in self.counts.values())

    def _failed_as_a_whole(self, rc: int | None) -> None:
        output = " ".join(self.errors)
        if _NO_HOSTS in output:
            self.refused = "input"
            self.problems.append(
                Problem(None, self.spec.limit, "matches no node of this inventory", "check --limit")
            )
        elif not self.playing:
            self.refused = "input"
            self.problems.append(
                Problem(None, "", error_sentence(output) or f"ansible-playbook ended with {rc}", "")
            )
        else:
            self.message = error_sentence(output) or f"ansible-playbook ended with {rc}"


_RESULTS = {
    "runner_on_ok": Status.OK,
    "runner_on_failed": Status.FAILED,
    "runner_on_unreachable": Status.UNREACHABLE,
    "runner_on_skipped": Status.SKIPPED,
}


def _action(details: Mapping[str, Any]) -> str:
    """Return the full name of the module or action of a task."""
    return str(details.get("resolved_action") or details.get("task_action") or "")


def _hosts_answered(line: str) -> list[str]:
    environment.make_importable()
    from ansible_collections.rdm.provision.plugins.plugin_utils.controller.progress import hosts_answered

    return hosts_answered(line)


def _image_progress(line: str) -> str:
    environment.make_importable()
    from ansible_collections.rdm.provision.plugins.plugin_utils.controller.image_transfer import progress_of

    return progress_of(line)


def plain(text: Any) -> str:
    """Return a text without colours and with Unix line ends."""
    return _ANSI.sub("", str(text or "")).replace("\r\n", "\n").strip("\n")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _changed(res: Mapping[str, Any], text: str) -> bool:
    if "censored" in res:
        return text.lstrip().startswith("changed:")
    return bool(res.get("changed"))


def _warnings(res: Mapping[str, Any]) -> Iterator[str]:
    for part in (res, *(item for item in res.get("results") or () if isinstance(item, Mapping))):
        for warning in part.get("warnings") or ():
            yield str(warning.get("msg", warning)) if isinstance(warning, Mapping) else str(warning)


def _with_nodes(text: str, nodes: Sequence[str], of: int) -> str:
    if not nodes or (len(nodes) == of and of > 1):
        return text
    return f"{names(nodes, 3)}: {text}"


def _why(res: Mapping[str, Any], *, unreachable: bool) -> str:
    """Return in one line why a task failed."""
    if "censored" in res:
        return "it failed; the details are hidden because they may contain secrets"
    for item in res.get("results") or ():
        # From ansible-core 2.21 on, callbacks see that an item failed from its exception only.
        if isinstance(item, Mapping) and (item.get("failed") or item.get("exception")):
            label = item.get("_ansible_item_label", item.get("item"))
            named = f"{label}: " if isinstance(label, (str, int)) else ""
            return named + _why(item, unreachable=unreachable)
    message = _WRAPPERS.sub("", _one_line(str(res.get("msg") or "")))
    environment.make_importable()
    from ansible_collections.rdm.provision.plugins.plugin_utils.errors.task_failure import not_reached, reason

    if unreachable:
        return not_reached(message)
    if "undecryptable variable" in message:
        return f"{message.rstrip('. ')} (--ask-vault-pass or --vault-password-file FILE gives its password)"
    texts = {key: plain(res.get(key)) for key in ("stderr", "module_stderr", "stdout") if res.get(key)}
    return reason({**res, **texts})


def error_sentence(text: str) -> str:
    r"""Reduce the output of an Ansible program to the sentence of its error.

    >>> error_sentence("[ERROR]: no such file\nOrigin: x.yml:3:4\n\n3 - foo\n")
    'no such file (x.yml:3:4)'
    """
    text = plain(text)
    match = re.search(r"(?:\[ERROR\]:|ERROR[!:])\s*(.+?)(?=\n\s*\n|\nOrigin:|<<< caused|\Z)", text, re.DOTALL)
    output = _one_line(match.group(1) if match else (text.splitlines() or [""])[0])
    origin = re.search(r"^Origin: (\S+:\d+:\d+)", text, re.MULTILINE)
    return f"{output.rstrip('.')} ({origin.group(1)})" if origin and output else output

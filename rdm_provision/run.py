"""Run a playbook and tell what happens. The only module that knows ansible-runner and its dictionaries."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import queue
import re
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from rdm_provision import environment
from rdm_provision.events import (
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
    Problem,
    RunFinished,
    RunResult,
    RunStarted,
    Status,
    TaskStarted,
)
from rdm_provision.jobs import job_news
from rdm_provision.record import Lock, Record, run_lock

__all__ = ["Run", "RunSpec"]

PLAN_ACTION = "rdm.provision.plan"
FABRIC_ACTION = "rdm.provision.fabric_verdict"
JOB_ACTION = "rdm.provision.job"
ARGSPEC_ACTIONS = ("ansible.builtin.validate_argument_spec", "validate_argument_spec")
MAX_FORKS = 50
"""Ansible gains nothing beyond this on one machine, and each fork takes some 50 MB."""
GRACE_S = 10.0
"""Seconds that ansible-playbook has to stop by itself after Ctrl-C, before it is killed."""
_POLL_S = 0.5
_SUPERVISED = Path(__file__).with_name("_supervised.py")

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_WRAPPERS = re.compile(r"^(?:(?:Task|Module|Action) failed: )+")
_SSH_NOISE = re.compile(
    r"(?:Failed to connect to the host via ssh|Data could not be sent to remote host[^:]*): "
)
_YAML_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
_NO_SECRETS = frozenset({"MY_IP", "MASTER_ADDR"})
# What a role looks at before anything changes is a part of the phase that asks for it: of preflight.
_INSPECTION = re.compile(r"/tasks/inspect\.yml:\d+$")
_NO_HOSTS = "leaves us with no hosts to target"


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """What to run.

    Attributes:
        verb: the word for it in messages and records.
        playbook: a name in the collection (``site``), or a path.
        inventory: path of the inventory, or a comma-separated host list such as ``localhost,``.
        nodes: the nodes it is about, in the inventory's order; for progress and the default of ``forks``.
        limit: Ansible's ``--limit`` pattern; empty for all.
        tags: only tasks with one of these tags; empty for all.
        extra_vars: extra variables, with their types. They go through a private file, not the command line.
        literal_vars: the same for lists of words that are never templated: what was typed stays as typed.
        check: change nothing, say what would be changed.
        diff: show what changes inside files.
        forks: how many nodes at once; 0 for min(50, nodes).
        verbosity: ansible-playbook's number of ``-v``.
        home: folder of the inventory, for the record and the lock; None for neither.
        exclusive: take the cluster's lock; others that want it are refused meanwhile.
        keep: modules whose results the caller wants in ``RunResult.returned``.
        env: more environment variables.
    """

    verb: str
    playbook: str
    inventory: str
    nodes: tuple[str, ...] = ()
    limit: str = ""
    tags: str = ""
    extra_vars: Mapping[str, Any] = field(default_factory=dict)
    literal_vars: Mapping[str, Sequence[str]] = field(default_factory=dict)
    check: bool = False
    diff: bool = False
    forks: int = 0
    verbosity: int = 0
    home: Path | None = None
    exclusive: bool = False
    keep: frozenset[str] = frozenset()
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def effective_forks(self) -> int:
        """How many nodes are worked on at once."""
        return self.forks or max(1, min(MAX_FORKS, len(self.nodes) or 5))

    def command(self, *, show_values: bool = True) -> str:
        """Return the ansible-playbook line that does the same, ready to paste into a shell here."""
        env = dict(self.env)
        book = environment.playbook(self.playbook)
        root = environment.checkout()
        cwd = Path.cwd()
        if root is not None and cwd != root:
            env["ANSIBLE_CONFIG"] = str(root / "ansible.cfg")
            env["ANSIBLE_COLLECTIONS_PATH"] = str(root / ".collections")
        argv = ["ansible-playbook", "-i", _short(self.inventory, cwd), _short(book, cwd)]
        argv += [
            part
            for flag, value in (("--limit", self.limit), ("--tags", self.tags))
            if value
            for part in (flag, value)
        ]
        argv += [flag for flag, wanted in (("--check", self.check), ("--diff", self.diff)) if wanted]
        argv += ["--forks", str(self.effective_forks)]
        if self.verbosity:
            argv.append("-" + "v" * self.verbosity)
        if variables := self.variables(show_values=show_values):
            argv += ["-e", variables]
        return environment.shell_line(argv, env)

    def variables(self, *, show_values: bool = True) -> str:
        """Return the extra variables as YAML that Ansible reads after ``-e``; empty when there are none."""
        items = [(name, _flow_yaml(value)) for name, value in self.extra_vars.items()]
        # The tag holds for all that is in the list. A scalar "010" it would turn into a number.
        items += [(name, f"!unsafe {_flow_yaml(list(values))}") for name, values in self.literal_vars.items()]
        if not show_values:
            items = [(name, '"…"') for name, _ in items]
        pairs = ", ".join(f"{_flow_yaml(name)}: {value}" for name, value in items)
        return f"{{{pairs}}}" if items else ""


def _flow_yaml(value: Any) -> str:
    """Return VALUE as YAML on one line."""
    # JSON is YAML, but for characters that YAML wants escaped, and pairs of surrogates, which it refuses.
    return _YAML_ESCAPED.sub(lambda m: f"\\u{ord(m.group()):04x}", json.dumps(value, ensure_ascii=False))


def _short(path: str, cwd: Path) -> str:
    """Return PATH relative to CWD when it lies under it."""
    with contextlib.suppress(ValueError):
        if Path(path).is_absolute():
            return str(Path(path).relative_to(cwd))
    return path


class Run:
    """One run of a playbook, in progress or finished.

    Iterating starts it and yields events until it is over; :meth:`result` runs it to the end. Used as a
    context manager it is cancelled when the block is left early.

    >>> with Run(RunSpec(verb="up", playbook="site", inventory="inventory/lab")) as run:  # doctest: +SKIP
    ...     for event in run:
    ...         print(event)
    ...     print(run.result().exit_code)
    """

    def __init__(self, spec: RunSpec) -> None:
        """Prepare a run of SPEC; nothing is started yet."""
        self.spec = spec
        self._queue: queue.SimpleQueue[Event | BaseException | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._result: RunResult | None = None
        self._over = False
        self._cancelled_at: float | None = None
        self._kill = False
        self._pid: int | None = None
        self._lock: Lock | None = None

    @property
    def command(self) -> str:
        """The equivalent ansible-playbook line."""
        return self.spec.command()

    def start(self) -> None:
        """Start working, in a thread of its own. Does nothing the second time.

        Raises:
            ClusterBusyError: another run is changing the same cluster.
            ToolMissingError: ansible-playbook or the playbook is missing.
        """
        if self._thread is not None:
            return
        environment.program("ansible-playbook")
        environment.playbook(self.spec.playbook)
        if self.spec.exclusive and self.spec.home is not None:
            self._lock = Lock(self.spec.home, self.spec.verb)
        self._thread = threading.Thread(target=self._work, name=f"rdm-{self.spec.verb}", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Event]:
        """Start if need be, and yield what happens until the run is over."""
        self.start()
        while not self._over:
            item = self._queue.get()
            if item is None:
                self._over = True
            elif isinstance(item, BaseException):
                self._over = True
                raise item
            else:
                if isinstance(item, RunFinished):
                    self._result = item.result
                yield item

    def result(self) -> RunResult:
        """Run to the end and return the result. Ctrl-C cancels the run and is raised when it has stopped."""
        try:
            for _ in self:
                pass
        except KeyboardInterrupt:
            self.cancel()
            self._drain()
            raise
        if self._result is None:
            raise RuntimeError("the run ended without a result")
        return self._result

    def cancel(self) -> None:
        """Ask ansible-playbook to stop, as Ctrl-C does; a second call kills it. Iterate on for the end."""
        if self._thread is None:
            self._cancelled_at = time.monotonic()
            return
        if self._cancelled_at is not None:
            self._kill = True
            return
        self._cancelled_at = time.monotonic()
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._pid, signal.SIGINT)

    def __enter__(self) -> Run:
        """Return the run itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel the run if it is still going, and wait for it to stop."""
        if self._thread is not None and not self._over:
            self.cancel()
            self._drain()

    def _drain(self) -> None:
        with contextlib.suppress(Exception):
            for _ in self:
                pass

    def _cancel_now(self) -> bool:
        """Whether ansible-runner should kill the process (it asks every half second)."""
        if self._cancelled_at is None:
            return False
        overdue = time.monotonic() - self._cancelled_at > GRACE_S
        return self._kill or self._pid is None or overdue

    def _work(self) -> None:
        """Run ansible-playbook through ansible-runner, and translate. The body of the thread."""
        try:
            _remove_stale()
            folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
            try:
                self._run_in(folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        except BaseException as error:
            self._queue.put(error)
        finally:
            if self._lock is not None:
                self._lock.release()
            self._queue.put(None)

    def _run_in(self, folder: Path) -> None:
        import ansible_runner

        spec = self.spec
        record = Record(spec.home, spec.verb, spec.command(show_values=False))
        translator = _Translator(spec)

        def emit(events: Iterator[Event]) -> None:
            for event in events:
                record.add(event)
                self._queue.put(event)

        def on_event(data: dict[str, Any]) -> bool:
            if data.get("event") == "playbook_on_start":
                self._pid = data.get("pid")
                if self._cancelled_at is not None:
                    self._kill = True
            emit(translator.translate(data))
            # False: ansible-runner writes no file for the event.
            return False

        if variables := spec.variables():
            (folder / "env").mkdir(mode=0o700)
            # ansible-runner hands this file to ansible-playbook.
            (folder / "env" / "extravars").write_text(variables + "\n", encoding="utf-8")
        emit(translator.begin())
        env = {**environment.ansible_environment(), **spec.env}
        # The default drops results beyond 700 kB; the plan of a large cluster is bigger.
        env |= {"MAX_EVENT_RES": "1000000000", "ANSIBLE_STDOUT_CALLBACK": "default"}
        env |= {"RDM_PARENT": str(os.getpid())}
        if spec.exclusive and spec.home is not None:
            env["RDM_RUN_LOCK"] = str(run_lock(spec.home.resolve()))
        argv = ["-I", str(_SUPERVISED), environment.program("ansible-playbook")]
        argv.append(environment.playbook(spec.playbook))
        argv += [flag for flag, wanted in (("--check", spec.check), ("--diff", spec.diff)) if wanted]
        runner = ansible_runner.run(
            private_data_dir=str(folder),
            project_dir=str(Path.cwd()),
            binary=sys.executable,
            inventory=_inventory_argument(spec.inventory),
            limit=spec.limit or None,
            tags=spec.tags or None,
            forks=spec.effective_forks,
            verbosity=spec.verbosity or None,
            cmdline=shlex.join(argv),
            envvars=env,
            settings={"pexpect_timeout": _POLL_S},
            quiet=True,
            event_handler=on_event,
            cancel_callback=self._cancel_now,
        )
        result = translator.end(runner.rc, cancelled=self._cancelled_at is not None, record=record.folder)
        record.finish(result, Path(runner.config.artifact_dir) / "stdout", translator.hidden)
        self._queue.put(RunFinished(at=result.seconds, result=result))


_PREFIX = "rdm-provision-"


def _remove_stale() -> None:
    """Remove the temporary folders of our runs that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        owner = folder.name.removeprefix(_PREFIX).split("-")[0]
        with contextlib.suppress(OSError):
            if owner.isdigit() and not Path("/proc", owner).exists() and folder.stat().st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)


def _inventory_argument(inventory: str) -> str | list[str]:
    """Return INVENTORY so that ansible-runner passes it on as it is (a bare string it may write down)."""
    return [inventory if "," in inventory else str(Path(inventory).resolve())]


@dataclass
class _Counts:
    """What has been seen of one node so far."""

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


class _Translator:
    """Turns ansible-runner's event dictionaries into our events, and adds up the result."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        self.started = time.monotonic()
        self.phase = ""
        self.task = ""
        self.counts: dict[str, _Counts] = {name: _Counts() for name in spec.nodes}
        self.running: dict[str, InProgress] = {}
        self.phase_seconds: dict[str, float] = {}
        self.phase_began = self.started
        self.warnings: dict[str, list[str]] = {}
        self.hidden: set[str] = set()
        self.refused = ""
        self.problems: list[Problem] = []
        self.message = ""
        self.plan: dict[str, Any] | None = None
        self.fabric: dict[str, Any] | None = None
        self.returned: dict[str, dict[str, list[dict[str, Any]]]] = {}
        self.any_change = False
        self.playing = False
        self.errors: list[str] = []

    def _now(self) -> float:
        return round(time.monotonic() - self.started, 3)

    def begin(self) -> Iterator[Event]:
        yield RunStarted(at=self._now(), verb=self.spec.verb, nodes=self.spec.nodes, check=self.spec.check)

    def translate(self, data: Mapping[str, Any]) -> Iterator[Event]:
        """Yield what the ansible-runner event DATA means."""
        kind = str(data.get("event", ""))
        details: Mapping[str, Any] = data.get("event_data") or {}
        text = plain(data.get("stdout"))
        if text:
            yield Output(at=self._now(), text=text)
        if kind == "playbook_on_play_start":
            self.playing = True
        elif kind == "playbook_on_task_start":
            yield from self._task_started(details)
        elif kind == "runner_on_start":
            node = str(details.get("host"))
            self.running[node] = InProgress(node=node, phase=self.phase, task=self.task)
            yield NodeStarted(at=self._now(), node=node, phase=self.phase, task=self.task)
        elif kind in _RESULTS:
            yield from self._job_news(details)
            yield from self._node_result(kind, details, text)
        elif kind == "runner_retry":
            yield from self._job_news(details)
        elif kind in ("warning", "system_warning"):
            yield from self._warn(text, node=None)
        elif kind == "playbook_on_stats":
            self._stats(details)
        elif text.startswith(("[ERROR]:", "ERROR!")) or kind == "error":
            self.errors.append(text)

    def _job_news(self, details: Mapping[str, Any]) -> Iterator[Event]:
        """Yield what a result says about a job; a job that is watched tells it with each try."""
        if details.get("resolved_action") == JOB_ACTION:
            yield from job_news(self._now(), str(details.get("host")), details.get("res") or {})

    def _task_started(self, details: Mapping[str, Any]) -> Iterator[Event]:
        role = str(details.get("resolved_role") or details.get("role") or "")
        phase = role.rpartition(".")[2] if role else str(details.get("play") or "")
        if self.phase and _INSPECTION.search(str(details.get("task_path") or "")):
            phase = self.phase
        self.task = str(details.get("name") or details.get("task") or "")
        # Ansible prefixes the task with its role, in full.
        if role and " : " in self.task:
            self.task = self.task.partition(" : ")[2]
        if phase != self.phase:
            self._close_phase()
            self.phase = phase
            yield PhaseStarted(at=self._now(), phase=phase)
        yield TaskStarted(at=self._now(), phase=self.phase, task=self.task)

    def _close_phase(self) -> None:
        now = time.monotonic()
        if self.phase:
            self.phase_seconds[self.phase] = self.phase_seconds.get(self.phase, 0.0) + now - self.phase_began
        self.phase_began = now

    def _node_result(self, kind: str, details: Mapping[str, Any], text: str) -> Iterator[Event]:
        node = str(details.get("host"))
        res: Mapping[str, Any] = details.get("res") or {}
        action = str(details.get("resolved_action") or details.get("task_action") or "")
        started = self.running.pop(node, None)
        phase, task = (started.phase, started.task) if started else (self.phase, self.task)
        status = _RESULTS[kind]
        changed = _changed(res, text) and status is not Status.SKIPPED
        if status is Status.OK and changed:
            status = Status.CHANGED
        ignored = bool(details.get("ignore_errors"))
        bad = status in (Status.FAILED, Status.UNREACHABLE)
        message = _why(res, unreachable=status is Status.UNREACHABLE) if bad else ""
        diff = unified_diff(res)
        self.hidden.update(environment_values(res))
        cluster_wide = action in (PLAN_ACTION, FABRIC_ACTION)
        self._keep(action, node, res)
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
            # The last one counts: a rescue that fails says more clearly what it could not rescue.
            counts.why, counts.phase = message, phase
        if status is Status.CHANGED:
            self.any_change = True
            counts.changed += 1
            counts.changes.append(Change(phase=phase, task=task, diff=diff))

    def _keep(self, action: str, node: str, res: Mapping[str, Any]) -> None:
        """Note what the collection's own modules hand back."""
        if res.get("rdm_refused"):
            self.refused = str(res["rdm_refused"])
            self.problems += [
                Problem(
                    node=item.get("node"),
                    value=str(item.get("value", "")),
                    reason=str(item.get("reason", "")),
                    remedy=str(item.get("remedy", "")),
                )
                for item in res.get("problems") or []
            ]
            if not self.problems:
                self.problems.append(Problem(None, "", _why(res, unreachable=False), ""))
        elif action == PLAN_ACTION and "nodes" in res:
            hidden = ("changed", "diff", "invocation", "warnings", "failed", "msg", "exception")
            self.plan = {k: v for k, v in res.items() if k not in hidden and not k.startswith("_ansible")}
        elif action == FABRIC_ACTION and isinstance(res.get("fabric"), Mapping):
            self.fabric = dict(res["fabric"])
        if action in self.spec.keep:
            kept = {k: v for k, v in res.items() if k != "invocation" and not k.startswith("_ansible")}
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
        """Take Ansible's own verdict: it knows what was rescued."""
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
        """Return the result of a run whose ansible-playbook ended with RC."""
        self._close_phase()
        if not self.refused and not cancelled and rc != 0 and not self._blames_a_node():
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
            plan=self.plan,
            fabric=self.fabric,
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
        """Return nodes in the inventory's order; they were heard in any."""
        return [name for name in self.counts if name in nodes]

    def _blames_a_node(self) -> bool:
        return any(counts.failed or counts.unreachable for counts in self.counts.values())

    def _failed_as_a_whole(self, rc: int | None) -> None:
        said = " ".join(self.errors)
        if _NO_HOSTS in said:
            self.refused = "input"
            self.problems.append(
                Problem(None, self.spec.limit, "matches no node of this inventory", "check --limit")
            )
        elif not self.playing:
            self.refused = "input"
            self.problems.append(
                Problem(None, "", error_sentence(said) or f"ansible-playbook ended with {rc}", "")
            )
        else:
            self.message = error_sentence(said) or f"ansible-playbook ended with {rc}"


_RESULTS = {
    "runner_on_ok": Status.OK,
    "runner_on_failed": Status.FAILED,
    "runner_on_unreachable": Status.UNREACHABLE,
    "runner_on_skipped": Status.SKIPPED,
}


def plain(text: Any) -> str:
    """Return TEXT without colours and with Unix line ends."""
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
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    return f"{', '.join(nodes[:3])}{more}: {text}"


def _why(res: Mapping[str, Any], *, unreachable: bool) -> str:
    """Return in one line why a result is bad."""
    if "censored" in res:
        return "it failed; the details are hidden because they may contain secrets"
    for item in res.get("results") or ():
        if isinstance(item, Mapping) and item.get("failed"):
            label = item.get("_ansible_item_label", item.get("item"))
            named = f"{label}: " if isinstance(label, (str, int)) else ""
            return named + _why(item, unreachable=unreachable)
    message = _WRAPPERS.sub("", _one_line(str(res.get("msg") or "")))
    if unreachable:
        message = _SSH_NOISE.sub("", message)
        return re.sub(r"^ssh: ", "", message).rstrip(". ") or "no connection"
    last_words = _last_line(res.get("stderr") or res.get("module_stderr") or res.get("stdout"))
    if message.startswith(("non-zero return code", "MODULE FAILURE")) or not message:
        ended = f"exit code {res['rc']}" if "rc" in res else "it failed"
        return f"{ended}: {last_words}" if last_words else ended
    return message


def _last_line(text: Any) -> str:
    lines = [line for line in plain(text).splitlines() if line.strip()]
    return _one_line(lines[-1]) if lines else ""


def error_sentence(text: str) -> str:
    """Cut what an Ansible program printed down to the sentence that says what is wrong.

    >>> error_sentence("[ERROR]: no such file\\nOrigin: x.yml:3:4\\n\\n3 - foo\\n")
    'no such file (x.yml:3:4)'
    """
    text = plain(text)
    match = re.search(r"(?:\[ERROR\]:|ERROR!)\s*(.+?)(?=\n\s*\n|\nOrigin:|<<< caused|\Z)", text, re.DOTALL)
    said = _one_line(match.group(1) if match else (text.splitlines() or [""])[0])
    origin = re.search(r"^Origin: (\S+:\d+:\d+)", text, re.MULTILINE)
    return f"{said.rstrip('.')} ({origin.group(1)})" if origin and said else said


def unified_diff(res: Mapping[str, Any]) -> str:
    """Return what a result says it changed, as one unified diff; empty when it says nothing.

    Of an environment it has the names only, since a value may be a secret; of the cluster's addresses all.
    """
    return "".join(_one_diff(diff) for diff in _diffs(res))


def _diffs(res: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for item in (res, *(r for r in res.get("results") or () if isinstance(r, Mapping))):
        diffs = item.get("diff")
        for diff in diffs if isinstance(diffs, list) else [diffs]:
            if isinstance(diff, Mapping):
                yield diff


def environment_values(res: Mapping[str, Any]) -> Iterator[str]:
    """Yield ``NAME=value`` for each variable that may be a secret in the diffs of a result."""
    for diff in _diffs(res):
        for side in (diff.get("before"), diff.get("after")):
            if isinstance(side, Mapping):
                env = _environment(side.get("env"))
                yield from (f"{name}={value}" for name, value in env.items() if name not in _NO_SECRETS)


def _environment(env: Any) -> dict[str, str]:
    """Return an environment that is a mapping, or a list of ``NAME=value``, as a mapping."""
    if isinstance(env, Mapping):
        return {str(name): str(value) for name, value in env.items()}
    if isinstance(env, (list, tuple)):
        return {name: value for name, _, value in (str(item).partition("=") for item in env)}
    return {}


def _environment_diff(before: Any, after: Any) -> Iterator[str]:
    """Yield a line for each variable that comes, goes or changes, without a value that may be a secret."""
    had, has = _environment(before), _environment(after)
    for name in dict.fromkeys([*had, *has]):
        if had.get(name) == has.get(name):
            continue
        for sign, side in (("-", had), ("+", has)):
            if name in side:
                other = "(another value)" if sign == "+" and name in had else "(hidden)"
                yield f"{sign}env.{name}: {side[name] if name in _NO_SECRETS else other}\n"


def _one_diff(diff: Mapping[str, Any]) -> str:
    if "prepared" in diff:
        return _ensure_newline(str(diff["prepared"]))
    if "before" not in diff and "after" not in diff:
        return ""
    if any(key in diff for key in ("src_binary", "dst_binary", "src_larger", "dst_larger")):
        return ""
    before, after = diff.get("before"), diff.get("after")
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        # Settings: only those that differ, one a line.
        had, has = (dict(_flat({k: v for k, v in side.items() if k != "env"})) for side in (before, after))
        differing = [key for key in dict.fromkeys([*had, *has]) if had.get(key) != has.get(key)]
        return "".join(
            f"{sign}{key}: {side[key]}\n"
            for key in differing
            for sign, side in (("-", had), ("+", has))
            if key in side
        ) + "".join(_environment_diff(before.get("env"), after.get("env")))
    name_before = str(diff.get("before_header") or "before")
    name_after = str(diff.get("after_header") or "after")
    return "".join(difflib.unified_diff(_lines(before), _lines(after), name_before, name_after, n=2))


def _flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        name = f"{above}.{key}" if above else str(key)
        if isinstance(value, Mapping) and value:
            yield from _flat(value, name)
        else:
            yield name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _lines(side: Any) -> list[str]:
    if side is None:
        return []
    text = side if isinstance(side, str) else json.dumps(side, indent=2, sort_keys=True, ensure_ascii=False)
    return _ensure_newline(text).splitlines(keepends=True)


def _ensure_newline(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"

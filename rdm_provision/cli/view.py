"""How things look in a terminal: live progress while a run works, and the tables and recaps after it."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.padding import Padding
from rich.segment import Segment
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from rdm_provision.cli.printable import printable
from rdm_provision.events import (
    Event,
    InProgress,
    NodeResult,
    NodeStarted,
    Notice,
    Output,
    PhaseStarted,
    Problem,
    Progress,
    RunFinished,
    RunResult,
    RunStarted,
    Status,
    TaskGoesOn,
    TaskStarted,
    WorkFound,
)
from rdm_provision.job_state import JobUpdate
from rdm_provision.run import Run

__all__ = ["View", "complain", "err", "heading", "no_echo", "out", "problems", "signals", "table", "watch"]

COMPACT_FROM = 21
"""From this many nodes on, progress shows counts instead of names."""
LONGEST_NAME = 24
"""Where a name is longer, too: it is in the recap, and with each failure."""
SHOWN = 20
"""How many nodes a recap lists before it sums up those that are well."""
DIFFS_SHOWN = 2
"""How many different diffs of one task are shown."""
_NO_NEWS = ("nothing is known of", "it follows ", "everything is to be looked at")
"""How the reasons begin that tell a person nothing."""
LINES_SHOWN = 40
"""How many lines of a diff are shown."""
_PLAIN_WIDTH = 160

_STYLE = {
    Status.OK: "green",
    Status.CHANGED: "yellow",
    Status.FAILED: "bold red",
    Status.UNREACHABLE: "bold magenta",
    Status.SKIPPED: "dim",
}
_SIGN = {
    Status.OK: "✔",
    Status.CHANGED: "✱",
    Status.FAILED: "✘",
    Status.UNREACHABLE: "⚡",
    Status.SKIPPED: "·",
}
_PLAIN_SIGN = {
    Status.OK: "+",
    Status.CHANGED: "*",
    Status.FAILED: "x",
    Status.UNREACHABLE: "!",
    Status.SKIPPED: ".",
}
_GRAVITY = (Status.SKIPPED, Status.OK, Status.CHANGED, Status.FAILED, Status.UNREACHABLE)


class _Console(Console):
    """A console that gives the terminal nothing of what others' programs wrote to obey."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield what is shown of something; its colours are this program's own, and no part of the text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    # Without a terminal there is no width to keep to, and a cut line is no use in a log.
    width = None if stream.isatty() else _PLAIN_WIDTH
    return _Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def out() -> Console:
    """Return the console of results (stdout)."""
    return _console(stderr=False)


def err() -> Console:
    """Return the console of progress and complaints (stderr)."""
    return _console(stderr=True)


def _sign(status: Status, console: Console) -> str:
    return (_SIGN if console.encoding.startswith("utf") else _PLAIN_SIGN)[status]


def seconds(value: float) -> str:
    """Return a duration for people: ``0.4 s``, ``12 s``, ``3 min 05 s``."""
    if value < 10:
        return f"{value:.1f} s"
    if value < 60:
        return f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02d} s"


def age(value: float) -> str:
    """Return a long duration for people, in one unit: ``40 s``, ``12 min``, ``3 h``, ``2 d``."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if value >= 2 * length:
            return f"{value // length:.0f} {unit}"
    return f"{max(0.0, value):.0f} s"


def count(number: int, noun: str) -> str:
    """Return ``1 node`` or ``3 nodes``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def names(items: Sequence[str], shown: int = 8) -> str:
    """Return ``a, b, c and 97 more``."""
    more = f" and {len(items) - shown} more" if len(items) > shown else ""
    return ", ".join(items[:shown]) + more


# --- progress -------------------------------------------------------------------------------------------


@dataclass
class _Phase:
    name: str
    began: float
    ended: float | None = None
    states: dict[str, Status] = field(default_factory=dict)

    def note(self, node: str, status: Status) -> Status:
        """Note a node's status unless worse is known; return what holds now."""
        self.states[node] = max(self.states.get(node, status), status, key=_GRAVITY.index)
        return self.states[node]

    def counts(self) -> Counter[Status]:
        return Counter(self.states.values())


class View:
    """What a run looks like while it works. Feed it events; it keeps the screen (or the log) up to date.

    On a terminal it redraws one line per phase; elsewhere it writes a line when a phase ends, one for a task
    that takes long, and one at once for each failure.
    """

    def __init__(
        self, console: Console, title: str, *, verbose: int = 0, brief: bool = False, about: str | None = None
    ) -> None:
        """Show a run.

        Args:
            console: where to.
            title: what stands above it.
            verbose: how many ``-v`` were given.
            brief: it is one step and its results say it all.
            about: what stands beside the title; by default how many nodes the run is on.
        """
        self.about = about
        self.console = console
        self.title = title
        self.verbose = verbose
        self.brief = brief and not verbose
        self.live = console.is_terminal and verbose < 2
        self.nodes: tuple[str, ...] = ()
        self.phases: list[_Phase] = []
        self.task = ""
        self.progress = ""
        self.busy: set[str] = set()
        self.work: Mapping[str, Mapping[str, Sequence[str]]] | None = None
        self.lost: set[str] = set()
        self.stopping = False
        self.verb = ""
        self.check = False
        self._began = time.monotonic()
        self._spinner = Spinner("dots")

    # What happens.

    def handle(self, event: Event) -> None:
        """Take note of an event."""
        match event:
            case RunStarted():
                self.nodes, self.verb, self.check = event.nodes, event.verb, event.check
                if not self.live and self.verbose < 2 and not self.brief:
                    self.console.print(self._head())
            case PhaseStarted():
                self._end_phase(event.at)
                self.phases.append(_Phase(event.phase, event.at))
            case WorkFound():
                self.work = event.work
            case TaskStarted():
                self.task, self.progress = event.task, ""
                self.busy.clear()
            case TaskGoesOn() if not self.live and self.verbose < 2 and not self.brief:
                self.console.print(Text(f"    {event.task}…", "dim"))
            case Progress():
                self._tell(event.text)
            case JobUpdate():
                self._tell(event.job.phase)
            case NodeStarted():
                self.busy.add(event.node)
            case NodeResult():
                self._node_result(event)
            case Notice() if self.verbose:
                self.console.print(Text.assemble(("warning: ", "yellow"), event.text))
            case Output():
                if self.verbose >= 2:
                    self.console.print(event.text, soft_wrap=True)
            case RunFinished():
                self._end_phase(event.at)

    def _tell(self, progress: str) -> None:
        """Show how far the task is; away from a terminal as a line, once."""
        if progress and progress != self.progress and not self.live and self.verbose < 2 and not self.brief:
            self.console.print(Text(f"    {progress}", "dim"))
        self.progress = progress or self.progress

    def _node_result(self, event: NodeResult) -> None:
        self.busy.discard(event.node)
        if event.refused:
            return
        status = Status.OK if event.ignored else event.status
        if status is Status.SKIPPED and not self._has_work(event.node, event.phase):
            return
        if self.phases:
            self.phases[-1].note(event.node, status)
        bad = status in (Status.FAILED, Status.UNREACHABLE)
        if bad:
            self.lost.add(event.node)
        if self.verbose >= 2 or self.brief:
            return
        if bad or (self.verbose and status is Status.CHANGED):
            line = Text("  ")
            line.append(f"{event.node} {status}", _STYLE[status])
            line.append(f"  {event.phase}: {event.task}", "dim")
            self.console.print(line)
            if event.message:
                self.console.print(Padding(Text(event.message), (0, 0, 0, 4), expand=False))

    def _has_work(self, node: str, phase: str) -> bool:
        """Whether a node has something to do in a phase; every node has, where nobody has looked."""
        known = self.work is not None and any(phase in roles for roles in self.work.values())
        return not known or phase in (self.work or {}).get(node, {})

    def _end_phase(self, at: float) -> None:
        if not self.phases or self.phases[-1].ended is not None:
            return
        phase = self.phases[-1]
        phase.ended = at
        if not self.live and self.verbose < 2 and not self.brief:
            self.console.print(self._line(phase))

    # What it looks like.

    def _head(self) -> Text:
        what = f"{self.verb} {self.title}" + (" (nothing is changed)" if self.check else "")
        about = count(len(self.nodes), "node") if self.about is None else self.about
        return Text.assemble((what, "bold"), (f"  {about}", "dim"))

    def _line(self, phase: _Phase) -> Text:
        ended = phase.ended if phase.ended is not None else time.monotonic() - self._began
        text = Text(f"  {phase.name:<14} {seconds(ended - phase.began):>8}   ")
        width = sum(len(name) + 4 for name in self.nodes)
        short = all(len(name) <= LONGEST_NAME for name in self.nodes)
        if len(self.nodes) < COMPACT_FROM and short and width < self.console.width - len(text):
            for node in self.nodes:
                status = phase.states.get(node)
                working = node in self.busy and phase is self.phases[-1]
                if working or status is None:
                    text.append(f"{'…' if working else ' '} {node}  ", "dim")
                else:
                    text.append(f"{_sign(status, self.console)} {node}  ", _STYLE[status])
            return text
        counts = phase.counts()
        parts = [(f"{counts[s]} {s}", _STYLE[s]) for s in reversed(_GRAVITY) if counts[s]]
        done = {*phase.states, *self.lost}
        waiting = sum(node not in done and self._has_work(node, phase.name) for node in self.nodes)
        if waiting and phase.ended is None:
            parts.append((f"{waiting} to go", "dim"))
        for index, (part, style) in enumerate(parts):
            text.append(", " if index else "").append(part, style)
        return text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the whole progress display."""
        head = self._head()
        head.append(f"  {seconds(time.monotonic() - self._began)}", "dim")
        yield head
        for phase in self.phases:
            yield self._line(phase)
        if self.phases and self.phases[-1].ended is None:
            doing = "stopping after this step (Ctrl-C again kills it)" if self.stopping else self.task
            waiting = (
                f"  {names(sorted(self.busy), 4)}" if self.busy and len(self.busy) < len(self.nodes) else ""
            )
            self._spinner.update(
                text=Text.assemble(
                    (doing, "yellow" if self.stopping else ""),
                    (f"  {self.progress}" if self.progress else "", "cyan"),
                    (waiting, "dim"),
                )
            )
            yield Padding(self._spinner, (0, 0, 0, 2))


def watch(
    run: Run,
    title: str,
    *,
    verbose: int = 0,
    silent: bool = False,
    brief: bool = False,
    about: str | None = None,
) -> RunResult:
    """Carry a run out to its end, showing it on stderr, and return its result.

    Ctrl-C and the signals that ask a program to end stop the run in an orderly way; a second one kills it.

    Args:
        run: not yet started.
        title: what stands above it.
        verbose: how many ``-v`` were given.
        silent: show nothing.
        brief: leave no progress behind, for runs of one step.
        about: what stands beside the title; by default how many nodes the run is on.
    """
    console = err()
    view = View(console, title, verbose=verbose, brief=brief, about=about)

    def stop(_number: int, _frame: Any) -> None:
        if not silent and not view.live and not view.stopping:
            console.print("Stopping after this step; once more kills it.")
        view.stopping = True
        run.cancel()

    with signals(stop), contextlib.ExitStack() as stack:
        run.start()
        if not silent and view.live:
            stack.enter_context(no_echo())
            stack.enter_context(Live(view, console=console, refresh_per_second=8, transient=view.brief))
        for event in run:
            if not silent:
                view.handle(event)
    return run.result()


@contextlib.contextmanager
def signals(handler: Any) -> Iterator[None]:
    """Have a handler called by the signals that ask a program to end."""
    wanted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        # It is ignored under nohup, which means that the run is to go on.
        wanted.append(signal.SIGHUP)
    try:
        before = {number: signal.signal(number, handler) for number in wanted}
    except ValueError:
        # Not in the main thread, where signals do not come anyway.
        yield
        return
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextlib.contextmanager
def no_echo() -> Iterator[None]:
    """Keep what is typed, and what Ctrl-C throws away, from spoiling the live display."""
    import termios

    try:
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
    except (termios.error, OSError, ValueError):
        yield
        return
    quiet = [*before]
    quiet[3] = (quiet[3] & ~termios.ECHO) | termios.NOFLSH
    termios.tcsetattr(terminal, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)


# --- building blocks -------------------------------------------------------------------------------------


def heading(console: Console, text: str, aside: str = "") -> None:
    """Print a heading with an empty line before it."""
    console.print()
    console.print(Text.assemble((text, "bold"), (f"  {aside}" if aside else "", "dim")))


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    """Return an empty table in the style of all our tables.

    Args:
        columns: their headings.
        right: those that hold numbers.
    """
    made = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim", show_edge=False)
    for column in columns:
        made.add_column(
            column,
            justify="right" if column in right else "left",
            overflow="fold",
            no_wrap=column in ("node", "MY_IP", "result"),
        )
    return made


def show(console: Console, made: Table) -> None:
    """Print a table, indented."""
    console.print(Padding(made, (0, 0, 0, 2), expand=False))


def bullet(console: Console, text: Text, style: str = "") -> None:
    """Print an item of a list; on a terminal its further lines are indented, in a log it stays one line."""
    if not console.is_terminal:
        console.print(Text.assemble("  - ", text), soft_wrap=True)
        return
    grid = Table.grid()
    grid.add_row(Text("  - ", style), text)
    console.print(grid)


def complain(message: str) -> None:
    """Print an error on stderr."""
    err().print(Text.assemble(("Error: ", "bold red"), message), soft_wrap=True)


def problems(console: Console, found: Iterable[Problem]) -> None:
    """Print each problem on a line of its own; nodes that share one share the line."""
    for (value, reason, remedy), nodes in _shared(found).items():
        line = Text()
        if nodes:
            line.append(names(nodes), "bold").append(": ")
        line.append(value, "yellow" if value else "")
        line.append(f" {reason}" if value and reason else reason)
        if remedy:
            line.append(": ").append(remedy, "green")
        bullet(console, line)


def _shared(found: Iterable[Problem]) -> dict[tuple[str, str, str], list[str]]:
    """The nodes of each different problem."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for problem in found:
        nodes = grouped.setdefault((problem.value, problem.reason, problem.remedy), [])
        if problem.node:
            nodes.append(problem.node)
    return grouped


# --- after a run ------------------------------------------------------------------------------------------


def unhappy_end(result: RunResult) -> bool:
    """Say so when a run was refused, was stopped, or failed as a whole; True when that was all there is."""
    console = err()
    if result.cancelled:
        console.print()
        console.print(Text("Stopped.", "bold yellow"))
        _in_progress(console, result.in_progress)
        console.print("What was done stays done; run it again to go on from there.")
        return True
    if result.refused:
        console.print()
        what = count(len(_shared(result.problems)), "problem")
        before = "a container was touched" if result.changed else "anything was changed"
        console.print(Text.assemble((f"Refused before {before}: ", "bold red"), what))
        problems(console, result.problems)
        warnings(console, result)
        return True
    if result.message:
        console.print()
        complain(result.message)
        if result.record is not None:
            console.print(Text(f"ansible-playbook's own words: {result.record / 'ansible.log'}", "dim"))
        return not any(recap.ok for recap in result.nodes.values())
    return False


def _in_progress(console: Console, running: Sequence[InProgress]) -> None:
    by_task: dict[tuple[str, str], list[str]] = {}
    for item in running:
        by_task.setdefault((item.phase, item.task), []).append(item.node)
    for (phase, task), nodes in by_task.items():
        console.print(f"  in progress: {phase}: {task} ({names(nodes)})")


def recap(console: Console, result: RunResult) -> None:
    """Print how the run went on each node, how long each phase took, and the warnings."""
    planned = (result.plan or {}).get("nodes", {})
    reasons = any(node.why for node in result.nodes.values())
    heading(console, f"{result.verb}: {_verdict(result)}", f"in {seconds(result.seconds)}")
    columns = ["node", *(["MY_IP"] if planned else []), "result", "tasks", "changes"]
    made = table(*columns, *(["why"] if reasons else []), right=("tasks", "changes"))
    well = 0
    for name, node in result.nodes.items():
        bad = node.status in (Status.FAILED, Status.UNREACHABLE)
        if not bad and len(result.nodes) > SHOWN:
            well += 1
            continue
        cells: list[str | Text] = [name]
        if planned:
            cells.append(str(planned.get(name, {}).get("my_ip", "")))
        word = "would change" if result.check and node.status is Status.CHANGED else str(node.status)
        cells.append(Text(f"{_sign(node.status, console)} {word}", _STYLE[node.status]))
        cells += [str(node.ok + node.changed + node.failed), str(node.changed)]
        if reasons:
            cells.append(f"{node.phase}: {node.why}" if node.phase and node.why else node.why)
        made.add_row(*cells)
    if made.row_count:
        show(console, made)
    if well:
        console.print(f"  {count(well, 'node')} {'are' if well > 1 else 'is'} well.")
    if result.phases:
        times = ", ".join(f"{phase.phase} {seconds(phase.seconds)}" for phase in result.phases)
        console.print(Padding(Text(times, "dim"), (0, 0, 0, 2), expand=False))
    warnings(console, result)


def found(console: Console, result: RunResult) -> None:
    """Print why there was something to do, the nodes with the same reason together.

    Nodes of which nothing was known, and roles that only follow another, are passed over.
    """
    by_reason: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for node, roles in result.work.items():
        for phase, reasons in roles.items():
            for reason in reasons:
                if not reason.startswith(_NO_NEWS):
                    nodes, phases = by_reason.setdefault(reason, ({}, {}))
                    nodes[node] = phases[phase] = None
    if not by_reason:
        return
    heading(console, "What was found")
    for reason, (nodes, phases) in list(by_reason.items())[:SHOWN]:
        line = Text.assemble("  ", (names(list(nodes)), "bold"), f"  {reason}")
        console.print(line.append(f"  {', '.join(phases)}", "dim"), soft_wrap=True)
    if len(by_reason) > SHOWN:
        console.print(f"  … and {count(len(by_reason) - SHOWN, 'more reason')}")


def warnings(console: Console, result: RunResult) -> None:
    """Print the warnings of a run, each once."""
    if result.warnings:
        heading(console, "Warnings")
        for warning in result.warnings:
            bullet(console, Text(warning), "yellow")


def _verdict(result: RunResult) -> str:
    bad = [
        (len(result.failed), "failed"),
        (len(result.unreachable), "unreachable"),
    ]
    if any(number for number, _ in bad):
        return ", ".join(f"{count(number, 'node')} {word}" for number, word in bad if number)
    if not result.changed:
        return "nothing to change" if result.verb != "verify" else "done"
    return f"{count(len(result.changed), 'node')} {'would change' if result.check else 'changed'}"


def next_steps(console: Console, lines: Sequence[tuple[str, str]]) -> None:
    """Print commands that make sense now: (what for, command)."""
    if not lines:
        return
    heading(console, "Next")
    width = max(len(command) for _, command in lines)
    for purpose, command in lines:
        console.print(
            Text.assemble("  ", (command.ljust(width), "cyan"), (f"   {purpose}", "dim")), soft_wrap=True
        )


def mend(result: RunResult, command: str, *, whole: bool = False) -> list[tuple[str, str]]:
    """Return what to do when nodes failed: run the same again, and look.

    Args:
        result: of the run.
        command: the command line that was run.
        whole: run it for all nodes, and not for those that failed alone.
    """
    again = command
    bad = [*result.failed, *result.unreachable]
    if not whole and 0 < len(bad) <= 8 and len(bad) < len(result.nodes):
        again += f" --limit {','.join(bad)}"
    steps = [("when it is mended, again", again)]
    if result.record is not None:
        steps.append(("what Ansible said", f"less {result.record / 'ansible.log'}"))
    return steps


def what_runs(console: Console, running: Sequence[Sequence[str]]) -> None:
    """Print what runs where: lines of node, container, image, address."""
    if not running:
        return
    heading(console, "What runs where")
    made = table("node", "container", "image", "MY_IP")
    for line in running[:SHOWN]:
        made.add_row(*line)
    show(console, made)
    if len(running) > SHOWN:
        console.print(f"  … and {count(len(running) - SHOWN, 'more node')}")


def drift(console: Console, result: RunResult, *, everything: bool = False) -> None:
    """Print what would change, in the order of the run, nodes with the same change together.

    Args:
        console: where to.
        result: of a check.
        everything: do not cut short the many nodes that differ in the same way, and long new files.
    """
    grouped: dict[tuple[str, str], dict[str, list[str]]] = {}
    for name, node in result.nodes.items():
        for change in node.changes:
            grouped.setdefault((change.phase, change.task), {}).setdefault(change.diff, []).append(name)
    order = {phase.phase: rank for rank, phase in enumerate(result.phases)}
    cut = False
    for (phase, task), diffs in sorted(grouped.items(), key=lambda item: order.get(item[0][0], 0)):
        shown = list(diffs.items()) if everything else list(diffs.items())[:DIFFS_SHOWN]
        for diff, nodes in shown:
            console.print()
            console.print(Text.assemble((names(nodes), "bold"), f"  {phase}: {task}"))
            lines = diff.splitlines()
            for line in lines if everything else lines[:LINES_SHOWN]:
                console.print(Text.assemble("  ", (line, _diff_style(line))), soft_wrap=True)
            if not everything and len(lines) > LINES_SHOWN:
                cut = True
                console.print(Text(f"  … {count(len(lines) - LINES_SHOWN, 'more line')}", "dim"))
        if others := [name for diff, nodes in list(diffs.items())[len(shown) :] for name in nodes]:
            cut = True
            console.print(Text.assemble("\n", (names(others, 3), "bold"), "  likewise"))
    if cut:
        console.print(Text("\nAll lines of all nodes: add -v, or --json", "dim"))


def _diff_style(line: str) -> str:
    if line.startswith(("+++", "---")):
        return "bold"
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "dim")

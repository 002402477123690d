"""Live progress of a run."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.padding import Padding
from rich.spinner import Spinner
from rich.text import Text

from rdm_provision.cli.render.commands import with_inventory
from rdm_provision.cli.render.view import STYLE, count, err, seconds, sign
from rdm_provision.results.events import (
    Event,
    NodeResult,
    NodeStarted,
    Notice,
    Output,
    PhaseStarted,
    Progress,
    RunFinished,
    RunResult,
    RunStarted,
    Status,
    TaskGoesOn,
    TaskStarted,
    WorkFound,
)
from rdm_provision.results.job_state import JobUpdate
from rdm_provision.runner.run import Run
from rdm_provision.wording import names

COMPACT_FROM = 21
"""From this many nodes on, progress shows counts instead of names."""
LONGEST_NAME = 24
"""Longer names are shown as counts, too; the recap and each failure have them in full."""
_GRAVITY = (Status.SKIPPED, Status.OK, Status.CHANGED, Status.FAILED, Status.UNREACHABLE)


@dataclass
class _Phase:
    name: str
    began: float
    ended: float | None = None
    states: dict[str, Status] = field(default_factory=dict)

    def note(self, node: str, status: Status) -> Status:
        """Note a node's status unless a worse one is known; return its status now."""
        self.states[node] = max(self.states.get(node, status), status, key=_GRAVITY.index)
        return self.states[node]

    def counts(self) -> Counter[Status]:
        return Counter(self.states.values())


class View:
    """The progress display of a run. Feed it events; it keeps the screen (or the log) up to date.

    On a terminal it redraws one line per phase. Elsewhere it writes a line when a phase ends, when a task
    takes long, and for each failure.
    """

    def __init__(
        self, console: Console, title: str, *, verbose: int = 0, brief: bool = False, about: str | None = None
    ) -> None:
        """Show a run.

        Args:
            console: where to.
            title: the heading.
            verbose: how many ``-v`` were given.
            brief: the run is one step, and its results say it all.
            about: text after the title; by default the number of nodes.
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

    # --- events

    def handle(self, event: Event) -> None:
        """Update the display for an event."""
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
            case TaskGoesOn() if not self.live and self.verbose < 2 and self.verb != "exec":
                # With exec, this follows the command's stderr.
                self.console.print(Text(f"    {event.task}…", "dim"))
            case Progress():
                self._print_progress(event.text)
            case JobUpdate():
                self._print_progress(event.job.phase)
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

    def _print_progress(self, progress: str) -> None:
        """Show a task's progress; without a terminal as one line."""
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
            line.append(f"{event.node} {status}", STYLE[status])
            line.append(f"  {event.phase}: {event.task}", "dim")
            self.console.print(line)
            if event.message:
                self.console.print(Padding(Text(with_inventory(event.message)), (0, 0, 0, 4), expand=False))

    def _has_work(self, node: str, phase: str) -> bool:
        """Whether a node has work in a phase; before the work is known, every node has."""
        known = self.work is not None and any(phase in roles for roles in self.work.values())
        return not known or phase in (self.work or {}).get(node, {})

    def _end_phase(self, at: float) -> None:
        if not self.phases or self.phases[-1].ended is not None:
            return
        phase = self.phases[-1]
        phase.ended = at
        if not self.live and self.verbose < 2 and not self.brief:
            self.console.print(self._line(phase))

    # --- display

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
                    text.append(f"{sign(status, self.console)} {node}  ", STYLE[status])
            return text
        counts = phase.counts()
        parts = [(f"{counts[s]} {s}", STYLE[s]) for s in reversed(_GRAVITY) if counts[s]]
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
    """Run to the end, showing progress on stderr, and return the result.

    Ctrl-C and the signals that end a program stop the run in an orderly way; a second one kills it.

    Args:
        run: not yet started.
        title: the heading.
        verbose: how many ``-v`` were given.
        silent: show nothing.
        brief: leave no progress on the screen, for runs of one step.
        about: text after the title; by default the number of nodes.
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
    """Install a handler for the signals that end a program."""
    wanted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        # nohup ignores SIGHUP, so that the run goes on.
        wanted.append(signal.SIGHUP)
    try:
        before = {number: signal.signal(number, handler) for number in wanted}
    except ValueError:
        # Only the main thread may install handlers.
        yield
        return
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextlib.contextmanager
def no_echo() -> Iterator[None]:
    """Keep typed characters, and those that Ctrl-C discards, out of the live display."""
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

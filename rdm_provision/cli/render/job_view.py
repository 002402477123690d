# SPDX-License-Identifier: GPL-3.0-or-later
"""A training job in a terminal: live while it is watched, and its end."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from rdm_provision.cli.render import live, view
from rdm_provision.cli.render.commands import with_inventory
from rdm_provision.cli.render.curve import curve
from rdm_provision.cli.render.printable import printable
from rdm_provision.results.events import Event, RunResult
from rdm_provision.results.job_state import JobLines, JobState, JobUpdate, JobVerdict
from rdm_provision.runner.run import Run
from rdm_provision.wording import names

COMPACT_FROM = 17
"""From this many nodes on, the live display shows counts instead of names."""
CURVE_HEIGHT = 10
_BAR = 32
_VARYING = re.compile(
    r"^\[?(?:rank|default)?\d+\]?:|\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?|"
    r"\bpid[ =:]*\d+|:\d+:\d+ (?=\[)"
)
"""What differs when ranks write the same line."""
_WELL = ("starting", "healthy", "finished")
_STYLES = {
    "queued": "yellow",
    "starting": "cyan",
    "running": "cyan",
    "restarting": "yellow",
    "stopping": "yellow",
    "finished": "green",
    "failed": "bold red",
    "stopped": "yellow",
    "waiting": "dim",
    "done": "green",
    "lost": "bold magenta",
    "healthy": "green",
    "stalled": "bold red",
    "suspect": "bold yellow",
}
_SIGNS = {"waiting": "…", "running": "●", "done": "✔", "failed": "✘", "lost": "⚡", "stopped": "■"}
_PLAIN_SIGNS = {"waiting": ".", "running": "*", "done": "+", "failed": "x", "lost": "!", "stopped": "-"}


def style(state: str) -> str:
    """Return the colour of a job's or a node's state, or of a verdict."""
    return _STYLES.get(state, "dim")


def verdict(found: JobVerdict, before: str = "") -> Text:
    """Return a verdict in one line."""
    return Text.assemble((before, "bold"), (found.verdict, style(found.verdict)), f"  {found.reason}")


def rate(tokens: float | None) -> str:
    """Return a speed for people: ``950 tokens/s``, ``12.3 k tokens/s``."""
    if tokens is None:
        return ""
    for factor, unit in ((1e6, "M "), (1e3, "k ")):
        if tokens >= factor:
            return f"{tokens / factor:.1f} {unit}tokens/s"
    return f"{tokens:.0f} tokens/s"


def figures(state: JobState) -> list[str]:
    """Return a job's progress: iteration, loss and speed, as far as known."""
    shown = []
    if state.train_iterations:
        shown.append(f"{state.iteration}/{state.train_iterations}")
    elif state.iteration:
        shown.append(f"iteration {state.iteration}")
    if state.loss is not None:
        shown.append(f"loss {state.loss:.4f}")
    if state.tokens_per_second:
        shown.append(rate(state.tokens_per_second))
    elif state.step_seconds:
        shown.append(f"{state.step_seconds:.2f} s a step")
    return shown


class JobView:
    """A watched job: a progress bar, figures and its nodes. Without a terminal, a line for each step."""

    def __init__(self, console: Console, title: str, *, brief: bool = False) -> None:
        """Show a job of a cluster; `brief` if it is started and not watched."""
        self.console = console
        self.live = console.is_terminal
        self.state: JobState | None = None
        self.leaving = False
        self.brief = brief
        self._setting_up = live.View(console, title, brief=brief)
        self._printed = ""
        self._evaluated = ""
        self._seen_at = time.monotonic()

    def handle(self, event: Event) -> None:
        """Update the display for an event."""
        if not isinstance(event, JobUpdate):
            if self.state is None:
                self._setting_up.handle(event)
            return
        if self.brief:
            return
        self.state = event.job
        self._seen_at = time.monotonic()
        self._print_verdict(event.job)
        if not self.live:
            line = self._plain_line(event.job)
            if line != self._printed:
                self.console.print(line, soft_wrap=True)
                self._printed = line

    def _print_verdict(self, state: JobState) -> None:
        """Print a line when the verdict changes."""
        found = state.verdict
        word = found.verdict if found is not None else ""
        before, self._evaluated = self._evaluated, word or self._evaluated
        # The display already shows start, progress and end.
        if found is None or word == before or (before in ("", "starting") and word in _WELL) or state.ended:
            return
        self.console.print(verdict(found, f"{state.job}  "), soft_wrap=True)
        for sentence in found.evidence[1:]:
            self.console.print(Text(f"  {sentence}", "dim"), soft_wrap=True)

    def _plain_line(self, state: JobState) -> str:
        parts = [state.job, state.state, *figures(state)]
        lost = [node.name for node in state.nodes if node.state in ("failed", "lost")]
        if lost:
            parts.append(f"failed: {names(lost)}")
        if state.state == "queued" and state.reason:
            parts.append(state.reason)
        return "  ".join(parts)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the whole display."""
        if self.state is None:
            yield self._setting_up
            return
        state = self.state
        head = Text.assemble((state.job, "bold"), "  ", (state.state, style(state.state)))
        if state.restarts:
            head.append(f"  restarted {view.count(state.restarts, 'time')}", "yellow")
        if state.seconds is not None:
            since = 0.0 if state.ended else time.monotonic() - self._seen_at
            head.append(f"  {view.seconds(state.seconds + since)}", "dim")
        yield head
        if state.state == "queued" and state.reason:
            yield Padding(Text(state.reason, style(state.state)), (0, 0, 0, 2), expand=False)
        yield Padding(self._bar(state), (0, 0, 0, 2), expand=False)
        yield Padding(self._nodes(state), (0, 0, 0, 2), expand=False)
        if state.verdict is not None and state.verdict.verdict not in _WELL:
            yield Padding(verdict(state.verdict), (0, 0, 0, 2), expand=False)
        hint = "leaving; the job goes on" if self.leaving else "Ctrl-C stops watching, not the job"
        yield Padding(Text(hint, "dim"), (0, 0, 0, 2), expand=False)

    def _bar(self, state: JobState) -> Text:
        share = min(1.0, state.iteration / state.train_iterations) if state.train_iterations else 0.0
        full = round(share * _BAR)
        solid = "━" if self.console.encoding.startswith("utf") else "="
        line = Text(solid * full, "green").append(solid * (_BAR - full), "bright_black")
        for part in figures(state):
            line.append(f"   {part}", "default")
        if state.remaining is not None and state.state == "running":
            line.append(f"   {view.seconds(state.remaining)} to go", "dim")
        return line

    def _nodes(self, state: JobState) -> Text:
        signs = _SIGNS if self.console.encoding.startswith("utf") else _PLAIN_SIGNS
        text = Text()
        if len(state.nodes) < COMPACT_FROM:
            for node in state.nodes:
                text.append(f"{signs.get(node.state, '?')} {node.name}  ", style(node.state))
            return text
        counts: dict[str, int] = {}
        for node in state.nodes:
            counts[node.state] = counts.get(node.state, 0) + 1
        for index, (name, number) in enumerate(counts.items()):
            text.append(", " if index else "").append(f"{number} {name}", style(name))
        return text


def watch(
    run: Run, title: str, *, silent: bool = False, brief: bool = False
) -> tuple[RunResult, JobState | None]:
    """Run to the end, showing the job on stderr.

    Ctrl-C and the signals that end a program end the watching, not the job.

    Args:
        run: not yet started.
        title: the cluster's name.
        silent: show nothing.
        brief: leave nothing on the screen, for runs that only query.

    Returns:
        The run's result and the job's last state.
    """
    console = view.err()
    shown = JobView(console, title, brief=brief)

    def leave(_number: int, _frame: Any) -> None:
        shown.leaving = True
        run.cancel()

    with live.signals(leave), contextlib.ExitStack() as stack:
        run.start()
        if not silent and shown.live:
            stack.enter_context(live.no_echo())
            stack.enter_context(Live(shown, console=console, refresh_per_second=4, transient=True))
        for event in run:
            if not silent:
                shown.handle(event)
            if isinstance(event, JobUpdate):
                shown.state = event.job
    return run.result(), shown.state


def read(run: Run, *, follow: bool = False) -> tuple[RunResult, dict[str, str]]:
    """Run a run that reads a job's logs. Ctrl-C ends it.

    Args:
        run: not yet started.
        follow: print lines as they come, instead of returning them.

    Returns:
        The result, and the text by node, in the order of ranks.
    """
    texts: dict[str, str] = dict.fromkeys(run.spec.nodes, "")

    def leave(_number: int, _frame: Any) -> None:
        run.cancel()

    with live.signals(leave):
        for event in run:
            if isinstance(event, JobLines) and follow:
                lines(event.node, event.text, run.spec.nodes)
            elif isinstance(event, JobLines):
                texts[event.node] = texts.get(event.node, "") + event.text
    return run.result(), texts


def lines(node: str, text: str, nodes: Sequence[str]) -> None:
    """Print a job's lines of a node, with the node's name before each unless it is the only node."""
    width = max(len(name) for name in (*nodes, node))
    prefix = "" if tuple(nodes) == (node,) else f"{node:<{width}}  "
    sys.stdout.writelines(f"{prefix}{line}\n" for line in map(printable, text.splitlines()))
    sys.stdout.flush()


def folded(texts: Mapping[str, str]) -> list[str]:
    """Return each different line of a job once, in order, with how often and where it was written.

    Lines that differ only in rank prefix, process numbers and times are the same.
    """
    found: dict[str, tuple[str, dict[str, int]]] = {}
    for node, text in texts.items():
        for line in map(printable, text.splitlines()):
            _, counts = found.setdefault(_VARYING.sub("#", line), (line, {}))
            counts[node] = counts.get(node, 0) + 1
    shown = []
    for line, counts in found.values():
        total = sum(counts.values())
        where = names(list(counts), 4)
        shown.append(f"{line}  [{total} times, {where}]" if total > 1 else f"{line}  [{where}]")
    return shown


def ending(console: Console, state: JobState) -> None:
    """Print how a job ended: its curve, end, failures, and where its files are."""
    for block in _blocks(console, state):
        console.print()
        console.print(block)
    failures(console, state)
    view.heading(console, "Where")
    made = view.table("", "")
    made.show_header = False
    for name, path in state.places():
        made.add_row(Text(name, "dim"), path)
    view.show(console, made)


def _blocks(console: Console, state: JobState) -> Iterator[Any]:
    utf = console.encoding.startswith("utf")
    lines = curve(state.losses, min(console.width - 4, 84), CURVE_HEIGHT, braille=utf)
    if lines:
        first, last = state.losses[0], state.losses[-1]
        title = f"loss {first[1]:.3f} at iteration {first[0]}, {last[1]:.3f} at {last[0]}"
        body = [Padding(Text(line, "cyan"), (0, 0, 0, 2), expand=False) for line in lines]
        yield Group(Text(title, "bold"), *body)
    end = Text.assemble((state.job, "bold"), "  ", (state.state, style(state.state)))
    for part in figures(state):
        end.append(f"   {part}")
    if state.seconds is not None:
        end.append(f"   in {view.seconds(state.seconds)}", "dim")
    yield end
    # How and why it ended is shown already; doubts about its result are not.
    if state.verdict is not None and (not state.ended or state.verdict.verdict == "suspect"):
        others = [Text(f"  {sentence}", "dim") for sentence in state.verdict.evidence[1:]]
        yield Group(verdict(state.verdict), *others)


def started(console: Console, state: JobState, flag: str) -> None:
    """Print that a job has been started and goes on by itself."""
    console.print(Text.assemble((state.job, "bold"), "  ", (state.state, style(state.state))))
    view.next_steps(console, next_steps(state, flag))


def left(console: Console, state: JobState, flag: str) -> None:
    """Print that a job is no longer watched, and goes on."""
    console.print()
    console.print(Text(f"No longer watched. {state.job} goes on.", "bold yellow"))
    view.next_steps(console, next_steps(state, flag))


def next_steps(state: JobState, flag: str) -> list[tuple[str, str]]:
    """Return commands that make sense now: (what for, command)."""
    logs = ("what it wrote", f"rdm-provision logs{flag} {state.job}")
    if not state.ended:
        return [
            ("watch it", f"rdm-provision jobs{flag} {state.job} --watch"),
            logs,
            ("stop it", f"rdm-provision stop{flag} {state.job}"),
        ]
    # Only a job that trains steps has this key.
    longer = state.state == "finished" and state.train_iterations
    more = "optimisation.train_iterations=N" if longer else ""
    again = f"rdm-provision train{flag} --resume {state.job} {more}".rstrip()
    if state.state == "failed":
        logs = ("what went wrong", f"rdm-provision logs{flag} {state.job} --err")
    return [("go on with it from its newest checkpoint", again), logs]


def unanswered(console: Console, result: RunResult) -> None:
    """Print which nodes did not answer, and why."""
    for name, node in result.nodes.items():
        if node.why:
            console.print(Text.assemble((name, "bold red"), f"  {with_inventory(node.why)}"), soft_wrap=True)


def failures(console: Console, state: JobState) -> None:
    """Print why a job did not end well: the reason, then each failure with its last words."""
    # Of a job that has not ended, the verdict is shown already.
    is_shown = not state.ended and state.verdict is not None and state.verdict.reason == state.reason
    if state.reason and not is_shown and state.state in ("failed", "stopped", "restarting", "queued"):
        console.print(Text(f"  {state.reason}", style(state.state)), soft_wrap=True)
    for failure in state.failures:
        console.print()
        where = f"rank {failure.rank} on {failure.node}" if failure.rank is not None else failure.node
        console.print(Text.assemble("  ", (where, "bold"), f"  {failure.reason}"), soft_wrap=True)
        for line in failure.lines:
            console.print(Text(f"    {line}", "dim"), soft_wrap=True)


def table(console: Console, jobs: Sequence[JobState], now: float) -> None:
    """Print a line for each job, the newest first."""
    titles = ("job", "state", "verdict", "iteration", "loss", "nodes", "started")
    made = view.table(*titles, right=("iteration", "loss"))
    for state in jobs:
        made.add_row(
            state.job,
            Text(state.state, style(state.state)),
            Text(state.verdict.verdict, style(state.verdict.verdict)) if state.verdict else "-",
            f"{state.iteration}/{state.train_iterations}" if state.train_iterations else "-",
            f"{state.loss:.4f}" if state.loss is not None else "-",
            names([node.name for node in state.nodes], 4),
            f"{view.age(now - state.started)} ago" if state.started else "-",
        )
    view.show(console, made)

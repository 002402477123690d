"""Output on a terminal: tables, errors, recaps. Live progress is in live.py."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from rdm_provision.cli.render.commands import with_inventory
from rdm_provision.cli.render.printable import printable
from rdm_provision.problem import Problem
from rdm_provision.results.events import InProgress, RunResult, Status
from rdm_provision.wording import names

SHOWN = 20
"""How many nodes a recap lists before it only counts those that are ok."""
DIFFS_SHOWN = 2
"""How many different diffs of a task are shown."""
_NO_NEWS = ("nothing is known of", "it follows ", "all roles check again")
"""How reasons begin that are no news to a person."""
LINES_SHOWN = 40
"""How many lines of a diff are shown."""
_PLAIN_WIDTH = 160
_INDENT, _GAP = 2, 3
"""Characters before a table, and between two of its columns."""

STYLE = {
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


class _Console(Console):
    """A console that removes control characters from other programs' output."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments without control characters. Our own colours are not part of the text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    # Without a terminal no width limits a line, and a cut line is useless in a log.
    width = None if stream.isatty() else _PLAIN_WIDTH
    return _Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def out() -> Console:
    """Return the console for results (stdout)."""
    return _console(stderr=False)


def err() -> Console:
    """Return the console for progress and errors (stderr)."""
    return _console(stderr=True)


def sign(status: Status, console: Console) -> str:
    """Return the sign of a status, in characters that the console can show."""
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


def _hidden(console: Console, number: int, noun: str) -> None:
    """Print how many lines of a list are not shown, if any."""
    if number > 0:
        console.print(f"  … and {count(number, noun)}")


# --- building blocks -------------------------------------------------------------------------------------


def heading(console: Console, text: str, aside: str = "") -> None:
    """Print a heading with an empty line before it."""
    console.print()
    console.print(Text.assemble((text, "bold"), (f"  {aside}" if aside else "", "dim")))


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    """Return an empty table in our style.

    Args:
        columns: their headings.
        right: those aligned right, such as numbers.
    """
    made = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim", show_edge=False)
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
    text = _text(made, console)
    if text is None:
        console.print(Padding(made, (0, 0, 0, _INDENT), expand=False))
    else:
        console.print(text, soft_wrap=True)


def _text(made: Table, console: Console) -> Text | None:
    """Return a table as one text if each row fits in a line, else None.

    Rich lays out every cell on its own, which takes 1.5 CPU s for 1,000 nodes; the text is the same.
    """
    columns = []
    for column in made.columns:
        given = [Text(str(column.header), "dim"), *column.cells]
        cells = [Text(it) if isinstance(it, str) else it for it in given if isinstance(it, (str, Text))]
        if len(cells) < len(given) or not all(cell.plain.isprintable() for cell in cells):
            return None
        columns.append(cells)
    widths = [max(cell.cell_len for cell in cells) for cells in columns]
    if min(widths) < 1 or _INDENT + sum(widths) + _GAP * (len(widths) - 1) > console.width:
        return None
    right = [column.justify == "right" for column in made.columns]
    text = Text()
    for row in zip(*columns, strict=True):
        text.append("\n" if text else "")
        gap = _INDENT
        for cell, width, to_the_right in zip(row, widths, right, strict=True):
            free = width - cell.cell_len
            text.append(" " * (gap + (free if to_the_right else 0))).append_text(cell)
            gap = _GAP + (0 if to_the_right else free)
        text.append(" " * (gap - _GAP))
    return text


def bullet(console: Console, text: Text, style: str = "") -> None:
    """Print a list item; on a terminal continuation lines are indented, in a log it is one line."""
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
    """Print each problem on a line; nodes with the same problem share the line."""
    for (value, reason, hint), nodes in _shared(found).items():
        line = Text()
        if nodes:
            line.append(names(nodes), "bold").append(": ")
        line.append(value, "yellow" if value else "")
        reason = with_inventory(reason)
        line.append(f" {reason}" if value and reason else reason)
        if hint:
            line.append(": ").append(with_inventory(hint), "green")
        bullet(console, line)


def _shared(found: Iterable[Problem]) -> dict[tuple[str, str, str], list[str]]:
    """The nodes of each different problem."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for problem in found:
        nodes = grouped.setdefault((problem.value, problem.reason, problem.hint), [])
        if problem.node:
            nodes.append(problem.node)
    return grouped


# --- after a run ------------------------------------------------------------------------------------------


def unhappy_end(result: RunResult) -> bool:
    """Print that a run was refused, stopped, or failed as a whole; True if nothing else is to print."""
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
        more = "anything more was changed" if result.verb.startswith("env") else "a container was touched"
        before = more if result.changed else "anything was changed"
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
    """Print each node's outcome, the time of each phase, and the warnings."""
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
        cells.append(Text(f"{sign(node.status, console)} {word}", STYLE[node.status]))
        why = with_inventory(node.why)
        cells += [str(node.ok + node.changed + node.failed), str(node.changed)]
        if reasons:
            cells.append(f"{node.phase}: {why}" if node.phase and why else why)
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
    """Print why there was work, nodes with the same reason together.

    New nodes, and roles that only depend on another's work, are left out.
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
    _hidden(console, len(by_reason) - SHOWN, "more reason")


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


def retry_steps(
    result: RunResult, command: str, limit: str = "", *, whole: bool = False
) -> list[tuple[str, str]]:
    """Return what to do after nodes failed: run the command again, and check.

    Args:
        result: of the run.
        command: the command line that was run, without ``--limit``.
        limit: the run's limit.
        whole: run it for all nodes, not only for those that failed.
    """
    bad = [*result.failed, *result.unreachable]
    if not whole and 0 < len(bad) <= 8 and len(bad) < len(result.nodes):
        limit = ",".join(bad)
    again = f"{command} --limit {shlex.quote(limit)}" if limit else command
    steps = [("when it is fixed, run again", again)]
    if result.record is not None:
        steps.append(("what Ansible reported", f"less {result.record / 'ansible.log'}"))
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
    _hidden(console, len(running) - SHOWN, "more node")


def drift(console: Console, result: RunResult, *, everything: bool = False) -> None:
    """Print what would change, in the order of the run, nodes with the same change together.

    Args:
        console: where to.
        result: of a check.
        everything: shorten neither lists of nodes nor long new files.
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

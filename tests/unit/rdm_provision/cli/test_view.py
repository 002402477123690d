"""Progress, recaps and tables, with and without a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rdm_provision.cli.render import live, view
from rdm_provision.cli.render.fabric import show_measured
from rdm_provision.problem import Problem
from rdm_provision.results.events import (
    Change,
    Event,
    NodeRecap,
    NodeResult,
    NodeStarted,
    PhaseStarted,
    PhaseTime,
    Progress,
    RunFinished,
    RunResult,
    RunStarted,
    Status,
    TaskGoesOn,
    TaskStarted,
)


def console(width: int = 120, *, terminal: bool = False) -> Console:
    return Console(
        width=width,
        record=True,
        force_terminal=terminal,
        highlight=False,
        markup=False,
        quiet=False,
        color_system=None,
    )


def text(made: Console) -> str:
    return made.export_text()


def result(node: str, status: Status, phase: str = "images", message: str = "", **more: Any) -> NodeResult:
    return NodeResult(1.0, node, phase, "Load", status, status is Status.CHANGED, message, "", 0.1, **more)


def run_of(*nodes: str) -> list[Event]:
    return [
        RunStarted(0.0, "up", nodes, False),
        PhaseStarted(0.0, "images"),
        TaskStarted(0.0, "images", "Load"),
        *(NodeStarted(0.1, node, "images", "Load") for node in nodes),
    ]


def show(events: list[Event], **options: Any) -> str:
    made = console()
    progress = live.View(made, "demo", **options)
    for event in events:
        progress.handle(event)
    return text(made)


def test_without_a_terminal_each_phase_is_a_line() -> None:
    events = [
        *run_of("a", "b"),
        result("a", Status.OK),
        result("b", Status.CHANGED),
        PhaseStarted(3.0, "network"),
        RunFinished(4.0, RunResult(verb="up")),
    ]
    lines = show(events).splitlines()
    assert lines[0].split() == ["up", "demo", "2", "nodes"]
    assert lines[1].split() == ["images", "3.0", "s", "✔", "a", "✱", "b"]
    assert lines[2].split()[:3] == ["network", "1.0", "s"]


def test_a_failure_is_printed_at_once_with_its_reason() -> None:
    lines = show([*run_of("a", "b"), result("b", Status.FAILED, message="no space left")]).splitlines()
    assert "b failed" in lines[1]
    assert "no space left" in lines[2]


def test_phase_that_a_failed_node_never_ran_does_not_name_it() -> None:
    events = [
        *run_of("a", "b"),
        result("a", Status.FAILED, message="no space left"),
        result("b", Status.OK),
        PhaseStarted(3.0, "network"),
        result("b", Status.CHANGED, phase="network"),
        RunFinished(4.0, RunResult(verb="up")),
    ]
    images, network = (line for line in show(events).splitlines() if " s " in line)
    assert images.split()[3:] == ["✘", "a", "✔", "b"]
    assert network.split()[3:] == ["a", "✱", "b"]


def test_failed_preconditions_are_left_to_the_end() -> None:
    assert "failed" not in show([*run_of("a"), result("a", Status.FAILED, message="no", refused=True)])


def test_many_nodes_are_counted() -> None:
    nodes = [f"n{number}" for number in range(30)]
    events = [
        *run_of(*nodes),
        *(result(node, Status.OK) for node in nodes[1:]),
        result("n0", Status.UNREACHABLE),
    ]
    shown = show([*events, PhaseStarted(2.0, "network")])
    assert "1 unreachable, 29 ok" in shown
    assert "n17" not in shown


def test_long_names_do_not_repeat_in_every_phase() -> None:
    long = "node-17.rack-4.row-b.hall-2.cluster.research.example.org"
    events = [*run_of(long), result(long, Status.FAILED, message="no space"), PhaseStarted(2.0, "network")]
    shown = show(events)
    assert shown.count(long) == 1
    assert "1 failed" in shown


def test_live_display_names_busy_nodes() -> None:
    made = console(terminal=True)
    progress = live.View(made, "demo")
    for event in [*run_of("a", "b"), result("a", Status.OK)]:
        progress.handle(event)
    made.print(progress)
    shown = text(made)
    assert "✔ a" in shown
    assert "… b" in shown
    assert "Load" in shown


def test_a_run_of_one_step_leaves_no_lines() -> None:
    events = [*run_of("a"), result("a", Status.FAILED, message="x"), RunFinished(1.0, RunResult(verb="exec"))]
    assert show(events, brief=True) == ""


def test_square_brackets_are_not_markup() -> None:
    assert "[bold]x[/bold]" in show([*run_of("a"), result("a", Status.FAILED, message="[bold]x[/bold]")])


# --- after the run --------------------------------------------------------------------------------------


def recap(nodes: dict[str, NodeRecap], **more: Any) -> str:
    made = console()
    view.recap(
        made, RunResult(verb="up", nodes=nodes, phases=(PhaseTime("images", 75.2),), seconds=80, **more)
    )
    return text(made)


def test_the_recap_has_a_line_per_node_with_the_reason() -> None:
    plan = {"nodes": {"a": {"my_ip": "10.0.0.1"}, "b": {"my_ip": "10.0.0.2"}}}
    nodes = {"a": NodeRecap(ok=3, changed=1), "b": NodeRecap(ok=1, failed=1, phase="images", why="no space")}
    shown = recap(nodes, plan=plan, warnings=("careful",))
    assert "up: 1 node failed  in 1 min 20 s" in shown
    (line,) = [line for line in shown.splitlines() if " b " in f" {line} "]
    assert line.split() == ["b", "10.0.0.2", "✘", "failed", "2", "0", "images:", "no", "space"]
    assert "images 1 min 15 s" in shown
    assert "- careful" in shown


def test_recap_without_changes_is_explicit() -> None:
    assert "nothing to change" in recap({"a": NodeRecap(ok=3)})


def test_recap_of_a_check_is_conditional() -> None:
    shown = recap({"a": NodeRecap(ok=3, changed=1)}, check=True)
    assert "1 node would change" in shown
    assert "✱ would change" in shown


def test_large_recap_lists_only_failures() -> None:
    nodes = {f"n{number}": NodeRecap(ok=1) for number in range(99)} | {
        "bad": NodeRecap(unreachable=True, why="gone")
    }
    shown = recap(nodes)
    assert "99 nodes are well" in shown
    assert "bad" in shown
    assert "n17" not in shown


def test_problems_shared_by_nodes_share_a_line() -> None:
    made = console()
    shared = [Problem(node, "x", "is bad", "repair it") for node in "abc"]
    view.problems(made, [*shared, Problem(None, "y", "is worse", "")])
    assert text(made).splitlines() == ["  - a, b, c: x is bad: repair it", "  - y is worse"]


def test_a_terminal_gets_hanging_lines_and_a_log_whole_ones() -> None:
    problem = [Problem("a", "x", "is " + "very " * 20 + "bad", "repair it")]
    log, screen = console(60), console(60, terminal=True)
    view.problems(log, problem)
    view.problems(screen, problem)
    assert len(text(log).splitlines()) == 1
    assert all(line.startswith("    ") for line in text(screen).splitlines()[1:])


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (RunResult(verb="up", cancelled=True), ["Stopped", "go on"]),
        (
            RunResult(
                verb="up", refused="nodes", problems=tuple(Problem(n, "x", "is bad", "") for n in "ab")
            ),
            ["Refused", "1 problem\n", "a, b: x is bad"],
        ),
        (RunResult(verb="up", message="no luck"), ["Error", "no luck"]),
    ],
)
def test_unhappy_ends(ended: RunResult, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert view.unhappy_end(ended)
    shown = capsys.readouterr().err
    for word in words:
        assert word in shown


def test_drift_is_grouped_in_the_order_of_the_run() -> None:
    write = Change("my_ip", "Write", "-old\n+new\n")
    start = Change("container", "Start", "")
    long = Change("my_ip", "Write", "".join(f"+{number}\n" for number in range(100)))
    nodes = {
        "a": NodeRecap(changed=2, changes=(start, write)),
        "b": NodeRecap(changed=1, changes=(write,)),
        "c": NodeRecap(changed=1, changes=(long,)),
        "d": NodeRecap(changed=1, changes=(Change("my_ip", "Write", "+d\n"),)),
    }
    ended = RunResult(verb="check", nodes=nodes, phases=(PhaseTime("my_ip", 1), PhaseTime("container", 1)))
    short, whole = console(), console()
    view.drift(short, ended)
    view.drift(whole, ended, everything=True)
    lines = text(short).splitlines()
    assert lines[1:4] == ["a, b  my_ip: Write", "  -old", "  +new"]
    assert lines.index("a  container: Start") > lines.index("a, b  my_ip: Write")
    assert "  … 60 more lines" in lines
    assert "d  likewise" in lines
    complete = text(whole)
    assert "  +99" in complete
    assert "likewise" not in complete


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (59.4, "59 s"), (60, "1 min 00 s"), (3671, "61 min 11 s")],
)
def test_durations(value: float, words: str) -> None:
    assert view.seconds(value) == words


# --- what was measured --------------------------------------------------------------------------------------


def test_measurements_are_shown_in_the_order_of_the_run() -> None:
    verdicts = {"n1": {"ok": True, "reason": ""}, "n2": {"ok": False, "reason": "x"}}
    common = {"ok": False, "nodes": ["n1", "n2"], "verdicts": verdicts, "warnings": ["odd"], "sample": None}
    figures = {"sent_gbit": 181.4, "received_gbit": None, "latency_us": 2.071, "rate_gbit": 200.0}
    result = RunResult(
        verb="verify",
        fabric={
            **common,
            "outside": ["n3"],
            "findings": ["n2: no answer"],
            "rtt_us": {"n1": {"n2": None}, "n2": {"n1": 11.0}},
            "method": "tcp",
        },
        rdma={
            **common,
            "by_node": dict.fromkeys(("n1", "n2"), figures),
            "usual_gbit": 181.0,
            "findings": ["n2: it sends 20 Gb/s"],
        },
        collective={
            **{**common, "ok": True, "findings": [], "warnings": [], "ranks": 16, "backend": "nccl"},
            "sizes": [{"bytes": 64 * 1024**2, "seconds": 0.01234, "algbw": 5.4, "busbw": 8.1}],
        },
    )
    made = console()
    show_measured(made, result)
    lines = text(made).splitlines()
    assert lines[1] == "Fabric  round-trip time in microseconds between containers, TCP"
    assert [line.split() for line in lines[2:5]] == [
        ["from", "\\", "to", "n1", "n2", "n3"],
        ["n1", "-", "silent"],
        ["n2", "11", "-"],
    ]
    assert lines[5:8] == ["  Not in this run: n3", "  failed: n2: no answer", "  warning: odd"]
    assert ["n1", "181", "--", "2.07", "200", "ok"] in [line.split() for line in lines]
    assert ["64.0", "MiB", "12.34", "ms", "5.40", "8.10"] in [line.split() for line in lines]
    assert lines[-1] == "  No node makes it slow."


def test_progress_of_a_task_is_printed_as_lines_without_a_terminal() -> None:
    made = console()
    progress = live.View(made, "demo")
    progress.handle(TaskStarted(0.0, "verify", "Measure"))
    for round_ in ("round 1 of 3", "round 1 of 3", "round 3 of 3"):
        progress.handle(Progress(0.0, round_))
    assert [line.strip() for line in text(made).splitlines()] == ["round 1 of 3", "round 3 of 3"]


def test_slow_task_is_named_without_a_terminal() -> None:
    long = TaskGoesOn(10.0, "lab", "Make the images")
    assert show([*run_of("a"), long]).splitlines()[-1] == "    Make the images…"
    assert show([*run_of("a"), long], brief=True) == "    Make the images…\n"
    of_a_command = [RunStarted(0.0, "exec", ("a",), False), long]
    for quiet, events in (({"verbose": 2}, [*run_of("a"), long]), ({"brief": True}, of_a_command)):
        assert "Make the images" not in show(events, **quiet)


def test_what_a_run_is_about_may_be_more_than_the_machine_that_it_is_on() -> None:
    head = show(run_of("localhost"), about="5 nodes").splitlines()[0]
    assert head.split() == ["up", "demo", "5", "nodes"]


WORDS = st.one_of(st.text("ab é漢", max_size=8), st.text("x y", max_size=30), st.just("two\nlines"))


@settings(max_examples=30)
@given(rows=st.lists(st.tuples(WORDS, WORDS, WORDS), max_size=4), width=st.integers(20, 90))
def test_a_table_that_fits_is_as_rich_lays_it_out(rows: list[tuple[str, str, str]], width: int) -> None:
    def shown(how: Callable[[Console, Table], None]) -> str:
        made = view.table("rank", "node", "", right=("rank",))
        for rank, node, note in rows:
            made.add_row(rank.strip(), node, Text(note, "green"))
        where = console(width)
        with where.capture() as written:
            how(where, made)
        return written.get()

    def laid_out(where: Console, made: Table) -> None:
        where.print(Padding(made, (0, 0, 0, 2), expand=False))

    assert shown(view.show) == shown(laid_out)

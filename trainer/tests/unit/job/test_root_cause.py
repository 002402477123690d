# SPDX-License-Identifier: GPL-3.0-or-later
"""The root cause of a failure, in every order in which the facts can become known."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdm_job.culprit import GONE, Ended
from rdm_job.protocol import Failure
from rdm_job.root_cause import SETTLE_S, SILENCE_S, Inquiry, Known, Replies, root_cause

ECHO = Ended("n1", 0, "RuntimeError: recv: Connection reset by peer", 10.0)
RESTARTED = "was started again: its container was restarted"
LAUNCHER = Failure("n1", None, "The launcher on n1 failed: it ended with exit code 255.")
SHORT = Failure(
    "n1", None, "The launcher on n1 ended, but only 1 of 2 processes have said that they are done."
)


@dataclass
class Master:
    """The part of the master's loop that finds the root cause, with the test's own clock."""

    nodes: tuple[str, ...] = ("n2",)
    now: float = 0.0
    ended: tuple[Ended, ...] = ()
    launcher: Failure | None = None
    found: Failure | None = None
    replies: Replies = field(init=False)
    inquiry: Inquiry = field(init=False)
    received_at: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        self.replies = Replies(self.nodes)
        self.inquiry = Inquiry(self.replies)
        self.received_at = dict.fromkeys(self.nodes, 0.0)
        for node in self.nodes:
            self.receive(node, life="first", answers=0)

    def receive(self, node: str, **message: Any) -> None:
        """Receive a node's message."""
        self.received_at[node] = self.now
        self.replies.record(node, message)

    def connect(self, node: str) -> None:
        """Let a node connect without a message."""
        self.received_at[node] = self.now

    def evaluate(self) -> None:
        """Evaluate, as the master does after each round of messages."""
        self.replies.beat += 1
        lost = tuple(node for node in self.nodes if self.now - self.received_at[node] > SILENCE_S)
        known = Known(lost, self.replies.restarted, self.ended, self.launcher)
        self.found = self.found or self.inquiry.root_cause(known, self.now)


def cause_of(master: Master) -> tuple[str, int | None] | None:
    return None if master.found is None else (master.found.node, master.found.rank)


# --- n2's container is restarted below a job ----------------------------------------------------------------


def _peer_dies(master: Master) -> None:
    master.ended = (ECHO,)


def _launcher_dies(master: Master) -> None:
    master.launcher = LAUNCHER


def _launcher_ends(master: Master) -> None:
    master.launcher = SHORT


def _last_report_is_read_late(master: Master) -> None:
    master.receive("n2", life="first", answers=1)


def _silence_is_noticed(master: Master) -> None:
    master.now += SILENCE_S / 3


def _settling_time_passes(master: Master) -> None:
    master.now += SETTLE_S + 0.1


def _connects(master: Master) -> None:
    master.connect("n2")


def _replies(master: Master) -> None:
    """The new agent does not know the attempt, and reports no failure."""
    master.receive("n2", life="second", since=RESTARTED, answers=master.replies.beat)


def _deadline(master: Master) -> None:
    master.now += SILENCE_S + 0.1


Event = Callable[[Master], None]
SIGNS: tuple[Event, ...] = (_peer_dies, _launcher_dies, _launcher_ends)
AROUND: tuple[Event, ...] = (
    _last_report_is_read_late,
    _silence_is_noticed,
    _settling_time_passes,
    _connects,
    _replies,
    _deadline,
)


def _can_be(order: tuple[Event, ...]) -> bool:
    """Whether n2's events are in order: the dead agent's report, a new connection, a message on it."""
    of_n2 = [event for event in order if event in (_last_report_is_read_late, _connects, _replies)]
    return of_n2 == [_last_report_is_read_late, _connects, _replies]


@pytest.mark.parametrize("sign", SIGNS)
def test_lost_node_is_the_root_cause_in_every_order_of_events(sign: Event) -> None:
    orders = [order for order in itertools.permutations((sign, *AROUND)) if _can_be(order)]
    assert len(orders) == 840
    for order in orders:
        # Evaluate after each event, or only after several: a starved master sees many at once.
        for evaluations in itertools.product((True, False), repeat=len(order) - 1):
            master = Master()
            for event, evaluates in zip(order, (*evaluations, True), strict=True):
                event(master)
                if evaluates:
                    master.evaluate()
            assert cause_of(master) == ("n2", None), (order, evaluations, master.found)


@given(
    st.lists(
        st.sampled_from([_last_report_is_read_late, _silence_is_noticed, _settling_time_passes, _connects])
    )
)
def test_no_root_cause_is_named_before_the_silent_node_replies_or_is_lost(events: list[Event]) -> None:
    master = Master()
    master.evaluate()
    master.ended = (ECHO,)
    for event in events:
        event(master)
        master.evaluate()
        if cause_of(master) is not None:
            assert cause_of(master) == ("n2", None)
            assert master.now > SILENCE_S
    _deadline(master)
    master.evaluate()
    assert cause_of(master) == ("n2", None)


def test_healthy_reply_ends_the_wait_for_a_node() -> None:
    master = Master(("n2", "n3"), ended=(ECHO,))
    for node in ("n2", "n3"):
        master.evaluate()
        master.receive(node, life="first", answers=master.replies.beat)
    master.evaluate()
    # They replied before the settling time had passed.
    _settling_time_passes(master)
    master.evaluate()
    assert cause_of(master) is None
    master.evaluate()
    master.receive("n2", life="first", answers=master.replies.beat)
    master.evaluate()
    assert cause_of(master) is None
    master.receive("n3", life="first", answers=master.replies.beat)
    master.evaluate()
    assert cause_of(master) == ("n1", 0)


@pytest.mark.parametrize("error", [GONE, "ValueError: the sky is falling"])
def test_own_error_of_a_process_is_the_root_cause_at_once(error: str) -> None:
    master = Master(("n2", "n3"), ended=(ECHO,))
    master.evaluate()
    assert cause_of(master) is None
    master.ended = (ECHO, Ended("n2", 1, error, 11.0))
    master.evaluate()
    assert cause_of(master) == ("n2", 1)


def test_launchers_that_ended_before_the_last_processes_reported_have_not_failed() -> None:
    master = Master(launcher=SHORT)
    master.evaluate()
    _settling_time_passes(master)
    master.evaluate()
    assert cause_of(master) is None
    # The final state of n2's process comes with its reply.
    master.receive("n2", life="first", answers=master.replies.beat)
    master.launcher = None
    master.evaluate()
    assert cause_of(master) is None


def test_first_failed_process_after_a_launcher_gets_the_full_settling_time() -> None:
    master = Master(launcher=SHORT)
    master.evaluate()
    master.now += SETTLE_S - 0.1
    master.ended = (ECHO,)
    master.evaluate()
    # The process that caused the echo reports a little later.
    master.now += SETTLE_S - 0.1
    for _ in range(2):
        master.evaluate()
        master.receive("n2", life="first", answers=master.replies.beat)
    master.evaluate()
    assert cause_of(master) is None
    master.ended = (ECHO, Ended("n2", 1, "ValueError: the sky is falling", 9.0))
    master.evaluate()
    assert cause_of(master) == ("n2", 1)


@pytest.mark.parametrize(
    ("known", "sentence"),
    [
        ({"lost": ("n2",)}, "n2 has not been heard for 12 s: "),
        ({"restarted": {"n2": RESTARTED}}, "The agent of n2 was started again: its container was restarted."),
        (
            {"ended": (Ended("n2", 1, "it was ended by SIGSEGV", 1.0),)},
            "Rank 1 on n2 failed: it was ended by",
        ),
    ],
)
def test_the_root_cause_is_one_sentence(known: Mapping[str, Any], sentence: str) -> None:
    found = root_cause(Known(**known), all_reported=False)
    assert found is not None
    assert found.reason.startswith(sentence)


def test_a_lost_node_may_come_back_with_another_agent() -> None:
    master = Master()
    master.replies.forget("n2")
    master.receive("n2", life="second", since=RESTARTED, answers=0)
    assert master.replies.restarted == {}
    master.receive("n2", life="third", since=RESTARTED, answers=0)
    assert master.replies.restarted == {"n2": RESTARTED}
    master.replies.begin()
    assert master.replies.restarted == {}

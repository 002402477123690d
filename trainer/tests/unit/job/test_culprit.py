# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the process that failed first, when the failure of one ends all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdm_job.culprit import GONE, LINES, Ended, first, how_it_ended, lines_of, why_it_ended

ECHOES = (
    "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:53943.",
    "DistBackendError: NCCL communicator was aborted on rank 3.",
    "it was ended by SIGTERM",
    "TimeoutError: Timed out after 600 seconds.",
    "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
    "OSError: [Errno 113] No route to host",
)
OWN = (
    GONE,
    "ValueError: the sky is falling",
    "it was ended by SIGSEGV",
    "OutOfMemoryError: CUDA out of memory.",
)


@pytest.mark.parametrize("error", ECHOES)
def test_process_that_lost_its_peer_did_not_fail_first(error: str) -> None:
    echo, own = Ended("n1", 0, error, 10.0), Ended("n2", 5, "ValueError: no", 11.0)
    assert echo.is_echo
    assert first([echo, own], echoes=True) == own
    assert first([echo], echoes=False) is None
    assert first([echo], echoes=True) == echo


RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"
TRACEBACK = ("Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    step()")


@pytest.mark.parametrize(
    ("code", "errors", "cause", "is_echo"),
    [
        (1, (*TRACEBACK, RESET), f": {RESET}", True),
        (1, ("[rank3]: " + TRACEBACK[0], "[rank3]:   File", "[rank3]: " + RESET), f": {RESET}", True),
        (1, (*TRACEBACK, RESET, "During handling:", *TRACEBACK, "KeyError: 'x'"), ": KeyError: 'x'", False),
        # Lines written while the process ends do not name the cause.
        (
            1,
            (*TRACEBACK, "KeyError: 'x'", "[rank3]:[W1123 14:00:00.000000000 ProcessGroupNCCL.cpp:1538] no"),
            ": KeyError: 'x'",
            False,
        ),
        (
            1,
            (*TRACEBACK, RESET, "Exception ignored in: <function f>", *TRACEBACK, "TypeError: no"),
            f": {RESET}",
            True,
        ),
        (2, ("usage: train.py", "train.py: error: no --lr", ""), ": train.py: error: no --lr", False),
        (1, (), "", False),
        (134, ("[rank3]:[E1123] Watchdog caught NCCL timeout", "frame #1"), ": [E1123] Watchdog", True),
        # A process that was killed did not end by its exception.
        (137, (*TRACEBACK, RESET), "", False),
        (143, (*TRACEBACK, "KeyError: 'x'"), "", True),
    ],
)
def test_exception_of_another_program_tells_a_victim_from_a_cause(
    code: int, errors: tuple[str, ...], cause: str, is_echo: bool
) -> None:
    why = why_it_ended(code, errors)
    assert why.startswith(how_it_ended(code) + cause)
    assert bool(cause) or why == how_it_ended(code)
    assert Ended("n1", 0, why, 10.0).is_echo == is_echo


@pytest.mark.parametrize("error", OWN)
def test_earliest_process_with_its_own_error_failed_first(error: str) -> None:
    early, late = Ended("n2", 7, error, 10.0), Ended("n1", 0, "KeyError: 'x'", 10.5)
    assert not early.is_echo
    assert first([late, early], echoes=True) == early


@given(
    st.lists(
        st.builds(
            Ended,
            node=st.sampled_from(["n1", "n2"]),
            rank=st.integers(0, 15),
            error=st.sampled_from(ECHOES + OWN),
            time=st.floats(0, 100),
        ),
        unique_by=lambda one: one.rank,
    ),
    st.randoms(),
)
def test_the_order_of_the_reports_does_not_matter(ended: list[Ended], random: object) -> None:
    found = first(ended, echoes=True)
    shuffled = list(ended)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert first(shuffled, echoes=True) == found
    assert (found is None) == (not ended)
    if found is not None and found.is_echo:
        assert all(one.is_echo for one in ended)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (0, ""),
        (1, "it ended with exit code 1"),
        (-9, GONE),
        (137, GONE),
        (143, "it was ended by SIGTERM"),
        (-11, "it was ended by SIGSEGV"),
        (255, "it ended with exit code 255"),
    ],
)
def test_exit_code_is_explained(code: int, message: str) -> None:
    assert how_it_ended(code) == message


def test_a_process_lines_are_its_own() -> None:
    log = ["a warning", "[rank1]: Traceback", "[rank11]: other", "[rank1]: ValueError: no", ""]
    assert lines_of(1, log) == ["[rank1]: Traceback", "[rank1]: ValueError: no"]
    # Lines without a rank may be its own; lines of another rank are not.
    assert lines_of(2, log) == ["a warning"]
    assert len(lines_of(0, [f"line {number}" for number in range(50)])) == LINES

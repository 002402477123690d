# SPDX-License-Identifier: GPL-3.0-or-later
"""What every execution environment guarantees for a job: the same list for each of them.

The containers of a lab, and bare hosts behind a jump host, are in tests/e2e of the repository.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.distributed.nodes import Nodes, running
from tests.distributed.places import Agents, InSlurm, Place, reaches, state, tiny, trains
from tests.tiny import LOSSES
from tests.waiting import wait_until


# test_job_agents.py tests the agents' guarantees, and tests/e2e of the repository does so in containers.
# With an image, Slurm does everything that it does without one.
@pytest.fixture(
    params=[
        pytest.param("agents", marks=pytest.mark.long),
        pytest.param("slurm", marks=pytest.mark.long),
        "slurm in charliecloud",
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "agents":
        with running(Nodes(tmp_path)) as nodes:
            yield Agents(nodes)
    elif request.param == "slurm":
        yield InSlurm(request.getfixturevalue("slurm"))
    else:
        yield InSlurm(request.getfixturevalue("slurm"), request.getfixturevalue("image").options)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A job's name that is unique in the shared Slurm cluster."""
    return str(request.node.callspec.id).replace(" ", "-")


def begins(place: Place, job: str, times: int = 1) -> None:
    """Wait until both processes have begun, ``times`` times, and the agents report it."""
    begun = [["rank", str(n), "of", "2"] for n in (0, 1) for _ in range(times)]
    wait_until(
        f"the processes of {job} have begun",
        lambda: sorted(line for line in place.logs(job) if line.startswith("rank")),
        lambda lines: [line.split()[:4] for line in lines] == begun,
    )
    reaches(place, job, "running")


def let_end(place: Place, job: str) -> None:
    for directory in place.directories(job):
        (directory / "end").touch()
    told = reaches(place, job, "finished", "failed")
    assert (told["state"], set(told["nodes"].values())) == ("finished", {"done"}), told


def test_a_job_outlives_who_watches_it_restarts_stops_and_goes_on_beside_another_one(
    place: Place, name: str
) -> None:
    first, second = f"first-{name}", f"second-{name}"
    place.submit(first, "launcher.max_restarts=1")
    place.submit(second)
    for job in (first, second):
        begins(place, job)
    watcher = place.watcher(first)
    watcher.kill()
    watcher.wait()
    assert {one["job"]: one["state"] for one in place.ask("list")["jobs"]}[first] == "running"

    (record,) = (path for where in place.directories(first) for path in where.glob("ranks/*/1.json"))
    os.kill(int(json.loads(record.read_text())["pid"]), signal.SIGKILL)
    told = wait_until(
        "it begins again",
        lambda: state(place, first),
        lambda one: (one["state"], one["restarts"]) == ("running", 1),
    )
    (failure,) = told["failures"]
    assert (failure["node"], failure["rank"]) == (record.parent.name, 1)
    assert "killed" in failure["reason"]

    begins(place, first, times=2)
    told = place.ask("stop", first)["job"]
    assert (told["state"], told["reason"]) == ("stopped", "It saved and ended, as asked.")
    place.submit(first, config="", resume=True)
    reaches(place, first, "running")
    assert reaches(place, second, "running", "failed")["state"] == "running"
    for job in (first, second):
        let_end(place, job)


@pytest.mark.long
def test_a_node_that_dies_is_named_and_costs_a_restart(place: Place, name: str) -> None:
    job = f"loses-a-node-{name}"
    place.submit(job, "launcher.max_restarts=1")
    begins(place, job)
    node = place.node_dies(job)
    place.node_returns(job, node)
    told = wait_until(
        "it begins again",
        lambda: state(place, job),
        lambda one: (one["state"], one["restarts"]) == ("running", 1),
    )
    assert node in {failure["node"] for failure in told["failures"]}, told["failures"]
    let_end(place, job)


@pytest.mark.long
def test_the_gpt_stops_with_a_checkpoint_and_goes_on_in_another_layout_with_the_same_losses(
    place: Place, name: str
) -> None:
    job, pause = f"tiny-{name}", place.folder / "pause"
    pause.write_text("3")
    place.submit(job, config=tiny(place.folder, place.kind))
    trains(place, job, 3)
    stopped = place.ask("stop", job)["job"]
    assert (stopped["state"], stopped["reason"]) == ("stopped", "It saved and ended, as asked.")
    at = stopped["progress"]["iteration"]
    assert (3 <= at < 12, stopped["progress"]["checkpoint"]) == (True, at)
    pause.unlink()
    place.submit(job, "parallel.pipeline=2", config="", resume=True)
    finished = reaches(place, job, "finished", "failed")
    assert (finished["state"], finished["progress"]["iteration"]) == ("finished", 12), finished
    losses = {**dict(stopped["progress"]["losses"]), **dict(finished["progress"]["losses"])}
    assert losses == pytest.approx(LOSSES, abs=1e-4)

# SPDX-License-Identifier: GPL-3.0-or-later
"""What only Slurm does to jobs. :mod:`tests.distributed.test_environments` has what all environments do."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdm_job.directory import TIME, JobDirectory
from rdm_job.slurm import container
from tests.distributed.environments import state, tiny, wait_for_iteration, wait_for_state
from tests.distributed.registry import serving
from tests.distributed.slurm_cluster import EACH_RELEASE, NODES, RANKS, RELEASES, Image, Slurm, running
from tests.tiny import LOSSES
from tests.waiting import wait_until

WHOLE_NODES = "launcher.slurm.gres=gpu:a10:4"
"""With two nodes, everything that the partition gpu2 has."""

MPI = """\
import ctypes, faulthandler, os

faulthandler.enable()  # says in which call it crashed
os.environ.update(OMPI_MCA_pml="ob1", OMPI_MCA_btl="tcp,self", OMPI_MCA_btl_tcp_if_include="lo")
mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
world, number, add = (
    ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, f"ompi_mpi_{name}")))
    for name in ("comm_world", "int", "op_sum")
)
rank, size, total = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
mpi.MPI_Init(None, None)
mpi.MPI_Comm_rank(world, ctypes.byref(rank))
mpi.MPI_Comm_size(world, ctypes.byref(size))
own = ctypes.c_int(rank.value + 1)
mpi.MPI_Allreduce(ctypes.byref(own), ctypes.byref(total), 1, number, add, world)
os.write(1, f"{rank.value} of {size.value}: {total.value}\\n".encode())
mpi.MPI_Finalize()
# Else destructors of libraries race with the threads of PMIx, once faulthandler is off.
os._exit(0)
"""
"""Sums over its whole world; without a connection to the others, each process is a world of its own."""


@pytest.fixture(scope="module", params=EACH_RELEASE)
def slurm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A cluster of each release that Debian has."""
    cluster = Slurm(tmp_path_factory.mktemp("slurm"), RELEASES[request.param])
    with running(cluster, "sbatch", "ch-run", "sqfstar"):
        version = cluster.slurm("sinfo", "--version").split()[-1]
        wanted = request.param.removesuffix("+")
        assert version.startswith(f"{wanted}.") or (wanted != request.param and version > wanted), version
        yield cluster


def test_heterogeneous_job_has_one_order_of_ranks(slurm: Slurm) -> None:
    slurm.submit("het", "launcher.slurm.nodes={hgx: 1, gpu2: 2}")
    slurm.wait_for_ranks("het", "rank 0 of 3 on t1", "rank 1 of 3 on t2", "rank 2 of 3 on t3")
    state = slurm.wait_for_state("het", "running")
    assert (state["master"], state["launcher"]) == ("t1", "slurm")
    slurm.let_end("het")
    assert slurm.wait_for_state("het", "finished", "failed")["nodes"] == dict.fromkeys(NODES, "done")
    followed = slurm.run_verb("logs", "het", "--offset", "t1=0,t3=5")
    assert followed["parts"]["t3"] == "2 of 3 on t3\n"


def test_job_requests_one_gpu_per_process(slurm: Slurm) -> None:
    slurm.submit("gpus", "launcher.devices_per_node=2", accelerator="cuda")
    requested = slurm.slurm("squeue", "--states=all", "-h", "-j", slurm.number("gpus"), "-o", "%b")
    assert requested.strip().endswith("gpu:2")
    assert slurm.run_verb("stop", "gpus", "--now")["job"]["state"] == "stopped"


def test_srun_starts_the_ranks(slurm: Slurm) -> None:
    slurm.submit(
        "ranks",
        "launcher.slurm.nodes={hgx: 1, gpu2: 2}",
        RANKS,
        "launcher.slurm.hint=nomultithread",
        "launcher.slurm.gres={hgx: gpu:2, gpu2: gpu:1}",
        "launcher.devices_per_node=null",
    )
    wait_until(
        "all ranks have begun",
        lambda: {
            node: sorted(text.splitlines()) for node, text in slurm.run_verb("logs", "ranks")["parts"].items()
        },
        lambda found: (
            found
            == {
                "t1": ["rank 0 of 4 on t1", "rank 1 of 4 on t1"],
                "t2": ["rank 2 of 4 on t2"],
                "t3": ["rank 3 of 4 on t3"],
            }
        ),
    )
    slurm.let_end("ranks")
    assert slurm.wait_for_state("ranks", "finished", "failed")["state"] == "finished"


def test_ranks_started_by_srun_fail_restart_and_stop_like_others(slurm: Slurm) -> None:
    slurm.submit("faults", "launcher.nodes=2", RANKS, "launcher.max_restarts=1")
    slurm.wait_for_ranks("faults", "rank 0 of 2 on t2", "rank 1 of 2 on t3")
    os.kill(json.loads((slurm.jobs / "faults/ranks/t3/1.json").read_text())["pid"], signal.SIGKILL)
    state = wait_until(
        "it has begun again",
        lambda: slurm.state("faults"),
        lambda one: (one["restarts"], one["state"]) == (1, "running"),
    )
    (failure,) = state["failures"]
    assert (failure["node"], failure["rank"]) == ("t3", 1)
    assert failure["reason"].startswith("Rank 1 on t3 failed: its process is gone, killed from outside")
    slurm.wait_for_ranks("faults", *("\n".join([f"rank {n} of 2 on t{n + 2}"] * 2) for n in (0, 1)))
    stopped = slurm.run_verb("stop", "faults", "--timeout", "200")["job"]
    assert (stopped["state"], stopped["reason"]) == ("stopped", "It saved and ended, as requested.")


# Debian's packages of later releases have no plugin for PMIx.
@pytest.mark.parametrize("slurm", EACH_RELEASE[:2], indirect=True)
@pytest.mark.parametrize(
    ("job", "nodes", "on"),
    [
        ("mpi", "launcher.nodes=2", ("t2", "t3")),
        ("mpi-het", "launcher.slurm.nodes={hgx: 1, gpu2: 2}", ("t1", "t2", "t3")),
    ],
    ids=["one-partition", "heterogeneous"],
)
def test_ranks_started_with_pmix_are_one_mpi_world(
    slurm: Slurm, job: str, nodes: str, on: tuple[str, ...]
) -> None:
    program = slurm.folder / "mpi.py"
    program.write_text(MPI)
    slurm.submit(
        job,
        *(nodes, "launcher.devices_per_node=2"),
        *(RANKS, "launcher.slurm.mpi=pmix", f"launcher.program=[{program}]"),
    )
    state = slurm.wait_for_state(job, "finished", "failed")
    assert state["state"] == "finished", (state, slurm.run_verb("logs", job, "--stream", "err")["parts"])
    logs = slurm.run_verb("logs", job, "--tail", "0")["parts"]
    size = 2 * len(on)
    total = sum(range(1, size + 1))
    assert {node: sorted(text.splitlines()) for node, text in logs.items()} == {
        node: [f"{rank} of {size}: {total}" for rank in (2 * at, 2 * at + 1)] for at, node in enumerate(on)
    }


def test_pmix_that_srun_cannot_load_is_refused(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.search(r"^PluginDir *= (\S+)", slurm.slurm("scontrol", "show", "config"), re.MULTILINE)
    assert found is not None
    without = slurm.folder / "plugins"
    without.mkdir()
    for name in slurm.slurm("ls", found[1]).split():
        if not name.startswith("mpi_pmix"):
            (without / name).symlink_to(f"{found[1]}/{name}")
    known = (slurm.folder / "slurm.conf").read_text()
    (slurm.folder / "without-pmix.conf").write_text(f"{known}PluginDir={without}\n")
    monkeypatch.setitem(slurm.environment, "SLURM_CONF", str(slurm.folder / "without-pmix.conf"))
    request = slurm.request("never", RANKS, "launcher.slurm.mpi=pmix")
    (problem,) = slurm.run_verb("check", request=request)["problems"]
    assert problem.startswith("srun on login cannot start ranks with launcher.slurm.mpi=pmix: ")
    assert problem.endswith("(libpmix-dev on Debian 12), or use launcher.slurm.mpi=none.")


def test_queued_job_reports_its_reason_until_it_is_stopped_or_cancelled(slurm: Slurm) -> None:
    slurm.submit("first", "launcher.nodes=2", WHOLE_NODES, RANKS)
    slurm.wait_for_ranks("first", "rank 0 of 2 on t2", "rank 1 of 2 on t3")
    slurm.submit("second", "launcher.nodes=2", WHOLE_NODES, RANKS)
    slurm.submit("third", "launcher.nodes=2", WHOLE_NODES, RANKS)
    state = wait_until(
        "the second says why", lambda: slurm.state("second"), lambda one: "(Resources)" in one["reason"]
    )
    assert state["state"] == "queued"
    assert (
        "It waits in partition gpu2, 1st in the queue: the nodes that it needs are in use" in state["reason"]
    )
    states = {one["job"]: one["state"] for one in slurm.run_verb("list")["jobs"]}
    assert (states["first"], states["second"], states["third"]) == ("running", "queued", "queued")
    slurm.slurm("scancel", slurm.number("second"))
    other = slurm.wait_for_state("second", "stopped")
    assert "not by rdm-provision stop" in other["reason"]
    ours = slurm.run_verb("stop", "third")
    assert (ours["stopped"], ours["job"]["state"], ours["job"]["reason"]) == (
        True,
        "stopped",
        "It was cancelled, as requested.",
    )
    saved = slurm.run_verb("stop", "first", "--timeout", "200")["job"]
    assert (saved["state"], saved["reason"]) == ("stopped", "It saved and ended, as requested.")
    slurm.submit("first", config="", resume=True)
    slurm.wait_for_state("first", "running")
    slurm.slurm("scancel", slurm.number("first"))
    assert "not by rdm-provision stop" in slurm.wait_for_state("first", "stopped")["reason"]
    wait_until("all nodes are idle", slurm.idle)


def test_impossible_job_is_refused_before_it_is_submitted(slurm: Slurm) -> None:
    def problems(*overrides: str) -> list[str]:
        found: list[str] = slurm.run_verb("check", request=slurm.request("never", *overrides))["problems"]
        return found

    assert problems("launcher.slurm.partition=gpu") == ["Slurm has no partition gpu; did you mean gpu2?"]
    assert "partition gpu2 has 2: Slurm would let it wait for ever" in problems("launcher.nodes=5")[0]
    assert problems("launcher.slurm.gres=gpu:hgx:4") == [
        "No node of partition gpu2 has gpu:hgx; they have gpu:a10:4."
    ]
    assert problems("launcher.slurm.nodelist=t9")[0].startswith("Slurm refuses the job: ")
    assert not (slurm.jobs / "never").exists()


@pytest.mark.parametrize(
    ("slurm", "runtime", "kind"),
    [
        ("22.05", "charliecloud", "sqsh"),
        pytest.param("24.11", "charliecloud", "sqsh", marks=pytest.mark.long),
        pytest.param("24.11", "apptainer", "sif", marks=pytest.mark.long),
    ],
    indirect=["slurm"],
)
def test_docker_archive_is_converted_once_and_agents_run_in_it(
    slurm: Slurm, image: Image, runtime: str, kind: str
) -> None:
    options = [*image.options, f"launcher.slurm.container={runtime}"]
    job, wrong = f"in-{runtime}", f"wrong-in-{runtime}"
    slurm.submit(job, "launcher.nodes=2", *options)
    slurm.wait_for_ranks(job, "rank 0 of 2 on t2 image", "rank 1 of 2 on t3 image")
    (made,) = (slurm.jobs / ".images").glob(f"*.{kind}")
    before = made.stat()
    if kind == "sqsh":
        listed = subprocess.run(["unsquashfs", "-l", made], capture_output=True, text=True).stdout
        assert ("only-in-the-image" in listed, "removed" in listed) == (True, False)
    slurm.let_end(job)
    assert slurm.wait_for_state(job, "finished", "failed")["state"] == "finished"
    slurm.submit(wrong, *options, "launcher.slurm.image_program=/opt/trainer")
    state = slurm.wait_for_state(wrong, "failed", "running")
    assert f"{container.PROGRAMS[runtime]} failed on t2" in state["reason"]
    assert "/opt/trainer" in state["reason"]
    assert made.stat() == before


@pytest.mark.long
@pytest.mark.parametrize("slurm", ["22.05"], indirect=True)
def test_registry_image_is_pulled_once_or_as_the_pull_policy_says(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = Image(tmp_path, slurm.jobs)
    before = set((slurm.jobs / ".images").glob("*.sqsh"))

    def runs(job: str, *more: str) -> int:
        slurm.submit(job, *image.options, *more)
        slurm.wait_for_ranks(job, "rank 0 of 1 on t2 image")
        slurm.let_end(job)
        assert slurm.wait_for_state(job, "finished", "failed")["state"] == "finished"
        (made,) = set((slurm.jobs / ".images").glob("*.sqsh")) - before
        return made.stat().st_ino

    with serving(tmp_path) as registry:
        # Charliecloud's program runs in the distribution's Python.
        monkeypatch.setitem(slurm.environment, "PATH", f"/usr/bin:{os.environ['PATH']}")
        monkeypatch.setitem(slurm.environment, "REQUESTS_CA_BUNDLE", str(registry.certificate))
        monkeypatch.setitem(slurm.environment, "CH_IMAGE_STORAGE", str(tmp_path / "charliecloud"))
        registry.push(image.archive, "trainer:1")
        named = f"launcher.slurm.image=docker://{registry.name}/trainer:1"
        first = runs("fetched", named)
        again = runs("fetched-again", named, "launcher.slurm.reload_container=true")
        assert again != first
    # The registry is gone.
    assert runs("kept", named) == again


@pytest.mark.parametrize("runtime", ["enroot", "pyxis"])
def test_agents_run_through_stand_ins_of_enroot_and_pyxis(
    slurm: Slurm, runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {"enroot": "enroot", "pyxis": "srun"}[runtime]
    (tmp_path / name).symlink_to(Path(__file__).parent / f"standin_{runtime}.py")
    monkeypatch.setitem(slurm.environment, "PATH", f"{tmp_path}:{os.environ['PATH']}")
    image = tmp_path / "image.sqsh"
    image.touch()
    program = Path(sys.executable).with_name("rdm-trainer")
    slurm.submit(
        runtime,
        f"launcher.slurm.image={image}",
        f"launcher.slurm.image_program={program}",
        "launcher.slurm.mounts=[/usr]",
    )
    slurm.wait_for_ranks(runtime, "rank 0 of 1 on t2")
    state = json.loads((tmp_path / "arguments.json").read_text())
    assert state["mounts"] == [f"{slurm.jobs}:{slurm.jobs}", "/usr:/usr"]
    assert (state["name"].startswith("rdm-"), state["image"]) == (True, str(image))
    slurm.let_end(runtime)
    assert slurm.wait_for_state(runtime, "finished", "failed")["state"] == "finished"


def test_job_that_is_killed_or_near_its_time_limit_restarts_as_often_as_allowed(slurm: Slurm) -> None:
    # At the same time, because Slurm holds back what it requeues until its credential has expired.
    jobs = {"killed": ("t3", 1, ()), "ends": ("t2", 0, (RANKS,)), "returns": ("t3", 1, (RANKS,))}
    for job, (node, restarts, step) in jobs.items():
        slurm.submit(job, f"launcher.max_restarts={restarts}", f"launcher.slurm.nodelist={node}", *step)
    for job, (node, *_) in jobs.items():
        slurm.wait_for_ranks(job, f"rank 0 of 1 on {node}")
    slurm.kill_agent("killed", "t3")
    for job in ("ends", "returns"):
        # What `#SBATCH --signal` makes Slurm do, without waiting for minutes.
        slurm.slurm("scancel", "--batch", "--signal=USR1", slurm.number(job))
    state = slurm.wait_for_state("ends", "stopped", "failed")
    assert state["reason"] == "It saved and ended before its time limit, and no restarts are left: resume it."
    again = {
        job: wait_until(f"{job} was put back", lambda: slurm.state(job), lambda one: one["restarts"] == 1)  # noqa: B023
        for job in ("killed", "returns")
    }
    assert "Slurm put it back into the queue" in again["killed"]["failures"][-1]["reason"]
    assert again["returns"]["state"] != "stopped"
    for job in again:
        slurm.wait_for_state(job, "running")
    slurm.kill_agent("killed", "t3")
    assert slurm.wait_for_state("killed", "failed", "finished")["state"] == "failed"
    slurm.let_end("returns")
    assert slurm.wait_for_state("returns", "finished", "failed")["state"] == "finished"


def test_time_limit_signal_before_the_agents_start_ends_the_job(slurm: Slurm) -> None:
    slurm.submit("before", "launcher.slurm.nodelist=t3", "launcher.slurm.gres=gpu:a10:4", RANKS)
    slurm.submit("early", "launcher.slurm.nodelist=t3", "launcher.slurm.gres=gpu:a10:4", RANKS)
    # As the batch script's trap does it while the image is made ready or the nodes wait for each other.
    early = JobDirectory.of_master(slurm.jobs / "early")
    early.request_stop(3600.0, TIME, f"{slurm.number('early')}.0")
    slurm.let_end("before")
    state = slurm.wait_for_state("early", "stopped", "failed")
    # Its process saves if it has begun by then.
    assert state["reason"].endswith(" before its time limit, and no restarts are left: resume it."), state


def test_job_survives_unreachable_slurm_accounting(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm.submit("silent", "launcher.slurm.nodelist=t3", RANKS)
    slurm.wait_for_ranks("silent", "rank 0 of 1 on t3")
    number = slurm.number("silent")
    slurm.let_end("silent")
    assert slurm.wait_for_state("silent", "finished", "failed")["state"] == "finished"
    # As if its agents had not reported it, and Slurm's controller had forgotten the job.
    job = slurm.jobs / "silent"
    known = JobDirectory.of_master(job)
    known.write_state(dataclasses.replace(known.read_state(), state="running", ended=None))
    os.utime(job / "state.json", (0, 0))
    (job / "slurm.json").write_text(json.dumps({"job": int(number) + 1000}))
    without = slurm.folder / "without-accounting.conf"
    accounting = "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStoragePort=1\n"
    without.write_text((slurm.folder / "slurm.conf").read_text() + accounting)
    with monkeypatch.context() as during:
        during.setitem(slurm.environment, "SLURM_CONF", str(without))
        state = slurm.state("silent")
    assert state["state"] == "running"
    assert "Slurm's accounting does not answer: Problem talking to the database" in state["reason"]
    state = slurm.state("silent")
    assert (state["state"], "Slurm does not know the job any more" in state["reason"]) == ("failed", True)


@pytest.mark.long
def test_time_limit_and_preemption_cost_a_restart(slurm: Slurm) -> None:
    # A time limit that is near from the beginning: Slurm may send its signal a minute early.
    limit = ("launcher.slurm.partition=hgx", "launcher.slurm.time='2'", "launcher.slurm.signal=60")
    slurm.submit("limited", *limit, "launcher.max_restarts=1")
    slurm.submit("moves", "launcher.max_restarts=2", WHOLE_NODES)
    slurm.wait_for_ranks("moves", "rank 0 of 1 on t2")
    slurm.node_dies("t2")
    slurm.wait_for_restart("moves", 1, "t3")
    slurm.node_up("t2")
    wait_until(
        "t2 is back", lambda: slurm.slurm("sinfo", "-h", "-n", "t2", "-o", "%T").split()[:1] == ["idle"]
    )
    # A job of higher priority takes both nodes, and gives them back.
    slurm.slurm("sbatch", "-p", "urgent", "-N2", "--gres=gpu:a10:4", "-o", "/dev/null", "--wrap", "sleep 1")
    slurm.wait_for_restart("moves", 2, "t2")
    slurm.wait_for_restart("limited", 1, "t1")
    for job in ("moves", "limited"):
        slurm.let_end(job)
        assert slurm.wait_for_state(job, "finished", "failed")["state"] == "finished"


@pytest.mark.long
def test_gpt_resumes_from_its_last_checkpoint_after_a_dead_node_and_a_time_limit(slurm: Slurm) -> None:
    pause = slurm.folder / "pause"
    pause.write_text("3")
    config = tiny(slurm.folder, "slurm", checkpoint={"interval": 3})
    hgx = ("launcher.slurm.partition=hgx", "launcher.slurm.gres=gpu:hgx:4")
    slurm.submit("dies", "launcher.max_restarts=1", WHOLE_NODES, "launcher.devices_per_node=2", config=config)
    slurm.submit("timed", "launcher.max_restarts=1", *hgx, config=config)
    saved = {}
    for job in ("dies", "timed"):
        saved[job] = wait_for_iteration(slurm, job, 3, "checkpoint")
        assert saved[job]["progress"]["iteration"] < 12, saved[job]
        if job == "dies":
            slurm.node_dies(saved[job]["master"])
        else:
            # What `#SBATCH --signal` makes Slurm do, without waiting for minutes.
            slurm.slurm("scancel", "--batch", "--signal=USR1", slurm.number(job))
    for job in saved:
        wait_until(f"{job} goes on", functools.partial(state, slurm, job), lambda one: one["restarts"] == 1)
    pause.unlink()
    for job, before in saved.items():
        ended = wait_for_state(slurm, job, "finished", "failed")
        assert (ended["state"], ended["restarts"]) == ("finished", 1), ended["failures"]
        log = "".join(slurm.run_verb("logs", job, "--tail", "0")["parts"].values())
        loaded = re.findall("successfully loaded checkpoint from .* at iteration ([0-9]+)", log)
        newest = int(before["progress"]["checkpoint"])
        # A node that dies loses its processes' work since the checkpoint; a time limit is announced.
        assert len(loaded) == 1
        assert int(loaded[0]) % 3 == 0 if job == "dies" else int(loaded[0]) >= newest
        assert newest <= int(loaded[0]) < 12
        losses = {**dict(before["progress"]["losses"]), **dict(ended["progress"]["losses"])}
        assert losses == pytest.approx({step: LOSSES[step] for step in losses}, abs=1e-4)
        assert max(losses) == 12
    assert state(slurm, "dies")["master"] != saved["dies"]["master"]
    slurm.node_up(saved["dies"]["master"])
    wait_until("all nodes are idle", slurm.idle)


@pytest.mark.long
def test_gpt_has_the_same_losses_on_one_node_and_in_an_image_across_two_partitions(
    slurm: Slurm, image: Image
) -> None:
    config = tiny(slurm.folder, "slurm")
    slurm.submit("host", config=config)
    first = slurm.wait_for_state("host", "finished", "failed")
    slurm.submit(
        "uneven",
        *("parallel.pipeline=3", "parallel.partition=0-3-1", "launcher.slurm.nodes={hgx: 1, gpu2: 2}"),
        *image.options,
        config=config,
    )
    second = slurm.wait_for_state("uneven", "finished", "failed")
    assert (first["state"], second["state"]) == ("finished", "finished"), second["failures"]
    assert second["nodes"] == dict.fromkeys(NODES, "done")
    for job in (first, second):
        assert dict(job["progress"]["losses"]) == pytest.approx(LOSSES, abs=1e-4)

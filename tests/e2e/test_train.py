# SPDX-License-Identifier: GPL-3.0-or-later
"""Training over the containers of different nodes: one loss curve, and what each fault does."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.rdm.provision.plugins.module_utils.archive.images import Image
from ansible_collections.rdm.provision.plugins.module_utils.archive.index import index_archive
from ansible_collections.rdm.provision.plugins.module_utils.constants import FINAL_STATES
from ansible_collections.rdm.provision.plugins.module_utils.engine.docker_api import DockerAPI
from ansible_collections.rdm.provision.plugins.module_utils.lab import trainer as lab_trainer
from ansible_collections.rdm.provision.plugins.module_utils.lab.builder import BUILDER_LABEL

from tests.e2e.demo import Demo
from tests.e2e.product import ROOT, Background, Lab, Product, changed, running_lab, wait_until
from tests.labs import lab_name

MODULE = "ansible_collections.rdm.provision.plugins.modules.lab_images"
NODES = ("n1", "n2")
AS_ASKED = ("--nodes", "2", "--trainer")
SOON = 120.0
"""Seconds within which a fault has ended a job everywhere: ten times the silence that agents bear."""

_TINY = json.loads((ROOT / "trainer/tests/tiny_gpt.json").read_text(encoding="utf-8"))
TINY: dict[str, Any] = _TINY["config"]
LOSSES: dict[int, float] = dict(_TINY["losses"][:6])
"""Of each step, on one process: what every place and launcher has."""
ENDLESS = "optimisation.train_iterations=1000000"
# Where a job is what is tested, whatever it trains: without torch it begins at once.
WAITING = "/tmp/e2e_waiting.py"
PROGRAM_THAT_WAITS = """
import os, signal, socket, sys, time

place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if "connected" in sys.argv and os.environ["RANK"] == "0":
    other, _ = socket.create_server(place).accept()
elif "connected" in sys.argv:
    while True:
        try:
            other = socket.create_connection(place)
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
print("at work", flush=True)
signal.pause()
"""


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, product: Product) -> Iterator[Lab]:
    """Two provisioned nodes with the training image: the demo's, where its tests run, too."""
    if not any(item.path.stem == "test_demo" for item in request.session.items):
        with running_lab(product, lab_name("e2e-train"), *AS_ASKED) as lab:
            lab.json("up")
            yield lab
        return
    demo: Demo = request.getfixturevalue("demo")
    lab = Lab(product, demo.name, made_in=demo.clone)
    lab.inventory.parent.mkdir(exist_ok=True)
    lab.inventory.symlink_to(demo.clone / "inventory" / demo.name)
    # The clone's trainer is what was committed.
    lab.lab("up", *AS_ASKED)
    lab.json("up")
    yield lab
    lab.inventory.unlink()


@pytest.fixture(autouse=True)
def whole(cluster: Lab) -> None:
    """Whatever the test before did, the nodes run, and no job does."""
    if any(cluster.container(node) != "running" for node in NODES):
        cluster.lab("up", *AS_ASKED)
        cluster.provisioned()
    if any(processes(cluster, node) for node in NODES):
        for job in jobs(cluster).values():
            if job["state"] not in FINAL_STATES:
                cluster.json("stop", "--now", job["job"])


@pytest.fixture(scope="module")
def config(product: Product) -> str:
    """A configuration that a container trains in no time, once its processes are up."""
    (product.directory / "tiny.yaml").write_text(yaml.safe_dump(TINY), encoding="utf-8")
    return "tiny.yaml"


def jobs(cluster: Lab, *argv: str) -> dict[str, Any]:
    """The jobs that the nodes know, by name."""
    return {job["job"]: job for job in cluster.json("jobs", *argv)["jobs"]}


def read(cluster: Lab, job: str, file: str) -> dict[str, Any]:
    """What a file of a job says on its master, past the product; empty when there is none."""
    text = cluster.on("n1", "cat", f"/var/lib/rdm/{cluster.name}/{job}/{file}", check=False)
    found: dict[str, Any] = json.loads(text) if text else {}
    return found


def progress(cluster: Lab, job: str) -> dict[str, Any]:
    """How far a job is."""
    return {"iteration": 0, **read(cluster, job, "progress.json")}


def start(cluster: Lab, config: str, job: str, *argv: str) -> None:
    """Start a job that does not end by itself, and return when it trains."""
    cluster.json("train", config, ENDLESS, "--name", job, "--detach", *argv)
    trains(cluster, job)


def waiting(cluster: Lab, *arguments: str) -> str:
    """Put the program that waits into every container; return the override that makes a job of it."""
    write = ["sh", "-c", 'printf %s "$1" >"$2"', "sh", PROGRAM_THAT_WAITS, WAITING]
    for node in NODES:
        cluster.on(node, "docker", "exec", "rdm", *write)
    return f"launcher.program=[{', '.join((WAITING, *arguments))}]"


def start_waiting(cluster: Lab, config: str, job: str, *argv: str) -> None:
    """Start a job that only waits, and return when all its processes do."""
    cluster.json("train", config, waiting(cluster), "--name", job, "--detach", *argv)
    waits(cluster, job)


def waits(cluster: Lab, job: str) -> None:
    """Wait until every process of a job that only waits does so, and the job is said to run."""

    def logs() -> dict[str, str]:
        folder = f"/var/lib/rdm/{cluster.name}/{job}/logs"
        return {node: cluster.on(node, "cat", f"{folder}/{node}.out", check=False) for node in NODES}

    wait_until(lambda: all("at work" in log for log in logs().values()), f"{job} is at work", seen=logs)
    wait_until(
        lambda: read(cluster, job, "state.json").get("state") == "running",
        f"{job} runs",
        seen=lambda: read(cluster, job, "state.json"),
    )


def trains(cluster: Lab, job: str, beyond: int = 0) -> None:
    """Wait until a job has trained beyond a step."""
    wait_until(
        lambda: progress(cluster, job)["iteration"] > beyond,
        f"{job} trains beyond step {beyond}",
        seen=lambda: read(cluster, job, "state.json"),
    )


def nothing_left(cluster: Lab, job: str, nodes: Sequence[str] = NODES) -> None:
    """Wait until no process of a job is left, which is soon."""

    def left() -> dict[str, list[str]]:
        return {node: processes(cluster, node, job) for node in nodes}

    wait_until(lambda: not any(left().values()), f"no process of {job} is left", SOON, seen=left)


def processes(cluster: Lab, node: str, job: str = ".*") -> list[str]:
    """The ids of a job's processes in a node's container, or of all jobs'."""
    script = f"grep -lz ^RDM_JOB_ID={job}@ /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3"
    return cluster.on(node, "docker", "exec", "rdm", "sh", "-c", script, check=False).split()


def pid(cluster: Lab, job: str, node: str) -> str:
    """The id, in its container, of a job's process on a node that has one of them."""
    record = f"/var/lib/rdm/{cluster.name}/{job}/ranks/{node}/{NODES.index(node)}.json"
    return str(json.loads(cluster.on(node, "cat", record))["pid"])


def gone(cluster: Lab, job: str) -> bool:
    """Whether no process of a job is left on any node."""
    return not any(processes(cluster, node, job) for node in NODES)


def end(cluster: Lab, job: str) -> dict[str, Any]:
    """Watch a job to an end that is no good one, and return how it was."""
    (ended,) = cluster.json("jobs", job, "--watch", expect=1)["jobs"]
    found: dict[str, Any] = ended
    return found


def spared(cluster: Lab, job: str) -> None:
    """What would end the one job that runs is refused and changes nothing; what would not goes through."""
    before = [cluster.container(node, "{{.Id}} {{.State.StartedAt}}") for node in NODES]
    for verb, *words in (
        ["down"],
        ["up", "--tags", "container", "--extra-vars", "container_env={NOTE: other}"],
    ):
        told = cluster.json(verb, *words, expect=2)
        assert [(problem["node"], problem["value"]) for problem in told["problems"]] == [
            (node, f"the job {job}") for node in NODES
        ]
        assert changed(told) == []
    assert changed(cluster.json("up", "--tags", "container")) == []
    assert [cluster.container(node, "{{.Id}} {{.State.StartedAt}}") for node in NODES] == before


# --- the image ------------------------------------------------------------------------------------------


def in_image(cluster: Lab, *argv: str, user: str = "root") -> str:
    """Run a program in a fresh container of the training image, which must end well."""
    run = ("docker", "run", "--rm", "--network", "none", "--user", user, lab_trainer.TRAIN_IMAGE)
    return cluster.on("n1", *run, *argv)


def test_the_image_has_what_launchers_and_the_fabric_need(cluster: Lab) -> None:
    programs = ("rdm-trainer", "sshd", "ssh", "pdsh", "mpirun", "ibv_devinfo", "rping", "ip", "ps")
    script = 'for program; do command -v "$program" >/dev/null || echo "$program"; done'
    assert in_image(cluster, "sh", "-c", script, "sh", *programs) == ""
    assert "mlx5" in in_image(cluster, "cat", "/etc/libibverbs.d/mlx5.driver")
    said = in_image(cluster, "python", "-c", "import torch, deepspeed; print(torch.__version__)")
    assert said.strip().endswith("+cpu")


def test_what_needs_no_launcher_runs_without_root(cluster: Lab) -> None:
    assert in_image(cluster, "rdm-trainer", "--version", user="trainer").split()[0] == "rdm-trainer"


def test_the_image_holds_no_secret_and_nothing_of_this_machine(cluster: Lab) -> None:
    script = "ls /etc/ssh/ssh_host_* /root/.config /build /etc/pip.conf 2>/dev/null || true"
    assert in_image(cluster, "sh", "-c", script) == ""


def images(**options: Any) -> dict[str, Any]:
    """Run the module that makes the images."""
    given = {"files": str(ROOT / "roles/lab/files"), **options}
    done = subprocess.run(
        [sys.executable, "-m", MODULE],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": given}),
        env={**os.environ, "PYTHONPATH": str(ROOT / ".collections")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def image_of(path: Path) -> Image:
    (image,) = index_archive(str(path)).images
    return image


def test_a_change_of_the_trainer_makes_only_its_layer_anew(cluster: Lab, tmp_path: Path) -> None:
    real = images(trainer=str(ROOT / "trainer"))
    builders = DockerAPI().get("/containers/json", all=True, filters={"label": [BUILDER_LABEL]})
    # Somebody else may be building one.
    left = [one["Id"] for one in builders if not Path("/proc", one["Labels"][BUILDER_LABEL]).exists()]
    assert (real["changed"], left) == (False, [])
    source = Path(real["archives"])
    copy = tmp_path / "trainer"
    for name in ("configs", "images", "requirements", "rdm_job", "rdm_log", "rdm_trainer"):
        shutil.copytree(ROOT / "trainer" / name, copy / name)
    (copy / "rdm_trainer/added.py").write_text("x = 1\n")
    cache = source.parent.parent / f"test-{os.getpid()}"  # on the same disk, for the links
    try:
        mine = cache / "lab" / source.name
        mine.mkdir(parents=True)
        for name in ("cpu.tar", "sriov-plugin.tar", real["train_archive"]):
            os.link(source / name, mine / name)
        made = images(trainer=str(copy), cache=str(cache))
        assert made["changed"] is True
        before, after = image_of(mine / real["train_archive"]), image_of(mine / made["train_archive"])
        assert after.diff_ids[:-1] == before.diff_ids[:-1]
        assert after.diff_ids[-1] != before.diff_ids[-1]
        assert images(trainer=str(copy), cache=str(cache))["changed"] is False
    finally:
        shutil.rmtree(cache)


# --- one loss curve -------------------------------------------------------------------------------------

LAYOUTS = {
    "no_ssh": ("shell", ["parallel.pipeline=2"]),
    "torchrun": ("python", ["parallel.tensor=2"]),
    "deepspeed": ("ansible", ["parallel.zero_stage=2"]),
    "mpirun": ("shell", ["parallel.pipeline=2", "launcher.devices_per_node=2"]),
}
NAMES = {launcher: f"e2e-curve-{launcher.replace('_', '-')}" for launcher in LAYOUTS}


# What a user's program does.
PROGRAM = """
import sys
from rdm_provision import Cluster, JobUpdate
run = Cluster.load(sys.argv[1]).train(sys.argv[2], sys.argv[4:], name=sys.argv[3])
print([event.job.state for event in run if isinstance(event, JobUpdate)][-1])
"""


def train(cluster: Lab, way: str, config: str, job: str, words: list[str]) -> None:
    """Train to the end, from a shell, from Ansible or from Python."""
    if way == "python":
        argv = [f"inventory/{cluster.name}", config, job, *words]
        done = cluster.product.run(cluster.product.bin / "python", "-c", PROGRAM, *argv)
        assert done.stdout.split() == ["finished"]
    elif way == "ansible":
        line = cluster.rdm("train", config, *words, "--name", job, "--show-command").stdout
        assert "ansible-playbook" in line
        cluster.product.run("bash", "-c", line.strip())
    else:
        shown = cluster.rdm("train", config, *words, "--name", job).stdout
        assert f"{job}  finished   6/6" in shown
        assert f"rdm-provision train -i inventory/{cluster.name} --resume {job}" in shown


@pytest.fixture(scope="module")
def curves(cluster: Lab, config: str) -> dict[str, list[list[float]]]:
    """The losses of the same training under each launcher, each in another layout, from every way in."""
    for launcher, (way, layout) in LAYOUTS.items():
        train(cluster, way, config, NAMES[launcher], [*layout, f"launcher.kind={launcher}"])
    found = {}
    for launcher, job in NAMES.items():
        told = read(cluster, job, "state.json")
        assert (told["state"], told["launcher"]) == ("finished", launcher)
        assert [*told["nodes"]] == list(NODES)
        found[launcher] = told["progress"]["losses"]
    return found


def test_every_launcher_and_layout_has_the_same_losses(curves: dict[str, list[list[float]]]) -> None:
    for launcher, losses in curves.items():
        assert {int(step): loss for step, loss in losses} == pytest.approx(LOSSES, abs=1e-4), launcher


def test_a_job_goes_on_in_another_layout(cluster: Lab, curves: dict[str, list[list[float]]]) -> None:
    more = ["optimisation.train_iterations=8", "parallel.pipeline=1", "parallel.tensor=2"]
    told = cluster.json("train", "--resume", "e2e-curve-no-ssh", *more)
    assert told["job"]["state"] == "finished"
    assert told["job"]["losses"][:6] == curves["no_ssh"]
    assert [step for step, _ in told["job"]["losses"]] == list(range(1, 9))


def test_what_a_job_leaves_is_where_it_says(cluster: Lab, curves: dict[str, list[list[float]]]) -> None:
    shown = cluster.rdm("jobs", "e2e-curve-no-ssh").stdout
    assert "e2e-curve-no-ssh  finished" in shown
    assert f"rdm-provision train -i inventory/{cluster.name} --resume e2e-curve-no-ssh" in shown
    directory = f"/var/lib/rdm/{cluster.name}/e2e-curve-no-ssh"
    assert f"{directory}/checkpoints" in shown
    for node in NODES:
        assert cluster.there(node, f"{directory}/checkpoints")
        for stream in ("out", "err", "gpu"):
            assert cluster.there(node, f"{directory}/logs/{node}.{stream}")
    lines = cluster.rdm("logs", "e2e-curve-no-ssh", "--tail", "0").stdout.splitlines()
    assert {line.split()[0] for line in lines} == set(NODES)
    assert any("lm loss:" in line for line in lines)
    shown = cluster.rdm("jobs", "e2e-curve-no-ssh", "--sections").stdout
    assert shown.count("*" * 19 + " last output message " + "*" * 19) == 1
    assert all(f"/{node}.err <==" in shown for node in NODES)
    assert re.search(r"^iteration \d+ : \d+\.\d{4} s$", shown, re.MULTILINE)


# --- refused before anything starts ---------------------------------------------------------------------


def test_every_problem_is_told_at_once_and_nothing_starts(cluster: Lab, config: str) -> None:
    cluster.on("n2", "docker", "stop", "--time", "1", "rdm")
    holder = "import socket, time; server = socket.create_server(('', 0x7451)); time.sleep(600)"
    cluster.on("n1", "docker", "exec", "--detach", "rdm", "python3", "-c", holder)
    sockets = ["docker", "exec", "rdm", "cat", "/proc/net/tcp"]
    wait_until(lambda: ":7451 " in cluster.on("n1", *sockets), "something has the port")
    words = ["launcher.master_port=29777", "--name", "e2e-refused"]
    told = cluster.json("train", config, *words, expect=2)
    cluster.on("n2", "docker", "start", "rdm")
    said = {problem["node"]: problem["reason"] for problem in told["problems"]}
    assert "29777" in said["n1"]
    assert "does not run" in said["n2"]
    assert "e2e-refused" not in jobs(cluster, "--limit", "n1")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["model.layer=2"], "did you mean model.layers?"),
        (["data.mock=false", "data.blend=[/jobs/data/nothing]"], "/jobs/data/nothing"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(
    cluster: Lab, config: str, words: list[str], sentence: str
) -> None:
    told = cluster.json("train", config, *words, expect=2)
    assert sentence in " ".join(problem["reason"] for problem in told["problems"])


def test_a_configuration_can_be_looked_at_before(cluster: Lab, config: str) -> None:
    shown = yaml.safe_load(cluster.rdm("train", config, "--print-config", "optimisation.lr=0.5").stdout)
    assert (shown["optimisation"]["lr"], shown["model"]["layers"]) == (0.5, TINY["model"]["layers"])
    told = cluster.json("train", config, "--print-config", "model.layer=2", expect=2)
    assert "did you mean model.layers?" in told["problems"][0]["reason"]


def test_an_all_reduce_is_timed_and_rdma_is_missed_in_one_sentence(cluster: Lab) -> None:
    noise = ("-e", "verify_collective_slow_share=0.02")  # the two nodes share two processors
    told = cluster.json("verify", "--collective", "--max-size", "4M", *noise)["collective"]
    assert (told["ok"], told["backend"], told["nodes"]) == (True, "gloo", list(NODES))
    assert [size["bytes"] >> 20 for size in told["sizes"]] == [1, 4]
    for size in told["sizes"]:
        assert size["busbw"] == pytest.approx(size["algbw"] * 2 * (told["ranks"] - 1) / told["ranks"])
    assert [link[:2] for link in told["links_gbit"]] == [list(NODES)]
    assert jobs(cluster)[told["job"]]["state"] == "finished"
    nothing_left(cluster, told["job"])

    (finding,) = cluster.json("verify", "--rdma", expect=1)["rdma"]["findings"]
    assert finding.startswith("n1, n2: it has no RDMA device")


def test_a_node_that_is_down_is_named(cluster: Lab, config: str) -> None:
    cluster.lab("stop", "n2")
    told = cluster.json("train", config, expect=2)
    assert [(problem["node"], problem["reason"][:17]) for problem in told["problems"]] == [
        ("n2", "cannot be reached")
    ]


# --- faults ---------------------------------------------------------------------------------------------


def test_nobody_has_to_watch_and_two_jobs_do_not_meet(cluster: Lab, config: str) -> None:
    """Ctrl-C and a killed control process leave jobs alone; stopping one, `up` and `down` leave the other."""
    watchers: dict[str, Background] = {}
    # The other one needs its port, and no more of what a training has.
    for job, what, begins in (
        ("e2e-two", (waiting(cluster, "connected"),), waits),
        ("e2e-one", (ENDLESS, "parallel.pipeline=2"), trains),
    ):
        watchers[job] = cluster.start("train", config, *what, "--name", job)
        begins(cluster, job)
        # Who watches leaves the cluster to others.
        wait_until(lambda: not (cluster.inventory / ".rdm" / "lock").read_text(), "the lock is given back")
    watchers["e2e-one"].interrupt()
    said = watchers["e2e-one"].end(expect=130)
    assert "e2e-one goes on" in said
    assert f"rdm-provision stop -i inventory/{cluster.name} e2e-one" in said
    watchers["e2e-two"].kill()

    found = jobs(cluster)
    assert (found["e2e-one"]["state"], found["e2e-two"]["state"]) == ("running", "running")
    theirs = [pid(cluster, "e2e-two", node) for node in NODES]
    assert cluster.json("stop", "e2e-one")["changed"]
    stopped = jobs(cluster, "e2e-one")["e2e-one"]
    assert stopped["state"] == "stopped"
    # It has saved what it had.
    assert stopped["checkpoint"] == stopped["iteration"]
    assert processes(cluster, "n1", "e2e-one") + processes(cluster, "n2", "e2e-one") == []
    spared(cluster, "e2e-two")
    for node, process in zip(NODES, theirs, strict=True):
        assert process in processes(cluster, node, "e2e-two")
    assert jobs(cluster, "e2e-two")["e2e-two"]["state"] == "running"
    assert cluster.json("stop", "e2e-two", "--now")["changed"]
    assert not cluster.json("stop", "e2e-two")["changed"]
    assert gone(cluster, "e2e-two")


def test_a_process_that_dies_ends_the_job_everywhere_unless_it_may_restart(cluster: Lab, config: str) -> None:
    """It goes on from its newest checkpoint twice; the third time it fails, and says where and why."""
    start(cluster, config, "e2e-killed", "--max-restarts", "2", "checkpoint.interval=2")
    wait_until(lambda: (progress(cluster, "e2e-killed").get("checkpoint") or 0) >= 2, "there is a checkpoint")
    kill = ["docker", "exec", "rdm", "kill", "-KILL"]

    def restarted(times: int) -> None:
        wait_until(
            lambda: read(cluster, "e2e-killed", "state.json").get("restarts") == times,
            f"it restarts for the {times}. time",
            seen=lambda: read(cluster, "e2e-killed", "state.json"),
        )
        trains(cluster, "e2e-killed", progress(cluster, "e2e-killed")["iteration"])

    first = pid(cluster, "e2e-killed", "n2")
    cluster.on("n2", *kill, first)
    restarted(1)
    assert pid(cluster, "e2e-killed", "n2") != first
    # Its agent goes with the container, and comes back with it.
    cluster.on("n2", "docker", "restart", "--time", "1", "rdm")
    restarted(2)
    cluster.on("n2", *kill, pid(cluster, "e2e-killed", "n2"))
    nothing_left(cluster, "e2e-killed")
    ended = end(cluster, "e2e-killed")
    assert ended["state"] == "failed"
    assert [(failure["node"], failure["rank"]) for failure in ended["failures"]] == [
        ("n2", 1),
        ("n2", None),
        ("n2", 1),
    ]
    losses = [step for step, _ in ended["losses"]]
    assert losses == sorted(losses)


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed", "mpirun"])
def test_a_process_that_dies_ends_the_job_under_every_other_launcher(
    cluster: Lab, config: str, launcher: str
) -> None:
    job = f"e2e-killed-{launcher}"
    start_waiting(cluster, config, job, "--launcher", launcher)
    cluster.on("n2", "docker", "exec", "rdm", "kill", "-KILL", pid(cluster, job, "n2"))
    nothing_left(cluster, job)
    ended = end(cluster, job)
    assert ended["state"] == "failed"
    assert [(failure["node"], failure["rank"]) for failure in ended["failures"]] == [("n2", 1)]


def test_a_full_disk_of_one_node_loses_no_checkpoint(cluster: Lab, config: str) -> None:
    """The save fails on all nodes alike, the training goes on, and saves again when there is room."""
    directory = f"/var/lib/rdm/{cluster.name}"
    cluster.on("n2", "mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", directory)
    try:
        # A mount is of what was there when the container started.
        cluster.on("n2", "docker", "restart", "rdm")
        cluster.json("up")
        start(cluster, config, "e2e-full", "checkpoint.interval=20", "checkpoint.keep=2")

        def saved() -> int:
            return int(progress(cluster, "e2e-full").get("checkpoint") or 0)

        wait_until(lambda: saved() > 0, "there is a checkpoint")
        cluster.on("n2", "sh", "-c", f"cat /dev/zero >{directory}/filler || true", check=False)
        log = f"{directory}/e2e-full/logs/n1.out"
        wait_until(lambda: "No space left on device" in cluster.on("n1", "cat", log), "a save fails")
        full = saved()
        told = jobs(cluster, "e2e-full")["e2e-full"]
        assert (told["state"], told["failures"]) == ("running", [])
        cluster.on("n2", "rm", f"{directory}/filler")
        wait_until(lambda: saved() > full, "it saves again")
        cluster.json("stop", "--now", "e2e-full")
    finally:
        cluster.on("n2", "docker", "stop", "rdm", check=False)
        cluster.on("n2", "umount", directory)
        cluster.json("up")


def test_a_cut_cable_ends_the_job_on_both_sides(cluster: Lab, config: str) -> None:
    start(cluster, config, "e2e-cut")
    cluster.lab("cut", "n2")
    nothing_left(cluster, "e2e-cut")
    ended = end(cluster, "e2e-cut")
    assert ended["state"] == "failed"
    assert "n2" in [failure["node"] for failure in ended["failures"]]
    cluster.lab("heal", "n2")


def test_a_node_that_goes_down_ends_the_job_on_the_others(cluster: Lab, config: str) -> None:
    start_waiting(cluster, config, "e2e-down")
    cluster.lab("stop", "n2")
    nothing_left(cluster, "e2e-down", ["n1"])
    told = cluster.json("jobs", "e2e-down", "--watch", expect=1)
    # The master's agent tells of it: nobody else is asked.
    assert (list(told["nodes"]), told["unreachable"]) == (["n1"], [])
    (job,) = told["jobs"]
    assert job["state"] == "failed"
    assert [failure["node"] for failure in job["failures"]] == ["n2"]


def test_down_keeps_what_jobs_left_and_says_so(cluster: Lab, curves: dict[str, list[list[float]]]) -> None:
    said = cluster.rdm("down").stdout
    assert f"Kept, because something is in it: /var/lib/rdm/{cluster.name} (n1, n2)" in said
    assert cluster.there("n1", f"/var/lib/rdm/{cluster.name}/e2e-curve-no-ssh/checkpoints")
    assert not cluster.there("n1", "/etc/rdm")

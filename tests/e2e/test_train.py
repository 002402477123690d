# SPDX-License-Identifier: GPL-3.0-or-later
"""Training over the containers of different nodes: one loss curve, and the effect of each fault."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.rdm.provision.plugins.module_utils.constants import FINAL_STATES
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import Image
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_index import index_archive
from ansible_collections.rdm.provision.rdm_lab import images
from ansible_collections.rdm.provision.rdm_lab import trainer as lab_trainer
from ansible_collections.rdm.provision.rdm_lab.builder import BUILDER_LABEL
from ansible_collections.rdm.provision.rdm_lab.client import connect
from ansible_collections.rdm.provision.rdm_lab.spec import LABEL

from tests.e2e import tuning
from tests.e2e.demo import Demo
from tests.e2e.environments import (
    LOSSES,
    NODES,
    STEPS,
    TINY,
    Containers,
    Environment,
    end,
    jobs,
    pid,
    processes,
    progress,
    read,
    start,
    wait_for_restart,
    wait_for_step,
    wait_until_gone,
)
from tests.e2e.product import COMMAND_S, ROOT, Product, running_lab
from tests.e2e.promises import Promises, Trained
from tests.labs import lab_name
from trainer.tests.waiting import wait_until

AS_REQUESTED = ("--nodes", "2", "--trainer")
FIRST = {step: loss for step, loss in LOSSES.items() if step <= STEPS}


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, product: Product) -> Iterator[Containers]:
    """Two provisioned nodes with the training image; the demo's, if its tests run as well."""
    if not any(item.path.stem == "test_demo" for item in request.session.items):
        with running_lab(product, lab_name("e2e-train"), *AS_REQUESTED) as lab:
            lab.json("up")
            yield Containers(product, lab.name)
        return
    demo: Demo = request.getfixturevalue("demo")
    lab = Containers(product, demo.name, made_in=demo.clone)
    lab.inventory.parent.mkdir(exist_ok=True)
    lab.inventory.symlink_to(demo.clone / "inventory" / demo.name)
    # The clone's trainer is the committed one.
    lab.lab("up", *AS_REQUESTED)
    lab.json("up")
    yield lab
    lab.inventory.unlink()


@pytest.fixture(autouse=True)
def whole(cluster: Containers) -> None:
    """Make all nodes run, and no job, whatever the previous test did."""
    if any(cluster.container(node) != "running" for node in NODES):
        cluster.lab("up", *AS_REQUESTED)
        cluster.provisioned()
    if any(processes(cluster, node) for node in NODES):
        for job in jobs(cluster).values():
            if job["state"] not in FINAL_STATES:
                cluster.json("stop", "--now", job["job"])


@pytest.fixture(scope="module")
def config(product: Product) -> str:
    """A configuration whose training ends at once when its processes are up."""
    (product.directory / "tiny.yaml").write_text(yaml.safe_dump(TINY), encoding="utf-8")
    return "tiny.yaml"


# --- the image ------------------------------------------------------------------------------------------


def in_image(cluster: Containers, *argv: str, user: str = "root") -> str:
    """Run a program in a new container of the training image; it must succeed."""
    run = ("docker", "run", "--rm", "--network", "none", "--user", user, lab_trainer.TRAIN_IMAGE)
    return cluster.on("n1", *run, *argv)


def test_image_has_the_programs_of_launchers_and_fabric(cluster: Containers) -> None:
    programs = ("rdm-trainer", "sshd", "ssh", "pdsh", "mpirun", "ibv_devinfo", "rping", "ip", "ps")
    script = 'for program; do command -v "$program" >/dev/null || echo "$program"; done'
    assert in_image(cluster, "sh", "-c", script, "sh", *programs) == ""
    assert "mlx5" in in_image(cluster, "cat", "/etc/libibverbs.d/mlx5.driver")


def test_a_users_script_starts_without_a_compiler(cluster: Containers) -> None:
    script = """
import os, deepspeed, torch
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
print(torch.__version__)
"""
    assert in_image(cluster, "sh", "-c", "! command -v c++") == ""
    assert in_image(cluster, "python", "-c", script).strip().endswith("+cpu")


def test_commands_without_a_launcher_run_without_root(cluster: Containers) -> None:
    assert in_image(cluster, "rdm-trainer", "--version", user="trainer").split()[0] == "rdm-trainer"


def test_image_has_no_secret_and_nothing_of_this_machine(cluster: Containers) -> None:
    script = "ls /etc/ssh/ssh_host_* /root/.config /build /etc/pip.conf 2>/dev/null || true"
    assert in_image(cluster, "sh", "-c", script) == ""


def made_images(collection: Path, given: str = "") -> dict[str, Any]:
    """Make the images of a lab that trains; return their names, and whether anything was made."""
    specs = yaml.safe_load((ROOT / "roles/lab/meta/argument_specs.yml").read_text(encoding="utf-8"))
    options = specs["argument_specs"]["main"]["options"]
    desired = {name: option["default"] for name, option in options.items()}
    cache = images.cache_directory(given)
    wanted = images.wanted(connect(), {**desired, "lab_trainer": True}, collection, cache)
    return {"changed": bool(wanted.missing) and wanted.make(cache), **wanted.names}


def image_of(path: Path) -> Image:
    (image,) = index_archive(str(path)).images
    return image


def test_a_change_of_the_trainer_rebuilds_only_its_layer(cluster: Containers, tmp_path: Path) -> None:
    real = made_images(ROOT)
    builders = DockerAPI().get("/containers/json", all=True, filters={"label": [BUILDER_LABEL]})
    # Somebody else may be building one, and the nodes of a Slurm lab have their builder's label.
    left = [
        one["Id"]
        for one in builders
        if LABEL not in one["Labels"] and not Path("/proc", one["Labels"][BUILDER_LABEL]).exists()
    ]
    assert (real["changed"], left) == (False, [])
    source = Path(real["archives"])
    for folder in ("roles", "plugins", "rdm_sriov"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    copy = tmp_path / "trainer"
    sources = ("rdm_core", "rdm_job", "rdm_log", "rdm_planner", "rdm_trainer")
    for name in ("configs", "images", "requirements", *sources):
        shutil.copytree(ROOT / "trainer" / name, copy / name)
    (copy / "rdm_trainer/added.py").write_text("x = 1\n")
    cache = source.parent.parent / f"test-{os.getpid()}"  # on the same disk, for the links
    try:
        mine = cache / "lab" / source.name
        mine.mkdir(parents=True)
        for name in ("cpu.tar", "sriov-plugin.tar", real["train_archive"]):
            os.link(source / name, mine / name)
        made = made_images(tmp_path, str(cache))
        assert made["changed"] is True
        before, after = image_of(mine / real["train_archive"]), image_of(mine / made["train_archive"])
        assert after.diff_ids[:-1] == before.diff_ids[:-1]
        assert after.diff_ids[-1] != before.diff_ids[-1]
        assert made_images(tmp_path, str(cache))["changed"] is False
    finally:
        shutil.rmtree(cache)


@pytest.mark.long
def test_nodes_fine_tune_when_their_image_has_the_packages(cluster: Containers) -> None:
    file = cluster.product.directory / "tune.json"
    file.write_text(json.dumps(tuning.CONFIG), encoding="utf-8")
    train = ("train", "tune.json", "--name", "e2e-tuned")
    problems = cluster.json(*train, expect=2)["problems"]
    # A message from all nodes is reported once.
    assert [one["node"] for one in problems if "EXTRAS=finetune" in json.dumps(one)] == [None]
    assert not cluster.there("n1", cluster.directory("n1", "e2e-tuned"))

    cluster.lab("up", *AS_REQUESTED, "--extra", "finetune")
    cluster.json("up")
    for node in NODES:
        tuning.made(lambda *argv, node=node: cluster.inside(node, *argv), "python", "/jobs")
    expected = tuning.alone(lambda *argv: cluster.inside("n1", *argv), "python", "/jobs")
    # Watched to its end.
    shown = cluster.rdm(*train).stdout
    assert "e2e-tuned  finished   6/6" in shown
    (problems,) = cluster.json("jobs", "e2e-tuned")["jobs"]
    assert dict(problems["losses"]) == pytest.approx(expected, rel=1e-3)
    assert problems["tokens_per_second"] > 0
    page = cluster.product.directory / "tuned.html"
    assert "e2e-tuned: finished" in cluster.rdm("report", "e2e-tuned", "-o", str(page)).stdout
    assert cluster.there("n1", f"{cluster.directory('n1', 'e2e-tuned')}/model/model.safetensors")

    # ZeRO-2 with members that have no inventory.
    data = f"{cluster.directory('n1', 'data')}:/jobs/data:ro"
    outputs = member_outputs(cluster, tuning.CONFIG, "finetune", "/files/tiny.yaml", volumes=[data])
    assert losses_in(outputs["m3"]) == pytest.approx(expected, abs=1e-3)


# --- one loss curve -------------------------------------------------------------------------------------

LAYOUTS = {
    "no_ssh": ("shell", ["parallel.pipeline=2"]),
    "torchrun": ("python", ["parallel.tensor=2"]),
    "deepspeed": ("ansible", ["parallel.zero_stage=2"]),
    "mpirun": ("shell", ["parallel.pipeline=2", "launcher.devices_per_node=2"]),
}
OTHER_LAYOUTS = {
    "no_ssh": ["parallel.pipeline=1", "parallel.tensor=2"],
    "torchrun": ["parallel.tensor=1", "parallel.pipeline=2"],
    "deepspeed": ["parallel.zero_stage=1", "parallel.pipeline=2"],
    "mpirun": ["parallel.pipeline=1", "parallel.tensor=2"],
}
NAMES = {launcher: f"e2e-curve-{launcher.replace('_', '-')}" for launcher in LAYOUTS}


# What a user's program does.
PROGRAM = """
import sys
from rdm_provision import Cluster, JobUpdate
run = Cluster.load(sys.argv[1]).train(sys.argv[2], sys.argv[4:], name=sys.argv[3])
print([event.job.state for event in run if isinstance(event, JobUpdate)][-1])
"""


def train(cluster: Containers, way: str, config: str, job: str, words: list[str]) -> None:
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
def curves(cluster: Containers, config: str) -> dict[str, list[list[float]]]:
    """The losses of one training under each launcher, in other layouts, by shell, Ansible and Python."""
    for launcher, (way, layout) in LAYOUTS.items():
        train(cluster, way, config, NAMES[launcher], [*layout, f"launcher.kind={launcher}"])
    found = {}
    for launcher, job in NAMES.items():
        state = read(cluster, job, "state.json")
        assert (state["state"], state["launcher"]) == ("finished", launcher)
        assert [*state["nodes"]] == list(NODES)
        found[launcher] = state["progress"]["losses"]
    return found


def test_every_launcher_and_layout_has_the_same_losses(curves: dict[str, list[list[float]]]) -> None:
    for launcher, losses in curves.items():
        assert {int(step): loss for step, loss in losses} == pytest.approx(FIRST, abs=1e-4), launcher


def test_job_outputs_are_where_the_job_reports_them(
    cluster: Containers, curves: dict[str, list[list[float]]]
) -> None:
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


def test_checkpoints_on_the_disks_of_two_nodes_are_copied_to_both(
    cluster: Containers, curves: dict[str, list[list[float]]]
) -> None:
    hashed = 'cd "$1" && find . -type f -exec sha256sum {} +'
    there = f"/var/lib/rdm/{cluster.name}/e2e-curve-no-ssh/checkpoints"
    own = [set(cluster.on(node, "sh", "-c", hashed, "sh", there).splitlines()) for node in NODES]
    assert own[0] - own[1]
    assert own[1] - own[0]
    shown = cluster.rdm("data", there, "--from", ",".join(NODES), "--to", "gpt").stdout
    assert f"Brought {there} to {', '.join(NODES)}: /jobs/data/gpt in the containers." in shown
    for node in NODES:
        found = cluster.inside(node, "sh", "-c", hashed, "sh", "/jobs/data/gpt")
        assert set(found.splitlines()) == set.union(*own)


# --- without an inventory -------------------------------------------------------------------------------

MEMBERS = {"m0": "n1", "m1": "n1", "m2": "n2", "m3": "n2"}
LAUNCHER = "192.169.16.210"
PRINT_RANK = ("sh", "-c", 'echo "rank $NODE_RANK of $NNODES at $MASTER_ADDR"')
WRITE = 'umask 77; mkdir -p /tmp/files; cd /tmp/files; printf %s "$1" >secret; printf %s "$2" >tiny.yaml'


def be_member(cluster: Containers, number: int, command: Sequence[str], volumes: Sequence[str]) -> None:
    """Start a container that knows the launcher's address and the secret, with the same host name as all."""
    known = {"RDZV_ID": "four", "RDZV_SECRET_FILE": "/files/secret", "RDZV_JOB_DIR": "/tmp/job"}
    known |= {"ROLE": "worker", "MASTER_ADDR": LAUNCHER} if number else {"ROLE": "launcher", "NUM_NODES": "4"}
    variables = [word for key, value in known.items() for word in ("--env", f"{key}={value}")]
    # As in /etc/hosts of Debian and Ubuntu.
    named = ("--hostname", "member", "--add-host", "member:127.0.1.1")
    where = (*named, "--network", "ibnet", "--ip", f"{LAUNCHER[:-1]}{number}")
    mounted = [word for one in ("/tmp/files:/files:ro", *volumes) for word in ("--volume", one)]
    own = ("--name", f"m{number}", *mounted)
    run = ("docker", "run", "--detach", *own, *where, *variables, lab_trainer.TRAIN_IMAGE)
    cluster.on(MEMBERS[f"m{number}"], *run, "rdm-trainer", "rendezvous", "--", *command)


def exit_codes(cluster: Containers) -> list[str]:
    """The members' exit codes; empty for one that runs."""
    code = '{{if eq .State.Status "exited"}}{{.State.ExitCode}}{{end}}'
    inspect = ("docker", "inspect", "--format", code)
    return [cluster.on(node, *inspect, name).strip() for name, node in MEMBERS.items()]


def member_outputs(
    cluster: Containers, config: dict[str, Any], *command: str, volumes: Sequence[str] = ()
) -> dict[str, str]:
    """Let four members run a command to its end; return each one's standard output."""
    secret = secrets.token_hex(16)
    for node in NODES:
        cluster.on(node, "sh", "-c", WRITE, "sh", secret, json.dumps(config))
    try:
        for number in (3, 1, 0, 2):
            be_member(cluster, number, command, volumes)
        # Slow: four processes import everything that fine-tuning needs.
        codes = wait_until(
            "all members have ended",
            lambda: exit_codes(cluster),
            lambda codes: "" not in codes,
            timeout=COMMAND_S,
            why=lambda: cluster.on(MEMBERS["m0"], "docker", "logs", "m0"),
        )
        outputs = {name: cluster.on(node, "docker", "logs", name) for name, node in MEMBERS.items()}
    finally:
        for name, node in MEMBERS.items():
            cluster.on(node, "docker", "rm", "--force", name, check=False)
    assert codes == ["0"] * len(MEMBERS), outputs
    return outputs


def losses_in(log: str) -> dict[int, float]:
    """The losses of a log in Megatron's form, by step."""
    return {int(step): float(loss) for step, loss in re.findall(r"iteration +(\d+)/.* lm loss: (\S+)", log)}


@pytest.mark.parametrize(
    "command", [PRINT_RANK, pytest.param(("train", "/files/tiny.yaml"), marks=pytest.mark.long)]
)
def test_containers_with_only_a_launcher_and_a_secret_run_one_job(
    cluster: Containers, command: tuple[str, ...]
) -> None:
    outputs = member_outputs(cluster, TINY, *command)
    if command == PRINT_RANK:
        assert outputs == {name: f"rank {name[1]} of 4 at {LAUNCHER}\n" for name in MEMBERS}
    else:
        assert losses_in(outputs["m3"]) == pytest.approx(FIRST, abs=1e-3)


# --- refused before anything starts ---------------------------------------------------------------------


def test_every_problem_is_reported_at_once_and_nothing_starts(cluster: Containers, config: str) -> None:
    cluster.on("n2", "docker", "stop", "--time", "1", "rdm")
    holder = "import socket, time; server = socket.create_server(('', 0x7451)); time.sleep(600)"
    cluster.on("n1", "docker", "exec", "--detach", "rdm", "python3", "-c", holder)
    sockets = ["docker", "exec", "rdm", "cat", "/proc/net/tcp"]
    wait_until("something has the port", lambda: ":7451 " in cluster.on("n1", *sockets))
    words = ["launcher.master_port=29777", "--name", "e2e-refused"]
    result = cluster.json("train", config, *words, expect=2)
    cluster.on("n2", "docker", "start", "rdm")
    reasons = {problem["node"]: problem["reason"] for problem in result["problems"]}
    assert "29777" in reasons["n1"]
    assert "does not run" in reasons["n2"]
    assert "e2e-refused" not in jobs(cluster, "--limit", "n1")


def test_missing_data_are_named(cluster: Containers, config: str) -> None:
    result = cluster.json("train", config, "data.mock=false", "data.blend=[/jobs/data/nothing]", expect=2)
    assert "/jobs/data/nothing" in " ".join(problem["reason"] for problem in result["problems"])


def test_a_configuration_can_be_checked_before(cluster: Containers, config: str) -> None:
    shown = yaml.safe_load(cluster.rdm("train", config, "--print-config", "optimisation.lr=0.5").stdout)
    assert (shown["optimisation"]["lr"], shown["model"]["layers"]) == (0.5, TINY["model"]["layers"])
    result = cluster.json("train", config, "--print-config", "model.layer=2", expect=2)
    assert "did you mean model.layers?" in result["problems"][0]["reason"]


def test_all_reduce_is_timed_and_missing_rdma_is_one_sentence(cluster: Containers) -> None:
    # The two nodes share two processors, and a stall shall leave no size out.
    noise = ("-e", "verify_collective_slow_share=0.02", "-e", "verify_collective_seconds=3600")
    result = cluster.json("verify", "--collective", "--max-size", "4M", *noise)["collective"]
    assert (result["ok"], result["backend"], result["nodes"]) == (True, "gloo", list(NODES))
    assert [size["bytes"] >> 20 for size in result["sizes"]] == [1, 4]
    for size in result["sizes"]:
        assert size["busbw"] == pytest.approx(size["algbw"] * 2 * (result["ranks"] - 1) / result["ranks"])
    assert [link[:2] for link in result["links_gbit"]] == [list(NODES)]
    assert jobs(cluster)[result["job"]]["state"] == "finished"
    wait_until_gone(cluster, result["job"])

    (finding,) = cluster.json("verify", "--rdma", expect=1)["rdma"]["findings"]
    assert finding.startswith("n1, n2: it has no RDMA device")


@pytest.mark.long
def test_measured_profile_gives_a_layout_that_trains(cluster: Containers, config: str) -> None:
    measured = cluster.json("profile", config, "--micro-batch", "1", "--blocks", "1", "2")
    assert measured["nodes"] == dict.fromkeys(NODES, "cpu")
    (profile,) = measured["profiles"]
    assert {*profile["layers"]} == {"1", "2"}
    assert {*profile["links"]} == {"within", "across"}
    assert {*profile["versions"]} == {"torch", "deepspeed", "image"}
    assert {*measured["speeds"]} <= {*NODES}
    found = cluster.json("tune", config)
    assert found["measured"] is True
    best = found["best"][0]
    assert best["seconds"] > 0

    written = cluster.product.directory / "written.yaml"
    written.write_text((cluster.product.directory / config).read_text())
    validated = cluster.json("tune", written.name, "--write", "--validate", "1")["validation"]
    assert validated["layouts"] == len(validated["rows"]) == 2, json.dumps(validated["rows"], indent=1)
    assert all(row["measured"] > 0 for row in validated["rows"])
    record = yaml.safe_load((cluster.inventory / "profile.cfg").read_text())
    assert record["validations"] == [validated]

    trained = cluster.json("train", config, "--layout", "auto", "--name", "tuned")["job"]
    assert (trained["state"], trained["iteration"]) == ("finished", STEPS)
    for file, *more in (config, "--layout", "auto"), (written.name,):
        shown = yaml.safe_load(cluster.rdm("train", file, *more, "--print-config").stdout)["parallel"]
        assert (shown["tensor"], shown["pipeline"]) == (best["tensor"], best["pipeline"])


# --- faults ---------------------------------------------------------------------------------------------


def test_dead_process_ends_the_job_on_all_nodes_unless_it_may_restart(
    cluster: Containers, config: str
) -> None:
    """It resumes from its newest checkpoint twice; the third time it fails, and reports where and why."""
    start(cluster, config, "e2e-killed", "--max-restarts", "2", "checkpoint.interval=2")
    wait_until("there is a checkpoint", lambda: (progress(cluster, "e2e-killed").get("checkpoint") or 0) >= 2)
    kill = ["docker", "exec", "rdm", "kill", "-KILL"]

    def goes_on(times: int) -> None:
        wait_for_restart(cluster, "e2e-killed", times)
        wait_for_step(cluster, "e2e-killed", progress(cluster, "e2e-killed")["iteration"])

    first = pid(cluster, "e2e-killed", "n2")
    cluster.on("n2", *kill, first)
    goes_on(1)
    assert pid(cluster, "e2e-killed", "n2") != first
    # Its agent ends and restarts with the container.
    cluster.on("n2", "docker", "restart", "--time", "1", "rdm")
    goes_on(2)
    cluster.on("n2", *kill, pid(cluster, "e2e-killed", "n2"))
    wait_until_gone(cluster, "e2e-killed")
    ended = end(cluster, "e2e-killed")
    assert ended["state"] == "failed"
    assert [(failure["node"], failure["rank"]) for failure in ended["failures"]] == [
        ("n2", 1),
        ("n2", None),
        ("n2", 1),
    ]
    losses = [step for step, _ in ended["losses"]]
    assert losses == sorted(losses)


@pytest.mark.long
def test_a_full_disk_of_one_node_loses_no_checkpoint(cluster: Containers, config: str) -> None:
    """The save fails on all nodes alike, the training goes on, and saves again when there is room."""
    directory = f"/var/lib/rdm/{cluster.name}"
    cluster.on("n2", "mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", directory)
    try:
        # The container sees only the mounts that were there when it started.
        cluster.on("n2", "docker", "restart", "rdm")
        cluster.json("up")
        start(cluster, config, "e2e-full", "checkpoint.interval=20", "checkpoint.keep=2")

        def saved() -> int:
            return int(progress(cluster, "e2e-full").get("checkpoint") or 0)

        wait_until("there is a checkpoint", lambda: saved() > 0)
        cluster.on("n2", "sh", "-c", f"cat /dev/zero >{directory}/filler || true", check=False)
        log = f"{directory}/e2e-full/logs/n1.out"
        wait_until("a save fails", lambda: "No space left on device" in cluster.on("n1", "cat", log))
        full = saved()
        job = jobs(cluster, "e2e-full")["e2e-full"]
        assert (job["state"], job["failures"]) == ("running", [])
        cluster.on("n2", "rm", f"{directory}/filler")
        wait_until("it saves again", lambda: saved() > full)
        cluster.json("stop", "--now", "e2e-full")
    finally:
        cluster.on("n2", "docker", "stop", "rdm", check=False)
        cluster.on("n2", "umount", directory)
        cluster.json("up")


def test_a_cut_cable_ends_the_job_on_both_sides(cluster: Containers, config: str) -> None:
    start(cluster, config, "e2e-cut")
    cluster.lab("cut", "n2")
    try:
        wait_until_gone(cluster, "e2e-cut")
        ended = end(cluster, "e2e-cut")
    finally:
        cluster.lab("heal", "n2")
    assert ended["state"] == "failed"
    assert "n2" in [failure["node"] for failure in ended["failures"]]


class TestContainers(Promises):
    """What every environment promises; a rank killed under no_ssh is above, in a job that trains."""

    restarts = 0

    @pytest.fixture(
        params=["no_ssh", *(pytest.param(one, marks=pytest.mark.long) for one in LAYOUTS if one != "no_ssh")]
    )
    def launcher(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def environment(self, cluster: Containers) -> Environment:
        return cluster

    @pytest.fixture
    def trained(self, curves: dict[str, list[list[float]]], launcher: str) -> Trained:
        return Trained(NAMES[launcher], OTHER_LAYOUTS[launcher])

    # mpirun differs most from launchers whose agents start their own node's ranks.
    @pytest.mark.parametrize(
        "launcher",
        ["mpirun", *(pytest.param(one, marks=pytest.mark.long) for one in ("torchrun", "deepspeed"))],
    )
    def test_killed_rank_ends_the_job_on_all_nodes_unless_it_may_restart(
        self, environment: Environment, launcher: str, config: str
    ) -> None:
        super().test_killed_rank_ends_the_job_on_all_nodes_unless_it_may_restart(
            environment, launcher, config
        )

    # For the other nodes, a node that is cut off is like one that is down.
    @pytest.mark.long
    def test_lost_node_ends_the_job_on_the_others(
        self, environment: Environment, launcher: str, config: str
    ) -> None:
        super().test_lost_node_ends_the_job_on_the_others(environment, launcher, config)


def test_down_keeps_job_directories_and_reports_them(
    cluster: Containers, curves: dict[str, list[list[float]]]
) -> None:
    output = cluster.rdm("down").stdout
    assert f"Kept, because something is in it: /var/lib/rdm/{cluster.name} (n1, n2)" in output
    assert cluster.there("n1", f"/var/lib/rdm/{cluster.name}/e2e-curve-no-ssh/checkpoints")
    assert not cluster.there("n1", "/etc/rdm")

"""Layouts of a job on a cluster: the planner's input about the nodes, and the use of its result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rdm_provision.api import tuning
from rdm_provision.api.cluster import Cluster
from rdm_provision.cli.render import job_view
from rdm_provision.constants import JOB_MODULE
from rdm_provision.problem import Problem
from rdm_provision.results.events import NodeRecap, RunResult
from rdm_provision.results.job_state import JobState
from rdm_provision.runner.run import Run
from tests.conftest import ROOT
from tests.unit.rdm_provision.conftest import JOB, VERSIONS, Call, MakeInventory, profiled

MIXED = {"node1": {"rdm_gpu": "A10", "rdm_gpu_price": 1}, "node2": {"rdm_gpu": "NVIDIA H100 80GB HBM3"}}
SLOW = {"rdm_gpu_speed": 0.3}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(JOB), encoding="utf-8")
    return path


def test_nodes_are_placed_by_their_gpus_and_the_file_gets_their_order(
    call: Call, job: Path, make_inventory: MakeInventory
) -> None:
    inventory = make_inventory("node1", "node2", rdm_slots=2, hosts=MIXED)
    code, out, err = call("tune", job, "-i", inventory, "--json", "--write")
    assert code == 0, err
    best = json.loads(out)["best"][0]
    assert sorted(zip(best["placement"], best["nodes"], strict=True)) == [("node1", "A10"), ("node2", "H100")]
    assert yaml.safe_load(job.read_text())["launcher"]["nodelist"] == best["placement"]


def test_a_slower_node_is_a_kind_of_its_own(call: Call, job: Path, make_inventory: MakeInventory) -> None:
    inventory = make_inventory(
        rdm_slots=1, rdm_gpu="A10", rdm_gpu_price=2, hosts={"node2": {"rdm_gpu_speed": 0.5}}
    )
    (inventory / tuning.PROFILE_FILE).write_text(
        yaml.safe_dump({"nodes": {}, "profiles": [profiled("A10")]}), encoding="utf-8"
    )
    for more in [], ["--guess"]:
        options = ["-i", inventory, "--json", "--pareto", "--top", "50", *more]
        code, out, err = call("tune", job, *options)
        assert code == 0, err
        found = json.loads(out)
        row = next(row for row in found["best"] if row["pipeline"] == 3)
        slow = row["placement"].index("node2")
        assert row["nodes"][slow] == "A10 (speed 0.5)"
        assert sorted(row["nodes"])[:2] == ["A10", "A10"]
        cut = [*map(int, row["partition"].split("-"))]
        assert cut[slow] < min(blocks for stage, blocks in enumerate(cut) if stage != slow)
        assert found["orders"] == {"tried": 3, "all": 3}
        # The slow node costs as much as the others; MFU refers to the GPU's published peak.
        assert all(point["price"] == pytest.approx(2 * point["gpu_hours"]) for point in found["pareto"])
        assert row["mfu"] is not None


def test_the_next_command_trains_on_the_nodes_that_were_considered(
    call: Call, job: Path, make_inventory: MakeInventory
) -> None:
    inventory = make_inventory(rdm_gpu="A10", rdm_slots=2)
    code, out, _ = call(
        "tune", job, "-i", inventory, "--limit", "node2,node3", "--pareto", "--price", "A10=2"
    )
    assert code == 0
    assert "nothing has been measured" in out
    assert f"rdm-provision profile -i {inventory} {job}" in out
    assert f"Next: rdm-provision train -i {inventory} --limit node2,node3 {job} parallel.tensor=" in out
    assert "price of 1,000 steps" in out
    assert "2 x A10" in out


def test_profile_is_used_for_its_own_job_alone(call: Call, job: Path, make_inventory: MakeInventory) -> None:
    inventory = make_inventory("node1", "node2", rdm_accelerator="cuda", rdm_slots=2)
    file = inventory / tuning.PROFILE_FILE
    other = profiled("A10", shape={**profiled("A10")["shape"], "hidden_size": 64})
    gpus = {"node1": "A10", "node2": "A10"}
    file.write_text(yaml.safe_dump({"nodes": gpus, "profiles": [other, profiled("A10")]}))
    code, out, err = call("tune", job, "-i", inventory, "--json")
    assert code == 0, err
    assert json.loads(out)["measured"] is True
    assert json.loads(call("tune", job, "-i", inventory, "--json", "--guess")[1])["measured"] is False
    file.write_text(yaml.safe_dump({"nodes": gpus, "profiles": [other]}))
    code, _, err = call("tune", job, "-i", inventory)
    assert code == 3
    assert "was measured for hidden_size 64, and the job has 512" in err
    assert f"rdm-provision profile -i {inventory} {job}" in err


def test_estimate_names_measured_and_skipped_layouts(
    call: Call, job: Path, make_inventory: MakeInventory, tmp_path: Path
) -> None:
    from rdm_core import config as configuration
    from rdm_planner.profile import shape_of

    keys = ("engine=native", "optimisation.fp8_recipe=tensorwise")
    shape = shape_of(configuration.from_dict(JOB, keys))
    inventory = make_inventory(rdm_gpu="H100", rdm_slots=1)
    file = inventory / tuning.PROFILE_FILE
    command = ("tune", job, "-i", inventory, "--guess")
    assert f"or measure it: rdm-provision profile -i {inventory} {job}" in call(*command, *keys)[2]
    file.write_text(yaml.safe_dump({"nodes": {}, "profiles": [profiled("H100", shape=shape)]}))
    assert f"or without --guess, which leaves out {file}" in call(*command, *keys)[2]
    assert "nothing has been measured" in call(*command)[1]
    file.write_text(yaml.safe_dump({"nodes": {}, "profiles": [profiled("H100")]}))
    page = tmp_path / "page.html"
    out = call(*command, "--html", page)[1]
    assert f"--guess leaves out what was measured.\nMeasured: {file}\n" in out
    assert f"--guess leaves out {file}" in page.read_text(encoding="utf-8")


def test_the_file_of_a_cluster_is_read_as_it_was_written(make_inventory: MakeInventory) -> None:
    from rdm_planner.profile import Profile

    cluster = Cluster.load(make_inventory())
    old, new = (Profile.of(profiled("A10", date=date), "here") for date in ("2026-11-25", "2026-11-26"))
    found = tuning.profile_of(cluster).with_measured({"node1": "A10"}, old).with_measured({}, new)
    tuning.keep_profile(cluster, found.with_validation({"error": 0.01}))
    again = tuning.profile_of(cluster)
    assert again == found.with_validation({"error": 0.01})
    assert again.profiles == (new,)
    # Ansible does not take it for an inventory.
    assert Cluster.load(cluster.inventory).names == cluster.names


@pytest.mark.parametrize(
    ("variables", "arguments", "words"),
    [
        ({"rdm_accelerator": "cuda"}, [], ["which GPUs node1 has", "rdm_gpu", "rdm-provision profile"]),
        ({"rdm_gpu": "A11"}, [], ["'A11' is not known", "rdm-provision profile"]),
        ({"rdm_gpu": "{{ x }}"}, [], ["rdm_gpu of node1 is a template"]),
        ({"rdm_gpu": "A10", "rdm_slots": "two"}, [], ["rdm_slots 'two' is not a number of processes"]),
        ({"rdm_gpu": "A10", "rdm_slots": 0}, [], ["rdm_slots 0 is not a number of processes"]),
        ({"rdm_gpu": "A10", "rdm_gpu_price": -1}, [], ["rdm_gpu_price -1 is no price"]),
        ({"rdm_gpu": "A10", "rdm_gpu_speed": 90}, [], ["rdm_gpu_speed 90 is no share", "as 0.9"]),
        ({"rdm_gpu": "A10"}, ["parallel.tensor=2"], ["parallel.tensor=2", "leave it out"]),
        ({"rdm_gpu": "A10"}, ["--limit", "node9"], ["node9"]),
        ({"rdm_gpu": "A10"}, ["model.hiden_size=2"], ["model.hiden_size", "hidden_size"]),
    ],
)
def test_impossible_search_is_one_sentence(
    call: Call,
    job: Path,
    make_inventory: MakeInventory,
    variables: dict[str, Any],
    arguments: list[str],
    words: list[str],
) -> None:
    code, out, err = call("tune", job, "-i", make_inventory(**variables), *arguments)
    assert (code, out) == (3, "")
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    "text",
    [
        "[1",
        "nodes: {}",
        "nodes: 3\nprofiles: []",
        "nodes: {}\nprofiles: [{}]",
        "nodes: {}\nspeeds: {n: 9}\nprofiles: []",
    ],
)
def test_a_broken_profile_is_one_sentence(
    call: Call, job: Path, make_inventory: MakeInventory, text: str
) -> None:
    inventory = make_inventory(rdm_gpu="A10")
    (inventory / tuning.PROFILE_FILE).write_text(text)
    code, out, err = call("tune", job, "-i", inventory)
    assert (code, out) == (3, "")
    assert f"{inventory / tuning.PROFILE_FILE} is no profile" in err


def test_train_takes_the_fastest_layout(call: Call, job: Path, make_inventory: MakeInventory) -> None:
    inventory = make_inventory("node1", "node2", rdm_slots=2, hosts=MIXED)
    code, out, err = call("train", job, "-i", inventory, "--layout", "auto", "--show-command")
    assert code == 0, err
    assert "predicted" in err
    assert "parallel.partition=" in out
    assert "launcher.nodelist=[node" in out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--resume", "tiny-1"], "new job"),
        ([ROOT / "trainer/configs/gpt2-xl.yaml", "--launcher", "slurm"], "rdm-trainer tune"),
        (["nosuch.yaml"], "nosuch.yaml cannot be read: No such file or directory"),
    ],
)
def test_a_layout_that_cannot_be_searched_starts_nothing(
    call: Call, make_inventory: MakeInventory, arguments: list[str], word: str
) -> None:
    code, out, err = call("train", *arguments, "-i", make_inventory(rdm_gpu="A10"), "--layout", "auto")
    assert (code, out) == (3, "")
    assert word in err


class Nodes:
    """Nodes that run jobs: a stand-in for `job_view.watch`.

    Attributes:
        gpus: the name of each node's GPUs.
        versions: of torch and DeepSpeed on each.
        seconds: each node's time for the work that compares nodes.
        runs: node names and overrides of each run, checks excluded.
    """

    def __init__(self, gpus: dict[str, str]) -> None:
        self.gpus = gpus
        self.versions = dict(VERSIONS)
        self.seconds: dict[str, float] = {}
        self.runs: list[tuple[list[str], list[str]]] = []

    def watch(self, run: Run, _title: str, **_how: Any) -> tuple[RunResult, JobState | None]:
        nodes, words = [*run.spec.nodes], [*run.spec.literal_vars.get("job_overrides", ())]
        recaps = {name: NodeRecap(ok=1) for name in nodes}
        if run.spec.check:
            facts = {name: [{"facts": {"gpu": self.gpus[name], **self.versions}}] for name in nodes}
            return RunResult(verb="train", check=True, nodes=recaps, returned={JOB_MODULE: facts}), None
        self.runs.append((nodes, words))
        link = {
            "point_to_point": {"latency": 1e-5, "bandwidth": 1e10},
            "all_reduce": {"latency": 1e-5, "bandwidth": 2e10},
        }
        program = next((word for word in words if word.startswith("launcher.program=")), "")
        progress: dict[str, Any] = {"step_seconds": 0.5 + 0.1 * len(self.runs)}
        if "--links-only" in program:
            taken = {name: self.seconds.get(name, 0.1) for name in nodes}
            progress = {"measured": {"links": {"within": link, "across": link}, "nodes": taken}}
        elif program:
            gpu = self.gpus[nodes[0]].removeprefix("NVIDIA ")
            progress = {"measured": profiled(gpu, links={"within": link})}
        job = {"job": "x", "state": "finished", "master": nodes[0], "progress": progress}
        result = RunResult(verb="train", nodes=recaps, returned={JOB_MODULE: {nodes[0]: [{"job": job}]}})
        return result, JobState.of(job, "/jobs", 0.0)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    found = Nodes({"node1": "NVIDIA A10", "node2": "NVIDIA A10", "node3": "NVIDIA A30"})
    monkeypatch.setattr(job_view, "watch", found.watch)
    return found


def test_a_node_of_each_kind_is_measured_and_the_links_of_all(
    call: Call, job: Path, make_inventory: MakeInventory, nodes: Nodes
) -> None:
    inventory = make_inventory(rdm_accelerator="cuda", rdm_slots=2)
    code, out, err = call("profile", job, "-i", inventory, "--micro-batch", "4", "--blocks", "1", "2")
    assert code == 0, err
    # Where a kind has one node, its links to the other kind's nodes are measured.
    assert [of for of, _ in nodes.runs] == [
        ["node1"],
        ["node1", "node2"],
        ["node3"],
        ["node1", "node2", "node3"],
    ]
    program = next(word for word in nodes.runs[0][1] if word.startswith("launcher.program="))
    command = ["-m", "rdm_trainer", "profile", "resolved.yaml", "--micro-batch", "4", "--blocks", "1", "2"]
    assert yaml.safe_load(program.partition("=")[2]) == command
    found = tuning.profile_of(Cluster.load(inventory))
    assert found.nodes == {"node1": "A10", "node2": "A10", "node3": "A30"}
    assert [(one.gpu, sorted(one.links)) for one in found.profiles] == [
        ("A10", ["across", "within"]),
        ("A30", ["across", "within"]),
    ]
    assert "A10 (node1, node2): tensor degree 1, micro-batches up to 1; 20.0 Gbit/s within a node" in out
    assert f"Next: rdm-provision tune -i {inventory} {job}" in out
    # The planner uses the profile: the inventory does not name the GPUs.
    assert json.loads(call("tune", job, "-i", inventory, "--json", "--top", "1")[1])["measured"] is True


@pytest.mark.parametrize(
    ("seconds", "speed", "variables", "kind"),
    [
        (0.125, 0.8, {}, "A10 (speed 0.8)"),
        (0.125, 0.8, {"rdm_gpu_speed": 1}, "A10"),
        (0.05, 2.0, {}, "A10 (speed 2)"),
        (0.01, 2.0, {}, "A10 (speed 2)"),
        (100.0, 0.05, {}, "A10 (speed 0.05)"),
        (0.104, None, {}, "A10"),
    ],
)
def test_a_node_that_was_slower_than_the_measured_one_is_a_kind_of_its_own(
    call: Call,
    job: Path,
    make_inventory: MakeInventory,
    nodes: Nodes,
    seconds: float,
    speed: float | None,
    variables: dict[str, Any],
    kind: str,
) -> None:
    nodes.seconds = {"node2": seconds}
    inventory = make_inventory(
        "node1", "node2", rdm_accelerator="cuda", rdm_slots=1, hosts={"node2": variables}
    )
    code, out, err = call("profile", job, "-i", inventory)
    assert code == 0, err
    assert (f"node2 computes at {speed or 1:g} of the speed of node1" in out) == (speed is not None)
    assert tuning.profile_of(Cluster.load(inventory)).speeds == ({"node2": speed} if speed else {})
    best = json.loads(call("tune", job, "-i", inventory, "--json")[1])["best"][0]
    assert sorted(best["nodes"]) == sorted(["A10", kind])
    assert json.loads(call("tune", job, "-i", inventory, "--json", "--guess")[1])["best"][0]["nodes"] == [
        "A10",
        "A10",
    ]


def test_a_profile_of_other_software_or_gpus_is_refused(
    call: Call, job: Path, make_inventory: MakeInventory, nodes: Nodes
) -> None:
    inventory = make_inventory(rdm_accelerator="cuda", rdm_slots=2, container_image="train:1")
    assert call("profile", job, "-i", inventory)[0] == 0
    found = tuning.profile_of(Cluster.load(inventory))
    assert [one.versions for one in found.profiles] == [VERSIONS | {"image": "train:1"}] * 2
    measured = len(nodes.runs)
    measure = f"rdm-provision profile -i {inventory} {job}"
    train = ("train", job, "-i", inventory, "--layout", "auto")

    # Only a check inspects the nodes; `tune` leaves it to `train`.
    out = call("tune", job, "-i", inventory)[1]
    assert "Not compared with the profile: torch and DeepSpeed of the nodes." in out
    assert f"rdm-provision train -i {inventory} {job} --layout auto" in out
    nodes.versions["torch"] = "2.10.0"
    for command in train, ("tune", job, "-i", inventory, "--validate", "1"):
        code, out, err = call(*command)
        assert (code, out) == (3, "")
        assert f"was measured with torch 2.9.0, and node1 has 2.10.0; measure it again: {measure}" in err
    assert len(nodes.runs) == measured
    nodes.versions = dict(VERSIONS)
    assert call(*train)[0] == 0
    assert len(nodes.runs) == measured + 1
    nodes.gpus["node2"] = "NVIDIA H100 80GB HBM3"
    assert "No profile is of the GPU H100" in call(*train)[2]
    assert len(nodes.runs) == measured + 1

    # The image and the GPUs are in the inventory.
    for variables, problem in (
        ({"container_image": "train:2"}, "with image train:1, and node1 has train:2; measure it again"),
        ({"container_image": "train:1", "rdm_gpu": "H100"}, "rdm_gpu of node1 is H100, and the node was"),
    ):
        other = make_inventory(rdm_accelerator="cuda", rdm_slots=2, **variables)
        (other / tuning.PROFILE_FILE).write_text((inventory / tuning.PROFILE_FILE).read_text())
        code, out, err = call("tune", job, "-i", other)
        assert (code, out) == (3, "")
        assert problem in err
        assert f"rdm-provision profile -i {other} {job}" in err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["nosuch.yaml"], "nosuch.yaml cannot be read"),
        ([ROOT / "trainer/configs/qwen3-8b-finetune.yaml"], "'finetune'; it must be train"),
        ([ROOT / "trainer/configs/gpt2-xl.yaml", "model.hiden_size=2"], "did you mean model.hidden_size?"),
        ([ROOT / "trainer/configs/gpt2-xl.yaml", "--blocks", "3", "3"], "the second must be larger"),
    ],
)
def test_impossible_measurement_is_one_sentence_and_starts_nothing(
    call: Call, make_inventory: MakeInventory, nodes: Nodes, arguments: list[str], word: str
) -> None:
    code, out, err = call("profile", *arguments, "-i", make_inventory())
    assert (code, out, nodes.runs) == (3, "", [])
    assert word in err


def test_nothing_is_kept_of_a_job_that_has_measured_nothing(
    call: Call, job: Path, make_inventory: MakeInventory, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watch(run: Run, title: str, **how: Any) -> tuple[RunResult, JobState | None]:
        result, state = nodes.watch(run, title, **how)
        if state is None:
            return result, state
        failed = JobState("x", "failed", "rank 0 on node1 ended with exit code 1.")
        return RunResult(verb="train", nodes=result.nodes), failed

    monkeypatch.setattr(job_view, "watch", watch)
    inventory = make_inventory()
    code, out, err = call("profile", job, "-i", inventory)
    assert (code, out) == (1, "")
    assert "has measured nothing: rank 0 on node1 ended with exit code 1" in err
    assert "rdm-provision logs" in err
    assert not (inventory / tuning.PROFILE_FILE).exists()


@pytest.mark.parametrize("verb", [("profile",), ("tune", "--validate", "1")])
def test_detached_job_is_shown_with_the_command_that_stops_it(
    call: Call,
    job: Path,
    make_inventory: MakeInventory,
    nodes: Nodes,
    monkeypatch: pytest.MonkeyPatch,
    verb: tuple[str, ...],
) -> None:
    def watch(run: Run, title: str, **how: Any) -> tuple[RunResult, JobState | None]:
        result, state = nodes.watch(run, title, **how)
        if state is None:
            return result, state
        return RunResult(verb="train", nodes=result.nodes, cancelled=True), JobState("x-0", "running", "")

    monkeypatch.setattr(job_view, "watch", watch)
    inventory = make_inventory(rdm_accelerator="cuda", rdm_slots=1, rdm_gpu="A10")
    code, _, err = call(*verb, job, "-i", inventory)
    assert code == RunResult(verb="train", cancelled=True).exit_code != 0
    assert "No longer watched. x-0 goes on." in err
    assert f"rdm-provision stop -i {inventory} x-0" in err
    assert not (inventory / tuning.PROFILE_FILE).exists()


@pytest.fixture
def pruned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs whose directories were removed."""
    found: list[str] = []

    class Pruning:
        def __init__(self, names: list[str]) -> None:
            found.extend(names)

        def result(self) -> None:
            return None

    monkeypatch.setattr(Cluster, "prune", lambda _self, names, **_how: Pruning(names))
    return found


def test_layouts_are_run_and_their_times_recorded(
    call: Call, job: Path, make_inventory: MakeInventory, nodes: Nodes, pruned: list[str]
) -> None:
    inventory = make_inventory("node1", "node2", rdm_gpu="A10", rdm_slots=2)
    code, out, err = call("tune", job, "-i", inventory, "--validate", "2", "--json")
    assert code == 0, err
    result = json.loads(out)
    found = result["validation"]
    rows = found["rows"]
    assert [row["rank"] for row in rows][:2] == [1, 2]
    assert len({row["rank"] for row in rows}) == len(rows) == 4
    assert [row["measured"] for row in rows] == pytest.approx([0.6, 0.7, 0.8, 0.9])
    assert found["rank_correlation"] == pytest.approx(1.0)
    assert found["winner_excess"] == 0
    errors = [abs(row["predicted"] / row["measured"] - 1) for row in rows]
    assert found["mean_absolute_error"] == pytest.approx(sum(errors) / 4)
    assert len(pruned) == 4
    for (_, words), row in zip(nodes.runs, rows, strict=True):
        assert words[: len(row["layout"])] == row["layout"]
        # The job has 4 iterations, and the first ones warm up.
        assert {"optimisation.train_iterations=15", "checkpoint.exit_interval=15"} <= {*words}
    assert list(tuning.profile_of(Cluster.load(inventory)).validations) == [found]


def test_other_layouts_are_run_when_the_file_has_the_winner_s_keys(
    call: Call, job: Path, make_inventory: MakeInventory, nodes: Nodes, pruned: list[str]
) -> None:
    from rdm_core.config import check

    inventory = make_inventory("node1", "node2", rdm_slots=1, rdm_gpu="A10", hosts={"node2": SLOW})
    code, out, err = call("tune", job, "-i", inventory, "--write", "--validate", "1", "--inter", "1")
    assert code == 0, err
    assert "Of these, the one predicted as the fastest was the fastest." in " ".join(out.split())
    assert len(pruned) == 2
    assert yaml.safe_load(job.read_text())["parallel"]["partition"] != "even"
    tried = [tuning.load(job, words) for _, words in nodes.runs]
    assert {one.parallel.pipeline for one in tried} == {1, 2}
    assert [check(one, 2) for one in tried] == [[], []]


def test_layout_that_was_not_measured_has_a_reason(
    call: Call,
    job: Path,
    make_inventory: MakeInventory,
    nodes: Nodes,
    pruned: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = RunResult(verb="train", problems=(Problem(None, "", "another job runs there", ""),))
    ends: list[JobState | None] = [
        JobState("a", "failed", "rank 1 on node2 was killed"),
        JobState("b", "finished", iteration=3),
        None,
    ]

    def watch(run: Run, title: str, **how: Any) -> tuple[RunResult, JobState | None]:
        result, state = nodes.watch(run, title, **how)
        if not 1 < len(nodes.runs) < 5:
            return result, state
        end = ends[len(nodes.runs) - 2]
        return (result, end) if end else (refused, None)

    monkeypatch.setattr(job_view, "watch", watch)
    inventory = make_inventory("node1", "node2", rdm_gpu="A10", rdm_slots=2)
    code, out, err = call("tune", job, "-i", inventory, "--validate", "2")
    assert code == 0, err
    reasons = (
        "rank 1 on node2 was killed",
        "it finished after 3 steps without the time of one",
        "another job runs there",
    )
    (record,) = tuning.profile_of(Cluster.load(inventory)).validations
    assert [row.get("reason") for row in record["rows"]] == [None, *reasons]
    assert [row["measured"] is None for row in record["rows"]] == [False, True, True, True]
    assert (record["layouts"], len(pruned)) == (1, 1), "directories of failed runs are kept"
    assert all(reason in " ".join(out.split()) for reason in reasons)

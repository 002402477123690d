# SPDX-License-Identifier: GPL-3.0-or-later
"""A training that was started by hand exports the agents' metrics, in Prometheus' own format."""

from __future__ import annotations

import os
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from prometheus_client.parser import text_string_to_metric_families

from rdm_core import config as configuration
from rdm_core.heartbeat import NODE_VARIABLE
from rdm_job import network
from rdm_job.processes import JOB_VARIABLE
from rdm_trainer import prometheus
from rdm_trainer.train import Training
from tests.distributed import processes
from tests.waiting import wait_until

CONFIGURATION = """
name: small
model: {layers: 1, hidden_size: 32, attention_heads: 2, seq_length: 16, vocab_size: 64}
optimisation: {micro_batch_size: 1, global_batch_size: 2, train_iterations: 4, precision: fp32, lr: 0.001}
data: {mock: true, workers: 0}
logging: {interval: 1, eval_interval: 0, tensorboard: false, prometheus: true, metrics_port: PORT}
checkpoint: {interval: 0}
"""
Metrics = dict[str, list[tuple[dict[str, str], float]]]


def read(text: str) -> Metrics:
    """Return what Prometheus reads from a text: labels and value of each sample, by its name."""
    metrics: Metrics = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        assert family.type in ("gauge", "counter")
        for sample in family.samples:
            metrics.setdefault(sample.name, []).append((sample.labels, sample.value))
    return metrics


def scrape(address: str, port: int) -> Metrics:
    with urllib.request.urlopen(f"http://{address}:{port}/metrics") as answer:
        return read(answer.read().decode())


def _train(folder: str, port: int, variables: dict[str, str], fails: bool) -> dict[str, Any]:
    """Train as one rank of two nodes; return its node's metrics in the third step, and how it failed."""
    rank = dist.get_rank()
    address = f"127.0.0.{2 + rank}"
    os.environ.update({NODE_VARIABLE: f"n{rank}", "MY_IP": address, **variables})
    prometheus._EACH_S = 0.01
    (Path(folder) / f"{rank}.yaml").write_text(CONFIGURATION.replace("PORT", str(port)))
    job = Path(folder) / "gpt-1"
    training = Training(configuration.load(Path(folder) / f"{rank}.yaml"), job, write=lambda _: None)
    step = training.engine.train_step
    seen: dict[str, Any] = {}
    file = job / f"metrics.n{rank}.prom"

    def watched(batches: Any) -> Any:
        if training.iteration == 2 and not variables:
            name = "rdm_job_iteration" if rank == 0 else "rdm_rank_resident_memory_bytes"

            def has(metrics: Metrics) -> bool:
                return name in metrics and (rank > 0 or metrics[name][0][1] == 2)

            seen["served"] = wait_until("it is served", lambda: scrape(address, port), has)
            # The port is served before the file is written.
            wait_until("there is a file", file.exists)
            seen["written"] = wait_until("it is written", lambda: read(file.read_text()), has)
        if training.iteration == 2 and variables:
            seen["files"] = [path.name for path in job.glob("*.prom")]
        if training.iteration == 2 and fails:
            raise RuntimeError("as planned")
        return step(batches)

    training.engine.train_step = watched  # type: ignore[method-assign]
    try:
        training.run()
    except RuntimeError as error:
        seen["error"] = str(error)
    with pytest.raises(urllib.error.URLError, match="refused"):
        scrape(address, port)
    return seen


@pytest.fixture
def port() -> int:
    """A port that is free at all addresses, including those of both nodes."""
    return (network.take_free_ports("127.0.0.2", 1, os.getpid()) or [0])[0]


@pytest.mark.parametrize(
    ("fails", "verdict", "iteration"), [(False, "finished", 4), (True, "failed", 2)], ids=["done", "failed"]
)
def test_each_node_exports_metrics_while_it_trains_and_the_job_after_its_end(
    tmp_path: Path, port: int, fails: bool, verdict: str, iteration: int
) -> None:
    metrics = processes.run(2, _train, str(tmp_path), port, {}, fails)
    for rank, seen in enumerate(metrics):
        node, job = {"job": "gpt-1", "node": f"n{rank}"}, {"job": "gpt-1"}
        for way in ("served", "written"):
            found: Metrics = seen[way]
            ((labels, resident),) = found["rdm_rank_resident_memory_bytes"]
            assert labels == {**node, "rank": str(rank)}
            assert resident > 2**20
            ((labels, free),) = found["rdm_node_disk_free_bytes"]
            assert (labels, free > 0) == (node, True)
            assert ("rdm_job_iteration" in found) == (rank == 0)
            if rank == 0:
                assert found["rdm_job_iterations"] == [(job, 4.0)]
                ((labels, step_s),) = found["rdm_job_step_seconds"]
                assert (labels, step_s > 0) == (job, True)
                states = [(labels["node"], labels["state"]) for labels, _ in found["rdm_job_node_state"]]
                assert states == [("n0", "running"), ("n1", "running")]
                # Nothing evaluates it.
                assert not {"rdm_job_verdict", "rdm_job_end_time_seconds"} & found.keys()
    (left,) = (tmp_path / "gpt-1").glob("*.prom")
    assert left.name == "metrics.n0.prom"
    ended = read(left.read_text())
    assert not [name for name in ended if name.startswith(("rdm_node", "rdm_rank"))]
    assert ended["rdm_job_iteration"][0][1] == iteration
    assert ended["rdm_job_end_time_seconds"][0][1] >= ended["rdm_job_start_time_seconds"][0][1] > 0
    assert [labels["verdict"] for labels, is_so in ended["rdm_job_verdict"] if is_so] == [verdict]


def test_training_exports_no_metrics_where_agents_export_them(tmp_path: Path, port: int) -> None:
    for seen in processes.run(2, _train, str(tmp_path), port, {JOB_VARIABLE: "gpt-1"}, False):
        assert seen == {"files": []}


def test_train_without_a_launcher_exports_metrics(tmp_path: Path) -> None:
    """A port that is in use is reported, and does not end the training."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        (tmp_path / "small.yaml").write_text(CONFIGURATION.replace("PORT", str(port)))
        arguments = ("train", str(tmp_path / "small.yaml"), "--job-dir", str(tmp_path / "alone"))
        with processes.Command(*arguments) as process:
            _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert f"/metrics is not served at 127.0.0.1:{port}: Address already in use." in errors
    (left,) = (tmp_path / "alone").glob("*.prom")
    ended = read(left.read_text())
    assert ended["rdm_job_iteration"] == [({"job": "alone"}, 4.0)]
    assert [labels["verdict"] for labels, is_so in ended["rdm_job_verdict"] if is_so] == ["finished"]

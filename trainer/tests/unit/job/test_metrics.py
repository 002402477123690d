# SPDX-License-Identifier: GPL-3.0-or-later
"""The text for Prometheus, read by its own parser; and the dashboard, which uses only existing metrics."""

from __future__ import annotations

import json
import math
import re
import socket
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rdm_job import exporter, network
from rdm_job.exporter import Exporter
from rdm_job.metrics import of_job, of_node
from rdm_job.protocol import State
from rdm_log.samples import Device, Sample
from tests.waiting import wait_until

DASHBOARD = Path(__file__).resolve().parents[4] / "docs/grafana-dashboard.json"
STATE = State(
    job='a "job"\\',
    state="running",
    nodes={"n1": "running", "n2": "lost"},
    restarts=2,
    started=1795250171.5,
    progress={
        "iteration": 30,
        "loss": 8.91,
        "tflops": 155.1,
        "lr": None,
        "tokens_per_second": math.nan,
        "step_seconds": 0.5,
    },
    verdict={"verdict": "suspect"},
)
GPU = Device(1, "NVIDIA A10", 49, 97, 1024, 4096, 120.5, 150, {"sm": 1695}, ("sw_thermal",), {"corrected": 4})
SAMPLE = Sample(0, 10**9, 2**30, 2**31, 0, {3: 2**20}, 100, 7, {"mlx5_0/1": 2}, (GPU,))


def read(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return the samples that Prometheus' parser reads from a text."""
    own = ("job", "node", "name", "gpu")
    return {
        (sample.name, tuple(value for key, value in sample.labels.items() if key not in own)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_job() -> None:
    text = of_job(STATE)
    (family,) = [one for one in text_string_to_metric_families(text) if one.name == "rdm_job_iteration"]
    assert family.samples[0].labels == {"job": 'a "job"\\'}
    found = read(text)
    assert found["rdm_job_iteration", ()] == 30
    assert found["rdm_job_step_seconds", ()] == 0.5
    assert found["rdm_job_flops_per_accelerator", ()] == 155.1e12
    assert found["rdm_job_restarts_total", ()] == 2
    assert found["rdm_job_verdict", ("suspect",)] == 1
    assert found["rdm_job_verdict", ("healthy",)] == 0
    assert not {"rdm_job_learning_rate", "rdm_job_tokens_per_second"} & {name for name, _ in found}


def test_a_node_and_its_gpus() -> None:
    found = read(of_node("gpt", "n2", SAMPLE))
    assert found["rdm_gpu_utilization_ratio", ()] == 0.97
    assert found["rdm_gpu_clock_hertz", ("sm",)] == 1695e6
    assert found["rdm_gpu_ecc_errors_total", ("corrected",)] == 4
    assert found["rdm_node_interface_errors_total", ("mlx5_0/1",)] == 2
    assert found["rdm_rank_resident_memory_bytes", ("3",)] == 2**20
    assert read(of_node("gpt", "n2", Sample(0))) == {}


def test_names_and_units_are_prometheus_own() -> None:
    for text in (of_job(STATE), of_node("gpt", "n2", SAMPLE)):
        for family in text_string_to_metric_families(text):
            assert re.fullmatch(r"rdm_[a-z_]+", family.name)
            assert family.documentation
            assert (family.type == "counter") == family.samples[0].name.endswith("_total")


def test_the_dashboard_queries_metrics_that_exist() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    expressions += [one["query"] for one in dashboard["templating"]["list"] if one["name"] == "job"]
    names = {name for expression in expressions for name in re.findall(r"rdm_\w+", expression)}
    full = {
        **STATE.progress,
        "lr": 1.0,
        "tokens_per_second": 1.0,
        "train_iterations": 9,
        "consumed_samples": 1,
    }
    known = read(
        of_job(State(job="a", nodes={"n": "running"}, progress=full, verdict={"verdict": "healthy"}))
    )
    assert names
    assert names <= {name for name, _ in known} | {name for name, _ in read(of_node("g", "n", SAMPLE))}


def test_prometheus_is_answered_at_one_address_only() -> None:
    port = (network.take_free_ports("127.0.0.2", 1, 77) or [0])[0]
    served = Exporter("127.0.0.2", port)
    try:
        served.text = of_node("gpt", "n2", SAMPLE)
        with urllib.request.urlopen(f"http://127.0.0.2:{port}/metrics?x=1") as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert read(answer.read().decode()) == read(served.text)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.2:{port}/")
        with pytest.raises(urllib.error.URLError, match="refused"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics")
        with pytest.raises(OSError, match="in use"):
            Exporter("127.0.0.2", port)
    finally:
        served.close()
    Exporter("127.0.0.2", port).close()


def test_idle_connections_are_bounded_and_block_no_scrape() -> None:
    port = (network.take_free_ports("127.0.0.2", 1, 8) or [0])[0]
    before = threading.active_count()
    served = Exporter("127.0.0.2", port)
    served.text = "a 1\n"
    try:
        with ExitStack() as silent:
            connections = [
                silent.enter_context(socket.create_connection(("127.0.0.2", port), timeout=60))
                for _ in range(4 * exporter._CONNECTIONS)
            ]
            # The oldest connections are closed in favour of the newest.
            for connection in connections[: 3 * exporter._CONNECTIONS]:
                assert connection.recv(1) == b""
            wait_until(
                "their threads end",
                lambda: threading.active_count() - before,
                lambda count: count <= 1 + exporter._CONNECTIONS,
            )
            with urllib.request.urlopen(f"http://127.0.0.2:{port}/metrics") as answer:
                assert answer.read() == b"a 1\n"
    finally:
        served.close()

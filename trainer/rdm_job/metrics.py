# SPDX-License-Identifier: GPL-3.0-or-later
"""A job and its nodes as Prometheus' text format (version 0.0.4), for a file or ``/metrics``.

Names and units follow Prometheus' conventions: base units, ``_total`` for counters, labels for the
dimensions to sum over. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from rdm_job.protocol import State
from rdm_log.samples import Device, Sample
from rdm_log.verdict import EXIT_CODES

_Row = tuple[Mapping[str, str], float | int | None]


def of_job(state: State) -> str:
    """Return the metrics of a job, for its master's node."""
    progress, job = state.progress, {"job": state.job}
    word = state.verdict.get("verdict")
    nodes = [({**job, "node": name, "state": how}, 1) for name, how in state.nodes.items()]
    learnt: float | None = progress.get("tflops")
    return _text(
        ("rdm_job_iteration", "gauge", "Steps done.", [(job, progress.get("iteration"))]),
        (
            "rdm_job_iterations",
            "gauge",
            "Steps of the whole training.",
            [(job, progress.get("train_iterations"))],
        ),
        ("rdm_job_loss", "gauge", "Loss at the last log line.", [(job, progress.get("loss"))]),
        (
            "rdm_job_step_seconds",
            "gauge",
            "Time of a step, at the last log line.",
            [(job, progress.get("step_seconds"))],
        ),
        ("rdm_job_learning_rate", "gauge", "Learning rate of the last step.", [(job, progress.get("lr"))]),
        (
            "rdm_job_tokens_per_second",
            "gauge",
            "Tokens that all processes together train with in a second.",
            [(job, progress.get("tokens_per_second"))],
        ),
        (
            "rdm_job_flops_per_accelerator",
            "gauge",
            "Floating-point operations of an accelerator in a second.",
            [(job, None if learnt is None else learnt * 1e12)],
        ),
        (
            "rdm_job_consumed_samples_total",
            "counter",
            "Samples taken until now.",
            [(job, progress.get("consumed_samples"))],
        ),
        ("rdm_job_restarts_total", "counter", "How often it was restarted.", [(job, state.restarts)]),
        ("rdm_job_start_time_seconds", "gauge", "When it began, in Unix time.", [(job, state.started)]),
        ("rdm_job_end_time_seconds", "gauge", "When it ended, in Unix time.", [(job, state.ended)]),
        (
            "rdm_job_verdict",
            "gauge",
            "1 for what the job is, 0 for what it is not.",
            [({**job, "verdict": name}, int(name == word)) for name in EXIT_CODES if word],
        ),
        ("rdm_job_node_state", "gauge", "1 for the state of each node.", nodes),
    )


def of_node(job: str, node: str, sample: Sample) -> str:
    """Return the metrics of a node."""
    here = {"job": job, "node": node}

    def devices(value: str) -> list[_Row]:
        return [(_labels(here, one), getattr(one, value)) for one in sample.devices]

    return _text(
        ("rdm_node_disk_free_bytes", "gauge", "Free where the job writes.", [(here, sample.disk_free)]),
        ("rdm_node_memory_used_bytes", "gauge", "Memory in use.", [(here, sample.memory_used)]),
        ("rdm_node_memory_limit_bytes", "gauge", "Memory there is.", [(here, sample.memory_limit)]),
        (
            "rdm_node_tcp_retransmitted_segments_total",
            "counter",
            "TCP segments sent again.",
            [(here, sample.resent)],
        ),
        (
            "rdm_node_interface_errors_total",
            "counter",
            "Packets with errors.",
            [({**here, "interface": name}, count) for name, count in sample.interfaces.items()],
        ),
        (
            "rdm_rank_resident_memory_bytes",
            "gauge",
            "Memory of a rank, with the processes that it started.",
            [({**here, "rank": str(rank)}, size) for rank, size in sample.ranks.items()],
        ),
        (
            "rdm_gpu_utilization_ratio",
            "gauge",
            "How busy a GPU is, from 0 to 1.",
            [(labels, None if value is None else value / 100) for labels, value in devices("percent")],
        ),
        ("rdm_gpu_temperature_celsius", "gauge", "Temperature of a GPU.", devices("celsius")),
        ("rdm_gpu_memory_used_bytes", "gauge", "Memory of a GPU in use.", devices("used")),
        ("rdm_gpu_memory_total_bytes", "gauge", "Memory of a GPU.", devices("total")),
        ("rdm_gpu_power_watts", "gauge", "What a GPU draws.", devices("watts")),
        (
            "rdm_gpu_clock_hertz",
            "gauge",
            "Clock of a GPU's domain.",
            [
                ({**_labels(here, one), "domain": domain}, mhz * 1e6)
                for one in sample.devices
                for domain, mhz in one.clocks.items()
            ],
        ),
        (
            "rdm_gpu_throttled",
            "gauge",
            "1 for each reason for which a GPU's clocks are held down.",
            [
                ({**_labels(here, one), "reason": reason}, 1)
                for one in sample.devices
                for reason in one.throttled
            ],
        ),
        (
            "rdm_gpu_ecc_errors_total",
            "counter",
            "Errors of a GPU's memory since its driver was loaded.",
            [
                ({**_labels(here, one), "kind": kind}, count)
                for one in sample.devices
                for kind, count in one.ecc.items()
            ],
        ),
        (
            "rdm_gpu_xid_errors_total",
            "counter",
            "Errors of a GPU that the driver has reported.",
            [(_labels(here, one), len(one.xids)) for one in sample.devices],
        ),
    )


def _labels(here: Mapping[str, str], device: Device) -> dict[str, str]:
    return {**here, "gpu": str(device.index), "name": device.name}


def _text(*families: tuple[str, str, str, Sequence[_Row]]) -> str:
    return "".join(_family(*family) for family in families)


def _family(name: str, kind: str, meaning: str, rows: Iterable[_Row]) -> str:
    """Return one metric without its unknown values; empty if all are."""
    lines = []
    for labels, value in rows:
        if value is not None and math.isfinite(value):
            given = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            lines.append(f"{name}{{{given}}} {value!r}\n")
    return f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n{''.join(lines)}" if lines else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

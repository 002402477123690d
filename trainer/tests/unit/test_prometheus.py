# SPDX-License-Identifier: GPL-3.0-or-later
"""An error of the export to Prometheus neither ends a training started by hand nor hides its error."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest
import torch.distributed as dist

from rdm_core import config as configuration
from rdm_core.atomic_file import write_atomically
from rdm_core.heartbeat import NODE_VARIABLE
from rdm_core.progress import Progress
from rdm_job import metrics, outlet
from rdm_job.measure import measure
from rdm_job.processes import JOB_VARIABLE
from rdm_trainer import prometheus
from rdm_trainer.distributed.collective import Collective
from rdm_trainer.prometheus import exporting
from tests.waiting import wait_until

CONFIG = configuration.from_dict({"logging": {"prometheus": True}})


class Alone:
    """The only rank."""

    def gather(self, own: Any) -> list[Any]:
        return [own]


ALONE = cast(Collective, Alone())


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "_EACH_S", 0.01)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setenv(NODE_VARIABLE, "n1")
    monkeypatch.delenv(JOB_VARIABLE, raising=False)


@pytest.fixture
def progress(tmp_path: Path) -> Progress:
    return Progress(tmp_path / "elsewhere/progress.json", 3)


def test_unwritable_file_is_reported_once_and_retried(
    tmp_path: Path, progress: Progress, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tried: list[str] = []

    def counted(path: Path, text: str) -> None:
        tried.append(text)
        write_atomically(path, text)

    monkeypatch.setattr(outlet, "write_atomically", counted)
    job = tmp_path / "job"
    with exporting(CONFIG, job, ALONE, progress):
        wait_until("it was tried three times", lambda: len(tried) > 2)
        job.mkdir()
        wait_until("it is written", (job / "metrics.n1.prom").exists)
        job.rename(tmp_path / "gone")
        before = len(tried)
        wait_until("it was tried three times more", lambda: len(tried) > before + 2)
    message = (
        f"{job}/metrics.n1.prom cannot be written: No such file or directory. It is tried again each time.\n"
    )
    assert capfd.readouterr().err == message


def test_failed_measurement_is_reported_once_and_retried(
    tmp_path: Path, progress: Progress, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    measured: list[int] = []

    def fails(*arguments: Any) -> Any:
        measured.append(os.getpid())
        if len(measured) < 4:
            raise KeyError("the driver")
        return measure(*arguments)

    monkeypatch.setattr(prometheus, "measure", fails)
    with exporting(CONFIG, tmp_path, ALONE, progress):
        wait_until("it is written", (tmp_path / "metrics.n1.prom").exists)
    assert capfd.readouterr().err == "Prometheus gets no metrics now: KeyError: 'the driver'.\n"


@pytest.mark.parametrize("where", ["of_job", "of_node"])
def test_the_trainings_own_error_is_the_one_that_is_raised(
    tmp_path: Path, progress: Progress, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def fails(*_: Any) -> str:
        raise RuntimeError("as planted")

    monkeypatch.setattr(metrics, where, fails)
    with pytest.raises(ZeroDivisionError) as raised, exporting(CONFIG, tmp_path, ALONE, progress):
        raise ZeroDivisionError
    assert raised.value.__context__ is None
    # The file does not keep older metrics, which would be read as current.
    left = tmp_path / "metrics.n1.prom"
    assert left.exists() == (where == "of_node")


def test_file_that_cannot_be_written_at_the_end_is_not_reported_again(
    tmp_path: Path, progress: Progress, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "metrics.n1.prom"

    def is_full(path: Path, text: str) -> None:
        if "rdm_job_verdict{" in text:  # at the end
            raise OSError(28, "No space left on device")
        write_atomically(path, text)

    monkeypatch.setattr(outlet, "write_atomically", is_full)
    with exporting(CONFIG, tmp_path, ALONE, progress):
        wait_until("it is written", file.exists)
    assert not file.exists()
    message = "cannot be written: No space left on device. The last metrics are removed."
    assert capfd.readouterr().err == f"{file} {message}\n"

# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a job's numbers go besides its log: TensorBoard's event files, Weights & Biases, MLflow.

None of them may end a training: one that fails is dropped, with one sentence. All ranks wait while a server
is contacted at the start, so there is a timeout; the user's own takes precedence.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rdm_core.errors import TrainerError

if TYPE_CHECKING:
    from rdm_core.config import Config
    from rdm_core.config.finetune import FinetuneConfig

_FORBIDDEN = re.compile(r"[^\w\-. :/]")
"""Characters that MLflow allows in no name."""
_TIMEOUTS = {
    "WANDB_INIT_TIMEOUT": "30",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
}
"""The libraries' own variables, in seconds and retries: a silent server is dropped after half a minute."""


class Writer(Protocol):
    """Takes numbers."""

    def add(self, values: Mapping[str, float], iteration: int, samples: int | None) -> None:
        """Take an iteration's numbers by name; ``samples`` is None if samples are no axis of theirs."""

    def close(self) -> None:
        """Write what is left."""


class _TensorBoard:
    def __init__(self, config: Config | FinetuneConfig, job_dir: Path) -> None:  # noqa: ARG002
        from torch.utils.tensorboard import SummaryWriter

        self._events = SummaryWriter(str(job_dir / "tensorboard"))

    def add(self, values: Mapping[str, float], iteration: int, samples: int | None) -> None:
        for tag, value in values.items():
            self._events.add_scalar(tag, value, iteration)
            if samples is not None:
                self._events.add_scalar(f"{tag} vs samples", value, samples)

    def close(self) -> None:
        self._events.close()


class _Wandb:
    def __init__(self, config: Config | FinetuneConfig, job_dir: Path) -> None:
        import wandb

        # wandb's own variables give project, key and server. A resumed job continues its run.
        record = job_dir / ".wandb-run"
        before = _kept(record)
        self._run = wandb.init(
            id=before, name=job_dir.name, dir=str(job_dir), config=_shown(config), resume="allow"
        )
        if before is None:
            record.write_text(self._run.id, encoding="utf-8")

    def add(self, values: Mapping[str, float], iteration: int, samples: int | None) -> None:
        more = {} if samples is None else {"samples": samples}
        self._run.log({**values, **more}, step=iteration)

    def close(self) -> None:
        self._run.finish()


class _Mlflow:
    def __init__(self, config: Config | FinetuneConfig, job_dir: Path) -> None:
        import mlflow

        self._mlflow = mlflow
        record = job_dir / ".mlflow"
        before = _kept(record)
        run = mlflow.start_run(run_id=before, run_name=None if before else job_dir.name)
        if before is None:
            record.write_text(run.info.run_id, encoding="utf-8")
            mlflow.log_dict(_shown(config), "config.json")

    def add(self, values: Mapping[str, float], iteration: int, samples: int | None) -> None:
        more = {} if samples is None else {"samples": float(samples)}
        named = {_FORBIDDEN.sub("", name).strip(): value for name, value in {**values, **more}.items()}
        # The server may be slow or unreachable.
        self._mlflow.log_metrics(named, step=iteration, synchronous=False)

    def close(self) -> None:
        self._mlflow.end_run()


_WRITERS: dict[str, Callable[[Any, Path], Writer]] = {"wandb": _Wandb, "mlflow": _Mlflow}


def missing(config: Config | FinetuneConfig) -> Iterator[str]:
    """Yield a sentence for each configured library that is not installed."""
    for name in config.logging.trackers:
        if importlib.util.find_spec(name) is None:
            yield f"logging.trackers has {name}, which is not installed: install it, or leave it out."


class Writers:
    """All writers of a job.

    Args:
        config: The job.
        job_dir: Where their files go; None on a rank that writes nothing.

    Raises:
        TrainerError: A library is missing.
    """

    def __init__(self, config: Config | FinetuneConfig, job_dir: Path | None) -> None:
        self._open: dict[str, Writer] = {}
        if job_dir is None:
            return
        for problem in missing(config):
            raise TrainerError(problem)
        wanted: dict[str, Callable[[Any, Path], Writer]] = {
            **({"tensorboard": _TensorBoard} if config.logging.tensorboard else {}),
            **{name: _WRITERS[name] for name in config.logging.trackers},
        }
        for variable, value in _TIMEOUTS.items():
            os.environ.setdefault(variable, value)
        for name, make in wanted.items():
            with self._dropped_on_error(name):
                self._open[name] = make(config, job_dir)

    def add(self, values: Mapping[str, float], iteration: int, samples: int | None = None) -> None:
        """Pass numbers to all of them."""
        for name, writer in list(self._open.items()):
            with self._dropped_on_error(name):
                writer.add(values, iteration, samples)

    def close(self) -> None:
        """Let all of them write what is left."""
        for name, writer in list(self._open.items()):
            with self._dropped_on_error(name):
                writer.close()

    @contextlib.contextmanager
    def _dropped_on_error(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each library has errors of its own
            self._open.pop(name, None)
            lines = str(error).strip().splitlines() or [type(error).__name__]
            # Standard error may be a file on the same full disk.
            with contextlib.suppress(OSError):
                print(f"Nothing more is written to {name}: {lines[0]}", file=sys.stderr, flush=True)


def _kept(record: Path) -> str | None:
    """Return the id of the run that a job continues, if there is one."""
    return record.read_text(encoding="utf-8").strip() or None if record.exists() else None


def _shown(config: Config | FinetuneConfig) -> dict[str, Any]:
    """Return a configuration without possible secrets."""
    plain = config.to_dict()
    plain["launcher"] = {key: value for key, value in plain["launcher"].items() if key != "env"}
    return plain

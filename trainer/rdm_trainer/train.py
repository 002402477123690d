# SPDX-License-Identifier: GPL-3.0-or-later
"""The training of one rank, from process groups to the last checkpoint.

The loop never waits for the device between log lines, except once after the first step: losses are summed on
the device.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rdm_core.config import Config
from rdm_core.errors import DONE, FAILED, STOPPED, TrainerError
from rdm_core.heartbeat import NODE_VARIABLE, HeartbeatWriter
from rdm_core.progress import Progress
from rdm_trainer import metrics, process
from rdm_trainer.checkpoint.files import CHECKPOINTS, scan
from rdm_trainer.checkpoint.storage import Storage
from rdm_trainer.checkpoint.store import Checkpoints, Found, find
from rdm_trainer.compute_time import ComputeTime
from rdm_trainer.data import loaders
from rdm_trainer.data.index_maps.maker import MapMaker
from rdm_trainer.data.order import Order
from rdm_trainer.distributed.collective import Collective, Flags
from rdm_trainer.distributed.leaders import find_leaders
from rdm_trainer.distributed.pipeline_parallel.pipeline import Fill
from rdm_trainer.engines import create
from rdm_trainer.engines.engine import StepResult
from rdm_trainer.flight_recorder import FlightRecorder
from rdm_trainer.optim.schedule import LearningRate, WeightDecay
from rdm_trainer.profiler import Profiler
from rdm_trainer.prometheus import exporting
from rdm_trainer.step_trace import StepTrace
from rdm_trainer.tracker import Tracker
from rdm_trainer.weights.sources import CheckpointSource, Source, fill, open_source, require_model


def run(config: Config, job_dir: Path) -> int:
    """Train in this process, which is one rank of the job.

    Returns:
        The exit code: 0 when the training is done or ended in order, 130 when Ctrl-C ended it. Its checkpoint
        is written in either case.

    Raises:
        TrainerError: The user can fix it; for example, the last step could not be saved.
    """
    start = process.Start()
    start.end("imports")
    timeout = config.launcher.distributed_timeout
    optimisation, backend = config.optimisation, config.launcher.backend
    process.require_device(optimisation.precision, backend, fp8_recipe=optimisation.fp8_recipe)
    process.require_alone(job_dir)
    # One process of each node checks it: the others would read the same.
    if os.environ.get("LOCAL_RANK", "0") == "0" and not scan(job_dir / CHECKPOINTS).steps:
        _weights(config)
    process.join(backend, timeout)
    with process.Stop() as stop:
        training = Training(config, job_dir, stop=stop, start=start)
        training.run()
    # Only after an orderly end: after an error the others may never get here; the launcher ends them.
    training.close()
    dist.barrier()
    dist.destroy_process_group()
    return STOPPED if stop.received == signal.SIGINT else DONE


def _weights(config: Config) -> Source | None:
    """Open the weights of ``checkpoint.init_from``.

    Raises:
        TrainerError: There are none, or they are of another model.
    """
    where = config.checkpoint.init_from
    if where is None:
        return None
    try:
        source = open_source(Path(where))
        require_model(source, config)
    except TrainerError as problem:
        raise TrainerError(f"checkpoint.init_from cannot be taken: {problem}") from None
    return source


def _layers(stages: Mapping[int, Sequence[str]]) -> dict[str, Any]:
    """Return the layers that were built and the pipeline's partition, by the job info's names.

    Args:
        stages: The kinds of the blocks of each stage.
    """
    blocks = [kind for kinds in stages.values() for kind in kinds]
    return {
        "PARTITION": "-".join(str(len(stages[stage])) for stage in sorted(stages)),
        # A T5's configured layers are the encoder's.
        "NUM_LAYERS": len([kind for kind in blocks if kind != "DecoderBlock"]),
    }


class _Sums:
    """Losses since the last log line, added up on the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.clear()

    def clear(self) -> None:
        """Start over."""
        self._loss = torch.zeros((), device=self._device)
        self._nan = torch.zeros((), dtype=torch.int64, device=self._device)
        self._balance: torch.Tensor | None = None
        self.steps, self.skipped, self.samples = 0, 0, 0
        self.begin = time.monotonic()

    def add(self, result: StepResult, samples: int) -> None:
        """Add a step and the number of its samples, without waiting for the device."""
        loss, skipped = result.mean_loss, result.skipped
        self.steps += 1
        self.samples += samples
        self.skipped += skipped
        finite = torch.isfinite(loss)
        self._nan += ~finite
        if not skipped:
            self._loss += torch.where(finite, loss, torch.zeros_like(loss))
        if result.balance is not None:
            self._balance = result.balance + (0.0 if self._balance is None else self._balance)

    def other_losses(self) -> dict[str, float]:
        """Return the averages of other logged losses: a Mixture of Experts' load balancing."""
        if self._balance is None:
            return {}
        return {metrics.LOAD_BALANCING_LOSS: float(self._balance) / self.steps}

    def read(self) -> tuple[float, int]:
        """Return the average loss of the steps that count (NaN if none does), and the number of NaN steps."""
        nan = int(self._nan)
        count = self.steps - max(self.skipped, nan)
        return (float(self._loss) / count if count > 0 else float("nan")), nan


class Training:
    """One job's training in this process. Every rank makes one; the process groups must be initialised.

    Args:
        config: The job, checked.
        job_dir: Where checkpoints, TensorBoard's events and progress go.
        stop: Its attribute ``received`` says that a signal asked for an end.
        start: The process's; it begins here by default. ``exit_duration_minutes`` counts from its beginning.
        write: Takes the log's lines; standard output by default.
    """

    def __init__(
        self,
        config: Config,
        job_dir: Path,
        *,
        stop: Any = None,
        start: process.Start | None = None,
        write: Callable[[str], None] | None = None,
    ) -> None:
        self.config, self.job_dir = config, job_dir
        self._plain = config.to_dict()
        self._stop = stop
        self._start = start or process.Start(time.monotonic())
        self._write = write or process.write_line
        self._is_first = dist.get_rank() == 0
        self._is_last = dist.get_rank() == dist.get_world_size() - 1
        timeout = config.launcher.distributed_timeout
        self._collective = Collective(timeout)
        self._milestone("after megatron is initialized")
        self._compute_time = ComputeTime(HeartbeatWriter(), process.device())
        self.topology = create.create_topology(config)
        kinds = {"world": self._collective.group, **self.topology.kinds}
        self._recorder = FlightRecorder(self._compute_time.heartbeat, kinds, self._announce)
        self._start.end("process groups")
        # What the user has to change is refused before anything is written.
        found = find(config, job_dir / CHECKPOINTS, self._collective, self._announce)
        first_weights = None if found else self._first_weights()
        self._lock = contextlib.ExitStack()
        self._lock.enter_context(process.alone(job_dir))
        self._progress = Progress(job_dir / "progress.json", config.train_iterations)
        self._note(phase="starting")
        self.engine = create.create(
            config,
            self.topology,
            fill=first_weights,
            on_loss=lambda loss: self._compute_time.note_loss(loss),
        )
        # Each process reports its node: a launcher may have placed it elsewhere than configured.
        own = (self.topology.pipeline_rank, self.engine.blocks, os.environ.get(NODE_VARIABLE, ""))
        built = self._collective.gather(own)
        stages = {stage: blocks for stage, blocks, _ in built}
        nodes = len({node for *_, node in built})
        self._compute_time.heartbeat.built({**self.engine.shape, **_layers(stages), "NNODES": nodes})
        self._schedule = LearningRate.of(config)
        self._weight_decay = WeightDecay.of(config)
        self._milestone("after model, optimizer, and learning rate scheduler are built")
        if config.optimisation.cuda_graphs and self.engine.device.type == "cpu":
            self._announce("  optimisation.cuda_graphs has no effect on a CPU")
        self._start.end("model")
        self.iteration = 0
        self.consumed_samples = 0
        self._scheduler_samples = 0
        self._skipped = 0
        self._loss_scale: float = 1.0
        self._batch = config.optimisation.global_batch_size
        self.checkpoints = Checkpoints(
            config,
            self.engine,
            self.topology,
            self._collective,
            job_dir / CHECKPOINTS,
            self._announce,
        )
        self._last_iteration = config.train_iterations
        self._order = Order.of(config)
        if found:
            self._resume(found)
            self._start.end("checkpoint")
        else:
            self._progress.begin(0, [])
        self._loaders = self._open_data()
        self._milestone("after dataloaders are built")
        self._start.end("data")
        self._announce("done with setup ...")
        self._tracker = Tracker(
            config, job_dir if self._is_first else None, world_size=self.topology.world_size
        )
        self._trace = StepTrace(
            config.traced_steps,
            self.engine,
            self.topology,
            self._collective,
            job_dir,
            sees_collectives=not config.optimisation.compile,
        )
        self._profiler = Profiler(config, self.engine, self.topology.rank, job_dir)
        self._start.end("trackers")
        self._sums = _Sums(self.engine.device)
        self._is_memory_written = False
        self.reason = "the training is done"

    # Lines for people.

    def _announce(self, line: str) -> None:
        if self._is_first:
            self._write(line)

    def _milestone(self, name: str) -> None:
        self._announce(metrics.datetime_line(name, datetime.datetime.now()))

    def _note(self, **changes: Any) -> None:
        if self._is_first:
            self._progress.write(**changes)

    # Setting up.

    def _first_weights(self) -> Fill | None:
        """Return what fills the layers from ``checkpoint.init_from``, if it is given."""
        error, source = None, None
        try:
            source = _weights(self.config)
        except TrainerError as problem:
            error = str(problem)
        error = self._collective.first_error(error)
        if error is not None:
            raise TrainerError(error)
        if source is None:
            return None
        # On disks that nodes do not share, each node takes the newest checkpoint that it has.
        steps = self._collective.gather(source.iteration if isinstance(source, CheckpointSource) else None)
        if len(set(steps)) > 1:
            found = " and ".join(str(step) for step in sorted({step or 0 for step in steps}))
            raise TrainerError(
                f"checkpoint.init_from is {self.config.checkpoint.init_from}, whose newest checkpoints on "
                f"the nodes are of iterations {found}; bring the same one to all nodes."
            )
        storage = Storage(source.where.parent, self._collective, create=False)
        if isinstance(source, CheckpointSource):
            # Only our own checkpoints have checksums.
            storage.verify(source.where.name, source.sizes)
            own = source
            storage.all_or_none(source.where.name, (), lambda: own.saved)
        self._announce(f"  the weights are those of {source.where}")
        return fill(source)

    def _resume(self, found: Found) -> None:
        self._note(phase="loading")
        state = self.checkpoints.resume(found)
        if self.config.checkpoint.init_from is not None:
            self._announce("  its own checkpoint counts; only the first start takes checkpoint.init_from")
        self.iteration = int(state["iteration"])
        self.consumed_samples = int(state["consumed_samples"])
        self._scheduler_samples = int(state["moved_samples"])
        self._skipped = int(state["skipped"])
        self._schedule = LearningRate.of(self.config, self.iteration - self._skipped, self._scheduler_samples)
        self._progress.begin(self.iteration, state["curve"])
        self._last_iteration = self.iteration + self._steps_left()
        self._note(consumed_samples=self.consumed_samples, train_iterations=self._last_iteration)
        self._order = Order.of(
            self.config,
            # Checkpoints of earlier releases have none.
            state.get("data"),
            iteration=self.iteration,
            consumed_samples=self.consumed_samples,
        )
        if self._order.note is not None:
            self._announce(self._order.note)

    def _steps_left(self) -> int:
        """Return how many steps the training still has to take.

        Samples count, if the configuration gives them: earlier steps may have had another batch size.
        """
        optimisation = self.config.optimisation
        if optimisation.train_samples is None:
            return max(0, self.config.train_iterations - self.iteration)
        return self.config.batches.steps(self.consumed_samples, optimisation.train_samples)

    def _state(self) -> dict[str, Any]:
        return {
            "iteration": self.iteration,
            "consumed_samples": self.consumed_samples,
            "moved_samples": self._scheduler_samples,
            "skipped": self._skipped,
            "loss_scale": self._loss_scale,
            "data": self._order.state(),
            # Describes the weights, for readers of the weights alone.
            "config": {
                "model": self._plain["model"],
                "data": {"tokenizer": self._plain["data"]["tokenizer"]},
            },
            "curve": self._collective.gather(self._progress.curve if self._is_first else None)[0],
        }

    def _open_data(self) -> loaders.Loaders:
        opened = loaders.build(
            self.config,
            data_rank=self.topology.batch_rank,
            data_size=self.topology.batch_ranks,
            consumed_samples=self.consumed_samples,
            order=self._order,
            maps=MapMaker(
                leads=functools.cache(self._leads_in),
                wait_until=self._collective.wait_until,
                first_error=self._collective.first_error,
                log=self._announce,
            ),
        )
        if opened.train is None:
            raise TrainerError(
                "There is no training data: data.split or data.train leaves none; give it a part above 0."
            )
        samples, batch = len(opened.valid or ()), self.config.optimisation.global_batch_size
        logging = self.config.logging
        if logging.eval_interval and logging.eval_iterations and samples < batch:
            self._announce(f"no validation: the data has {samples} samples for it, and a batch takes {batch}")
        return opened

    def _leads_in(self, directory: Path) -> bool:
        """Return whether this rank leads those that see a directory."""
        # If maps are missing, the rank that writes them reports what is wrong with the directory.
        with contextlib.suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
        leaders, _ = find_leaders(directory, self._collective)
        return leaders[self._collective.rank] == self._collective.rank

    # Training.

    def run(self) -> None:
        """Train to the end, or until something requests an earlier one; save the last step.

        Raises:
            TrainerError: The data ends too early, or the last step could not be saved.
        """
        with exporting(self.config, self.job_dir, self._collective, self._progress):
            self._run()

    def _run(self) -> None:
        self._milestone("before the start of training step")
        self._note(phase="training")
        flags = Flags(self._collective, 3)
        batches = self._loaders.train
        assert batches is not None
        self._sums.clear()
        if not self._steps_left():
            self._report_nothing_left()
        while self._steps_left():
            self._step(batches)
            if "first step" not in self._start.stages:
                self._report_start()
            if self._is_due(self.config.logging.interval):
                self._log()
            if self._is_due(self.config.logging.eval_interval):
                self._evaluate("valid", f"iteration {self.iteration}")
            if self._is_due(self.config.checkpoint.interval):
                self._save()
            if self._ends(flags):
                break
        flags.settle()
        self._milestone("after training is done")
        self._note(phase="saving")
        self._save()
        self.checkpoints.finish()
        self._note(checkpoint=self.checkpoints.newest)
        is_saved = self.checkpoints.newest == self.iteration
        if not is_saved:
            self.reason += ", and its last step could not be saved"
        if not self._steps_left():
            self._note(phase="evaluating")
            self._evaluate("valid", "the end of training for val data")
            self._evaluate("test", "the end of training for test data")
        self._announce(f"exiting at iteration {self.iteration}: {self.reason}")
        self._note(phase="done", reason=self.reason, iteration=self.iteration)
        if not is_saved:
            newest = self.checkpoints.newest
            where = f"the checkpoint of iteration {newest}" if newest else "the start"
            raise TrainerError(
                f"Iteration {self.iteration}, the last one, could not be saved, as the log says; repair "
                f"that, start the job again, and it goes on from {where}.",
                exit_code=FAILED,
            )

    def _report_nothing_left(self) -> None:
        samples = self.config.optimisation.train_samples
        wanted = f"train_iterations is {self.config.train_iterations}"
        reached = f"iteration {self.iteration}"
        if samples is not None:
            wanted, reached = f"train_samples is {samples}", f"{self.consumed_samples} samples"
        self.reason = "nothing was left to train"
        self._announce(
            f"nothing is left to train: the checkpoint has reached {reached}, and optimisation.{wanted}; "
            "give more to train on"
        )

    def _report_start(self) -> None:
        if self._is_first:
            with self._compute_time.waiting():
                _ = self._result.loss
        self._start.end("first step")
        self._announce(metrics.start_line(self._start.stages))

    def _is_due(self, interval: int) -> bool:
        return interval > 0 and self.iteration % interval == 0

    def _step(self, batches: Iterator[Any]) -> None:
        batch = self.config.batches.at(self.consumed_samples)
        self._use_batch(batch)
        self.engine.set_lr(self._learning_rate())
        if self._weight_decay.form != "constant":
            scheduler_steps = self.iteration - self._skipped
            self.engine.set_weight_decay(self._weight_decay.after(scheduler_steps, self._scheduler_samples))
        interval = self.config.logging.interval
        self._compute_time.begin(
            self.iteration + 1, measured=interval > 0 and (self.iteration + 1) % interval == 0
        )
        try:
            with self._trace.step(self.iteration + 1), self._profiler.step(self.iteration + 1):
                self._result = self.engine.train_step(batches)
        except StopIteration:
            raise TrainerError(
                f"The training data ends after {self.consumed_samples} samples, before iteration "
                f"{self._last_iteration}; train for fewer, or set data.sampler to cyclic."
            ) from None
        self._compute_time.end()
        skipped = self._result.skipped
        self._sums.add(self._result, batch)
        self.iteration += 1
        self.consumed_samples += batch
        self._scheduler_samples += 0 if skipped else batch
        self._skipped += skipped
        self._loss_scale = self._result.loss_scale

    def _use_batch(self, samples: int) -> None:
        if samples != self._batch:
            self._batch = samples
            self.engine.set_batch(samples)

    def _learning_rate(self) -> float:
        return self._schedule.after(self.iteration - self._skipped, self._scheduler_samples)

    def _log(self) -> None:
        """Write the line of the steps since the last one. The device is waited for here."""
        with self._compute_time.waiting():
            loss, nan = self._sums.read()
            others = self._sums.other_losses()
        self._compute_time.write_if_due(self.engine.work)
        seconds = (time.monotonic() - self._sums.begin) / self._sums.steps
        batch = self._sums.samples / self._sums.steps
        step = metrics.Step(
            iteration=self.iteration,
            train_iterations=self._last_iteration,
            consumed_samples=self.consumed_samples,
            milliseconds=1000 * seconds,
            learning_rate=self._learning_rate(),
            global_batch_size=self._batch,
            losses={metrics.LM_LOSS: loss, **others},
            loss_scale=self._loss_scale,
            grad_norm=self._result.grad_norm,
            skipped=self._sums.skipped,
            nan=nan,
            throughput=self._tracker.throughput(seconds, batch),
        )
        if self._is_last:
            self._write(metrics.training_line(step))
        if not self._is_memory_written:
            self._is_memory_written = True
            self._write_memory()
        if self._is_first:
            self._tracker.step(step)
            self._progress.add_loss(self.iteration, loss)
            self._note(
                iteration=self.iteration,
                loss=loss,
                lr=step.learning_rate,
                step_seconds=seconds,
                consumed_samples=self.consumed_samples,
                **self._tracker.rates(seconds, batch),
            )
        self._sums.clear()

    def _write_memory(self) -> None:
        if self.topology.data_rank == 0:
            self._write(metrics.memory_line(self.topology.rank, self.iteration, **process.memory()))

    def _evaluate(self, split: str, where: str) -> None:
        """Write the average loss over the first batches of a split: the same ones each time."""
        batches = getattr(self._loaders, split)
        if batches is None:
            return
        batch = self.config.optimisation.global_batch_size
        count = min(self.config.logging.eval_iterations, len(batches) // batch)
        if count == 0:
            return
        began = time.monotonic()
        self._note(phase="evaluating")
        batches.restart()
        self._use_batch(batch)
        loss = sum(self.engine.evaluate(batches) for _ in range(count)) / count
        losses: Mapping[str, float] = {metrics.LM_LOSS: loss}
        if self._is_last:
            for line in metrics.validation_lines(where, losses):
                self._write(line)
        if self._is_first:
            self._tracker.evaluation(self.iteration, split, losses)
            self._note(
                validation={"iteration": self.iteration, "split": split, "loss": loss}, phase="training"
            )
        # The next steps' time does not include the evaluation.
        self._sums.begin += time.monotonic() - began

    def _save(self) -> None:
        if self.iteration in (self.checkpoints.newest, self.checkpoints.pending, 0):
            return
        began = time.monotonic()
        self._note(phase="saving")
        if self.checkpoints.save(self.iteration, self._state()) and self.checkpoints.pending is None:
            self._note(checkpoint=self.iteration)
        self._note(phase="training")
        self._sums.begin += time.monotonic() - began

    def _ends(self, flags: Flags) -> bool:
        """Return whether any rank wants to end, and commit a checkpoint that all have written."""
        settings = self.config.checkpoint
        minutes = (time.monotonic() - self._start.began) / 60
        pending = self.checkpoints.pending
        agreed = flags.exchange(
            [
                self._stop is not None and self._stop.received is not None,
                settings.exit_duration_minutes is not None and minutes > settings.exit_duration_minutes,
                pending is not None and self.checkpoints.is_writing,
            ]
        )
        stopped, over, writing = agreed
        if pending is not None and pending != self.iteration and not writing and self.checkpoints.finish():
            self._note(checkpoint=self.checkpoints.newest)
        if stopped:
            name = self._stop.received.name if self._stop and self._stop.received else "a signal"
            self.reason = f"{name} requested it"
        elif over:
            self.reason = f"{settings.exit_duration_minutes:g} minutes are over"
        elif settings.exit_interval is not None and self.iteration % settings.exit_interval == 0:
            self.reason = f"the iteration is a multiple of {settings.exit_interval}"
        else:
            return False
        return True

    def close(self) -> None:
        """Release threads and files."""
        self._trace.close()
        self._loaders.close()
        self._tracker.close()
        self._recorder.close()
        self._compute_time.close()
        self.engine.close()
        self._lock.close()

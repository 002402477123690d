# SPDX-License-Identifier: GPL-3.0-or-later
"""Reports transformers' training in a job's log, progress and trackers, and ends it early."""

# ruff: noqa: ARG002  # transformers names the arguments

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rdm_core.config.finetune import FinetuneConfig
from rdm_core.progress import Progress, finite
from rdm_trainer import metrics
from rdm_trainer.compute_time import ComputeTime
from rdm_trainer.distributed.collective import Collective, Flags
from rdm_trainer.finetune.checkpoints import Checkpoints
from rdm_trainer.process import Stop
from rdm_trainer.writers import Writers

METRICS = "metrics.jsonl"


class Reporter(TrainerCallback):
    """Writes Megatron's log lines, the heartbeat, the progress, JSON lines and the trackers' numbers.

    Args:
        config: The fine-tuning.
        job_dir: The job's directory.
        collective: All ranks.
        checkpoints: The job's.
        compute_time: The rank's.
        progress: The job's.
        stop: Says whether a signal has requested an end.
        write: Takes the log's lines.
        answer: Lets the model answer some prompts, on all ranks; returns the log's lines about them.
    """

    def __init__(
        self,
        config: FinetuneConfig,
        job_dir: Path,
        *,
        collective: Collective,
        checkpoints: Checkpoints,
        compute_time: ComputeTime,
        progress: Progress,
        stop: Stop,
        write: Callable[[str], None],
        answer: Callable[[], list[str]],
    ) -> None:
        self._config, self._job_dir = config, job_dir
        self._checkpoints, self._compute_time, self._progress = checkpoints, compute_time, progress
        self._stop, self._write, self._answer = stop, write, answer
        self._flags = Flags(collective, 1)
        self._world = collective.size
        self._is_first = collective.rank == 0
        self._is_last = collective.rank == collective.size - 1
        self._writers = Writers(config, job_dir if self._is_first else None)
        self._batch = config.global_batch_size(collective.size)
        self._logged = 0
        self._tokens = 0.0
        self._began = 0.0
        self.reason = "the training is done"

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start from the trainer's current step."""
        self._logged = state.global_step
        self._began = time.monotonic()
        if self._is_first:
            curve = [[entry["step"], entry["loss"]] for entry in state.log_history if "loss" in entry]
            self._progress.begin(state.global_step, curve)
            self._progress.write(phase="training", train_iterations=state.max_steps)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Report the step that this rank begins."""
        interval = self._config.logging.interval
        step = state.global_step + 1
        self._compute_time.begin(step, measured=interval > 0 and step % interval == 0)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Decide with the other ranks whether the training ends after this step."""
        self._compute_time.end()
        is_over = state.global_step >= state.max_steps
        (stopped,) = self._flags.exchange([self._stop.received is not None])
        exits = self._config.checkpoint.exit_interval
        if stopped:
            # Another rank may have received it.
            self.reason = f"{self._stop.received.name if self._stop.received else 'a signal'} requested it"
        elif exits is not None and state.global_step % exits == 0 and not is_over:
            self.reason = f"the iteration is a multiple of {exits}"
        elif not is_over:
            return
        control.should_training_stop = control.should_save = True
        if is_over:
            control.should_evaluate = args.eval_strategy != "no"
        elif stopped:
            # After a signal there may be little time.
            control.should_evaluate = False

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Finish the exchange that is under way."""
        self._flags.settle()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write a line about the steps since the last one, or about an evaluation."""
        logs = logs or {}
        if "loss" in logs:
            self._step(state, logs)
        elif "eval_loss" in logs:
            self._evaluation(state.global_step, float(logs["eval_loss"]))
        else:
            return
        if self._is_first:
            record = {"iteration": state.global_step, "time": time.time(), **logs}
            # A full disk must not end a training.
            with contextlib.suppress(OSError), (self._job_dir / METRICS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(finite(record)) + "\n")

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Let the model answer prompts, and log its answers."""
        answers = self._answer()
        if self._is_last:
            for line in answers:
                self._write(f" sample at iteration {state.global_step} | {line}")
        self._pause()

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Commit the checkpoint, which all ranks have written."""
        self._checkpoints.commit(state.global_step)
        if self._is_first:
            self._progress.write(checkpoint=state.global_step)
        self._pause()

    def close(self) -> None:
        """Write what is left."""
        self._writers.close()
        self._compute_time.close()

    def _step(self, state: TrainerState, logs: Mapping[str, Any]) -> None:
        self._compute_time.write_if_due("")
        now = time.monotonic()
        steps = max(1, state.global_step - self._logged)
        seconds = (now - self._began) / steps
        tokens = float(logs.get("num_tokens", 0.0))
        rate = (tokens - self._tokens) / (seconds * steps) if tokens else None
        self._began, self._logged, self._tokens = now, state.global_step, tokens
        loss = float(logs["loss"])
        throughput = {"samples per second": f"{self._batch / seconds:.3f}"}
        if rate is not None:
            throughput["tokens per gpu per second (tgs)"] = f"{rate / self._world:.3f}"
        step = metrics.Step(
            iteration=state.global_step,
            train_iterations=state.max_steps,
            consumed_samples=state.global_step * self._batch,
            milliseconds=1000 * seconds,
            learning_rate=float(logs["learning_rate"]),
            global_batch_size=self._batch,
            losses={metrics.LM_LOSS: loss},
            grad_norm=float(logs["grad_norm"]) if "grad_norm" in logs else None,
            nan=int(math.isnan(loss)),
            throughput=throughput,
        )
        if self._is_last:
            self._write(metrics.training_line(step))
        if self._is_first:
            self._progress.add_loss(state.global_step, loss)
            self._progress.write(
                iteration=state.global_step,
                loss=loss,
                lr=step.learning_rate,
                step_seconds=seconds,
                consumed_samples=step.consumed_samples,
                tokens_per_second=rate,
            )
            values = {
                "learning-rate/learning-rate": step.learning_rate,
                "batch-size/batch-size": float(self._batch),
                "iteration-time/iteration-time": seconds,
                "lm-loss-training/lm loss": loss,
                **({} if step.grad_norm is None else {"grad-norm/grad-norm": step.grad_norm}),
                **{f"throughput/{name}": float(value) for name, value in throughput.items()},
            }
            self._writers.add(values, state.global_step, step.consumed_samples)

    def _evaluation(self, iteration: int, loss: float) -> None:
        if self._is_last:
            for line in metrics.validation_lines(f"iteration {iteration}", {metrics.LM_LOSS: loss}):
                self._write(line)
        if self._is_first:
            self._writers.add({"lm-loss-validation/lm loss validation": loss}, iteration)
            self._progress.write(validation={"iteration": iteration, "split": "valid", "loss": loss})

    def _pause(self) -> None:
        """Exclude an evaluation or a checkpoint from the step times; a step's line is written before both."""
        self._began = time.monotonic()

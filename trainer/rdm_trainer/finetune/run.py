# SPDX-License-Identifier: GPL-3.0-or-later
"""The fine-tuning of one rank: trl's trainer, from the data files to the exported model."""

from __future__ import annotations

import datetime
import functools
import json
import logging
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import datasets
import deepspeed
import torch
import torch.distributed as dist
import transformers
from transformers import PrinterCallback
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer
from trl.models.utils import unwrap_model_for_generation

from rdm_core.config.finetune import FinetuneConfig
from rdm_core.errors import DONE, STOPPED
from rdm_core.heartbeat import HeartbeatWriter
from rdm_core.progress import Progress
from rdm_trainer import metrics, process
from rdm_trainer.compute_time import ComputeTime
from rdm_trainer.distributed.collective import Collective
from rdm_trainer.distributed.leaders import find_leaders
from rdm_trainer.engines.deepspeed.topology import without_compiler
from rdm_trainer.finetune import files, models
from rdm_trainer.finetune.callback import Reporter
from rdm_trainer.finetune.checkpoints import Checkpoints
from rdm_trainer.finetune.deepspeed_json import deepspeed_json

MODEL, ADAPTER = "model", "adapter"
"""Directories of a job: the model that was tuned or merged, and the adapter alone."""


def run(config: FinetuneConfig, job_dir: Path) -> int:
    """Fine-tune in this process, which is one rank of the job.

    Args:
        config: The fine-tuning, checked.
        job_dir: Where checkpoints, the model, TensorBoard's events and progress go.

    Returns:
        The exit code: 0 when the training is done or ended in order, 130 when Ctrl-C ended it.

    Raises:
        TrainerError: The user can fix it.
    """
    _quieten()
    # These checks come before anything is written.
    rows = files.read(config, int(os.environ.get("WORLD_SIZE", "1")))
    tokenizer = models.load_tokenizer(config, is_chat=rows.is_chat, has_turns=rows.has_turns)
    models.check_targets(config)
    timeout = config.launcher.distributed_timeout
    process.require_device(config.optimisation.precision, config.launcher.backend)
    with process.alone(job_dir):
        process.join(config.launcher.backend, timeout)
        # DeepSpeed takes over the process group: it needs one to shard weights while they are loaded.
        without_compiler()
        deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)
        with process.Stop() as stop:
            _Finetuning(config, job_dir, rows, tokenizer, stop, timeout).run()
        dist.barrier()
        dist.destroy_process_group()
    return STOPPED if stop.received == signal.SIGINT else DONE


class _Finetuning:
    def __init__(
        self,
        config: FinetuneConfig,
        job_dir: Path,
        rows: files.Rows,
        tokenizer: Any,
        stop: process.Stop,
        timeout: datetime.timedelta,
    ) -> None:
        self._config, self._job_dir, self._rows, self._tokenizer = config, job_dir, rows, tokenizer
        self._collective = collective = Collective(timeout)
        self._is_first = collective.rank == 0
        self._progress = Progress(job_dir / "progress.json", config.optimisation.train_iterations or 0)
        job_dir.mkdir(parents=True, exist_ok=True)
        leaders, _ = find_leaders(job_dir, collective)
        is_shared = len(set(leaders)) == 1
        self._checkpoints = Checkpoints(
            job_dir / "checkpoints",
            collective,
            keep=config.checkpoint.keep,
            writes=leaders[collective.rank] == collective.rank,
            layout={
                "devices": collective.size,
                "zero.stage": config.zero.stage,
                "lora.rank": config.lora.rank,
            },
        )
        # A layout that the user has to change is refused before the progress is touched.
        self._resumed = self._checkpoints.newest()
        self._note(phase="starting")
        compute_time = ComputeTime(HeartbeatWriter(), process.device())
        self._reporter = Reporter(
            config,
            job_dir,
            collective=collective,
            checkpoints=self._checkpoints,
            compute_time=compute_time,
            progress=self._progress,
            stop=stop,
            write=process.write_line,
            answer=self._answers,
        )
        self._trainer = self._make(is_shared, compute_time)
        self._trainer.remove_callback(PrinterCallback)
        self._trainer.add_callback(self._reporter)

    def _make(self, is_shared: bool, compute_time: ComputeTime) -> Any:
        config = self._config
        arguments = _arguments(config, self._collective.size, self._checkpoints.directory, is_shared)
        data = config.data
        has_valid = self._rows.valid is not None
        made: Any
        if config.method == "dpo":
            made = DPOConfig(**arguments, beta=config.dpo.beta, max_length=data.max_length)
            kind = DPOTrainer
        else:
            made = SFTConfig(
                **arguments,
                max_length=data.max_length,
                packing=data.packing,
                assistant_only_loss=self._rows.has_turns,
            )
            kind = SFTTrainer
        # After the arguments: they tell transformers how to shard the weights while it loads them.
        model = models.load_model(config)
        trainer = kind(
            model=model,
            args=made,
            train_dataset=self._rows.train,
            eval_dataset=self._rows.valid if has_valid else None,
            processing_class=self._tokenizer,
            peft_config=models.adapter_of(config),
        )
        computed = trainer.compute_loss

        @functools.wraps(computed)
        def noted(*args: Any, **kwargs: Any) -> Any:
            loss = computed(*args, **kwargs)
            compute_time.note_loss(loss[0] if isinstance(loss, tuple) else loss)
            return loss

        trainer.compute_loss = noted
        return trainer

    def run(self) -> None:
        self._announce(metrics.datetime_line("before the start of training step", datetime.datetime.now()))
        if self._resumed is not None:
            self._announce(f"going on from {self._resumed}")
        self._trainer.train(resume_from_checkpoint=str(self._resumed) if self._resumed else None)
        step = self._trainer.state.global_step
        self._announce(metrics.datetime_line("after training is done", datetime.datetime.now()))
        if step >= self._trainer.state.max_steps:
            self._note(phase="saving")
            self._export()
        reason = self._reporter.reason
        self._announce(f"exiting at iteration {step}: {reason}")
        self._reporter.close()
        self._note(phase="done", reason=reason, iteration=step)

    def _export(self) -> None:
        """Write what transformers and vLLM load."""
        config = self._config
        to = self._job_dir / (ADAPTER if config.lora.rank else MODEL)
        # Off during the training; those who load the model want it.
        self._trainer.model.config.use_cache = True
        self._trainer.save_model(str(to))
        if config.lora.merge and self._is_first:
            models.merge(config, to, self._job_dir / MODEL)
            self._tokenizer.save_pretrained(self._job_dir / MODEL)
        self._collective.barrier()
        self._note(exported=[to.name, *([MODEL] if config.lora.merge else [])])
        self._announce(f"the {to.name} is in {to}")
        if config.lora.merge:
            self._announce(f"the model with it merged is in {self._job_dir / MODEL}")

    def _answers(self) -> list[str]:
        """Let the model answer the first prompts of the evaluation, the same on all ranks."""
        wanted, valid = self._config.evaluation.samples, self._rows.valid
        if not wanted or valid is None:
            return []
        lines = []
        with (
            torch.no_grad(),
            unwrap_model_for_generation(self._trainer.model_wrapped, self._trainer.accelerator) as model,
        ):
            was_training = model.training
            model.eval()
            for number in range(min(wanted, len(valid))):
                lines.append(self._answer(model, files.prompt_of(valid[number])))
            model.train(was_training)
        return lines

    def _answer(self, model: Any, prompt: Any) -> str:
        tokenizer = self._tokenizer
        if isinstance(prompt, str):
            tokens = tokenizer(prompt, return_tensors="pt")
        else:
            tokens = tokenizer.apply_chat_template(
                prompt, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
            prompt = prompt[-1]["content"]
        tokens = tokens.to(self._trainer.args.device)
        made = model.generate(
            **tokens,
            max_new_tokens=self._config.evaluation.sample_tokens,
            do_sample=False,
            use_cache=True,
            pad_token_id=tokenizer.pad_token_id,
        )
        answer = tokenizer.decode(made[0, tokens["input_ids"].shape[1] :], skip_special_tokens=True)
        shown = [json.dumps(text, ensure_ascii=False) for text in (prompt, answer)]
        return f"prompt: {shown[0]} | answer: {shown[1]} |"

    def _announce(self, line: str) -> None:
        if self._is_first:
            process.write_line(line)

    def _note(self, **changes: Any) -> None:
        if self._is_first:
            self._progress.write(**changes)


def _arguments(config: FinetuneConfig, world: int, directory: Path, is_shared: bool) -> dict[str, Any]:
    """Return the arguments that trl's trainers get with either method."""
    optimisation, evaluation = config.optimisation, config.evaluation
    on_cpu = process.device().type == "cpu"
    evaluates = bool(config.data.valid) and evaluation.interval > 0
    return {
        "output_dir": str(directory),
        "per_device_train_batch_size": optimisation.micro_batch_size,
        "per_device_eval_batch_size": optimisation.micro_batch_size,
        "gradient_accumulation_steps": config.accumulation(world),
        "num_train_epochs": optimisation.epochs,
        "max_steps": optimisation.train_iterations or -1,
        "bf16": optimisation.precision == "bf16",
        "learning_rate": optimisation.lr,
        "lr_scheduler_type": optimisation.schedule
        if optimisation.schedule != "constant"
        else "constant_with_warmup",
        "warmup_steps": optimisation.warmup_fraction,
        "weight_decay": optimisation.weight_decay,
        "adam_beta1": optimisation.adam_beta1,
        "adam_beta2": optimisation.adam_beta2,
        "adam_epsilon": optimisation.adam_epsilon,
        "max_grad_norm": optimisation.clip_grad,
        "gradient_checkpointing": optimisation.activation_checkpointing == "full",
        "seed": optimisation.seed,
        # Each token's loss is divided by the number of tokens of all ranks.
        "average_tokens_across_devices": True,
        "logging_strategy": "steps" if config.logging.interval else "no",
        "logging_steps": config.logging.interval or 1,
        # The log must show which step's loss was not a number.
        "logging_nan_inf_filter": False,
        "save_strategy": "steps" if config.checkpoint.interval else "no",
        "save_steps": config.checkpoint.interval or 1,
        "save_on_each_node": not is_shared,
        "eval_strategy": "steps" if evaluates else "no",
        "eval_steps": evaluation.interval or 1,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": on_cpu,
        "deepspeed": deepspeed_json(config, models.count_parameters(config), each_node_saves=not is_shared),
    }


def _quieten() -> None:
    """Silence the libraries, so that the log has only the job's own lines."""
    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    for name in ("DeepSpeed", "accelerate", "transformers", "trl"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # The libraries' own calls of functions that transformers has renamed.
    warnings.filterwarnings("ignore", module="(accelerate|peft|transformers|trl)([.]|$)")
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch[.]distributed")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

"""Fine-tunings in forks of a server that has imported trl, since the import takes longer than they do.

Run as a program, this is the server: it reads requests as lines of JSON, forks the ranks, and answers each
with a line.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rdm_job import network

_TRAINER = Path(__file__).parents[2]
_READY = "ready\n"
_LOGITS = "logits.json"
_LOADED = (
    "rdm_trainer.finetune.run",
    "rdm_trainer.finetune.tiny",
    "transformers.models.qwen3.modeling_qwen3",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "torch._inductor.compile_fx",
)


class Finetunings:
    """Runs ``rdm-trainer finetune``.

    Args:
        server: The program.
        directory: Has the output of ``rdm_trainer.finetune.tiny``.
    """

    def __init__(self, server: subprocess.Popen[str], directory: Path) -> None:
        self._server, self.directory = server, directory

    def run(
        self,
        job: str,
        *overrides: str,
        world: int = 1,
        signals: Mapping[int, tuple[int, signal.Signals]] | None = None,
    ) -> tuple[int, str, str]:
        """Run a job; return the highest exit code of its ranks, and what they wrote.

        Args:
            job: Its directory's name.
            overrides: ``key.sub=value``.
            world: How many ranks.
            signals: Ranks that get a signal: after how many steps, and which signal.
        """
        answer = self._request(
            {"job": job, "overrides": overrides, "world": world, "signals": [*(signals or {}).items()]}
        )
        return answer["code"], answer["out"], answer["errors"]

    def loss(self, model: str, rows: str, adapter: str | None = None) -> tuple[float, Any]:
        """Return a model's average loss over the completions in a file; transformers loads the model.

        Args:
            model: Its directory.
            rows: The file.
            adapter: An adapter to apply to it.

        Returns:
            The loss, and the logits of each token of the last row.
        """
        answer = self._request({"model": model, "rows": rows, "adapter": adapter})
        return answer["loss"], answer["logits"]

    def _request(self, what: Mapping[str, Any]) -> dict[str, Any]:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(what) + "\n")
        self._server.stdin.flush()
        answer: dict[str, Any] = json.loads(self._server.stdout.readline())
        return answer


def logits(job: Path) -> Any:
    """Return the logits that a job's model had for ``one.jsonl`` at the end."""
    return json.loads((job / _LOGITS).read_text())


def losses(job: Path) -> dict[int, float]:
    """Return the losses of a job by step."""
    lines = map(json.loads, (job / "metrics.jsonl").read_text().splitlines())
    return {line["iteration"]: line["loss"] for line in lines if "loss" in line}


@contextlib.contextmanager
def finetunings(directory: Path) -> Iterator[Finetunings]:
    """Start the program for some tests.

    Args:
        directory: Where all files go.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(_TRAINER),
        "HF_HOME": str(directory / "cache"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
    }
    command = [sys.executable, __file__]
    with subprocess.Popen(
        command, cwd=directory, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            assert server.stdout.readline() == _READY
            yield Finetunings(server, directory)
        finally:
            server.kill()


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    # Output of libraries must not become an answer.
    os.dup2(2, 1)
    for module in _LOADED:
        importlib.import_module(module)
    from rdm_trainer.finetune import tiny

    if _forked(lambda: tiny.write(Path())) != 0:
        sys.exit(1)
    gc.collect()
    gc.freeze()
    answers.write(_READY)
    answers.flush()
    for line in sys.stdin:
        what = json.loads(line)
        answers.write(json.dumps(_loss(what) if "model" in what else _run(what)) + "\n")
        answers.flush()


def _run(what: Mapping[str, Any]) -> dict[str, Any]:
    world, job = what["world"], Path(what["job"])
    # Not a port that a connection of another process may take until the first rank listens.
    found = network.take_free_ports("127.0.0.1", 1, zlib.crc32(f"{os.getpid()} {job}".encode()))
    assert found, "no port is free for the ranks"
    (port,) = found
    signals = dict(what["signals"])
    logs = [(Path(f"{job.name}.{rank}.out"), Path(f"{job.name}.{rank}.err")) for rank in range(world)]

    def rank_of(number: int) -> None:
        names = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        os.environ.update({name: str(value) for name, value in names.items()})
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        for stream, path in zip((1, 2), logs[number], strict=True):
            os.dup2(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), stream)
        if number in signals:
            _signal_itself(*signals[number])
        if Path("one.jsonl").exists():
            _keep_logits()
        from rdm_trainer.cli import main

        main(["finetune", "tune.yaml", *what["overrides"], "--job-dir", str(job)])

    ranks = [_fork(lambda number=number: rank_of(number)) for number in range(world)]
    codes: dict[int, int] = {}
    while len(codes) < world:
        process, status = os.wait()
        codes[process] = abs(os.waitstatus_to_exitcode(status))
        if codes[process]:
            # Launchers do this.
            for other in set(ranks) - set(codes):
                os.kill(other, signal.SIGKILL)
    out, errors = ("".join(pair[stream].read_text() for pair in logs) for stream in (0, 1))
    # The first that failed: the others were killed.
    return {"code": next((code for code in codes.values() if code), 0), "out": out, "errors": errors}


def _signal_itself(steps: int, number: int) -> None:
    """Make this rank send itself a signal after this many steps."""
    from rdm_trainer.finetune.callback import Reporter

    begin = Reporter.on_step_begin

    def signalled(self: Any, args: Any, state: Any, *more: Any, **kwargs: Any) -> None:
        if state.global_step == steps:
            os.kill(os.getpid(), number)
        begin(self, args, state, *more, **kwargs)

    Reporter.on_step_begin = signalled  # type: ignore[method-assign]


def _keep_logits() -> None:
    """Make the ranks write their tuned model's logits for ``one.jsonl`` before the export."""
    from rdm_trainer.finetune.run import _Finetuning

    export = _Finetuning._export

    def kept(self: Any) -> None:
        import torch

        (row,) = map(json.loads, Path("one.jsonl").read_text().splitlines())
        text = row["prompt"] + row["completion"] + self._tokenizer.eos_token
        model = self._trainer.model_wrapped
        model.eval()
        with torch.no_grad():
            # A rank has only a part of the weights, so all ranks compute.
            found = model(torch.tensor([self._tokenizer(text)["input_ids"]])).logits[0].tolist()
        if self._is_first:
            (self._job_dir / _LOGITS).write_text(json.dumps(found))
        export(self)

    _Finetuning._export = kept  # type: ignore[method-assign]


def _loss(what: Mapping[str, Any]) -> dict[str, Any]:
    def compute() -> None:
        import torch
        from peft import PeftModel
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model = AutoModelForCausalLM.from_pretrained(what["model"], dtype=torch.float32)
        if what["adapter"]:
            model = PeftModel.from_pretrained(model, what["adapter"])
        tokenizer = AutoTokenizer.from_pretrained(what["adapter"] or what["model"])
        found = []
        for row in map(json.loads, Path(what["rows"]).read_text().splitlines()):
            prompt = tokenizer(row["prompt"])["input_ids"]
            every = tokenizer(row["prompt"] + row["completion"] + tokenizer.eos_token)["input_ids"]
            with torch.no_grad():
                logits = model(torch.tensor([every])).logits[0]
            logs = torch.log_softmax(logits[len(prompt) - 1 : -1], dim=-1)
            found.append(-logs[range(len(logs)), every[len(prompt) :]].mean().item())
        answer = {"loss": sum(found) / len(found), "logits": logits.tolist()}
        Path("answer.json").write_text(json.dumps(answer))

    if _forked(compute) != 0:
        return {"loss": float("nan"), "logits": []}
    answer: dict[str, Any] = json.loads(Path("answer.json").read_text())
    return answer


def _fork(work: Any) -> int:
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        work()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        importlib.import_module("traceback").print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _forked(work: Any) -> int:
    _, status = os.waitpid(_fork(work), 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    _serve()

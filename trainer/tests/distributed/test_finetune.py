"""Fine-tunings of a tiny model, in real processes."""

from __future__ import annotations

import json
import math
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from rdm_log import lines, records
from rdm_trainer.cli import main
from tests.distributed import processes
from tests.distributed.finetuning import Finetunings, finetunings, logits, losses

CONFIG = """
model: {path: model}
data: {train: [train.jsonl], max_length: 64}
optimisation: {train_iterations: 4, global_batch_size: 8, precision: fp32, lr: 1e-2}
logging: {interval: 1, tensorboard: false}
checkpoint: {interval: 0}
evaluation: {samples: 0}
"""
RANKS = 4


@pytest.fixture(scope="module")
def tuning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finetunings]:
    directory = tmp_path_factory.mktemp("finetune")
    (directory / "tune.yaml").write_text(CONFIG)
    with finetunings(directory) as found:
        rows = (directory / "train.jsonl").read_text().splitlines(keepends=True)
        (directory / "one.jsonl").write_text(rows[7])
        (directory / "few.jsonl").write_text("".join(rows[:3]))
        parquet.write_table(pa.Table.from_pylist([*map(json.loads, rows)]), directory / "train.parquet")
        yield found


@pytest.fixture(scope="module")
def alone(tuning: Finetunings) -> Path:
    """One process sees all rows of a step at once: its loss is the average over their tokens."""
    code, _, errors = tuning.run("alone", "optimisation.micro_batch_size=8", "zero.stage=0")
    assert code == 0, errors
    return tuning.directory / "alone"


@pytest.fixture(scope="module")
def sharded(tuning: Finetunings) -> Path:
    """The same job with ZeRO-2: two micro-batches of one row on each of four ranks."""
    code, _, errors = tuning.run("sharded", "checkpoint.interval=2", world=RANKS)
    assert code == 0, errors
    return tuning.directory / "sharded"


def are_close(ours: dict[int, float], theirs: dict[int, float]) -> bool:
    return ours.keys() == theirs.keys() and all(
        math.isclose(ours[step], theirs[step], rel_tol=1e-3) for step in theirs
    )


def test_ranks_with_completions_of_unequal_length_have_the_losses_of_one_process(
    alone: Path, sharded: Path
) -> None:
    assert list(losses(alone)) == [1, 2, 3, 4]
    assert losses(alone)[4] < losses(alone)[1] - 0.1
    assert are_close(losses(sharded), losses(alone))


def test_killed_job_resumes_with_the_same_losses(tuning: Finetunings, sharded: Path) -> None:
    kept = ("checkpoint.interval=2", "checkpoint.keep=1")
    code, _, _ = tuning.run("killed", *kept, world=RANKS, signals={3: (3, signal.SIGKILL)})
    job = tuning.directory / "killed"
    assert code == signal.SIGKILL
    # As if it had died while it wrote the next checkpoint.
    shutil.copytree(job / "checkpoints/checkpoint-2", job / "checkpoints/checkpoint-9")
    (job / "checkpoints/checkpoint-9/.complete").unlink()
    assert list(losses(job)) == [1, 2, 3]
    (job / "metrics.jsonl").unlink()
    # Another number of processes is refused, and changes nothing.
    progress = (job / "progress.json").read_bytes()
    code, _, errors = tuning.run("killed", *kept)
    assert (code, "was written with devices" in errors) == (3, True)
    assert (job / "progress.json").read_bytes() == progress
    assert (job / "checkpoints/checkpoint-9").exists()
    code, out, errors = tuning.run("killed", *kept, world=RANKS)
    assert code == 0, errors
    assert "going on from killed/checkpoints/checkpoint-2" in out
    went_on = losses(job)
    assert went_on == {step: loss for step, loss in losses(sharded).items() if step > 2}
    assert [path.name for path in (job / "checkpoints").glob("checkpoint-*")] == ["checkpoint-4"]


def test_signal_to_one_rank_saves_and_ends_all(tuning: Finetunings) -> None:
    code, out, errors = tuning.run(
        "stopped", "optimisation.train_iterations=1000", world=2, signals={1: (2, signal.SIGTERM)}
    )
    assert code == 0, errors
    assert "a signal requested it" in out
    progress = json.loads((tuning.directory / "stopped/progress.json").read_text())
    assert progress["phase"] == "done"
    assert 3 <= progress["checkpoint"] == progress["iteration"] <= 4


def test_log_has_megatrons_format_and_exported_model_has_the_trainers_logits(tuning: Finetunings) -> None:
    code, out, errors = tuning.run(
        "exported", "data.valid=[one.jsonl]", "evaluation.samples=1", "logging.tensorboard=true", world=2
    )
    assert code == 0, errors
    steps = [
        record
        for line in out.splitlines()
        for record in lines.parse(line.encode())
        if isinstance(record, records.Step)
    ]
    assert [step.iteration for step in steps] == [1, 2, 3, 4]
    assert ' sample at iteration 4 | prompt: "What is seven and zero?" | answer: "' in out
    job = tuning.directory / "exported"
    assert list((job / "tensorboard").glob("events.*"))
    assert json.loads((job / "model/config.json").read_text())["use_cache"] is True
    progress = json.loads((job / "progress.json").read_text())
    assert (progress["train_iterations"], progress["exported"]) == (4, ["model"])
    # This shows how long the rest will take.
    assert progress["step_seconds"] > 0
    loss = progress["validation"]["loss"]
    again, found = tuning.loss("exported/model", "one.jsonl")
    assert again == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(found, logits(job), rtol=0, atol=1e-5)


def test_adapter_is_saved_alone_and_merged(tuning: Finetunings) -> None:
    code, _, errors = tuning.run(
        "lora", "lora={rank: 4, merge: true}", "data.valid=[one.jsonl]", "checkpoint.interval=2", world=2
    )
    assert code == 0, errors
    job = tuning.directory / "lora"
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {
        path.name for path in (job / "adapter").iterdir()
    }
    assert not (job / "adapter/model.safetensors").exists()
    loss = json.loads((job / "progress.json").read_text())["validation"]["loss"]
    adapted, of_adapter = tuning.loss("model", "one.jsonl", "lora/adapter")
    assert adapted == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(of_adapter, logits(job), rtol=0, atol=1e-5)
    _, of_merged = tuning.loss("lora/model", "one.jsonl")
    np.testing.assert_allclose(of_merged, of_adapter, rtol=0, atol=1e-4)
    _, untuned = tuning.loss("model", "one.jsonl")
    assert np.abs(np.subtract(untuned, of_merged)).max() > 0.1


@pytest.mark.parametrize(
    ("name", "zero"),
    [
        ("stage1", "{stage: 1, offload_optimizer: cpu}"),
        ("stage3", "{stage: 3, offload_optimizer: cpu, offload_parameters: cpu}"),
    ],
)
def test_other_zero_stages_offloading_and_parquet_have_the_same_losses(
    name: str, zero: str, tuning: Finetunings, alone: Path
) -> None:
    code, _, errors = tuning.run(name, f"zero={zero}", "data.train=[train.parquet]", world=2)
    assert code == 0, errors
    assert are_close(losses(tuning.directory / name), losses(alone))
    _, found = tuning.loss(f"{name}/model", "one.jsonl")
    np.testing.assert_allclose(found, logits(tuning.directory / name), rtol=0, atol=1e-5)


def test_dpo_learns_preferences(tuning: Finetunings) -> None:
    code, _, errors = tuning.run("dpo", "method=dpo", "data.train=[pairs.jsonl]", world=2)
    assert code == 0, errors
    found = losses(tuning.directory / "dpo")
    # At first, the model equals its reference.
    assert found[1] == pytest.approx(math.log(2), rel=1e-4)
    assert found[4] < found[1]


def test_packed_rows_do_not_attend_to_each_other(tuning: Finetunings) -> None:
    step = (
        "data.train=[few.jsonl]",
        "optimisation={train_iterations: 1, precision: fp32, global_batch_size: null}",
    )
    code, _, errors = tuning.run("packed", *step, "data={packing: true, max_length: 256, train: [few.jsonl]}")
    assert code == 0, errors
    code, _, errors = tuning.run("loose", *step, "optimisation.micro_batch_size=3")
    assert code == 0, errors
    assert are_close(losses(tuning.directory / "packed"), losses(tuning.directory / "loose"))


def test_conversations_train_on_answers_alone(tuning: Finetunings) -> None:
    turns = [
        {"role": role, "content": text}
        for role, text in (
            ("user", "One?"),
            ("assistant", "Two."),
            ("user", "Three?"),
            ("assistant", "Four."),
        )
    ]
    for name, messages in (("turns", turns), ("turn", turns[:2])):
        (tuning.directory / f"{name}.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
        code, _, errors = tuning.run(
            name,
            f"data.train=[{name}.jsonl]",
            "optimisation={train_iterations: 1, precision: fp32, global_batch_size: null}",
        )
        assert code == 0, errors
    # The single answer is one of the other job's answers.
    assert losses(tuning.directory / "turn")[1] != losses(tuning.directory / "turns")[1]


def _command(*words: object) -> None:
    with processes.Command(*map(str, words)) as command:
        _, errors = command.communicate()
    assert command.returncode == 0, errors


def _trained(directory: Path, *words: object) -> list[float]:
    """Train in a directory; return the losses."""
    _command("train", *words, "--job-dir", directory)
    return [loss for _, loss in json.loads((directory / "progress.json").read_text())["losses"]]


def test_pretrained_model_can_be_fine_tuned_and_the_reverse(tuning: Finetunings, tmp_path: Path) -> None:
    model, rows = tuning.directory / "model", (tuning.directory / "train.jsonl").read_text().splitlines()
    texts = ({"text": row["prompt"] + row["completion"]} for row in map(json.loads, rows))
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    tokens = ("--tokenizer", "huggingface", "--tokenizer-file", f"{model}/tokenizer.json", "--append-eod")
    with pytest.raises(SystemExit, match="0"):
        # preprocess starts processes of its own.
        main(["preprocess", f"{tmp_path}/texts.jsonl", "--output-prefix", f"{tmp_path}/texts", *tokens])
    _command("import", model, tmp_path / "job.yaml")
    words = (
        *(tmp_path / "job.yaml", f"data.blend=[{tmp_path}/texts_text_document]", "data.workers=0"),
        *("model.seq_length=32", "optimisation={precision: fp32, lr: 1e-2, global_batch_size: 8}"),
        *("logging={interval: 1, eval_iterations: 0, eval_interval: 0}", "data.split='1'"),
    )
    trained = _trained(tmp_path / "trained", *words, "optimisation.train_iterations=20")
    assert trained[-1] < trained[0] - 1

    _command("export", tmp_path / "trained", tmp_path / "exported")
    code, _, errors = tuning.run("on", f"model.path={tmp_path}/exported", "optimisation.lr=1e-3")
    assert code == 0, errors
    tuned, untrained = (tuning.loss(str(path), "train.jsonl")[0] for path in ("on/model", model))
    begun, _ = tuning.loss(str(tmp_path / "exported"), "train.jsonl")
    assert tuned < begun < untrained - 1

    back = tuning.directory / "on/model"
    _command("import", back, tmp_path / "back.yaml")
    job = (tmp_path / "job.yaml").read_text()
    assert (tmp_path / "back.yaml").read_text() == job.replace(str(model), str(back))
    again = _trained(tmp_path / "again", *words, "optimisation.train_iterations=2", "--init-from", back)
    assert len(again) == 2
    assert max(again) < trained[0] - 1


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["data.train=[none.jsonl]"], "data.train names none.jsonl, which is no file."),
        (["data.train=[empty.jsonl]"], "data.train has no row in empty.jsonl."),
        (["data.train=[broken.jsonl]"], "data.train cannot be read from broken.jsonl: "),
        (
            ["data.prompt=question"],
            "data.train has no columns 'question' and 'completion', and none 'messages'; it has 'prompt', "
            "'completion': name them in data.prompt and data.completion, or data.messages.",
        ),
        (["data.valid=[other.jsonl]"], "data.valid has no column 'completion'; it has 'prompt': name it in"),
        (["data.train=[gap.jsonl]"], "data.train, row 2: completion has no text."),
        (
            ["method=dpo"],
            "data.train has no column 'chosen'; it has 'prompt', 'completion': name it in data.chosen.",
        ),
        (["data.train=[user.jsonl]"], "data.train, row 1: the last of at least two messages must be an"),
        (["model.path=./none"], "model.path ./none is no directory."),
        (["model.path=cache"], "model.path cache has no config.json, so it is no model's directory."),
        (
            ["model.path=plain", "data.chat=true"],
            "The tokenizer of plain has no chat template, which messages",
        ),
        (
            ["lora={rank: 4, targets: [q_proj, v_porj]}"],
            "lora.targets names v_porj, and no layer of model is called so; it has down_proj, embed_tokens, ",
        ),
        (
            ["data.train=[few.jsonl]"],
            "data.train has 3 rows, fewer than the 8 of one step; give more, or a smaller batch.",
        ),
    ],
)
def test_invalid_finetune_is_refused_before_anything_is_written(
    overrides: list[str], sentence: str, tuning: Finetunings
) -> None:
    rows = {
        "empty": "",
        "broken": '{"prompt": "a", "completion": "b"}\n{"prompt":\n',
        "other": '{"prompt": "a"}\n',
        "gap": '{"prompt": "a", "completion": "b"}\n{"prompt": "a", "completion": null}\n',
        "user": '{"messages": [{"role": "user", "content": "a"}]}\n',
    }
    for name, text in rows.items():
        (tuning.directory / f"{name}.jsonl").write_text(text)
    shutil.copytree(tuning.directory / "model", tuning.directory / "plain", dirs_exist_ok=True)
    (tuning.directory / "plain/chat_template.jinja").unlink(missing_ok=True)
    code, _, errors = tuning.run("refused", *overrides)
    assert code == 3
    assert f"Error: {sentence}" in errors
    assert "Traceback" not in errors
    assert not (tuning.directory / "refused").exists()

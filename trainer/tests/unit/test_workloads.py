# SPDX-License-Identifier: GPL-3.0-or-later
"""A job's workload: its schema, its checks and its command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rdm_core import config as configuration
from rdm_core.config import Config, JobConfig, workload_of
from rdm_core.config.finetune import FinetuneConfig
from rdm_core.config.workloads import WORKLOADS
from rdm_core.errors import ConfigError
from rdm_job.check import check
from rdm_job.directory import JobDirectory
from rdm_job.protocol import Node, Request
from tests.waiting import DEADLINE_S

COMMAND = "workload: command\ncommand: [bash, -c, exit 3]\nlauncher: {nodes: 2, env: {A: b}}\n"


def problems_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        configuration.load_text(text)
    return list(caught.value.problems)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_schema_names_its_workload_and_is_read_back_as_it_is_written(name: str) -> None:
    texts = {
        "command": COMMAND,
        "finetune": "workload: finetune\nmodel: {path: m}\ndata: {train: [a.jsonl]}\n",
        "train": "data: {mock: true}",
    }
    job = configuration.load_text(texts[name])
    assert type(job) is WORKLOADS[name].schema
    assert job.workload == name
    written = configuration.dump(job.resolved(8))
    assert configuration.load_text(written) == job.resolved(8)


def test_a_job_that_names_no_workload_trains() -> None:
    job = configuration.load_text("name: old\nlauncher: {kind: slurm, slurm: {gres: gpu:a10:4}}\n")
    assert isinstance(job, Config)
    assert (job.launcher.kind, job.launcher.slurm.gres) == ("slurm", {"": "gpu:a10:4"})
    assert workload_of(job) is WORKLOADS["train"]


def test_an_unknown_workload_is_named_with_its_line_and_nothing_of_it_is_read() -> None:
    assert problems_of("name: a\nworkload: comand\nsteps: 3\n") == [
        "workload (line 2) is 'comand'; it must be train, finetune or command (perhaps command)."
    ]


def test_train_takes_no_other_workload(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(COMMAND)
    with pytest.raises(ConfigError, match=r"^workload \(line 1\) is 'command'; it must be train\.$"):
        configuration.load(tmp_path / "job.yaml")
    # The same from the command line, whose errors have no line number.
    with pytest.raises(ConfigError, match=r"^workload is 'command'; it must be train\.$"):
        configuration.from_dict({}, ["workload=command"])


@pytest.mark.parametrize(
    ("text", "named", "schema"),
    [
        ("workload: finetune", "finetune", Config),
        ("workload: train", "train", FinetuneConfig),
        ("parallel: {tensor: 2}", "train", FinetuneConfig),
    ],
)
def test_the_other_workload_is_named_with_the_command_that_runs_it(
    tmp_path: Path, text: str, named: str, schema: type[JobConfig]
) -> None:
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(ConfigError, match=rf"it must be \w+ \(rdm-trainer {named} runs that one\)\.$"):
        configuration.load_as(schema, tmp_path / "job.yaml")


def test_a_job_of_a_command_has_no_key_of_a_training() -> None:
    assert problems_of(f"{COMMAND}parallel: {{tensor: 2}}\n") == [
        "parallel is not a key (line 4) of `workload: command`, but of `workload: train`."
    ]
    # Without the key `workload`, a job trains.
    assert "lora is not a key (line 1) of `workload: train`, but of `workload: finetune`." in problems_of(
        "lora: {rank: 4}\n"
    )
    assert problems_of("workload: command\n") == ["command is missing."]
    job = configuration.load_text(COMMAND, ["launcher.program=[a.py]", "launcher.profiler=torch"])
    found = configuration.check(job, 2, 1)
    assert any("put the program and its arguments into command" in one for one in found), found
    assert any("launcher.profiler torch is for our own training" in one for one in found), found


def test_common_checks_apply_to_every_workload() -> None:
    job = configuration.load_text(COMMAND, ["name=a b", "launcher.env={1A: x}"])
    found = configuration.check(job, 2, 1)
    assert any(one.startswith("name is 'a b'") for one in found), found
    assert any(one.startswith("launcher.env has '1A'") for one in found), found


def test_only_training_needs_nodes_with_equal_numbers_of_devices() -> None:
    assert any(
        "does not fill nodes of 2" in one
        for one in configuration.check(configuration.from_dict({"name": "a"}), 3, 2)
    )
    for text in (COMMAND, "name: a\nlauncher: {program: [a.py]}\n"):
        assert configuration.check(configuration.load_text(text), 3, 2) == []


def test_a_command_that_is_not_on_the_node_is_named_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDM_JOBS", str(tmp_path))
    text = "workload: command\ncommand: [/opt/none/run, x]\n"
    found = check(Request("any", "n1", (Node("n1", "127.0.0.1", 1),), config=text))["problems"]
    assert any(one.startswith("command /opt/none/run is no file ") for one in found), found


def test_rank_runs_the_command_of_its_workload(tmp_path: Path) -> None:
    resolved = tmp_path / "config.yaml"
    added = ["--local_rank=3"]

    def runs(text: str) -> list[str]:
        job = configuration.load_text(text)
        return workload_of(job).command(job, resolved, added)

    assert runs(COMMAND) == ["bash", "-c", "exit 3"]
    assert runs("launcher: {program: [mine.py, --x]}") == [sys.executable, "mine.py", "--x", *added]
    assert runs("{}") == [sys.executable, "-m", "rdm_trainer.rank", str(resolved)]


@pytest.mark.parametrize(
    ("lines", "outcome"),
    [
        ("print(sys.argv[1:], __name__)", [0, "", []]),
        ("sys.exit(7)", [7, "it ended with exit code 7", []]),
        (
            "from rdm_core.errors import TrainerError\nraise TrainerError('No data.')",
            [3, "No data.", ["No data."]],
        ),
    ],
)
def test_a_module_runs_in_its_rank_s_process_and_ends_as_a_program_does(
    tmp_path: Path, lines: str, outcome: list[object]
) -> None:
    (tmp_path / "tried.py").write_text(f"import os, sys\nprint(os.getpid())\n{lines}\n")
    job = JobDirectory(tmp_path / "job", "n1")
    job.make(Request("job", "n1", (Node("n1", "127.0.0.1", 1),)))
    job.write_resolved("data: {mock: true}\n")
    code = (
        "import dataclasses, json, os, sys; from pathlib import Path; from rdm_core.config import workloads\n"
        "from rdm_job import rank; from rdm_job.directory import JobDirectory\n"
        "mine = lambda *words: [sys.executable, '-m', 'tried', 'a', 'b']\n"
        "workloads.WORKLOADS['train'] = dataclasses.replace(workloads.WORKLOADS['train'], command=mine)\n"
        "outcome = rank._outcome(lambda: rank._work(JobDirectory(Path(sys.argv[1]), 'n1'), []))\n"
        "print(json.dumps([os.getpid(), *outcome]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(job.path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    first, *_, last = done.stdout.splitlines()
    process, *found = json.loads(last)
    assert int(first) == process
    assert found[0] == outcome[0]
    if outcome[1]:
        assert found[1:] == outcome[1:]
    else:
        assert done.stdout.splitlines()[1] == "['a', 'b'] __main__"

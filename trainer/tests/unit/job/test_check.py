# SPDX-License-Identifier: GPL-3.0-or-later
"""A node reports all problems of a job at once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rdm_core.errors import ConfigError
from rdm_job import network
from rdm_job.check import check
from rdm_job.directory import JobDirectory
from rdm_job.protocol import Node, Request
from rdm_job.requested import read_config

CONFIG = """\
model: {layers: LAYERS, attention_heads: 4, hidden_size: 64}
parallel: {tensor: 3}
optimisation: {global_batch_size: 12, train_iterations: 10, min_lr: 1.0}
data: {blend: [none]}
launcher: {kind: KIND}
logging: {trackers: [TRACKERS]}
"""


@pytest.mark.parametrize(
    ("layers", "kind", "trackers", "found", "hidden"),
    [
        ("2", "no_ssh", "", [], []),
        ("few", "no_ssh", "", ["model.layers (line 1) must be an integer, not 'few'"], []),
        ("2", "no_ssh", "wandbb", ["logging.trackers[0] is 'wandbb'"], []),
        (
            "few",
            "toruchrun",
            "",
            ["model.layers", "launcher.kind", "perhaps torchrun"],
            ["world of 4", "none.bin"],
        ),
    ],
)
def test_every_problem_of_a_configuration_is_reported_at_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layers: str,
    kind: str,
    trackers: str,
    found: list[str],
    hidden: list[str],
) -> None:
    monkeypatch.setenv("RDM_JOBS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    text = CONFIG.replace("LAYERS", layers).replace("KIND", kind).replace("TRACKERS", trackers)
    reply = check(Request("gpt", "n1", (Node("n1", "127.0.0.1", 4),), config=text))
    assert not reply["ok"]
    expected = {*found, "attention_heads 4", "world of 4", "min_lr 1", "none.bin"} - {*hidden}
    for words in expected:
        assert [words in problem for problem in reply["problems"]].count(True) == 1, (
            words,
            reply["problems"],
        )
    for words in hidden:
        assert not any(words in problem for problem in reply["problems"]), (words, reply["problems"])


def test_jobs_of_one_name_that_two_users_begin_at_once_search_different_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both search before either listens, so a test whether ports are free does not help."""
    starts: list[int] = []

    def take(_address: str, count: int, start: int) -> list[int]:
        starts.append(start)
        return list(range(count))

    monkeypatch.setattr(network, "take_free_ports", take)
    for user in ("a", "b"):
        (tmp_path / user).mkdir()
        monkeypatch.setenv("RDM_JOBS", str(tmp_path / user))
        request = Request("gpt", "n1", (Node("n1", "127.0.0.1", 1),), config="data: {mock: true}\n")
        assert check(request)["offer"]
    assert starts[0] != starts[1]


def test_slurm_job_is_not_checked_against_this_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDM_JOBS", str(tmp_path))
    text = CONFIG.replace("LAYERS", "few").replace("KIND", "slurm").replace("TRACKERS", "")
    problems = check(Request("gpt", "n1", (Node("n1", "127.0.0.1", 4),), config=text))["problems"]
    assert any("attention_heads 4" in problem for problem in problems)
    assert not any("world of" in problem or "none.bin" in problem for problem in problems)


def test_a_misspelt_job_to_resume_is_reported_with_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDM_JOBS", str(tmp_path))
    assert JobDirectory.missing("x") == "There is no job 'x' on this node; it has none."
    for name in ("gpt-1121-081512", "t5"):
        JobDirectory(tmp_path / name).make(Request(name, "n1", (Node("n1", "127.0.0.1", 4),)))
    request = Request("gpt-1121-08151", "n1", (Node("n1", "127.0.0.1", 4),), resume=True)
    problems = [problem for problem in check(request)["problems"] if "no job" in problem]
    assert problems == ["There is no job 'gpt-1121-08151' on this node; did you mean gpt-1121-081512?"]
    assert JobDirectory.missing("x") == "There is no job 'x' on this node; it has gpt-1121-081512, t5."


@pytest.mark.parametrize(
    ("environment", "hint"),
    [
        ("host", "the host does not have; set openmpi_install: true for rdm-provision env up."),
        ("container", "the container does not have; use a training image."),
    ],
)
def test_a_launcher_whose_program_is_missing_says_where_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: str, hint: str
) -> None:
    monkeypatch.setenv("RDM_JOBS", str(tmp_path))
    monkeypatch.setenv("RDM_PLACE", environment)  # the former name, from an older control machine
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "ssh").touch(mode=0o755)
    text = CONFIG.replace("LAYERS", "2").replace("KIND", "mpirun").replace("TRACKERS", "")
    problems = check(Request("gpt", "n1", (Node("n1", "127.0.0.1", 4),), config=text))["problems"]
    assert f"The launcher mpirun needs mpirun, which {hint}" in problems


def test_checked_configuration_is_never_written_to_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``launcher.env`` may hold secrets, and the check may be killed at any time."""
    monkeypatch.setenv("RDM_JOBS", str(tmp_path))
    written: list[str] = []

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and is_on and str(arguments[0]).startswith(str(tmp_path)):
            written.append(str(arguments[0]))

    is_on = True
    sys.addaudithook(audit)
    node = Node("n1", "127.0.0.1", 4)
    config = read_config(Request("gpt", "n1", (node,), config="launcher: {env: {A: b}}"))
    with pytest.raises(ConfigError) as refused:
        read_config(Request("gpt", "n1", (node,), config="3"))
    is_on = False
    assert config.launcher.env == {"A": "b"}
    assert refused.value.problems == ("the configuration must hold keys and values, as `name: my-job`.",)
    assert not written
    assert not list(tmp_path.iterdir())

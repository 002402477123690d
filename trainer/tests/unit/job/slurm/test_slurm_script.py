# SPDX-License-Identifier: GPL-3.0-or-later
"""The submitted script: its requests, and that no value breaks out of its line."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdm_core import config as configuration
from rdm_core.config import Config
from rdm_core.config import slurm as slurm_options
from rdm_core.errors import ConfigError
from rdm_job.launchers import Attempt, launcher_of
from rdm_job.slurm.script import script, srun_of_ranks

HETEROGENEOUS: dict[str, Any] = {
    "nodes": {"hgx": 1, "gpu2": 7},
    "gres": {"hgx": "gpu:hgx:4", "gpu2": "gpu:a10:4"},
    "cpus": 14,
    "hint": "nomultithread",
    "time": "1-00:00:00",
}


def job(launcher: dict[str, Any] | None = None, **slurm: Any) -> Config:
    return configuration.from_dict({"launcher": {"kind": "slurm", "slurm": slurm, **(launcher or {})}})


def options(text: str) -> list[list[str]]:
    """Return the options of each component, which Slurm reads up to the first command."""
    found: list[list[str]] = [[]]
    for line in text.splitlines():
        if line and not line.startswith("#"):
            break
        if line == "#SBATCH hetjob":
            found.append([])
        elif line.startswith("#SBATCH"):
            found[-1].append(line.removeprefix("#SBATCH "))
    return found


def test_a_homogeneous_job_is_one_component() -> None:
    config = job({"nodes": 8, "max_restarts": 2}, partition="gpu2", gres="gpu:a10:4", nodelist="n[060-067]")
    (found,) = options(script("gpt", "/shared/jobs/gpt", "/env/bin/python", config))
    assert found == [
        "--job-name=gpt",
        "--output=slurm.out",
        "--open-mode=append",
        "--requeue",
        "--signal=B:USR1@300",
        "--nodes=8",
        "--ntasks-per-node=1",
        "--partition=gpu2",
        "--gres=gpu:a10:4",
        "--nodelist=n[060-067]",
    ]
    assert slurm_options.world_size(config) == 32


def test_a_heterogeneous_job_has_a_component_for_each_partition_and_one_order_of_ranks() -> None:
    config = job(**HETEROGENEOUS)
    text = script("xl", "/shared/jobs/xl", "/env/bin/python", config)
    first, second = options(text)
    assert "--partition=hgx" in first
    assert "--partition=gpu2" in second
    assert "--gres=gpu:hgx:4" in first
    assert "--gres=gpu:a10:4" in second
    for part in (first, second):
        assert {"--cpus-per-task=14", "--hint=nomultithread", "--time=1-00:00:00"} <= set(part)
    # After `hetjob`, Slurm would apply these options to that component only.
    assert not any(option.startswith(("--output", "--job-name", "--signal")) for option in second)
    assert "srun --het-group=0,1 " in text
    assert slurm_options.world_size(config) == 32


def test_ranks_are_tasks_of_a_step_next_to_the_agents() -> None:
    config = job(step="ranks", mpi="pmix", **HETEROGENEOUS)
    first, second = srun_of_ranks(config)
    assert first[:4] == ("--het-group=0", "--nodes=1", "--ntasks=4", "--ntasks-per-node=4")
    assert second[:4] == ("--het-group=1", "--nodes=7", "--ntasks=28", "--ntasks-per-node=4")
    assert {"--overlap", "--mpi=pmix"} <= set(second)
    assert "srun --het-group=0,1 --overlap " in script("xl", "/shared/jobs/xl", "/env/bin/python", config)
    attempt = Attempt("xl@1", "/jobs/xl", (), "10.0.0.0/8", 1, python="python", srun=(first, second))
    words = launcher_of(config.launcher).command(attempt, 0)
    assert words[:3] == ["env", "--unset=RDM_NODE", "srun"]
    assert words[words.index(":") - 3 : words.index(":") + 2] == [
        "python",
        "-m",
        "rdm_job.rank",
        ":",
        "--het-group=1",
    ]
    assert launcher_of(job(**HETEROGENEOUS).launcher).everywhere


def test_job_without_restarts_is_never_requeued() -> None:
    text = script("gpt", "/jobs/gpt", "/env/bin/python", job(signal=0))
    assert "scontrol requeue" not in text
    assert "#SBATCH --no-requeue" in text
    assert "USR1" not in text


def test_bash_reads_the_script_and_a_path_stays_one_word(tmp_path: Path) -> None:
    text = script("gpt", "/shared/a b'$(x)/gpt", "/env/my python", job({"max_restarts": 1}, **HETEROGENEOUS))
    path = tmp_path / "job.sbatch"
    path.write_text(text)
    subprocess.run(["bash", "-n", str(path)], check=True)
    assert f"job={shlex.quote('/shared/a b' + chr(39) + '$(x)/gpt')}\n" in text


TEXTS = ("gres", "gpus_per_node", "cpus", "mem", "nodelist", "exclude", "constraint")
ONE = ("partition", "time", "account", "qos", "interface")
NASTY = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["gpu:a10:4", "02:00:00", "n[1-3]"]).flatmap(
        lambda good: st.text(alphabet="\n\r\x0b\x0c\x1c\x85\u2028 '\"\\`$;#-=", min_size=1, max_size=4).map(
            lambda bad: good + bad
        )
    ),
    st.sampled_from(["a\n#SBATCH --uid=0", "--wrap=id", "$(id)", "x y", "a#b", 'a"b', "", " "]),
)


@given(key=st.sampled_from([*TEXTS, *ONE]), value=NASTY)
def test_no_value_breaks_out_of_its_line(key: str, value: str) -> None:
    given: dict[str, Any] = {key: value}
    if "\0" in value:
        with pytest.raises(ConfigError, match=rf"^launcher\.slurm\.{key} must be text without a NUL"):
            job(**given)
        return
    config = job(**given)
    if slurm_options.problems(config):
        assert any(f"launcher.slurm.{key} is " in problem for problem in slurm_options.problems(config))
        return
    plain = script("gpt", "/jobs/gpt", "/env/bin/python", job())
    text = script("gpt", "/jobs/gpt", "/env/bin/python", config)
    added = [line for line in text.split("\n") if line not in plain.split("\n")]
    # The interface is not an option of Slurm.
    assert len(added) == (0 if key == "interface" else 1)
    assert all(re.fullmatch(rf"#SBATCH --[a-z-]+={re.escape(value)}", line) for line in added)
    assert not re.search(r"[\s\"'\\#`$;]", value)
    assert value.isascii()


@given(name=NASTY.filter(bool))
def test_no_name_of_a_partition_breaks_out_of_its_line(name: str) -> None:
    config = job(nodes={name: 1})
    if slurm_options.problems(config):
        return
    (found,) = options(script("gpt", "/jobs/gpt", "/env/bin/python", config))
    assert f"--partition={name}" in found
    assert re.fullmatch(r"[A-Za-z0-9_.@+-]+", name)


@pytest.mark.parametrize(
    ("launcher", "slurm", "message"),
    [
        ({}, {"nodes": {"hgx": "many"}}, "launcher.slurm.nodes.hgx is 'many'; it must be a number of nodes."),
        ({}, {"nodes": 0}, "launcher.slurm.nodes is '0'; it must be a number of nodes."),
        ({"nodes": 2}, {"nodes": {"hgx": 1}}, "say how many nodes; give one of them"),
        ({}, {"nodes": {"hgx": 1}, "partition": "gpu2"}, "names partitions, and launcher.slurm.partition"),
        ({}, {"nodes": {"hgx": 1}, "gres": {"gpu2": "gpu:4"}}, "which is none of the job's partitions"),
        ({}, {"gres": "gpu:4", "gpus_per_node": "4"}, "has GPUs in gres and in gpus_per_node; give one"),
        ({}, {"step": "ranks", "image": "/i/x.sqsh"}, "the image would need Slurm's programs; use agents"),
        ({}, {"mpi": "pmix"}, "but srun starts no ranks"),
        ({}, {"time": "two hours"}, "launcher.slurm.time is 'two hours'; Slurm takes it as"),
        ({}, {"time": "5"}, "leaves nothing before launcher.slurm.signal 300 s"),
    ],
)
def test_invalid_requests_are_refused(launcher: dict[str, Any], slurm: dict[str, Any], message: str) -> None:
    assert any(message in problem for problem in configuration.check(job(launcher, **slurm)))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("90:30", 5430),
        ("02:00:00", 7200),
        ("1-2", 93600),
        ("1-02:30", 95400),
        ("1-0:0:1", 86401),
    ],
)
def test_a_time_limit_is_read_as_slurm_reads_it(text: str, seconds: int) -> None:
    assert slurm_options.limit_seconds(text) == seconds


def test_script_of_several_partitions_is_read_back() -> None:
    config = job(nodes={"hgx": 1, "gpu2": 2}, gres="gpu:4", gpus_per_node={}, mem={"hgx": "8G"})
    assert configuration.from_dict(config.to_dict()) == config
    assert [part.mem for part in slurm_options.components(config)] == ["8G", ""]
    assert [part.gres for part in slurm_options.components(config)] == ["gpu:4", "gpu:4"]


def test_settings_by_name_of_the_only_partition_are_requested() -> None:
    (part,) = slurm_options.components(job(partition="gpu2", gres={"gpu2": "gpu:a10:4"}))
    assert (part.gres, part.slots) == ("gpu:a10:4", 4)


def test_both_counts_of_nodes_may_be_given_where_they_agree() -> None:
    assert slurm_options.problems(job({"nodes": 8}, nodes={"hgx": 1, "gpu2": 7})) == []


def test_a_token_in_place_of_its_file_is_refused_without_showing_it() -> None:
    for path in (None, "/home/me/token", "~/.slurm.jwt"):
        assert slurm_options.problems(job(rest_jwt=path)) == []
    (found,) = slurm_options.problems(job(rest_jwt="eyJh.eyJz.sig"))
    assert found == "launcher.slurm.rest_jwt must be the path of a file with the token, as ~/.slurm.jwt."


def test_gpu_request_gives_the_processes_per_node() -> None:
    def slots(**slurm: Any) -> int:
        return slurm_options.components(job(**slurm))[0].slots

    assert slots() == 1
    assert slots(gres="gpu") == 1
    assert slots(gres="gpu:a10:4,shard:2") == 4
    assert slots(gpus_per_node="a10:8") == 8
    assert slurm_options.components(job({"devices_per_node": 2}, gres="gpu:4"))[0].slots == 2

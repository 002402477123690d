# SPDX-License-Identifier: GPL-3.0-or-later
"""The launchers' command lines and environments, and the variables that they set."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rdm_job
from rdm_core.config.job import LauncherConfig
from rdm_core.errors import TrainerError
from rdm_job.environment import adopt_launcher_environment, require_launcher_environment
from rdm_job.launchers import LAUNCHERS, Attempt, environment, environment_of_launcher, exports
from rdm_job.protocol import Node

ATTEMPT = Attempt(
    job="gpt-1",
    directory="/jobs/gpt-1",
    nodes=(Node("a", "192.169.16.100", 8), Node("b", "192.169.16.101", 4)),
    network="192.169.16.0/24",
    port=31001,
    accelerator="cuda",
    extra={"NCCL_DEBUG": "WARN", "TOKEN": "hush"},
)


def options(command: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in command if word.startswith("--") and "=" in word)


def test_every_launcher_of_the_configuration_is_in_the_table() -> None:
    assert set(get_args(get_type_hints(LauncherConfig)["kind"])) == set(LAUNCHERS)


@pytest.mark.parametrize("kind", LAUNCHERS)
def test_no_environment_value_is_on_a_command_line(kind: str) -> None:
    assert not any("hush" in word for word in LAUNCHERS[kind].command(ATTEMPT, 0))
    assert environment(ATTEMPT)["TOKEN"] == "hush"


def test_no_ssh_names_each_node_s_processes() -> None:
    parsed = options(LAUNCHERS["no_ssh"].command(ATTEMPT, 1))
    assert parsed["--node_rank"] == "1"
    assert parsed["--master_addr"] == "192.169.16.100"
    world = json.loads(base64.urlsafe_b64decode(parsed["--world_info"]))
    assert world == {"192.169.16.100": list(range(8)), "192.169.16.101": list(range(4))}


def test_deepspeed_uses_pdsh_only_for_other_nodes() -> None:
    many = LAUNCHERS["deepspeed"].command(ATTEMPT, 0)
    assert "--launcher=pdsh" in many
    assert "--force_multi" in many
    alone = Attempt("one", "/jobs/one", ATTEMPT.nodes[:1], ATTEMPT.network, 31001)
    assert "--force_multi" not in LAUNCHERS["deepspeed"].command(alone, 0)


SECRETS = {
    "WANDB_API_KEY": "hush",
    "MLFLOW_TRACKING_PASSWORD": "hush",
    "NCCL_WORDS": "hush two; words $(x)",
    "PYTHONPATH": "/hush",
}


def test_deepspeeds_pdsh_command_line_has_no_value_of_the_job(tmp_path: Path) -> None:
    """This runs DeepSpeed's own launcher with a pdsh that records its command line."""
    pdsh = tmp_path / "bin" / "pdsh"
    pdsh.parent.mkdir()
    pdsh.write_text('#!/bin/sh\nfor word; do echo "$word"; done > "$SAID"\n')
    pdsh.chmod(0o755)
    attempt = dataclasses.replace(
        ATTEMPT, directory=str(tmp_path), extra=SECRETS, python=sys.executable, accelerator="cpu"
    )
    (tmp_path / "hostfile").write_text("192.169.16.100 slots=8\n192.169.16.101 slots=4\n")
    (tmp_path / ".deepspeed_env").write_text(exports(attempt))
    before = {
        **os.environ,
        "PATH": f"{pdsh.parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "SAID": str(tmp_path / "said"),
        "UCX_OF_THE_AGENT": "hush",
    }
    launcher = LAUNCHERS["deepspeed"]
    subprocess.run(
        launcher.command(attempt, 0),
        cwd=tmp_path,
        env=environment_of_launcher(launcher, attempt, before),
        check=True,
    )
    text = (tmp_path / "said").read_text()
    assert "export RDM_JOB_ID=gpt-1" in text
    assert "export DS_ACCELERATOR=cpu" in text
    assert "hush" not in text


def test_other_launchers_get_the_jobs_variables_in_their_environment() -> None:
    attempt = dataclasses.replace(ATTEMPT, extra=SECRETS)
    alone = dataclasses.replace(attempt, nodes=ATTEMPT.nodes[:1])
    for kind, launcher in LAUNCHERS.items():
        # On a single node DeepSpeed's launcher starts the processes itself.
        of = alone if kind == "deepspeed" else attempt
        assert SECRETS.items() <= environment_of_launcher(launcher, of, {"PYTHONPATH": "/a"}).items()


def test_torchrun_gets_the_number_of_each_node() -> None:
    first, second = (options(LAUNCHERS["torchrun"].command(ATTEMPT, node)) for node in (0, 1))
    assert (first["--node-rank"], second["--node-rank"]) == ("0", "1")
    # With a dynamic rendezvous torch ignores the rank and sorts addresses as text.
    assert first["--rdzv-backend"] == "static"
    assert (first["--master-addr"], second["--master-addr"]) == ("192.169.16.100", "192.169.16.100")
    assert (first["--nproc-per-node"], second["--nproc-per-node"]) == ("8", "4")
    assert second["--local-addr"] == "192.169.16.101"
    # Without it, each attempt leaves a directory in /tmp.
    assert first["--log-dir"] == f"{ATTEMPT.directory}/torchrun"


def test_mpirun_passes_variable_names_and_fills_nodes_by_slot() -> None:
    command = LAUNCHERS["mpirun"].command(ATTEMPT, 0)
    assert command[command.index("-np") + 1] == "12"
    assert command[command.index("-H") + 1] == "192.169.16.100:8,192.169.16.101:4"
    names = {command[at + 1] for at, word in enumerate(command) if word == "-x"}
    assert names == set(environment(ATTEMPT))
    # A killed mpirun's files are removed with the directory of links.
    assert command[command.index("orte_tmpdir_base") + 1] == "/jobs"


@pytest.mark.parametrize("kind", LAUNCHERS)
def test_processes_run_the_python_of_the_attempt(kind: str) -> None:
    """Its path may be one that every node has."""
    elsewhere = dataclasses.replace(ATTEMPT, python="/tmp/rdm-1/environment/bin/python")
    command = LAUNCHERS[kind].command(elsewhere, 0)
    assert elsewhere.python in command
    assert sys.executable not in command


def test_only_mpirun_and_deepspeed_are_started_by_the_master_alone() -> None:
    assert {kind for kind, launcher in LAUNCHERS.items() if launcher.uses_ssh} == {"deepspeed", "mpirun"}


def test_open_mpi_variables_become_torchs() -> None:
    variables = {
        "OMPI_COMM_WORLD_RANK": "5",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "8",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    }
    adopt_launcher_environment(variables)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    assert [variables[name] for name in names] == ["5", "1", "8", "4"]


def test_deepspeeds_local_size_becomes_torchs() -> None:
    variables = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_SIZE": "2"}
    adopt_launcher_environment(variables)
    assert variables["LOCAL_WORLD_SIZE"] == "2"
    given = {**variables, "LOCAL_WORLD_SIZE": "4"}
    adopt_launcher_environment(given)
    assert given["LOCAL_WORLD_SIZE"] == "4"


def test_slurm_variables_are_used_in_a_step_alone() -> None:
    variables = {"SLURM_PROCID": "3", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}
    adopt_launcher_environment(variables)
    assert "RANK" not in variables
    variables["SLURM_STEP_ID"] = "0"
    adopt_launcher_environment(variables)
    assert (variables["RANK"], variables["LOCAL_RANK"], variables["WORLD_SIZE"]) == ("3", "0", "4")


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "RANK",
                "OMPI_COMM_WORLD_RANK",
                "OMPI_COMM_WORLD_SIZE",
                "SLURM_PROCID",
                "SLURM_STEP_ID",
            ]
        ),
        st.integers(0, 64).map(str),
    )
)
def test_incomplete_rank_variables_are_not_changed(variables: dict[str, str]) -> None:
    before = dict(variables)
    adopt_launcher_environment(variables)
    assert variables == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": ""}, "WORLD_SIZE is set, but not RANK; start the ranks with a launcher, such as torchrun"),
        (
            {"MASTER_ADDR": "", "MASTER_PORT": ""},
            "This is rank 1 of 2, but MASTER_ADDR and MASTER_PORT are not set; set MASTER_ADDR to the host",
        ),
        ({"MASTER_PORT": ""}, "This is rank 1 of 2, but MASTER_PORT is not set; "),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two' instead of a number; start"),
        ({"MASTER_PORT": "ssh"}, "MASTER_PORT is 'ssh' instead of a number; start"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK is '-1' instead of a number; start"),
        ({"RANK": "2"}, "RANK is 2 and WORLD_SIZE 2; ranks begin with 0."),
    ],
)
def test_a_wrong_variable_is_named(changes: dict[str, str], message: str) -> None:
    whole = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
    require_launcher_environment(whole)
    require_launcher_environment({"RANK": "x"})
    with pytest.raises(TrainerError, match=f"^{re.escape(message)}"):
        require_launcher_environment({**whole, **changes})


def test_no_module_of_the_package_imports_torch() -> None:
    modules = [f"rdm_job.{path.stem}" for path in Path(rdm_job.__file__).parent.glob("[a-z]*.py")]
    assert "rdm_job.rank" in modules
    code = f"import sys, {', '.join(modules)}\nsys.exit('torch' in sys.modules or 'deepspeed' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_querying_a_job_does_not_import_numpy() -> None:
    code = "import sys, rdm_job.verbs\nsys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

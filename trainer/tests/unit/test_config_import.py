# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from rdm_core.config import check, from_dict, load, shell, tdpp
from rdm_core.errors import ConfigError
from tests.unit.conftest import Program

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
DOCUMENT = """\
#!/bin/bash
CONTAINER_IMAGE_PATH="$HOME/tdpp/image/pytorch.sqsh"
CONTAINER_NAME=megatron-latest

HOMOGENEOUS_CLUSTER=true # true | false
MODEL='xl' # 'small' or 'xl'
NPROC_PER_NODE=4
NNODES=8
WORLD_SIZE=$((NPROC_PER_NODE * NNODES))
GLOBAL_BATCH_SIZE=64
MICRO_BATCH_SIZE=1
TENSOR_MP_SIZE=1
DP_SIZE=4
PIPELINE_MP_SIZE=8
PARTITION="0-11-8-8-8-8-5-0"
NSYS=false
PROFILE=false
MASTER_PORT=6787
RELOAD_CONTAINER=false

echo "model: $MODEL"
if [ $MODEL == "small" ]; then
    HIDDEN_SIZE=1024
    NUM_LAYERS=24
elif [ $MODEL == "xl" ]; then
    HIDDEN_SIZE=1600; NUM_LAYERS=48
else
    echo "error: no model $MODEL"
    return 1
fi
if $PROFILE; then PROFILE_ARGS="--level 2 \\
    --option all"
else
    PROFILE_ARGS=""
fi
"""
"""The document's settings, in the form of its file: comments, sums and conditions among them."""


def imported(text: str) -> tdpp.Imported:
    return tdpp.job_of(shell.variables(text, "conf.sh"), "conf.sh")


def error_of(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        imported(text)
    return "\n".join(caught.value.problems)


def test_documents_script_gives_the_documents_values() -> None:
    found = imported(DOCUMENT)
    job = from_dict(found.job)
    assert check(job, world_size=32, devices_per_node=4) == []
    assert (job.model.layers, job.model.hidden_size, job.model.attention_heads) == (48, 1600, 16)
    assert (job.parallel.tensor, job.parallel.data, job.parallel.pipeline) == (1, 4, 8)
    assert job.stage_blocks() == [0, 11, 8, 8, 8, 8, 5, 0]
    assert (job.optimisation.global_batch_size, job.optimisation.micro_batch_size) == (64, 1)
    assert (job.optimisation.train_iterations, job.optimisation.lr) == (50, 1.5e-4)
    assert (found.job["engine"], job.optimisation.precision) == ("deepspeed", "fp16")
    assert (job.launcher.kind, job.launcher.nodes, job.launcher.master_port) == ("slurm", 8, 6787)
    assert job.launcher.slurm.gpus_per_node == {"": "4"}
    assert not job.launcher.slurm.reload_container
    assert any("launcher.slurm.image" in note and "tdpp/image/pytorch.sqsh" in note for note in found.notes)
    assert "CONTAINER_NAME" in found.notes[-1]


def test_switches_of_the_script_become_keys() -> None:
    text = DOCUMENT.replace("PROFILE=false", "PROFILE=true").replace("NSYS=false", "NSYS=true")
    text = text.replace("RELOAD_CONTAINER=false", "RELOAD_CONTAINER=true")
    found = imported(text.replace("CLUSTER=true", "CLUSTER=false"))
    job = from_dict(found.job)
    assert job.launcher.slurm.reload_container
    assert list(job.traced_steps) == list(range(41, 51))
    assert job.launcher.profiler == "nsys"
    assert "launcher.slurm.nodes" in found.notes[0]
    small = from_dict(imported(DOCUMENT.replace("'xl'", "small").replace("0-11-8-8-8-8-5-0", "")).job)
    assert (small.model.layers, small.model.hidden_size, small.parallel.partition) == (24, 1024, "even")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("BATCH_SIZE=64", "BATCH_SIZE=many", "BATCH_SIZE is 'many'; it must be a whole number above 0."),
        ("DP_SIZE=4", "DP_SIZE=2", "= 16, but the world is 32."),
        ("5-0", "6-0", "49"),
        ("BATCH_SIZE=64", "BATCH_SIZE=63", "63 is not a multiple"),
        ("'xl'", "Bert", "(line 29): the file ends itself there: 'error: no model Bert'."),
        ("NSYS=false", "exit 0", "conf.sh ends itself; it may only set variables."),
        ("NODE *", "NOD *", "NPROC_PER_NOD is not set before; did you mean NPROC_PER_NODE?"),
        ("NNODES=8", "NNODES=8; touch here", "conf.sh (line 8): touch: command not found."),
        ("NSYS=false", "NSYS=maybe", "NSYS is 'maybe'; it must be true or false."),
        ("* NNODES", "/ 0", "(line 9): NPROC_PER_NODE / 0: division by 0"),
        ("RELOAD_CONTAINER=false", 'RELOAD_CONTAINER="false', "looking for matching"),
        ("    PROFILE_ARGS=\"\"\nfi\n", "", "syntax error: unexpected end of file."),
        ("MODEL='xl'", "", "MODEL is not set before"),
    ],
)  # fmt: skip
def test_unsupported_line_is_refused_with_its_number(before: str, after: str, message: str) -> None:
    assert before in DOCUMENT
    assert message in error_of(DOCUMENT.replace(before, after))


@pytest.mark.parametrize(
    "statement",
    [
        "{here}/program",
        "X=$({here}/program)",
        "X=`{here}/program`",
        "echo {here}/program | true",
        "true <({here}/program)",
        "exec {here}/program",
        ". {here}/program",
        "PATH={here}; program",
        "unset PATH; command -p touch {here}/made",
        "set +r; {here}/program",
        "ulimit -n 99; : {here}",
        "enable kill; : {here}",
        "kill -9 0; : {here}",
        "echo a > {here}/made",
        "read X < {here}/program",
        "read X < /dev/tcp/127.0.0.1/22; : {here}",
        "cat << Y\n{here}\nY",
        "( ( read -u 2 X; echo $X ) 2< {here}/program ) 2>&-; exit",
        "( ( X=$(< /dev/fd/2); echo $X ) 2< {here}/program ) 2>&-; exit",
        "( ( echo a 1>&2 ) 2< /dev/tcp/127.0.0.1/22; : {here} ) 2>&-; exit",
        "suspend -f; : {here}",
    ],
)
def test_script_starts_reads_and_writes_nothing(statement: str, tmp_path: Path) -> None:
    """Whatever the file contains, bash may set variables, and can do nothing else."""
    program = tmp_path / "program"
    program.write_text(f"#!/bin/bash\necho > {tmp_path}/made\n")
    program.chmod(0o755)
    assert "#!" not in error_of(f"{DOCUMENT}{statement.format(here=tmp_path)}\n")
    assert [*tmp_path.iterdir()] == [program]


def test_assignment_takes_effect_at_once_but_not_within_export() -> None:
    found = shell.variables("A=1\nA=2 B=$A\nexport A=3 C=$A\n", "conf.sh")
    assert found == {"A": "3", "B": "2", "C": "2"}


def test_the_command_prints_a_job_that_can_be_read(tmp_path: Path, program: Program) -> None:
    (tmp_path / "_00_conf.sh").write_text(DOCUMENT, encoding="utf-8")
    code, out, err = program("config", "import", tmp_path / "_00_conf.sh")
    assert code == 0
    (tmp_path / "job.yaml").write_text(out, encoding="utf-8")
    assert load(tmp_path / "job.yaml").launcher.slurm.gpus_per_node == {"": "4"}
    assert "#SBATCH" in err


@pytest.mark.parametrize(("name", "world"), [("megatron_ds_snmg", 8), ("megatron_ds_mnmg", 16)])
def test_the_slurm_documents_examples_are_sound_in_their_worlds(name: str, world: int) -> None:
    job = load(CONFIGS / "slurm" / f"{name}.yaml")
    assert check(job, world_size=world, devices_per_node=8) == []
    assert job.data_parallel(world) == 2


def test_the_commands_of_the_documents_pages_are_accepted(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump(imported(DOCUMENT).job))
    root = CONFIGS.parents[1]
    tried = 0
    for page in ("from-tdpp.md", "from-slurm-scripts.md", "from-mdx.md"):
        text = (root / "docs" / page).read_text(encoding="utf-8")
        for command in re.findall(r"rdm-provision train ([^`\n]+\.yaml[^`\n]*)", text):
            line = command.partition(" -i ")[0].replace("--launcher ", "launcher.kind=")
            file, *overrides = shlex.split(line)
            assert check(load(job if file == job.name else root / file, overrides)) == [], command
            tried += 1
    assert tried == 5

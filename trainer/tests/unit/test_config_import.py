# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rdm_core.config import check, from_dict, load, shell, tdpp
from rdm_core.errors import ConfigError
from rdm_trainer import cli

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


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        imported(text)
    return "\n".join(caught.value.problems)


def test_the_documents_file_gives_the_documents_numbers() -> None:
    found = imported(DOCUMENT)
    job = from_dict(found.job)
    assert check(job, world_size=32, devices_per_node=4) == []
    assert (job.model.layers, job.model.hidden_size, job.model.attention_heads) == (48, 1600, 16)
    assert (job.parallel.tensor, job.parallel.data, job.parallel.pipeline) == (1, 4, 8)
    assert job.stage_blocks() == [0, 11, 8, 8, 8, 8, 5, 0]
    assert (job.optimisation.global_batch_size, job.optimisation.micro_batch_size) == (64, 1)
    assert (job.optimisation.train_iterations, job.optimisation.lr) == (50, 1.5e-4)
    assert (job.launcher.kind, job.launcher.nodes, job.launcher.master_port) == ("slurm", 8, 6787)
    assert job.launcher.slurm.gpus_per_node == {"": "4"}
    assert not job.launcher.slurm.reload_container
    assert any("launcher.slurm.image" in note and "tdpp/image/pytorch.sqsh" in note for note in found.notes)
    assert "CONTAINER_NAME" in found.notes[-1]


def test_its_switches_are_keys_here() -> None:
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
    ("before", "after", "says"),
    [
        ("BATCH_SIZE=64", "BATCH_SIZE=many", "BATCH_SIZE is 'many'; it must be a whole number above 0."),
        ("DP_SIZE=4", "DP_SIZE=2", "= 16, but the world is 32."),
        ("5-0", "6-0", "49"),
        ("BATCH_SIZE=64", "BATCH_SIZE=63", "63 is not a multiple"),
        ("'xl'", "Bert", "(line 29): the file ends itself there: 'error: no model Bert'."),
        ("NODE *", "NOD *", "NPROC_PER_NOD is not set before; did you mean NPROC_PER_NODE?"),
        ("NNODES=8", "NNODES=$(nproc)", "conf.sh (line 8): '$(nproc)' is no setting"),
        ("NNODES=8", "NNODES=8; touch here", "conf.sh (line 8): 'touch here' is no setting"),
        ("NSYS=false", "NSYS=`date`", "(line 16): '`date`' is no setting"),
        ("NSYS=false", "NSYS=maybe", "NSYS is 'maybe'; it must be true or false."),
        ("* NNODES", "** NNODES", "$((NPROC_PER_NODE ** NNODES)) is no sum of whole numbers."),
        ("* NNODES", "/ 0", "is no sum of whole numbers."),
        ('[ $MODEL == "small" ]', "[[ $MODEL == x* ]]", "'x*' is a pattern there; put what is"),
        ('if [ $MODEL == "small" ]', "P='[x]l'; if [[ $MODEL != $P ]]", "(line 22): '[x]l' is a pattern"),
        ("RELOAD_CONTAINER=false", 'RELOAD_CONTAINER="false', "the quotes that begin there do not end"),
        ("    PROFILE_ARGS=\"\"\nfi\n", "", "conf.sh ends within an if."),
        ("MODEL='xl'", "", "MODEL is not set before"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_its_line(before: str, after: str, says: str) -> None:
    assert before in DOCUMENT
    assert says in refusal(DOCUMENT.replace(before, after))


def test_what_a_line_sets_counts_at_once_but_not_behind_export() -> None:
    found = shell.variables("A=1\nA=2 B=$A\nexport A=3 C=$A\n", "conf.sh")
    assert found == {"A": "3", "B": "2", "C": "2"}


@pytest.mark.parametrize("right", ['"x*"', "'x*'", "x\\*"])
def test_what_is_quoted_is_no_pattern(right: str) -> None:
    found = shell.variables(f"M=xl\nA=no\nif [[ $M == {right} ]]; then A=yes; fi\n", "conf.sh")
    assert found["A"] == "no"
    assert shell.variables("if false; then if [[ a == x* ]]; then A=1; fi; fi\n", "conf.sh") == {}


def test_a_long_sum_is_refused_at_once() -> None:
    names = " * ".join(["GLOBAL_BATCH_SIZE_PER_REPLICA"] * 20)
    assert "is no sum of whole numbers." in refusal(f"A=$(({names} > 8))\n")


def test_a_value_cannot_double_itself_without_end() -> None:
    assert "longer than" in refusal("A=0123456789\n" + 'A="$A$A"\n' * 60)


def test_the_command_prints_a_job_that_can_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "_00_conf.sh").write_text(DOCUMENT, encoding="utf-8")
    with pytest.raises(SystemExit) as caught:
        cli.main(["config", "import", str(tmp_path / "_00_conf.sh")])
    assert caught.value.code == 0
    printed = capsys.readouterr()
    (tmp_path / "job.yaml").write_text(printed.out, encoding="utf-8")
    assert load(tmp_path / "job.yaml").launcher.slurm.gpus_per_node == {"": "4"}
    assert "#SBATCH" in printed.err


@pytest.mark.parametrize(("name", "world"), [("megatron_ds_snmg", 8), ("megatron_ds_mnmg", 16)])
def test_the_slurm_documents_examples_are_sound_in_their_worlds(name: str, world: int) -> None:
    job = load(CONFIGS / "slurm" / f"{name}.yaml")
    assert check(job, world_size=world, devices_per_node=8) == []
    assert job.data_parallel(world) == 2


@given(st.text(max_size=200) | st.text(alphabet="AB=$(){}[]'\"\\`;# \n0123if thenlsco&|<>*/+-", max_size=200))
def test_any_text_is_read_or_refused_with_a_line(text: str) -> None:
    try:
        shell.variables(text, "conf.sh")
    except ConfigError as error:
        problems = error.problems
    else:
        return
    assert len(problems) == 1
    assert problems[0].startswith(("conf.sh (line ", "conf.sh ends within an if."))


NAMES = st.sampled_from(["A", "B", "C_1"])
VALUES = st.one_of(
    st.integers(0, 999).map(str),
    st.text(alphabet="ab .,;|&<>(){}*?[]#!~\\$\n", max_size=8).map(lambda text: "'" + text + "'"),
    st.text(alphabet="ab .;|&<>{}*?[]#~'", max_size=8).map(lambda text: '"' + text + '"'),
    st.sampled_from(['"$A-${B}"', "$A", "x$B.y", '"\\"\\\\\\$A"', "\\$A", "a#b", '"a\\\nb"']),
    st.tuples(st.sampled_from("+-*/%"), st.integers(1, 99)).map(
        lambda parts: f"$((NODES {parts[0]} {parts[1]} - $NODES))"
    ),
)
ASSIGNMENT = st.lists(st.tuples(NAMES, VALUES).map("=".join), min_size=1, max_size=3).flatmap(
    lambda words: st.sampled_from(["", "export "]).map(lambda before: before + " ".join(words))
)
CONDITION = st.tuples(NAMES, st.sampled_from(["=", "!="]), st.integers(0, 3)).map(
    lambda parts: f'[ "${parts[0]}" {parts[1]} {parts[2]} ]'
)
STATEMENT = st.recursive(
    ASSIGNMENT,
    lambda inner: st.tuples(CONDITION, inner, CONDITION, inner, inner).map(
        lambda p: f"if {p[0]}; then\n{p[1]}\nelif {p[2]}; then {p[3]}\nelse {p[4]}\nfi"
    ),
    max_leaves=6,
)


@settings(max_examples=25)
@given(st.lists(STATEMENT, max_size=8))
def test_what_is_read_is_what_a_shell_has(statements: list[str]) -> None:
    """Bash itself says what the values are; it gets only text made above, never a file of somebody's."""
    text = "\n".join(["A=1", "B=2", "C_1=3", "NODES=8", *statements, ""])
    found = shell.variables(text, "conf.sh")
    script = text + 'printf "%s\\0" "$A" "$B" "$C_1"'
    # With `set -u` a name that is not set is an error there, too.
    ran = subprocess.run(["bash", "-fuc", script], capture_output=True, check=True, timeout=60)
    assert [found["A"], found["B"], found["C_1"]] == ran.stdout.decode().split("\0")[:3]


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

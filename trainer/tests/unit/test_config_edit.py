# SPDX-License-Identifier: GPL-3.0-or-later
"""Values are inserted into a job's YAML, and everything else stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from rdm_core import config as configuration
from rdm_core.config import edit
from rdm_core.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "configs"
OVERRIDES = [
    "parallel.tensor=2",
    "parallel.pipeline=4",
    "parallel.partition=3-4-4-1",
    "parallel.zero_stage=1",
    "optimisation.micro_batch_size=2",
]
MODEL = "model: {layers: 12, hidden_size: 64, attention_heads: 4, seq_length: 16}\n"
OPTIMISATION = "optimisation: {micro_batch_size: 1, global_batch_size: 16, train_iterations: 4}\n"
REST = f"data: {{mock: true}}\n{OPTIMISATION}"
TRAININGS = [
    path
    for path in sorted(CONFIGS.glob("*.yaml"))
    if isinstance(configuration.load_job(path), configuration.Config)
]


@pytest.mark.parametrize("path", TRAININGS, ids=lambda path: path.stem)
def test_every_example_keeps_all_other_lines(path: Path) -> None:
    text = path.read_text("utf-8")
    edited = edit.with_values(text, OVERRIDES)
    assert configuration.load_text(edited) == configuration.load_text(text, OVERRIDES)
    names = [override.partition("=")[0].rpartition(".")[2] for override in OVERRIDES]
    kept = [line for line in text.splitlines() if line.strip().partition(":")[0] not in names]
    found = iter(edited.splitlines())
    assert all(line in found for line in kept)


@pytest.mark.parametrize(
    "parallel",
    [
        "",
        "parallel:\n",
        "parallel:  # to be found\n",
        "parallel: {}\n",
        "parallel: {tensor: 1}  # as it was\n",
        "parallel: {\n  tensor: 1,  # one\n  pipeline: 1  # two\n  }\n",
        "parallel:\n    tensor: 1  # inside a node\n\n    # of the model\n",
        "parallel:\n  tensor:\n  pipeline: 1\n",
        'parallel:\n  partition: "even"\n',
        "parallel:\r\n  tensor: 1 # one\r\n",
        "parallel:\n  <<: {tensor: 1}\n",
    ],
)
def test_a_section_in_any_form_takes_the_values(parallel: str) -> None:
    text = f"# A job.\nname: one\n{MODEL}{parallel}# The rest.\n{REST}"
    edited = edit.with_values(text, OVERRIDES)
    assert configuration.load_text(edited) == configuration.load_text(text, OVERRIDES)
    comments = [line.partition("#")[2] for line in text.splitlines() if "#" in line]
    assert [line.partition("#")[2] for line in edited.splitlines() if "#" in line] == comments
    assert ("\r\n" in edited) == ("\r\n" in text)


@pytest.mark.parametrize("note", ["a", "|\n      a\n      b\n", "|\n      a\n\n  nodes: 1"])
def test_an_end_without_a_new_line_and_after_a_text_of_several(note: str) -> None:
    text = f"name: one\n{MODEL}{REST}launcher:\n  env:\n    NOTE: {note}"
    edited = edit.with_values(text, OVERRIDES)
    assert configuration.load_text(edited) == configuration.load_text(text, OVERRIDES)


def test_yaml_anchors_are_refused_with_a_reason() -> None:
    text = f"name: one\n{MODEL}{REST}parallel: {{tensor: &two 2, pipeline: *two}}\n"
    with pytest.raises(ConfigError, match=r"set by hand: parallel\.tensor=2, parallel\.pipeline=4"):
        edit.with_values(text, OVERRIDES)


def test_edited_file_keeps_its_link_and_mode_and_errors_change_nothing(tmp_path: Path) -> None:
    path, link = tmp_path / "job.yaml", tmp_path / "link.yaml"
    text = f"name: one  # mine\r\n{MODEL}{REST}"
    path.write_bytes(text.encode())
    path.chmod(0o640)
    link.symlink_to(path.name)
    edit.write(link, OVERRIDES)
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert path.read_bytes().startswith(b"name: one  # mine\r\n")
    changed = path.read_bytes()
    assert configuration.load(path) == configuration.load_text(text, OVERRIDES)
    with pytest.raises(ConfigError, match="is not a key"):
        edit.write(link, ["parallel.tensors=2"])
    assert path.read_bytes() == changed
    assert sorted(file.name for file in tmp_path.iterdir()) == ["job.yaml", "link.yaml"]
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        edit.write(tmp_path / "none.yaml", OVERRIDES)

# SPDX-License-Identifier: GPL-3.0-or-later
"""Every private name of DeepSpeed that the engine uses is in its package's table."""

from __future__ import annotations

import ast
import fnmatch
import inspect
import re
from pathlib import Path

import deepspeed
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.pipe.module import PipelineModule
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

from rdm_trainer.engines import deepspeed as package

FOLDER = Path(package.__file__).parent
THEIRS = (BF16_Optimizer, DeepSpeedZeroOptimizer, PipelineEngine, PipelineModule, deepspeed.DeepSpeedEngine)

FILES = (
    "accelerator/cpu_accelerator.py",
    "runtime/zero/muon/original_muon.py",
    "runtime/zero/partition_parameters.py",
    "runtime/zero/stage3.py",
    "utils/tensor_fragment.py",
)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_private_names_are_listed() -> None:
    listed = set(re.findall(r"\b_\w+", package.__doc__ or ""))
    used, own = set[str](), set[str]()
    # The folder above has the classes that both engines are derived from.
    for path in (*FOLDER.parent.glob("*.py"), *FOLDER.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                own.add(node.name)
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) != "torch":
                used.add(node.attr)
                if isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
                    own.add(node.attr)
    inherited = {name for theirs in THEIRS for name in dir(theirs)}
    found = {name for name in used - own | own & inherited if is_private(name)}
    assert found
    assert found <= listed, f"not in the table: {sorted(found - listed)}"


def test_listed_names_exist() -> None:
    top = Path(deepspeed.__file__).parent
    files = [*map(inspect.getfile, THEIRS), *(str(top / path) for path in FILES)]
    words = {word for file in files for word in re.findall(r"\w+", Path(file).read_text("utf-8"))}
    # The first column of the table has our own files.
    quoted = re.findall(r"(?<!\n)``([\w.*]+)``", package.__doc__ or "")
    names = {name for one in quoted for name in one.split(".") if name}
    assert {"ds_tensor", "Muon", "_hp_mapping", "fp32_groups_*", "create_op_builder"} <= names
    missing = {name for name in names if not fnmatch.filter(words, name)}
    assert not missing

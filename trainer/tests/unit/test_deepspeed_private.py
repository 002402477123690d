# SPDX-License-Identifier: GPL-3.0-or-later
"""Every private name of DeepSpeed that the engine uses is in its package's table."""

from __future__ import annotations

import ast
import importlib
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


def test_what_is_listed_exists() -> None:
    source = "".join(
        Path(inspect.getfile(theirs)).read_text(encoding="utf-8")
        for theirs in (*THEIRS, importlib.import_module("deepspeed.utils.tensor_fragment"))
    )
    source += Path(inspect.getfile(deepspeed.zero.Init)).parent.joinpath("stage3.py").read_text("utf-8")
    missing = {name for name in re.findall(r"\b_\w+", package.__doc__ or "") if name not in source}
    assert not missing

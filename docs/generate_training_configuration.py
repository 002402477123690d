# SPDX-License-Identifier: GPL-3.0-or-later
"""Write docs/training-configuration.md and docs/finetune-configuration.md from the trainer's dataclasses."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import textwrap
import types
import typing
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "trainer"))

from rdm_core.bounds import MOST  # noqa: E402
from rdm_core.config import command, finetune, job, schema  # noqa: E402

PAGE = ROOT / "docs" / "training-configuration.md"
HEAD = """# A job's configuration

This page has every key of a job's YAML file. `make docs` writes it from the trainer's dataclasses
(`job.py` and `schema.py` of `trainer/rdm_core/config/`). A key that you leave out has its default; an unknown
key is an error. On the command line, `key.sub=value` overrides the file, as in
`rdm-provision train job.yaml parallel.pipeline=4 data.blend=[corpus_text_document]`; values are YAML.

`rdm-trainer config JOB` checks a file and prints it with every key. `rdm-trainer dry-run JOB --gpu H200`
shows what it needs and whether it fits. `trainer/configs/` has examples. If you have a Megatron command line,
see [Megatron's flags, and our keys](megatron-flags.md).

An integer is at most 2147483647 unless the table says otherwise. YAML 1.1 reads `010` and `1:30` as 8 and 90.
Here they are no numbers: a key for a number refuses them, and a key for text keeps them unchanged. Write a
blend in Megatron's order, `[0.3, a, 0.7, b]`, as `[{prefix: a, weight: 0.3}, {prefix: b, weight: 0.7}]`.
In a path, `~` is the home directory where the job runs, such as in its container; under Slurm, on the host
that submits the job.
"""
OTHERS = """## workload: command

A job that runs any command once per device has `name`, `launcher`, the keys of `logging` for output and
Prometheus, and:

"""
FINETUNE_PAGE = ROOT / "docs" / "finetune-configuration.md"
FINETUNE_HEAD = """# A fine-tuning's configuration

This page has every key of a job's YAML file with `workload: finetune`. `make docs` writes it from the
trainer's dataclasses (`trainer/rdm_core/config/finetune.py`). A key that you leave out has its default; an
unknown key is an error. On the command line, `key.sub=value` overrides the file; values are YAML.
In a path, `~` is the home directory where the job runs, such as in its container; under Slurm, on the host
that submits the job. [Fine-tuning](finetune.md) is the guide.
"""
WORDS = {"int": "integer", "float": "number", "str": "text", "bool": "true or false"}


def meanings(cls: type[Any]) -> dict[str, str]:
    """Return the docstring below each field of a dataclass and of its bases."""
    found = {}
    for owner in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                continue
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def kind(hint: Any) -> str:
    """Return a type in words: ``integer, at least 1``."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        inner, bounds = kind(arguments[0]), arguments[1]
        if isinstance(bounds, job.ByPartition):
            inner = "text"
        elif isinstance(bounds, job.OfFile):
            return "path"
        elif bounds.most == MOST:
            bounds = dataclasses.replace(bounds, most=None)
        return f"{inner}, {bounds}"
    if origin in (typing.Union, types.UnionType):
        return kind(next(part for part in arguments if part is not type(None)))
    if origin is typing.Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if origin is tuple:
        return f"list of {kind(arguments[0])}"
    if origin is dict:
        return "names and texts"
    if dataclasses.is_dataclass(hint):
        return {"Blend": "data sets"}.get(hint.__name__, "keys")
    return WORDS[hint.__name__]


def default(field: dataclasses.Field[Any]) -> str:
    """Return a field's default as YAML; empty if it depends on other keys."""
    value = field.default
    if value is dataclasses.MISSING:
        return "required" if field.default_factory is dataclasses.MISSING else "`{}`"
    if value is None:
        return ""
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    return f"`{list(value) if isinstance(value, tuple) else value}`"


def cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return text.replace("|", "\\|")


def table(cls: type[Any], prefix: str) -> str:
    """Return the table of a section's keys."""
    hints = typing.get_type_hints(cls, include_extras=True)
    texts = meanings(cls)
    lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for field in dataclasses.fields(cls):
        if field.name in texts:
            value = cell(kind(hints[field.name]))
            lines.append(
                f"| `{prefix}{field.name}` | {value} | {default(field)} | {cell(texts[field.name])} |"
            )
    return "\n".join(lines) + "\n"


def own_table(cls: type[job.JobConfig]) -> str:
    """Return the table of the keys that only this workload has."""
    common = {f"| `{field.name}` " for field in dataclasses.fields(job.JobConfig)}
    lines = table(cls, "").splitlines()
    return "\n".join(line for line in lines if not line.startswith(tuple(common))) + "\n"


def description(cls: type[Any]) -> str:
    """Return what a section is for."""
    return inspect.cleandoc(cls.__doc__ or "")


def inner_sections(cls: type[Any], name: str) -> dict[str, type[Any]]:
    """Return the dataclasses that values of a section's keys have, under their titles."""
    found = {}
    for key, hint in typing.get_type_hints(cls).items():
        for inner in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(inner):
                assert isinstance(inner, type)
                found["A data set" if inner is schema.Blend else f"{name}.{key}"] = inner
    return found


def page() -> str:
    """Return the whole page."""
    parts = [HEAD, f"## The job itself\n\n{table(schema.Config, '')}"]
    hints = typing.get_type_hints(schema.Config)
    for name in schema.Config().to_dict():
        cls = hints[name]
        if not dataclasses.is_dataclass(cls):
            continue
        parts.append(f"## {name}\n\n{description(cls)}\n\n{table(cls, f'{name}.')}")
        for title, inner in inner_sections(cls, name).items():
            prefix = "" if inner is schema.Blend else f"{title}."
            parts.append(f"### {title}\n\n{description(inner)}\n\n{table(inner, prefix)}")
    parts.append(OTHERS + own_table(command.CommandConfig))
    return "\n".join(parts)


def finetune_page() -> str:
    """Return the page of fine-tuning; for the launcher's keys it refers to the page of training."""
    config = finetune.FinetuneConfig
    parts = [FINETUNE_HEAD, f"## The job itself\n\n{table(config, '')}"]
    hints = typing.get_type_hints(config)
    for name in sorted(hints, key=lambda name: name in ("logging", "launcher")):
        cls = hints[name]
        if not dataclasses.is_dataclass(cls):
            continue
        assert isinstance(cls, type)
        text = f"{description(cls)}\n\n{table(cls, f'{name}.')}"
        if cls is job.LauncherConfig:
            text = "As [of a training](training-configuration.md#launcher).\n"
        parts.append(f"## {name}\n\n{text}")
    return "\n".join(parts)


if __name__ == "__main__":
    FINETUNE_PAGE.write_text(finetune_page(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")

# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import dataclasses
import importlib.util
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from rdm_core.config import finetune, job, schema
from rdm_core.model_spec import RopeScaling

DOCS = Path(__file__).resolve().parents[3] / "docs"


def generator(name: str = "training_configuration") -> ModuleType:
    spec = importlib.util.spec_from_file_location("generator", DOCS / f"generate_{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reference_page_matches_the_dataclasses() -> None:
    written = (DOCS / "training-configuration.md").read_text(encoding="utf-8")
    assert written == generator().page(), "run `make docs`"
    written = (DOCS / "finetune-configuration.md").read_text(encoding="utf-8")
    assert written == generator().finetune_page(), "run `make docs`"


def test_every_key_has_a_meaning() -> None:
    module = generator()
    for cls in (
        schema.Blend,
        job.SlurmConfig,
        RopeScaling,
        schema.TokenizerConfig,
        *typing.get_type_hints(schema.Config).values(),
        *typing.get_type_hints(finetune.FinetuneConfig).values(),
    ):
        if dataclasses.is_dataclass(cls):
            assert isinstance(cls, type)
            assert set(module.meanings(cls)) == {field.name for field in dataclasses.fields(cls)}


def keys(cls: type[Any], prefix: str = "") -> Iterator[str]:
    for key, hint in typing.get_type_hints(cls).items():
        inner = [part for part in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(part)]
        for part in inner:
            assert isinstance(part, type)
            yield from keys(part, "" if part is schema.Blend else f"{prefix}{key}.")
        if not inner:
            yield prefix + key


def test_every_key_is_on_the_page() -> None:
    page = (DOCS / "training-configuration.md").read_text(encoding="utf-8")
    assert {key for key in keys(schema.Config) if f"| `{key}` " not in page} == set()


def test_megatrons_flags_are_mapped_to_existing_keys() -> None:
    sections = {
        name: {field.name for field in dataclasses.fields(cls)}
        for name, cls in typing.get_type_hints(schema.Config).items()
        if dataclasses.is_dataclass(cls)
    }
    page = (DOCS / "megatron-flags.md").read_text(encoding="utf-8")
    named = {tuple(key) for key in re.findall(rf"`({'|'.join(sections)})\.(\w+)", page)}
    assert {key for key in named if key[1] not in sections[key[0]]} == set()
    # Every key of the model and of the layout is there.
    for section in ("model", "parallel"):
        assert {name for where, name in named if where == section} == sections[section]


def test_every_megatron_flag_has_a_key_or_an_alternative() -> None:
    module = generator("megatron_flags")
    page = (DOCS / "megatron-flags.md").read_text(encoding="utf-8")
    assert page == module.page(page), "run `make docs`"
    by_hand, _, rest = page.partition(module.TITLE)
    keys, others = (re.findall(r"`(--[\w-]+)", part) for part in (by_hand, rest))
    assert {flag for flag in module.flags() if flag not in keys and flag not in others} == set()
    assert [flag for flag in others if flag in keys or others.count(flag) > 1] == []
    # No row is empty, and no rule is for a flag that Megatron has removed.
    assert [line for line in rest.splitlines() if line.endswith("|  |")] == []

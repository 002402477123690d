"""Suggested commands, which name the cluster as the user did."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from pathlib import Path

import click
from click.core import ParameterSource

from rdm_provision.cli.verb_list import VERBS

WRITTEN_VARS = "rdm_provision.extra_vars"
"""Key of click's context for the words of ``--extra-vars``."""
_OF_CLUSTER = ("inventory", "extra_vars", "vault_password_file", "ask_vault_pass", "ask_become_pass")
_NOT_AGAIN = ("limit", "as_json", "show_command", "verbose")
_OF_GROUP = {"Bare hosts": " (?:up|down|status)"}
_TAKERS = "|".join(
    verb + _OF_GROUP.get(group, "") for verb, (group, _) in VERBS.items() if group != "This machine"
)
_HINTED = re.compile(rf"(?<!by )\brdm-provision (?:{_TAKERS})\b(?! -i)")
"""A command to run, and not one that was run."""


def inventory_flag() -> str:
    """Return the options that name the cluster, for suggested commands: `` -i PATH``, variables, vault."""
    ctx = click.get_current_context(silent=True)
    return _written(ctx, _OF_CLUSTER) if ctx else ""


def with_inventory(text: str) -> str:
    """Return a sentence with the options that name the cluster added to its commands."""
    flag = inventory_flag()
    return _HINTED.sub(lambda found: found[0] + flag, text) if flag else text


def again() -> str:
    """Return the current command as it was given, without its ``--limit``."""
    ctx = click.get_current_context()
    # The program's own name may be a path.
    words = ctx.command_path.split()[1:] if ctx.parent else [ctx.info_name or ""]
    return " ".join(("rdm-provision", *words)) + _written(ctx)


def _written(ctx: click.Context, only: Collection[str] = ()) -> str:
    """Return options and arguments as given, with a space before each."""
    options, arguments = [], []
    for param in ctx.command.params:
        name = param.name or ""
        value = ctx.params.get(name) if name != "extra_vars" else ctx.meta.get(WRITTEN_VARS)
        if (name not in only if only else name in _NOT_AGAIN) or not value:
            continue
        if ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        values = [value] if isinstance(value, (str, Path, int)) else [*value]
        if isinstance(param, click.Argument):
            arguments += [shlex.quote(str(one)) for one in values]
        elif isinstance(param, click.Option) and param.is_flag:
            options.append(param.opts[-1])
        else:
            options += [f"{param.opts[0]} {shlex.quote(str(one))}" for one in values]
    return "".join(f" {word}" for word in (*options, *arguments))

"""The command-line program ``rdm-provision``: a thin view over :mod:`rdm_provision`, one file per verb.

A verb is a file of `verbs/` whose docstring begins with its group and its line in --help. Only click is
imported at start. A verb's file, and with it Ansible and rich, is loaded when it is used.
"""

from __future__ import annotations

import errno
import importlib
import os
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click
from click.core import ParameterSource

from rdm_provision.cli.verb_list import GROUPS, VERBS
from rdm_provision.errors import BAD_INPUT, CANCELLED, FAILED

PROGRAM = "rdm-provision"


class Verbs(click.Group):
    """The verbs, loaded when first used."""

    # ruff: noqa: ARG002  # click names the arguments

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the verbs."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a verb."""
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"{__name__}.verbs.{cmd_name}")
        found = (one for one in vars(module).values() if isinstance(one, click.Command))
        return next(one for one in found if one.name == cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs by group, without loading them."""
        for name in GROUPS:
            with formatter.section(name):
                formatter.write_dl([(verb, line) for verb, (group, line) in VERBS.items() if group == name])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb, or suggest the nearest one."""
        name = args[0]
        if name not in VERBS and not name.startswith("-"):
            from rdm_provision.nearest import did_you_mean

            meant = did_you_mean(name, VERBS, f"the verbs are {', '.join(VERBS)}.")
            ctx.fail(f"there is no verb {name!r}: {meant}")
        return super().resolve_command(ctx, args)


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import PackageNotFoundError, version

        try:
            click.echo(f"{PROGRAM} {version('rdm-provision')} (ansible-core {version('ansible-core')})")
        except PackageNotFoundError:
            click.echo(f"{PROGRAM} (from a checkout that is not installed)")
        ctx.exit()


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=True,
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
def cli() -> None:
    """Turn a list of hosts into a cluster that trains large models.

    \b
    Try it without any hardware:     Your own cluster:
      rdm-provision lab up             rdm-provision plan   -i inventory/mine
      rdm-provision up                 rdm-provision check  -i inventory/mine
      rdm-provision exec -- hostname   rdm-provision up     -i inventory/mine
      rdm-provision lab down           rdm-provision status -i inventory/mine

    Exit codes: 0 done, 1 failed on some node, 2 refused before any change, 3 bad input, 130 stopped.
    """


def main(argv: Sequence[str] | None = None) -> None:
    """Run the program and exit. An error is one sentence; a traceback is a bug."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(arguments)
    except OSError as error:
        *_, (frame, _line) = traceback.walk_tb(error.__traceback__)
        if error.filename or not frame.f_globals["__name__"].startswith(("click.", "rich.", __name__)):
            raise
        # The output cannot be written. Python would report that again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = FAILED
        # Nobody reads it any more in `rdm-provision status | head -1`.
        if error.errno != errno.EPIPE:
            click.echo(f"Error: the output cannot be written: {error.strerror}", err=True)
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    try:
        code = cli.main(args=arguments, prog_name=PROGRAM, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return BAD_INPUT
    except click.UsageError as error:
        return _report(arguments, error, _usage_message(error), hint=_help_hint(arguments, error))
    except click.ClickException as error:
        return _report(arguments, error, error.format_message())
    except (click.Abort, KeyboardInterrupt):
        click.echo("\nStopped.", err=True)
        return CANCELLED
    except Exception as error:
        from rdm_provision.errors import RdmError

        if not isinstance(error, RdmError):
            raise
        return _report(
            arguments,
            error,
            str(error),
            hint=error.hint,
            code=error.exit_code,
            problems=error.problems,
            warnings=error.warnings,
        )
    return code if isinstance(code, int) else 0


def _stray_path(error: click.UsageError) -> str:
    """Return the path that was given to a verb with an inventory and without arguments; empty if none was."""
    found = re.fullmatch(r"Got unexpected extra argument \((.+)\)", error.message)
    if found is None or error.ctx is None or not ("/" in found[1] or os.access(found[1], os.F_OK)):
        return ""
    has_arguments = any(isinstance(one, click.Argument) for one in error.ctx.command.params)
    inventory = error.ctx.get_parameter_source("inventory")
    return "" if has_arguments or inventory in (None, ParameterSource.COMMANDLINE) else found[1]


def _usage_message(error: click.UsageError) -> str:
    if error.ctx is not None and (path := _stray_path(error)):
        verb = error.ctx.command_path.removeprefix(f"{PROGRAM} ")
        return f"{verb} takes no arguments, but got {path}; an inventory goes with -i"
    # click's names of its types.
    message = re.sub("a valid integer(?: range)?", "an integer", error.format_message())
    message = re.sub("a valid float(?: range)?", "a number", message)
    return message[:1].lower() + message[1:] if not message.startswith("--") else message


def _help_hint(arguments: Sequence[str], error: click.UsageError) -> str:
    dry = ("--check", "--diff")
    if isinstance(error, click.NoSuchOption) and error.option_name in dry and arguments[:1] == ["up"]:
        words = [word for word in arguments[1:] if word not in dry]
        return f"rdm-provision check {shlex.join(words)}".rstrip() + ", which shows what `up` would change"
    if path := _stray_path(error):
        at = arguments.index(path)
        return shlex.join([PROGRAM, *arguments[:at], "-i", *arguments[at:]])
    if error.ctx is not None:
        return f"{error.ctx.command_path} --help"
    # click's error for an option without a value does not name the command.
    verb = next((word for word in arguments[:1] if word in VERBS), "")
    return " ".join(filter(None, (PROGRAM, verb, "--help")))


def _report(
    arguments: Sequence[str],
    error: Exception,
    message: str,
    *,
    hint: str = "",
    code: int = BAD_INPUT,
    problems: Sequence[Any] = (),
    warnings: Sequence[str] = (),
) -> int:
    """Report an error: as JSON with ``--json``, else as text on stderr."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if "--json" in own:
        import json

        from rdm_provision.results.events import to_json

        data = {"ok": False, "exit_code": code, "error": message, "hint": hint, "problems": to_json(problems)}
        click.echo(json.dumps({**data, "warnings": list(warnings)}, indent=2))
        return code
    from rdm_provision.cli.render.printable import printable

    click.secho("Error: ", fg="red", bold=True, nl=False, err=True)
    click.echo(printable(message), err=True)
    if problems:
        from rdm_provision.cli.render import view

        view.problems(view.err(), problems)
    for warning in warnings:
        click.echo(printable(f"Warning: {warning}"), err=True)
    if hint:
        click.echo(printable(f"{'See' if isinstance(error, click.UsageError) else 'Hint'}: {hint}"), err=True)
    return code

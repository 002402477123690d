"""The command-line program ``rdm-provision``: a thin view over :mod:`rdm_provision`, one file per verb.

Only click is imported at start. A verb's file, and with it Ansible and rich, is loaded when it is used.
"""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Sequence
from typing import Any

import click

from rdm_provision.errors import BAD_INPUT, CANCELLED, FAILED

PROGRAM = "rdm-provision"

# Verb → (file and name of its command, its line in --help). In the order of the help.
VERBS: dict[str, tuple[str, str]] = {
    "lab": ("lab:lab", "Make, inspect and remove a miniature cluster on this machine."),
    "doctor": ("doctor:doctor", "Check this machine: one line per thing that runs need."),
    "plan": ("plan:plan", "Show which node has which address. Touches no node."),
    "check": ("check:check", "Show what `up` would change on each node. Changes nothing."),
    "up": ("up:up", "Bring the cluster up: images, network, containers, hostfile."),
    "verify": ("verify:verify", "Measure the fabric between the containers."),
    "status": ("status:status", "Show what runs where, and what is not as planned."),
    "exec": ("exec:exec_", "Run a command in the containers, all or some."),
    "data": ("data:data", "Copy a directory of data to every node."),
    "profile": ("profile:profile", "Measure what layers and links take, for tune."),
    "tune": ("tune:tune", "Find the fastest layout of a training on the cluster."),
    "train": ("train:train", "Check every node, start a training job, and watch it."),
    "jobs": ("jobs:jobs", "Show the training jobs, or all about one."),
    "logs": ("logs:logs", "Show what a job wrote on each node."),
    "report": ("report:report", "Make one HTML page of what a job wrote, or compare several."),
    "stop": ("stop:stop", "Stop a job: its own processes, after a checkpoint."),
    "env": ("env:env", "Make the Python environment of bare hosts, or take it away."),
    "slurm": ("slurm:slurm", "Make a Slurm cluster of the hosts, show it, or take it away."),
    "down": ("down:down", "Take away what `up` made, and nothing else."),
    "completion": ("completion:completion", "Print the shell's completion script."),
}


class Verbs(click.Group):
    """The verbs, loaded when first used."""

    # ruff: noqa: ARG002  # click names the arguments

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order of the help."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a verb."""
        if cmd_name not in VERBS:
            return None
        module, _, attribute = VERBS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(f"{__name__}.verbs.{module}"), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs without loading them."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, line) for name, (_, line) in VERBS.items()])

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
    sys.exit(_run(arguments))


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
    except BrokenPipeError:
        # Nobody reads our output any more, as in `rdm-provision status | head -1`.
        sys.stderr.close()
        return FAILED
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


def _usage_message(error: click.UsageError) -> str:
    message = error.format_message()
    return message[:1].lower() + message[1:] if not message.startswith("--") else message


def _help_hint(arguments: Sequence[str], error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption) and error.option_name == "--check" and arguments[:1] == ["up"]:
        words = [word for word in arguments[1:] if word != "--check"]
        return f"rdm-provision check {shlex.join(words)}".rstrip() + ", which shows what `up` would change"
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

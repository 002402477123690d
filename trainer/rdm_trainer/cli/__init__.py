# SPDX-License-Identifier: GPL-3.0-or-later
"""The command-line program ``rdm-trainer``: one file per verb, loaded when the verb is used.

Only click is imported at start. Nothing here imports torch: a launcher starts this program once per rank.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import re
import sys
import traceback
from collections.abc import Sequence

import click

from rdm_core.errors import BAD_INPUT, DONE, FAILED, STOPPED, TrainerError

PROGRAM = "rdm-trainer"

# Verb → (file and name of its command, its line in --help). In the order of the help.
VERBS: dict[str, tuple[str, str]] = {
    "config": ("config:config", "Check a configuration and print it with every key."),
    "dry-run": ("dry_run:dry_run", "Compute what a job needs, and whether it fits, without any GPU."),
    "tune": ("tune:tune", "Find the fastest layout on given GPUs."),
    "profile": ("profile:profile", "Measure what layers, optimiser and links take, for tune."),
    "preprocess": ("preprocess:preprocess", "Turn text into the tokens that training reads."),
    "data": ("data:data", "Inspect, merge and download data sets."),
    "train": ("train:train", "Train. Launchers start this once per device."),
    "finetune": ("finetune:finetune", "Fine-tune a published model. Launchers start this once per device."),
    "rendezvous": (
        "rendezvous:rendezvous",
        "Let hosts without an inventory find each other, and run a command.",
    ),
    "checkpoint": ("checkpoint:checkpoint", "List, verify and repair checkpoints."),
    "export": ("weights:export", "Write a checkpoint's weights for Hugging Face or Megatron."),
    "import": ("weights:import_", "Write the configuration that trains a published model."),
    "generate": ("weights:generate", "Continue a text with a checkpoint or a published model."),
    "log": ("log:log", "Summarise the logs of a training, ours or others'."),
    "report": ("report:report", "Make one HTML page of what jobs wrote, or compare them."),
    "job": ("job:job", "Start, watch and stop a job on this node; speaks JSON."),
}


class Verbs(click.Group):
    """The verbs, each loaded when it is first needed."""

    # ruff: noqa: ARG002  # click names the arguments

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order of the help."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a verb."""
        if cmd_name not in VERBS:
            return None
        module, _, attribute = VERBS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs without loading them."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, line) for name, (_, line) in VERBS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb, or say which one was probably meant."""
        name = args[0]
        if name not in VERBS and not name.startswith("-"):
            import difflib

            close = difflib.get_close_matches(name, VERBS, n=2)
            meant = f"Did you mean {' or '.join(close)}?" if close else f"The verbs are {', '.join(VERBS)}."
            ctx.fail(f"there is no verb {name!r}. {meant}")
        return super().resolve_command(ctx, args)


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import PackageNotFoundError, version

        from rdm_trainer import __version__

        parts = []
        for package in ("torch", "deepspeed"):
            try:
                parts.append(f"{package} {version(package)}")
            except PackageNotFoundError:
                parts.append(f"no {package}")
        click.echo(f"{PROGRAM} {__version__} ({', '.join(parts)})")
        ctx.exit()


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=True,
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Print the versions.",
)
def cli() -> None:
    """Train GPT, Llama, Qwen, Mixtral, T5 and BERT over many GPUs, with DeepSpeed or torch alone.

    \b
    What would it need?     rdm-trainer dry-run trainer/configs/gpt-1.3b.yaml --world 16 --gpu H200
    Prepare text:           rdm-trainer preprocess --help
    Train on this machine:  rdm-trainer train trainer/configs/demo.yaml data.blend=[PREFIX]
    On a cluster:           rdm-provision train trainer/configs/demo.yaml

    Exit codes: 0 done, 1 failed, 3 bad input, 130 stopped.
    """


def main(argv: Sequence[str] | None = None) -> None:
    """Run the program and exit. An error of the user's is one sentence; a traceback is a bug."""
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
        # Nobody reads it any more in `rdm-trainer config x.yaml | head -1`.
        if error.errno != errno.EPIPE:
            click.echo(f"Error: The output cannot be written: {error.strerror}.", err=True)
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    try:
        code = cli.main(args=arguments, prog_name=PROGRAM, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return BAD_INPUT
    except click.UsageError as error:
        # click lists choices in lines, and has names of its own for types.
        message = " ".join(error.format_message().split())
        message = re.sub("a valid integer(?: range)?", "an integer", message)
        message = re.sub("a valid float(?: range)?", "a number", message)
        # Not every error of click's has a context.
        verb = " ".join([PROGRAM, *(word for word in arguments[:1] if word in VERBS)])
        path = error.ctx.command_path if error.ctx is not None else verb
        _report(arguments, [message], f"{path} --help")
        return BAD_INPUT
    except click.ClickException as error:
        _report(arguments, [error.format_message()])
        return BAD_INPUT
    except TrainerError as error:
        _report(arguments, error.problems)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("\nStopped.", err=True)
        return STOPPED
    return code if isinstance(code, int) else DONE


def _report(arguments: Sequence[str], problems: Sequence[str], see: str = "") -> None:
    """Print what is wrong: as JSON if that was requested, else one line each on stderr."""
    if "--json" in arguments:
        click.echo(json.dumps({"ok": False, "problems": list(problems)}, indent=2, ensure_ascii=False))
        return
    for problem in problems:
        click.secho("Error: ", fg="red", bold=True, nl=False, err=True)
        click.echo(problem, err=True)
    if see:
        click.echo(f"See: {see}", err=True)

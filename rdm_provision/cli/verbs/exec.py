"""Cluster: run a command in the containers, all or some."""

from __future__ import annotations

import fcntl
import re
import shlex
import sys
import termios
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from rdm_provision.cli.common import Options, emit_json, limited_run_options
from rdm_provision.cli.render.commands import inventory_flag
from rdm_provision.cli.render.printable import printable

if TYPE_CHECKING:
    from rdm_provision.results.outcomes import CommandOutput

_FOR_A_SHELL = re.compile(r"[\s;|&<>$*`]")
"""Characters that no program's name has."""


@click.command(
    name="exec",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    epilog="""\b
Examples:
  rdm-provision exec -- hostname
  rdm-provision exec --limit node2 -- cat /etc/hosts
  rdm-provision exec -- sh -c 'echo $MY_IP'       a shell, where you need one
  rdm-provision exec --json -- nvidia-smi -L
  rdm-provision exec --stdin -- tee /tmp/note < note
""",
)
@click.option("-u", "--user", default="", metavar="USER", help="As this user of the container.")
@click.option(
    "--stdin", is_flag=True, help="Give what comes on standard input to the command, on every node."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Give up on a node after so long.",
)
@click.argument("argv", nargs=-1, required=True, metavar="[--] COMMAND [ARGUMENT]...")
@limited_run_options
def exec_(options: Options, argv: tuple[str, ...], user: str, timeout: float, stdin: bool) -> int:
    """Run COMMAND in the training container of every node, or of those that --limit selects.

    The command runs without a shell, and without standard input unless --stdin gives it one. Lines are
    printed in the order of ranks, each after its node's name if there are several nodes. Control characters,
    such as colours, are left out; --json has them. Exits with 1 if the command failed on any node; with a
    single node, with the command's own exit code.
    """
    cluster = options.cluster()
    given = sys.stdin.buffer.read() if stdin else None
    run = cluster.exec(argv, user=user, timeout=timeout, stdin=given, **options.run)
    result = options.carry_out(cluster, run, brief=True)
    if result is None:
        return 0
    outputs = cluster.outputs(result)
    own = outputs[0].rc if len(outputs) == 1 and not result.cancelled else None
    code = result.exit_code if own is None else own
    if not stdin and _unread():
        click.echo("Standard input is not given to the command: add --stdin.", err=True)
    if options.as_json:
        from rdm_provision.results.events import to_json

        data = result.to_json()
        for output in outputs:
            data["nodes"][output.node] |= to_json(output)
        emit_json(data | {"exit_code": code})
        return code

    from rdm_provision.cli.render import view

    if view.unhappy_end(result):
        return result.exit_code
    _write(outputs)
    if code and len(argv) == 1 and _FOR_A_SHELL.search(argv[0]):
        shell = f"rdm-provision exec{inventory_flag()} -- sh -c {shlex.quote(argv[0])}"
        click.echo(f"No shell has seen the command. For one: {shell}", err=True)
    return code


def _unread() -> bool:
    """Whether standard input is a pipe or a file with something to read."""
    waiting = bytearray(4)
    try:
        if sys.stdin.isatty():
            return False
        fcntl.ioctl(sys.stdin, termios.FIONREAD, waiting)
    except (OSError, ValueError, AttributeError):
        return False
    return any(waiting)


def _write(outputs: Sequence[CommandOutput]) -> None:
    width = max((len(output.node) for output in outputs), default=0)
    alone = len(outputs) == 1
    for output in outputs:
        prefix = "" if alone else f"{output.node:<{width}}  "
        for stream, text in ((sys.stdout, output.stdout), (sys.stderr, output.stderr)):
            stream.writelines(f"{prefix}{line}\n" for line in map(printable, text.splitlines()))
            stream.flush()
        if output.error:
            click.secho(printable(f"{output.node}: {output.error}"), fg="red", err=True)

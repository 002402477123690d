"""This machine: print the shell's completion script."""

from __future__ import annotations

import click


@click.command(
    epilog="""\b
Examples:
  bash:  rdm-provision completion bash >> ~/.bashrc
  zsh:   rdm-provision completion zsh >> ~/.zshrc
  fish:  rdm-provision completion fish > ~/.config/fish/completions/rdm-provision.fish
"""
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print a script that completes verbs, options, and the names of nodes after --limit."""
    from click.shell_completion import get_completion_class

    from rdm_provision.cli import PROGRAM, cli

    made = get_completion_class(shell)
    if made is None:
        raise click.UsageError(f"no completion for {shell}")
    variable = f"_{PROGRAM.replace('-', '_').upper()}_COMPLETE"
    click.echo(made(cli, {}, PROGRAM, variable).source())
    return 0

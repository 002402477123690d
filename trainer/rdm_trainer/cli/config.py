# SPDX-License-Identifier: GPL-3.0-or-later
"""``rdm-trainer config``: check a configuration and print it with every key, or import a shell file's."""

from __future__ import annotations

import json
from pathlib import Path

import click


class _CheckUnlessNamed(click.Group):
    """``config JOB`` is ``config check JOB``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the verb before what is none."""
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["check", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_CheckUnlessNamed)
def config() -> None:
    """Check a job's configuration: rdm-trainer config JOB. Or import one."""


@config.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY.SUB=VALUE]...")
@click.option("--world", type=click.IntRange(min=1), metavar="N", help="Check against N processes too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(config: Path, overrides: tuple[str, ...], world: int | None, as_json: bool) -> None:
    """Check CONFIG and print it with every key.

    KEY.SUB=VALUE goes over the file. Keys that follow from others are filled in. `rdm-trainer config
    CONFIG` is the same.
    """
    from rdm_core import config as configuration
    from rdm_core.errors import ConfigError

    try:
        job = configuration.load_job(config, overrides)
    except ConfigError as error:
        others = configuration.check(error.rest, world) if error.rest else []
        raise ConfigError([*error.problems, *others], source=str(config)) from None
    configuration.require(job, world, job.launcher.devices_per_node)
    resolved = job.resolved(world)
    if as_json:
        click.echo(json.dumps(resolved.to_dict(), indent=2, ensure_ascii=False))
    else:
        click.echo(configuration.dump(resolved).strip())


@config.command("import")
@click.argument("settings", type=click.Path(path_type=Path))
def import_(settings: Path) -> None:
    """Convert a _00_conf.sh of the tdpp scripts into a job.

    Bash reads its variables; it can start no program there, and open no file. What SETTINGS does not decide
    is printed on standard error.

    \b
    rdm-trainer config import _00_conf.sh > job.yaml
    """
    from rdm_core.config import shell, tdpp, yaml_text

    imported = tdpp.job_of(shell.variables(yaml_text.text_of(settings), str(settings)), str(settings))
    click.echo(yaml_text.to_yaml(imported.job).strip())
    for note in imported.notes:
        click.echo(note, err=True)

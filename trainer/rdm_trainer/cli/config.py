# SPDX-License-Identifier: GPL-3.0-or-later
"""``rdm-trainer config``: check a configuration and print it with every key."""

from __future__ import annotations

import json
from pathlib import Path

import click

__all__ = ["config"]


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY.SUB=VALUE]...")
@click.option("--world", type=click.IntRange(min=1), metavar="N", help="Check against N processes too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def config(config: Path, overrides: tuple[str, ...], world: int | None, as_json: bool) -> None:
    """Check CONFIG, with KEY.SUB=VALUE over it, and print it with every key.

    Keys that follow from others are filled in.
    """
    from rdm_trainer import config as configuration

    job = configuration.load(config, overrides)
    configuration.require(job, world, job.launcher.devices_per_node)
    resolved = configuration.resolve(job, world)
    if as_json:
        click.echo(json.dumps(resolved.to_dict(), indent=2, ensure_ascii=False))
    else:
        click.echo(configuration.dump(resolved).strip())

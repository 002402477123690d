"""This machine: check this machine: one line per thing that runs need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rdm_provision.cli.common import Options, emit_json, inventory_options
from rdm_provision.errors import DONE, FAILED

if TYPE_CHECKING:
    from rich.text import Text

    from rdm_provision.api.doctor import Check


@click.command(
    epilog="""\b
Examples:
  rdm-provision doctor
  rdm-provision doctor -i inventory/mine
  rdm-provision doctor --json | jq '.checks[] | select(.ok | not)'
"""
)
@inventory_options
def doctor(options: Options) -> int:
    """Check this machine: one line per thing that runs, or the lab, need.

    Exits with 1 when something that runs need is missing. What only the lab needs is shown, but does not
    count.
    """
    from rdm_provision.api.doctor import examine

    if options.as_json:
        from rdm_provision.results.events import to_json

        checks = list(examine(options.inventory))
        ok = all(check.ok for check in checks if check.needed_for == "runs")
        emit_json({"ok": ok, "exit_code": DONE if ok else FAILED, "checks": to_json(checks)})
        return DONE if ok else FAILED

    from rdm_provision.cli.render import view

    console = view.out()
    bad = 0
    for check in examine(options.inventory):
        console.print(_line(check), soft_wrap=True)
        bad += not check.ok and check.needed_for == "runs"
    console.print()
    console.print(
        f"{view.count(bad, 'thing')} to fix." if bad else "Ready.", style="bold red" if bad else "green"
    )
    return FAILED if bad else DONE


def _line(check: Check) -> Text:
    from rich.text import Text

    mark, style = ("ok  ", "green") if check.ok else ("FAIL", "bold red")
    if not check.ok and check.needed_for == "lab":
        mark, style = "note", "yellow"
    name = f"{check.name} (lab)" if check.needed_for == "lab" else check.name
    return Text.assemble((mark, style), f"  {name:<28}", (check.detail, "" if not check.ok else "dim"))

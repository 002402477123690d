"""This machine: make, inspect and remove a miniature cluster on this machine."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from rdm_provision.cli.common import (
    Options,
    emit_json,
    json_option,
    show_command_option,
    verbose_option,
)
from rdm_provision.constants import LAB_MODULE

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from rdm_provision.api.lab import Lab, LabNode
    from rdm_provision.results.events import RunResult

_NAME = "lab"  # rdm_provision.api.lab.DEFAULT_NAME, without loading it for --help
_HARDWARE = ("container", "vm")
_ENGINES = ("20.10", "26.1", "newest", "podman")
_KERNELS = ("6.12", "newest")
_EXTRAS = ("finetune",)
_DRIVERS = ("macvlan", "bridge", "ipvlan", "sriov")


def _complete_node(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the lab's nodes. Never fails, because a shell is waiting."""
    from click.shell_completion import CompletionItem

    try:
        from rdm_provision.api.lab import Lab

        nodes = [node.name for node in Lab(ctx.params.get("name") or _NAME).status()]
    except Exception:
        return []
    return [CompletionItem(node) for node in nodes if node.startswith(incomplete)]


_name = click.option(
    "--name",
    default=_NAME,
    show_default=True,
    metavar="NAME",
    help="Which lab: several can exist side by side.",
)
_nodes = click.argument("nodes", nargs=-1, required=True, metavar="NODE...", shell_complete=_complete_node)
_check = click.option("--check", is_flag=True, help="Change nothing; say what would be changed.")


@click.group(
    epilog="""\b
Examples:
  rdm-provision lab up                         three nodes, inventory in inventory/lab
  rdm-provision up                             provision them like real ones
  rdm-provision lab stop n2                    what if a node is down?
  rdm-provision lab down                       nothing stays behind
"""
)
def lab() -> None:
    """Make, inspect and remove a miniature cluster on this machine.

    A node is a container with sshd and its own Docker Engine, plugged into a switch, or a virtual machine
    with a network card that has virtual functions. Needs no GPU, no InfiniBand and no registry; root, or a
    user of the group docker.
    """


@lab.command(
    epilog="""\b
Examples:
  rdm-provision lab up
  rdm-provision lab up --nodes 8               make it, or let it grow
  rdm-provision lab up --name two --nodes 2    a second lab
  rdm-provision lab up --rails 2               two fabrics, and containers on both
  rdm-provision lab up --driver sriov          with stand-ins for virtual functions
  rdm-provision lab up --hardware vm -n 2      virtual machines, and virtual functions that are real
  rdm-provision lab up --hardware vm -n 2 --rails 2
                                               the same, with two cards in each and VFs of both
  rdm-provision lab up --hardware vm -n 2 --engine 20.10
                                               or with the Docker Engine that your nodes have
  rdm-provision lab up --hardware vm -n 2 --rails 2 --kernel newest
                                               and with a kernel whose soft RoCE knows namespaces
  rdm-provision lab up --engine podman         whose engine is Podman
  rdm-provision lab up --trainer               for training; again after a change of trainer/
  rdm-provision lab up --trainer --extra finetune
                                               and for fine-tuning
  rdm-provision lab up --slurm                 for a Slurm cluster, which `slurm up` makes of it
  rdm-provision lab up --slurm --trainer       and to train through it, on CPUs
"""
)
@click.option("-n", "--nodes", type=int, default=3, show_default=True, metavar="N", help="How many nodes.")
@_name
@click.option(
    "--hardware",
    type=click.Choice(_HARDWARE),
    default=_HARDWARE[0],
    show_default=True,
    help="What a node is; vm needs 1.5 GiB of memory for each, and is slow without KVM.",
)
@click.option(
    "--engine",
    type=click.Choice(_ENGINES),
    help="The Docker Engine of virtual machines; newest: Debian's last.  [default: 26.1]  Or podman, for "
    "nodes that are containers.",
)
@click.option(
    "--kernel",
    type=click.Choice(_KERNELS),
    help="The kernel of virtual machines; newest: the backports' last.  [default: 6.12]",
)
@click.option(
    "--driver",
    type=click.Choice(_DRIVERS),
    help="Of the inventory's container network.  [default: macvlan; with vm: sriov]",
)
@click.option(
    "--trainer",
    is_flag=True,
    help="Containers run the training image, or with --slurm nodes have its packages, to train on CPUs.",
)
@click.option(
    "--extra",
    "extras",
    type=click.Choice(_EXTRAS),
    multiple=True,
    help="With --trainer: what fine-tuning needs, too.",
)
@click.option("--slurm", is_flag=True, help="Nodes have what `rdm-provision slurm up` needs.")
@click.option(
    "--rails",
    type=int,
    default=1,
    show_default=True,
    metavar="N",
    help="How many interfaces each node has on the fabric: ib0, ib1...; with vm, cards.",
)
@click.option(
    "--image-source",
    type=click.Choice(("auto", "registry", "packages")),
    default="auto",
    show_default=True,
    help="What the node image is made from, the first time.",
)
@_check
@show_command_option
@verbose_option
@json_option
def up(options: Options, nodes: int, name: str, check: bool, **wanted: Any) -> int:
    """Make the lab, or bring it to N nodes, all running and plugged in.

    Writes the inventory to inventory/NAME. The first time on a machine it also makes the node image.
    """
    from rdm_provision.api.lab import Lab

    made = Lab(name)
    given = {option: value for option, value in wanted.items() if value is not None}
    run = made.up(nodes, check=check, verbosity=max(0, options.verbose - 1), **given)
    from rdm_provision.cli.render import view

    # The run is on this machine only; the title counts the lab's nodes.
    result = options.carry_out(made, run, about=view.count(nodes, "node"))
    if result is None:
        return 0
    outcome = _outcome(result)
    states = made.status() if result.ok and not check else []
    if options.as_json:
        actions = {"actions": outcome.get("actions", [])}
        emit_json({**result.to_json(), **_description(made, states), **actions, **_error(result)})
        return result.exit_code
    return _recap_up(made, result, outcome, states, check, wanted["slurm"])


@lab.command(
    epilog="""\b
Examples:
  rdm-provision lab down
  rdm-provision lab down --name two
  rdm-provision lab down --purge               and the cached images
"""
)
@_name
@click.option(
    "--purge", is_flag=True, help="Also remove the cached images; the next `lab up` makes them again."
)
@_check
@show_command_option
@verbose_option
@json_option
def down(options: Options, name: str, purge: bool, check: bool) -> int:
    """Remove the lab and its inventory, whatever state it is in. Nothing stays behind."""
    from rdm_provision.api.lab import Lab

    gone = Lab(name)
    run = gone.down(purge=purge, check=check, verbosity=max(0, options.verbose - 1))
    result = options.carry_out(gone, run, about="")
    if result is None:
        return 0
    actions = _outcome(result).get("actions", [])
    if options.as_json:
        emit_json({**result.to_json(), "name": name, "actions": actions, **_error(result)})
        return result.exit_code

    from rdm_provision.cli.render import view

    if view.unhappy_end(result) or _failed(result):
        return result.exit_code
    console = view.out()
    if check:
        _list_actions(console, actions)
    elif actions:
        console.print(f"Lab {name} is gone: {view.count(len(actions), 'thing')} removed.")
    else:
        console.print(f"There is no lab {name}: nothing to remove.")
    if purge and not check:
        console.print("The cached images are removed, too.")
    return result.exit_code


@lab.command(
    epilog="""\b
Examples:
  rdm-provision lab status
  rdm-provision lab status --json | jq -r '.nodes[].address'
"""
)
@_name
@json_option
def status(options: Options, name: str) -> int:
    """Show the lab's nodes: address, state, cable, engine."""
    from rdm_provision.api.lab import Lab

    shown = Lab(name)
    states = shown.status()
    if not states:
        from rdm_provision.errors import InputError

        raise InputError(f"there is no lab {name}", hint=f"make it with: rdm-provision lab up{_flag(name)}")
    if options.as_json:
        emit_json({"ok": True, "exit_code": 0, **_description(shown, states)})
        return 0

    from rdm_provision.cli.render import view

    console = view.out()
    view.heading(console, f"Lab {name}", str(shown.inventory))
    _table(console, states)
    return 0


def _node_verb(verb: str, help_text: str, past: str, already: str) -> Callable[..., Any]:
    """Add a command that does one thing to nodes.

    Args:
        verb: the command and the method of Lab.
        help_text: its first line of help.
        past: the word for a node that was changed.
        already: the word for a node that needed no change.
    """

    @lab.command(verb, help=help_text, epilog=f"\b\nExamples:\n  rdm-provision lab {verb} n2\n")
    @_nodes
    @_name
    @json_option
    def command(options: Options, nodes: tuple[str, ...], name: str) -> int:
        from rdm_provision.api.lab import Lab

        target = Lab(name)
        target.require(*nodes)
        changed = {node: bool(getattr(target, verb)(node)) for node in nodes}
        if options.as_json:
            emit_json({"ok": True, "exit_code": 0, "name": name, "changed": changed})
            return 0
        for node, did in changed.items():
            click.echo(f"{node}: {past if did else already}")
        return 0

    return command


_node_verb("stop", "Pull the power plug of nodes.", "stopped", "was off already")
_node_verb("start", "Switch nodes on, and wait until they are ready.", "started", "ran already")
_node_verb("cut", "Cut nodes off the fabric; ssh still reaches them.", "cut off", "was cut off already")
_node_verb("heal", "Plug nodes into the fabric again.", "plugged in", "was plugged in already")


# --- what the verbs share --------------------------------------------------------------------------------


def _outcome(result: RunResult) -> dict[str, Any]:
    """Return what the lab's module returned."""
    return next((dict(one) for _node, one in result.answers(LAB_MODULE)), {})


def _failed(result: RunResult) -> bool:
    """Print why the run failed, and return whether it did."""
    from rdm_provision.cli.render import view

    if why := _why(result):
        view.complain(why)
    return bool(why) or not result.ok


def _error(result: RunResult) -> dict[str, str]:
    """Return why the run failed, for JSON; empty if it did not."""
    why = result.message or _why(result)
    return {"error": why} if why else {}


def _why(result: RunResult) -> str:
    return next((recap.why for recap in result.nodes.values() if recap.why), "")


def _recap_up(
    made: Lab, result: RunResult, outcome: dict[str, Any], states: Sequence[LabNode], check: bool, slurm: bool
) -> int:
    from rdm_provision.cli.render import view

    if view.unhappy_end(result) or _failed(result):
        return result.exit_code
    console = view.out()
    if check:
        _list_actions(console, outcome.get("actions", []))
        return result.exit_code
    inventory = str(outcome["inventory"])
    words = "as it was" if not result.changed else "ready"
    view.heading(console, f"Lab {made.name}: {words}", f"in {view.seconds(result.seconds)}")
    _table(console, states)
    short = made.inventory
    if short.is_relative_to(made.directory):
        short = short.relative_to(made.directory)
    flag = "" if str(short) == "inventory/lab" else f" -i {shlex.quote(str(short))}"
    config = shlex.quote(f"{short}/.rdm/lab/ssh_config")
    console.print()
    if result.changed:
        console.print(f"Done: {'; '.join(outcome['actions']) or 'started the engine'}.", highlight=False)
    else:
        console.print("Nothing was changed: the lab runs as requested.")
    if outcome.get("virtualisation") == "tcg":
        console.print(
            "KVM runs no machine here: every instruction of the nodes is translated, which is slow."
        )
    view.next_steps(
        console,
        [
            ("make it a Slurm cluster", f"rdm-provision slurm up{flag}")
            if slurm
            else ("provision it like a real cluster", f"rdm-provision up{flag}"),
            ("log in to a node", f"ssh -F {config} {states[0].name}"),
            ("the inventory", f"less {shlex.quote(inventory if not flag else str(short))}/hosts.yml"),
            ("remove it", f"rdm-provision lab down{_flag(made.name)}"),
        ],
    )
    return result.exit_code


def _description(lab: Lab, states: Sequence[LabNode]) -> dict[str, Any]:
    from rdm_provision.results.events import to_json

    nodes = [{**to_json(state), "healthy": state.healthy} for state in states]
    return {"name": lab.name, "exists": bool(states), "inventory": str(lab.inventory), "nodes": nodes}


def _list_actions(console: Any, actions: Sequence[str]) -> None:
    for action in actions:
        console.print(f"  would {action}", highlight=False)
    if not actions:
        console.print("Nothing would be changed.")


def _table(console: Any, states: Sequence[LabNode]) -> None:
    from rich.text import Text

    from rdm_provision.cli.render import view

    made = view.table("node", "address", "state", "cable", "engine")
    good = {"running", "plugged", "ready"}
    for state in states:
        words = (state.state, state.cable, state.engine)
        made.add_row(
            state.name,
            state.address,
            *(Text(word, "green" if word in good else "bold red") for word in words),
        )
    view.show(console, made)


def _flag(name: str) -> str:
    return "" if name == _NAME else f" --name {name}"

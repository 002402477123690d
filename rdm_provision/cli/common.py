"""What the verbs share: options, loading the cluster, and running with a view."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from rdm_provision.cli.render.commands import WRITTEN_VARS, again, with_inventory
from rdm_provision.errors import RdmError
from rdm_provision.wording import names

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from rdm_provision.api.cluster import Cluster
    from rdm_provision.api.lab import Lab
    from rdm_provision.errors import InputError
    from rdm_provision.results.events import RunResult
    from rdm_provision.runner.run import Run

Command = Callable[..., Any]

# Terminals interpret these; JSON allows them in strings (RFC 8259, section 7).
_CONTROL = re.compile("[\x7f-\x9f]")


def is_here(path: str | Path) -> bool:
    """Return whether a path exists. One without permission counts as there: reading it reports why."""
    try:
        return Path(path).exists()
    except OSError:
        return True


@dataclass(frozen=True)
class Options:
    """The common options, and what follows from them."""

    inventory: Path | None = None
    extra_vars: Mapping[str, Any] | None = None
    vault_password_file: str = ""
    ask_vault_pass: bool = False
    ask_become_pass: bool = False
    limit: str = ""
    tags: str | None = None
    forks: int | None = None
    verbose: int = 0
    as_json: bool = False
    show_command: bool = False

    def cluster(self, *, planned: bool = False) -> Cluster:
        """Load the inventory; see :meth:`~rdm_provision.api.cluster.Cluster.load`."""
        from rdm_provision.api.cluster import Cluster

        vault, become = (
            click.prompt(what, hide_input=True, err=True) if wanted else ""
            for what, wanted in (
                ("Vault password", self.ask_vault_pass),
                ("sudo password", self.ask_become_pass),
            )
        )
        return Cluster.load(
            self.inventory,
            extra_vars=self.extra_vars,
            vault_password_file=self.vault_password_file,
            vault_password=vault,
            become_password=become,
            planned=planned,
        )

    @property
    def run(self) -> dict[str, Any]:
        """The arguments that every run verb of :class:`~rdm_provision.api.cluster.Cluster` takes."""
        # The first -v is ours: a line per task. The others are ansible-playbook's.
        return {"limit": self.limit, "forks": self.forks or 0, "verbosity": max(0, self.verbose - 1)}

    def carry_out(
        self, cluster: Cluster | Lab, run: Run, *, about: str | None = None, brief: bool = False
    ) -> RunResult | None:
        """Run to the end with live progress.

        Ctrl-C, and the signals that ask a program to end, stop the run in an orderly way.

        Args:
            cluster: whose run it is.
            run: not yet started.
            about: what the title says beside the name; None counts the run's nodes.
            brief: the run is one step, and its results say it all.

        Returns:
            The result; None with ``--show-command``.
        """
        if self.show_command:
            click.echo(run.command)
            return None
        from rdm_provision.cli.render.live import watch

        return watch(
            run, title=cluster.name, verbose=self.verbose, silent=self.as_json, about=about, brief=brief
        )

    def carry_out_and_report(
        self,
        cluster: Cluster,
        run: Run,
        more: Callable[[RunResult], Mapping[str, Any]] = lambda _result: {},
    ) -> RunResult:
        """Run to the end, as above, and return a result for the verb to print.

        Args:
            cluster: whose run it is.
            run: not yet started.
            more: returns what the JSON of the result has besides.

        Raises:
            click.exceptions.Exit: nothing is left to print: the command was shown, the result is JSON, or the
                run was refused or cancelled. It has the exit code.
        """
        result = self.carry_out(cluster, run)
        if result is None:
            raise click.exceptions.Exit(0)
        if self.as_json:
            emit_json({**result.to_json(), **more(result)})
            raise click.exceptions.Exit(result.exit_code)
        from rdm_provision.cli.render import view

        if view.unhappy_end(result):
            raise click.exceptions.Exit(result.exit_code)
        return result

    def carry_out_to_recap(self, cluster: Cluster, run: Run, steps: Sequence[tuple[str, str]]) -> int:
        """Run to the end, as above, and print the recap and what is left on the nodes.

        Args:
            cluster: whose run it is.
            run: not yet started.
            steps: what to do next if all went well: (what for, command).
        """
        result = self.carry_out_and_report(cluster, run)
        from rdm_provision.cli.render import view

        console = view.out()
        view.recap(console, result)
        for path, nodes in cluster.kept(result).items():
            console.print(f"  Kept, because something is in it: {path} ({names(nodes)})", soft_wrap=True)
        view.next_steps(console, steps if result.ok else view.retry_steps(result, again(), self.limit))
        return result.exit_code


def emit_json(data: Any) -> None:
    """Print data as JSON on stdout, every control character escaped."""
    text = json.dumps(data, indent=2, ensure_ascii=False)
    click.echo(_CONTROL.sub(lambda found: f"\\u{ord(found.group()):04x}", text))


def _parse_extra_vars(ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """Turn ``KEY=VALUE``, ``{JSON}`` and ``@FILE`` into variables. VALUE is YAML: ``false`` is false."""
    ctx.meta[WRITTEN_VARS] = values
    if not values:
        return {}
    import yaml

    found: dict[str, Any] = {}
    for value in values:
        try:
            if value.startswith("@"):
                text = Path(value[1:]).expanduser().read_text(encoding="utf-8")
                found |= _variables(text, value[1:])
                continue
            if value.lstrip().startswith(("{", "[")):
                found |= _variables(value, repr(value))
                continue
            key, equals, text = value.partition("=")
            if not equals or not key.isidentifier():
                raise click.BadParameter(f"{value!r} is neither KEY=VALUE, {{JSON}} nor @FILE.")
            found[key] = yaml.safe_load(text) if text else ""
        except OSError as error:
            raise click.BadParameter(f"{value[1:]} cannot be read: {error.strerror}.") from None
        except (yaml.YAMLError, UnicodeError):
            raise click.BadParameter(f"{value!r} is not YAML; quote the value.") from None
    return found


def _variables(text: str, where: str) -> dict[str, Any]:
    """Return the variables in YAML or JSON, as ansible-playbook takes them."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Knows ``!unsafe``, which recorded commands have."""

    def literal(loader: Loader, node: yaml.Node) -> Any:
        if isinstance(node, yaml.SequenceNode):
            value: Any = loader.construct_sequence(node, deep=True)
        else:
            value = loader.construct_scalar(node)  # type: ignore[arg-type]
        if "{{" in repr(value) or "{%" in repr(value):
            raise click.BadParameter(f"{value!r} would be templated here: give it to the verb itself.")
        return value

    hint = "put it into group_vars beside the inventory, where --vault-password-file opens it"

    def encrypted(_loader: Loader, node: yaml.Node) -> Any:
        line = node.start_mark.line + 1
        raise click.BadParameter(f"{where} has an encrypted value in line {line}: {hint}.")

    Loader.add_constructor("!unsafe", literal)
    Loader.add_constructor("!vault", encrypted)
    if text.startswith("$ANSIBLE_VAULT;"):
        raise click.BadParameter(f"{where} is encrypted: {hint}.")
    found = yaml.load(text, Loader=Loader)  # noqa: S506  # it is the safe one
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise click.BadParameter(f"{where} does not hold variables (KEY: VALUE).")
    return found


def _complete_limit(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete node and group names. Never fails, because a shell is waiting."""
    from click.shell_completion import CompletionItem

    before, comma, last = incomplete.rpartition(",")
    try:
        from rdm_provision.api.cluster import Cluster

        names = Cluster.load(ctx.params.get("inventory")).names
    except Exception:
        return []
    return [CompletionItem(f"{before}{comma}{name}") for name in names if name.startswith(last)]


def _complete_inventory(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def refuse_empty(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Refuse an empty limit, such as that of an unset shell variable."""
    if not value.strip() and ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE:
        raise click.BadParameter("it is empty; leave it out for all nodes.", param=param)
    return value


_INVENTORY = click.option(
    "-i",
    "--inventory",
    type=click.Path(path_type=Path),
    envvar="RDM_INVENTORY",
    shell_complete=_complete_inventory,
    metavar="PATH",
    help="The inventory.  [default: inventory/lab, or the only one in ./inventory; env: RDM_INVENTORY]",
)
_EXTRA = click.option(
    "-e",
    "--extra-vars",
    multiple=True,
    callback=_parse_extra_vars,
    metavar="KEY=VALUE",
    help="Set a variable over the inventory's; VALUE is YAML. Or {JSON}, or @FILE. Repeatable.",
)
_VAULT_FILE = click.option(
    "--vault-password-file",
    default="",
    type=click.Path(),
    metavar="FILE",
    help="Read the password of encrypted variables from FILE, or from the program FILE.",
)
_ASK_VAULT = click.option(
    "--ask-vault-pass", is_flag=True, help="Ask for the password of encrypted variables."
)
_ASK_BECOME = click.option(
    "-K", "--ask-become-pass", is_flag=True, help="Ask for the password that sudo wants on the nodes."
)
_LIMIT = click.option(
    "-l",
    "--limit",
    default="",
    callback=refuse_empty,
    shell_complete=_complete_limit,
    metavar="NODES",
    help="Only these nodes or groups: node2,node3 or 'workers:!node3'.",
)
_TAGS = click.option(
    "-t",
    "--tags",
    metavar="TAGS",
    help="Only these parts: a role's name (network), or a part of it (network_run).",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout and nothing else.")
show_command_option = click.option(
    "--show-command", is_flag=True, help="Print the equivalent ansible-playbook line and do nothing."
)
verbose_option = click.option(
    "-v",
    "--verbose",
    count=True,
    help="A line per task that changed something; -vv: Ansible's own output.",
)
_FORKS = click.option(
    "-f",
    "--forks",
    type=click.IntRange(min=1),
    default=None,
    metavar="N",
    help="How many nodes at once.  [default: all, up to 50]",
)


def _with(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds the options and passes them as one :class:`Options`, first."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(**given: Any) -> Any:
            common = {field.name for field in fields(Options)} & given.keys()
            options = Options(**{name: given.pop(name) for name in common})
            try:
                return command(options, **given)
            except RdmError as error:
                error.hint = with_inventory(error.hint)
                error.problems = tuple(
                    problem._replace(hint=with_inventory(problem.hint)) for problem in error.problems
                )
                raise

        decorated: Command = wrapper
        for decorator in reversed(decorators):
            decorated = decorator(decorated)
        return decorated

    return decorate


inventory_options = _with(_INVENTORY, _EXTRA, _VAULT_FILE, _ASK_VAULT, _JSON)
"""The options of a verb that reads an inventory and touches no node."""

json_option = _with(_JSON)
"""The one option of a verb that needs no inventory."""

recheck_option = click.option(
    "--recheck",
    is_flag=True,
    help="Gather and compare everything again, whatever the nodes' state files say.",
)
"""The option of verbs that skip nodes without work."""

_RUN = (_EXTRA, _VAULT_FILE, _ASK_VAULT, _ASK_BECOME, _FORKS, _JSON)

limited_run_options = _with(_INVENTORY, _LIMIT, *_RUN, show_command_option, verbose_option)
"""The options of a verb without ``--tags``."""

whole_run_options = _with(_INVENTORY, *_RUN, show_command_option, verbose_option)
"""The options of a verb without ``--tags`` and ``--limit``."""

search_options = _with(_INVENTORY, _LIMIT, *_RUN, verbose_option)
"""The options of a verb that computes here and may run jobs to validate the result."""

run_options = _with(_INVENTORY, _LIMIT, _TAGS, *_RUN, show_command_option, verbose_option)
"""The options of a verb that runs a playbook of several parts."""


def log_directory_options(which: str) -> Callable[[Command], Command]:
    """Return a decorator that adds the options for what a verdict needs beyond the logs of a directory."""
    state = click.option(
        "--state",
        default="",
        metavar="WORD",
        help=f"{which}: the scheduler's state of the job, as `sacct -nXo state -j JOBID` prints it.",
    )
    conf = click.option(
        "--conf",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"{which}: KEY=VALUE lines of the request, such as _00_conf.sh.",
    )
    return lambda command: state(conf(command))


def unknown_job(cluster: Cluster, result: RunResult, job: str) -> InputError:
    """Return the error for the name of a job that no node has."""
    from rdm_provision.errors import InputError
    from rdm_provision.nearest import did_you_mean

    hint = did_you_mean(job, cluster.near_jobs(result), "rdm-provision jobs lists them")
    return InputError(f"there is no job {job} on these nodes", hint=hint)


def lab_steps(cluster: Cluster) -> list[tuple[str, str]]:
    """Return how to remove the lab, if the cluster is one: (what for, command)."""
    if not cluster.is_lab:
        return []
    name = "" if cluster.name == "lab" else f" --name {cluster.name}"
    return [("remove the lab itself", f"rdm-provision lab down{name}")]

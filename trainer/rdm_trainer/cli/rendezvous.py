# SPDX-License-Identifier: GPL-3.0-or-later
"""``rdm-trainer rendezvous``: members that know no inventory find each other, and run a command together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rdm_core.errors import TrainerError

if TYPE_CHECKING:
    from rdm_core.config.job import JobConfig, LauncherConfig

_EPILOG = """
\b
On one host:    ROLE=launcher NUM_NODES=2 RDZV_ID=demo RDZV_SECRET_FILE=key \\
                  rdm-trainer rendezvous -- torchrun script.py
On the other:   ROLE=worker MASTER_ADDR=10.1.2.3 RDZV_ID=demo RDZV_SECRET_FILE=key \\
                  rdm-trainer rendezvous -- torchrun script.py
A secret:       head -c 32 /dev/urandom | base64 > key; chmod 600 key
All at once:    ROLE=launcher NUM_NODES=4 RDZV_ID=demo rdm-trainer rendezvous --worker-spec slurm \\
                  --submit 'sbatch {spec}' --cancel 'scancel {id}' -- torchrun script.py
"""


@click.command(epilog=_EPILOG, context_settings={"allow_interspersed_args": False})
@click.argument(
    "command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND [ARGUMENT]..."
)
@click.option(
    "--role",
    type=click.Choice(["launcher", "worker"]),
    envvar="ROLE",
    required=True,
    help="The launcher has rank 0 and waits for the others.  [ROLE]",
)
@click.option("--id", "job", envvar="RDZV_ID", required=True, help="The job's name, no secret.  [RDZV_ID]")
@click.option(
    "--nodes",
    type=click.IntRange(1, 10000),
    envvar="NUM_NODES",
    help="Launcher only: how many members there are, itself included.  [NUM_NODES; launcher.nodes]",
)
@click.option(
    "--master", envvar="MASTER_ADDR", help="Worker only: the launcher's address or name.  [MASTER_ADDR]"
)
@click.option(
    "--port",
    type=click.IntRange(1024, 65535),
    envvar="RDZV_PORT",
    default=29501,
    show_default=True,
    help="The launcher's port.  [RDZV_PORT]",
)
@click.option(
    "--gpus-per-node",
    type=click.IntRange(1, 1024),
    envvar="GPUS_PER_NODE",
    help="Processes of this member; as many as it has GPUs when not given.  [GPUS_PER_NODE]",
)
@click.option(
    "--secret-file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="RDZV_SECRET_FILE",
    help="The file with the secret that all members share; or set RDZV_SECRET.  [RDZV_SECRET_FILE]",
)
@click.option("--insecure", is_flag=True, help="No secret: whoever reaches the port can take part.")
@click.option(
    "--name",
    envvar="RDZV_NAME",
    help="This member's unique name.  [RDZV_NAME; host name and address when not given]",
)
@click.option("--interface", help="The interface where others reach this member; found when not given.")
@click.option(
    "--rank-by",
    type=click.Choice(["name", "address", "arrival"]),
    default="name",
    show_default=True,
    help="Launcher only: the order of the workers' ranks.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="How long members wait for each other.",
)
@click.option(
    "--lost-after",
    type=click.FloatRange(min=5),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="After the start, a member that is silent for so long has failed.",
)
@click.option(
    "--hosts-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write all members' names into this file, as /etc/hosts, until the end.",
)
@click.option(
    "--job-dir",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="RDZV_JOB_DIR",
    metavar="DIR",
    help="The job's directory.  [RDZV_JOB_DIR; $RDM_JOBS/ID or jobs/ID when not given]",
)
@click.option(
    "--worker-spec",
    metavar="TEMPLATE",
    help="Launcher only: start the workers from this jinja2 file, or ours: docker, kubernetes, slurm, vessl.",
)
@click.option(
    "--submit", metavar="'COMMAND {spec}'", help="The command that starts a worker from its filled-in spec."
)
@click.option(
    "--cancel",
    metavar="'COMMAND {spec}'",
    help="The command that cancels it; {id} is the last word that --submit printed.",
)
@click.option("--set", "values", multiple=True, metavar="KEY=VALUE", help="A value for the template.")
def rendezvous(
    command: tuple[str, ...],
    role: str,
    job: str,
    nodes: int | None,
    master: str | None,
    port: int,
    gpus_per_node: int | None,
    secret_file: Path | None,
    insecure: bool,
    name: str | None,
    interface: str | None,
    rank_by: str,
    timeout: float,
    lost_after: float,
    hosts_file: Path | None,
    job_dir: Path | None,
    worker_spec: str | None,
    submit: str | None,
    cancel: str | None,
    values: tuple[str, ...],
) -> int:
    """Find the other members of a job, start COMMAND on all at once, and end together.

    COMMAND runs once on each member, with MASTER_ADDR, MASTER_PORT, NNODES, NODE_RANK and what torchrun reads
    as its options, so that `-- torchrun script.py` needs none. `-- train CONFIG` and
    `-- finetune CONFIG` are this program's own.
    All members exit with the code of the first that fails.
    """
    import math
    import os
    import shutil

    from rdm_core import config as configuration
    from rdm_job.rendezvous import run
    from rdm_job.rendezvous.workers import Workers, job_name, read_spec
    from rdm_job.versions import versions

    if role == "worker" and not master:
        raise TrainerError("A worker must know the launcher's address: --master or MASTER_ADDR.")
    if role == "worker" and ":" in (master or ""):
        raise TrainerError(
            f"The launcher's address is {master}; give an IPv4 address or a name, and the port with --port."
        )
    for option, seconds in (("--timeout", timeout), ("--lost-after", lost_after)):
        if not math.isfinite(seconds):
            raise TrainerError(f"{option} is {seconds}; it must be a number of seconds.")
    if not job.strip():
        raise TrainerError("The job needs a name, the same on all members: --id or RDZV_ID.")
    if command[0] not in run.OWN_WORKLOADS and shutil.which(command[0]) is None:
        raise TrainerError(
            f"There is no program {command[0]!r} here; give a program, train or finetune after --."
        )
    short = job_name(job)
    folder = (job_dir or Path(os.environ.get("RDM_JOBS") or "jobs", short)).absolute()
    own, config = _workload(command, short, folder)
    nodes = nodes or config.launcher.nodes
    if role == "launcher" and nodes is None:
        raise TrainerError("The launcher must know how many members there are: --nodes or NUM_NODES.")
    spec = None
    if worker_spec is not None:
        if role == "worker":
            raise TrainerError(
                "--worker-spec is for a launcher, which starts the workers; leave it out here."
            )
        if insecure:
            raise TrainerError("--worker-spec gives the workers a secret; leave out --insecure.")
        spec = read_spec(worker_spec, submit, cancel, values)
    elif submit or cancel or values:
        raise TrainerError(
            "--submit, --cancel and --set are for workers that are started from a --worker-spec."
        )
    secret = run.read_secret(secret_file, is_insecure=insecure, is_made=spec is not None)
    is_own = command[0] in run.OWN_WORKLOADS
    member, fabric = run.own_member(
        name,
        interface or "",
        (master or "") if role == "worker" else "",
        gpus_per_node or config.launcher.devices_per_node,
        timeout,
        versions() if is_own else {},
    )
    plan = run.Plan(
        own,
        member,
        fabric,
        port,
        run.session_key(job, secret),
        timeout,
        lost_after,
        hosts_file,
        short,
        folder,
        configuration.dump(config),
        config.launcher.master_port,
    )
    if role == "worker":
        return run.work(plan, master or "")
    if spec is None:
        return run.launch(plan, nodes or 1, rank_by)
    variables = {
        "MASTER_ADDR": member.address,
        "RDZV_PORT": port,
        "RDZV_ID": job,
        "NUM_NODES": nodes,
        "GPUS_PER_NODE": member.gpus,
        "COMMAND": list(command),
        "JOB_DIR": str(folder),
    }
    if secret_file is not None:
        variables["RDZV_SECRET_FILE"] = str(secret_file.absolute())
    workers = Workers(spec, folder / "workers", secret, variables, run.show)
    return run.launch(plan, nodes or 1, rank_by, workers)


def _workload(command: tuple[str, ...], job: str, folder: Path) -> tuple[tuple[str, ...], JobConfig]:
    """Return what a member runs, with the job's directory, and the job's configuration.

    Raises:
        TrainerError: Its own configuration is wrong, or this member lacks what it needs.
    """
    from rdm_core import config as configuration
    from rdm_core.config.command import CommandConfig
    from rdm_core.config.job import LauncherConfig
    from rdm_core.config.workloads import WORKLOADS
    from rdm_core.errors import ConfigError
    from rdm_job.rendezvous.run import OWN_WORKLOADS, show

    if command[0] not in OWN_WORKLOADS:
        return command, CommandConfig(name=job, command=command, launcher=LauncherConfig(kind="torchrun"))
    from rdm_trainer.cli import cli

    verb = cli.get_command(click.Context(cli), command[0])
    assert verb is not None
    values = verb.make_context(f"rdm-trainer {command[0]}", list(command[1:])).params
    own = configuration.load_as(WORKLOADS[command[0]].schema, values["config"], values["overrides"])
    configuration.require(own)
    if own.launcher.program:
        program = " ".join(own.launcher.program)
        raise TrainerError(f"launcher.program is not for a rendezvous: start it by -- torchrun {program}.")
    # Before the wait for the others.
    if problems := _missing(own):
        raise ConfigError(problems, source=str(values["config"]))
    if ignored := _ignored_keys(own.launcher):
        show(
            f"In a rendezvous {', '.join(ignored)} of {values['config']} have no effect: torchrun runs once."
        )
    if values["job_dir"] is None:
        command = (*command, "--job-dir", str(folder))
    return command, own


def _missing(config: JobConfig) -> list[str]:
    """Return what a workload of ours lacks on this member, one sentence each."""
    from rdm_core.config import Config
    from rdm_core.config.finetune import FinetuneConfig

    if isinstance(config, FinetuneConfig):
        from rdm_trainer.finetune.inspection import missing

        return list(missing(config))
    from rdm_trainer import data, writers

    assert isinstance(config, Config)
    return [*writers.missing(config), *data.checks(config)]


def _ignored_keys(launcher: LauncherConfig) -> list[str]:
    """Return the keys of a configuration's launcher that have no effect in a rendezvous."""
    requested = {
        "kind": launcher.kind not in ("no_ssh", "torchrun"),
        "nodelist": launcher.nodelist,
        "max_restarts": launcher.max_restarts,
        "profiler": launcher.profiler not in ("none", "torch"),
        "slurm": launcher.slurm != type(launcher.slurm)(),
    }
    return [f"launcher.{key}" for key, is_requested in requested.items() if is_requested]

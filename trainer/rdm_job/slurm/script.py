# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes the sbatch script of a job, which people will read, too. A pure function.

:mod:`rdm_core.config.slurm` has validated all values, and they are in ``#SBATCH`` lines, which no shell
evaluates. Paths are quoted.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from rdm_core.config import JobConfig
from rdm_core.config.slurm import Component, components, image_kind, runs_in_image, takes

OUTPUT = "slurm.out"
"""The output of the script itself, srun and Slurm, in the job's directory."""
RUN_VARIABLE = "RDM_SLURM_RUN"
"""Identifies a run of the script among those before a requeue; the same on all nodes."""

_HEAD = """\
#!/bin/bash
# The job {name}. rdm-provision wrote this and submitted it from this directory.
"""
_BODY = """
job={job}
agent=({python} -m rdm_trainer job)
export {run}="$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}"

{trap}{image}{tasks}\
# One agent on each node. They find each other in the job's directory; the first node has rank 0.
srun {srun} {step} "$job" &
agents=$!
# A signal ends the waiting, too.
while kill -0 "$agents" 2>/dev/null; do wait "$agents"; done
wait "$agents"; status=$?

{again}exit "$status"
"""
_IMAGE = """\
# The image, made ready once for all nodes where it must be.
"${agent[@]}" image "$job" || exit

"""
_TASKS = """\
# Of a job of slurmrestd they are the first component's, and srun would take them for every one's.
unset SLURM_NTASKS SLURM_NPROCS

"""
_TRAP = """\
# Slurm says so {signal} s before the time limit: let the job save and end.
trap '"${{agent[@]}}" time-is-up "$job"' USR1

"""
_AGAIN = """\
# What has ended here may go on later, perhaps on other nodes.
if "${agent[@]}" again "$job"; then
    scontrol requeue "$SLURM_JOB_ID"
fi

"""


def script(name: str, directory: str, python: str, config: JobConfig, pyxis: Sequence[str] = ()) -> str:
    """Return the script.

    Args:
        name: The job's, which consists of letters, digits, ``-``, ``_`` and ``.``.
        directory: The job's, the same path on all nodes.
        python: That of the environment, the same path on all nodes.
        config: The job's, which is valid.
        pyxis: srun's options for running the agents in an image with pyxis; empty without it.
    """
    slurm = config.launcher.slurm
    in_image = runs_in_image(slurm)
    step = '"${agent[@]}" ' + ("enter" if in_image else "step")
    if pyxis:
        step = f"{slurm.image_program} job step"
    parts = components(config)
    lines = [_HEAD.format(name=name)]
    for index, part in enumerate(parts):
        if index:
            lines.append("#SBATCH hetjob\n")
        options = [*(_of_job(name, config) if not index else ()), *_of_component(part, config)]
        lines += [f"#SBATCH --{option}\n" for option in options]
    makes = in_image and not (pyxis and image_kind(slurm.image or "") in takes("pyxis"))
    body = _BODY.format(
        job=shlex.quote(directory),
        python=shlex.quote(python),
        run=RUN_VARIABLE,
        image=_IMAGE if makes else "",
        trap=_TRAP.format(signal=slurm.signal) if slurm.signal else "",
        tasks=_TASKS if slurm.rest else "",
        srun=" ".join(map(shlex.quote, [*_srun(len(parts), slurm.step == "ranks"), *pyxis])),
        step=step,
        again=_AGAIN if config.launcher.max_restarts else "",
    )
    return "".join(lines) + body


def _of_job(name: str, config: JobConfig) -> Iterator[str]:
    """Yield the options of the whole job; after `hetjob`, Slurm would apply them to one component."""
    slurm = config.launcher.slurm
    yield f"job-name={name}"
    yield f"output={OUTPUT}"
    yield "open-mode=append"
    yield "requeue" if config.launcher.max_restarts else "no-requeue"
    if slurm.signal:
        yield f"signal=B:USR1@{slurm.signal}"


def _of_component(part: Component, config: JobConfig) -> Iterator[str]:
    slurm = config.launcher.slurm
    yield f"nodes={part.nodes}"
    yield "ntasks-per-node=1"
    for option, value in (
        ("partition", part.partition),
        ("gres", part.gres),
        ("gpus-per-node", part.gpus_per_node),
        ("cpus-per-task", part.cpus),
        ("mem", part.mem),
        ("nodelist", part.nodelist),
        ("exclude", part.exclude),
        ("constraint", part.constraint),
        ("time", slurm.time),
        ("account", slurm.account),
        ("qos", slurm.qos),
        ("hint", slurm.hint),
    ):
        if value:
            yield f"{option}={value}"


def srun_of_ranks(config: JobConfig) -> tuple[tuple[str, ...], ...]:
    """Return srun's options for a second step with one task per rank, for each component.

    Args:
        config: The job's; the result is empty if it does not use Slurm.
    """
    if config.launcher.kind != "slurm":
        return ()
    parts = components(config)
    return tuple(
        (
            *((f"--het-group={index}",) if len(parts) > 1 else ()),
            f"--nodes={part.nodes}",
            f"--ntasks={part.nodes * part.slots}",
            f"--ntasks-per-node={part.slots}",
            "--distribution=block",
            # Both steps use all of the job's resources on each node.
            "--overlap",
            "--overcommit",
            "--export=ALL",
            "--kill-on-bad-exit=0",
            "--wait=0",
            f"--mpi={config.launcher.slurm.mpi}",
            "--cpu-bind=none",
        )
        for index, part in enumerate(parts)
    )


def _srun(parts: int, overlap: bool) -> Sequence[str]:
    """Return srun's options: when one agent ends, srun must not end the others, which decide themselves."""
    groups = ",".join(map(str, range(parts)))
    return [
        *((f"--het-group={groups}",) if parts > 1 else ()),
        *(("--overlap",) if overlap else ()),
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--mpi=none",
        # The agent's processes may use all of the job's CPUs on a node.
        "--cpu-bind=none",
    ]

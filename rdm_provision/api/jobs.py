# SPDX-License-Identifier: GPL-3.0-or-later
"""Training jobs: the part of ``Cluster`` that runs and queries them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from rdm_provision.api.arguments import words
from rdm_provision.api.run_options import RunOptions
from rdm_provision.constants import DATA_MODULE, JOB_MODULE
from rdm_provision.errors import InputError
from rdm_provision.results.events import RunResult
from rdm_provision.results.job_sections import LogSection, merged
from rdm_provision.results.job_state import JobState
from rdm_provision.results.pruning import Removal

if TYPE_CHECKING:
    from rdm_provision.runner.run import Run

STREAMS = ("out", "err", "gpu")


def _wanted(
    config: str | Path | None, overrides: Iterable[str], **names: str
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Return a job's variables: those with types, and those that are never templated."""
    if config is not None and not Path(config).is_file():
        raise InputError(f"there is no file {config}", hint="give the path of a job's configuration")
    given = {"job_config": str(config or ""), **names}
    literal = {"job_overrides": words("overrides", overrides)}
    return {name: word for name, word in given.items() if word}, {k: v for k, v in literal.items() if v}


class JobVerbs:
    """The verbs for jobs, a mixin of :class:`~rdm_provision.api.cluster.Cluster`."""

    inventory: Path

    _run: Callable[..., Run]

    def train(
        self,
        config: str | Path | None = None,
        overrides: Iterable[str] = (),
        *,
        name: str = "",
        resume: str = "",
        watch: bool = True,
        check: bool = False,
        **run_options: Unpack[RunOptions],
    ) -> Run:
        """Check every node, start a training job on all of them, and watch it to its end.

        The run yields a :class:`JobUpdate` whenever there is news. Cancelling it ends the watching, not the
        job. :meth:`job_states` of the result has the job's last state.

        Args:
            config: the job's configuration, a local YAML file; not needed to resume a job.
            overrides: values over the configuration's, each ``key.sub=value``.
            name: the job's name; default: made of the configuration's name and the time.
            resume: name of a job to resume from its newest checkpoint.
            watch: stay until the job has ended; otherwise the run ends when the job has started.
            check: only check.
            run_options: see :class:`RunOptions`.

        Raises:
            InputError: there is neither a configuration nor a job to resume, or the pattern matches no node.
            ClusterBusyError: (when started) another run is changing this cluster, or starting a job on it.

        >>> run = Cluster.load("inventory/lab").train("gpt.yaml", ["parallel.pipeline=2"])  # doctest: +SKIP
        >>> run.result().exit_code  # doctest: +SKIP
        0
        """
        if config is None and not resume:
            raise InputError(
                "there is no configuration to train with", hint="rdm-provision train CONFIG.yaml"
            )
        extra, literal = _wanted(config, overrides, job_name=name, job_resume=resume)
        if not watch:
            extra["job_watch"] = False
        return self._run(
            "train",
            "train",
            run_options,
            check=check,
            exclusive=not check,
            observes_from="Watch the job",
            keep=frozenset({JOB_MODULE}),
            extra=extra,
            literal=literal,
        )

    def profile(
        self,
        config: str | Path,
        overrides: Iterable[str] = (),
        *,
        options: Iterable[str] = (),
        name: str = "",
        check: bool = False,
        **run_options: Unpack[RunOptions],
    ) -> Run:
        """Measure what layouts are predicted from, as a job on all nodes; see :meth:`measured`.

        The nodes must be of one kind. Cancelling the run ends the watching, not the job.

        Args:
            config: the job whose layers are measured, a local YAML file.
            overrides: values over the configuration's, each ``key.sub=value``.
            options: those of ``rdm-trainer profile``, such as ``--links-only``.
            name: the job's name; default: made of the configuration's name and the time.
            check: only check the nodes; :meth:`checked_facts` returns their GPUs and versions.
            run_options: see :class:`RunOptions`.

        The errors are those of :meth:`train`.

        >>> cluster = Cluster.load("inventory/lab")  # doctest: +SKIP
        >>> cluster.measured(cluster.profile("gpt.yaml", limit="n1").result())["gpu"]  # doctest: +SKIP
        'cpu'
        """
        program = ["-m", "rdm_trainer", "profile", "resolved.yaml", *words("options", options)]
        ours = [
            "launcher.nodes=null",
            "launcher.nodelist=[]",
            "launcher.devices_per_node=null",
            "launcher.max_restarts=0",
            f"launcher.program={json.dumps(program)}",
        ]
        overrides = [*words("overrides", overrides), *ours]
        return self.train(config, overrides, name=name, check=check, **run_options)

    def measured(self, result: RunResult) -> dict[str, Any]:
        """Return what a :meth:`profile` run measured, as ``rdm-trainer profile`` writes it, or nothing."""
        found = [(one.get("job") or {}).get("progress") or {} for _node, one in result.answers(JOB_MODULE)]
        return next((dict(one["measured"]) for one in reversed(found) if one.get("measured")), {})

    def checked_facts(self, result: RunResult) -> dict[str, dict[str, Any]]:
        """Return what each node reported in a run with ``check``, such as ``gpu`` and ``torch``."""
        return {node: dict(one["facts"]) for node, one in result.answers(JOB_MODULE) if one.get("facts")}

    def job_config(
        self,
        config: str | Path,
        overrides: Iterable[str] = (),
        **run_options: Unpack[RunOptions],
    ) -> Run:
        """Check and resolve a configuration, on the job's master. Starts nothing.

        :meth:`resolved_config` of the result is the configuration with every key.

        Args:
            config: the job's configuration, a local YAML file.
            overrides: values over the configuration's, each ``key.sub=value``.
            run_options: see :class:`RunOptions`.
        """
        extra, literal = _wanted(config, overrides)
        keep = frozenset({JOB_MODULE})
        return self._run("train", "job_config", run_options, keep=keep, extra=extra, literal=literal)

    def resolved_config(self, result: RunResult) -> str:
        """Return the YAML of a :meth:`job_config` run; empty if the run failed."""
        return next((str(one["config"]) for _node, one in result.answers(JOB_MODULE) if "config" in one), "")

    def bring_data(
        self,
        directory: str | Path,
        *,
        from_nodes: Sequence[str] = (),
        to: str = "",
        check: bool = False,
        **run_options: Unpack[RunOptions],
    ) -> Run:
        """Copy a directory to every node, where it is ``/jobs/data`` in the container.

        Args:
            directory: what to copy. Files that a node already has with the same content are not copied.
            from_nodes: hosts or groups of the inventory that have it, each perhaps a part of its files; empty
                for a local directory.
            to: a directory below ``/jobs/data`` for its files.
            check: only report what would be copied; :meth:`lacking_data` of the result has it.
            run_options: see :class:`RunOptions`.

        Raises:
            InputError: there is no such directory, or a path is wrong.

        >>> Cluster.load("inventory/lab").bring_data("tokens").result().changed  # doctest: +SKIP
        ('n1', 'n2')
        """
        from_nodes = words("from_nodes", from_nodes)
        shown = directory or "''"
        extra: dict[str, Any] = {"job_data": str(directory if from_nodes else Path(directory).resolve())}
        if from_nodes:
            extra["job_data_from"] = from_nodes
            if not Path(directory).is_absolute() or ".." in Path(directory).parts:
                raise InputError(f"{shown} is a directory on nodes: give its absolute path, without ..")
        elif not directory or not Path(directory).is_dir():  # Path("") is the working directory
            hint = "correct its path, or name the nodes that have it, with --from"
            raise InputError(f"there is no directory {shown} on this machine", hint=hint)
        if to:
            extra["job_data_to"] = to
            if Path(to).is_absolute() or ".." in Path(to).parts:
                raise InputError(f"{to} is not below /jobs/data: give a path there, such as gpt")
        keep = frozenset({DATA_MODULE} if check else ())
        return self._run("data", "job_data", run_options, check=check, keep=keep, extra=extra)

    def lacking_data(self, result: RunResult) -> dict[str, list[str]]:
        """Return the files that a :meth:`bring_data` run with ``check`` would copy: node -> paths."""
        found: dict[str, list[str]] = {}
        for node, one in result.answers(DATA_MODULE):
            if one.get("copied"):
                found.setdefault(node, []).extend(one["copied"])
        return found

    def jobs(
        self,
        job: str = "",
        *,
        watch: bool = False,
        sections: bool = False,
        report: bool = False,
        **run_options: Unpack[RunOptions],
    ) -> Run:
        """Query the jobs of the cluster, or one. :meth:`job_states` turns the result into records.

        Args:
            job: only this one, in full.
            watch: stay until it has ended, as :meth:`train` does.
            sections: read its logs for :meth:`job_sections` instead of its state.
            report: read its logs for :meth:`report_parts` instead of its state.
            run_options: see :class:`RunOptions`.

        >>> cluster = Cluster.load("inventory/lab")  # doctest: +SKIP
        >>> [job.state for job in cluster.job_states(cluster.jobs().result())]  # doctest: +SKIP
        ['running', 'finished']
        """
        named = [
            word
            for given, word in ((watch, "watched"), (sections, "shown in sections"), (report, "reported"))
            if given
        ]
        if named and not job:
            raise InputError(f"which job is to be {named[0]}?", hint="rdm-provision jobs lists them")
        if len(named) > 1:
            raise InputError(f"a job is {' or '.join(named)}, not both")
        verb = "sections" if sections else "report" if report else None
        extra = {"job_name": job or None, "job_watch": watch or None, "job_verb": verb}
        return self._run("jobs", "jobs", run_options, keep=frozenset({JOB_MODULE}), extra=extra)

    def logs(
        self,
        job: str,
        *,
        stream: str = "out",
        tail: int = 20,
        follow: bool = False,
        grep: str = "",
        rank: int | None = None,
        **run_options: Unpack[RunOptions],
    ) -> Run:
        """Read what a job wrote. The run yields :class:`JobLines`.

        Args:
            job: its name.
            stream: ``out``, ``err`` or ``gpu``.
            tail: the number of last lines of each node; 0 for all.
            follow: go on with new lines until the job has ended.
            grep: only lines that match this regular expression, from the whole log.
            rank: only lines of this rank: those with its mark, by the program or its launcher
                (``[rank3]:``, ``[Rank 3]``, ``3: ``, ``[1,3]<stdout>:``, ``[default3]:``), the rest of a
                traceback that begins with one, and all lines of a node that has no other rank.
            run_options: see :class:`RunOptions`.

        >>> for event in Cluster.load("inventory/lab").logs("demo-1121-081512"):  # doctest: +SKIP
        ...     print(event)
        """
        if stream not in STREAMS:
            raise InputError(f"there is no log {stream!r}", hint=f"the logs are {', '.join(STREAMS)}")
        try:
            re.compile(grep)
        except re.error as error:
            raise InputError(f"{grep!r} is no regular expression: {error}") from None
        extra: dict[str, Any] = {
            "job_name": job,
            "logs_stream": stream,
            "logs_tail": tail,
            "logs_follow": follow,
            "logs_rank": rank,
        }
        literal: dict[str, list[str]] = {"logs_grep": [grep]} if grep else {}
        keep = frozenset({JOB_MODULE})
        return self._run("logs", "logs", run_options, keep=keep, extra=extra, literal=literal)

    def stop(self, job: str, *, now: bool = False, **run_options: Unpack[RunOptions]) -> Run:
        """Stop a job: its own processes on every node, after a checkpoint.

        Args:
            job: its name.
            now: at once, without a checkpoint.
            run_options: see :class:`RunOptions`.

        >>> Cluster.load("inventory/lab").stop("demo-1121-081512").result().changed  # doctest: +SKIP
        ('n1', 'n2')
        """
        extra = {"job_name": job, "job_stop_now": now or None}
        return self._run("stop", "stop", run_options, keep=frozenset({JOB_MODULE}), extra=extra)

    def prune(self, jobs: Sequence[str], *, check: bool = False, **run_options: Unpack[RunOptions]) -> Run:
        """Remove the directories of jobs that have ended from all nodes; see :func:`pruning.prunable`.

        :meth:`removals` of the result says what went.

        Args:
            jobs: their names. A node keeps a job that runs there. Leftovers of a killed removal go in any
                case.
            check: only report what would go.
            run_options: see :class:`RunOptions`.

        >>> cluster = Cluster.load("inventory/lab")  # doctest: +SKIP
        >>> known = cluster.heard_jobs(cluster.jobs().result())  # doctest: +SKIP
        >>> old = prunable(known, age("30d"), time.time())  # doctest: +SKIP
        >>> cluster.prune([job.job for job in old]).result().changed  # doctest: +SKIP
        ('n1', 'n2')
        """
        return self._run(
            "prune",
            "prune",
            run_options,
            check=check,
            exclusive=not check,
            keep=frozenset({JOB_MODULE}),
            literal={"job_names": words("jobs", jobs)},
        )

    def removals(self, result: RunResult) -> tuple[Removal, ...]:
        """Return what a :meth:`prune` run removed, or would remove, in the order of the nodes.

        A directory that nodes share is listed once, with the first of them.
        """
        found: dict[tuple[str, str], Removal] = {}
        for node, answer in result.answers(JOB_MODULE):
            for one in (*answer.get("removed", ()), *answer.get("kept", ())):
                removal = Removal(one["job"], node, int(one.get("bytes", 0)), str(one.get("reason", "")))
                which = (removal.job, str(one.get("identity") or node))
                # Nodes that remove a shared directory later find less of it.
                if which not in found or found[which].bytes < removal.bytes:
                    found[which] = removal
        return tuple(found.values())

    def heard_jobs(self, result: RunResult) -> tuple[JobState, ...]:
        """Return the jobs of a :meth:`jobs` run whose master, or submitting host, answered."""
        known = result.returned.get(JOB_MODULE, {})
        return tuple(
            state for state in self.job_states(result) if state.launcher == "slurm" or state.master in known
        )

    def job_states(self, result: RunResult) -> tuple[JobState, ...]:
        """Return the jobs that a :meth:`jobs` or :meth:`train` run found, the newest first.

        The master's report of a job counts, if the master answered.
        """
        now = time.time()
        found: dict[str, JobState] = {}
        for node, one in result.answers(JOB_MODULE):
            for data in [one["job"]] if one.get("job") else one.get("jobs") or ():
                state = JobState.of(data, str(one.get("directory", "")), now)
                if state.master == node or state.job not in found:
                    found[state.job] = state
        return tuple(sorted(found.values(), key=lambda state: state.started or 0.0, reverse=True))

    def job_sections(self, result: RunResult) -> tuple[LogSection, ...]:
        """Return what a :meth:`jobs` run with ``sections`` found on all nodes, in the order of the nodes."""
        return merged(one["sections"] for _node, one in result.answers(JOB_MODULE) if one.get("sections"))

    def report_parts(self, result: RunResult) -> list[dict[str, Any]]:
        """Return what each node reported in a :meth:`jobs` run with ``report``, in the order of the nodes."""
        return [one["report"] for _node, one in result.answers(JOB_MODULE) if one.get("report")]

    def knows_job(self, result: RunResult) -> bool:
        """Return whether any node that answered has the job that a run was about."""
        return any(one.get("known") for _node, one in result.answers(JOB_MODULE))

    def ranks_instead(self, result: RunResult) -> int:
        """Return how many ranks a job has, if no node has a line of the rank that :meth:`logs` wanted.

        0 if a node has one, or may get one.
        """
        found = [int(one.get("ranks") or 0) for _node, one in result.answers(JOB_MODULE) if one.get("known")]
        return max(found) if found and all(found) else 0

    def rank_notices(self, result: RunResult) -> tuple[str, ...]:
        """Return why there is no line of the rank that :meth:`logs` wanted, a sentence for each log."""
        return tuple(str(one["notice"]) for _node, one in result.answers(JOB_MODULE) if one.get("notice"))

    def near_jobs(self, result: RunResult) -> tuple[str, ...]:
        """Return jobs spelt nearly like the one that no node knew."""
        return tuple(
            dict.fromkeys(near for _node, one in result.answers(JOB_MODULE) for near in one.get("near") or ())
        )

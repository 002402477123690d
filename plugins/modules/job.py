#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check, start, watch and stop a training job on a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: job
short_description: Check, start, watch and stop a training job on a node
description:
  - Calls the node's job agent, which is C(rdm-trainer job), in the training container or on the host itself.
  - Every node of a job is queried. The job's plan says which of them does what.
version_added: 0.2.0
extends_documentation_fragment: rdm.provision.attributes.no_diff
attributes:
  check_mode:
    support: full
    description: Nothing is started or stopped; what only reads does the same as otherwise.
  idempotent:
    support: full
    description: A job that runs is not started again, and one that has ended is not stopped.
options:
  cluster:
    description: The cluster's name, the value of the label V(rdm.provision.cluster).
    type: str
    required: true
  execution_environment:
    description:
      - Where the node's jobs are. The action plugin fills it in from the inventory's C(rdm_runtime).
      - In paths, C(~) is the user's home and C(%n) the node's host name.
    type: dict
    aliases: [place]
    suboptions:
      runtime:
        description: The training container, or the host itself, as the user who is logged in.
        type: str
        choices: [container, host]
        default: container
      environment:
        description: The host's virtual environment.
        type: str
        default: ""
      directory:
        description: The host's directory for jobs.
        type: str
        default: ""
      key:
        description: The host's file with the key that the cluster's agents share; under Slurm there is none.
        type: str
        default: ""
      my_ip:
        description: The host's address on the fabric.
        type: str
        default: ""
      slurm:
        description: Whether jobs are submitted to Slurm there. Only those are known then, otherwise the rest.
        type: bool
        default: false
  verb:
    description:
      - V(check) says what stands in the way of a job, without a failure, so that all nodes report.
      - V(config) returns the configuration with every key.
      - V(start) starts it. V(stop) ends its processes on this node.
      - V(past) says which nodes had it, from its directory, without the agent.
      - V(state) says how it is. V(list) says it of all jobs. V(logs) returns what it wrote.
      - V(sections) returns the ends of its logs, its configuration in short and the times of its steps.
      - V(report) returns what a report needs of its files on this node, condensed.
      - V(remove) takes the directories of O(names) away, of those jobs that have ended, and what is left of
        those whose removal was killed.
      - V(running) names the jobs that run on this node, without the agent. Where there is no engine or
        no container for them, none runs.
      - By default V(state) of O(name), or V(list) without a name. The action plugin fills it in.
    type: str
    choices: [check, config, start, past, state, stop, logs, sections, report, list, remove, running]
  name:
    description: The job; for V(past), V(state), V(stop), V(logs), V(sections) and V(report).
    type: str
    default: ""
  names:
    description: The jobs; for V(remove). Those that the node does not have are left out.
    type: list
    elements: str
    default: []
  plan:
    description: What M(rdm.provision.job_plan) decided; for V(check), V(config) and V(start).
    type: dict
    default: {}
  node:
    description: Name of this node in the plan; for V(check), V(start) and V(running).
    type: str
    default: ""
  whole_node:
    description: For V(running), name all jobs on this node, those of other clusters, too. Needs root.
    type: bool
    default: false
    version_added: 0.2.0
  wait:
    description: Seconds to wait for news, for V(state) and V(logs).
    type: float
    default: 0
  stream:
    description: Which log.
    type: str
    choices: [out, err, gpu]
    default: out
  tail:
    description: How many of the last lines of the log; 0 for all.
    type: int
    default: 20
  offset:
    description:
      - Return what is beyond this position in the log instead, RV(offset) of an earlier call.
      - In a loop of C(until) it is set by itself, so that each try goes on where the one before ended.
    type: str
  grep:
    description: Only lines of the log in which this regular expression is found.
    type: str
    default: ""
  rank:
    description: Only lines of the log before which this rank's number stands.
    type: int
  now:
    description: Whether V(stop) ends the processes at once, instead of after a checkpoint.
    type: bool
    default: false
  timeout:
    description: Seconds that the agent may take, beyond O(wait).
    type: float
    default: 120
"""

EXAMPLES = r"""
- name: Query the job
  rdm.provision.job:
    cluster: rdm
    verb: state
    name: gpt-1121-081512
  register: job

- name: Wait for the end of the job
  rdm.provision.job:
    cluster: rdm
    verb: state
    name: gpt-1121-081512
    wait: 5
  register: job
  until: job.ended
  retries: 1000
  delay: 0
"""

RETURN = r"""
known:
  description: Whether this node has the job.
  returned: for V(past), V(state), V(stop), V(logs), V(sections) and V(report)
  type: bool
near:
  description: Jobs of this node whose names are spelt nearly like O(name), or begin with it.
  returned: when it is not known
  type: list
  elements: str
job:
  description: How it is; on its master the whole job, elsewhere what is known there.
  returned: for V(state) and V(stop), when it is known, and for V(start) on its master
  type: dict
  sample: {job: gpt-1121-081512, state: running, master: n1, nodes: {n1: running, n2: running}}
past:
  description: How it ran last, as far as this host knows.
  returned: for V(past), when it is known
  type: dict
  contains:
    slurm: {description: Whether it went through Slurm from here., type: bool}
    nodes:
      description: The names of its nodes, by rank; none of a job of Slurm, which chooses them.
      type: list
      elements: str
    time: {description: "When it was started, in seconds since 1970.", type: float}
jobs:
  description: The same of all jobs, without their loss curves.
  returned: for V(list)
  type: list
  elements: dict
running: {description: The names of those that run., returned: for V(running), type: list, elements: str}
ended: {description: Whether it will not go on by itself., returned: for V(state) and V(logs), type: bool}
text: {description: What it wrote., returned: for V(logs), type: str}
parts:
  description: What it wrote on each node, where the host that submits jobs to Slurm sees all nodes' logs.
  returned: for V(logs), of a job of Slurm
  type: dict
offset: {description: "Where that ends in the log, or in the logs.", returned: for V(logs), type: raw}
ranks:
  description: How many ranks the job has. No more is then to come of O(rank) here.
  returned: for V(logs), when O(rank) is none of them, and the log has no line of it
  type: int
notice:
  description: Why the log has no line of O(rank), which writes into it. One sentence.
  returned: for V(logs), when nothing there says which rank wrote a line
  type: str
sections:
  description: Titles, lines, and how many lines the files have.
  returned: for V(sections)
  type: list
  elements: dict
report:
  description: What a report needs of this node's files; see docs/report.md. None where they have nothing.
  returned: for V(report)
  type: dict
removed:
  description: >-
    C(job), the C(bytes) that its directory took of the disk, and its C(identity), the same on nodes that
    share it.
  returned: for V(remove)
  type: list
  elements: dict
kept:
  description: C(job), and the C(reason) why it was not removed.
  returned: for V(remove)
  type: list
  elements: dict
problems:
  description:
    - What stands in the way, each in one sentence.
    - When it is refused, what M(rdm.provision.job_plan) returns of each.
  returned: for V(check), and when it is refused
  type: list
  elements: raw
facts: {description: "What was found on the way, versions among it.", returned: for V(check), type: dict}
offer:
  description: Ports that are free, and the mark that the job's processes carry.
  returned: for V(check), on the job's master
  type: dict
config: {description: "The configuration with every key, YAML.", returned: for V(config), type: str}
no_environment:
  description: That nothing runs jobs there, such as a container that there is none of.
  returned: when it failed for that
  type: bool
rdm_refused:
  description: V(nodes), when the configuration is not sound.
  returned: for V(config)
  type: str
directory:
  description: The directory of the jobs on the node.
  returned: success
  type: str
  sample: /var/lib/rdm/rdm
"""

import difflib
import json
import os
import re
from typing import Any, Callable, Dict, List, Optional

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.constants import FINAL_STATES, RUNTIMES
from ansible_collections.rdm.provision.plugins.module_utils.jobs.agent import Agent, BadConfiguration
from ansible_collections.rdm.provision.plugins.module_utils.jobs.execution_environment import (
    find,
    find_running,
)
from ansible_collections.rdm.provision.plugins.module_utils.jobs.running_jobs import jobs_of_processes

ARGUMENT_SPEC: Dict[str, Any] = {
    "cluster": {"type": "str", "required": True},
    "execution_environment": {
        "type": "dict",
        "aliases": ["place"],
        "deprecated_aliases": [{"name": "place", "version": "0.7.0", "collection_name": "rdm.provision"}],
        "options": {
            "runtime": {"type": "str", "choices": list(RUNTIMES), "default": "container"},
            "environment": {"type": "str", "default": ""},
            "directory": {"type": "str", "default": ""},
            "key": {"type": "str", "default": ""},
            "my_ip": {"type": "str", "default": ""},
            "slurm": {"type": "bool", "default": False},
        },
    },
    "verb": {
        "type": "str",
        "choices": [
            "check",
            "config",
            "start",
            "past",
            "state",
            "stop",
            "logs",
            "sections",
            "report",
            "list",
            "remove",
            "running",
        ],
    },
    "name": {"type": "str", "default": ""},
    "names": {"type": "list", "elements": "str", "default": []},
    "plan": {"type": "dict", "default": {}},
    "node": {"type": "str", "default": ""},
    "whole_node": {"type": "bool", "default": False},
    "wait": {"type": "float", "default": 0},
    "stream": {"type": "str", "choices": ["out", "err", "gpu"], "default": "out"},
    "tail": {"type": "int", "default": 20},
    "offset": {"type": "str"},
    "grep": {"type": "str", "default": ""},
    "rank": {"type": "int"},
    "now": {"type": "bool", "default": False},
    "timeout": {"type": "float", "default": 120},
}

VERSION = 1
"""The version of the agent's protocol."""

_OF_ONE_JOB = ("past", "state", "stop", "logs", "sections", "report")
_SUBMITTED = "slurm.json"
"""The file in the directory of a job that was submitted to Slurm."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")


def _request(options: Dict[str, Any]) -> Dict[str, Any]:
    keys = ("name", "resume", "nodes", "config", "overrides", "accelerator", "offer")
    plan = options["plan"]
    return dict({key: plan[key] for key in keys if key in plan}, version=VERSION, node=options["node"])


def check(agent: Agent, options: Dict[str, Any]) -> Dict[str, Any]:
    """Return the problems that keep a job from starting."""
    answer = agent.call("check", [], _request(options), refused=True)
    return {key: answer[key] for key in ("problems", "facts", "offer") if key in answer}


def config(agent: Agent, options: Dict[str, Any]) -> Dict[str, Any]:
    """Return the configuration with every key."""
    return {"config": agent.resolve(options["plan"]["config"], options["plan"]["overrides"])}


def start(agent: Agent, options: Dict[str, Any]) -> Dict[str, Any]:
    """Start a job."""
    answer = agent.call("start", [], _request(options))
    result = {"changed": bool(answer.get("started"))}
    # Other nodes know only their own part of the job.
    return dict(result, job=answer["job"]) if options["node"] == options["plan"]["master"] else result


def past(directory: str, environment: Dict[str, Any]) -> Dict[str, Any]:
    """Return how a job ran last, from its directory."""
    file = os.path.join(directory, "job.json")
    try:
        with open(file, encoding="utf-8") as opened:
            started = os.fstat(opened.fileno()).st_mtime
            names = [str(node["name"]) for node in json.load(opened)["nodes"]]
    except OSError as error:
        raise NodeError("{0} cannot be read: {1}".format(file, error.strerror)) from None
    except (ValueError, KeyError, TypeError):
        raise NodeError("{0} is damaged".format(file)) from None
    submitted = bool(environment.get("slurm"))
    nodes = [] if submitted else names
    return {"slurm": submitted, "nodes": nodes, "time": started}


def state(agent: Agent, options: Dict[str, Any]) -> Dict[str, Any]:
    """Return the state of a job."""
    words = [options["name"]] + (["--wait", str(options["wait"])] if options["wait"] else [])
    return _described(agent.call("state", words)["job"])


def stop(agent: Agent, options: Dict[str, Any]) -> Dict[str, Any]:
    """End a job's processes on this node."""
    words = [options["name"], "--timeout", str(options["timeout"])] + (["--now"] if options["now"] else [])
    answer = agent.call("stop", words)
    return dict(_described(answer["job"]), changed=bool(answer.get("stopped")))


def logs(agent: Agent, options: Dict[str, Any]) -> Dict[str, Any]:
    """Return a job's output."""
    words = [options["name"], "--stream", options["stream"]]
    if options["offset"] is None:
        words += ["--tail", str(options["tail"])]
    else:
        words += ["--offset", str(options["offset"])]
    if options["wait"]:
        words += ["--wait", str(options["wait"])]
    if options["grep"]:
        # One argument, since the value may begin with a dash.
        words += ["--grep=" + options["grep"]]
    if options["rank"] is not None:
        words += ["--rank", str(options["rank"])]
    answer = agent.call("logs", words)
    shown = ("text", "parts", "offset", "ended")
    result = {"stream": options["stream"], **{key: answer[key] for key in shown if key in answer}}
    # The key of agents of an older release is untold.
    notice = answer.get("notice") or answer.get("untold")
    if notice:
        result.update(notice=notice)
    rank, ranks = options["rank"], answer.get("ranks")
    if rank is not None and ranks and rank >= ranks and not answer.get("text") and not answer.get("parts"):
        # Another node may have lines of this rank, from when the job had more ranks.
        result.update(ranks=ranks, ended=True)
    return result


def named(agent: Agent, options: Dict[str, Any]) -> Dict[str, Any]:
    """Return a job's logs by section, or the data for its report: what the verb names."""
    verb = options["verb"]
    return {verb: agent.call(verb, [options["name"]])[verb]}


def remove(agent: Agent, names: List[str], dry_run: bool) -> Dict[str, Any]:
    """Remove the directories of jobs, and the rest of a killed removal."""
    # `--look` is what trainers of 0.5 and older call `--dry-run`.
    answer = agent.call("remove", names + (["--look"] if dry_run else []))
    return {"removed": answer["removed"], "kept": answer["kept"], "changed": bool(answer["removed"])}


def jobs(agent: Agent, _options: Dict[str, Any]) -> Dict[str, Any]:
    """Return the state of all jobs."""
    return {"jobs": agent.call("list", [])["jobs"]}


def _described(job: Dict[str, Any]) -> Dict[str, Any]:
    words = {"finished": "has finished", "failed": "has failed", "stopped": "was stopped"}
    output = "the job {0} {1}".format(job["job"], words.get(job["state"], "is " + job["state"]))
    reason = str(job.get("reason") or "")
    return {
        "job": job,
        "ended": job["state"] in FINAL_STATES,
        "msg": output + (": " + reason if reason else ""),
    }


_VERBS: Dict[str, Callable[[Agent, Dict[str, Any]], Dict[str, Any]]] = {
    "check": check,
    "config": config,
    "start": start,
    "state": state,
    "stop": stop,
    "logs": logs,
    "sections": named,
    "report": named,
    "list": jobs,
}


def problem(options: Dict[str, Any]) -> Optional[str]:
    """Return what is missing or wrong in the options, as one sentence; None if nothing is."""
    if options["verb"] in ("check", "config", "start"):
        return None if options["plan"] else "plan is missing: it describes the job"
    if options["verb"] in _OF_ONE_JOB and not _NAME.fullmatch(options["name"]):
        return "{0!r} is no name of a job".format(options["name"])
    wrong = [name for name in options["names"] if not _NAME.fullmatch(name)]
    return "{0!r} is no name of a job".format(wrong[0]) if wrong else None


@as_module(ARGUMENT_SPEC)
def main(module: AnsibleModule) -> Dict[str, Any]:
    """Query the agent and return the module's result."""
    options = module.params
    verb = options["verb"]
    wrong = problem(options)
    if wrong:
        return {"failed": True, "msg": wrong}
    if verb == "running" and options["whole_node"]:
        return {"changed": False, "running": jobs_of_processes()}
    try:
        chosen = options["execution_environment"] or {"runtime": "container"}
        if verb == "running":
            return {"changed": False, "running": find_running(chosen, options["cluster"], options["node"])}
        environment = find(chosen, options["cluster"])
    except NodeError as error:
        return dict(_none(verb, str(error)), no_environment=True)
    try:
        result: Dict[str, Any] = {"changed": False, "directory": environment.directory}
        if verb in _OF_ONE_JOB:
            result["known"] = _is_here(environment.directory, options["name"], chosen)
            if not result["known"]:
                return dict(result, ended=True, near=_near(environment.directory, options["name"]))
        if verb == "past":
            return dict(result, past=past(os.path.join(environment.directory, options["name"]), chosen))
        agent = Agent(environment, options["timeout"] + options["wait"] + 10)
        if verb == "remove":
            names = [name for name in options["names"] if _is_here(environment.directory, name, chosen)]
            if not names and not _half_removed(environment.directory):
                return dict(result, removed=[], kept=[])
            return dict(result, **remove(agent, names, dry_run=module.check_mode))
        if module.check_mode and verb in ("start", "stop"):
            seen = {} if verb == "start" else state(agent, dict(options, wait=0))
            return dict(result, **seen, changed=not seen.get("ended"))
        result.update(_VERBS[verb](agent, options))
        if verb == "list":
            slurm = bool(chosen.get("slurm"))
            result["jobs"] = [one for one in result["jobs"] if (one.get("launcher") == "slurm") == slurm]
    except BadConfiguration as error:
        blank = {"node": None, "value": "", "hint": ""}
        problems = [dict(blank, reason=line) for line in str(error).splitlines()]
        return {"failed": True, "msg": str(error), "rdm_refused": "nodes", "problems": problems}
    except NodeError as error:
        return _none(verb, str(error))
    return result


def _is_here(directory: str, name: str, environment: Dict[str, Any]) -> bool:
    """Return whether the node takes part in a job: else it has no directory of the job."""
    found = os.path.join(directory, name)
    return os.path.isdir(found) and os.path.isfile(os.path.join(found, _SUBMITTED)) == bool(
        environment.get("slurm")
    )


def _near(directory: str, name: str) -> List[str]:
    """Return jobs with a similar name, or the last ones that begin with it.

    The directory may contain other entries, too.
    """
    try:
        neighbours = [one for one in os.listdir(directory) if _NAME.fullmatch(one) and one != name]
    except OSError:
        return []
    found = [one for one in neighbours if os.path.isfile(os.path.join(directory, one, "job.json"))]
    # A job's name is that of its configuration and a time.
    return difflib.get_close_matches(name, found) or sorted(one for one in found if one.startswith(name))[-3:]


def _half_removed(directory: str) -> bool:
    """Return whether a removal was killed here; see trainer/rdm_job/removal.py."""
    try:
        return any(name.startswith(".removed-") for name in os.listdir(directory))
    except OSError:
        return False


def _none(verb: str, output: str) -> Dict[str, Any]:
    """Return the result if the agent cannot be run."""
    if verb == "check":
        return {"changed": False, "problems": [output]}
    if verb == "running":
        return {"changed": False, "running": []}
    if verb == "past":
        # The job's check will report why it cannot continue there.
        return {"changed": False, "known": False, "msg": output}
    return {"failed": True, "msg": output}


if __name__ == "__main__":
    main()

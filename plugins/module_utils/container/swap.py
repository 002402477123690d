# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings the training container into its desired state, step by step.

A container is replaced only by a successor that works. The successor is created as NAME.next, so that the
engine has accepted every option. Then the old container is stopped and renamed to NAME.old, since both have
the same address. The successor gets the name and starts; when it is ready, the old container is removed. If a
step fails, the old container is started again. If a run is killed, the names show how far it came: see
:func:`leftovers_of`.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.container.readiness import (
    refuse_taken,
    wait_ready,
)
from ansible_collections.rdm.provision.plugins.module_utils.container.request import (
    Difference,
    difference,
    endpoint,
    ends,
    request,
)
from ansible_collections.rdm.provision.plugins.module_utils.container.vfs import ContainerVfs
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import (
    DockerAPI,
    DockerProblem,
)
from ansible_collections.rdm.provision.plugins.module_utils.docker.engine_facts import (
    job_directory,
    lost_addresses,
)
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import (
    NEXT,
    OLD,
    inspect,
    is_ours,
    label_filter,
    remove_container,
)
from ansible_collections.rdm.provision.plugins.module_utils.jobs.running_jobs import running_jobs

Container = Dict[str, Any]
"""A container, as inspect() returns it."""

_FATES = {"restart": "restarted", "replace": "recreated"}
ENDS = tuple(_FATES)
"""The steps that end all processes in the container."""


class Steps(NamedTuple):
    """The steps to the desired state.

    Attributes:
        todo: the steps, in order: make, replace, update, disconnect, unpause, start, restart.
        differs: how the container differs; None if there is no container.
    """

    todo: List[str]
    differs: Optional[Difference]


def leftovers_of(
    api: DockerAPI, name: str, cluster: str, check: bool
) -> Tuple[Optional[Container], List[str]]:
    """Remove what a killed run has left; return the container, and the names of what was removed.

    A container NAME.next never ran and is removed. A container NAME.old gets its name back if its successor
    does not run, and is removed otherwise. Containers without a name are removed.

    Raises:
        NodeError: the name is in use by others.
    """
    refuse_taken(api, name, cluster)
    now, old = inspect(api, "containers", name), _leftover(api, name + OLD, cluster)
    comes_back = old is not None and not (now is not None and now["State"]["Running"])
    gone = [_leftover(api, name + NEXT, cluster), now if comes_back else old, *_nameless(api, cluster)]
    for one in gone if not check else ():
        if one is not None:
            remove_container(api, one["Id"])
    if comes_back and not check:
        _rename(api, str((old or {})["Id"]), name)
    return (old if comes_back else now), [
        one["Name"].lstrip("/") or one["Id"][:12] for one in gone if one is not None
    ]


def steps(
    api: DockerAPI,
    wanted: Mapping[str, Any],
    found: Optional[Container],
    restart: bool = False,
    recreate: bool = False,
    image: str = "",
) -> Steps:
    """Return the steps to bring the container into its desired state.

    Args:
        api: the engine.
        wanted: the module's options, with `vfs`.
        found: the existing container.
        restart: whether to restart it, since a directory that it mounts was recreated or it lacks an RDMA
            device. A container that has lost an interface is restarted in any case.
        recreate: whether to recreate it, since its network was recreated.
        image: ID of the image to use; empty for the one that the name refers to now.
    """
    if found is None:
        return Steps(["make"], None)
    known = ((name, inspect(api, "networks", name)) for name, _ in ends(wanted))
    networks = {name: network["Id"] for name, network in known if network}
    image = image or image_id(api, wanted["image"])
    differs = difference(wanted, found, image, networks)
    state = found["State"]
    policy = differs.policy and not api.updates
    if differs.recreate_needed or policy or recreate or state["Status"] == "dead":
        return Steps(["replace"], differs)
    todo = ["update"] * differs.policy + ["disconnect"] * bool(differs.extra_networks)
    if not state["Running"]:
        todo.append("start")
    else:
        lost = bool(lost_addresses(found))
        todo += ["unpause"] * bool(state["Paused"]) + ["restart"] * (restart or lost)
    return Steps(todo, differs)


def image_id(api: DockerAPI, name: str) -> str:
    """Return the ID of the image that a name refers to; empty if there is none."""
    found = inspect(api, "images", name)
    return str(found["Id"]) if found else ""


def jobs_in(found: Optional[Container], node: str) -> List[str]:
    """Return the training jobs that run in a container now."""
    if found is None or not found["State"]["Running"] or not node:
        return []
    directory = job_directory(found)
    return running_jobs(directory, node) if directory else []


class Change:
    """Changes a container.

    Args:
        api: the engine, with a timeout longer than a container takes to stop.
        wanted: the module's options, with `vfs`.
        found: the existing container.
        vfs: its VFs.
    """

    def __init__(
        self, api: DockerAPI, wanted: Mapping[str, Any], found: Optional[Container], vfs: ContainerVfs
    ) -> None:
        self._api = api
        self._vfs = vfs
        self._wanted = wanted
        self._name = wanted["name"]
        self._found = found

    def protect_jobs(self, todo: Steps) -> None:
        """Raise NodeError if the steps would end a running job. make() checks again."""
        for step, fate in _FATES.items():
            if self._found is not None and step in todo.todo:
                self._protect_jobs(self._found, fate)

    def make(self, todo: Steps) -> None:
        """Take the steps, and wait until the container is ready.

        Raises:
            NodeError: it would end a job, the engine refuses, it does not become ready, or did not get its
                VFs or their RDMA devices. If it was to replace another, that one is there as before.
        """
        if "replace" in todo.todo:
            self._replace()
            return
        if "make" in todo.todo:
            self._start(self._create(self._name))
        found = self._found
        if found is not None:
            self._adapt(found, todo)
        self._wait()

    def _adapt(self, found: Container, todo: Steps) -> None:
        path = "/containers/{0}".format(found["Id"])
        for step in todo.todo:
            if step == "update":
                self._set_policy(found["Id"], self._wanted["restart_policy"])
            elif step == "disconnect":
                for network in todo.differs.extra_networks if todo.differs else []:
                    end = {"Container": found["Id"], "Force": True}
                    self._api.post("/networks/{0}/disconnect".format(network), end)
            elif step == "unpause":
                self._api.post(path + "/unpause")
            elif step == "start":
                self._start(found["Id"])
            elif step == "restart":
                self._protect_jobs(found, _FATES[step])
                self._api.post(path + "/restart", t=self._wanted["stop_timeout"])

    def _replace(self) -> None:
        old = self._found
        assert old is not None
        was_running = old["State"]["Running"]
        successor = self._create(self._name + NEXT)
        try:
            # The last check for jobs may be minutes old.
            self._protect_jobs(old, _FATES["replace"])
        except NodeError:
            remove_container(self._api, successor, volumes=True)
            raise
        try:
            if old["State"]["Paused"]:
                self._api.post("/containers/{0}/unpause".format(old["Id"]))
            if was_running:
                self._api.post("/containers/{0}/stop".format(old["Id"]), t=self._wanted["stop_timeout"])
            # If the engine restarts now, it must not start both: they have the same address.
            self._set_policy(old["Id"], "no")
            _rename(self._api, old["Id"], self._name + OLD)
            _rename(self._api, successor, self._name)
            # The plugin's reservation ended with the old container.
            self._vfs.hold()
            self._start(successor)
            self._wait()
        except NodeError as problem:
            self._undo(old, successor)
            raise NodeError(
                "{0}. It was to take the place of another, which {1}".format(
                    str(problem).rstrip(". "), "runs again" if was_running else "is there again"
                )
            ) from problem
        remove_container(self._api, old["Id"])

    def _undo(self, old: Container, successor: str) -> None:
        """Restore the old container."""
        remove_container(self._api, successor, volumes=True)
        now = inspect(self._api, "containers", old["Id"])
        if now is not None and now["Name"] != "/" + self._name:
            _rename(self._api, old["Id"], self._name)
        policy = old["HostConfig"]["RestartPolicy"]["Name"] or "no"
        if policy == "no":  # a killed run may have set it
            policy = self._wanted["restart_policy"]
        self._set_policy(old["Id"], policy)
        if old["State"]["Running"]:
            self._start(old["Id"])  # no error if it still runs

    def _create(self, name: str) -> str:
        version = tuple(int(part) for part in self._api.api_version.split("."))
        body = request(self._wanted, version)
        made: str = self._api.post("/containers/create", body, name=name)["Id"]
        try:
            for network, _ in ends(self._wanted)[1:]:
                end = {"Container": made, "EndpointConfig": endpoint(self._wanted, network, version)}
                self._api.post("/networks/{0}/connect".format(network), end)
        except DockerProblem:
            remove_container(self._api, made, volumes=True)
            raise
        return made

    def _set_policy(self, container: str, name: str) -> None:
        if self._api.updates:
            policy = {"RestartPolicy": {"Name": name}}
            self._api.post("/containers/{0}/update".format(container), policy)

    def _start(self, container: str) -> None:
        self._api.post("/containers/{0}/start".format(container))

    def _wait(self) -> None:
        line, timeout = self._wanted["ready_line"], self._wanted["ready_timeout"]
        wait_ready(self._api, self._name, "", line, timeout)
        self._vfs.confirm(inspect(self._api, "containers", self._name))

    def _protect_jobs(self, found: Container, fate: str) -> None:
        jobs = jobs_in(found, self._wanted["node"]) if self._wanted["protect_jobs"] else []
        if jobs:
            raise NodeError(
                "the container {0} has to be {1}, but since this run has checked, the {2} in it: run it "
                "again when {3} ended, or set -e container_protect_jobs=false, which loses the steps since "
                "the last checkpoint".format(
                    self._name,
                    fate,
                    "jobs {0} have started".format(", ".join(jobs))
                    if len(jobs) > 1
                    else "job {0} has started".format(jobs[0]),
                    "they have" if len(jobs) > 1 else "it has",
                )
            )


def _leftover(api: DockerAPI, name: str, cluster: str) -> Optional[Container]:
    """Return the cluster's container of that name."""
    found = inspect(api, "containers", name)
    return (
        found if found is not None and is_ours(found["Config"].get("Labels"), cluster, "container") else None
    )


def _nameless(api: DockerAPI, cluster: str) -> List[Container]:
    """Return the cluster's containers without a name, which two runs at once could leave."""
    listed = api.get("/containers/json", all=True, filters={"label": label_filter(cluster, "container")})
    return [{"Id": one["Id"], "Name": ""} for one in listed if not one.get("Names")]


def _rename(api: DockerAPI, container: str, name: str) -> None:
    api.post("/containers/{0}/rename".format(container), name=name)

# SPDX-License-Identifier: GPL-3.0-or-later
"""Evaluate and validate the variables of all hosts, before anything is planned with them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from ansible.errors import AnsibleError
from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names as listed
from ansible_collections.rdm.provision.plugins.module_utils.constants import ACCELERATORS, RUNTIME_HOST
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.address_plan import AddressPlan
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.network import network_options
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.vfs import (
    UPSTREAM,
    UPSTREAM_IMAGE,
    plugin_of,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem, sentences
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory import role_specs
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.cluster_variables import (
    CONNECTION_VARIABLES,
    outside,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.container_options import (
    HOST_NAME,
    container_problems,
    missing_over_ssh,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.host_variables import (
    REGISTERED,
    HostVariables,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.image_list import (
    Images,
    check_images,
    distribution_problems,
    mirror_problems,
    unpinned,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.python_sources import (
    source_problems,
    version_problems,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.renamed_variables import (
    FORMER,
    notices,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.role_variables import (
    unknown_variables,
    variable_problems,
)

_IMAGE_VARIABLES = {"images_list", "images_profiles", "container_image"}
_NO_IMAGES = Images("", False, [])


class Validated(NamedTuple):
    """The variables of all hosts.

    Attributes:
        cluster: host -> its cluster-wide and connection variables, evaluated.
        images: host -> its images.
        problems: what is wrong, for all hosts.
        warnings: what is suspicious.
    """

    cluster: Mapping[str, Mapping[str, Any]]
    images: Mapping[str, Images]
    problems: list[Problem]
    warnings: list[str]


def validate(reader: HostVariables) -> Validated:
    """Evaluate and validate the variables of all hosts: those of the cluster, then those of the roles."""
    problems: list[Problem] = []
    cluster = {host: _cluster_variables(reader, host, problems) for host in reader.hosts}
    lost, warnings = outside(reader.groups)
    problems += lost
    known = {*role_specs.options(), *REGISTERED, *FORMER}
    images: dict[str, Images] = {}
    unknown: set[str] = set()
    former: set[str] = set()
    bridged: list[str] = []
    odd: list[Problem] = []
    for host in reader.hosts:
        present = list(reader.variables(host))
        unknown.update(name for name in present if name not in known)
        former.update(name for name in present if name in FORMER)
        given = _role_variables(reader, host, present)
        if given.get("network_driver") == "bridge":
            bridged.append(host)
        if cluster[host].get("rdm_runtime") == RUNTIME_HOST:
            images[host] = _NO_IMAGES
            problems += _bare_host_problems(reader, host, given, cluster[host])
            continue
        # Values that refer to facts of the node are validated once the facts are known.
        accelerator = cluster[host].get("rdm_accelerator")
        ready = _IMAGE_VARIABLES.intersection(present) <= set(given) and accelerator in ACCELERATORS
        images[host] = _images(host, accelerator, given) if ready else _NO_IMAGES
        wrong, typed = _typed(host, given)
        # Another problem names a host whose own name is not usable.
        default = {"container_hostname": host} if HOST_NAME.fullmatch(host) else {}
        wrong += container_problems(host, {**default, **typed})
        wrong += distribution_problems(host, typed)
        if "images_mirror" in typed or "images_mirror" not in present:
            wrong += mirror_problems(host, typed)
        odd += missing_over_ssh(host, typed)
        problems += unpinned(host, _privileged_images(reader, host), given.get("images_list"))
        problems += images[host].problems
        # The validation of the list names the image; that of types does not.
        named = any(problem.value.endswith("images_list") for problem in images[host].problems)
        wrong = [one for one in wrong if not (named and one.value == "images_list")]
        problems += wrong
        if not any(one.value.startswith("network_") for one in wrong):
            problems += _network_problems(reader, host)
    prefixes = ["rdm_", *(f"{role.name}_" for role in sorted(role_specs.ROLES.iterdir()))]
    found = unknown_variables(unknown, known, prefixes) + notices(former) + sentences(odd)
    if bridged and len(reader.hosts) > 1:
        found.append(
            f"{listed(bridged)}: network_driver bridge reaches the containers of its own node only, and this "
            "cluster has several nodes: choose sriov, macvlan or ipvlan."
        )
    return Validated(cluster, images, problems, found + warnings)


def contradictions(reader: HostVariables, addresses: AddressPlan) -> list[Problem]:
    """Return a problem for each role variable that contradicts the plan.

    These variables are for roles that are used alone. In a run, one role would use them, the others the plan.
    """
    master = next(iter(addresses.nodes), "")
    master_addr = addresses.nodes.get(master, "")
    problems = []
    for host in reader.hosts:
        my_ip = addresses.nodes.get(host, "")
        for name, planned, instead in (
            ("network_subnet", str(addresses.subnet), "set rdm_subnet"),
            ("network_gateway", addresses.gateway, "set rdm_gateway"),
            ("my_ip_address", my_ip, "set my_ip"),
            ("container_my_ip", my_ip, "set my_ip"),
            ("my_ip_master_addr", master_addr, f"set my_ip of {master}"),
            ("container_master_addr", master_addr, f"set my_ip of {master}"),
        ):
            given = reader.node(host).text(name)
            if given and planned and given != planned:
                reason = f"is not what is planned, {planned}"
                problems.append(Problem(host, f"{name} {given}", reason, f"{instead} instead"))
    return problems


def _cluster_variables(reader: HostVariables, host: str, problems: list[Problem]) -> dict[str, Any]:
    """Return a host's cluster-wide and connection variables; add a problem for each that is undefined."""
    values = {}
    wanted = (*role_specs.cluster_options(), *CONNECTION_VARIABLES)
    for name in set(reader.variables(host)).intersection(wanted):
        try:
            values[name] = reader.evaluate(host, name)
        except AnsibleError as error:
            reason = f"cannot be evaluated: {error.message}".rstrip(". ")
            problems.append(Problem(host, name, reason, "correct it in the inventory"))
    return values


def _role_variables(reader: HostVariables, host: str, present: Collection[str]) -> dict[str, Any]:
    """Return the values of a host's role variables; those that depend on a later role are checked there."""
    values = {}
    others = {*role_specs.cluster_options(), *REGISTERED}
    for name in present:
        if name in role_specs.options() and name not in others:
            try:
                values[name] = reader.evaluate(host, name)
            except AnsibleError:
                continue
    return values


def _typed(host: str, given: Mapping[str, Any]) -> tuple[list[Problem], dict[str, Any]]:
    """Return the problems with types and choices, and the other variables with their types."""
    wrong = variable_problems(host, given)
    untyped = {problem.value for problem in wrong}
    return wrong, {name: role_specs.typed(name, one)[0] for name, one in given.items() if name not in untyped}


def _network_problems(reader: HostVariables, host: str) -> list[Problem]:
    try:
        network_options(reader.node(host))
    except ValueError as error:
        return [Problem.of(host, "", error)]
    return []


def _bare_host_problems(
    reader: HostVariables, host: str, given: Mapping[str, Any], cluster: Mapping[str, Any]
) -> list[Problem]:
    """Return what is wrong with the variables of a bare host."""
    wrong, typed = _typed(host, given)
    wrong += container_problems(host, typed)
    if cluster.get("rdm_accelerator") == "rocm":
        wrong += _torch_problems(reader, host)
    wrong += source_problems(host, given) + version_problems(host, given)
    return wrong or _network_problems(reader, host)


def _torch_problems(reader: HostVariables, host: str) -> list[Problem]:
    """Return a problem if a bare host with AMD GPUs would get the wrong build of torch."""
    names = ["python_env_torch", "python_env_torch_backend"]
    if names[1] not in reader.variables(host) or any(reader.node(host).text(name) for name in names):
        return []
    reason = "takes PyPI's torch, which is for CUDA, and rdm_accelerator is rocm"
    hint = "set it to auto, or to the build for the node's ROCm, such as rocm6.4, or set python_env_torch"
    return [Problem(host, "an empty python_env_torch_backend", reason, hint)]


def _images(host: str, accelerator: Any, given: Mapping[str, Any]) -> Images:
    """Return a node's images, and what is wrong with the list of them."""
    profiles = given.get("images_profiles") or role_specs.default("images_profiles")
    if not isinstance(profiles, dict):
        return _NO_IMAGES  # the validation of types reports it
    image = str(given.get("container_image") or "")
    return check_images(host, given.get("images_list"), profiles, accelerator, image)


def _privileged_images(reader: HostVariables, host: str) -> dict[str, str]:
    """Return the images that run with full rights on the node, by the variable that names each."""
    variables = reader.node(host)
    if plugin_of(variables) != UPSTREAM or variables.true("sriov_allow_tag"):
        return {}
    return {"sriov_image": variables.text("sriov_image") or UPSTREAM_IMAGE}

# SPDX-License-Identifier: GPL-3.0-or-later
"""What the plan is made of, from the variables of hosts and roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network
from typing import Any, NamedTuple

from ansible.errors import AnsibleError
from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names as listed
from ansible_collections.rdm.provision.plugins.module_utils.constants import (
    ACCELERATORS,
    PLAN_FILE,
    RUNTIME_HOST,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses import address_plan
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.address_plan import AddressPlan
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.collision import (
    RAIL_SUBNETS,
    ssh_address_problems,
    subnet_problems,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.rails import (
    name_problems,
    rail_subnets,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired import vf_plan
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.cluster_plan import (
    ClusterPlan,
    plan_cluster,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.images import archives_here, listed_images
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.network import network_options
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_keys import key_problems
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.sriov_settings import (
    OWN,
    UPSTREAM,
    UPSTREAM_IMAGE,
    plugin_of,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state import DesiredState, desired_state
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.work import ROLES as WORKERS
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    Problem,
    sentences,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory import role_specs
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.cluster_variables import (
    CLUSTER_OPTIONS,
    CONNECTION_VARIABLES,
    outside,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.container_options import (
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
    unpinned,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.python_sources import (
    source_problems,
    version_problems,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.renamed_variables import (
    NEW_NAMES,
    notices,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.role_variables import (
    unknown_variables,
    variable_problems,
)
from ansible_collections.rdm.provision.rdm_sriov.functions import FunctionProblem
from ansible_collections.rdm.provision.rdm_sriov.options import wanted_network
from ansible_collections.rdm.provision.rdm_sriov.state import Network

IMAGE_VARIABLES = {"images_list", "images_profiles", "container_image"}


def planned_variables() -> set[str]:
    """Return the names of the variables that the plan depends on."""
    return {name for role, name, _ in role_specs.role_options() if role in WORKERS} | set(CLUSTER_OPTIONS)


class Draft(NamedTuple):
    """What the inventory alone decides, before anybody refuses.

    Attributes:
        plan: the plan, with defaults for what is wrong; None where there can be none.
        previous: the plan file's.
        images: of each node.
        problems: what is wrong with the inventory.
        warnings: what is odd about it.
    """

    plan: ClusterPlan | None
    previous: AddressPlan | None
    images: Mapping[str, Images]
    problems: list[Problem]
    warnings: list[str]


def plan_inventory(
    reader: HostVariables, release: list[str], unseen: Sequence[Problem] = (), keys: bool = False
) -> Draft:
    """Return the plan by the inventory alone.

    Addresses that `release` sets free may be given away again. `unseen` are the problems with variables that
    the reader does not have. With `keys`, the controller must have the ssh keys that the plan before knows.
    """
    problems: list[Problem] = list(unseen)
    variables: dict[str, dict[str, Any]] = {}
    for host in reader.hosts:
        variables[host] = {}
        present = set(reader.variables(host))
        for name in present.intersection((*CLUSTER_OPTIONS, *CONNECTION_VARIABLES)):
            try:
                variables[host][name] = reader.evaluate(host, name)
            except AnsibleError as error:
                reason = f"cannot be evaluated: {error.message}".rstrip(". ")
                problems.append(Problem(host, name, reason, "correct it in the inventory"))
    found, warnings, images = _check_roles(reader, variables)
    lost, more = outside(reader.groups)
    problems += [*lost, *found]
    warnings += more
    previous = base = None
    if reader.hosts:
        try:
            path = reader.plan_file()
            found_plan = address_plan.read_plan(str(path))
            if found_plan:
                address_plan.check_owner(found_plan, reader.hosts, str(path))
            previous = base = found_plan
            if keys:
                problems += key_problems(reader, previous, str(path))
            if release:
                base = _release(previous, release, reader.hosts)
        except PreconditionFailed as refused:
            problems += refused.problems
        except address_plan.PlanFileError as error:
            hint = "correct it, or restore it from version control"
            problems.append(Problem(None, str(path), str(error), hint))
    # The network is one for all nodes, so it is made anew only when every node says so.
    replace = all(reader.node(host).true("network_replace") for host in reader.hosts)
    plan, problems = plan_cluster(reader.masters, reader.workers, variables, base, replace, problems)
    if plan:
        problems += contradictions(reader, plan.addresses)
        subnets, found = _rail_subnets(reader, plan)
        plan = plan._replace(rails=subnets)
        problems += found
        plan.warnings.extend(warnings)
        warnings = plan.warnings
        if previous:
            kept = plan.addresses._replace(
                keys=previous.keys, vf_prefix=previous.vf_prefix, replaced=previous.replaced
            )
            plan = plan._replace(addresses=kept)
        plan = _with_functions(reader, plan, problems)
    return Draft(plan, previous, images, problems, warnings)


def _with_functions(reader: HostVariables, plan: ClusterPlan, problems: list[Problem]) -> ClusterPlan:
    """Return the plan with the virtual functions, and add to the problems what is wrong with them."""
    functions: dict[str, vf_plan.Functions] = {}
    for host in plan.addresses.nodes:
        try:
            functions[host] = vf_plan.functions_of(reader.node(host))
            if functions[host].number and plugin_of(reader.node(host)) == OWN:
                vf_plan.refuse_undone(functions[host], _sriov_network(reader, host))
        except ValueError as error:
            problems.append(Problem(host, "", str(error), "correct it in the inventory"))
    functions = {host: one for host, one in functions.items() if one.number}
    addresses = vf_plan.assigned(
        plan.addresses, functions, plan.inventory.cluster, plan.inventory.ssh_addresses
    )
    problems += vf_plan.clashes(addresses, functions)
    return plan._replace(addresses=addresses, functions=functions)


def _rail_subnets(reader: HostVariables, plan: ClusterPlan) -> tuple[list[IPv4Network], list[Problem]]:
    """Return the subnets of the further rails, and what is wrong with the rails of all nodes."""
    variables = {host: reader.node(host) for host in reader.hosts}
    listed_rails = {host: one.texts("container_rails") for host, one in variables.items()}
    problems = [
        problem
        for host, rails in listed_rails.items()
        for problem in name_problems(
            host, rails, variables[host].text("network_parent"), variables[host].text("network_driver")
        )
    ]
    counts = {host: len(rails) for host, rails in listed_rails.items()}
    given = {host: one.texts(RAIL_SUBNETS) for host, one in variables.items()}
    subnets, found = rail_subnets(plan.addresses.subnet, counts, given)
    for subnet in subnets:
        found += subnet_problems(subnet, RAIL_SUBNETS)
        found += ssh_address_problems(subnet, plan.inventory.ssh_addresses, RAIL_SUBNETS)
    problems += found
    return ([], problems) if problems else (subnets, [])


def contradictions(reader: HostVariables, addresses: AddressPlan) -> list[Problem]:
    """Return the variables of roles that say something else than the plan that all roles get.

    They are for who uses a role alone. A role would believe them, and the others the plan.
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


def _release(previous: AddressPlan | None, names: list[str], hosts: list[str]) -> AddressPlan:
    """Return the plan before without what removed nodes hold; Refused when they hold nothing."""
    if previous is None:
        reason, hint = "has no reserved address", f"there is no {PLAN_FILE} yet"
        raise PreconditionFailed([Problem(None, name, reason, hint) for name in names])
    return address_plan.release(previous, names, hosts)


def _check_roles(
    reader: HostVariables, variables: Mapping[str, Mapping[str, Any]]
) -> tuple[list[Problem], list[str], dict[str, Images]]:
    """Return the problems with variables of roles, warnings about names that nobody reads, and the images.

    `variables` are the cluster-wide ones of each host.
    """
    options = role_specs.options()
    cluster_wide = {*CLUSTER_OPTIONS, *REGISTERED}
    known = {*options, *cluster_wide, *NEW_NAMES}
    prefixes = ["rdm_", *(f"{role.name}_" for role in sorted(role_specs.ROLES.iterdir()))]
    problems: list[Problem] = []
    images: dict[str, Images] = {}
    names: set[str] = set()
    former: set[str] = set()
    bridged: list[str] = []
    odd: list[Problem] = []
    for host in reader.hosts:
        present = list(reader.variables(host))
        names.update(name for name in present if name not in known)
        former.update(NEW_NAMES.keys() & present)
        given = {}
        for name in present:
            if name in options and name not in cluster_wide:
                try:
                    given[name] = reader.evaluate(host, name)
                except AnsibleError:
                    continue  # it refers to what a later role knows, and is checked there
        if given.get("network_driver") == "bridge":
            bridged.append(host)
        wrong = variable_problems(host, given)
        untyped = {problem.value for problem in wrong}
        accelerator = variables[host].get("rdm_accelerator")
        bare = variables[host].get("rdm_runtime") == RUNTIME_HOST
        typed = {name: one for name, one in given.items() if name not in untyped}
        wrong += container_problems(host, typed if bare else {"container_hostname": host, **typed})
        odd += [] if bare else missing_over_ssh(host, typed)
        if bare and accelerator == "rocm":
            wrong += _torch_problems(reader, host)
        if bare:
            wrong += source_problems(host, given) + version_problems(host, given)
        # Where these refer to what only the node knows, they are judged when that is known.
        known_now = IMAGE_VARIABLES.intersection(present) <= set(given) and accelerator in ACCELERATORS
        # A bare host has no containers, and so no images.
        known_now = known_now and not bare
        images[host] = _images(host, accelerator, given) if known_now else Images("", False, [])
        if not wrong:
            try:
                network_options(reader.node(host))
            except ValueError as error:
                wrong.append(Problem(host, "", str(error), "correct it in the inventory"))
        problems += [] if bare else unpinned(host, _powerful(reader, host), given.get("images_list"))
        # These name the image, which the check of types cannot.
        told = any(problem.value.endswith("images_list") for problem in images[host].problems)
        problems += images[host].problems
        problems += [one for one in wrong if not (told and one.value == "images_list")]
    warnings = unknown_variables(names, known, prefixes) + notices(former) + sentences(odd)
    if bridged and len(reader.hosts) > 1:
        warnings.append(
            f"{listed(bridged)}: network_driver bridge reaches the containers of its own node only, and this "
            "cluster has several nodes: choose sriov, macvlan or ipvlan."
        )
    return problems, warnings, images


def _torch_problems(reader: HostVariables, host: str) -> list[Problem]:
    """Return what is wrong with where a bare host with AMD GPUs gets torch from."""
    names = [f"python_env_torch{one}" for one in ("", "_backend")]
    if names[1] not in reader.variables(host) or any(reader.node(host).text(name) for name in names):
        return []
    reason = "takes PyPI's torch, which is for CUDA, and rdm_accelerator is rocm"
    hint = "set it to auto, or to the build for the node's ROCm, such as rocm6.4, or set python_env_torch"
    return [Problem(host, "an empty python_env_torch_backend", reason, hint)]


def _images(host: str, accelerator: Any, given: Mapping[str, Any]) -> Images:
    """Return a node's images, and what is wrong with the list of them."""
    profiles = given.get("images_profiles") or role_specs.default("images_profiles")
    if not isinstance(profiles, dict):
        return Images("", False, [])  # which is told already
    image = str(given.get("container_image") or "")
    return check_images(host, given.get("images_list"), profiles, accelerator, image)


def _powerful(reader: HostVariables, host: str) -> dict[str, str]:
    """Return the images that run with all rights on the node, by the variable that names each."""
    variables = reader.node(host)
    plugin = plugin_of(variables)
    if not plugin or variables.true("sriov_allow_tag"):
        return {}
    used = {}
    if plugin == UPSTREAM:
        used["sriov_image"] = variables.text("sriov_image") or UPSTREAM_IMAGE
    if variables.true("sriov_install_wrapper"):
        used["sriov_wrapper_image"] = variables.text("sriov_wrapper_image")
    return used


def _sriov_network(reader: HostVariables, host: str) -> Network:
    """Return the network that the plugin is to make.

    One without containers where its options are wrong, which is told elsewhere.
    """
    try:
        return wanted_network(network_options(reader.node(host)))
    except (ValueError, FunctionProblem):
        return Network((), mode="")


def state_of_node(
    reader: HostVariables, entry: PlanEntry, plan: ClusterPlan, images: Images, trusted: bool = True
) -> DesiredState:
    """Return what one node of the cluster should have; see :func:`desired_state`."""
    node, mine = entry.node, plan.inventory.nodes[entry.node]
    variables = reader.node(node)
    if trusted:
        directory = str(reader.written(node).get("inventory_dir") or "")
        entry = entry._replace(archives=tuple(archives_here(listed_images(variables), directory)))
    return desired_state(
        variables,
        entry,
        trusted=trusted,
        cluster=plan.inventory.cluster,
        accelerator=mine.accelerator,
        slots=mine.slots,
        become=mine.become,
        image_listed=images.listed,
        functions=plan.functions.get(node, vf_plan.NONE).wanted(entry.vf_mac),
    )


def base_of_nodes(
    plan: ClusterPlan, previous: AddressPlan | None, images: Mapping[str, Images]
) -> dict[str, dict[str, Any]]:
    """Return what is known of every node of the inventory, reached or not."""
    notes = address_plan.notes(plan.addresses, previous, plan.inventory.pins)
    return {
        name: {
            "address": plan.inventory.ssh_addresses.get(name, name),
            "my_ip": plan.addresses.nodes[name],
            "note": notes[name],
            "rank": rank,
            "slots": node.slots,
            "accelerator": node.accelerator,
            "image": images[name].image,
            "vf_mac": vf_plan.first_of(plan.addresses, name),
        }
        for rank, (name, node) in enumerate(plan.inventory.nodes.items())
    }

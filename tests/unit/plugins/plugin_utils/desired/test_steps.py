"""What the roles' tasks read in addition to the desired state, from what was observed on the node."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.container import DesiredContainer
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.observed import Observed
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state import desired
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.verify import probe_arguments
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables

from tests.unit.plugins.desired_states import variables

OURS = {"rdm.provision.cluster": "rdm"}
UNIT = {"network_plugin": {"unit": True, "cluster": "rdm", "systemd": True}}


def steps(role: str, facts: dict[str, Any] | None = None, **given: Any) -> dict[str, Any]:
    """Return a role's part and steps; variables and registered results have one name space, as in Ansible."""
    given |= {} if facts is None else {"preflight_facts": {"node": facts}}
    entry = PlanEntry.of(given.get("preflight_plan") or {}, "n1")
    return desired(role, variables(given), entry, observed=Observed("n1", given))


def plugin(**found: Any) -> dict[str, Any]:
    """Return facts of a node on which the plugin's container was found."""
    return {"docker": {"containers": [{"name": "rdm-sriov-plugin", "state": "running", **found}]}}


@pytest.mark.parametrize(
    ("facts", "in_place", "replaces", "container_goes", "must_be_free"),
    [
        (None, "", False, False, True),
        ({"docker": None}, "", False, False, True),
        (plugin(labels={}), "", False, False, True),
        (plugin(labels={"rdm.provision.cluster": "other"}), "", False, False, True),
        (plugin(labels=OURS), "upstream", True, False, True),
        (plugin(labels={**OURS, "rdm.provision.plugin": "rdm-sriov"}), "rdm-sriov", False, False, False),
        (
            plugin(labels={**OURS, "rdm.provision.plugin": "rdm-sriov"}, state="exited"),
            "rdm-sriov",
            False,
            False,
            True,
        ),
        (UNIT, "rdm-sriov", False, False, True),
        ({**plugin(labels=OURS), **UNIT}, "rdm-sriov", False, True, False),
        ({"network_plugin": {"unit": True, "cluster": "other"}}, "", False, False, True),
    ],
)
def test_existing_plugin_is_kept_or_replaced(
    facts: dict[str, Any] | None, in_place: str, replaces: bool, container_goes: bool, must_be_free: bool
) -> None:
    found = steps("sriov", facts)
    assert found["in_place"] == in_place
    assert (found["replaces"], found["container_goes"]) == (replaces, container_goes)
    assert found["must_be_free"] == must_be_free


@pytest.mark.parametrize(("run_as", "goes"), [("unit", True), ("auto", False), ("container", False)])
def test_a_unit_replaces_the_container_where_the_user_chose_it(run_as: str, goes: bool) -> None:
    assert steps("sriov", plugin(labels=OURS), sriov_run_as=run_as)["container_goes"] is goes


def test_our_plugins_container_is_named_by_its_program_too() -> None:
    installed = {"__sriov_installed": {"digest": "abc"}}
    labels = {**OURS, "rdm.provision.role": "plugin"}
    assert steps("sriov", **installed)["labels"] == {
        **labels,
        "rdm.provision.plugin": "rdm-sriov",
        "rdm.provision.program": "abc",
    }
    theirs = steps("sriov", sriov_plugin="upstream", **installed)["labels"]
    assert theirs == {**labels, "rdm.provision.plugin": "upstream"}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"sriov_image": "a:1"}, ""),
        ({}, "systemd does not run here, so the plugin needs a container: set sriov_image"),
        ({"sriov_plugin": "upstream"}, "sriov_image rdma/sriov-plugin:latest names no digest"),
        ({"sriov_plugin": "upstream", "sriov_allow_tag": True}, ""),
        ({"sriov_plugin": "upstream", "preflight_plan": {}}, ""),
        ({"sriov_plugin": "upstream", "sriov_image": "a@sha256:1"}, ""),
    ],
)
def test_which_container_of_the_plugin_is_refused(given: dict[str, Any], reason: str) -> None:
    problem = steps("sriov", **given)["problem"]
    assert problem.startswith(reason)
    assert bool(problem) is bool(reason)


def test_changes_that_wait_for_a_reboot_are_listed() -> None:
    assert steps("sriov")["waiting"] == []
    assert not steps("sriov", __sriov_firmware={"skipped": True})["reboots"]
    found = steps(
        "sriov",
        __sriov_firmware={"reasons": ["the firmware"], "reboot_required": False},
        __sriov_kernel={"reasons": ["the kernel"], "reboot_required": True},
    )
    assert (found["waiting"], found["reboots"]) == (["the firmware", "the kernel"], True)


@pytest.mark.parametrize(
    ("facts", "given", "problem"),
    [
        ({}, {}, "no engine; install and start it, or set docker_engine_install to true"),
        (
            {"user": {"root": False, "name": "ann"}},
            {"docker_engine_install": True},
            "no engine; only root can install and start it, and this is user ann",
        ),
        ({"docker_state": "forbidden"}, {"docker_engine_install": True}, "no engine"),
        ({"user": {"root": True}}, {"docker_engine_install": True}, ""),
        (
            {"docker_state": "ok"},
            {},
            "Python lacks the library requests, which the modules of community.docker need; install and "
            "start it, or set docker_engine_install to true",
        ),
    ],
)
def test_reasons_not_to_install_an_engine(facts: dict[str, Any], given: dict[str, Any], problem: str) -> None:
    found = {"docker_state": "absent", "docker_error": "no engine", **facts}
    assert steps("docker_engine", found, **given)["problem"] == problem


@pytest.mark.parametrize(
    ("facts", "system", "given", "missing"),
    [
        ({"python_requests": True}, {"pkg_mgr": "apt"}, {}, ["docker.io"]),
        ({"python_requests": False}, {"pkg_mgr": "apt"}, {}, ["docker.io", "python3-requests"]),
        ({"docker_state": "stopped"}, {"pkg_mgr": "apt"}, {}, ["python3-requests"]),
        ({"python_requests": True}, {"pkg_mgr": "dnf", "distribution": "Fedora"}, {}, ["moby-engine"]),
        ({"python_requests": True}, {"pkg_mgr": "dnf", "distribution": "Rocky"}, {}, ["docker-ce"]),
        ({"python_requests": True}, {"pkg_mgr": "apt"}, {"docker_engine_packages": ["mine"]}, ["mine"]),
        (
            {"python_requests": True},
            {"pkg_mgr": "apt"},
            {"rdm_docker_socket": "/run/podman/podman.sock"},
            ["podman", "netavark", "aardvark-dns", "catatonit", "crun"],
        ),
    ],
)
def test_which_packages_are_missing(
    facts: dict[str, Any], system: dict[str, str], given: dict[str, Any], missing: list[str]
) -> None:
    found = {"docker_state": "absent", **facts}
    assert steps("docker_engine", found, ansible_facts=system, **given)["missing"] == missing


def test_the_facts_after_an_installation_count() -> None:
    gathered = {"__docker_engine_gathered": {"node": {"docker_state": "ok", "python_requests": True}}}
    before = {"docker_state": "absent", "python_requests": False}
    assert steps("docker_engine", before)["ready"] is False
    assert steps("docker_engine", before, **gathered)["ready"] is True


def test_podman_is_started_by_its_service() -> None:
    podman: dict[str, Any] = {"rdm_docker_socket": "/run/podman/podman.sock"}
    found = steps("docker_engine", **podman, __docker_engine_systemd={"stat": {"exists": True}})
    assert found["start"][-5:] == [
        "podman",
        "system",
        "service",
        "--time=0",
        "unix:///run/podman/podman.sock",
    ]
    assert (found["daemon"], found["see"]) == ("podman", "the journal of podman.socket")
    assert steps("docker_engine")["see"] == "/var/log/rdm-dockerd.log"


ARCHIVES: list[dict[str, Any]] = [
    {"name": name, "source": "archive", "path": f"/{name}.tar"} for name in ("a", "b")
]
PULLED = {"name": "c", "source": "registry"}


def inspection(*problems: str) -> dict[str, Any]:
    """Return the registered inspection of the archives, all of which the node needs."""
    pairs = zip(ARCHIVES, problems, strict=False)
    return {"results": [{"item": {**item}, "problem": problem, "needed": True} for item, problem in pairs]}


def test_images_are_sorted_by_their_source() -> None:
    built = {"name": "d", "source": "build"}
    found = steps("images", images_list=[ARCHIVES[0], PULLED, built])
    assert (found["archive"], found["registry"], found["build"]) == ([ARCHIVES[0]], [PULLED], [built])


@pytest.mark.parametrize("image", [{"name": "d"}, {"name": "d", "source": "tape"}])
def test_an_image_without_a_known_source_is_refused_and_not_left_out(image: dict[str, Any]) -> None:
    """Entries of images_profiles are not in argument_specs."""
    with pytest.raises(ValueError, match=r"^image d has the source (None|'tape'): choose one of registry"):
        steps("images", images_profiles={"cpu": [image]}, rdm_accelerator="cpu")


@pytest.mark.parametrize(
    ("given", "uninspected", "others"),
    [
        ({"images_inspection": inspection("", "")}, False, False),
        ({"images_inspection": inspection("")}, True, True),
        ({"images_inspection": {}}, True, True),
        ({"images_inspection": inspection("", ""), "images_mirror": ["a:1"]}, False, True),
        ({"images_inspection": inspection("", ""), "images_list": [*ARCHIVES, PULLED]}, False, True),
    ],
)
def test_role_does_what_preflight_has_not_done(
    given: dict[str, Any], uninspected: bool, others: bool
) -> None:
    found = steps("images", {"docker": {}}, preflight_plan={}, **{"images_list": ARCHIVES, **given})
    assert (found["uninspected"], found["others"]) == (uninspected, others)


def test_without_a_plan_every_archive_is_inspected() -> None:
    assert steps("images", images_list=ARCHIVES, images_inspection=inspection("", ""))["uninspected"]


def test_mirrors_of_an_earlier_run_are_removed() -> None:
    assert not steps("images", {"docker": None})["mirrored"]
    assert steps("images", {"docker": {"added_mirrors": ["a:1"]}})["mirrored"]


@pytest.mark.parametrize(
    ("registered", "to_load"),
    [
        (inspection("", ""), ARCHIVES),
        (inspection("", "broken"), ARCHIVES[1:]),  # alone, so that it fails before others are loaded
        ({"results": [{"item": ARCHIVES[0], "problem": "", "needed": False}]}, []),
        ({"results": [{"item": ARCHIVES[0], "images": []}]}, []),  # loaded, not inspected
    ],
)
def test_which_archives_are_loaded(registered: dict[str, Any], to_load: list[dict[str, str]]) -> None:
    assert steps("images", images_list=ARCHIVES, images_inspection=registered)["to_load"] == to_load


def test_an_archive_that_other_nodes_sent_is_kept_for_its_other_images() -> None:
    sent = {"nodes": {"n1": {"/a.tar": {"whole": True}}, "n2": {}}, "indexes": {"/a.tar": "i", "/b.tar": "j"}}
    again = {"item": {**ARCHIVES[0], "name": "c"}, "problem": "", "needed": True}
    registered = {"results": [*inspection("", "")["results"], again]}
    found = steps("images", images_inspection=registered, __images_brought=sent)["to_load"]
    known = {"whole": True, "index": "i"}
    assert [one.get("brought") for one in found] == [{**known, "keep": True}, None, {**known, "keep": False}]


@pytest.mark.parametrize(
    ("facts", "lacking"),
    [
        ({}, []),  # unknown
        ({"docker": {"images": []}}, ["c", "c@sha256:1", "d:1"]),
        ({"docker": {"images": [{"tags": ["c:latest", "d:1"]}]}}, ["c@sha256:1", "d:1"]),
    ],
)
def test_which_images_of_registries_the_engine_lacks(facts: dict[str, Any], lacking: list[str]) -> None:
    always = {"name": "d:1", "source": "registry", "pull": "always"}
    listed = [*ARCHIVES, PULLED, {**PULLED, "name": "c@sha256:1"}, always]
    found = steps("images", {"architecture": "x86_64", **facts}, images_list=listed)["lacking"]
    assert (found["architecture"], [one["name"] for one in found["images"]]) == ("x86_64", lacking)


def test_an_image_of_a_registry_that_another_node_sent_is_loaded() -> None:
    here = {"c:latest": {"copy": "/cache/c.tar"}}
    sent = {
        "nodes": {"n1": here},
        "indexes": {"c:latest": "i"},
        "pulled": {"n1": ["d:1"], "n2": ["c:latest"]},
    }
    listed = [PULLED, {**PULLED, "name": "docker.io/library/d:1"}, {**PULLED, "name": "e"}]
    found = steps("images", images_list=listed, __images_shared=sent)
    brought = {"copy": "/cache/c.tar", "index": "i", "keep": False}
    assert found["shared"] == [{**PULLED, "path": "c:latest", "brought": brought}]
    assert found["pulled"] == ["docker.io/library/d:1"]


@pytest.mark.parametrize(
    ("images", "distribution", "elsewhere"),
    [
        (ARCHIVES, "peers", ""),
        ([PULLED], "auto", "elsewhere"),
        ([PULLED], "mirror", "elsewhere"),
        ([PULLED], "peers", "shared"),
        ([{"name": "d", "source": "build"}], "peers", "elsewhere"),
    ],
)
def test_where_images_come_from_that_are_not_archives(
    images: list[dict[str, Any]], distribution: str, elsewhere: str
) -> None:
    found = steps("images", images_list=images, images_distribution=distribution)
    assert found["elsewhere"] == elsewhere


def test_a_cluster_has_an_image_that_is_listed_or_found() -> None:
    assert steps("images", rdm_accelerator="cpu")["imageless"]
    assert not steps("images", images_list=[PULLED])["imageless"]
    assert not steps("images", preflight_plan={"nodes": {"n1": {"image": "found"}}})["imageless"]


PLAN = {
    "subnet": "10.1.0.0/24",
    "gateway": "10.1.0.1",
    "master_addr": "10.1.0.100",
    "address_map": "n1 10.1.0.101\n",
    "hostfile": "10.1.0.100 slots=8\n",
    "nodes": {"n1": {"my_ip": "10.1.0.101", "image": "a:1"}},
}


def container(facts: dict[str, Any] | None = None, **given: Any) -> dict[str, Any]:
    return steps("container", facts, preflight_plan=PLAN, **given)


def test_the_module_gets_the_part_without_files() -> None:
    found = container()
    assert set(found["settings"]) == set(DesiredContainer._fields) - {"files"}
    assert found["settings"]["image"] == "a:1"


def test_files_of_other_roles_are_written_in_the_same_call() -> None:
    own, more = container(), container(__container_in_same_call=["my_ip", "hostfile", "state_file"])
    assert own["written"]["files"] == own["files"]["files"]
    parts = [own["files"], *(steps(role, preflight_plan=PLAN) for role in ("my_ip", "hostfile"))]
    assert more["written"]["owner_markers"] == [one["owner_marker"] for one in parts]
    for name in ("directories", "files", "blocks", "repairs"):
        assert more["written"][name] == [item for one in parts for item in one[name]]


@pytest.mark.parametrize(
    ("facts", "given", "has_jobs"),
    [
        (None, {}, True),  # unknown
        (None, {"container_protect_jobs": False}, False),
        ({"docker": None}, {}, False),
        ({"docker": {"containers": [{"name": "rdm", "jobs": ["j"]}]}}, {}, True),
        ({"docker": {"containers": [{"name": "rdm", "jobs": []}, {"name": "x", "jobs": ["j"]}]}}, {}, False),
    ],
)
def test_jobs_are_protected_where_they_may_run(
    facts: dict[str, Any] | None, given: dict[str, Any], has_jobs: bool
) -> None:
    assert container(facts, **given)["has_jobs"] is has_jobs


@pytest.mark.parametrize(
    ("store", "check_mode", "tags", "comes"),
    [
        ("classic", True, ["b:1", "a:1"], "sha256:1"),
        ("classic", False, ["a:1"], ""),
        ("containerd", True, ["a:1"], ""),
        ("classic", True, ["b:1"], ""),
    ],
)
def test_a_check_knows_the_image_that_would_be_loaded(
    store: str, check_mode: bool, tags: list[str], comes: str
) -> None:
    loaded = {"images": [{"tags": tags, "digest": "sha256:1"}]}
    inspected = {"problem": "", "images": [{"tags": ["a:1"], "digest": "sha256:0"}]}
    found = container(
        {"docker": {"image_store": store}},
        ansible_check_mode=check_mode,
        images_inspection={"results": [inspected, {"skipped": True}, loaded]},
    )
    assert found["image_comes"] == comes


class HostVars(dict[str, dict[str, Any]]):
    """The variables of all hosts, as Ansible has them."""

    raw_get = dict.__getitem__


def python_env(node: str = "n1", play: str = "n1 n2", **given: Any) -> dict[str, Any]:
    """Return the part and steps of a node of a cluster of n1 and n2; each reported an environment in use."""
    made = {"__python_env_made": {"used": [f"/env-{node}", "/env"]}}
    given = {
        **made,
        "python_env_state": "present",
        "groups": {"master": ["n1"], "workers": ["n2"]},
        "ansible_play_hosts": play.split(),
        "ansible_play_hosts_all": play.split(),
        "hostvars": HostVars({"n1": made, "n2": {"__python_env_made": {"used": ["/env", "/env-n2"]}}}),
        **given,
    }
    return desired("python_env", variables(given), PlanEntry(node), observed=Observed(node, given))


def test_directories_of_an_environment_follow_the_clusters() -> None:
    found = python_env(rdm_config_dir="/c", rdm_cluster="other")
    assert (found["directory"], found["jobs"]) == ("/c/python", "/c/jobs")
    assert found["owner_marker"] == {"path": "/c/cluster", "name": "other"}
    assert python_env()["directory"] == "~/.rdm/%n/python"
    assert python_env(python_env_directory="/e", job_directory="/j")["jobs"] == "/j"


@pytest.mark.parametrize(
    ("given", "state"),
    [
        ({"python_env_activate": True}, "present"),
        ({}, "absent"),
        ({"python_env_activate": True, "python_env_state": "absent"}, "absent"),
    ],
)
def test_an_environment_is_activated_if_the_user_chose_that(given: dict[str, Any], state: str) -> None:
    found = python_env(**given)
    assert {one["state"] for one in (*found["files"], *found["blocks"])} == {state}


@pytest.mark.parametrize(
    ("shared", "node", "play", "makes", "for_all", "protect"),
    [
        (False, "n2", "n1 n2", True, True, []),
        (False, "n2", "n2", True, True, []),
        (True, "n1", "n1 n2", True, True, ["/env-n1", "/env", "/env-n2"]),
        (True, "n2", "n1 n2", False, True, []),
        (True, "n1", "n1", True, False, ["/env-n1", "/env"]),
    ],
)
def test_the_first_node_makes_a_shared_environment(
    shared: bool, node: str, play: str, makes: bool, for_all: bool, protect: list[str]
) -> None:
    found = python_env(node, play, python_env_shared=shared)
    assert (found["makes"], found["for_all"], found["protect"]) == (makes, for_all, protect)


@pytest.mark.parametrize(
    ("shared", "node", "play", "makes", "removes"),
    [
        (False, "n2", "n1 n2", True, True),
        (True, "n1", "n1 n2", True, True),
        (True, "n2", "n1 n2", False, False),
        (True, "n1", "n1", True, False),  # n2 may use them
    ],
)
def test_shared_helpers_of_megatron_are_removed_with_the_whole_cluster(
    shared: bool, node: str, play: str, makes: bool, removes: bool
) -> None:
    found = python_env(node, play, python_env_megatron_shared=shared)
    assert (found["makes_megatron"], found["removes_megatron"]) == (makes, removes)


LINES = "".join(f"n{number} 10.0.0.{number}\n" for number in range(1, 9))
PLANNED = {"subnet": "10.0.0.0/24", "address_map": LINES}


def ssh_config(entry: PlanEntry, **given: Any) -> dict[str, Any]:
    """Return the part and steps of a node."""
    given |= {"ansible_play_hosts_all": [f"n{number}" for number in range(1, 9)]}
    return desired("ssh_config", variables(given), entry, observed=Observed(entry.node, given))


def test_ssh_files_have_the_planned_content() -> None:
    planned = {"config": "a", "known_hosts": "b", "controller_config": "c"}
    entry = PlanEntry.of(PLANNED, "n1")._replace(keys={"authorized_keys": "ssh-ed25519 AAAA us\n"})
    found = ssh_config(entry, __ssh_config_plan=planned, rdm_cluster="blue")
    directory = "~/.ssh/rdm-provision/blue"
    paths = [f"{directory}/config", f"{directory}/known_hosts"]
    assert [(one["path"], one["content"]) for one in found["files"]] == list(zip(paths, "ab", strict=True))
    assert [one["content"] for one in found["controller_files"]] == ["c", "b"]
    include, login = found["blocks"]
    assert found["controller_blocks"] == [include]
    assert (include["content"], include["insert"]) == (f"Include {directory}/config", "start")
    assert login["content"] == 'from="10.0.0.0/24",restrict,pty ssh-ed25519 AAAA us\n'
    assert found["identity"] == "~/.rdm/%n/ssh/id_ed25519"
    assert found["directories"] == [{"path": "~/.ssh/rdm-provision"}, {"path": directory}]


def test_ssh_config_removes_what_it_wrote() -> None:
    found = ssh_config(PlanEntry.of(PLANNED, "n1"))
    goes = desired("ssh_config", NodeVariables((), str), PlanEntry("n1"), absent=True)
    assert goes["owner_marker"] == found["owner_marker"]
    for kind in ("directories", "files"):
        assert [one["path"] for one in goes[kind]] == [one["path"] for one in found[kind]]
        assert {one["state"] for one in goes[kind]} == {"absent"}
    names = [[(one["path"], one["name"]) for one in each["blocks"]] for each in (goes, found)]
    assert names[0] == names[1]


@pytest.mark.parametrize(
    ("given", "tests"),
    [({}, True), ({"ssh_config_check": False}, False), ({"ansible_check_mode": True}, False)],
)
def test_logins_are_tested_unless_the_user_chose_otherwise(given: dict[str, Any], tests: bool) -> None:
    found = ssh_config(PlanEntry.of(PLANNED, "n1"), **given)
    assert (found["tests_logins"], found["peers"]) == (tests, LINES)


def verify(node: str = "n2", play: str = "n1 n2", /, **given: Any) -> dict[str, Any]:
    """Return the part and steps of a node."""
    given = {
        "ansible_play_hosts": play.split(),
        "ansible_play_hosts_all": play.split(),
        "verify_nodes": LINES,
        **given,
    }
    entry = PlanEntry.of(given.get("preflight_plan") or {}, node)
    return desired("verify", variables(given), entry, observed=Observed(node, given))


def test_rails_are_those_of_the_plan_unless_the_user_gives_others() -> None:
    rails = {"preflight_plan": {**PLANNED, "rails": ["10.0.1.0/24"]}, "container_rails": "ib0,ib1"}
    both = {"ib0": "10.0.0.0/24", "ib1": "10.0.1.0/24"}
    found = verify(**rails)
    assert (found["rails"], found["probe"]["rails"], found["timeout"]) == (both, both, 2 * 10 + 60)
    assert verify(**rails, verify_rails={"a": "b"})["rails"] == {"a": "b"}
    found = verify(preflight_plan=PLANNED, container_rails="ib0")
    assert (found["rails"], found["timeout"]) == ({}, 10 + 60)


MADE = {"container_name": "c", "container_sshd": False, "container_ssh_port": 2222}


@pytest.mark.parametrize(
    ("given", "probe"),
    [
        ({}, ("rdm", True, 22)),
        (MADE, ("c", False, 2222)),
        ({**MADE, "verify_container": "d", "verify_ssh": True, "verify_ssh_port": 2}, ("d", True, 2)),
    ],
)
def test_containers_are_measured_as_they_are_made_unless_the_user_says_otherwise(
    given: dict[str, Any], probe: tuple[str, bool, int]
) -> None:
    found = verify(**given)["probe"]
    assert (found["container"], found["ssh"], found["ssh_port"]) == probe
    assert found["rails"] == {}


def test_the_nodes_are_those_of_the_plan_unless_the_user_gives_others() -> None:
    plan = {"preflight_plan": {**PLANNED, "address_map": "n1 10.0.0.1\n"}}
    assert verify(**plan, verify_nodes="")["nodes"] == "n1 10.0.0.1\n"
    assert verify(**plan)["nodes"] == LINES


def test_measurement_depends_on_the_gathered_values() -> None:
    found = set(verify()["depends_on"])
    assert {"container_name", "container_rails", "verify_all_pairs", "verify_state"} <= found
    assert {"verify_timeout", "verify_patience"} <= found
    # Only for the evaluation, which is made once.
    assert not {"rdm_cluster", "verify_slow_factor", "verify_rdma_rounds"} & found


@pytest.mark.parametrize(
    ("given", "connections"),
    [
        ({}, []),  # as many as preflight_threaded_above have tasks of their own
        ({"preflight_threaded_above": 1}, ["ssh"]),
        ({"preflight_threaded_above": 1, "preflight_threaded_connections": ["local"]}, ["local"]),
        ({"preflight_threaded_above": 1, "verify_state": "absent"}, []),
    ],
)
def test_one_task_measures_from_many_nodes(given: dict[str, Any], connections: list[str]) -> None:
    assert verify(**given)["connections"] == connections


def test_nodes_not_measured_by_one_task_get_their_own_tasks() -> None:
    assert verify()["rest"] == []
    found = verify(__verify_probe_all={"plays": {"lost": ["n3", "n1"], "others": ["n2", "n1"]}})
    assert found["rest"] == ["n3", "n1", "n2"]


def test_a_later_play_has_the_run_of_the_first() -> None:
    assert verify()["run"] == ["n1", "n2"]
    assert verify(__verify_hosts=["n1", "n2", "n3"])["run"] == ["n1", "n2", "n3"]


def test_arguments_of_all_nodes_are_those_of_each() -> None:
    sample = {"verify_sample_peers": 2, "verify_sample_above": 4}
    found = probe_arguments(verify("n2", "n2 n7", **sample))
    assert found == {
        node: {"node": node, "nodes": verify(node, "n2 n7", **sample)["peers"]} for node in ("n2", "n7")
    }
    assert len(found["n2"]["nodes"].splitlines()) < 8
    assert verify(**sample, verify_all_pairs=True)["peers"] == verify()["peers"] == LINES


def test_work_that_is_pending_counts_only_in_check_mode() -> None:
    work = {"preflight_work": {"why": {"n2": {"images": "new"}}}}
    assert verify(**work)["work"] == {}
    assert verify(**work, ansible_check_mode=True)["work"] == {"n2": {"images": "new"}}


def test_the_first_node_reports_the_progress_of_all_in_rdma() -> None:
    plan = {"__verify_rdma_plan": {"parts": {"n1": {"a": 1}, "n2": {"a": 2}}, "first": "n1", "limit": 61.0}}
    assert verify("n1", **plan)["rdma"] == {
        "address": "10.0.0.1",
        "part": {"a": 1},
        "wait": 5,
        "tries": 24,
        "before": {},
    }
    assert (verify("n2", **plan)["rdma"]["part"], verify("n2", **plan)["rdma"]["wait"]) == ({"a": 2}, 61.0)
    assert verify("n3", **plan)["rdma"]["part"] == {}
    assert verify("other", **plan)["rdma"]["address"] == ""


def test_results_of_earlier_rails_are_kept() -> None:
    before: dict[str, Any] = {"verify_rdma_result": {"rdma": {"rails": {"ib0": {}}}}}
    assert verify(**before, __verify_rail_index=0)["rdma"]["before"] == {}
    assert verify(**before, __verify_rail_index=1)["rdma"]["before"] == {"ib0": {}}


@pytest.mark.parametrize(
    ("play", "size", "problem"),
    [
        ("n1 n2", "256M", ""),
        ("n1", "256M", "an all-reduce takes at least two nodes, and this run has only n1"),
        ("n1 n2", "1k", "verify_collective_max_size 1k is no size: give one from 1M up, such as 256M or 1G"),
    ],
)
def test_which_all_reduce_is_refused(play: str, size: str, problem: str) -> None:
    assert verify("n1", play, verify_collective_max_size=size)["collective"]["problem"] == problem


def test_an_all_reduce_is_a_job_with_its_own_program() -> None:
    kind, program = verify(verify_collective_launcher="mpirun")["collective"]["overrides"]
    assert kind == "launcher.kind=mpirun"
    key, _, words = program.partition("=")
    expected = ["-m", "rdm_trainer.tools.all_reduce", "--max-size", "1G", "--time-limit", "120.0"]
    assert (key, json.loads(words)) == ("launcher.program", expected)

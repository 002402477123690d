"""The checks of one node, and of a bare host: each problem names the value and what would work."""

from __future__ import annotations

from ansible_collections.rdm.provision.plugins.plugin_utils.checks.node import (
    check_host,
    check_node,
    with_strays,
)

from tests.unit.plugins.desired_states import wanted
from tests.unit.plugins.node_reports import SOUND, container, report
from tests.unit.plugins.plugin_utils.checks.findings import (
    problems,
    warnings,
)


def test_sound_node_passes_without_a_word() -> None:
    assert check_node(wanted(), report()) == ([], [])


def test_a_line_of_others_by_which_shells_have_another_address_is_named() -> None:
    stray = {
        "file": "/home/u/.bashrc",
        "line": 12,
        "value": "10.0.0.9",
        "shells": ["login shells", "zsh"],
        "plain": False,
    }
    same = {**stray, "value": wanted().my_ip}
    (warning,) = warnings(report(strays=[stray, same]))
    for words in (
        "/home/u/.bashrc:12",
        "10.0.0.9",
        wanted().my_ip,
        "login shells and in zsh",
        "remove that line",
    ):
        assert words in warning
    on_host = check_host(wanted(), report(strays=[stray]))
    assert [one.value for one in on_host.warnings] == ["/home/u/.bashrc:12"]
    assert "my_ip_repair_strays" not in warning
    (warning,) = warnings(report(strays=[{**stray, "plain": True}]))
    assert "remove that line, or set my_ip_repair_strays: true, which comments it out" in warning


def test_a_line_that_is_repaired_is_work_and_no_warning() -> None:
    stray = {"file": "/home/u/.bashrc", "line": 2, "value": "10.0.0.9", "shells": ["zsh"], "plain": True}
    more = {**stray, "line": 9, "plain": False}
    found = report(strays=[stray, more, {**stray, "value": wanted().my_ip}])
    (warning,) = warnings(found, my_ip_repair_strays=True)
    assert "/home/u/.bashrc:9" in warning
    found["work"] = {"my_ip": ["MY_IP in ~/.bashrc has changed"], "hostfile": ["it is missing"]}
    assert with_strays(found, "") == found["work"]
    assert with_strays(found, wanted().my_ip) == {
        "my_ip": [
            "MY_IP in ~/.bashrc has changed",
            f"/home/u/.bashrc:2 sets MY_IP to 10.0.0.9, which wins over {wanted().my_ip} in zsh",
        ],
        "hostfile": ["it is missing"],
    }


def test_a_login_shell_whose_commands_of_ssh_lack_my_ip_is_a_warning() -> None:
    user = {**SOUND["user"], "name": "ops", "shell": "/bin/dash"}
    [sentence] = warnings(report(user=user), become=False)
    assert sentence.startswith("node1: The login shell of ops, /bin/dash, reads no file for")
    assert warnings(report(user=user)) == [], "PAM gives it to every shell"
    assert warnings(report(user={**user, "shell": "/usr/bin/fish"}), become=False) == []


def test_every_problem_is_reported_at_once() -> None:
    found = report(python_requests=False, docker_version="19.03", docker_containers=[container("rdm")])
    assert (
        len(problems(found, rdm_accelerator="rocm", network_parent="ib7", images_min_free_bytes=2**50)) == 6
    )


def test_a_bare_host_needs_its_address_and_no_engine() -> None:
    found = report(docker=None)
    assert check_host(wanted(my_ip="10.0.0.1"), found) == ([], [])
    [problem] = check_host(wanted(my_ip="10.0.0.2"), found).problems
    assert problem.sentence == (
        "my_ip 10.0.0.2 is no address of the host, which has 10.0.0.1, 172.17.0.1: "
        "set my_ip to the one that it has on the fabric"
    )

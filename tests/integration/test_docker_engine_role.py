"""The role docker_engine: a working engine is left alone; a missing one is an error, or is started."""

from __future__ import annotations

from pathlib import Path

from tests.integration.engine import Engine
from tests.integration.plays import run_plays

ROLE = "rdm.provision.docker_engine"

# A machine without systemd and without a running engine: separate namespaces, in which /run, the engine's
# data and the logs are empty. Its processes end with it.
BARE_MACHINE = [
    *("unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c"),
    'for d in /run /var/lib/docker /var/log; do mount -t tmpfs rdm-test "$d" || exit; done; "$@"; exit $?',
    "bare-machine",
]


def test_working_engine_is_not_changed(engine: Engine, tmp_path: Path) -> None:
    for flags in ([], ["--check"]):
        played = run_plays(tmp_path, [{"roles": [ROLE]}], *flags, docker_host=f"unix://{engine.socket}")
        assert (played.status, played.changes) == (0, [0]), played.output


def test_nothing_is_queried_after_preflight(tmp_path: Path) -> None:
    """The socket does not exist, so a query would fail."""
    seen = {"node": {"docker_state": "ok", "docker_error": "", "python_requests": True}}
    nowhere = f"unix://{tmp_path}/none.sock"
    played = run_plays(tmp_path, [{"roles": [ROLE]}], docker_host=nowhere, preflight_facts=seen)
    assert (played.status, played.changes) == (0, [0]), played.output


def test_a_missing_engine_is_not_installed_unasked(tmp_path: Path) -> None:
    played = run_plays(tmp_path, [{"roles": [ROLE]}], docker_host=f"unix://{tmp_path}/none.sock")
    assert (played.status, played.changes) == (2, [0])
    assert f"node1: no Docker Engine answers at {tmp_path}/none.sock" in played.output
    assert "install and start it, or set docker_engine_install to true." in played.output


def test_check_mode_reports_the_installation_and_ends(tmp_path: Path) -> None:
    needs_an_engine = {"name": "Needs an engine", "ansible.builtin.fail": {}}
    played = run_plays(
        tmp_path,
        [{"roles": [ROLE], "tasks": [needs_an_engine]}],
        "--check",
        docker_host=f"unix://{tmp_path}/none.sock",
        docker_engine_install=True,
    )
    assert (played.status, played.changes) == (0, [1]), played.output
    assert "a run would install and start it" in played.output


def test_starts_and_stops_an_engine_where_systemd_does_not_run(tmp_path: Path) -> None:
    start = {"roles": [{"role": ROLE, "docker_engine_install": True}]}
    stop = {"roles": [{"role": ROLE, "docker_engine_state": "absent"}]}
    played = run_plays(tmp_path, [start, start, stop, stop, start, stop], inside=BARE_MACHINE)
    assert played.status == 0, played.output
    assert played.changes == [1, 0, 2, 0, 1, 2], "the daemon, and when it is stopped its log as well"

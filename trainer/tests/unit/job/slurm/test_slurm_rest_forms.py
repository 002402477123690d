# SPDX-License-Identifier: GPL-3.0-or-later
"""The requests and replies of slurmrestd, and the token. test_slurm_rest.py uses a real server."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import pwd
from pathlib import Path
from typing import Any, NoReturn

import pytest

from rdm_core import config as configuration
from rdm_core.config.job import SlurmConfig
from rdm_job.slurm import rest_forms, token
from rdm_job.slurm.commands import SlurmError
from rdm_job.slurm.script import script

ALL: dict[str, Any] = {
    "nodes": {"hgx": 1, "gpu2": 7},
    "gres": {"hgx": "gpu:hgx:4"},
    "gpus_per_node": {"gpu2": "a10:4"},
    "cpus": "14",
    "mem": "64G",
    "time": "1-00:00:30",
    "account": "physics",
    "qos": "normal",
    "nodelist": {"gpu2": "n[060-067]"},
    "exclude": {"gpu2": "n061,n062"},
    "constraint": "ib&nvme",
    "hint": "nomultithread",
}
NO_OPTIONS = frozenset(
    {
        *("partition", "signal"),  # `nodes` names the partitions; `signal` has tests of its own
        *("interface", "step", "mpi", "rest", "rest_jwt"),
        *("image", "image_sha256", "container", "mounts", "image_program", "reload_container"),
    }
)
"""The keys of ``launcher.slurm`` that are not options of sbatch in ``ALL``."""
NOW = 1795400000.0


def sent(api: int, **slurm: Any) -> dict[str, Any]:
    config = configuration.from_dict({"launcher": {"kind": "slurm", "slurm": slurm}})
    text = script("gpt", "/jobs/gpt", "/env/bin/python", config)
    return rest_forms.submission(text, "/jobs/gpt", {"PATH": "/bin"}, api)


def jwt(**claims: Any) -> str:
    parts = (json.dumps(part).encode() for part in ({"alg": "HS256"}, claims))
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), "c2lnbmVk"])


def test_every_key_is_tested_or_no_slurm_option() -> None:
    assert {field.name for field in dataclasses.fields(SlurmConfig)} - NO_OPTIONS == set(ALL)


def test_a_script_is_one_request_in_the_form_of_22_05() -> None:
    request = sent(38, **ALL, signal=0)
    first, second = request["jobs"]
    assert request["script"].startswith("#!/bin/bash\n")
    assert first == {
        "name": "gpt",
        "current_working_directory": "/jobs/gpt",
        "environment": {"PATH": "/bin"},
        "standard_output": "slurm.out",
        "open_mode": "append",
        "requeue": False,
        "nodes": [1, 1],
        "tasks_per_node": 1,
        "tasks": 1,
        "partition": "hgx",
        "gres": "gpu:hgx:4",
        "cpus_per_task": 14,
        "memory_per_node": 65536,
        "constraints": "ib&nvme",
        "time_limit": 1441,
        "account": "physics",
        "qos": "normal",
        "threads_per_core": 1,
    }
    assert (second["nodes"], second["tasks"], second["gpus_per_node"]) == ([7, 7], 7, "a10:4")
    assert (second["nodelist"], second["exclude_nodes"]) == ("n[060-067]", "n061,n062")


@pytest.mark.parametrize("api", [40, 41, 42])
def test_a_script_is_one_request_in_the_later_form(api: int) -> None:
    request = sent(api, **ALL)
    first, second = request["jobs"]
    assert list(request) == ["jobs"]
    assert first["script"].startswith("#!/bin/bash\n")
    assert first["environment"] == ["PATH=/bin"]
    assert (first["nodes"], second["nodes"], second["tasks"]) == ("1", "7", 7)
    assert (first["tres_per_node"], second["tres_per_node"]) == ("gres/gpu:hgx:4", "gres/gpu:a10:4")
    assert first["time_limit"] == {"set": True, "infinite": False, "number": 1441}
    assert first["memory_per_node"]["number"] == 65536
    assert (first["kill_warning_flags"], first["kill_warning_signal"]) == (["BATCH_JOB"], "USR1")
    assert first["kill_warning_delay"]["number"] == 300
    assert (first["threads_per_core"], second["threads_per_core"]) == (1, 1)
    assert (second["required_nodes"], second["excluded_nodes"]) == (["n[060-067]"], ["n061,n062"])


def test_task_counts_of_components_do_not_leak_into_srun() -> None:
    line = "unset SLURM_NTASKS SLURM_NPROCS"
    text = sent(42, **ALL, rest="http://localhost:6820")["jobs"][0]["script"].splitlines()
    started = next(number for number, words in enumerate(text) if words.startswith("srun "))
    assert text.index(line) < started
    assert line not in sent(42, **ALL)["jobs"][0]["script"]


def test_gres_of_two_options_are_one_list() -> None:
    request = sent(42, gres="nvme:1", gpus_per_node="4")
    assert request["job"]["tres_per_node"] == "gres/nvme:1,gres/gpu:4"


def test_unsupported_option_is_named() -> None:
    with pytest.raises(ValueError, match=r"slurmrestd of v0\.0\.42 is not known to take sbatch's --wckey"):
        rest_forms.submission("#!/bin/bash\n#SBATCH --wckey=mine\n", "/", {}, 42)
    with pytest.raises(ValueError, match=r"takes no launcher\.slurm\.hint=memory_bound, only nomultithread"):
        sent(42, hint="memory_bound")
    with pytest.raises(ValueError, match=r"set launcher\.slurm\.signal=0"):
        sent(38)


def test_newest_common_api_version_is_chosen() -> None:
    paths: dict[str, Any] = {f"/slurm/v0.0.{number}/job/submit": {} for number in (39, 40, 41, 44)}
    specification = json.dumps({"paths": paths})
    assert rest_forms.newest(specification) == 41
    assert rest_forms.newest(specification.replace("/", "\\/")) == 41
    assert rest_forms.newest('{"paths": {"/slurm/v0.0.37/job/submit": {}}}') is None


def test_an_error_is_reported_with_its_explanation() -> None:
    both = {"description": "Unable to query jobs", "error": "Unable to contact slurm controller."}
    assert rest_forms.error_text({"errors": [both, both]}) == (
        "Unable to query jobs: Unable to contact slurm controller"
    )
    assert rest_forms.error_text({"errors": [{"error_number": 7}]}) == "no reason given"
    assert rest_forms.error_text({"errors": [], "jobs": []}) == ""


def test_partitions_and_nodes_of_the_later_form() -> None:
    partition = {
        "name": "gpu2",
        "nodes": {"total": 2},
        "accounts": {"allowed": "physics,chemistry", "deny": ""},
        "maximums": {
            "time": {"set": True, "infinite": False, "number": 1440},
            "nodes": {"set": False, "infinite": True, "number": 0},
        },
        "minimums": {"nodes": 2},
        "partition": {"state": ["UP"]},
    }
    (one,) = rest_forms.partitions({"partitions": [partition]})
    assert (one.is_default, one.state, one.nodes, one.most_nodes) == (True, "UP", 2, None)
    assert one.least_nodes == 2
    assert (one.most_seconds, one.accounts, one.denied) == (86400, ("physics", "chemistry"), ())
    two = rest_forms.partitions({"partitions": [partition, {**partition, "name": "other"}]})
    assert [part.is_default for part in two] == [None, None]
    node = {
        "name": "t2",
        "partitions": ["gpu2"],
        "gres": "gpu:a10:4(S:0-1)",
        "features": ["ib", "nvme"],
        "cpus": 16,
        "effective_cpus": 14,
        "real_memory": 2000,
    }
    (found,) = rest_forms.nodes({"nodes": [node]})
    assert (found.gres, found.features, found.cpus) == ({"gpu:a10": 4}, ("ib", "nvme"), 14)


def test_a_partition_of_22_05() -> None:
    # Its specification has underscores in the last key, but the server sends blanks.
    entry = {"name": "wide", "flags": ["default"], "total_nodes": 2, "state": "UP", "min nodes per job": 2}
    (one,) = rest_forms.partitions({"partitions": [entry]})
    assert (one.is_default, one.nodes, one.least_nodes, one.most_nodes) == (True, 2, 2, None)
    two = rest_forms.partitions({"partitions": [entry, {**entry, "name": "other", "flags": []}]})
    assert [part.is_default for part in two] == [True, False]


def test_only_the_users_own_accounts_are_read() -> None:
    associations = [{"account": "physics", "user": "me"}, {"account": "root", "user": "root"}]
    assert rest_forms.accounts({"associations": associations}, "me") == ["physics"]


def test_token_names_its_user_and_expiry() -> None:
    text = jwt(sun="me", exp=NOW + 1)
    found = token.of(f"SLURM_JWT={text}\n", "/home/me/.slurm.jwt", NOW)
    assert (found.user, found.text) == ("me", text)
    assert text not in repr(found)
    with pytest.raises(SlurmError, match=r"in /home/me/\.slurm\.jwt expired at .*scontrol token"):
        token.of(jwt(sun="me", exp=NOW), "/home/me/.slurm.jwt", NOW)


@pytest.mark.parametrize("text", ["", "secret", "a.b", "a.b.c\r\nX-SLURM-USER-NAME: root", "a.b.c d"])
def test_invalid_token_is_not_printed(text: str) -> None:
    with pytest.raises(SlurmError) as caught:
        token.of(text, "FILE", NOW)
    assert str(caught.value) == (
        "What FILE holds is no token for slurmrestd (a JWT): make another with scontrol token."
    )


def test_user_unknown_to_the_host_needs_a_token_with_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(number: int) -> NoReturn:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.delenv("HOME", raising=False)
    assert token.of(jwt(sun="me"), "FILE", NOW).user == "me"
    with pytest.raises(SlurmError) as caught:
        token.of(jwt(), "FILE", NOW)
    assert str(caught.value) == (
        f"The token for slurmrestd in FILE does not say whose it is, and the user {os.getuid()} has no name "
        "on this host: make another with scontrol token."
    )
    with pytest.raises(SlurmError) as caught:
        token.read("~/.slurm.jwt", {})
    assert str(caught.value) == (
        "There is no token for slurmrestd: write what scontrol token prints to ~/.slurm.jwt, with mode 0600, "
        "or set SLURM_JWT."
    )
    # A token in the environment needs no home directory.
    assert token.read("~/.slurm.jwt", {"SLURM_JWT": jwt(sun="me")}).user == "me"


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "jwt"
    file.write_text(jwt(sun="me"))
    for mode in (0o640, 0o604):
        file.chmod(mode)
        with pytest.raises(SlurmError, match="Others can read"):
            token.read(str(file), {})
    file.chmod(0o600)
    assert token.read(str(file), {}).user == "me"
    assert token.read(str(tmp_path / "none"), {"SLURM_JWT": jwt(sun="you")}).user == "you"

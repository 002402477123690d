from __future__ import annotations

import tomllib
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.python_sources import (
    OLDEST,
    source_problems,
    version_problems,
)

from tests.conftest import ROOT

COMMIT = "a" * 40


@pytest.mark.parametrize("name", ["python_env_apex", "python_env_megatron_repository"])
@pytest.mark.parametrize(
    "address",
    [
        "https://s3cret@example.org/x",
        "https://me:s3cret@example.org/x",
        "HTTPS://me:s3cret@example.org/x",
        "http://s3cret@[::1]:8080/x",
        "ssh://git:s3cret@example.org/x",
        f"git+https://s3cret@example.org/x@{COMMIT}",
    ],
)
def test_an_address_with_a_secret_is_refused_without_printing_it(name: str, address: str) -> None:
    (problem,) = source_problems("n1", {name: address})
    assert (problem.node, problem.value) == ("n1", name)
    assert "s3cret" not in problem.sentence
    assert "a credential helper" in problem.hint


@pytest.mark.parametrize(
    "address",
    [
        "",
        "https://example.org/x",
        f"git+https://example.org/x@{COMMIT}",
        f"git+ssh://git@example.org/x@{COMMIT}",
        "git@example.org:me/x.git",
        "ssh://git@example.org/x",
        "/src/me@home/x",
    ],
)
def test_other_addresses_are_taken(address: str) -> None:
    both = dict.fromkeys(("python_env_apex", "python_env_megatron_repository"), address)
    assert source_problems("n1", both) == []


def test_git_checks_nothing_out_in_a_directory_with_the_hosts_name() -> None:
    given = {"python_env_megatron": "/model/%n/Megatron", "python_env_megatron_repository": "git@x:y"}
    (problem,) = source_problems("n1", given)
    assert problem.sentence.startswith("python_env_megatron is /model/%n/Megatron, and git knows no %n: give")
    assert source_problems("n1", {**given, "python_env_megatron_repository": ""}) == []


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("3.10.10", "is older than 3.11, and the trainer needs that: give 3.11 or newer, in quotes"),
        # As YAML reads 3.10 and 3.20 without quotes.
        (3.1, "is older than 3.11"),
        ("3", "is no version of Python"),
        ("3.11.x", "is no version of Python"),
        ("/usr/bin/python3", "is no version of Python"),
        ("3.11", ""),
        ("3.11.4", ""),
        (3.13, ""),
    ],
)
def test_a_python_that_the_trainer_does_not_run_on_is_refused(version: Any, message: str) -> None:
    problems = [problem.sentence for problem in version_problems("n1", {"python_env_version": version})]
    assert bool(problems) == bool(message)
    assert all(f"python_env_version {version} {message}" in sentence for sentence in problems)
    assert version_problems("n1", {}) == []


def test_the_oldest_python_is_the_trainers() -> None:
    project = tomllib.loads((ROOT / "trainer" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == f">={'.'.join(map(str, OLDEST))}"

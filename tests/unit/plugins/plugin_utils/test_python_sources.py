from __future__ import annotations

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.python_sources import source_problems

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
    assert "a credential helper" in problem.remedy


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

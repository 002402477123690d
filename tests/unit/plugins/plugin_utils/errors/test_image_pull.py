"""Why an image could not be pulled, with real messages of engines and registries."""

from __future__ import annotations

import pytest
from ansible_collections.rdm.provision.plugins.filter.pull_problems import pull_problems
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.image_pull import pull_problem, registry_of


def message(name: str, error: str) -> str:
    """Return community.docker.docker_image_pull's message for an answer of the engine."""
    url = "http+docker://localhost/v1.41/images/create?tag=1&fromImage=x"
    return f'Error pulling image {name} - 500 Server Error for {url}: Internal Server Error ("{error}")'


@pytest.mark.parametrize(
    ("name", "registry"),
    [
        ("debian", "docker.io"),
        ("rocm/pytorch:1", "docker.io"),
        ("nvcr.io/nvidia/pytorch:1", "nvcr.io"),
        ("localhost/a:1", "localhost"),
        ("registry:5000/a", "registry:5000"),
    ],
)
def test_registry_is_the_first_part_of_the_name(name: str, registry: str) -> None:
    assert registry_of(name) == registry


@pytest.mark.parametrize(
    ("error", "start", "hint"),
    [
        (
            'Get "https://r.example.com/v2/": dial tcp: lookup r.example.com on 10.0.0.1:53: no such host',
            "registry r.example.com cannot be reached for r.example.com/x:1 (Get",
            "let the node reach it",
        ),
        (
            'Get "https://r.example.com/v2/": net/http: request canceled while waiting for connection '
            "(Client.Timeout exceeded while awaiting headers)",
            "registry r.example.com cannot be reached for r.example.com/x:1 (Get",
            "bring the image as an archive",
        ),
        (
            'Get "https://r.example.com/v2/": x509: certificate signed by unknown authority',
            "registry r.example.com, for r.example.com/x:1, is not trusted by the engine (Get",
            "/etc/docker/certs.d",
        ),
        (
            "pull access denied for x, repository does not exist or may require 'docker login': denied",
            "registry r.example.com does not give r.example.com/x:1 to this node (pull access",
            "docker login there",
        ),
        (
            "manifest for r.example.com/x:1 not found: manifest unknown: manifest unknown",
            "registry r.example.com has no r.example.com/x:1 (manifest for",
            "correct the name in images_list",
        ),
    ],
)
def test_engine_errors_become_one_sentence(error: str, start: str, hint: str) -> None:
    sentence = pull_problem("r.example.com/x:1", message("r.example.com/x:1", error))
    assert sentence.startswith(start)
    assert error in sentence
    assert hint in sentence.rpartition("): ")[2]
    assert "http+docker" not in sentence


def test_other_errors_are_quoted() -> None:
    assert pull_problem("x:1", message("x:1", "toomanyrequests: slow down")) == (
        "x:1 could not be pulled from registry docker.io (toomanyrequests: slow down)"
    )
    assert pull_problem("x:1", "Error pulling x - no space left on device") == (
        "x:1 could not be pulled from registry docker.io (no space left on device)"
    )


def test_only_failed_pulls_are_reported() -> None:
    failed = {"failed": True, "item": {"name": "x:1"}, "msg": message("x:1", "EOF")}
    registered = {"results": [{"changed": True, "item": {"name": "y:1"}}, failed]}
    assert len(pull_problems(registered)) == 1
    assert pull_problems({"skipped": True}) == []

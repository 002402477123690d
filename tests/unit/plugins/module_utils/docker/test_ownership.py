"""The log of a container since its start, and its removal."""

from __future__ import annotations

from typing import Any, cast

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI, DockerError
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import (
    last_words,
    remove_container,
)

NEVER = "0001-01-01T00:00:00Z"


class Engine:
    """Returns the lines of a log, given as seconds since 1970 and text, from a time on."""

    def __init__(self, *log: tuple[float, str]) -> None:
        self.log = log

    def get(self, path: str, since: str | None = None, **query: Any) -> str:
        return "".join(f"{text}\n" for at, text in self.log if at >= float(since or 0))


@pytest.mark.parametrize(
    ("finished", "words"),
    [(NEVER, "first Ready\nlast Ready\n"), ("1970-01-01T00:00:20.5Z", "last Ready\n")],
)
def test_log_is_read_from_the_end_of_the_previous_start(finished: str, words: str) -> None:
    engine = cast("DockerAPI", Engine((10.0, "first Ready"), (29.9, "last Ready")))
    # The engine noted the start a moment after the container had written.
    container = {"Id": "c1", "State": {"StartedAt": "1970-01-01T00:00:30Z", "FinishedAt": finished}}
    assert last_words(engine, container) == words
    assert last_words(engine, container, ever=True) == "first Ready\nlast Ready\n"


class Removing:
    """Answers each request to remove a container with the next of these errors, or with none."""

    def __init__(self, *errors: DockerError) -> None:
        self.errors = list(errors)
        self.requests = 0

    def delete(self, path: str, **query: Any) -> None:
        self.requests += 1
        if self.errors:
            raise self.errors.pop(0)


GONE = DockerError(404, "No such container: c1")
WRITTEN_MEANWHILE = DockerError(
    500, "unable to remove filesystem for c1: unlinkat /var/lib/docker/containers/c1: directory not empty"
)


@pytest.mark.parametrize(
    ("errors", "requests"), [((), 1), ((GONE,), 1), ((WRITTEN_MEANWHILE,), 2), ((WRITTEN_MEANWHILE, GONE), 2)]
)
def test_a_container_whose_state_is_written_meanwhile_is_removed_again(
    errors: tuple[DockerError, ...], requests: int
) -> None:
    engine = Removing(*errors)
    remove_container(cast("DockerAPI", engine), "c1")
    assert engine.requests == requests


@pytest.mark.parametrize("errors", [(WRITTEN_MEANWHILE,) * 2, (DockerError(500, "device or resource busy"),)])
def test_a_container_that_stays_is_an_error(errors: tuple[DockerError, ...]) -> None:
    engine = Removing(*errors)
    with pytest.raises(DockerError):
        remove_container(cast("DockerAPI", engine), "c1")
    assert engine.errors == []

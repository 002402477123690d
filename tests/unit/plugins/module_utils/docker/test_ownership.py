"""The log of a container since its start."""

from __future__ import annotations

from typing import Any, cast

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import last_words

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
def test_words_count_from_where_the_start_before_ended(finished: str, words: str) -> None:
    engine = cast("DockerAPI", Engine((10.0, "first Ready"), (29.9, "last Ready")))
    # The engine noted the start a moment after the container had written.
    container = {"Id": "c1", "State": {"StartedAt": "1970-01-01T00:00:30Z", "FinishedAt": finished}}
    assert last_words(engine, container) == words
    assert last_words(engine, container, ever=True) == "first Ready\nlast Ready\n"

# SPDX-License-Identifier: GPL-3.0-or-later
"""Explain in one sentence why an image could not be pulled, from the engine's message."""

from __future__ import annotations

import re

DOCKER_HUB = "docker.io"

# Messages of Go's network library and of registries, in lower case.
_UNREACHABLE = (
    "dial tcp",
    "lookup ",
    "no such host",
    "connection refused",
    "connection reset",
    "timeout",
    "deadline exceeded",
    "no route to host",
    "network is unreachable",
    "proxyconnect",
    "eof",
)
_UNTRUSTED = ("x509", "http response to https client")
_DENIED = ("unauthorized", "denied", "no basic auth", "authentication required", "forbidden")
_ABSENT = ("manifest unknown", "not found", "no matching manifest")

_WORDS = re.compile(r"\(\"(?P<words>.*)\"\)\s*$", re.DOTALL)


def registry_of(name: str) -> str:
    """Return the registry of an image name."""
    first, slash, _rest = name.partition("/")
    return first if slash and (set(".:") & set(first) or first == "localhost") else DOCKER_HUB


def pull_problem(name: str, message: str) -> str:
    """Return one sentence: image, registry, the engine's message, and the hint.

    Args:
        name: the image's name.
        message: from community.docker.docker_image_pull, which quotes the engine.
    """
    registry = registry_of(name)
    quoted = _WORDS.search(message)
    output = " ".join((quoted["words"] if quoted else message.rpartition(" - ")[2]).split())
    words = output.lower()
    if any(sign in words for sign in _DENIED):
        what, hint = f"registry {registry} does not give {name} to this node", "docker login there"
    elif any(sign in words for sign in _UNTRUSTED):
        what = f"registry {registry}, for {name}, is not trusted by the engine"
        hint = "give the engine its certificate (/etc/docker/certs.d), or list it in insecure-registries"
    elif any(sign in words for sign in _ABSENT):
        what, hint = f"registry {registry} has no {name}", "correct the name in images_list"
    elif any(sign in words for sign in _UNREACHABLE):
        what = f"registry {registry} cannot be reached for {name}"
        hint = "let the node reach it, or bring the image as an archive (source: archive)"
    else:
        return f"{name} could not be pulled from registry {registry} ({output})"
    return f"{what} ({output}): {hint}"

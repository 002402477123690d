# SPDX-License-Identifier: GPL-3.0-or-later
"""Sets the registry mirrors of a Docker Engine in its daemon.json, and reloads the daemon without a restart.

A record next to daemon.json says what we added, so that only that is removed again. The engine uses these
mirrors for images of Docker Hub only: https://docs.docker.com/docker-hub/image-library/mirror/. For those of
other registries see registry_hosts.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import contextlib
import glob
import http.client
import json
import os
import re
import signal
import time
from typing import Any, Dict, List, Sequence, Tuple
from urllib.parse import urlsplit

from ansible_collections.rdm.provision.plugins.module_utils.base import host
from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import write_whole
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI

KEY = "registry-mirrors"
RECORD = "rdm-registry-mirrors.json"
CERTIFICATES = "/etc/docker/certs.d"
"""Where the engine has a directory of each registry, with its certificates."""
_RELOAD_TIMEOUT = 20.0  # seconds
_ANSWER_TIMEOUT = 5.0  # seconds
_HOST = r"https?://([\w.-]+|\[[0-9a-fA-F:]+\])(:\d+)?"
# The rule that holds for all engines: no path (newer ones take it), no user, no query.
_URL = re.compile(_HOST + "/?")
_URL_WITH_PATH = re.compile(_HOST + r"(?!/v2(/|$))(/[\w.-]+)*/?")
_REGISTRY = re.compile(r"(?=.*[.:]|localhost$)[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:\d+)?")

Json = Dict[str, Any]


def split(mirror: str) -> Tuple[str, str]:
    """Return the registry that an entry of images_mirror names, "" for none, and the mirror's URL."""
    registry, equals, url = mirror.partition("=")
    return (registry, url.rstrip("/")) if equals else ("", mirror.rstrip("/"))


def of_docker_hub(mirrors: Sequence[str]) -> List[str]:
    """Return the URLs of the entries without a registry: mirrors of Docker Hub, set in daemon.json."""
    return [split(one)[1] for one in mirrors if "=" not in one]


def is_mirror(mirror: str) -> bool:
    """Return whether the engine accepts a mirror: http(s)://host[:port], or REGISTRY=http(s)://host[:port][/path]."""
    if "=" not in mirror:
        return _URL.fullmatch(mirror) is not None
    registry, url = split(mirror)
    return bool(_REGISTRY.fullmatch(registry) and _URL_WITH_PATH.fullmatch(url))


def used(info: Json) -> List[str]:
    """Return the mirrors that an engine uses, from its /info, without the slash that it adds."""
    found = (info.get("RegistryConfig") or {}).get("Mirrors") or []
    return [str(url).rstrip("/") for url in found]


def with_mirrors(text: str, mirrors: Sequence[str]) -> str:
    """Return the text of daemon.json with these mirrors before its own.

    Raises:
        ValueError: it is not a JSON object, or its mirrors are not a list.
    """
    values = _object(text)
    others = [url for url in _mirrors(values) if url.rstrip("/") not in mirrors]
    return json.dumps({**values, KEY: [*mirrors, *others]}, indent=2) + "\n"


def without_ours(text: str, record: Json) -> str:
    """Return the text of daemon.json without our changes; "" if there was no such file.

    Args:
        text: its current text.
        record: the record of what we added; empty for none.

    Raises:
        ValueError: it was changed since then, and is not a JSON object or its mirrors are not a list.
    """
    if not record:
        return text
    if text == record["after"]:
        return str(record["before"])
    values = _object(text)
    before = _mirrors(_object(record["before"]))
    # In the old order, followed by what others have added since.
    added = {url.rstrip("/") for url in record["mirrors"]} - {url.rstrip("/") for url in before}
    left = [url for url in _mirrors(values) if url.rstrip("/") not in added]
    values.pop(KEY, None)
    if left or KEY in _object(record["before"]):
        values[KEY] = left
    return json.dumps(values, indent=2) + "\n" if values or record["before"] else ""


def recorded(configuration: str) -> Json:
    """Return the record beside a daemon.json: `mirrors`, and its text `before`, `after`; empty for none."""
    try:
        record = json.loads(host.read_text(_record(configuration)) or "{}")
        return record if {"mirrors", "before", "after"} <= set(record) else {}
    except (ValueError, TypeError):
        return {}


def unreachable(url: str) -> str:
    """Return why a mirror cannot be used, as a part of a sentence; "" if it answers as a registry."""
    # Most nodes have no mirror, and these imports are slow.
    import ssl
    import urllib.error
    import urllib.request

    parts = urlsplit(url)
    context = None
    if parts.scheme == "https":
        context = ssl.create_default_context()
        # The engine trusts each authority in this directory.
        for authority in glob.glob(os.path.join(CERTIFICATES, glob.escape(parts.netloc), "*.crt")):
            with contextlib.suppress(OSError):
                context.load_verify_locations(authority)
    handlers: List[Any] = [urllib.request.ProxyHandler({})]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    opener = urllib.request.build_opener(*handlers)
    # The path of a mirror belongs to the names of repositories.
    root = "{0}://{1}/v2/".format(parts.scheme, parts.netloc)
    try:
        with opener.open(root, timeout=_ANSWER_TIMEOUT):
            return ""
    except urllib.error.HTTPError as error:
        error.close()
        # A registry that requires a login.
        return (
            "" if error.code == 401 else "does not answer as a registry (/v2/: status {0})".format(error.code)
        )
    except urllib.error.URLError as error:
        reason = getattr(error.reason, "strerror", None) or error.reason
        return "does not answer ({0})".format(str(reason).strip("[]"))
    except (OSError, ValueError, http.client.HTTPException) as error:
        return "does not answer ({0})".format(
            getattr(error, "strerror", None) or error or type(error).__name__
        )


def configure(api: DockerAPI, mirrors: Sequence[str], change: bool) -> Json:
    """Configure an engine's mirrors, in this order, before others'; an empty list removes ours.

    Args:
        api: the engine.
        mirrors: their URLs.
        change: False for check mode.

    Returns:
        `changed`, and the mirrors `before` and `after`.

    Raises:
        NodeError: the engine's configuration does not allow it.
        DockerProblem: the engine does not answer.
    """
    wanted = [url.rstrip("/") for url in mirrors]
    pid = host.daemon_pid(api.socket)
    path = host.daemon_config(pid)
    record, text = recorded(path), host.read_text(path)
    if not wanted and not record:
        return {"changed": False, "before": [], "after": []}
    before = used(api.get("/info"))
    try:
        base = without_ours(text, record)
        others = [url.rstrip("/") for url in _mirrors(_object(base))]
        # Leave mirrors alone that are right already, whoever set them.
        add = bool(wanted) and others[: len(wanted)] != wanted
        goal = with_mirrors(base, wanted) if add else base
    except ValueError as error:
        raise NodeError("{0} cannot be read ({1}): correct it".format(path, error)) from None
    after = [url.rstrip("/") for url in _mirrors(_object(goal))]
    changed = text != goal or (bool(wanted) and not set(wanted) <= set(before))
    result = {"changed": changed, "before": before, "after": after}
    if not change or not changed:
        return result
    if not pid:
        raise NodeError(
            "the process of the Docker daemon cannot be seen: let root do this (rdm_become: true)"
        )
    if any(word.lstrip("-").startswith("registry-mirror") for word in _words(pid)):
        raise NodeError(
            "the Docker daemon was started with --registry-mirror, and would not start with mirrors in "
            "{0} as well: move that option there".format(path)
        )
    try:
        if not after and before:
            # A reload without this key would keep the mirrors.
            _write(path, json.dumps({**_object(goal), KEY: []}), record)
        else:
            _write(path, goal, {"mirrors": wanted, "before": base, "after": goal} if add else {})
        if not _reload(api, pid, after):
            _write(path, text, record)
            os.kill(pid, signal.SIGHUP)
            raise NodeError(
                "the Docker daemon did not take {0} from {1}, which is as it was: see its log".format(
                    ", ".join(wanted) or "its mirrors", path
                )
            )
        if not after:
            _write(path, goal, {})
    except OSError as error:
        raise NodeError(
            "{0}: {1}: let root do this (rdm_become: true)".format(error.filename or path, error.strerror)
        ) from None
    return result


def _reload(api: DockerAPI, pid: int, mirrors: Sequence[str]) -> bool:
    """Make the daemon reload its configuration; return whether it uses these mirrors now."""
    os.kill(pid, signal.SIGHUP)
    deadline = time.monotonic() + _RELOAD_TIMEOUT
    while set(used(api.get("/info"))) != set(mirrors):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _write(path: str, text: str, record: Json) -> None:
    """Write daemon.json and the record, in an order in which a killed run leaves a valid record."""
    if record:
        write_whole(_record(path), json.dumps(record).encode(), 0o600)
    if text:
        mode = os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o644
        write_whole(os.path.realpath(path), text.encode(), mode)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    if not record:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_record(path))


def _record(configuration: str) -> str:
    return os.path.join(os.path.dirname(configuration), RECORD)


def _words(pid: int) -> List[str]:
    return host.read_text("/proc/{0}/cmdline".format(pid)).split("\0")


def _object(text: str) -> Json:
    values = json.loads(text) if text.strip() else {}
    if not isinstance(values, dict):
        raise ValueError("it is not a JSON object")
    return values


def _mirrors(values: Json) -> List[str]:
    found = values.get(KEY) or []
    if not isinstance(found, list):
        raise ValueError("{0} is not a list".format(KEY))
    return [str(url) for url in found]

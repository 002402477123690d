"""Nodes as the controller sees them during a transfer from node to node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

from ansible_collections.rdm.provision.plugins.plugin_utils.controller.peer_transfer import Transfer

NODES = ["n1", "n2", "n3", "n4"]
SOURCE: dict[str, Any] = {"address": "10.0.0.1", "port": 7077, "digest": "d", "index": {"size": 3}}
COPY = "/home/user/.ansible/tmp/copy"
ALL = {
    "have": 3,
    "wanted": 3,
    "done": True,
    "error": "",
    "trouble": {},
    "silent_s": 0,
    "fetched": 3,
}


class Nodes:
    """Returns the modules' results on each node, instead of ssh and nodes."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.warnings: list[str] = []
        self.shown: list[str] = []
        self.answers: dict[str, Callable[[str], dict[str, Any]]] = {
            "source": lambda _name: {
                "address": "10.0.0.1",
                "port": 7077,
                "digest": "d",
                "index": {"size": 3},
            },
            "joined": lambda _name: {"port": 7077, "stored": 0},
            "reported": lambda _name: {"nodes": dict.fromkeys(NODES[1:], ALL), "sent": 3},
            "stopped": lambda name: {"complete": True, "path": f"/cache/{name}.tar"},
        }
        self.send: Callable[[], None] = lambda: None

    def host(self, name: str) -> str:
        return name

    def call(self, name: str, _module: str, arguments: dict[str, Any]) -> Callable[[], dict[str, Any]]:
        kind = str(arguments.get("state") or ("listed" if arguments.get("listed") else "compared"))

        def run() -> dict[str, Any]:
            self.calls.append((name, arguments))
            return {"problem": "", **self.answers[kind](name)}

        return run

    def copy(self, _host: str, _path: str, _name: str) -> tuple[str, Callable[[], None]]:
        return COPY, lambda: self.send()

    def states(self) -> list[str]:
        return [arguments["state"] for _name, arguments in self.calls]

    def transfer(
        self,
        path: Path,
        remote_src: bool,
        sha256: str = "",
        present: Mapping[str, list[str]] = MappingProxyType({}),
        unpack: bool = False,
    ) -> dict[str, Any]:
        """Transfer an archive to all nodes; return the action's result."""
        display = SimpleNamespace(
            display=lambda text, **_given: self.shown.append(text), warning=self.warnings.append
        )
        options = {"network": "", "port": 7077, "bandwidth": 0.0}
        options |= {"cluster": "c", "cache_dir": str(path.parent / "cache")}
        item = {"path": str(path), "remote_src": remote_src, "sha256": sha256}
        result: dict[str, Any] = {"nodes": {}, "indexes": {}, "sent": {}}
        action: Any = SimpleNamespace(_display=display)
        executor: Any = self
        variables = {"ansible_forks": 5}
        hosts = {name: {"size": 3, "present_members": present.get(name, [])} for name in NODES}
        Transfer(action, executor, options, variables, item, hosts, unpack=unpack).run(result)
        return result

"""The answers of a simulated node: modules, each a function of the node's state and the parameters.

The answers have the form and the size of a lab node's (`recorded.json`). A node's state is a small file, so
that later modules, also of later runs, see what one has changed.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.base.file_diff import (
    SHOWN_WHOLE,
    difference,
    prepared,
)
from ansible_collections.rdm.provision.plugins.module_utils.base.ssh_config import ssh_client_config
from ansible_collections.rdm.provision.plugins.module_utils.constants import LABEL_CLUSTER, LABEL_ROLE

RECORDED = Path(__file__).with_name("recorded.json").read_text(encoding="utf-8")
IMAGE = "sha256:a62d3a95a3563d03dfdfa938be2d7d2068b642a53e8278208bec7e774729ecd9"
CALLS = "calls"
"""The file in the nodes' directory with a line per command: node, module, bytes there and back."""

_CALL = b"\n    _ansiballz_main(\n"
_NO_LOG = "VALUE_SPECIFIED_IN_NO_LOG_PARAMETER"

Result = dict[str, Any]
Parameters = Mapping[str, Any]


def module_call(payload: bytes) -> tuple[str, dict[str, Any]]:
    """Return the module's full name and parameters from what Ansible pipes into Python on a node.

    Raises:
        ValueError: Ansible sends no such thing.
    """
    # The arguments of its last line, one per line.
    fields = dict(
        line.split(b"=", 1) for line in payload[payload.rindex(_CALL) :].split(b"\n") if b"=" in line
    )
    name = str(ast.literal_eval(fields[b"module_fqn"].decode().rstrip(",")))
    text = ast.literal_eval(fields[b"params"].decode().rstrip(","))
    name = name.removeprefix("ansible_collections.").replace(".plugins.modules.", ".")
    return name, json.loads(text)["ANSIBLE_MODULE_ARGS"]


def digest(value: Any) -> str:
    """Return a digest of a value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


class Node:
    """A node as its file describes it.

    Attributes:
        name: its name in the inventory.
        address: where ssh would reach it.
        state: what modules have left on it.
    """

    def __init__(self, directory: str | Path, name: str, address: str = "") -> None:
        """Read a node's file in a directory; a node without a file is like a fresh lab node."""
        self.name = name
        self.address = address
        self._calls = Path(directory, CALLS)
        self._path = Path(directory, f"{name}.json")
        try:
            self._text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            self._text = "{}"
        self.state: dict[str, Any] = json.loads(self._text)

    @property
    def unreachable(self) -> bool:
        """Whether ssh would not reach it."""
        return bool(self.state.get("unreachable"))

    def save(self) -> None:
        """Write the file, if anything has changed."""
        text = json.dumps(self.state)
        if text != self._text:
            self._path.write_text(text, encoding="utf-8")
            self._text = text

    def count(self, module: str, sent: int, answered: int) -> None:
        """Record a command: its module, and the bytes to the node and back."""
        with self._calls.open("ab", buffering=0) as file:
            file.write(f"{self.name} {module} {sent} {answered}\n".encode())

    def answer(self, module: str, parameters: Parameters) -> Result:
        """Return what a module would return here, and store what it would change."""
        if self.state.get("broken"):
            return {"failed": True, "msg": f"{self.name} is simulated to be broken"}
        if module not in MODULES:
            return {"failed": True, "msg": f"a simulated node has no answer for the module {module}"}
        result = MODULES[module](self, parameters)
        if not parameters["_ansible_check_mode"]:
            self.save()
        answer = {"changed": False, "invocation": echo(parameters), **result}
        # Before ansible-core 2.21, which has a setting for it, results always have it.
        if not parameters.get("_ansible_inject_invocation", True):
            del answer["invocation"]
        return answer

    def kind(self, name: str) -> dict[str, Any]:
        """Return a part of the state, to change it."""
        part: dict[str, Any] = self.state.setdefault(name, {})
        return part

    def move(self, my_ip: str, subnet: str, gateway: str) -> None:
        """Give a finished node another address, and a state file that fits any inputs."""
        self.state["my_ip"] = my_ip
        for network in self.kind("networks").values():
            network["facts"]["subnets"] = [{"subnet": subnet, "gateway": gateway}]
        self.state["state_file"] = {"inputs": None, "found": _observed(self)}

    def recorded(self) -> dict[str, Any]:
        """Return the recorded answers with this node's name and addresses."""
        text = RECORDED.replace("@NODE@", self.name).replace("@ADDRESS@", self.address)
        answers: dict[str, Any] = json.loads(text.replace("@MY_IP@", self.state.get("my_ip", "")))
        return answers


def given(parameters: Parameters) -> dict[str, Any]:
    """Return the parameters without Ansible's own."""
    return {name: value for name, value in parameters.items() if not name.startswith("_ansible_")}


def echo(parameters: Parameters, others: Parameters | None = None) -> dict[str, Any]:
    """Return the ``invocation`` of a result: the parameters, and further ones of the module."""
    return {"module_args": {**(others or {}), **_without_secrets(given(parameters))}}


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _NO_LOG if name.startswith("secret") else _without_secrets(item)
            for name, item in value.items()
        }
    return [_without_secrets(item) for item in value] if isinstance(value, list) else value


# ---- the modules


def ping(_node: Node, _parameters: Parameters) -> Result:
    """`ansible.builtin.ping`: the least that a module can do."""
    return {"ping": "pong"}


def node_facts(node: Node, parameters: Parameters) -> Result:
    """`rdm.provision.node_facts`."""
    recorded = node.recorded()
    facts = recorded["facts"]
    containers, networks = node.kind("containers"), node.kind("networks")
    facts["docker"]["containers"] = [
        {**recorded["facts_container"], "name": name, "labels": one["labels"], "state": one["state"]}
        for name, one in containers.items()
    ]
    facts["docker"]["networks"] += [
        {**recorded["facts_network"], "name": name, **one["facts"], "containers": list(containers)}
        for name, one in networks.items()
    ]
    facts["docker"]["images"] = [{"id": IMAGE, "tags": list(node.kind("images"))}]
    facts["config_owner"] = node.state.get("owner", "")
    facts["hardware"] = "sha256:0f343b0931126a20"
    facts["work"] = _work(node, parameters.get("inputs") or {})
    facts |= {
        "config_dir": {"path": "/etc/rdm", "why": ""},
        "in_use": [],
        "lock": {},
        "locked": bool(parameters.get("lock") and facts["work"]),
        "origin": {"authority": "", "my_ip": ""},
        "shared_memory": 1 << 33,
        "strays": node.state.get("strays", []),
        "unreachable_mirrors": {},
        "foreign_mirror_files": {},
    }
    return {"node": facts}


def node_lock(_node: Node, parameters: Parameters) -> Result:
    """`rdm.provision.node_lock`: no other run works on a simulated node."""
    return {"changed": False, "holder": {}, "origin": {}, "invocation": echo(parameters)}


def state_file(node: Node, parameters: Parameters) -> Result:
    """`rdm.provision.state_file`."""
    node.state["state_file"] = {"inputs": parameters["inputs"], "found": _observed(node)}
    return {"kept": not parameters["_ansible_check_mode"], "invocation": {}}


def _observed(node: Node) -> dict[str, str]:
    """Return a digest of what each role has left; for files, only that they exist."""
    left = {"images": "images", "network": "networks", "container": "containers"}
    return {role: digest(node.kind(kind)) for role, kind in left.items()}


def _work(node: Node, inputs: Mapping[str, str]) -> dict[str, list[str]]:
    """Return which roles have work, and why."""
    kept = node.state.get("state_file")
    if kept is None:
        return {role: ["nothing is known of an earlier run"] for role in inputs}
    found = _observed(node)
    work = {role: [f"{role} has changed"] for role in found if found[role] != kept["found"][role]}
    for role, wanted in inputs.items():
        # A state file without inputs fits any.
        if kept["inputs"] is not None and kept["inputs"].get(role) != wanted:
            work.setdefault(role, []).append("its variables, the plan or this program are others")
    return {role: why for role, why in work.items() if role in inputs}


def image_archive(node: Node, parameters: Parameters) -> Result:
    """`rdm.provision.image_archive`, for an archive on the node."""
    name, path, images = parameters["name"], parameters["path"], node.kind("images")
    missing = name not in images
    found = [{"digest": IMAGE, "tags": [name]}]
    if parameters.get("state") == "inspected":
        return {
            "actions": [],
            "copy_needed": False,
            "images": found,
            "load": missing,
            "needed": missing,
            "new_layers": {
                "sha256:c5fd8ab833c9628637d7073de6d6a9e682ce45d2363467db1875913efa068e80": 125849600
            }
            if missing
            else {},
            "new_bytes": 125852160 if missing else 0,
            "path": path,
            "present_members": [],
            "problem": "",
            "hint": "",
            "storage": {},
            "unpacked": 125852160 if missing else 0,
            **{
                "gid": 0,
                "group": "root",
                "mode": "0644",
                "owner": "root",
                "size": 125859840,
                "state": "file",
                "uid": 0,
            },
            "invocation": {},
        }
    before = images.get(name, "absent")
    images[name] = IMAGE
    return {
        "changed": missing,
        "actions": [f"load {path}"] if missing else [],
        "copy_needed": False,
        "diff": {"after": {name: IMAGE}, "before": {name: before}},
        "images": found,
        "invocation": {},
    }


def docker_network(node: Node, parameters: Parameters) -> Result:
    """`community.docker.docker_network`, which only knows whether the network exists."""
    recorded, networks, name = node.recorded(), node.kind("networks"), parameters["name"]
    missing = name not in networks
    pools = parameters["ipam_config"]
    network = {
        **recorded["network"],
        "Name": name,
        "Driver": parameters["driver"],
        "Options": parameters["driver_options"],
        "Labels": parameters["labels"],
        "IPAM": {"Config": [{"Subnet": pool["subnet"], "Gateway": pool["gateway"]} for pool in pools]},
    }
    check = parameters["_ansible_check_mode"]
    if not check:
        networks[name] = {
            "facts": {
                "driver": parameters["driver"],
                "options": parameters["driver_options"],
                "labels": parameters["labels"],
                "subnets": [{"subnet": pool["subnet"], "gateway": pool["gateway"]} for pool in pools],
            }
        }
    result: Result = {
        "changed": missing,
        "network": None if check and missing else network,
        "invocation": echo(parameters, recorded["network_arguments"]),
    }
    if check:
        result["actions"] = [f"Created network {name} with driver {parameters['driver']}"] if missing else []
    if parameters["_ansible_diff"]:
        result["diff"] = {"after": {"exists": True}, "before": {"exists": not missing}, "differences": []}
    return result


def container(node: Node, parameters: Parameters) -> Result:
    """`rdm.provision.container`."""
    desired = parameters["desired"]
    containers, name, wanted = node.kind("containers"), desired["name"], digest(desired)
    was = containers.get(name, {"state": "absent", "digest": ""})
    markers = parameters.get("owner_markers") or [None]
    written = node_files(node, {**parameters, "owner_marker": markers[0]})
    recreate = parameters.get("recreate") or written["made"]
    changed = bool(was != {**was, "state": "running", "digest": wanted} or recreate)
    labels = {LABEL_CLUSTER: desired["cluster"], LABEL_ROLE: "container"}
    containers[name] = {"digest": wanted, "state": "running", "labels": labels}
    node.state["my_ip"] = desired["env"].get("MY_IP", "")
    if parameters.get("state_file"):
        state_file(node, {**parameters, **parameters["state_file"]})
    result: Result = {
        "changed": changed or written["changed"],
        "paths": written["paths"],
        "actions": ["make" if was["state"] == "absent" else "replace"] if changed else [],
        "running": [],
        "container": {"name": name, "state": "running", "image": desired["image"]},
        "invocation": {},
    }
    if parameters["_ansible_diff"]:
        own = {
            "after": {"exists": True, "running": True},
            "before": {"exists": was["state"] != "absent", "running": not changed},
        }
        result["diff"] = [*written["diff"], own] if written["paths"] else own
    return result


def node_files(node: Node, parameters: Parameters) -> Result:
    """`rdm.provision.node_files`."""
    files, directories = node.kind("files"), node.kind("directories")
    made = [one["path"] for one in parameters.get("directories") or [] if one["path"] not in directories]
    directories.update(dict.fromkeys(made, True))
    written, diff = [], [_difference(path, "", "directory, mode 0755\n") for path in made]
    for one in [*(parameters.get("files") or []), *(parameters.get("blocks") or [])]:
        holds = digest(one)
        # A block and a file, or two blocks, may share a path.
        key = "\0".join([one["path"], str(one.get("name", ""))]) if "name" in one else one["path"]
        if files.get(key) == holds:
            continue
        before = "" if key not in files else "(what was there before)\n"
        files[key] = holds
        written.append(one["path"])
        if parameters["_ansible_diff"]:
            diff.append(_difference(one["path"], before, _shown(one)))
    marker = parameters.get("owner_marker")
    if marker:
        if node.state.get("owner") != marker["name"]:
            written.append(marker["path"])
        node.state["owner"] = marker["name"]
    result: Result = {
        "changed": bool(made or written),
        "kept": [],
        "made": made,
        "paths": made + written,
        "invocation": {},
    }
    if parameters["_ansible_diff"]:
        result["diff"] = diff
    return result


def _shown(one: Mapping[str, Any]) -> str:
    """Return the text that a diff shows of a file or a block."""
    if one.get("ssh_client_config"):
        return ssh_client_config(**{"port": 22, "directory": "/etc/rdm/ssh", **one["ssh_client_config"]})
    return str(one.get("content") or "(a secret)\n")


def _difference(path: str, before: str, after: str) -> dict[str, str]:
    """Return a diff as the module does: of a long file, such as one with a line per node, its beginning."""
    shown = difference(path, before, after)
    return shown if len(before) + len(after) <= SHOWN_WHOLE else {"prepared": prepared(**shown)}


def fabric_probe(node: Node, parameters: Parameters) -> Result:
    """`rdm.provision.fabric_probe`: every container answers after 80 to 120 µs."""
    names = [line.split()[0] for line in parameters["nodes"].splitlines()]
    rank = names.index(node.name)
    peers = names[rank + 1 :] + names[:rank]
    times = [80.0 + (7 * rank + 13 * number) % 400 / 10 for number in range(len(peers))]
    return {
        "container_state": "running",
        "duplicate": "",
        "errors": {},
        "link": {"name": "eth0", "up": True},
        "loss": {},
        "measured": True,
        "method": "icmp",
        "note": "",
        "reason": "",
        "rtt_us": "".join(
            f"{name} {time:.1f} {time - 4.5:.1f}\n" for name, time in zip(peers, times, strict=True)
        ),
        "login": dict.fromkeys([node.name, *peers[:1]], ""),
        "ssh": dict.fromkeys(peers[: parameters["ssh_peers"]], ""),
        "invocation": {},
    }


MODULES: dict[str, Callable[[Node, Parameters], Result]] = {
    "ansible.modules.ping": ping,
    "rdm.provision.node_lock": node_lock,
    "community.docker.docker_network": docker_network,
    "rdm.provision.container": container,
    "rdm.provision.fabric_probe": fabric_probe,
    "rdm.provision.image_archive": image_archive,
    "rdm.provision.node_facts": node_facts,
    "rdm.provision.node_files": node_files,
    "rdm.provision.state_file": state_file,
}
"""The modules by full name."""

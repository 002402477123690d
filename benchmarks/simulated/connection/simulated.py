"""A connection to a simulated node: it counts, parses and answers what Ansible sends."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection import ConnectionBase

from benchmarks.simulated.node import Node, module_call

DOCUMENTATION = """
name: simulated
short_description: Answer as a node would, without one
author: The rdm-provision developers
description:
  - Takes the module and its parameters out of what pipelining sends; the answer is that of
    benchmarks.simulated.node.
options:
  directory:
    description: Where the nodes' files are.
    type: path
    required: true
    vars:
      - name: simulated_directory
  latency:
    description: Seconds that each command takes longer.
    type: float
    default: 0
    vars:
      - name: simulated_latency
  socket:
    description: The engine's socket, which modules must get as an option; empty for Docker's own choice.
    type: str
    default: ""
    vars:
      - name: rdm_docker_socket
  host:
    description: The node's name.
    type: str
    vars:
      - name: inventory_hostname
extends_documentation_fragment:
  - connection_pipelining
"""


class Connection(ConnectionBase):
    """One connection; Ansible makes one for each task and node."""

    transport = "simulated"
    has_pipelining = True

    def _connect(self) -> Connection:
        self._connected = True
        return self

    def exec_command(
        self, cmd: str, in_data: bytes | None = None, sudoable: bool = True
    ) -> tuple[int, bytes, bytes]:
        """Answer what a module would print."""
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        time.sleep(self.get_option("latency"))
        node = Node(self.get_option("directory"), self.get_option("host"), self._play_context.remote_addr)
        if node.unreachable:
            node.count("unreachable", 0, 0)
            raise AnsibleConnectionFailure(f"{node.name} is simulated to be unreachable")
        if node.state.get("hanging") and threading.current_thread() is not threading.main_thread():
            threading.Event().wait()
        if in_data is None:
            raise AnsibleConnectionFailure(f"no simulated node knows the command {cmd}")
        module, parameters = module_call(in_data)
        socket = self.get_option("socket")
        if socket and f"DOCKER_HOST=unix://{socket} " not in cmd:
            raise AnsibleConnectionFailure(f"{module} is called without DOCKER_HOST for {socket}")
        answer = json.dumps(node.answer(module, parameters)).encode()
        node.count(module, len(in_data), len(answer))
        return 0, answer, b""

    def put_file(self, in_path: str, out_path: str) -> None:  # noqa: ARG002  # Ansible's signature
        """Refuse: with pipelining, nothing is copied."""
        raise AnsibleConnectionFailure(f"{in_path} is copied, which no simulated node expects")

    def fetch_file(self, in_path: str, out_path: str) -> Any:  # noqa: ARG002
        """Refuse."""
        raise AnsibleConnectionFailure(f"{in_path} is fetched, which no simulated node expects")

    def close(self) -> None:
        """Nothing is open."""
        self._connected = False

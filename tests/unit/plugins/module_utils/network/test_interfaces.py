"""Interfaces and routes from what `ip -j` prints and from /proc/net; ssh's connection from /proc."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.iproute2 import ip_json
from ansible_collections.rdm.provision.plugins.module_utils.network import interfaces

ADDRESSES = json.loads("""[
  {"ifname": "lo", "mtu": 65536, "operstate": "UNKNOWN", "address": "00:00:00:00:00:00",
   "addr_info": [{"family": "inet", "local": "127.0.0.1", "prefixlen": 8},
                 {"family": "inet6", "local": "::1", "prefixlen": 128}]},
  {"ifname": "ib0", "mtu": 2044, "operstate": "DOWN", "link_type": "infiniband", "addr_info": []},
  {"ifname": "tun0", "mtu": 1420, "operstate": "UP",
   "addr_info": [{"family": "inet", "local": "10.8.0.2", "address": "10.8.0.1", "prefixlen": 32}]}
]""")

ROUTES = json.loads("""[
  {"dst": "default", "gateway": "10.0.0.254", "dev": "eth0", "flags": []},
  {"dst": "10.0.0.0/24", "dev": "eth0", "protocol": "kernel", "scope": "link", "flags": []},
  {"dst": "10.9.0.0/16", "table": "100", "flags": [],
   "nexthops": [{"gateway": "10.0.0.1", "dev": "eth0"}, {"gateway": "10.0.1.1", "dev": "eth1"}]},
  {"type": "blackhole", "dst": "10.66.0.0/16", "table": "vpn", "flags": []},
  {"type": "local", "dst": "10.0.0.5", "dev": "eth0", "table": "local", "flags": []},
  {"dst": "10.7.0.0/16", "via": {"family": "inet6", "host": "fe80::1"}, "dev": "eth0", "flags": []}
]""")

PROC_NET_ROUTE = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
"""


def test_interfaces() -> None:
    assert interfaces.interfaces(ADDRESSES) == [
        {
            "name": "lo",
            "mac": "00:00:00:00:00:00",
            "addresses": ["127.0.0.1/8", "::1/128"],
        },
        {"name": "ib0", "mac": "", "addresses": []},
        {"name": "tun0", "mac": "", "addresses": ["10.8.0.2/32"]},
    ]


def test_routes() -> None:
    routes = interfaces.routes(ROUTES)
    assert [tuple(route.values()) for route in routes] == [
        ("main", "default", "eth0", "10.0.0.254"),
        ("main", "10.0.0.0/24", "eth0", ""),
        ("100", "10.9.0.0/16", "eth0", "10.0.0.1"),
        ("100", "10.9.0.0/16", "eth1", "10.0.1.1"),
        ("vpn", "10.66.0.0/16", "", ""),
        ("local", "10.0.0.5/32", "eth0", ""),
        ("main", "10.7.0.0/16", "eth0", "fe80::1"),
    ]
    assert list(routes[0]) == ["table", "destination", "interface", "gateway"]


def test_routes_from_proc() -> None:
    routes = interfaces.routes_without_ip(PROC_NET_ROUTE)
    assert [tuple(route.values()) for route in routes] == [
        ("main", "default", "eth0", "192.0.2.1"),
        ("main", "172.17.0.0/16", "docker0", ""),
    ]
    assert interfaces.routes_without_ip("") == []


def test_interfaces_without_ip_agree_with_those_of_ip() -> None:
    known = {entry["name"]: entry for entry in interfaces.interfaces(ip_json("addr", "show"))}
    without = {entry["name"]: entry for entry in interfaces.interfaces_without_ip()}
    assert without["lo"] == {**known["lo"], "addresses": ["127.0.0.1/8"]}


def test_ssh_connection_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.9 50022 10.0.0.1 22")
    assert interfaces.ssh_connection() == {"client": "10.0.0.9", "server": "10.0.0.1"}


def test_ssh_connection_that_sudo_dropped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    process(tmp_path, os.getpid(), "python3", 70, "SUDO_USER=ubuntu")
    process(tmp_path, 70, "su do) S 1", 60, "LANG=C")
    process(tmp_path, 60, "sh", 1, "HOME=/home/ubuntu", "SSH_CONNECTION=fe80::9 50022 fe80::1 22")
    assert interfaces.ssh_connection(str(tmp_path)) == {"client": "fe80::9", "server": "fe80::1"}


def test_no_ssh_connection(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    process(tmp_path, os.getpid(), "python3", 1)
    process(tmp_path, 1, "init", 0)
    assert interfaces.ssh_connection(str(tmp_path)) == {"client": "", "server": ""}
    assert interfaces.ssh_connection(str(tmp_path / "missing")) == {"client": "", "server": ""}


def process(proc: Path, pid: int, name: str, parent: int, *environment: str) -> None:
    """Create the procfs files of one process."""
    directory = proc / str(pid)
    directory.mkdir()
    (directory / "stat").write_text(f"{pid} ({name}) S {parent} 1 1 0 -1\n")
    (directory / "environ").write_text("\0".join(environment))

# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure how long the distribution of an image archive takes, and how much its source sends.

Run `.venv/bin/python benchmarks/images.py` as root; it prints tables for docs/images.md. Nodes are network
namespaces on one switch, whose links are limited by traffic control. Each runs the product's own peer as a
process. The transfer is measured, not the load. `--aria2c`, `--udpcast` and `--docker-registry` name programs
to compare with. `--ways chain` measures the cost of a hop, `--ways job` what a transfer costs a running job,
and `--only-simulate` prints the curve for more nodes.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import socket
import socketserver
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.tables import markdown  # noqa: E402
from rdm_provision import environment  # noqa: E402

PREFIX = f"rdm-images-{os.getpid()}-"
PORT = 7077
TOKEN = "benchmark"  # noqa: S105
SOURCE = "10.77.0.1"
NEVER_S = 900.0
ALONE_S = 15.0
"""Seconds that a job runs before a transfer."""
COMPUTED_BYTES, EXCHANGED_BYTES = 8 * 10**6, 10**6
"""What a member of the job hashes, and sends, in a step: about 40 ms each at 200 Mb/s."""
TURN = 16
"""Steps of a simulation after which a few nodes get other neighbours; many do later."""
HOP_S, HOP_PIECES = 0.08, 1.64
"""From a piece's arrival at a node to its arrival at the next: seconds, and times of a piece on the link.

`.venv/bin/python benchmarks/images.py --ways chain`.
"""
CALL_S = 0.024
"""Seconds of the controller for a module call on one of many nodes.

`benchmarks/scale.py --sizes 1000 --ways second`: its wall time, divided by its two calls per node, and 0.005
for a warm ssh connection.
"""
UDPCAST = ("--interface=eth0", "--nokbd", "--mcast-rdv-address=224.0.0.1")


class Way(NamedTuple):
    """One measurement.

    Attributes:
        name: `peers`, `chain`, `direct`, `aria2`, `udpcast` or `registry`.
        nodes: the number of nodes.
        present: the share of the archive that they have already.
        killed: whether one more node is killed at about half of the transfer.
        bandwidth: Mb/s that each node sends at most; 0 means no limit.
        job: whether a job runs on the first two nodes meanwhile.
        piece: bytes of a piece; the product's choice for archives below 512 MiB by default.
    """

    name: str
    nodes: int
    present: float = 0
    killed: bool = False
    bandwidth: float = 0
    job: bool = False
    piece: int = 1 << 19


class Outcome(NamedTuple):
    """What one measurement found.

    Attributes:
        seconds: until the last node has everything.
        sent: bytes that the source has sent.
        cpu: CPU seconds of all programs.
        lines: the last line of each node.
        job: mean seconds of a step of the job, and of its computation, before and during the transfer.
    """

    seconds: float
    sent: int
    cpu: float
    lines: list[str]
    job: list[tuple[float, float]]


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=200, help="MB of the archive")
    parser.add_argument("--rate", type=float, default=200, help="Mb/s of each link")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--aria2c", default="", help="path of aria2c, to measure it, too")
    parser.add_argument("--udpcast", default="", help="directory of udp-sender, to measure it, too")
    parser.add_argument("--docker-registry", default="", help="its path, to measure a tree of them")
    parser.add_argument("--ways", nargs="+", default=["peers", "direct", "aria2", "udpcast", "registry"])
    parser.add_argument("--only-simulate", action="store_true")
    parser.add_argument("--as", dest="part", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))
    if options.part:
        take_part(*options.part)
    elif options.only_simulate:
        print(curve((1, 8, 100, 1000, 2000, 5000), options.size * 10**6, options.rate * 1e6))
    else:
        measure(options)


def measure(options: argparse.Namespace) -> None:
    """Run all measurements one after the other, and print the results."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        directory = Path(name)
        archive = directory / "archive"
        with archive.open("wb") as file:
            for _number in range(options.size):
                file.write(random.randbytes(10**6))  # noqa: S311
        many = options.nodes
        for name, table in (("chain", chain_table), ("job", job_table)):
            if name in options.ways:
                print(table(lambda way: run(way, archive, directory, options), options))
        ways = [Way("peers", 1), Way("peers", many), Way("direct", 1), Way("direct", many)]
        ways += [Way("peers", many, present=0.95), Way("peers", many, killed=True)]
        others = {"aria2": options.aria2c, "udpcast": options.udpcast, "registry": options.docker_registry}
        ways += [Way(name, count) for name, program in others.items() if program for count in (1, many)]
        ways = [way for way in ways if way.name in options.ways]
        rows = [["way", "nodes", "seconds", "of one node", "sent by the source / size", "CPU s"]]
        alone: dict[str, float] = {}
        for way in ways:
            seconds, sent, processors, *_rest = run(way, archive, directory, options)
            alone.setdefault(way.name, seconds)
            words = (
                f"{way.nodes}" + (", have 95 %" if way.present else "") + (", one more killed" * way.killed)
            )
            share = sent / (options.size * 1e6)
            ratio = f"{seconds / alone[way.name]:.2f}"
            rows.append([way.name, words, f"{seconds:.1f}", ratio, f"{share:.2f}", f"{processors:.1f}"])
            print(rows[-1], file=sys.stderr)
        if ways:
            print(markdown(rows, 2))


def chain_table(measured: Callable[[Way], Outcome], options: argparse.Namespace) -> str:
    """Return the cost of a hop for two sizes of pieces: each node fetches only from the one before it."""
    rows = [["MiB of a piece", "s on a link", "s of a hop, median", "90 % within s"]]
    medians = []
    for piece in (1 << 19, 1 << 22):
        lines = measured(Way("chain", options.nodes, piece=piece)).lines
        # The nodes have a common clock. They are in the order in which they announced themselves.
        arrivals = sorted((json.loads(line) for line in lines), key=sum)
        hops = [
            late - soon
            for before, after in itertools.pairwise(arrivals)
            for soon, late in zip(before, after, strict=True)
        ]
        medians.append((piece * 8 / options.rate / 1e6, statistics.median(hops)))
        last = statistics.quantiles(hops, n=10)[-1]
        rows.append([f"{piece / 2**20}", *(f"{one:.3f}" for one in (*medians[-1], last))])
    slope, fixed = statistics.linear_regression(*zip(*medians, strict=True))
    return markdown(rows, 0) + f"\nHOP_S, HOP_PIECES = {fixed:.3f}, {slope:.2f}"


def job_table(measured: Callable[[Way], Outcome], options: argparse.Namespace) -> str:
    """Return how much longer a job's steps take during a transfer, by the nodes' bandwidth."""
    rows = [["images_bandwidth", "seconds", "step / alone", "computation / alone", "exchange / alone"]]
    for share in (0, 0.5, 0.25, 0.1):
        outcome = measured(Way("peers", options.nodes, bandwidth=share * options.rate, job=True))
        alone, during = ((step, computed, step - computed) for step, computed in outcome.job)
        ratios = [f"{one / base:.2f}" for one, base in zip(during, alone, strict=True)]
        rows.append([f"{share * options.rate:.0f}" if share else "none", f"{outcome.seconds:.1f}", *ratios])
        print(rows[-1], alone, file=sys.stderr)
    return markdown(rows, 1)


def run(way: Way, archive: Path, directory: Path, options: argparse.Namespace) -> Outcome:
    """Measure one way."""
    count = way.nodes + way.killed
    with network(count, options.rate):
        for old in directory.glob("n*"):
            shutil.rmtree(old)
        processes: list[subprocess.Popen[str]] = []
        try:
            source = start(0, source_command(way, archive, directory, options))
            processes.append(source)
            if way.name in ("peers", "chain", "direct"):
                wait_for_line(source)
            nodes = []
            for number in range(1, count + 1):
                (directory / f"n{number}").mkdir()
                nodes.append(start(number, node_command(way, number, archive, directory, options)))
                processes.append(nodes[-1])
            # The start of Python is not measured.
            for node in nodes if way.name != "aria2" else ():
                wait_for_line(node)
            job = [start(number, me("job", "exchange", str(number))) for number in (1, 2) if way.job]
            processes += job
            steps = [steps_of(job[0], ALONE_S)] if job else []
            cpu, before, began = cpu_s(processes), sent_bytes(), time.monotonic()
            for node in nodes:
                assert node.stdin is not None
                node.stdin.write("go\n")
                node.stdin.flush()
            if way.killed:
                victim = nodes.pop()
                time.sleep(options.size * 8 / options.rate / 2 + 1)
                victim.kill()
            lines = [wait_for_line(node) for node in nodes]
            seconds, sent, used = time.monotonic() - began, sent_bytes() - before, cpu_s(processes) - cpu
            steps += [steps_of(job[0])] if job else []
            return Outcome(seconds, sent, used, lines, steps)
        finally:
            for process in processes:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def source_command(way: Way, archive: Path, directory: Path, options: argparse.Namespace) -> list[str]:
    """Return the command of the source."""
    if way.name == "aria2":
        torrent = directory / "archive.torrent"
        torrent.write_bytes(torrent_of(archive))
        return [
            *aria2(options),
            "--seed-ratio=0",
            f"--dir={directory}",
            "--check-integrity=true",
            str(torrent),
        ]
    if way.name == "udpcast":
        sender = [f"{options.udpcast}/udp-sender", f"--file={archive}", f"--min-receivers={way.nodes}"]
        return [*sender, *UDPCAST, "--full-duplex", f"--max-bitrate={0.9 * options.rate:.0f}m"]
    if way.name == "registry":
        shutil.rmtree(directory / "registry", ignore_errors=True)
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        stored = directory / "registry" / "docker/registry/v2"
        blob = stored / f"blobs/sha256/{digest[:2]}/{digest}/data"
        link = stored / f"repositories/archive/_layers/sha256/{digest}/link"
        for path in (blob, link):
            path.parent.mkdir(parents=True)
        blob.hardlink_to(archive)
        link.write_text(f"sha256:{digest}")
        return registry(options.docker_registry, SOURCE, directory / "registry")
    return me("source", way.name, str(archive), str(way.present), str(way.bandwidth), str(way.piece))


def node_command(
    way: Way, number: int, archive: Path, directory: Path, options: argparse.Namespace
) -> list[str]:
    """Return the command of a node, which prints a line when it has everything."""
    own = directory / f"n{number}"
    if way.name == "aria2":
        # The hook prints the line.
        hook = directory / "done.sh"
        hook.write_text("#!/bin/sh\necho done > /proc/$PPID/fd/1\n")
        hook.chmod(0o755)
        done = f"--on-bt-download-complete={hook}"
        return [*aria2(options), "--seed-ratio=0", done, f"--dir={own}", str(directory / "archive.torrent")]
    what = {"udpcast": options.udpcast, "registry": options.docker_registry}.get(way.name, way.present)
    words = (number, own / "archive", archive, what, way.bandwidth, way.piece)
    return me("node", way.name, *map(str, words))


def me(*words: str) -> list[str]:
    """Return the command that starts this program in a namespace."""
    return [sys.executable, __file__, "--as", *words]


def aria2(options: argparse.Namespace) -> list[str]:
    """Return the command of aria2c without a tracker: it finds peers by multicast."""
    words = [
        "--bt-enable-lpd=true",
        "--enable-dht=false",
        "--enable-peer-exchange=true",
        "--file-allocation=none",
    ]
    return [
        options.aria2c,
        *words,
        "--listen-port=6881",
        "--bt-lpd-interface=eth0",
        "--summary-interval=0",
        "-q",
    ]


def torrent_of(archive: Path) -> bytes:
    """Return a torrent of an archive, with pieces of the product's size."""
    data = archive.read_bytes()
    length = 1 << 20
    hashes = b"".join(
        hashlib.sha1(data[begin : begin + length]).digest()  # noqa: S324  # BitTorrent's
        for begin in range(0, len(data), length)
    )
    head = f"d6:lengthi{len(data)}e4:name7:archive12:piece lengthi{length}e6:pieces{len(hashes)}:"
    return b"d4:info" + head.encode() + hashes + b"ee"


def registry(program: str, address: str, directory: Path, remote: str = "") -> list[str]:
    """Return the command of a registry; with `remote`, a URL, it is a cache of that one."""
    directory.mkdir(exist_ok=True)
    configuration = {
        "version": "0.1",
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(directory)}},
        "http": {"addr": f"{address}:{PORT}"},
        **({"proxy": {"remoteurl": remote}} if remote else {}),
    }
    path = directory / "config.yml"
    path.write_text(json.dumps(configuration))
    return [program, "serve", str(path)]


# ---- the network


@contextlib.contextmanager
def network(nodes: int, rate: float) -> Iterator[None]:
    """Make a switch, a source and nodes; `rate` is that of their links in Mb/s each way."""
    names = [PREFIX, *(f"{PREFIX}{number}" for number in range(nodes + 1))]
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", PREFIX, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
        ip("-n", PREFIX, "link", "set", "br0", "up")
        for number, name in enumerate(names[1:]):
            port = f"p{number}"
            ip("-n", PREFIX, "link", "add", port, "type", "veth", "peer", "eth0", "netns", name)
            ip("-n", PREFIX, "link", "set", port, "master", "br0", "up")
            ip("-n", name, "address", "add", f"10.77.0.{number + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "route", "add", "default", "dev", "eth0")
            for where, link in ((PREFIX, port), (name, "eth0")):
                words = f"qdisc add dev {link} root tbf rate {rate}mbit burst 256kb latency 50ms"
                subprocess.run(["tc", "-n", where, *words.split()], check=True)
        yield
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def ip(*words: str) -> None:
    """Run ip."""
    subprocess.run(["ip", *words], check=True)


def start(number: int, command: Sequence[str]) -> subprocess.Popen[str]:
    """Start a program in the namespace of a node; 0 is the source."""
    inside = ["nsenter", f"--net=/run/netns/{PREFIX}{number}", *command]
    quiet = subprocess.DEVNULL
    pipe = subprocess.PIPE
    return subprocess.Popen(inside, stdin=pipe, stdout=pipe, stderr=quiet, text=True, start_new_session=True)


def wait_for_line(process: subprocess.Popen[str]) -> str:
    """Wait until a program prints a line, and return it."""
    assert process.stdout is not None
    timer = threading.Timer(NEVER_S, process.kill)
    timer.daemon = True
    timer.start()
    line = process.stdout.readline()
    timer.cancel()
    assert line, "a program has ended"
    return line


def steps_of(job: subprocess.Popen[str], after_s: float = 0) -> tuple[float, float]:
    """Return the mean seconds of the job's steps since the last call, and of their computation."""
    time.sleep(after_s)
    job.send_signal(signal.SIGUSR1)
    step, computed = json.loads(wait_for_line(job))
    return step, computed


def cpu_s(processes: Sequence[subprocess.Popen[str]]) -> float:
    """Return the CPU seconds that programs and their children have used."""
    own = [str(process.pid) for process in processes]
    children = " ".join(Path(f"/proc/{pid}/task/{pid}/children").read_text() for pid in own).split()
    texts = [Path(f"/proc/{pid}/stat").read_text() for pid in (*own, *children)]
    ticks = sum(int(field) for text in texts for field in text.rpartition(")")[2].split()[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def sent_bytes() -> int:
    """Return the bytes that the source's link has sent."""
    read = "cat /proc/net/dev"
    inside = ["nsenter", f"--net=/run/netns/{PREFIX}0", *read.split()]
    text = subprocess.run(inside, check=True, capture_output=True, text=True).stdout
    line = next(line for line in text.splitlines() if line.strip().startswith("eth0:"))
    return int(line.partition(":")[2].split()[8])


# ---- what runs in a namespace


def take_part(part: str, way: str, *rest: str) -> None:
    """Run as the source or a node."""
    parts: dict[tuple[str, str], Callable[..., None]] = {
        ("source", "peers"): peers_source,
        ("node", "peers"): peers_node,
        ("source", "chain"): chain_source,
        ("node", "chain"): peers_node,
        ("job", "exchange"): exchange,
        ("source", "direct"): direct_source,
        ("node", "direct"): direct_node,
        ("node", "udpcast"): udpcast_node,
        ("node", "registry"): registry_node,
    }
    parts[part, way](*rest)


def pieces_of(archive: str, present: str, piece: str) -> tuple[Any, tuple[str, ...]]:
    """Return the pieces of an archive, and the layers that a node already has."""
    environment.make_importable()
    from ansible_collections.rdm.provision.plugins.module_utils.images import pieces as module
    from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import ArchiveIndex

    size = Path(archive).stat().st_size
    with mock.patch.object(module, "SMALLEST", int(piece)):
        pieces = module.read_pieces(archive, ArchiveIndex("gzip", size, "", 0, True, []))
    return pieces._replace(layers={"old": (0, int(size * float(present)), "")}), ("old",) if float(
        present
    ) else ()


def peers_source(archive: str, present: str, bandwidth: str, piece: str) -> None:
    """Serve an archive as the source."""
    pieces, _left_out = pieces_of(archive, present, piece)
    from ansible_collections.rdm.provision.plugins.module_utils.images.peer import Peer, Settings

    settings = Settings("source", SOURCE, PORT, TOKEN, None, float(bandwidth) * 1e6 / 8, NEVER_S)
    peer = Peer(settings, pieces.digest, archive, pieces)
    signal.signal(signal.SIGTERM, lambda _number, _frame: peer.ended.set())
    print("ready", flush=True)
    peer.run()


def chain_source(*words: str) -> None:
    """Serve an archive to the first node only; each other node gets the one before it as its neighbour."""
    environment.make_importable()
    from ansible_collections.rdm.provision.plugins.module_utils.images import peer_members

    def before(names: Sequence[str], own: str, _turn: int) -> list[str]:
        at = names.index(own)
        return list(names[max(at - 1, 0) : at])

    with mock.patch.object(peer_members, "DIRECT", 1), mock.patch.object(peer_members, "neighbours", before):
        peers_source(*words)


def peers_node(number: str, path: str, archive: str, present: str, bandwidth: str, piece: str) -> None:
    """Fetch an archive as a node, and print when each piece has arrived."""
    pieces, left_out = pieces_of(archive, present, piece)  # only for its digest
    from ansible_collections.rdm.provision.plugins.module_utils.images.peer import Peer, Settings

    address = f"10.77.0.{int(number) + 1}"
    sends = float(bandwidth) * 1e6 / 8
    settings = Settings(f"n{number}", address, PORT, TOKEN, (SOURCE, PORT), sends, NEVER_S)
    wait_for_go()
    peer = Peer(settings, pieces.digest, path, left_out=left_out)
    arrived: dict[int, float] = {}
    write = peer.file.write

    def timed(number: int, data: bytes) -> None:
        write(number, data)
        arrived.setdefault(number, time.monotonic())

    peer.file.write = timed  # type: ignore[method-assign,assignment]
    threading.Thread(target=peer.run, daemon=True).start()
    while peer.missing:
        time.sleep(0.02)
    print([at for _number, at in sorted(arrived.items())], flush=True)
    signal.pause()


def wait_for_go() -> None:
    """Wait until all are ready."""
    print("ready", flush=True)
    sys.stdin.readline()


class _Whole(socketserver.BaseRequestHandler):
    archive = ""

    def handle(self) -> None:
        with Path(self.archive).open("rb") as file:
            self.request.sendfile(file)


def direct_source(archive: str, *_settings: str) -> None:
    """Send the whole archive to every node that connects."""
    _Whole.archive = archive
    with socketserver.ThreadingTCPServer((SOURCE, PORT), _Whole) as server:
        print("ready", flush=True)
        server.serve_forever()


def direct_node(_number: str, path: str, *_settings: str) -> None:
    """Receive the whole archive."""
    wait_for_go()
    with socket.create_connection((SOURCE, PORT)) as connection, Path(path).open("wb") as file:
        while data := connection.recv(1 << 18):
            file.write(data)
    print("done", flush=True)


def udpcast_node(_number: str, path: str, _archive: str, programs: str, *_settings: str) -> None:
    """Receive the archive that is sent to all at the same time."""
    wait_for_go()
    command = [f"{programs}/udp-receiver", f"--file={path}", *UDPCAST]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    print("done", flush=True)
    signal.pause()


def registry_node(number: str, path: str, archive: str, program: str, *_settings: str) -> None:
    """Pull the archive, as a blob, through this node's registry from the one above it in a tree.

    It waits until that one has all of it: a registry that has not passes every request on.
    """
    parent = int(number) // 2
    address, above = f"10.77.0.{int(number) + 1}", f"http://10.77.0.{parent + 1}:{PORT}"
    digest = hashlib.sha256(Path(archive).read_bytes()).hexdigest()
    command = registry(program, address, Path(path).parent / "registry", above)
    process = subprocess.Popen(command)
    while True:
        if process.poll() is not None:  # the registry above it was not there yet
            process = subprocess.Popen(command)
        with contextlib.suppress(ConnectionError), socket.create_connection((address, PORT)):
            break
        time.sleep(0.1)
    wait_for_go()
    while parent and not (Path(path).parents[1] / f"n{parent}" / "done").exists():
        time.sleep(0.05)
    blob = f"http://{address}:{PORT}/v2/archive/blobs/sha256:{digest}"
    with urllib.request.urlopen(blob) as answer, Path(path).open("wb") as file:
        shutil.copyfileobj(answer, file, 1 << 18)
    (Path(path).parent / "done").touch()
    print("done", flush=True)
    signal.pause()


def exchange(number: str) -> None:
    """Run steps of a job of two members: each computes, then they exchange data, as for a mean of gradients.

    SIGUSR1 makes the first member print the mean seconds of its steps since the last signal, and of their
    computation.
    """
    data = bytes(COMPUTED_BYTES)
    if number == "1":
        with socket.create_server(("10.77.0.2", PORT + 1)) as server:
            other = server.accept()[0]
    else:
        while True:
            with contextlib.suppress(ConnectionError):
                other = socket.create_connection(("10.77.0.2", PORT + 1))
                break
            time.sleep(0.05)
    times: list[tuple[float, float]] = []

    def report(_number: int, _frame: object) -> None:
        print([statistics.fmean(column) for column in zip(*times, strict=True)], flush=True)
        times.clear()

    signal.signal(signal.SIGUSR1, report)
    while True:
        began = time.monotonic()
        hashlib.sha256(data).digest()
        computed = time.monotonic() - began
        sender = threading.Thread(target=other.sendall, args=(data[:EXCHANGED_BYTES],), daemon=True)
        sender.start()
        left = EXCHANGED_BYTES
        while left:
            left -= len(other.recv(min(left, 1 << 18)))
        sender.join()
        times.append((time.monotonic() - began, computed))


# ---- more nodes than one machine has


def curve(counts: Sequence[int], size: int, rate: float) -> str:
    """Return a table of simulated transfers, by the number of nodes.

    Args:
        counts: numbers of nodes.
        size: bytes of the archive.
        rate: bits per second of each link.
    """
    environment.make_importable()
    from ansible_collections.rdm.provision.plugins.module_utils.images.peer_schedule import (
        TURN_S,
        announce_every_s,
    )
    from ansible_collections.rdm.provision.plugins.module_utils.images.pieces import piece_size

    piece_s = piece_size(size) * 8 / rate
    pieces = -(-size // piece_size(size))
    hop = round(HOP_S / piece_s + HOP_PIECES - 1)
    rows = [["nodes", "all have joined s", "all have it s", "/ one node", "all loads begin s", "sent / size"]]
    for nodes in counts:
        every_s = announce_every_s(nodes)
        turn, announce = (max(1, round(one / piece_s)) for one in (max(TURN_S, every_s), every_s))
        steps, sent = simulated(nodes, pieces, turn, hop=hop, join=CALL_S / piece_s, announce=announce)
        seconds = steps * piece_s
        calls = nodes * CALL_S
        ratio = f"{seconds / (pieces * piece_s):.2f}"
        times = [f"{calls:.0f}", f"{seconds:.0f}", ratio, f"{seconds + calls:.0f}"]
        rows.append([f"{nodes:,}", *times, f"{sent / pieces:.2f}"])
        print(rows[-1], file=sys.stderr)
    return markdown(rows, 0)


def simulated(
    nodes: int,
    pieces: int,
    turn: int = TURN,
    hop: int = 0,
    join: float = 0,
    announce: int = TURN,
) -> tuple[int, int]:
    """Return the steps until all nodes have all pieces, and the pieces that the source has sent.

    In a step, the time of one piece on one link, each sends at most one piece and receives at most one.
    Who fetches what from whom is decided by the product's own functions.

    Args:
        nodes: how many.
        pieces: of the archive.
        turn: steps after which nodes get other neighbours.
        hop: steps after which a piece that has arrived can be passed on.
        join: steps from one node's start to the next one's.
        announce: steps between two announcements of a node; the answers have the nodes that have started.
    """
    environment.make_importable()
    from ansible_collections.rdm.provision.plugins.module_utils.images.peer_members import DIRECT
    from ansible_collections.rdm.provision.plugins.module_utils.images.peer_schedule import neighbours, rarest

    chance = random.Random(1)  # noqa: S311
    full = (1 << pieces) - 1
    have = [0] * nodes
    # What can be passed on now comes first.
    known = collections.deque([list(have)] * (hop + 1), maxlen=hop + 1)
    names: list[str] = []
    others: dict[int, list[int]] = {}
    lacking: list[int] = []
    sent = step = 0
    while lacking or len(names) < nodes:
        started = range(len(names), min(nodes, int(step / join) + 1) if join else nodes)
        names += map(str, started)
        lacking += started
        # A node that starts announces itself at once.
        for own in range(len(names)) if step % announce == 0 else started:
            others[own] = [int(name) for name in neighbours(names, str(own), step // turn)]
        step += 1
        before = known[0]
        busy: set[int] = set()
        fed = -1
        if sent < pieces and lacking:
            fed = chance.choice(lacking[:DIRECT])
            have[fed] |= 1 << sent
            sent += 1
        for node in chance.sample(lacking, len(lacking)):
            if node == fed:
                continue
            free = [other for other in others[node] if other not in busy]
            number = rarest(full & ~have[node], [before[other] for other in free], chance)
            if number is not None:
                busy.add(chance.choice([other for other in free if before[other] >> number & 1]))
                have[node] |= 1 << number
        known.append(list(have))
        lacking = [node for node in lacking if have[node] != full]
    return step, sent


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures, inside one container, the round-trip time to each peer on the fabric, and checks their sshd.

`rdm.provision.fabric_probe` runs the text of this file in the training container with `python3 -c`. So it
uses only the standard library of Python 3.7 or newer, and no other file of ours.

It takes one JSON object, split into arguments (Linux allows 128 KiB per argument), and prints one:

    {"source": MY_IP, "peers": [address…], "tries": 3, "deadline": 10, "timeout": 5, "port": 22,
     "ssh": [index…], "login": [address…]}

    {"problem": "", "method": "icmp", "note": "", "link": {"name": "eth0", "up": true}, "also": "" or a MAC,
     "rtt_us": [median or null…], "min_us": [minimum or null…], "sent": [n…], "answered": [n…],
     "errors": {"index": text}, "ssh": {"index": "" or error}, "login": {address: "" or error}}

Peers are probed in the given order. If each caller rotates the list by its own rank, the nodes do not all
probe the same peer at once. `timeout` is how long to wait for a silent peer after its regular tries. An sshd
whose port is open has until shortly before `deadline`, which ends everything.

Times are in microseconds, limits in seconds. The kernel takes the time of arrival, so that a busy processor
does not count as a slow network.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import statistics
import struct
import sys
import time
from typing import Any, NamedTuple, Tuple

Stream = Tuple[asyncio.StreamReader, asyncio.StreamWriter]

ECHO_REPLY, ECHO_REQUEST = 0, 8
HEADER = struct.Struct("!BBHHH")  # type, code, checksum, identifier, sequence number
STAMP = struct.Struct("!8sIH")  # token, index of the peer, sequence number
SO_TIMESTAMPNS = 35
ETHERNET, BROADCAST = 1, b"\xff" * 6
ARP = struct.Struct("!6s6sHHHBBH6s4s6s4s")  # RFC 826, with the Ethernet header
SIOCGIFFLAGS, SIOCGIFADDR = 0x8913, 0x8915
IFF_UP, IFF_RUNNING = 0x1, 0x40

GAP = 0.001  # between two sends, not to flood the switch
SPACING = 0.02  # between two tries to the same peer
LATE = 0.5  # for the further answers of a peer that has answered once
AGAIN = 0.25  # between two tries to a silent peer
SILENT = "no answer"
REFUSED = ("Permission denied", "verification failed")  # ssh's messages after which a retry is useless
# A login here sends no secret, so it needs no post-quantum key exchange, which takes most of its CPU time in
# OpenSSH 9.0 to 9.8. OpenSSH has these two since 6.5.
KEY_EXCHANGE = ("-o", "KexAlgorithms=curve25519-sha256@libssh.org,ecdh-sha2-nistp256")
CONNECTIONS = 500  # at once, below the usual limit of open files


class Settings(NamedTuple):
    """The input: see the top of this file."""

    source: str
    peers: list[str]
    tries: int
    deadline: float
    timeout: float
    port: int
    ssh: list[int]
    login: list[str]


class Peer:
    """One peer and its results."""

    def __init__(self, index: int, address: str) -> None:
        self.index = index
        self.address = address
        self.sent = 0
        self.rtts: list[float] = []
        self.error = ""
        self.ssh: str | None = None
        self.heard = asyncio.Event()


class Icmp:
    """Echo requests through a raw socket, or the kernel's ping socket where raw ones are not allowed.

    Raises:
        PermissionError: neither socket is allowed.
        OSError: with errno EADDRNOTAVAIL if the container does not have the source address.
    """

    method = "icmp"

    def __init__(self, source: str, peers: list[Peer]) -> None:
        try:
            self.socket = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
            self.raw = True
        except PermissionError:
            self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
            self.raw = False
        self.peers = peers
        self.token = os.urandom(8)
        self.identifier = random.randrange(1, 0xFFFF)  # noqa: S311
        self.times: dict[tuple[int, int], tuple[int, float]] = {}
        if self.raw:  # SOL_RAW, ICMP_FILTER: wake up for echo replies only
            self.socket.setsockopt(255, 1, struct.pack("=I", ~(1 << ECHO_REPLY) & 0xFFFFFFFF))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.socket.setblocking(False)
        if source:
            try:
                self.socket.bind((source, 0))
            except OSError:
                self.socket.close()
                raise
        asyncio.get_running_loop().add_reader(self.socket.fileno(), self.receive)

    def send(self, peer: Peer) -> None:
        """Send one request; its answer is counted when it comes."""
        number = peer.sent
        fields = (self.identifier, number & 0xFFFF)
        payload = STAMP.pack(self.token, peer.index, number).ljust(56, b"\0")
        total = checksum(HEADER.pack(ECHO_REQUEST, 0, 0, *fields) + payload)
        packet = HEADER.pack(ECHO_REQUEST, 0, total, *fields) + payload
        self.times[peer.index, number] = (time.time_ns(), time.perf_counter())
        try:
            self.socket.sendto(packet, (peer.address, 0))
        except OSError as error:
            if error.errno in (
                errno.ENOBUFS,
                errno.EAGAIN,
            ):  # our own queue is full
                return
            peer.error = words(error)
        peer.sent += 1

    def receive(self) -> None:
        """Count all answers received so far."""
        while True:
            try:
                data, ancillary, _flags, sender = self.socket.recvmsg(2048, 256)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # an ICMP error; the peer counts as silent
                return
            now_ns, now = time.time_ns(), time.perf_counter()
            if self.raw:
                data = data[(data[0] & 0x0F) * 4 :]
            if len(data) < HEADER.size + STAMP.size or data[0] != ECHO_REPLY:
                continue
            token, index, number = STAMP.unpack_from(data, HEADER.size)
            if token != self.token or index >= len(self.peers) or sender[0] != self.peers[index].address:
                continue
            sent = self.times.pop((index, number), None)
            if sent is None:  # a duplicate
                continue
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(content) >= 16:
                    seconds, nanoseconds = struct.unpack("=qq", content[:16])
                    now_ns = seconds * 10**9 + nanoseconds
            rtt = (now_ns - sent[0]) / 1000.0
            if not 0 < rtt <= (now - sent[1]) * 1e6 + 1000:  # the clock was set meanwhile
                rtt = (now - sent[1]) * 1e6
            peer = self.peers[index]
            peer.rtts.append(rtt)
            peer.heard.set()


class Tcp:
    """Times of TCP connections, for containers that may not send ICMP. A refusal counts as an answer."""

    method = "tcp"

    def __init__(self, source: str, port: int) -> None:
        self.source = source
        self.port = port
        self.running: dict[int, asyncio.Future[None]] = {}
        self.room = asyncio.Semaphore(CONNECTIONS)

    def send(self, peer: Peer) -> None:
        """Start a connection, unless one to this peer is still pending."""
        if peer.index in self.running:
            return
        peer.sent += 1
        task = asyncio.ensure_future(self.connect(peer))
        self.running[peer.index] = task
        task.add_done_callback(lambda _task: self.running.pop(peer.index))

    async def connect(self, peer: Peer) -> None:
        """Time one connection."""
        async with self.room:
            begin = time.perf_counter()
            try:
                _reader, writer = await connection(peer.address, self.port, self.source)
                writer.close()
            except ConnectionRefusedError:
                pass
            except OSError as error:
                peer.error = words(error)
                return
        peer.rtts.append((time.perf_counter() - begin) * 1e6)
        peer.heard.set()


class ConflictDetector:
    """Detects whether another host has our address, with the ARP probe of RFC 5227.

    Raises:
        OSError: it cannot probe: without NET_RAW, or on a link that is not Ethernet.
    """

    def __init__(self, link: str, address: str) -> None:
        self.other = ""
        self.address = socket.inet_aton(address)
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806))
        self.socket.setblocking(False)
        try:
            self.socket.bind((link, 0x0806))
            _link, _protocol, _packet, kind, self.mac = self.socket.getsockname()
            if kind != ETHERNET:
                raise OSError(errno.EPROTONOSUPPORT, link)
        except OSError:
            self.socket.close()
            raise
        loop = asyncio.get_running_loop()
        loop.add_reader(self.socket.fileno(), self.receive)
        self.send()
        loop.call_later(AGAIN, self.send)

    def send(self) -> None:
        """Send a probe; on a link that is down it is lost."""
        fixed = (0x0806, ETHERNET, 0x0800, 6, 4, 1)
        frame = ARP.pack(BROADCAST, self.mac, *fixed, self.mac, bytes(4), bytes(6), self.address)
        with contextlib.suppress(OSError):
            self.socket.send(frame)

    def receive(self) -> None:
        """Note the sender of an announcement of the address."""
        with contextlib.suppress(OSError):
            data = self.socket.recv(2048)
            if len(data) >= ARP.size:
                *_, mac, sender, _target, _wanted = ARP.unpack_from(data)
                if sender == self.address and mac != self.mac:
                    self.other = ":".join("%02x" % byte for byte in mac)


def checksum(packet: bytes) -> int:
    """Return the Internet checksum (RFC 1071) of a packet of even length."""
    total: int = sum(struct.unpack("!%dH" % (len(packet) // 2), packet))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def words(error: OSError) -> str:
    """Return the system's message for an error, without the address that asyncio adds."""
    return os.strerror(error.errno).lower() if error.errno else str(error)


async def connection(address: str, port: int, source: str) -> Stream:
    """Return a TCP connection from the source address."""
    return await asyncio.open_connection(address, port, local_addr=(source, 0) if source else None)


def link_of(address: str) -> dict[str, Any]:
    """Return the interface with an address, and whether it is up and has a carrier."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _index, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                found = socket.inet_ntoa(fcntl.ioctl(probe, SIOCGIFADDR, request)[20:24])
            except OSError:  # it has no IPv4 address
                continue
            if found == address:
                flags = struct.unpack_from("=H", fcntl.ioctl(probe, SIOCGIFFLAGS, request), 16)[0]
                return {"name": name, "up": flags & (IFF_UP | IFF_RUNNING) == IFF_UP | IFF_RUNNING}
    return {"name": "", "up": None}


async def banner(address: str, settings: Settings, until: float, end: float) -> str:
    """Return "" if an sshd sends its banner, else the error.

    The connection must succeed before `until`, and the banner arrive before `end`: on a busy node the kernel
    accepts connections before sshd gets to run.
    """
    loop = asyncio.get_running_loop()
    opening = connection(address, settings.port, settings.source)
    try:
        # A process that got no processor time until the deadline still gets one short try.
        reader, writer = await asyncio.wait_for(opening, max(until - loop.time(), AGAIN))
    except asyncio.TimeoutError:
        return SILENT
    except OSError as error:
        return words(error)
    begun = loop.time()
    try:
        line = await asyncio.wait_for(reader.readline(), max(end - begun, AGAIN))
    except asyncio.TimeoutError:
        return "its port is open, and nothing greeted within %.1f s" % (loop.time() - begun)
    except (OSError, ValueError):  # ValueError: a line that is too long
        line = b""
    finally:
        writer.close()
    if line.startswith(b"SSH-"):
        return ""
    return "something other than an sshd answers" if line else "connection closed without a greeting"


async def greeting(address: str, settings: Settings, until: float, end: float) -> str:
    """Return "" as soon as an sshd sends its banner, else the last error: see `banner`."""
    loop = asyncio.get_running_loop()
    found = SILENT
    while True:
        output = await banner(address, settings, until, end)
        if output != SILENT:  # the last try is cut short; an earlier error is better than none
            found = output
        left = until - loop.time()
        if not found or left <= 0:
            return found
        await asyncio.sleep(min(AGAIN, left))


async def query_ssh(peer: Peer, settings: Settings, until: float, end: float) -> None:
    """Try a peer's sshd until it sends its banner or the peer's time is over."""
    peer.ssh = SILENT
    peer.ssh = await greeting(peer.address, settings, until, end)


async def log_in(address: str, settings: Settings, end: float) -> str:
    """Return "" if ssh logs in at an address, with key and host key, else ssh's error.

    The timeout applies to a port that is not open. Once an sshd has sent its banner, the login has until the
    end, since it may be slow on a busy node.
    """
    loop = asyncio.get_running_loop()
    timeout = loop.time() + settings.timeout
    options = ["-o", "BatchMode=yes", "-o", "ControlPath=none", "-p", str(settings.port)]
    exchange: tuple[str, ...] = KEY_EXCHANGE
    while True:
        silence = await greeting(address, settings, min(timeout, end), end)
        if silence:
            return silence
        begun = loop.time()
        ssh = await asyncio.create_subprocess_exec(
            *["ssh", "-n", "-T", *options, *exchange, address, "exit"],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, output = await asyncio.wait_for(ssh.communicate(), max(end - begun, AGAIN))
        except asyncio.TimeoutError:
            return "its sshd greets, and the login did not end within %.1f s" % (loop.time() - begun)
        finally:
            if ssh.returncode is None:
                ssh.kill()
                await ssh.wait()
        if ssh.returncode == 0:
            return ""
        lines = output.decode("utf-8", "replace").split("\n")
        last = next((line.strip(" .\r") for line in reversed(lines) if line.strip()), "it failed")
        over = not exchange and loop.time() + AGAIN >= timeout
        if over or any(word in last for word in REFUSED):
            return last
        exchange = ()  # ssh or sshd may not allow it
        await asyncio.sleep(AGAIN)


async def log_ins(settings: Settings, result: dict[str, Any], end: float) -> None:
    """Log in at all addresses at once, and put each outcome into the result."""
    if settings.login and not shutil.which("ssh"):
        output = "there is no ssh in the container, so no login was tried"
        result["note"] = "; ".join(filter(None, [result["note"], output]))
        return
    ends = await asyncio.gather(*(log_in(address, settings, end) for address in settings.login))
    result["login"].update(zip(settings.login, ends))


async def heard(peer: Peer, seconds: float) -> None:
    """Wait for the next answer of a peer, for at most so many seconds."""
    peer.heard.clear()
    try:
        await asyncio.wait_for(peer.heard.wait(), seconds)
    except asyncio.TimeoutError:
        pass


async def watch(peer: Peer, prober: Icmp | Tcp, settings: Settings, end: float) -> None:
    """Measure one peer: some tries, and more of them if it stays silent, until its time is over."""
    loop = asyncio.get_running_loop()
    tries, count = settings.tries, len(settings.peers)
    gap = min(GAP, 0.3 * settings.deadline / (tries * count))
    await asyncio.sleep(peer.index * gap)
    for _ in range(tries):
        prober.send(peer)
        await asyncio.sleep(max(SPACING, count * gap))
    until = loop.time() + settings.timeout
    ssh = None
    if peer.index in settings.ssh:
        ssh = asyncio.ensure_future(query_ssh(peer, settings, until, end))
    while not peer.rtts:
        await heard(peer, AGAIN)
        if peer.rtts or loop.time() >= until:
            break
        prober.send(peer)
    late = loop.time() + LATE
    while 0 < len(peer.rtts) < peer.sent and loop.time() < late:
        await heard(peer, late - loop.time())
    if ssh is not None:
        await ssh


async def measure(settings: Settings) -> dict[str, Any]:
    """Return the results at the deadline, or earlier."""
    peers = [Peer(index, address) for index, address in enumerate(settings.peers)]
    source = settings.source
    result: dict[str, Any] = {"problem": "", "method": "icmp", "note": "", "link": link_of(source)}
    result["login"] = {}
    detector = None
    with contextlib.suppress(OSError):
        detector = ConflictDetector(result["link"]["name"], source)
    try:
        prober: Icmp | Tcp = Icmp(source, peers)
    except PermissionError:
        prober = Tcp(source, settings.port)
        result["method"] = Tcp.method
        result["note"] = (
            "raw sockets are not allowed in the container (NET_RAW): times are those of TCP connections"
        )
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        result["problem"] = "the container does not have the address %s" % source
        return result
    end = asyncio.get_running_loop().time() + settings.deadline - LATE
    tasks = [asyncio.ensure_future(watch(peer, prober, settings, end)) for peer in peers]
    tasks.append(asyncio.ensure_future(log_ins(settings, result, end)))
    done, pending = await asyncio.wait(tasks, timeout=settings.deadline)
    for task in pending:
        task.cancel()
    for task in done:
        task.result()  # raise an error of our own
    result.update(
        also=detector.other if detector else "",
        rtt_us=[round(statistics.median(peer.rtts), 1) if peer.rtts else None for peer in peers],
        min_us=[round(min(peer.rtts), 1) if peer.rtts else None for peer in peers],
        sent=[peer.sent for peer in peers],
        answered=[len(peer.rtts) for peer in peers],
        errors={str(peer.index): peer.error for peer in peers if peer.error and not peer.rtts},
        ssh={str(peer.index): peer.ssh for peer in peers if peer.ssh is not None},
    )
    return result


def main(arguments: list[str]) -> None:
    """Read the settings from the arguments, measure, print the result."""
    settings = Settings(**json.loads("".join(arguments)))
    signal.alarm(int(settings.deadline) + 5)  # the engine cannot end a command, so it ends itself
    json.dump(asyncio.run(measure(settings)), sys.stdout, separators=(",", ":"))


if __name__ == "__main__":
    main(sys.argv[1:])

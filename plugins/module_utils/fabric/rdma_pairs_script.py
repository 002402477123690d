# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures, inside one container, the RDMA bandwidth and latency to its partners, one after the other.

`rdm.provision.rdma_probe` runs the text of this file in the training container with `python3 -c`. So it uses
only the standard library of Python 3.7 or newer, and no other file of ours.

All nodes follow the same rounds. In each round a node has one partner, or none. There is no coordinator, so a
node that is late or dead costs only its own pairs. Two partners connect over TCP on their fabric addresses:
the one with the lower rank calls, the other waits and watches whether the caller lives. Both report their
round every second, so that each notices when the other has gone on without it. Then perftest runs between
them, with its server on a port that was just found free.

It takes one JSON object, split into arguments (Linux allows 128 KiB per argument):

    {"run": token, "name": node, "address": MY_IP, "ports": [port…], "device": "mlx5_2", "ib_port": 1,
     "gid_index": 3 or null, "rounds": [[name, address, whether it calls] or null…], "seconds": 1,
     "size": 65536, "tries": 1000, "timeout": 5, "gather": 30, "pair_limit": 20, "limit": 120}

With the key "collect" (seconds to wait), it prints the results of that run's program on this node, as soon as
they are complete:

    {"done": true, "round": 7, "of": 7, "pairs": {peer: [sent, received, latency]}, "errors": {peer: text}}

Bandwidths are in Gb/s, latencies in microseconds, limits in seconds; a missing value is null. A slow link
gets fewer tries.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import random
import re
import signal
import socket
import sys
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

MARK = "RDM_VERIFY_RUN"  # in the environment of this program and its children
BEAT = 1.0
AGAIN = 0.25  # between two tries to connect
GREETING = 10.0  # for the answer to a greeting, while a training keeps the node busy
GREETERS = 64  # connections that have not authenticated yet, at most
APPEARS = 60.0  # until a started program listens
LISTENING = 30.0  # until perftest listens
OVER = 1 << 30  # the round of a node that has finished
KEPT = 120.0  # how long to wait for somebody to collect the result
FREE_PORTS = (20000, 32000)  # below those of outgoing connections
PR_SET_PDEATHSIG = 1
GONE = "its part of the measurement ended before its time"
BANDWIDTH, LATENCY = "ib_write_bw", "ib_write_lat"
FEWEST_TRIES = 20

Stream = Tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Settings(NamedTuple):
    """The input: see the top of this file."""

    run: str
    name: str
    address: str
    ports: List[int]
    device: str
    ib_port: int
    gid_index: Optional[int]
    rounds: List[Optional[Tuple[str, str, bool]]]
    seconds: int
    size: int
    tries: int
    timeout: float
    gather: float
    pair_limit: float
    limit: float


class PairError(Exception):
    """Why a pair was not measured; one sentence that names the node."""


class Channel:
    """The connection of two partners: JSON, one object per line."""

    def __init__(self, stream: Stream, peer: str) -> None:
        self.reader, self.writer = stream
        self.peer = peer

    def send(self, **message: Any) -> None:
        """Send an object. A peer that does not read it will not answer."""
        self.writer.write(json.dumps(message).encode() + b"\n")

    async def receive(self, seconds: float) -> Dict[str, Any]:
        """Return the next object.

        Raises:
            PairError: it timed out, or the connection was closed.
        """
        try:
            line = await asyncio.wait_for(self.reader.readline(), seconds)
            message = json.loads(line.decode()) if line else None
        except asyncio.TimeoutError:
            raise PairError("{0} does not answer".format(self.peer)) from None
        except (OSError, ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise PairError("{0} broke off".format(self.peer))
        return message

    def close(self) -> None:
        """Close the connection."""
        self.writer.close()


class Node:
    """This node's measurements, round by round."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.round = -1
        self.pairs: Dict[str, List[Optional[float]]] = {}
        self.errors: Dict[str, str] = {}
        self.calls: Dict[str, Channel] = {}
        self.greeters: Dict[Channel, None] = {}
        self.called = asyncio.Event()
        self.finished = asyncio.Event()
        self.collected = asyncio.Event()
        self.gathered = time.monotonic() + settings.gather

    async def run(self) -> None:
        """Go through the rounds, and keep the result until it is collected."""
        server = await self.listen()
        try:
            try:
                await asyncio.wait_for(self.all_rounds(), self.settings.limit)
            except asyncio.TimeoutError:
                late = "{0} had no time left for it".format(self.settings.name)
                for partner in self.settings.rounds:
                    if partner and None in self.pairs.get(partner[0], [None]):
                        self.errors.setdefault(partner[0], late)
            self.round = OVER
            self.finished.set()
            try:
                await asyncio.wait_for(self.collected.wait(), KEPT)
            except asyncio.TimeoutError:
                pass
        finally:
            server.close()

    async def listen(self) -> Any:
        """Return the server that partners and the collector connect to.

        Raises:
            OSError: none of the ports is free, or the container does not have the address.
        """
        for port in self.settings.ports:
            try:
                return await asyncio.start_server(self.greet, self.settings.address, port)
            except OSError as error:
                problem = error
        raise problem

    async def greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a visitor: a caller, an observer, or the collector."""
        visitor = Channel((reader, writer), "a visitor")
        self.greeters[visitor] = None
        if len(self.greeters) > GREETERS:
            oldest = next(iter(self.greeters))
            del self.greeters[oldest]
            oldest.writer.transport.abort()
        try:
            hello = await visitor.receive(GREETING)
            self.greeters.pop(visitor, None)
            if hello.get("run") == self.settings.run:
                visitor.send(run=self.settings.run, round=self.round)
                if "collect" in hello:
                    await self.hand_over(visitor, float(hello["collect"]))
                else:
                    visitor.peer = str(hello["name"])
                    await self.beat(visitor, bool(hello["watches"]))
                    return
        except (
            PairError,
            OSError,
            KeyError,
            TypeError,
            ValueError,
            asyncio.CancelledError,
        ):  # it, or its end
            self.greeters.pop(visitor, None)
            if self.calls.get(visitor.peer) is visitor:
                del self.calls[visitor.peer]
        visitor.close()

    async def beat(self, visitor: Channel, watches: bool) -> None:
        """Report this node's round, to an observer until it leaves, to a caller until its pair begins.

        Raises:
            OSError: the visitor is gone.
        """
        if not watches:
            self.calls[visitor.peer] = visitor
            self.called.set()
        while True:
            await asyncio.sleep(BEAT)
            if not watches and self.calls.get(visitor.peer) is not visitor:
                return
            visitor.send(round=self.round)
            await visitor.writer.drain()

    async def hand_over(self, visitor: Channel, seconds: float) -> None:
        """Send the result when it is complete, or the partial result after so many seconds."""
        try:
            await asyncio.wait_for(self.finished.wait(), seconds)
        except asyncio.TimeoutError:
            pass
        done = self.finished.is_set()
        count = len(self.settings.rounds)
        visitor.send(
            done=done, round=min(self.round + 1, count), of=count, pairs=self.pairs, errors=self.errors
        )
        await visitor.writer.drain()
        if done:
            self.collected.set()

    # ---- the rounds

    async def all_rounds(self) -> None:
        """Measure with the partner of each round."""
        for number, partner in enumerate(self.settings.rounds):
            self.round = number
            if not partner:
                continue
            peer, address, calls = partner
            channel = None
            try:
                channel = await (self.call(peer, address) if calls else self.wait_for(peer, address))
                await asyncio.wait_for(self.measure(channel, calls), self.settings.pair_limit)
            except asyncio.TimeoutError:
                self.errors[peer] = "it did not end within {0:g} s".format(self.settings.pair_limit)
                if channel is not None:
                    channel.send(error=self.errors[peer])  # the partner may time out a moment later
            except PairError as error:
                self.errors[peer] = str(error)
            except OSError as error:
                self.errors[peer] = "{0}: {1}".format(self.settings.name, words(error))
            finally:
                self.calls.pop(peer, None)
                if channel is not None:
                    channel.close()

    async def call(self, peer: str, address: str) -> Channel:
        """Return the connection to a partner that is ready; wait while it is in an earlier round.

        Raises:
            PairError: it does not answer, or has gone on.
        """
        channel = await self.reach(peer, address, watches=False)
        try:
            while True:
                message = await channel.receive(self.settings.timeout)
                if message.get("ready"):
                    return channel
                self.not_gone_on(peer, message)
        except BaseException:
            channel.close()
            raise

    async def wait_for(self, peer: str, address: str) -> Channel:
        """Return the connection of a partner that calls; wait while it is in an earlier round.

        Raises:
            PairError: it does not answer, or has gone on.
        """
        watching = asyncio.ensure_future(self.watch(peer, address))
        try:
            while peer not in self.calls:
                self.called.clear()
                calling = asyncio.ensure_future(self.called.wait())
                try:
                    await asyncio.wait([calling, watching], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    calling.cancel()
                if watching.done() and peer not in self.calls:
                    watching.result()
        finally:
            watching.cancel()
        channel = self.calls.pop(peer)
        channel.send(ready=True)
        return channel

    async def watch(self, peer: str, address: str) -> None:
        """Watch a partner until it stops answering, or has gone on.

        Raises:
            PairError: always, in the end.
        """
        channel = await self.reach(peer, address, watches=True)
        try:
            while True:
                self.not_gone_on(peer, await channel.receive(self.settings.timeout))
        finally:
            channel.close()

    def not_gone_on(self, peer: str, message: Dict[str, Any]) -> None:
        """Check a partner's report.

        Raises:
            PairError: it is in a later round.
        """
        if int(message.get("round", -1)) > self.round:
            raise PairError("{0} went on without {1}".format(peer, self.settings.name))

    async def reach(self, peer: str, address: str, watches: bool) -> Channel:
        """Return a connection to a partner's program, which may start later than this one.

        Raises:
            PairError: it cannot be reached, or has gone on.
        """
        hello = {"run": self.settings.run, "name": self.settings.name, "watches": watches}
        until = time.monotonic() + self.settings.timeout
        while True:
            begun = time.monotonic()
            try:
                channel, answer = await knock(address, self.settings, hello, self.settings.timeout)
            except OSError as error:
                now = time.monotonic()
                if now >= self.gathered and (now >= until or isinstance(error, ConnectionRefusedError)):
                    reason = "{0} cannot be reached from {1}: {2}"
                    raise PairError(reason.format(peer, self.settings.name, words(error))) from None
                await asyncio.sleep(max(0.0, AGAIN - (now - begun)))
                continue
            channel.peer = peer
            try:
                self.not_gone_on(peer, answer)
            except PairError:
                channel.close()
                raise
            return channel

    # ---- one pair

    async def measure(self, channel: Channel, first: bool) -> None:
        """Measure with a partner: the bandwidth that the first sends and receives, and the latency.

        Raises:
            PairError: something failed, here or there.
        """
        found: List[Optional[float]] = [None, None, None]
        self.pairs[channel.peer] = found
        # perftest's client sends to its server.
        for program, first_serves in ((BANDWIDTH, False), (BANDWIDTH, True), (LATENCY, True)):
            serves = first == first_serves
            how = options(self.settings, program, found)
            value = await (self.serve if serves else self.use)(channel, program, how)
            found[2 if program == LATENCY else 1 if serves else 0] = value

    async def serve(self, channel: Channel, program: str, how: List[str]) -> float:
        """Run perftest's server for a partner and return what the partner measured.

        Raises:
            PairError: something failed, here or there.
        """
        port = free_port(self.settings.address)
        process = await started([*self.command(program, port), *how])
        try:
            until = time.monotonic() + LISTENING
            while not listens(port):
                if process.returncode is not None or time.monotonic() > until:
                    end(process)
                    raise self.failed(channel, program, (await process.communicate())[1])
                await asyncio.sleep(0.02)
            channel.send(port=port)
            return self.value(await channel.receive(self.settings.pair_limit))
        finally:
            end(process)

    async def use(self, channel: Channel, program: str, how: List[str]) -> float:
        """Run perftest's client against a partner's server and return the result.

        Raises:
            PairError: something failed, here or there.
        """
        answer = await channel.receive(self.settings.pair_limit)
        if "port" not in answer:
            return self.value(answer)
        address = channel.writer.get_extra_info("peername")[0]
        process = await started([*self.command(program, int(answer["port"])), *how, address])
        try:
            output, printed = await process.communicate()
        finally:
            end(process)
        value = (latency if program == LATENCY else bandwidth)(output.decode("utf-8", "replace"))
        if process.returncode != 0 or value is None:
            raise self.failed(channel, program, printed or output)
        channel.send(value=value)
        return value

    def command(self, program: str, port: int) -> List[str]:
        """Return the command line of a perftest program, the same for its server and client."""
        settings = self.settings
        argv = [program, "-F", "-d", settings.device, "-i", str(settings.ib_port), "-p", str(port)]
        if settings.gid_index is not None:
            argv += ["-x", str(settings.gid_index)]
        return argv

    def failed(self, channel: Channel, program: str, printed: bytes) -> PairError:
        """Return why perftest failed here, and send it to the partner."""
        lines = [line.strip() for line in printed.decode("utf-8", "replace").splitlines() if line.strip()]
        last = lines[-1] if lines else "it printed no result"
        text = "{0} on {1}: {2}".format(program, self.settings.name, last[:200])
        channel.send(error=text)
        return PairError(text)

    @staticmethod
    def value(message: Dict[str, Any]) -> float:
        """Return what the partner measured.

        Raises:
            PairError: the measurement failed there.
        """
        if "value" in message:
            return float(message["value"])
        raise PairError(str(message.get("error", "the answer of the partner is not known")))


async def knock(
    address: str, settings: Any, hello: Dict[str, Any], seconds: float
) -> Tuple[Channel, Dict[str, Any]]:
    """Return the connection to this run's program at an address, and its answer to the greeting.

    Raises:
        OSError: it listens on none of the ports.
    """
    problem: OSError = ConnectionRefusedError(111, "connection refused")
    for port in settings.ports:
        try:
            opening = asyncio.open_connection(address, port, local_addr=(settings.address, 0))
            channel = Channel(await asyncio.wait_for(opening, seconds), address)
        except ConnectionRefusedError:
            continue
        except asyncio.TimeoutError:
            raise OSError(110, os.strerror(110)) from None
        channel.send(**hello)
        try:
            answer = await channel.receive(GREETING)
        except PairError:
            answer = {}
        if answer.get("run") == settings.run:
            return channel, answer
        channel.close()
    raise problem


async def started(argv: List[str]) -> Any:
    """Return a process that ends with this program, however this program ends."""
    return await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end(process: Any) -> None:
    """Kill a process and its children."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def end_earlier(run: str) -> None:
    """Kill what other runs of this program have left in this container."""
    mark = MARK.encode() + b"="
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open("/proc/{0}/environ".format(name), "rb") as file:
                marks = [word for word in file.read().split(b"\0") if word.startswith(mark)]
            if marks and marks != [mark + run.encode()]:
                os.kill(int(name), signal.SIGKILL)
        except OSError:  # it has ended, or may not be read
            continue


def free_port(address: str) -> int:
    """Return a free port.

    Raises:
        PairError: there is none.
    """
    for port in random.sample(range(*FREE_PORTS), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise PairError("no port is free on {0}".format(address))


def listens(port: int) -> bool:
    """Return whether a port is listened on, by the kernel's table: a connection would use up the server."""
    wanted = ":{0:04X}".format(port)
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as file:
                rows = [line.split() for line in file]
        except OSError:
            continue
        if any(len(row) > 3 and row[1].endswith(wanted) and row[3] == "0A" for row in rows):
            return True
    return False


def bandwidth(text: str) -> Optional[float]:
    """Return the average bandwidth in Gb/s from the output of ib_write_bw; None if it is missing."""
    row = row_below(text, r"#bytes\s+#iterations\s+BW peak\[(MB|MiB|Gb)/sec\]\s+BW average")
    if row is None or len(row[1]) < 4:
        return None
    unit, fields = row
    return float(fields[3]) * (1.0 if unit == "Gb" else 8 * 2**20 / 1e9)


def latency(text: str) -> Optional[float]:
    """Return the typical latency in microseconds from the output of ib_write_lat; None if it is missing."""
    row = row_below(text, r"#bytes\s+#iterations\s+t_min\[(usec)\]\s+t_max\[usec\]\s+t_typical\[usec\]")
    return float(row[1][4]) if row is not None and len(row[1]) > 4 else None


def options(settings: Settings, program: str, found: Sequence[Optional[float]]) -> List[str]:
    """Return the options for size and duration of a perftest run, the same for its server and client.

    Args:
        settings: this node's.
        program: which.
        found: the measured values in Gb/s; their order differs between the partners.
    """
    if program == BANDWIDTH:
        return ["-s", str(settings.size), "-D", str(settings.seconds), "--report_gbits"]
    # On a link on which only a few large messages fit in that time, many small ones would take too long.
    slowest = min(value for value in found if value is not None)
    sent = settings.seconds * slowest * 1e9 / (8 * settings.size)
    return ["-s", "2", "-n", str(max(FEWEST_TRIES, min(settings.tries, int(sent))))]


def row_below(text: str, header: str) -> Optional[Tuple[str, List[str]]]:
    """Return the first group of a table's header, and the numbers in the line below it."""
    lines = text.splitlines()
    for index, line in enumerate(lines[:-1]):
        found = re.search(header, line)
        if found:
            fields = lines[index + 1].split()
            are_numbers = all(re.match(r"^\d+(\.\d+)?$", field) for field in fields)
            return (found.group(1), fields) if are_numbers else None
    return None


def words(error: OSError) -> str:
    """Return the system's message for an error, without the address that asyncio adds."""
    return os.strerror(error.errno).lower() if error.errno else str(error)


async def collect(settings: Any, seconds: float) -> Dict[str, Any]:
    """Return the results of a run's program on this node, complete or after so many seconds."""
    hello = {"run": settings.run, "collect": seconds}
    until = time.monotonic() + APPEARS
    while True:
        try:
            channel, _ = await knock(settings.address, settings, hello, GREETING)
            try:
                return await channel.receive(seconds + GREETING)
            finally:
                channel.close()
        except (OSError, PairError):  # not started yet, too busy to answer, or gone
            if time.monotonic() > until:
                return {"problem": GONE}
            await asyncio.sleep(AGAIN)


def main(arguments: List[str]) -> None:
    """Read the settings from the arguments; run the rounds, or print their results."""
    given = json.loads("".join(arguments))
    seconds = given.pop("collect", None)
    settings = Settings(**given)
    if seconds is not None:
        json.dump(asyncio.run(collect(settings, seconds)), sys.stdout, separators=(",", ":"))
        return
    end_earlier(settings.run)
    signal.alarm(int(settings.limit + KEPT) + 30)  # the engine cannot end it, so it ends itself

    async def run() -> None:
        await Node(settings).run()

    asyncio.run(run())


if __name__ == "__main__":
    main(sys.argv[1:])

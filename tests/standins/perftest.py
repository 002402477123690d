#!/usr/bin/env python3
"""Stands in for perftest's ib_write_bw and ib_write_lat, which need RDMA devices; only tests use it.

It takes perftest's arguments, lets a server and a client meet over TCP as perftest does, and prints what
perftest 4.5 prints. The figures come from the names of the two devices (`-d`): one with `slow` in it is slow,
one with `late` has a long latency, one with `hang` never ends, one with `broken` cannot be opened.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time

LINE = "-" * 87
HEAD = """
{line}
                    RDMA_Write {kind} Test
 Dual-port       : OFF\t\tDevice         : {device}
 Number of qps   : 1\t\tTransport type : IB
 Connection type : RC\t\tUsing SRQ      : OFF
 PCIe relax order: ON
 ibv_wr* API     : ON
 Mtu             : 4096[B]
 Link type       : IB
 Max inline data : 0[B]
 rdma_cm QPs\t : OFF
 Data ex. method : Ethernet
{line}
 local address: LID 0x02 QPN 0x0154 PSN 0x76f7ac RKey 0x1bdfdf VAddr 0x007f3e25da2000
 remote address: LID 0x01 QPN 0x0154 PSN 0xc8c064 RKey 0x1c0100 VAddr 0x007f8d8d6ee000
{line}"""
BANDWIDTH = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"
LATENCY = (
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]"
    "   99% percentile[usec]   99.9% percentile[usec] "
)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, kind in (("-d", str), ("-i", int), ("-p", int), ("-x", int), ("-s", int), ("-n", int)):
        parser.add_argument(name, type=kind)
    parser.add_argument("-D", type=float, default=0)
    parser.add_argument("-F", action="store_true")
    parser.add_argument("--report_gbits", action="store_true")
    parser.add_argument("host", nargs="?")
    options = parser.parse_args()
    if "broken" in options.d:
        sys.exit(f" Unable to find the Infiniband/RoCE device\n Couldn't get device {options.d}")
    if options.host:
        with socket.create_connection((options.host, options.p)) as partner:
            finish(options, partner)
        return
    with socket.create_server(("", options.p)) as server:
        partner, _ = server.accept()
        with partner:
            finish(options, partner)


def finish(options: argparse.Namespace, partner: socket.socket) -> None:
    partner.sendall(options.d.encode().ljust(32))
    other = partner.recv(32, socket.MSG_WAITALL).decode().strip()
    names = options.d + other
    time.sleep(3600 if "hang" in names else options.D / 20)
    bandwidth = "bw" in os.path.basename(sys.argv[0])  # noqa: PTH119
    print(HEAD.format(line=LINE, kind="BW" if bandwidth else "Latency", device=options.d))
    print(BANDWIDTH if bandwidth else LATENCY)
    if bandwidth:
        average = 24.11 if "slow" in names else 96.61
        row = (
            f" {options.s:<7}    {123456:<10}       {average:<7.2f}            {average:<7.2f}\t\t   0.184211"
        )
    else:
        typical = 19.7 if "late" in names else 2.07
        row = (
            f" {options.s:<7} {options.n}          {typical:<7.2f}        {99:<7.2f}      {typical:<7.2f}  \t"
            f"       {typical:<7.2f}     \t{0.1:<7.2f}\t\t{3:<7.2f} \t\t{4:<7.2f}"
        )
    print(f"{row}\n{LINE}")


if __name__ == "__main__":
    main()

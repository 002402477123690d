"""The ARP probe for an address, byte by byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.network.arp import frame, in_use, request, sender

MAC = bytes.fromhex("0242c0a81064")
ADDRESS = "192.169.16.100"


def test_arp_probe_has_no_sender_address() -> None:
    packet = request(MAC, ADDRESS, 1)
    assert packet.hex(" ") == (
        "00 01 08 00 06 04 00 01 02 42 c0 a8 10 64 00 00 00 00 00 00 00 00 00 00 c0 a9 10 64"
    )
    assert frame(packet, MAC, b"\xff" * 6, 1) == b"\xff" * 6 + MAC + b"\x08\x06" + packet


def test_infiniband_has_hardware_addresses_of_20_bytes() -> None:
    mac, everybody = bytes(range(20)), bytes.fromhex("00ffffffff12401bffff000000000000ffffffff")
    packet = request(mac, ADDRESS, 32)
    assert packet[:8].hex(" ") == "00 20 08 00 14 04 00 01"
    assert len(packet) == 8 + 2 * (20 + 4)
    assert frame(packet, mac, everybody, 32) == everybody + b"\x08\x06\x00\x00" + packet
    assert sender(packet[:28] + b"\xc0\xa9\x10\x64" + packet[32:], ADDRESS) == mac.hex(":")


@pytest.mark.parametrize(
    "packet", [b"", b"\0" * 28, request(MAC, ADDRESS, 1)], ids=["none", "zeros", "probe"]
)
def test_arp_request_is_no_sign_of_use(packet: bytes) -> None:
    assert sender(packet, ADDRESS) == ""


def test_arp_reply_is_a_sign_of_use() -> None:
    answer = bytearray(request(MAC, "0.0.0.0", 1))
    answer[7] = 2
    answer[14:18] = bytes([192, 169, 16, 100])
    assert sender(bytes(answer), ADDRESS) == "02:42:c0:a8:10:64"
    assert sender(bytes(answer), "192.169.16.101") == ""


def test_interface_without_arp_finds_no_user(tmp_path: Path) -> None:
    link = tmp_path / "class" / "net" / "tunl0"
    link.mkdir(parents=True)
    (link / "type").write_text("768\n")
    assert in_use({"ib7": ADDRESS, "tunl0": ADDRESS}, str(tmp_path)) == []
    assert in_use({}, str(tmp_path)) == []

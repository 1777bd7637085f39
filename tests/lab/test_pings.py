"""Pings as the end-to-end tests count them."""

from __future__ import annotations

import sys
from pathlib import Path

from braid_lab.net.links import End, veth
from braid_lab.net.namespace import namespace
from braid_lab.observe import answered_pings
from braid_lab.process import Process

#: Answers the second ping after half a second, the third one twice and the fourth one never.
ANSWER_ODDLY = """
import socket, struct, time
with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as here:
    print("ready", flush=True)
    while True:
        packet, (source, _) = here.recvfrom(2048)
        kind, code, _, identifier, number = struct.unpack_from("!BBHHH", packet, 20)
        if kind != 8:
            continue
        head = lambda checksum: struct.pack("!BBHHH", 0, 0, checksum, identifier, number)
        data = head(0) + packet[28:]
        total = sum(struct.unpack(f"!{len(data) // 2}H", data))
        total = (total & 0xFFFF) + (total >> 16)
        answer = head(~((total & 0xFFFF) + (total >> 16)) & 0xFFFF) + packet[28:]
        if number == 2:
            time.sleep(0.5)
        for _ in range({3: 2, 4: 0}.get(number, 1)):
            here.sendto(answer, (source, 0))
"""


def test_a_late_answer_is_none_that_is_lost(tmp_path: Path) -> None:
    with namespace("near") as near, namespace("far") as far, veth(End(near, "eth0"), End(far, "eth0")):
        near.ip("link set eth0 up", "address add 192.0.2.1/24 dev eth0")
        far.ip("link set eth0 up", "address add 192.0.2.2/24 dev eth0")
        far.sysctl(ipv4__icmp_echo_ignore_all=1)
        words = [sys.executable, "-c", ANSWER_ODDLY]
        with Process(words, log=tmp_path / "far", namespace=far.name) as answering:
            answering.wait_output("ready")
            assert answered_pings(near, 2, 0.1, "192.0.2.2") == [1, 2]
            assert answered_pings(near, 5, 0.1, "192.0.2.2") == [1, 2, 3, 3, 5]

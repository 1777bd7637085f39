"""A storm at one port of a real Open vSwitch network: its meters let the limit pass, and what hosts need besides."""

from __future__ import annotations

import functools
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from braid_lab.fabric.controller import Fabric, configuration, controller
from braid_lab.fabric.ovs import OvsNetwork, Station, ovs_network
from braid_lab.fabric.shapes import Station as Place
from braid_lab.fabric.shapes import two_paths
from braid_lab.process import Process, wait_until

BASE = two_paths(mbit=1000, delay_ms=0)
SHAPE = replace(
    BASE, stations=tuple(Place(name, switch) for name, switch in (("ha", "A"), ("hb", "B"), ("x", "A"), ("y", "B")))
)
#: kbit/s.
LIMIT = 2000

#: EtherType of the storm's frames, and their bytes.
KIND, SIZE = 0x88B7, 1000
#: Broadcasts for two seconds, 32 Mbit/s (on a busy machine for longer, less), and amid them 20 requests by DHCP;
#: prints how many bytes it has sent.
STORM = f"""
import socket, time
sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
sender.bind(("eth0", 0))
own = sender.getsockname()[4]
all = b"\\xff" * 6
data = all + own + ({KIND}).to_bytes(2, "big") + bytes({SIZE} - 14)
ip = bytes.fromhex("4500014800000000401100000000000000000000")[:16] + b"\\xff" * 4
begun, sent = time.monotonic(), 0
for turn in range(1000):
    for _ in range(8):
        sent += sender.send(data)
    if turn % 50 == 0:
        sender.send(all + own + b"\\x08\\x00" + ip + bytes.fromhex("0044004301340000") + bytes(300))
    time.sleep(max(0, begun + 0.002 * turn - time.monotonic()))
print(sent, round(time.monotonic() - begun, 3))
"""
#: With SO_RCVBUFFORCE (33), prints how many bytes of the storm and requests by DHCP came, once it is told to stop.
COUNT = f"""
import signal, socket
receiver = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
receiver.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)
receiver.bind(("eth0", 0))
receiver.settimeout(0.2)
ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
size = asked = 0
print("ready", flush=True)
while not ended:
    try:
        data, place = receiver.recvfrom(2000)
    except TimeoutError:
        continue
    if place[2] != socket.PACKET_OUTGOING:
        size += len(data) * (data[12:14] == ({KIND}).to_bytes(2, "big"))
        asked += data[12:14] == b"\\x08\\x00" and data[34:38] == bytes.fromhex("00440043")
print(size, asked, flush=True)
"""


@pytest.fixture(scope="module")
def net() -> Iterator[OvsNetwork]:
    """Four bridges in a ring with four hosts."""
    with ovs_network(SHAPE) as made:
        yield made


def limited(limit: str) -> str:
    return f'\n[flood]\nlimit = "{limit}"\n' + configuration(SHAPE)


def arrived(net: OvsNetwork) -> tuple[int, float, int, int]:
    """Have a storm at x: bytes sent, seconds, bytes that came to y, and requests by DHCP that did."""
    x, y = net.stations["x"], net.stations["y"]
    counted = Process([sys.executable, "-c", COUNT], log=net.folder / "count", namespace=y.place.name)
    with counted:
        counted.wait_output("^ready", timeout=20)
        sent, seconds = x.place.run([sys.executable, "-c", STORM]).stdout.split()
        # Behind the storm on the same way.
        wait_until(functools.partial(x.reaches, y), what="a ping", timeout=20)
        counted.stop()
        size, asked = counted.stdout().split()[-2:]
    return int(sent), float(seconds), int(size), int(asked)


def lost(source: Station, target: Station, count: int) -> int:
    """Pings that were not answered."""
    said = source.place.run(["ping", "-c", str(count), "-i", "0.1", "-W", "1", target.address], check=False).stdout
    found = re.search(r"(\d+) packets transmitted, (\d+) received", said)
    assert found, said
    return int(found[1]) - int(found[2])


def metered(net: OvsNetwork) -> int:
    """Rules of switch A that lead to a meter; none while it starts."""
    return net.ofctl("dump-flows", "A", check=False).count("meter:")


def ready(net: OvsNetwork, fabric: Fabric) -> None:
    x, y = net.stations["x"], net.stations["y"]
    wait_until(functools.partial(x.reaches, y), what="a ping", timeout=60)

    def settled() -> bool:
        told = fabric.api_get("status")
        # A port has to be up for a second before broadcasts go out of it.
        flood = re.search(r"pop_vlan,output:\d+,output:\d+", net.ofctl("dump-flows", "B", check=False))
        is_known = x.mac in net.ofctl("dump-flows", "A", check=False)
        return told["planned"] and not told["changing"] and is_known and flood is not None

    wait_until(settled, what="the rules of hosts", timeout=60)


def test_a_storm_passes_up_to_the_limit_and_requests_all_of_it(net: OvsNetwork) -> None:
    with controller(net.place, net.folder, limited(f"{LIMIT} kbit/s")) as fabric:
        ready(net, fabric)
        # Eight rules for each of two ports.
        wait_until(lambda: metered(net) == 16, what="the ports' meters", timeout=20)
        sent, seconds, size, asked = arrived(net)
        allowed = 1000 * LIMIT * seconds / 8
        assert sent > 4 * allowed
        # With the burst of a tenth of a second at its beginning.
        assert 0.8 * allowed < size < 1.2 * allowed + 100 * LIMIT / 8
        assert asked == 20
        bystanders_lose_nothing(net)
        wait_until(lambda: "flood-limited" in fabric.codes(), what="the port to be named", timeout=10)
        (told,) = [each for each in fabric.api_get("status")["health"] if each["code"] == "flood-limited"]
        assert told["subject"] == "A:x"
        assert "flood-unlimited" not in fabric.codes()
        meters_survive_a_restart(net, fabric)


def bystanders_lose_nothing(net: OvsNetwork) -> None:
    a, b, x = net.stations["ha"], net.stations["hb"], net.stations["x"]
    assert lost(a, b, 1) == 0
    storm = Process([sys.executable, "-c", STORM], log=net.folder / "storm", namespace=x.place.name)
    with storm:
        x.place.ip("neigh flush dev eth0")
        assert lost(a, b, 15) == 0
        assert lost(x, b, 3) == 0
        storm.wait()


def meters_survive_a_restart(net: OvsNetwork, fabric: Fabric) -> None:
    meters = net.ofctl("dump-meters", "A")
    assert meters.count("rate=2000") == 2
    fabric.stop()
    fabric.start()
    ready(net, fabric)
    assert net.ofctl("dump-meters", "A").count("meter=") == 4
    net.stop()
    net.start()
    wait_until(lambda: metered(net) == 16 or None, what="the meters of switches that restarted", timeout=60)
    ready(net, fabric)
    _, seconds, size, asked = arrived(net)
    assert size < 1.2 * 1000 * LIMIT * seconds / 8 + 100 * LIMIT / 8
    assert asked == 20


def test_a_reload_changes_rates_and_makes_and_deletes_meters(net: OvsNetwork) -> None:
    with controller(net.place, net.folder, limited("2000 kbit/s")) as fabric:
        ready(net, fabric)
        wait_until(lambda: metered(net) == 16, what="the ports' meters", timeout=20)

        def reload(limit: str) -> None:
            fabric.config.write_text(limited(limit))
            assert fabric.process is not None
            fabric.process.signal(signal.SIGHUP)

        def meters(rate: int) -> int:
            return net.ofctl("dump-meters", "A").count(f"rate={rate} ")

        assert meters(2000) == 2
        reload("500 kbit/s")
        wait_until(lambda: meters(500) == 2, what="the other rate", timeout=20)
        assert metered(net) == 16
        reload("much")
        wait_until(lambda: "reload-refused" in fabric.codes(), what="the refusal", timeout=20)
        assert meters(500) == 2
        reload("off")
        wait_until(lambda: "meter=" not in net.ofctl("dump-meters", "A"), what="the meters to go", timeout=30)
        assert metered(net) == 0
        reload("500 kbit/s")
        wait_until(lambda: meters(500) == 2 and metered(net) == 16, what="the meters to come back", timeout=30)
        assert not {"refused", "reload-refused"} & fabric.codes()


def test_without_a_limit_all_of_it_arrives_and_no_meter_is_left(net: OvsNetwork) -> None:
    with controller(net.place, net.folder, limited("off")) as fabric:
        ready(net, fabric)
        wait_until(lambda: metered(net) == 0, what="the rules to go", timeout=30)
        wait_until(lambda: "meter=" not in net.ofctl("dump-meters", "A"), what="the meters to go", timeout=30)
        sent, _, size, _ = arrived(net)
        assert size > 0.5 * sent

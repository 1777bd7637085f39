"""`bond/security`: packets that a hub must reject, sent during a download, each kind with its own counter.

The attacker sees the packets on the path and can send with any source address: the strongest position outside the two
ends. A download through the bond runs during each kind of attack; its goodput is compared with that of a download
without attack. Attackers who see one line or none follow (`intruder_trials`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

from braid_lab import remote_hub
from braid_lab.experiment import Run, experiment
from braid_lab.experiments.bond import attacks
from braid_lab.experiments.bond.attacks import ATTACKS, Attack
from braid_lab.experiments.bond.cases import Link
from braid_lab.experiments.bond.figures import GoodputTrace
from braid_lab.experiments.bond.intruder_trials import STEPS, intrude
from braid_lab.experiments.bond.site import BOND_DEVICE, Site, site
from braid_lab.packets.codec import Packet, Udp, decode, encode
from braid_lab.packets.pacing import paced, raw_socket
from braid_lab.process import LabError, Process, processor_seconds, wait_until

LINKS = {"one": Link(30, 10), "two": Link(30, 10)}

#: Packets of each kind.
COUNT = 100

#: Handshakes per second of a flood.
FLOOD_RATE = 4000

#: A port of the hub's machine on which nothing listens.
CLOSED_PORT = 27244

#: A source address that no client of the hub has.
UNASSIGNED_ADDRESS = "10.99.99.99"

#: Only a socket for all protocols sees outgoing frames.
ETH_P_ALL = 3
IPV4, ETHERNET_BYTES = bytes([8, 0]), 14

#: Longest wait for packets of the bond, which sends reports while it is in use.
CAPTURE_TIMEOUT_SECONDS = 20.0

#: A packet and its UDP payload.
Seen = tuple[Packet, bytes]


@experiment("bond/security", "Packets that a hub rejects, and the cost of rejecting them", paper="layer3-bonding §2")
def security(run: Run) -> None:
    """Send every kind of packet that must be rejected."""
    seconds = run.of_form(full=10.0, quick=3.0, smoke=1.5)
    # An old number needs an upload that lasts until the replay window has moved.
    chosen = [each for each in ATTACKS if run.form != "smoke" or each.make is not attacks.old]
    run.display.expect(7 + len(chosen) + STEPS)
    run.table.append(["packets", "sent", "refused", "counted as"])
    with contextlib.ExitStack() as stack:
        with run.step("build two links, and join the hub"):
            place = stack.enter_context(site(LINKS, seed=run.seed))
            place.background(place.net.internet.name, "braid_lab.clients.tcp_stream", "serve", place.server)
        with run.step("download without attack"):
            peace = _goodput(place, seconds)
        if len(chosen) == len(ATTACKS):
            with run.step("upload until the replay window has moved"):
                _exhaust_replay_window(place)
        for attack in chosen:
            name = attack.name.replace("_", " ")
            with run.part(name), run.step(name):
                _attack(run, place, attack)
        with run.part("floods"):
            _floods(run, place, seconds, peace)
        with run.part("spoofed"), run.step("a client spoofs its source address"):
            _spoof(run, place)
        with run.part("revoked"), run.step("revoke the key"):
            _revoke(run, place)
    intrude(run)


def _goodput(place: Site, seconds: float) -> float:
    """Return the goodput of a download through the bond, Mbit/s."""
    argv = [sys.executable, "-m", "braid_lab.clients.tcp_stream", "take", place.server, f"{seconds:g}"]
    report = json.loads(place.net.host.run(argv, timeout=seconds + 30).stdout)
    trace = GoodputTrace.unbroken(report, "the download")
    return trace.mbit(1.0, trace.seconds)


def _frames(place: Site) -> socket.socket:
    """Return a socket that sees every packet at the hub's device."""
    with place.hub.far.namespace.inside():
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    tap.bind(("eth0", ETH_P_ALL))
    tap.settimeout(5)
    return tap


def _capture(tap: socket.socket, *, from_hub: bool) -> Iterator[Seen]:
    """Yield the bond's data packets in one direction as they pass; LabError after a timeout."""
    deadline = time.monotonic() + CAPTURE_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        frame = tap.recv(1 << 16)
        if frame[ETHERNET_BYTES - 2 : ETHERNET_BYTES] != IPV4:
            continue
        packet = decode(frame[ETHERNET_BYTES:])
        if not isinstance(packet.body, Udp) or not attacks.is_data(packet.body.data):
            continue
        port = packet.body.source_port if from_hub else packet.body.dest_port
        if port == remote_hub.PORT:
            yield packet, packet.body.data
    raise LabError(f"no more packets of the bond at the hub's door within {CAPTURE_TIMEOUT_SECONDS:g} s")


def _collect(place: Site, count: int, *, from_hub: bool) -> list[Seen]:
    """Return `count` different packets as they pass; an idle bond still sends keepalives."""
    with _frames(place) as tap:
        return list(itertools.islice(_capture(tap, from_hub=from_hub), count))


@contextlib.contextmanager
def _busy(place: Site, verb: str) -> Iterator[None]:
    """Move data through the bond for the length of a block."""
    argv = [sys.executable, "-m", "braid_lab.clients.tcp_stream", verb, place.server, "60"]
    with Process(argv, log=place.net.scratch / verb, namespace=place.net.host.name):
        yield


def _exhaust_replay_window(place: Site) -> None:
    """Send until every link's packet numbers are beyond the replay window."""
    highest: dict[int, int] = {}
    with _busy(place, "give"), _frames(place) as tap:
        for _, payload in _capture(tap, from_hub=False):
            link = payload[0] & attacks.LINK_BITS
            highest[link] = max(highest.get(link, 0), attacks.number(payload))
            if len(highest) >= len(LINKS) and min(highest.values()) > attacks.NUMBERS_BEHIND + COUNT:
                return


def _send(place: Site, packets: Iterable[tuple[str, int, bytes]], to: int = remote_hub.PORT) -> None:
    """Send datagrams to the hub's port, or another one, from a point on the path, with any source address."""
    with raw_socket(place.net.internet) as raw:
        for source, port, payload in packets:
            datagram = Packet(source, place.hub.far.address4, Udp(port, to, payload))
            raw.sendto(encode(datagram), (place.hub.far.address4, 0))


def _counters(place: Site) -> dict[str, int]:
    """Return the hub's counters of rejected packets, by reason."""
    status = place.hub.json("status")
    refused: dict[str, int] = dict(status["rejected"])
    return refused | {f"handshake-{name}": count for name, count in status["handshakes"].items()}


def _attack(run: Run, place: Site, attack: Attack) -> None:
    """Send one kind during a download, and record whether all were rejected for the right reason."""
    with _busy(place, "take" if attack.reflected else "give"):
        seen = _collect(place, COUNT, from_hub=attack.reflected)
        before = _counters(place)
        good = [each for each in seen if len(each[1]) > attacks.HEADER_BYTES + 2 * attacks.MAC_BYTES] or seen
        mine = [good[nth % len(good)] for nth in range(COUNT)]
        _send(
            place,
            (_as_from_client(place, packet, attack.make(payload, nth)) for nth, (packet, payload) in enumerate(mine)),
        )
        refused = _counter_growth(place, before, [attack.counter], COUNT)
    alive = place.bond()["state"] == "up"
    run.passes(attack.name, refused >= COUNT and alive)
    run.table.append([attack.name.replace("_", " "), str(COUNT), str(refused), attack.counter])


def _as_from_client(place: Site, packet: Packet, payload: bytes) -> tuple[str, int, bytes]:
    """Return a datagram that appears to come from the client."""
    assert isinstance(packet.body, Udp)  # noqa: S101
    if packet.source == place.hub.far.address4:
        return packet.dest, packet.body.dest_port, payload
    return packet.source, packet.body.source_port, payload


def _counter_growth(place: Site, before: dict[str, int], names: Sequence[str], by: int) -> int:
    """Return the sum by which these counters have grown, once it reaches `by` or stops growing."""

    def growth() -> int:
        now = _counters(place)
        return sum(now[name] - before[name] for name in names)

    with contextlib.suppress(LabError):
        wait_until(lambda: growth() >= by, what="the hub to count", timeout=3, poll=0.1)
    return growth()


def _floods(run: Run, place: Site, seconds: float, peace: float) -> None:
    """Flood the hub, and before that, from the same two cores, a closed port beside it.

    The difference is the hub's cost of handshakes; the rest is the cost of sending them.
    """
    with run.step("download beside a flood that meets nobody"):
        beside, idle = _flood(place, seconds, CLOSED_PORT)
    before = _counters(place)
    with run.step("download under a flood of handshakes"):
        flooded, busy = _flood(place, seconds, remote_hub.PORT)
    after = _counters(place)
    grown = {name: after[name] - before[name] for name in after if name.startswith("handshake-")}
    refused = sum(count for name, count in grown.items() if name not in ("handshake-accepted", "handshake-repeated"))
    run.passes("flood", refused > 0 and grown["handshake-accepted"] == 0 and place.bond()["state"] == "up")
    run.figure("goodput_under_flood", flooded / peace, better="higher")
    run.figure("goodput_under_flood_of_beside", flooded / beside, better="higher")
    # The hub's work for the download is about the same in both.
    cost = 1e6 * (busy - idle) / max(1, refused)
    run.figure("cpu_us_per_refused_handshake", cost, unit="µs", better="lower", runs=refused)
    told = ", ".join(f"{name.removeprefix('handshake-')} {count}" for name, count in grown.items() if count)
    run.notes.append(f"Handshakes of the flood by result: {told}.")
    run.table.append(["flood of handshakes", str(sum(grown.values())), str(refused), told])


def _flood(place: Site, seconds: float, port: int) -> tuple[float, float]:
    """Send thousands of handshake initiations per second to a port, without and with the hub's key.

    Returns a download's goodput meanwhile, Mbit/s, and the hub's processor time, s.
    """
    if place.hub.process is None:
        raise LabError("the hub does not run")
    key = place.hub.json("status")["key"]
    argv = [sys.executable, "-m", "braid_lab.clients.tcp_stream", "take", place.server, f"{seconds:g}"]
    before = processor_seconds(place.hub.process.pid)
    with Process(argv, log=place.net.scratch / "flooded", namespace=place.net.host.name) as load:
        _send(place, paced(_initiations(key), FLOOD_RATE, seconds), port)
        report = json.loads(load.wait(timeout=seconds + 30).stdout)
    trace = GoodputTrace.unbroken(report, "the download beside a flood")
    return trace.mbit(1.0, trace.seconds), processor_seconds(place.hub.process.pid) - before


def _initiations(key: str) -> Iterator[tuple[str, int, bytes]]:
    """Yield endless initiations from ever new addresses, half of them with a valid first MAC."""
    nth = 0
    while True:
        address = f"192.0.2.{nth % 250 + 1}"
        nth += 1
        yield address, 1024 + nth % 60000, attacks.costly_initiation(key, nth)
        yield address, 1024 + nth % 60000, attacks.blind_initiation(nth)


def _spoof(run: Run, place: Site) -> None:
    """Send inner packets with a source address that is not the client's."""

    def refused() -> int:
        return sum(client["spoofed_packets"] for client in place.hub.json("clients")["clients"])

    before = refused()
    with raw_socket(place.net.host) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, BOND_DEVICE.encode())
        for nth in range(COUNT):
            lie = Packet(UNASSIGNED_ADDRESS, place.net.server(2), Udp(4000 + nth, 9, bytes(32)))
            raw.sendto(encode(lie), (place.net.server(2), 0))
    with contextlib.suppress(LabError):
        wait_until(lambda: refused() - before >= COUNT, what="the hub to count", timeout=3, poll=0.1)
    counted = refused() - before
    run.passes("spoofed", counted >= COUNT)
    run.table.append(["spoofed inner source", str(COUNT), str(counted), "spoofed"])


def _revoke(run: Run, place: Site) -> None:
    """Revoke the client's key: from then on it gets no reply, however often it tries."""
    place.hub.revoke("lab")
    began = time.monotonic()
    with contextlib.suppress(LabError):
        wait_until(lambda: place.bond()["state"] != "up", what="the client to notice", timeout=15, poll=0.05)
    noticed = place.bond()["state"]
    run.passes("revoked", noticed != "up")
    run.figure("revoked_noticed_s", time.monotonic() - began, unit="s", better="lower")
    connected = place.hub.json("status")["clients"]["connected"]
    run.passes("revoked_has_no_session", connected == 0)
    run.table.append(["a revoked key", "", "", f"the client's bond is {noticed}"])

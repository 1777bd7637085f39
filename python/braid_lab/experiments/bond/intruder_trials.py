"""Trials of a bond whose attackers are elsewhere: a stranger who sees nothing, and an observer of one line.

    host ─┬─ observer ═ one ─┬ internet (servers) ── far (hub)
          └═════════════ two ┘└ stranger

Connections through the bond show what a user notices.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from braid_lab import remote_hub
from braid_lab.experiment import Run
from braid_lab.experiments.balance.hostile import SLOW_SECONDS, outage
from braid_lab.experiments.balance.uplink_failure import Location, seen
from braid_lab.experiments.bond import attacks, intruders
from braid_lab.experiments.bond.cases import Link
from braid_lab.experiments.bond.figures import GoodputTrace
from braid_lab.experiments.bond.intruders import BLIND, REACTIONS, Blind, Known, Reaction
from braid_lab.experiments.bond.site import Site, site
from braid_lab.fixtures import serve
from braid_lab.net.namespace import Namespace
from braid_lab.net.stranger import stranger
from braid_lab.net.topology import OBSERVER_FAR, OBSERVER_NEAR
from braid_lab.observe import verdicts
from braid_lab.packets.codec import Packet, Udp, decode, encode
from braid_lab.packets.pacing import paced, raw_socket, send_paced
from braid_lab.packets.tap import ETHERNET, ETHERTYPE
from braid_lab.process import LabError, Process, wait_until

#: The line that the observer sees, and the other one.
SEEN, UNSEEN = "one", "two"
LINKS = {SEEN: Link(30, 10), UNSEEN: Link(30, 10)}

#: Interval of new connections, and how many must succeed before the attacks begin.
CONNECTION_INTERVAL_MS, WARM_ATTEMPTS, START_SECONDS = 40.0, 20, 60.0

#: Share of a stranger's packets that must get to one of the ends.
MIN_ARRIVED = 0.9

#: A session has a handshake of its own every two minutes; more often than this, somebody else causes them.
HANDSHAKE_SECONDS = 100.0

#: Longest wait for the bond after its hub was restarted.
BACK_SECONDS = 30.0

#: Growth of the hub's memory that is none, kB: its allocator's, and packets that wait.
MEMORY_NOISE_KB = 2048

#: Handshakes a second from addresses that have been proven, and the port from which they come.
PROVEN_RATE, PROVEN_PORT = 10_000.0, 40_000
#: A port of the hub's machine on which nothing listens.
CLOSED_PORT = 27244

ETH_P_ALL = 3
#: `IPV6_RECVPKTINFO`, and the address in what it gives.
_PKTINFO = struct.Struct("16sI")


@dataclass
class Scene:
    """A bond, and its attackers' places."""

    place: Site
    stranger: Namespace
    fresh: Process
    chance: random.Random
    #: The hub's memory in the middle of the last attack by many addresses.
    memory_kb_before: int = 0

    def known(self) -> Known:
        """Return what attackers are given."""
        [client] = self.place.hub.json("clients")["clients"]
        remotes = [link["remote"] for link in client["links"] if link["remote"]]
        pairs = [remote.rpartition(":") for remote in remotes]
        ends = tuple((address, int(port)) for address, _, port in pairs)
        return Known(self.place.hub.far.address4, self.place.hub.json("status")["key"], ends)

    def deaths(self, ignored: set[str]) -> int:
        """Return how often an uplink, or the bond, has been declared dead."""
        return sum(verdict == "dead" and name not in ignored for name, verdict in verdicts(self.place.daemon))

    def accepted(self) -> int:
        """Return how many handshakes have begun a session at this hub's process."""
        count: int = self.place.hub.json("status")["handshakes"]["accepted"]
        return count

    def memory_kb(self) -> int:
        """Return the hub's memory."""
        if self.place.hub.process is None:
            raise LabError("the hub does not run")
        status = Path(f"/proc/{self.place.hub.process.pid}/status").read_text()
        [rss] = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")]
        return int(rss)

    def received(self) -> int:
        """Return how many packets have arrived at the bond's ends."""
        host = sum(self.place.net.host.counters(name)["rx"]["packets"] for name in self.place.net.uplinks)
        far: int = self.place.hub.far.namespace.counters("eth0")["rx"]["packets"]
        return int(host) + far

    def is_well(self) -> bool:
        """Return true if the bond is up, and the line that nobody sees carries packets."""
        return self.place.bond()["state"] == "up" and UNSEEN in self.place.carrying()


@dataclass
class Trial:
    """One attack: what it does, for so many seconds, and what may happen to whom."""

    name: str
    attack: Callable[[Scene, Known, float], int]
    #: Uplinks whose death does not count.
    ignored: set[str] = field(default_factory=set)
    restarts: bool = False
    #: True if its packets have to get to one of the ends.
    arrives: bool = False
    hostile: bool = True


#: Steps of `intrude`: the scene, two trials without an attacker, those with one, and four of the proven flood.
STEPS = 3 + len(BLIND) + len(REACTIONS) + 4


def intrude(run: Run) -> None:
    """Attack a bond from places of their own, and record what its user notices."""
    seconds = run.of_form(full=20.0, quick=2.0, smoke=0.3)
    trials = _trials()
    run.table.append(["attack", "packets", "false deaths", "outage ms", "passed"])
    with contextlib.ExitStack() as stack:
        with run.step("build a bond, a stranger, and an observer of one line"):
            scene = _scene(stack, run)
        for trial in trials:
            with run.part(trial.name), run.step(trial.name.replace("_", " ")):
                _try(run, scene, trial, seconds)
        with run.part("proven_flood"):
            _proven_flood(run, scene)
    run.notes.append(
        f"Each attack from elsewhere for {seconds:g} s. `seen_…` are the observer's, who sees {SEEN}; "
        "`restart` is a restart of the hub that nobody disturbs, which some of the attacks wait for."
    )


def _trials() -> list[Trial]:
    quiet = [Trial("none", _rest, hostile=False), Trial("restart", _restart, {"bond"}, restarts=True, hostile=False)]
    blind = [Trial(each.name, _from_stranger(each), arrives=True) for each in BLIND]
    observed = [
        Trial(
            each.name,
            _from_observer(each),
            {SEEN, "bond"} if each.restarts else {SEEN},
            restarts=each.restarts,
        )
        for each in REACTIONS
    ]
    return [*quiet, *blind, *observed]


def _scene(stack: contextlib.ExitStack, run: Run) -> Scene:
    place = stack.enter_context(site(LINKS, seed=run.seed, observed=frozenset({SEEN})))
    serve(place.net, "http1")
    place.background(place.net.internet.name, "braid_lab.clients.tcp_stream", "serve", place.server)
    outside = stack.enter_context(stranger(place.net))
    location = Location("host", place.net)
    fresh = stack.enter_context(location.start("new_connections", CONNECTION_INTERVAL_MS, *place.net.servers(4)))
    wait_until(
        lambda: sum(each.good for each in seen(fresh)) >= WARM_ATTEMPTS,
        what="connections through the bond",
        timeout=START_SECONDS,
    )
    return Scene(place, outside, fresh, run.random)


def _try(run: Run, scene: Scene, trial: Trial, seconds: float) -> None:
    """Run one trial, and record its effects on the user's connections, the verdicts and the sessions."""
    wait_until(scene.is_well, what="the bond to carry packets on the line that nobody sees", timeout=BACK_SECONDS)
    known, deaths, received = scene.known(), scene.deaths(trial.ignored), scene.received()
    accepted = scene.accepted()
    began = time.monotonic()
    packets = trial.attack(scene, known, seconds)
    end = time.monotonic()
    # A connection that began at the end shows by then whether it is slow.
    time.sleep(SLOW_SECONDS + 0.1)
    lasted = outage([each for each in seen(scene.fresh) if began <= each.at <= end])
    false_deaths = scene.deaths(trial.ignored) - deaths
    forced = 0 if trial.restarts else scene.accepted() - accepted
    if trial.arrives and run.form != "smoke" and scene.received() - received < MIN_ARRIVED * packets:
        raise LabError("the attacker's packets do not arrive")
    good = scene.is_well() and not false_deaths and forced <= 1 + (end - began) / HANDSHAKE_SECONDS
    run.figure(f"outage_ms_{trial.name}", 1000 * lasted, unit="ms", better="lower")
    if trial.hostile:
        run.figure(f"false_deaths_{trial.name}", false_deaths, better="lower")
        good = good and packets > 0
        if trial.name == "seen_addresses":
            grown = scene.memory_kb() - scene.memory_kb_before
            run.figure("hub_memory_growth_kb", grown, unit="kB", better="lower", runs=packets)
            good = good and grown <= MEMORY_NOISE_KB
        run.passes(trial.name, good)
    run.table.append(
        [
            trial.name.replace("_", " "),
            str(packets),
            str(false_deaths),
            f"{1000 * lasted:.0f}",
            "yes" if good else "no",
        ]
    )


def _restart(scene: Scene, known: Known, seconds: float) -> int:  # noqa: ARG001
    """Kill the hub, start it again, and wait for the client, which repeats its handshake."""
    scene.place.hub.kill9()
    scene.place.hub.start()
    with contextlib.suppress(LabError):
        wait_until(scene.is_well, what="the bond after a restart of its hub", timeout=BACK_SECONDS)
    return 0


def _rest(scene: Scene, known: Known, seconds: float) -> int:  # noqa: ARG001
    time.sleep(seconds)
    return 0


def _from_stranger(attack: Blind) -> Callable[[Scene, Known, float], int]:
    """Return a trial in which the stranger sends packets of its own."""

    def send(scene: Scene, known: Known, seconds: float) -> int:
        return send_paced(scene.stranger, attack.forge(known, scene.chance), attack.rate, seconds)

    return send


def _from_observer(reaction: Reaction) -> Callable[[Scene, Known, float], int]:
    """Return a trial in which the observer reacts to what it sees."""

    def react(scene: Scene, known: Known, seconds: float) -> int:
        observer = scene.place.net.uplinks[SEEN].observer
        assert observer is not None  # noqa: S101
        over = threading.Event()

        def watch() -> int:
            with _held(observer) if reaction.holds else contextlib.nullcontext():
                return _watch(observer, reaction, known, scene.chance, over)

        busy = _upload(scene, seconds) if reaction.holds else contextlib.nullcontext()
        with ThreadPoolExecutor(1) as beside, busy:
            sent = beside.submit(watch)
            try:
                if reaction.restarts:
                    _restart(scene, known, seconds)
                time.sleep(seconds)
                if reaction.holds:
                    # By now buffers have the size that the upload needs.
                    scene.memory_kb_before = scene.memory_kb()
                    time.sleep(2 * seconds)
            finally:
                over.set()
            return sent.result()

    return react


@contextlib.contextmanager
def _upload(scene: Scene, seconds: float) -> Iterator[None]:
    """Send data through the bond for the length of a block: many packets for the observer."""
    argv = [sys.executable, "-m", "braid_lab.clients.tcp_stream", "give", scene.place.server, f"{seconds + 60:g}"]
    with Process(argv, log=scene.place.net.scratch / "intruder-upload", namespace=scene.place.net.host.name):
        yield


@contextlib.contextmanager
def _held(observer: Namespace) -> Iterator[None]:
    """Let the client's packets to the hub go no further by themselves."""
    # A packet socket has them before the filter.
    filtered = (
        f"table netdev held {{ chain client {{ type filter hook ingress device {OBSERVER_NEAR} priority 0; "
        f"udp dport {remote_hub.PORT} drop; }}; }}"
    )
    observer.run(["nft", filtered])
    try:
        yield
    finally:
        observer.run(["nft", "delete table netdev held"])


def _watch(
    observer: Namespace, reaction: Reaction, known: Known, chance: random.Random, over: threading.Event
) -> int:
    """React to packets from the client until it is over; return how many were sent."""
    sent = 0
    with observer.inside():
        near = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        far = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    with near, far:
        near.bind((OBSERVER_NEAR, ETH_P_ALL))
        far.bind((OBSERVER_FAR, 0))
        while not over.is_set():
            if not select.select([near], [], [], 0.05)[0]:
                continue
            frame, (*_, kind, _, _) = near.recvfrom(1 << 16)
            if kind == socket.PACKET_OUTGOING:
                continue
            to, source, ethertype = ETHERNET.unpack_from(frame)
            if ethertype != ETHERTYPE[4]:
                continue
            for packet in _reactions(reaction, known, frame[ETHERNET.size :], chance):
                forward = packet.dest == known.hub
                header = (to, source) if forward else (source, to)
                with contextlib.suppress(OSError):
                    (far if forward else near).send(ETHERNET.pack(*header, ethertype) + encode(packet))
                    sent += 1
    return sent


def _reactions(reaction: Reaction, known: Known, packet: bytes, chance: random.Random) -> list[Packet]:
    try:
        return reaction.react(known, decode(packet), chance)
    except ValueError:
        return []


def _proven_flood(run: Run, scene: Scene) -> None:
    """Flood the hub by handshakes from addresses of one IPv6 /48, each of which has shown that it gets answers."""
    seconds = run.of_form(full=15.0, quick=3.0, smoke=1.5)
    count = run.of_form(full=4000, quick=1000, smoke=20)
    key, hub = scene.place.hub.json("status")["key"], scene.place.hub.far.address6
    with run.step("download without attack"):
        peace = _goodput(scene, seconds, [])
    with run.step(f"prove {count} addresses of a /48"):
        proven = _proven(scene, key, hub, count)
        if len(proven) < count // 2:
            run.too_slow(f"{len(proven)} of {count} addresses were given a cookie")
    with run.step("download beside the same packets to a closed port"):
        beside = _goodput(scene, seconds, _packets(proven, hub, CLOSED_PORT))
    before = scene.place.hub.json("status")["handshakes"]
    with run.step("download under handshakes of proven addresses"):
        flooded = _goodput(scene, seconds, _packets(proven, hub, remote_hub.PORT))
    after = scene.place.hub.json("status")["handshakes"]
    grown = {name: after[name] - before[name] for name in after}
    run.figure("goodput_under_proven_flood", flooded / peace, better="higher")
    run.figure("goodput_under_proven_flood_of_beside", flooded / beside, better="higher")
    run.figure("proven_per_second", sum(grown.values()) / seconds, unit="/s", better="none")
    run.passes("proven_flood", grown["limited"] > 0 and scene.is_well())
    told = ", ".join(f"{name} {number}" for name, number in grown.items() if number)
    run.notes.append(f"Handshakes of {len(proven)} proven addresses by result: {told}.")


def _address(number: int) -> str:
    """Return an address of one of the stranger's networks."""
    return f"2001:db8:bad:{number + 1:x}::1"


def _proven(scene: Scene, key: str, hub: str, count: int) -> list[tuple[str, bytes]]:
    """Return addresses of the stranger's, each with an initiation that has the hub's cookie for it."""
    knocks = {_address(number): attacks.costly_initiation(key, number) for number in range(count)}
    proven: dict[str, bytes] = {}
    with scene.stranger.inside():
        ear = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    with ear, raw_socket(scene.stranger, 6) as raw:
        ear.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        ear.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        ear.bind(("::", PROVEN_PORT))
        ear.setblocking(False)
        # The hub wants cookies once it is under load: the first ones are computed on.
        for address in paced(itertools.cycle(knocks), intruders.FLOOD, max(2.0, 3 * count / intruders.FLOOD)):
            if address not in proven:
                packet = Packet(address, hub, Udp(PROVEN_PORT, remote_hub.PORT, knocks[address]))
                with contextlib.suppress(OSError):
                    raw.sendto(encode(packet), (hub, 0))
            with contextlib.suppress(BlockingIOError):
                while True:
                    reply, told, _, _ = ear.recvmsg(2048, 128)
                    at = _destination(told)
                    cookie = attacks.cookie_in(key, knocks[at], reply) if at in knocks else None
                    if cookie is not None:
                        proven[at] = attacks.proven(knocks[at], cookie)
            if len(proven) == count:
                break
    return list(proven.items())


def _destination(told: list[tuple[int, int, bytes]]) -> str:
    """Return the address to which a datagram was sent."""
    for level, kind, data in told:
        if (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO):
            return socket.inet_ntop(socket.AF_INET6, _PKTINFO.unpack(data)[0])
    return ""


def _packets(proven: list[tuple[str, bytes]], hub: str, port: int) -> list[bytes]:
    return [encode(Packet(address, hub, Udp(PROVEN_PORT, port, said))) for address, said in proven]


def _goodput(scene: Scene, seconds: float, packets: list[bytes]) -> float:
    """Return the goodput of a download through the bond, Mbit/s, while the stranger sends packets to the hub."""
    place = scene.place
    argv = [sys.executable, "-m", "braid_lab.clients.tcp_stream", "take", place.server, f"{seconds:g}"]
    hub = place.hub.far.address6
    with (
        Process(argv, log=place.net.scratch / "intruder-load", namespace=place.net.host.name) as load,
        raw_socket(scene.stranger, 6) as raw,
    ):
        for packet in paced(itertools.cycle(packets), PROVEN_RATE, seconds) if packets else ():
            with contextlib.suppress(OSError):
                raw.sendto(packet, (hub, 0))
        report = json.loads(load.wait(timeout=seconds + 30).stdout)
    trace = GoodputTrace.unbroken(report, "the download beside a flood")
    return trace.mbit(1.0, trace.seconds)

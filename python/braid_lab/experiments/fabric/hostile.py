"""`fabric/hostile`: hosts, switches and controllers that misbehave, beside hosts that notice nothing.

        ┌─ P ─┐
   x, m1 ─ A    B ─ y, m2, t1        edges: ha at A, hb at B
        └─ Q ─┘

`x` and `y` are the bystanders: a ping passes between them every 20 ms. `m1` and `m2` are the attacker's, `t1` is the
host that it claims to be, whose place and address the configuration pins.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from braid_lab.experiment import Run, experiment
from braid_lab.fabric import hostile_frames
from braid_lab.fabric.controller import Fabric, configuration, controller
from braid_lab.fabric.ovs import OvsNetwork, Station, ovs_network
from braid_lab.fabric.raw_frames import packet_socket, receive
from braid_lab.fabric.shapes import Station as Place
from braid_lab.fabric.shapes import two_paths
from braid_lab.packets.pacing import paced
from braid_lab.process import LabError, Process, wait_until

BASE = two_paths(mbit=1000, delay_ms=0)
HOSTS = {"x": "A", "y": "B", "m1": "A", "m2": "B", "t1": "B"}
SHAPE = replace(BASE, stations=(*BASE.stations, *(Place(name, switch) for name, switch in HOSTS.items())))

PING_SECONDS = 0.02
#: Frames a second of a flood, and of attacks that only need to be repeated.
FLOOD, STEADY = 2000.0, 50.0
#: Age from which the controller refuses its own discovery frames is five seconds.
STALE_SECONDS = 6.0
#: Longest wait until a case is named: foreign rules are found by an audit, every 30 s.
NAMED_SECONDS, AUDIT_SECONDS = 15.0, 45.0
#: Address of another controller, which an intruder starts, and the longest wait for it to connect and be named: a
#: busy machine needs 14 s.
SECOND, SECOND_SECONDS = "127.0.0.1:6654", 30.0
#: Events by which the controller tells that something does not work any more.
LOSSES = ("switch-disconnected", "link-lost", "paths-withdrawn")
#: Time between two changes of a port's state.
FLAP_SECONDS = 0.4


@dataclass(frozen=True)
class Case:
    """Something hostile: what it does for so many seconds, and the health problem that names it."""

    name: str
    attack: Callable[[Scene, float], None]
    code: str
    named_within: float = NAMED_SECONDS


@dataclass
class Scene:
    """The network under attack."""

    net: OvsNetwork
    fabric: Fabric
    chance: random.Random
    #: Discovery frames that the attacker has seen at its two ports, before any attack.
    seen: list[bytes]

    @property
    def attacker(self) -> Station:
        """The host from which most attacks come."""
        return self.net.stations["m1"]

    @property
    def target(self) -> Station:
        """The host that is claimed."""
        return self.net.stations["t1"]

    def last_event(self) -> int:
        """Return the number of the controller's last event."""
        events = self.fabric.api_get("events?after=0")["events"]
        return max((each["number"] for each in events), default=0)

    def losses(self, after: int) -> int:
        """Return how many switches, links and paths the controller has given up since an event: nobody cut any."""
        events = self.fabric.api_get(f"events?after={after}")["events"]
        return sum(each["event"] in LOSSES for each in events)

    def send(self, frames: Iterator[bytes], rate: float, seconds: float, *names: str) -> None:
        """Send frames from these of the attacker's hosts in turn, at a rate."""
        with contextlib.ExitStack() as stack:
            peers = itertools.cycle(
                [stack.enter_context(_socket(self.net.stations[each])) for each in names or ["m1"]]
            )
            for frame in paced(frames, rate, seconds):
                with contextlib.suppress(BlockingIOError, OSError):
                    next(peers).send(frame)


@experiment("fabric/hostile", "A fabric with hostile hosts and meddlers", paper="")
def hostile(run: Run) -> None:
    """Attack in turn, beside hosts that ping each other."""
    seconds = run.of_form(full=30.0, quick=4.0, smoke=0.5)
    cases = [each for each in CASES if run.form != "smoke" or each.named_within == NAMED_SECONDS]
    run.display.expect(len(cases) + 3)
    run.table = [["case", "pings", "lost", "outage ms", "false deaths", "named", "target's pings lost"]]
    with ovs_network(SHAPE) as net:
        with run.step("build a network, and its controller"):
            config = configuration(SHAPE) + _pinned(net.stations["t1"])
            fabric = net.stack.enter_context(controller(net.place, net.folder, config))
            scene = Scene(net, fabric, run.random, [])
            _settle(scene)
        with run.step("listen to discovery frames"):
            scene.seen = _listen(scene)
        with run.part("none"), run.step("no attack"):
            quiet = _beside(scene, lambda: time.sleep(seconds))
            run.figure("outage_ms_none", quiet.outage_ms, unit="ms", better="lower")
            run.figure("lost_none", quiet.lost, unit=f"of {quiet.sent}", better="lower")
        for case in cases:
            with run.part(case.name), run.step(case.name.replace("_", " ")):
                _run(run, scene, case, seconds)
                _settle(scene)
    run.notes.append(
        f"Each case for {seconds:g} s, or until it is named. A ping every {1000 * PING_SECONDS:g} ms between two "
        "hosts that have no part in it; `lost_target_…` are pings to the host that the attacker claims to be."
    )


def _pinned(station: Station) -> str:
    """Return the configuration that keeps a host and its addresses where they are."""
    place = f'mac = "{station.mac}"\nswitch = "{station.switch}"\nport = "{station.name}"'
    return f'\n[[host]]\n{place}\naddresses = ["{station.address}", "{_six(station)}"]\n'


def _six(station: Station) -> str:
    """Return a host's IPv6 address."""
    return f"fd77::{int(station.mac.replace(':', ''), 16) & 0xFFFF:x}"


@contextlib.contextmanager
def _socket(station: Station) -> Iterator[socket.socket]:
    with station.place.inside():
        peer = packet_socket("eth0")
    with peer:
        yield peer


def _ping(target: Station, *words: str) -> list[str]:
    return ["ping", *words, "-W", "1", target.address]


def _settle(scene: Scene) -> None:
    """Wait until bystanders and target reach each other."""

    def reached() -> bool:
        x, y = scene.net.stations["x"], scene.net.stations["y"]
        pairs = ((x, y), (y, x), (x, scene.target))
        return all(one.place.run(_ping(other, "-c", "1"), check=False).status == 0 for one, other in pairs)

    wait_until(reached, what="a ping", timeout=60)


def _listen(scene: Scene) -> list[bytes]:
    """Return a discovery frame of each of the attacker's ports."""
    found = []
    for name in ("m1", "m2"):
        with _socket(scene.net.stations[name]) as peer:
            end = time.monotonic() + NAMED_SECONDS
            while (left := end - time.monotonic()) > 0 and select.select([peer], [], [], left)[0]:
                frame = receive(peer)
                if frame is not None and frame[12:14] in hostile_frames.OURS:
                    found.append(frame)
                    break
    if len(found) != 2:
        raise LabError("the attacker's ports get no discovery frames")
    return found


@dataclass(frozen=True)
class Beside:
    """The effects of an attack on the pings of bystanders."""

    lost: int
    sent: int
    #: The longest time without an answer, beyond the interval of pings.
    outage_ms: float
    #: Pings to the target that were lost.
    lost_target: int


def _beside(scene: Scene, attack: Callable[[], None]) -> Beside:
    """Attack while bystanders ping."""
    x = scene.net.stations["x"]
    with contextlib.ExitStack() as stack:
        pings = [
            stack.enter_context(
                Process(
                    _ping(scene.net.stations[name], "-i", f"{PING_SECONDS}"),
                    log=scene.net.folder / f"ping-{name}",
                    namespace=x.place.name,
                )
            )
            for name in ("y", "t1")
        ]
        for each in pings:
            each.wait_output("icmp_seq=", timeout=30)
        attack()
    mine, targets = [_answered(each.stdout()) for each in pings]
    lost, sent = _lost(mine)
    return Beside(lost, sent, 1000 * PING_SECONDS * longest_gap(mine), _lost(targets)[0])


def _answered(said: str) -> list[int]:
    """Return the numbers of the pings that were answered."""
    numbers = [int(each) for each in re.findall(r"icmp_seq=(\d+) ttl", said)]
    if not numbers:
        raise LabError(f"no ping was answered: {said[:200]}")
    return numbers


def _lost(numbers: list[int]) -> tuple[int, int]:
    """Return how many pings were lost, of how many; the last one may be on its way at the end."""
    return max(numbers) - len(set(numbers)), max(numbers)


def longest_gap(numbers: list[int]) -> int:
    """Return the largest number of pings in a row that were lost, of those before the last one answered."""
    known = sorted({0, *numbers})
    return max(after - before - 1 for before, after in itertools.pairwise(known))


def _problems(scene: Scene) -> set[tuple[str, str, str]]:
    """Return all health problems: code, subject, and text, which counts how often."""
    return {(each["code"], each["subject"], each["text"]) for each in scene.fabric.api_get("status")["health"]}


def _run(run: Run, scene: Scene, case: Case, seconds: float) -> None:
    """Run one case and record what it did to others, and whether it was named."""
    named = False

    before = _problems(scene)

    def attack() -> None:
        nonlocal named
        end = time.monotonic() + max(seconds, case.named_within if run.form != "smoke" else 0.0)
        while time.monotonic() < end:
            case.attack(scene, seconds)
            named = any(code == case.code for code, _, _ in _problems(scene) - before)
            if named or run.form == "smoke":
                return

    number = scene.last_event()
    beside = _beside(scene, attack)
    deaths = scene.losses(number)
    run.figure(f"outage_ms_{case.name}", beside.outage_ms, unit="ms", better="lower")
    run.figure(f"false_deaths_{case.name}", deaths, better="lower")
    run.passes(case.name, named and not beside.lost and not deaths)
    run.figure(f"lost_{case.name}", beside.lost, unit=f"of {beside.sent}", better="lower")
    run.figure(f"lost_target_{case.name}", beside.lost_target)
    run.figure(f"named_{case.name}", float(named), better="higher")
    told = [str(beside.sent), str(beside.lost), f"{beside.outage_ms:.0f}", str(deaths)]
    run.table.append([case.name.replace("_", " "), *told, case.code if named else "no", str(beside.lost_target)])


def _storm(scene: Scene, seconds: float) -> None:
    """From the attacker's other port: one that was muted a moment ago teaches no hosts."""
    scene.send(hostile_frames.made_up_hosts(scene.chance), FLOOD, seconds, "m2")


def _packet_ins(scene: Scene, seconds: float) -> None:
    made = hostile_frames.requests(scene.chance, scene.attacker.mac, scene.attacker.address)
    scene.send(made, FLOOD, seconds)


def _arp_spoof(scene: Scene, seconds: float) -> None:
    scene.send(hostile_frames.arp_claims(scene.attacker.mac, scene.target.address), STEADY, seconds)


def _nd_spoof(scene: Scene, seconds: float) -> None:
    scene.send(hostile_frames.neighbour_claims(scene.attacker.mac, _six(scene.target)), STEADY, seconds)


def _mac_theft(scene: Scene, seconds: float) -> None:
    scene.send(hostile_frames.stolen_mac(scene.target.mac), STEADY, seconds)


def _moving_host(scene: Scene, seconds: float) -> None:
    scene.send(hostile_frames.stolen_mac("02:00:00:00:66:66"), STEADY, seconds, "m1", "m2")


def _relay(scene: Scene, seconds: float) -> None:
    """Swap discovery frames between the attacker's two ports."""
    with _socket(scene.net.stations["m1"]) as one, _socket(scene.net.stations["m2"]) as other:
        end = time.monotonic() + max(seconds, 2.0)
        while (left := end - time.monotonic()) > 0:
            for peer in select.select([one, other], [], [], left)[0]:
                frame = receive(peer)
                if frame is not None and frame[12:14] in hostile_frames.OURS:
                    (other if peer is one else one).send(frame)


def _forge(scene: Scene, seconds: float) -> None:
    scene.send(hostile_frames.forged_discovery(scene.chance, scene.seen), STEADY, seconds)


def _replay(scene: Scene, seconds: float) -> None:
    """Send what was seen before the attacks, which is out of date by now."""
    scene.send(hostile_frames.repeated(scene.seen), STEADY, seconds, "m1", "m2")


def _foreign_rule(scene: Scene, seconds: float) -> None:
    """Drop what nobody sends, on a switch that the bystanders use."""
    scene.net.ofctl("add-flow", "A", "priority=300,ip,nw_dst=10.99.9.9,actions=drop")
    time.sleep(min(seconds, 1.0))


def _second_controller(scene: Scene, seconds: float) -> None:
    """Let one of the switches obey another controller as well."""
    folder = scene.net.folder / "second"
    folder.mkdir(exist_ok=True)
    with controller(scene.net.place, folder, configuration(SHAPE), "--listen", SECOND):
        scene.net.vsctl("set-controller", "P", "tcp:127.0.0.1:6653", f"tcp:{SECOND}")
        try:
            with contextlib.suppress(LabError):
                wait_until(
                    lambda: "second-controller" in scene.fabric.codes(),
                    what="it to be named",
                    timeout=seconds + SECOND_SECONDS,
                )
        finally:
            scene.net.vsctl("set-controller", "P", "tcp:127.0.0.1:6653")


def _flapping_port(scene: Scene, seconds: float) -> None:
    """Pull the attacker's own cable, again and again, with frames in between."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for state in ("down", "up"):
            scene.attacker.place.ip(f"link set eth0 {state}")
            time.sleep(FLAP_SECONDS / 2)


CASES = (
    Case("arp_spoof", _arp_spoof, "address-conflict"),
    Case("nd_spoof", _nd_spoof, "address-conflict"),
    Case("mac_theft", _mac_theft, "misplaced-host"),
    Case("moving_host", _moving_host, "host-flapping"),
    Case("discovery_relay", _relay, "relayed-probe"),
    Case("discovery_forged", _forge, "forged-probe"),
    Case("discovery_replayed", _replay, "forged-probe"),
    Case("foreign_rule", _foreign_rule, "foreign-rule", AUDIT_SECONDS),
    Case("second_controller", _second_controller, "second-controller"),
    Case("flapping_port", _flapping_port, "port-flapping"),
    # Last: a port with too many hosts is one that learns no others for a minute.
    Case("packet_in_flood", _packet_ins, "packet-in-flood"),
    Case("mac_storm", _storm, "crowded-port"),
)

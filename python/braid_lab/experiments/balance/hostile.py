"""`balance/hostile`: attackers in places of their own try to disturb a gateway that balances.

    client1 ─┐                          ┌─ stranger
    client2 ─┴ gateway ─┬─ observer ═ dsl ─┴ internet (servers)
                        └═════════════ lte ┘

The stranger sees nothing and sends with any source address, as from a provider that does not check them. The observer
sees one line and answers what it sees before others can. `client2` is a hostile host of the LAN. Programs on
`client1` show what others notice.
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from braid_lab.clients.new_connections import Attempt
from braid_lab.experiment import Run, experiment
from braid_lab.experiments.balance import forgeries
from braid_lab.experiments.balance.forgeries import Connection, Forger, Known
from braid_lab.experiments.balance.uplink_failure import Location, ended, held_by, seen
from braid_lab.fixtures import serve
from braid_lab.net import stranger
from braid_lab.net.links import LinkSpec
from braid_lab.net.namespace import Namespace
from braid_lab.net.topology import OBSERVER_NEAR, RESOLVERS, Topology, UplinkSpec, lan_address, network
from braid_lab.observe import verdicts
from braid_lab.packets.codec import Packet, decode, encode
from braid_lab.packets.pacing import send_paced
from braid_lab.packets.tap import ETHERNET, ETHERTYPE
from braid_lab.process import LabError, Process, wait_until
from braid_lab.product import Braid, braid

#: The line that the observer sees, and the other one.
SEEN, UNSEEN = "dsl", "lte"
#: One-way delays of the lines, ms: no honest round trip is shorter than twice that.
DELAY_MS = {SEEN: 15.0, UNSEEN: 25.0}
UPLINKS = (
    UplinkSpec(SEEN, LinkSpec(rate="20Mbit/s", delay=f"{DELAY_MS[SEEN]:g}ms", queue="250ms"), observed=True),
    UplinkSpec(UNSEEN, LinkSpec(rate="20Mbit/s", delay=f"{DELAY_MS[UNSEEN]:g}ms", queue="250ms")),
)

#: Half of the connections are raced, so that there is always a race to disturb.
CONFIGURATION = f"""
name_servers = "{{server}}"
[race]
explore_one_in = 2
per_destination = "1000 /s"
total = "1000 /s"
[[rule]]
name = "bank"
domain = "{forgeries.RULED_NAME}"
use = "{UNSEEN}"
"""

#: Packets a second of an attack: a few hundred for guesses that a host must look at, and more for floods.
GUESSES, FLOOD = 500.0, 2000.0

#: Interval of new connections of each IP version, and the connections that are held open.
CONNECTION_INTERVAL_MS = 40.0
HELD = 4
#: Age from which a connection is one of those, ms.
HELD_MS = 1000
#: Connections of one IP version that succeed before the attacks begin.
WARM_ATTEMPTS = 20
START_SECONDS = 60.0

#: A connection that took longer has lost a packet (a SYN is repeated after a second). A busy machine alone makes it
#: wait for half of that.
SLOW_SECONDS = 0.9

#: Share of a blind attacker's packets that must get to the gateway.
MIN_ARRIVED = 0.9

#: Highest share of packets that may look lost on lines that lose nothing.
MAX_LOSS = 0.02

#: Only a socket for all protocols sees outgoing frames.
ETH_P_ALL = 3


@dataclass(frozen=True)
class Attack:
    """An attack that needs no sight, and its packets a second."""

    name: str
    forge: Forger
    rate: float = GUESSES
    #: True if it comes from the LAN.
    from_lan: bool = False


@dataclass(frozen=True)
class Reaction:
    """An attack of the observer: its answer to a packet that it has seen, or None."""

    name: str
    answer: Callable[[Packet], Packet | None]


#: No attack, for comparison.
QUIET = Attack("none", lambda *_: iter(()))


@dataclass(frozen=True)
class Plan:
    """Length of each attack: once at rest, and in each turn in use."""

    seconds_at_rest: float
    seconds: float
    turns: int


FULL = Plan(seconds_at_rest=30.0, seconds=20.0, turns=5)
QUICK = Plan(seconds_at_rest=3.0, seconds=2.0, turns=3)
SMOKE = Plan(seconds_at_rest=0.2, seconds=0.3, turns=1)


@dataclass
class Result:
    """The effects of an attack so far."""

    packets: int = 0
    deaths: int = 0
    #: Held connections that ended.
    ends: int = 0
    #: Outage of each turn, s.
    outages: list[float] = field(default_factory=list)
    #: False beliefs of the daemon that it has caused.
    harm: list[str] = field(default_factory=list)


@dataclass
class Site:
    """A network under attack."""

    net: Topology
    daemon: Braid
    stranger: Namespace
    location: Location

    @property
    def lan_sources(self) -> list[str]:
        """Addresses that a hostile host of the LAN may claim: of the internet, of uplinks, of nobody."""
        return [self.net.server(), stranger.ADDRESS[4], self.net.uplinks[UNSEEN].address4, "10.9.8.7"]

    def known(self, connections: Sequence[Connection] = ()) -> Known:
        """Return what attackers are given."""
        uplinks = self.net.uplinks.values()
        return Known(
            [each.address4 for each in uplinks] + [each.address6 for each in uplinks],
            [*RESOLVERS[4], *RESOLVERS[6]],
            [*self.net.servers(4), *self.net.servers(6)],
            connections or [Connection(each.address4, 40000, self.net.server(), 80) for each in uplinks],
        )

    def received(self) -> int:
        """Return how many packets have arrived over both lines."""
        return sum(self.net.host.counters(name)["rx"]["packets"] for name in self.net.uplinks)

    def deaths(self, uplink: str | None = None) -> int:
        """Return how often an uplink (any without a name) has been declared dead."""
        return sum(verdict == "dead" and uplink in (None, name) for name, verdict in verdicts(self.daemon))


@experiment("balance/hostile", "Attackers who see one line of a gateway, or none, and one in its LAN")
def hostile(run: Run) -> None:
    """Attack a gateway at rest and in use."""
    plan = run.of_form(full=FULL, quick=QUICK, smoke=SMOKE)
    with contextlib.ExitStack() as stack:
        with run.step("build a gateway with two lines, a stranger, an observer and a hostile client"):
            site = _site(stack)
        attacks = _attacks(site)
        names = [QUIET.name, *(each.name for each in attacks), *(each.name for each in REACTIONS)]
        results = {name: Result() for name in names}
        run.display.expect(len(attacks) + plan.turns * len(results) + 2)
        for attack in attacks:
            # Nothing but probes is under way: evidence that an uplink works comes from them alone.
            with run.step(f"at rest: {attack.name.replace('_', ' ')}"):
                before, received = site.deaths(), site.received()
                sent = _send(site, attack, site.known(), plan.seconds_at_rest, run.random)
                results[attack.name].deaths = site.deaths() - before
                if not attack.from_lan and site.received() - received < MIN_ARRIVED * sent:
                    raise LabError(f"{attack.name}: the attacker's packets do not arrive")
        with run.step("start programs on a client"):
            bystanders = stack.enter_context(Bystanders.running(site))
        for turn in range(1, plan.turns + 1):
            for name, result in results.items():
                with run.part(name), run.step(f"in use, turn {turn}: {name.replace('_', ' ')}"):
                    attacker = _attacker(site, bystanders, name, plan.seconds, run.random)
                    _in_use(site, bystanders, name, attacker, result)
        _record(run, results)
        run.series("bad_connections", bystanders.bad())
    run.notes.append(
        f"Each attack for {plan.seconds_at_rest:g} s at rest and {plan.turns} times {plan.seconds:g} s in use. "
        f"`seen_…` are the observer's, who sees {SEEN}: the deaths and ended connections are those of {UNSEEN}."
    )


def _attacks(site: Site) -> list[Attack]:
    servers, lan = site.net.servers(4), lan_address(2)
    return [
        Attack("icmp_on_probes", forgeries.icmp_on_probes),
        Attack("icmp_on_flows", forgeries.icmp_on_flows),
        Attack("echo_replies", forgeries.echo_replies),
        Attack("resets", forgeries.resets),
        Attack("segments", forgeries.segments),
        Attack("race_answers", forgeries.race_answers, FLOOD),
        Attack("dns_answers", forgeries.dns_answers),
        Attack("fragments", forgeries.fragments, FLOOD),
        Attack("flood", forgeries.flood, FLOOD),
        Attack("lan_flows", forgeries.flows_of_a_client(lan, servers), FLOOD, from_lan=True),
        Attack("lan_impostors", forgeries.impostors(site.lan_sources, servers), from_lan=True),
    ]


#: The observer reacts to packets that it sees: it refuses probes, resets connections and the SYNs of races, and
#: answers for servers.
REACTIONS = (
    Reaction("seen_icmp", forgeries.error_about),
    Reaction("seen_resets", forgeries.reset_of),
    Reaction("seen_race_answers", forgeries.answer_to),
)


def _site(stack: contextlib.ExitStack) -> Site:
    net = stack.enter_context(network(UPLINKS, lan_clients=2))
    serve(net, "http1", "dns")
    place = stack.enter_context(stranger.stranger(net))
    configuration = net.scratch / "hostile.toml"
    configuration.write_text(CONFIGURATION.format(server=net.server()))
    daemon = stack.enter_context(braid(net.host, net.scratch / "braid", "--config", configuration))
    return Site(net, daemon, place, Location("gateway", net))


@dataclass
class Bystanders:
    """A client's programs: new connections of both IP versions, some that stay open, and a resolver's questions."""

    site: Site
    fresh: list[Process]
    held: Process
    vias: list[str]
    #: Begin and name of each attack so far.
    attacks: list[tuple[float, str]] = field(default_factory=list)

    @staticmethod
    @contextlib.contextmanager
    def running(site: Site) -> Iterator[Bystanders]:
        """Run them for the length of a block; it begins once connections of both IP versions succeed."""
        net, location = site.net, site.location
        with contextlib.ExitStack() as stack:
            fresh = [
                stack.enter_context(
                    location.start("new_connections", CONNECTION_INTERVAL_MS, *net.servers(family), tag=str(family))
                )
                for family in (4, 6)
            ]
            stack.enter_context(location.start("udp_poller", 20, net.server(), forgeries.RESOLVER_PORT))
            held = stack.enter_context(location.start("open_connections", HELD, HELD, net.server()))
            for each in fresh:
                wait_until(
                    lambda each=each: sum(one.good for one in seen(each)) >= WARM_ATTEMPTS,  # type: ignore[misc]
                    what="connections over both lines",
                    timeout=START_SECONDS,
                )
            yield Bystanders(site, fresh, held, held_by(held))

    def during(self, name: str, attacker: Callable[[], int]) -> tuple[float, int]:
        """Attack; return the longest time for which new connections failed or were slow, s, and the packets."""
        began = time.monotonic()
        packets = attacker()
        end = time.monotonic()
        self.attacks.append((began, name))
        # A connection that began at the end shows by then whether it is slow.
        time.sleep(SLOW_SECONDS + 0.1)
        lasted = max(outage([each for each in seen(one) if began <= each.at <= end]) for one in self.fresh)
        return lasted, packets

    def bad(self) -> list[dict[str, Any]]:
        """Return all connections that failed or were slow."""
        return [
            asdict(each) | {"attack": max(((0.0, ""), *(one for one in self.attacks if one[0] <= each.at)))[1]}
            for process in self.fresh
            for each in seen(process)
            if not _is_good(each)
        ]

    def connections(self) -> list[Connection]:
        """Return the client's open connections to servers, as the internet sees them."""
        uplinks = self.site.net.uplinks
        told = [
            each
            for each in self.site.daemon.json("flows")["flows"]
            if each["protocol"] == "tcp" and each["age_ms"] > HELD_MS
        ]
        found = [_connection(each, uplinks[each["uplink"]].address4) for each in told]
        return [each for each in found if each is not None]

    def ended(self) -> list[str]:
        """Return the addresses by which connections went that have ended."""
        return [each.via for each in ended(self.held)]


def outage(attempts: Sequence[Attempt]) -> float:
    """Return the longest time from the beginning of a bad connection to that of a good one, s; 0 without bad ones."""
    longest, bad_since = 0.0, None
    for each in sorted(attempts, key=lambda each: each.at):
        good = _is_good(each)
        if not good and bad_since is None:
            bad_since = each.at
        if bad_since is not None:
            longest = max(longest, each.at - bad_since, 0.0 if good else each.seconds or 0.0)
        if good:
            bad_since = None
    return longest


def _is_good(attempt: Attempt) -> bool:
    return attempt.error is None and attempt.seconds is not None and attempt.seconds <= SLOW_SECONDS


def _connection(flow: dict[str, Any], outer: str) -> Connection | None:
    """Return an IPv4 connection of `braid flows` as the internet sees it."""
    remote, _, port = flow["remote"].rpartition(":")
    if ":" in remote.strip("[]"):
        return None
    return Connection(outer, int(flow["outer"].rpartition(":")[2]), remote, int(port))


def _send(site: Site, attack: Attack, known: Known, seconds: float, chance: random.Random) -> int:
    """Send an attack's packets at its rate; return their number."""
    place = site.net.clients[1] if attack.from_lan else site.stranger
    return send_paced(place, attack.forge(known, chance), attack.rate, seconds)


def _attacker(
    site: Site, bystanders: Bystanders, name: str, seconds: float, chance: random.Random
) -> Callable[[], int]:
    """Return a function that attacks for so long, and returns the number of its packets."""
    for reaction in REACTIONS:
        if reaction.name == name:
            return lambda: _react(site, reaction, seconds)
    attack = next((each for each in _attacks(site) if each.name == name), None)
    if attack is None:
        return lambda: _rest(seconds)
    known = site.known(bystanders.connections())
    return lambda: _send(site, attack, known, seconds, chance)


def _rest(seconds: float) -> int:
    """Send nothing for so long."""
    time.sleep(seconds)
    return 0


def _in_use(site: Site, bystanders: Bystanders, name: str, attacker: Callable[[], int], result: Result) -> None:
    """Attack while a client's programs run, and add what they noticed.

    If the attacker has seen a line, only what happens to the other one counts.
    """
    seen = name in (each.name for each in REACTIONS)
    deaths, ended_before, counted = (
        site.deaths(UNSEEN if seen else None),
        len(bystanders.ended()),
        _tcp_counters(site),
    )
    lasted, packets = bystanders.during(name, attacker)
    result.packets += packets
    result.outages.append(lasted)
    result.deaths += site.deaths(UNSEEN if seen else None) - deaths
    ends = bystanders.ended()[ended_before:]
    result.ends += ends.count(site.net.uplinks[UNSEEN].address4) if seen else len(ends)
    if not seen:
        result.harm += _harm(site, counted)


def _record(run: Run, results: dict[str, Result]) -> None:
    """Turn results into figures and a table."""
    run.table = [["attack", "packets", "false deaths", "outage ms", "held connections ended", "passed"]]
    for name, result in results.items():
        if not result.outages:
            continue
        outage_ms = run.measure(
            f"outage_ms_{name}", [1000 * each for each in result.outages], unit="ms", better="lower"
        )
        good = not (result.ends or result.deaths or result.harm)
        if name != QUIET.name:
            good = good and result.packets > 0
            run.figure(f"false_deaths_{name}", result.deaths, better="lower")
            run.passes(name, good)
        run.notes += [f"{name}: {harm}." for harm in result.harm]
        cells = [str(result.packets), str(result.deaths), f"{outage_ms:.0f}", str(result.ends)]
        run.table.append([name.replace("_", " "), *cells, "yes" if good else "no"])


def _tcp_counters(site: Site) -> dict[str, tuple[int, int]]:
    """Return each uplink's counters of TCP packets, and of those that look lost."""
    return {
        each["name"]: (each["data_packets"], each["lost_packets"]) for each in site.daemon.json("uplinks")["uplinks"]
    }


def _harm(site: Site, before: dict[str, tuple[int, int]]) -> list[str]:
    """Return how the daemon's beliefs differ from the truth."""
    found = []
    for name, (packets, lost) in _tcp_counters(site).items():
        share = (lost - before[name][1]) / max(1, packets - before[name][0])
        if share > MAX_LOSS:
            found.append(f"{name} seems to lose {share:.0%} of its packets")
    for path in site.daemon.json("paths")["destinations"]:
        for way in path["paths"]:
            if way["rtt_ms"] is not None and way["rtt_ms"] < 2 * DELAY_MS[way["uplink"]]:
                found.append(f"{path['network']} seems to be {way['rtt_ms']:.1f} ms away by {way['uplink']}")
    explained = site.daemon.json("explain", f"{forgeries.LURE}:443", "--source", lan_address(1))["answers"][0]
    if explained["outcome"] == "uplink":
        found.append(f"{forgeries.LURE} is taken for {forgeries.RULED_NAME}")
    return found


def _react(site: Site, reaction: Reaction, seconds: float) -> int:
    """Answer packets that leave by the line that the observer sees; return the number of answers."""
    observer = site.net.uplinks[SEEN].observer
    assert observer is not None  # noqa: S101
    with observer.inside():
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    sent, end = 0, time.monotonic() + seconds
    with tap:
        tap.bind((OBSERVER_NEAR, ETH_P_ALL))
        while (left := end - time.monotonic()) > 0 and select.select([tap], [], [], left)[0]:
            frame, (*_, kind, _, _) = tap.recvfrom(1 << 16)
            answer = None if kind == socket.PACKET_OUTGOING else _answer(reaction, frame)
            if answer is not None:
                tap.send(answer)
                sent += 1
    return sent


def _answer(reaction: Reaction, frame: bytes) -> bytes | None:
    """Return the frame that answers another one, or None."""
    to, source, kind = ETHERNET.unpack_from(frame)
    if kind not in ETHERTYPE.values():
        return None
    with contextlib.suppress(ValueError):
        answer = reaction.answer(decode(frame[ETHERNET.size :]))
        if answer is not None:
            return ETHERNET.pack(source, to, kind) + encode(answer)
    return None

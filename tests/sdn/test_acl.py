"""The access control list: rules decide each packet as the list does, also while another list takes over."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import secrets
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as runs
from hypothesis import strategies as st

from braid_lab.fabric.classifier import header_fields
from braid_lab.fabric.fake_switches import _flow_stats
from braid_lab.fabric.pipeline import Pipeline
from braid_lab.fabric.shapes import two_paths
from braid_sdn.fabric import controller
from braid_sdn.fabric.acl import ANYBODY, Acl, AclEntry, Action, End, HostEnd, Place, Protocol, explained
from braid_sdn.fabric.acl_config import MAX_PORT
from braid_sdn.fabric.api.events import Event
from braid_sdn.fabric.api.metrics import exposition
from braid_sdn.fabric.api.report import acl as acl_report
from braid_sdn.fabric.api.report import problems
from braid_sdn.fabric.config import Config, ConfigError
from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.monitor.probe import EXPERIMENTAL, PROBE_MAC, tagged
from braid_sdn.fabric.plan import network_state
from braid_sdn.fabric.plan.plan import Edge, Host
from braid_sdn.fabric.service import Service
from braid_sdn.fabric.settings import Settings
from braid_sdn.fabric.switches import acl as rules
from braid_sdn.fabric.switches.acl import BLOCKS, LocalAcl, is_of_list
from braid_sdn.fabric.switches.acl_placement import AclPlacement, Surroundings
from braid_sdn.fabric.switches.rules import COOKIE, INGRESS, PATHS, SOURCES, Rules, base
from braid_sdn.openflow.flow_mods import encode
from braid_sdn.openflow.flow_stats import FLOWS_AT, DecodedRules
from braid_sdn.openflow.flows import FILTER_FIELDS, LINK_FIELDS
from braid_sdn.openflow.messages import (
    TAGGED,
    AddRule,
    DeleteRule,
    FlowStats,
    Match,
    Port,
    Reserved,
    Rule,
)
from braid_sdn.openflow.wire import _flow_mod

from .virtual import Network, arp, everybody_reaches_everybody, frame, mac, ready, solicitation, tags

#: Nothing here is about paths that are measured.
pytestmark = pytest.mark.usefixtures("rare_probes")

SWITCH, LINK, HOST_PORT, OTHER_PORT, EDGE_PORT = 1, 1, 2, 3, 4
MACS = [mac(number) for number in range(1, 5)]
V4 = ["10.0.0.1", "10.0.0.2", "10.0.1.1", "192.0.2.9"]
V6 = ["2001:db8::1", "2001:db8::2", "2001:db8:1::1"]
PREFIXES = ["10.0.0.1", "10.0.0.0/24", "10.0.0.0/15", "0.0.0.0/0", "192.0.2.8/30"]
PREFIXES6 = ["2001:db8::1", "2001:db8::/48", "::/0", "2001:db8::/126"]
PORTS = [1, 22, 79, 80, 81, 1023, 1024, 8080, 65535]
HERE, ELSEWHERE = Place(switch="A"), Place(switch="B")
PORT, EDGE, FAR_EDGE = Place(switch="A", port="h"), Place(edge="ha"), Place(edge="hb")
PLACES = {
    HERE: (SWITCH, None),
    ELSEWHERE: (2, None),
    PORT: (SWITCH, HOST_PORT),
    EDGE: (SWITCH, EDGE_PORT),
    FAR_EDGE: (2, 7),
}
#: The hosts, one at each port and two elsewhere.
HOSTS = [
    Host(MACS[0], PortId(SWITCH, HOST_PORT)),
    Host(MACS[1], PortId(SWITCH, EDGE_PORT)),
    Host(MACS[2], PortId(2, 7)),
    Host(MACS[3], PortId(2, 8)),
]


def macs_behind(hosts: Iterable[Host]) -> dict[Place, set[str]]:
    return {
        place: {host.mac for host in hosts if host.port.switch == at and port in (None, host.port.port)}
        for place, (at, port) in PLACES.items()
    }


BEHIND = macs_behind(HOSTS)
AROUND = Surroundings(
    links={SWITCH: frozenset({LINK})},
    ports={SWITCH: (LINK, HOST_PORT, OTHER_PORT, EDGE_PORT)},
    edges=(Edge("ha", PortId(SWITCH, EDGE_PORT)), Edge("hb", PortId(2, 7))),
    hosts=HOSTS,
    places=PLACES,
)


@dataclass(frozen=True)
class Packet:
    """A packet as it enters the network."""

    port: int
    source: str
    target: str
    kind: str
    #: Addresses, and ports.
    ends: tuple[str, str] = ("", "")
    ports: tuple[int, int] = (0, 0)
    is_tagged: bool = False
    is_later: bool = False

    @property
    def version(self) -> int:
        return ipaddress.ip_address(self.ends[0]).version if self.ends[0] else 0

    @functools.cached_property
    def frame(self) -> bytes:
        ends = bytes.fromhex(self.target.replace(":", "") + self.source.replace(":", ""))
        if self.kind == "arp":
            made = ends + b"\x08\x06" + bytes(46)
        elif self.kind == "other":
            made = ends + b"\x86\xdc" + bytes(46)
        else:
            made = ends + self._ip()
        return tagged(made, 77) if self.is_tagged else made

    def _ip(self) -> bytes:
        numbers = {"tcp": 6, "udp": 17, "icmp": 1 if self.version == 4 else 58, "nd": 58, "gre": 47}
        proto = numbers[self.kind]
        body = struct.pack("!HH", *self.ports) + bytes(20)
        if proto == 58:
            body = bytes([135 if self.kind == "nd" else 128]) + bytes(23)
        one, other = (ipaddress.ip_address(end).packed for end in self.ends)
        if self.version == 4:
            fragment = 5 if self.is_later else 0
            return b"\x08\x00" + struct.pack("!BBHHHBBH", 0x45, 0, 44, 1, fragment, 64, proto, 0) + one + other + body
        return b"\x86\xdd" + struct.pack("!IHBB", 6 << 28, len(body), proto, 64) + one + other + body


def decision(acl: Acl, packet: Packet, behind: Mapping[Place, set[str]] = BEHIND) -> Action:
    """The list as an operator reads it."""
    for entry in acl.entries:
        if is_of(entry, packet, behind):
            return entry.action
    return Action.PERMIT if packet.kind in ("arp", "nd") else acl.default


def is_of(entry: AclEntry, packet: Packet, behind: Mapping[Place, set[str]]) -> bool:
    if packet.kind in ("arp", "nd"):
        names_frames = entry.protocol is Protocol.ANY and (entry.source, entry.target) != (ANYBODY, ANYBODY)
        if not names_frames or entry.source.network is not None or entry.target.network is not None:
            return False
    place = entry.source.place
    if place is not None and (PLACES[place][0] != SWITCH or PLACES[place][1] not in (None, packet.port)):
        return False
    if entry.target.place is not None and packet.target not in behind[entry.target.place]:
        return False
    if entry.source.mac not in (None, packet.source) or entry.target.mac not in (None, packet.target):
        return False
    for end, address in zip((entry.source, entry.target), packet.ends, strict=True):
        if end.network is not None and (not address or ipaddress.ip_address(address) not in end.network):
            return False
    if entry.protocol is not Protocol.ANY and entry.protocol.value != packet.kind:
        return False
    pairs = zip((entry.source_ports, entry.ports), packet.ports, strict=True)
    return all(wanted is None or (not packet.is_later and wanted[0] <= port <= wanted[1]) for wanted, port in pairs)


def ends(prefixes: list[str], places: list[Place]) -> st.SearchStrategy[End]:
    networks = st.sampled_from(prefixes).map(lambda text: End(network=ipaddress.ip_network(text)))
    others = [st.sampled_from(MACS).map(lambda each: End(mac=each)), st.just(ANYBODY)]
    return st.one_of(networks, *others, st.sampled_from(places).map(lambda each: End(place=each)))


ranges = st.one_of(
    st.none(), st.tuples(st.sampled_from(PORTS), st.sampled_from(PORTS)).map(lambda two: (min(two), max(two)))
)


@st.composite
def entries(draw: st.DrawFn) -> AclEntry:
    prefixes = draw(st.sampled_from([PREFIXES, PREFIXES6]))
    protocol = draw(st.sampled_from(list(Protocol)))
    has_ports = protocol in (Protocol.TCP, Protocol.UDP)
    source = draw(ends(prefixes, [HERE, PORT, EDGE, ELSEWHERE]))
    if source.network is not None and draw(st.booleans()):
        source = End(source.network, place=draw(st.sampled_from([HERE, PORT, EDGE, ELSEWHERE])))
    return AclEntry(
        draw(st.sampled_from(list(Action))),
        source,
        draw(ends(prefixes, list(PLACES))),
        protocol,
        draw(ranges) if has_ports else None,
        draw(ranges) if has_ports else None,
    )


lists = st.builds(Acl, st.lists(entries(), max_size=8).map(tuple), st.sampled_from(list(Action)))


@st.composite
def packets(draw: st.DrawFn) -> Packet:
    addresses = draw(st.sampled_from([V4, V6]))
    kinds = ["tcp", "udp", "icmp", "gre", "other", "arp"] + (["nd"] if addresses is V6 else [])
    kind = draw(st.sampled_from(kinds))
    port = draw(st.sampled_from([HOST_PORT, OTHER_PORT, EDGE_PORT]))
    both = st.tuples(st.sampled_from(addresses), st.sampled_from(addresses))
    is_later = kind in ("tcp", "udp") and addresses is V4 and draw(st.booleans())
    return Packet(
        port,
        draw(st.sampled_from(MACS)),
        draw(st.sampled_from([*MACS, "ff:ff:ff:ff:ff:ff"])),
        kind,
        ("", "") if kind in ("arp", "other") else draw(both),
        draw(st.tuples(st.sampled_from(PORTS), st.sampled_from(PORTS))) if kind in ("tcp", "udp") else (0, 0),
        port == EDGE_PORT and draw(st.booleans()),
        is_later,
    )


class Switch:
    """A switch with the rules of ingress alone."""

    def __init__(self, *, forwards: bool = False) -> None:
        names = {number: Port(number, str(number), mac(number), True, 1e9) for number in range(1, 5)}
        self.pipeline = Pipeline(SWITCH, names)
        self.target: dict[int, Rules] = {SWITCH: {}}
        self.installed: dict[int, Rules] = {SWITCH: {}}
        known = [Rule(INGRESS, 80, Match(in_port=LINK), (), PATHS, COOKIE)]
        known.append(Rule(INGRESS, 80, Match(in_port=EDGE_PORT, vlan=TAGGED), (), PATHS, COOKIE))
        for rule in (*(each for each in base() if each.table == INGRESS), *known):
            self.send(AddRule(rule))
            if forwards:
                self.target[SWITCH][rule.key] = self.installed[SWITCH][rule.key] = rule

    def send(self, message: AddRule | DeleteRule) -> None:
        list(self.pipeline.handle(0.0, message))

    def goto(self, port: int, frame: bytes) -> int | str | None:
        """The table in which a packet goes on; None if it is dropped."""
        rule = self.pipeline.find_rule(0, header_fields(port, 0, frame))
        return "controller" if rule is not None and rule.actions else rule.goto if rule is not None else None

    def decides(self, packet: Packet) -> Action:
        goto = self.goto(packet.port, packet.frame)
        assert goto in (None, PATHS if packet.is_tagged else SOURCES)
        return Action.DENY if goto is None else Action.PERMIT

    def follow(self, placement: AclPlacement, around: Surroundings = AROUND) -> Iterator[None]:
        """Do what another list takes, message by message, as the controller does; then delete what is left."""
        change = placement.follow(self.target, self.installed, around)
        has = self.installed[SWITCH]
        for _, rule in change.added:
            has[rule.key] = rule
            self.send(AddRule(rule))
            yield
        for _, key in change.deleted:
            del has[key]
            self.send(DeleteRule(key))
            yield
        # The lowest first, as the updater does.
        for key in sorted((key for key in has if key not in self.target[SWITCH]), key=lambda key: key[1]):
            del has[key]
            self.send(DeleteRule(key))
            yield

    def settle(self, placement: AclPlacement, around: Surroundings = AROUND) -> None:
        for _ in self.follow(placement, around):
            pass


@runs(max_examples=300, deadline=None)
@given(lists, st.lists(packets(), min_size=1, max_size=30))
def test_rules_decide_each_packet_as_the_list_does(acl: Acl, some: list[Packet]) -> None:
    switch = Switch()
    switch.settle(AclPlacement(acl))
    for packet in some:
        assert switch.decides(packet) is decision(acl, packet), (str(packet), [str(each) for each in acl.entries])


@runs(max_examples=100, deadline=None)
@given(st.lists(lists, min_size=2, max_size=4), st.lists(packets(), min_size=1, max_size=10))
def test_each_packet_is_decided_by_one_of_two_lists_at_every_moment(some: list[Acl], sent: list[Packet]) -> None:
    switch, placement, before = Switch(forwards=True), AclPlacement(), [decision(Acl(), packet) for packet in sent]
    for acl in some:
        placement.change(acl)
        after = [decision(acl, packet) for packet in sent]
        for _ in switch.follow(placement):
            for packet, *either in zip(sent, before, after, strict=True):
                assert switch.decides(packet) in either
        assert [switch.decides(packet) for packet in sent] == after
        before = after


#: Any of the hosts at any of the places.
populations = st.lists(
    st.builds(Host, st.sampled_from(MACS), st.sampled_from([host.port for host in HOSTS])),
    unique_by=lambda host: host.mac,
    max_size=4,
)


@runs(max_examples=100, deadline=None)
@given(lists, st.lists(populations, min_size=2, max_size=4), st.lists(packets(), min_size=1, max_size=10))
def test_each_packet_is_decided_by_the_hosts_before_or_after_at_every_moment(
    acl: Acl, some: list[list[Host]], sent: list[Packet]
) -> None:
    switch, placement = Switch(forwards=True), AclPlacement(acl)
    before = [decision(acl, packet, macs_behind(())) for packet in sent]
    switch.settle(placement, replace(AROUND, hosts=()))
    for hosts in some:
        after = [decision(acl, packet, macs_behind(hosts)) for packet in sent]
        for _ in switch.follow(placement, replace(AROUND, hosts=hosts)):
            for packet, *either in zip(sent, before, after, strict=True):
                assert switch.decides(packet) in either
        assert [switch.decides(packet) for packet in sent] == after
        before = after


def test_a_host_that_comes_or_goes_changes_no_rules_but_its_own() -> None:
    acl = Acl((*denies_tcp(22).entries, AclEntry(Action.DENY, target=End(place=ELSEWHERE), protocol=Protocol.UDP)))
    switch, placement = Switch(), AclPlacement(acl)
    for hosts in ((), HOSTS[:3], HOSTS, HOSTS[3:], ()):
        before = set(switch.installed[SWITCH])
        switch.settle(placement, replace(AROUND, hosts=hosts))
        changed = before ^ set(switch.installed[SWITCH])
        assert not before or {rule[2].eth_dst for rule in changed} <= {host.mac for host in HOSTS[2:]}
    assert len(before) - len(switch.installed[SWITCH]) == 4


def test_rules_of_hosts_that_went_do_not_stay_where_others_come_all_the_time() -> None:
    """Nor where the switch refuses rules of others."""
    to_place = AclEntry(Action.DENY, target=End(place=ELSEWHERE), protocol=Protocol.UDP)
    switch, placement = Switch(), AclPlacement(Acl((to_place,)))
    switch.settle(placement)
    for number in range(50):
        came = replace(AROUND, hosts=[Host(mac(100 + number), PortId(2, 8))])
        # The updater's turn never comes.
        change = placement.follow(switch.target, switch.installed, came, has_whole_list=lambda _: False)
        for _, rule in change.added:
            if number % 2:
                switch.installed[SWITCH][rule.key] = rule
                switch.send(AddRule(rule))
        for _, key in change.deleted:
            del switch.installed[SWITCH][key]
            switch.send(DeleteRule(key))
        targets = {rule.match.eth_dst for rule in switch.pipeline.rules.values() if is_of_list(rule)}
        assert targets <= {None, mac(100 + number)}


def denies_tcp(port: int, action: Action = Action.DENY, *, default: Action = Action.PERMIT) -> Acl:
    return Acl((AclEntry(action, protocol=Protocol.TCP, ports=(port, port)),), default)


def of_tcp(port: int, at: int = HOST_PORT, **more: bool) -> Packet:
    return Packet(at, MACS[0], MACS[1], "tcp", (V4[0], V4[1]), (1024, port), **more)


def test_lists_take_over_from_one_another_for_ever() -> None:
    """More often than there are blocks, so that one below has to do as well."""
    switch, placement = Switch(), AclPlacement(denies_tcp(22))
    switch.settle(placement)
    for number in range(3 * rules.BLOCKS):
        acl = Acl((*denies_tcp(22).entries, AclEntry(Action.DENY, protocol=Protocol.UDP, ports=(1 + number,) * 2)))
        placement.change(acl)
        for _ in switch.follow(placement):
            assert switch.decides(of_tcp(22)) is Action.DENY
            assert switch.decides(of_tcp(80)) is Action.PERMIT
        assert len(switch.installed[SWITCH]) == placement.rules_at(SWITCH)


def test_a_list_that_comes_back_while_its_rules_wait_for_their_end_stays() -> None:
    switch, placement = Switch(), AclPlacement(denies_tcp(22))
    switch.settle(placement)
    for port in (80, 22):
        placement.change(denies_tcp(port))
        change = placement.follow(switch.target, switch.installed, AROUND)
        for _, rule in change.added:
            switch.installed[SWITCH][rule.key] = rule
            switch.send(AddRule(rule))
        for _, key in change.deleted:
            del switch.installed[SWITCH][key]
            switch.send(DeleteRule(key))
        assert switch.decides(of_tcp(port)) is Action.DENY
    # The first one never went: nothing was added for its return.
    assert not change.added
    assert switch.decides(of_tcp(80)) is Action.PERMIT


@pytest.mark.parametrize("done", range(12))
def test_a_controller_that_was_killed_during_a_change_is_followed_by_one_that_ends_it(done: int) -> None:
    switch, placement = Switch(), AclPlacement(denies_tcp(22))
    switch.settle(placement)
    placement.change(denies_tcp(80, default=Action.DENY))
    for number, _ in enumerate(switch.follow(placement)):
        if number == done:
            break
    # The next one knows what the switch lists alone, and has a third list.
    third = Acl((*denies_tcp(22).entries, *denies_tcp(80).entries))
    switch.target = {SWITCH: {}}
    switch.installed = {SWITCH: {key: rule for key, rule in switch.pipeline.rules.items() if rule.priority >= 1000}}
    for _ in switch.follow(AclPlacement(third)):
        assert switch.decides(of_tcp(22)) is Action.DENY or switch.decides(of_tcp(80)) is Action.DENY
    assert [switch.decides(of_tcp(port)) for port in (22, 80, 81)] == [Action.DENY, Action.DENY, Action.PERMIT]


def test_a_switch_that_lost_its_rules_gets_the_list_before_anything_else() -> None:
    switch, placement = Switch(), AclPlacement(denies_tcp(22))
    switch.settle(placement)
    missing = [each.rule for each in placement.restore(SWITCH, switch.target, ()) if isinstance(each, AddRule)]
    assert [rule.key for rule in missing] == list(switch.installed[SWITCH])
    # Its default first, which refuses what has no room.
    block = [rule for rule in missing if is_of_list(rule)]
    defaults = [rule for rule in block if rules.is_default(rule)]
    assert block[: len(defaults)] == defaults
    others = [rule.priority for rule in block[len(defaults) :]]
    assert others == sorted(others, reverse=True)
    assert placement.restore(SWITCH, switch.target, switch.installed[SWITCH].values()) == []


def test_discovery_links_and_edges_probes_pass_whatever_the_list_says() -> None:
    switch = Switch()
    switch.settle(AclPlacement(Acl((), Action.DENY)))
    probe = bytes.fromhex(PROBE_MAC.replace(":", "") + "060000000001")
    discovery = probe + EXPERIMENTAL.to_bytes(2, "big") + bytes(46)
    assert switch.goto(EDGE_PORT, discovery) == "controller"
    assert switch.goto(LINK, of_tcp(22, is_tagged=True).frame) == PATHS
    assert switch.goto(LINK, of_tcp(22).frame) == PATHS
    assert switch.goto(EDGE_PORT, tagged(probe + b"\x88\xb6" + bytes(46), 77)) == PATHS
    assert switch.goto(Reserved.CONTROLLER, of_tcp(22).frame) is not None


@pytest.mark.parametrize("kind", [b"\x88\xb6", b"\x81\x00\x00\x05\x08\x00"])
def test_what_cannot_be_read_behind_a_tag_is_refused_by_a_list_that_reads_it(kind: bytes) -> None:
    hidden = tagged(of_tcp(22).frame[:12] + kind + bytes(46), 77)
    for acl, wanted in ((denies_tcp(22), None), (Acl((AclEntry(Action.DENY, End(mac=MACS[2])),)), PATHS)):
        switch = Switch()
        switch.settle(AclPlacement(acl))
        # The lab's switch looks behind all tags; a real one does not.
        real = [rule for rule in switch.pipeline.rules.values() if rule.match.eth_type in rules.HIDING]
        assert bool(real) is (wanted is None)
        if kind == b"\x88\xb6":
            assert switch.goto(EDGE_PORT, hidden) == wanted


@pytest.mark.parametrize("ports", [(1, MAX_PORT), (80, 80), (8000, 8080), (1, 2), (1023, 1025), (2, MAX_PORT - 1)])
def test_a_range_is_at_most_thirty_matches(ports: tuple[int, int]) -> None:
    made = [each if isinstance(each, tuple) else (each, 0xFFFF) for each in rules.masks(ports)]
    covered = [port for value, mask in made for port in range(value, value + 0x10000 - mask)]
    assert covered == list(range(ports[0], ports[1] + 1))
    assert len(made) <= 30


def test_a_list_that_refuses_nothing_costs_no_rule() -> None:
    switch = Switch()
    assert AclPlacement(Acl()).follow(switch.target, switch.installed, AROUND).added == []


def test_a_switch_without_hosts_refuses_their_packets_until_it_is_known_to_have_some() -> None:
    switch, placement = Switch(), AclPlacement(denies_tcp(22))
    inner = Surroundings({SWITCH: frozenset({LINK})}, {SWITCH: (LINK,)}, (), (), {})
    switch.settle(placement, inner)
    # At a port that appears.
    assert [switch.decides(of_tcp(port)) for port in (22, 80)] == [Action.DENY, Action.DENY]
    assert switch.goto(LINK, of_tcp(80, is_tagged=True).frame) == PATHS
    assert switch.goto(LINK, of_tcp(80).frame) == PATHS
    assert placement.switches == []
    # Another list concerns it as little.
    placement.change(denies_tcp(23))
    assert placement.follow(switch.target, switch.installed, inner).added == []
    switch.settle(placement)
    assert [switch.decides(of_tcp(port)) for port in (22, 23)] == [Action.PERMIT, Action.DENY]
    placement.change(Acl())
    switch.settle(placement, inner)
    assert not switch.installed[SWITCH]


def test_too_many_rules_keep_the_list_before_and_none_before_refuses_all() -> None:
    to_all, crowd = crowded()
    placement, switch = AclPlacement(denies_tcp(22)), Switch()
    switch.settle(placement)
    placement.change(to_all)
    assert placement.follow(switch.target, switch.installed, crowd).added == []
    assert placement.crowded[SWITCH] > rules.MAX_RULES
    assert switch.decides(of_tcp(22)) is Action.DENY
    placement, switch = AclPlacement(to_all), Switch()
    for _, rule in placement.follow(switch.target, switch.installed, crowd).added:
        switch.send(AddRule(rule))
    assert switch.decides(of_tcp(80)) is Action.DENY


#: Too few hosts for `crowded`.
ROOMY = replace(AROUND, hosts=())


def crowded() -> tuple[Acl, Surroundings]:
    """A list that has more rules than a switch may have, though it means one host of each place."""
    to_all = [AclEntry(Action.DENY, target=End(place=ELSEWHERE), name=f"to all {number}") for number in range(600)]
    return Acl((*to_all, *denies_tcp(80).entries)), AROUND


@runs(max_examples=100, deadline=None)
@given(lists)
def test_rules_are_counted_before_they_are_made(acl: Acl) -> None:
    behind = {place: tuple(sorted(macs)) for place, macs in BEHIND.items()}
    local = LocalAcl(acl, tuple(rules.local_entries(acl, PLACES, SWITCH, behind)), edges=(EDGE_PORT,))
    made = len(rules.compiled(local))
    assert rules.count(local) == made
    most = max((len(each.targets) for each in local.entries if each.targets is not None), default=0)
    for hosts in range(1, most):
        shorter = len(rules.compiled(rules.shortened(local, hosts)))
        assert rules.most_hosts(local, shorter) >= hosts
    assert rules.most_hosts(local, made) == most


def test_hosts_that_are_too_many_at_a_place_keep_no_switch_from_following_the_list() -> None:
    """Those that were known first are meant."""
    crowd = replace(
        AROUND, hosts=[Host(MACS[2], PortId(2, 7)), *(Host(mac(9000 - n), PortId(2, 8)) for n in range(900))]
    )
    acl = Acl((AclEntry(Action.DENY, target=End(place=ELSEWHERE)), *denies_tcp(80).entries))
    placement, switch = AclPlacement(denies_tcp(22)), Switch()
    switch.settle(placement)
    placement.change(acl)
    switch.settle(placement, crowd)
    assert placement.rules_at(SWITCH) <= rules.MAX_RULES + 20
    assert placement.crowded[SWITCH] == 901 * 8 + 12
    assert placement.shortened[SWITCH] == (rules.MAX_RULES - 12) // 8
    assert [switch.decides(of_tcp(port)) for port in (22, 80)] == [Action.PERMIT, Action.DENY]
    for target, wanted in ((MACS[2], Action.DENY), (mac(8900), Action.DENY), (mac(8101), Action.PERMIT)):
        assert switch.decides(replace(of_tcp(22), target=target)) is wanted
    # Nothing changes at the next turn.
    assert placement.follow(switch.target, switch.installed, crowd).added == []
    assert placement.shortened
    switch.settle(placement)
    assert not placement.crowded
    assert not placement.shortened


def test_hosts_of_the_configuration_are_left_out_last_and_then_those_that_were_learned_first() -> None:
    net = reads(denies_tcp(22))
    for number in (70, 60):
        net.send("hb", frame(mac(number), "ff:ff:ff:ff:ff:ff", b"new"))
        net.run(1)
    # Configured while it is known already.
    net.controller.hosts.set_static(net.now, [Host(mac(60), net.stations["hb"])])
    hosts = network_state.surroundings(net.controller).hosts
    assert [host.mac for host in hosts] == [mac(number) for number in (60, 1, 2, 70)]


def test_a_switch_that_comes_back_while_the_list_is_too_long_keeps_the_one_that_it_has() -> None:
    switch, (acl, crowd) = Switch(), crowded()
    switch.settle(AclPlacement(denies_tcp(22)))
    known = dict(switch.installed[SWITCH])
    # Another controller, or another connection.
    placement = AclPlacement(acl)
    switch.target = {SWITCH: {}}
    placement.follow(switch.target, {}, crowd)
    assert placement.restore(SWITCH, switch.target, known.values()) == []
    assert placement.crowded[SWITCH] > rules.MAX_RULES
    assert {key for key, rule in known.items() if is_of_list(rule)} <= switch.target[SWITCH].keys()
    assert [switch.decides(of_tcp(port)) for port in (22, 80)] == [Action.DENY, Action.PERMIT]
    # It follows the list once there is room for that.
    switch.settle(placement, ROOMY)
    assert [switch.decides(of_tcp(port)) for port in (22, 80)] == [Action.PERMIT, Action.DENY]
    assert not placement.crowded


def test_a_new_edge_at_a_switch_for_which_the_list_is_too_long_is_refused() -> None:
    """The list before has no rules for its tagged packets."""
    (acl, crowd), placement, switch = crowded(), AclPlacement(denies_tcp(22)), Switch()
    switch.settle(placement, replace(AROUND, edges=()))
    placement.change(acl)
    switch.settle(placement, crowd)
    assert placement.crowded
    for port in (22, 80):
        assert switch.decides(of_tcp(port, EDGE_PORT, is_tagged=True)) is Action.DENY
        assert switch.decides(of_tcp(port, EDGE_PORT)) is (Action.DENY if port == 22 else Action.PERMIT)
    switch.settle(placement, ROOMY)
    assert switch.decides(of_tcp(22, EDGE_PORT, is_tagged=True)) is Action.PERMIT
    assert switch.decides(of_tcp(80, EDGE_PORT, is_tagged=True)) is Action.DENY


def test_packets_that_the_list_before_decided_count_for_no_entry_of_one_that_is_too_long() -> None:
    (acl, crowd), placement, switch = crowded(), AclPlacement(denies_tcp(22)), Switch()
    switch.settle(placement)
    placement.change(acl)
    switch.settle(placement, crowd)
    told = [FlowStats(rule, 5, 0, 1.0) for rule in switch.installed[SWITCH].values() if is_of_list(rule)]
    placement.handle_counters(SWITCH, told)
    assert not any(placement.counted.packets.values())
    # Nor does what is left of it, once there is room for the list.
    switch.settle(placement, ROOMY)
    placement.handle_counters(SWITCH, told)
    assert not any(placement.counted.packets.values())


def test_packets_are_counted_by_entry_and_entries_that_stay_keep_their_number() -> None:
    placement, switch = AclPlacement(denies_tcp(22)), Switch()
    switch.settle(placement)

    def told(packets: int) -> list[FlowStats]:
        made = [rule for rule in switch.installed[SWITCH].values() if rules.is_of_list(rule)]
        return [FlowStats(rule, packets, 0, 1.0) for rule in made if rules.entry_of(rule) == 1]

    placement.handle_counters(SWITCH, told(5))
    placement.handle_counters(SWITCH, told(7))
    count = placement.counted.packets[1]
    assert count == 7 * len(told(0))
    # Counters that were lost begin anew.
    placement.handle_counters(SWITCH, told(1))
    assert placement.counted.packets[1] == count + len(told(0))
    placement.change(Acl((AclEntry(Action.PERMIT, End(mac=MACS[1])), *denies_tcp(22).entries)))
    assert placement.counted.packets == {1: 0, 2: count + len(told(0)), 0: 0}


@runs(max_examples=50, deadline=None)
@given(lists)
def test_rules_are_told_and_read_back_the_same(acl: Acl) -> None:
    own = DecodedRules(LINK_FIELDS, FILTER_FIELDS, lambda cookie: cookie & ~0xFFFFFFFF == COOKIE)
    switch = Switch()
    switch.settle(AclPlacement(acl))
    made = list(switch.installed[SWITCH].values())
    told = bytes(FLOWS_AT) + b"".join(_flow_stats(rule, 3, 4) for rule in made)
    assert [each.rule for each in own.entries(told) if isinstance(each, FlowStats)] == made
    for rule in made:
        # By hand, since os-ken would hold up the controller.
        message = _flow_mod(rule, 0)
        message.set_xid(1)
        message.serialize()
        assert encode(rule, 0) == bytes(message.buf[8:])


@pytest.mark.parametrize("text", ["::ffff:1.2.3.4", "::1.2.3.4", "::ffff:0:0/96", "::1:1", "::ffff:0:1", "::/80"])
def test_addresses_of_ipv4_within_ipv6_are_read_back_the_same(text: str) -> None:
    """Otherwise each audit would find that the rule is somebody else's, and send it again."""
    own = DecodedRules(LINK_FIELDS, FILTER_FIELDS, lambda cookie: cookie & ~0xFFFFFFFF == COOKIE)
    switch = Switch()
    end = End(network=ipaddress.ip_network(text))
    switch.settle(AclPlacement(Acl((AclEntry(Action.DENY, end, end),))))
    made = list(switch.installed[SWITCH].values())
    told = bytes(FLOWS_AT) + b"".join(_flow_stats(rule, 3, 4) for rule in made)
    assert [each.rule for each in own.entries(told) if isinstance(each, FlowStats)] == made


def test_somebody_elses_rule_that_matches_addresses_stays_somebody_elses() -> None:
    own = DecodedRules(LINK_FIELDS, FILTER_FIELDS, lambda cookie: cookie & ~0xFFFFFFFF == COOKIE)
    foreign = Rule(INGRESS, 300, Match(eth_type=0x0800, ipv4_dst="10.0.0.2"), cookie=7)
    (told,) = own.entries(bytes(FLOWS_AT) + _flow_stats(foreign, 3, 4))
    assert told == "table=0,priority=300,eth_type=0x800,ipv4_dst=10.0.0.2"


# The whole controller in virtual time.


def reads(acl: Acl, **more: object) -> Network:
    return ready(two_paths(), acl=acl, **more)


def tcp_frame(source: int, target: int, port: int) -> bytes:
    made = Packet(HOST_PORT, mac(source), mac(target), "tcp", (f"10.0.0.{source}", f"10.0.0.{target}"), (1024, port))
    return made.frame


def got(net: Network, source: str, target: str, frame: bytes, seconds: float = 0.5) -> bool:
    net.received[target].clear()
    net.send(source, frame)
    net.run(seconds)
    return any(frame in (each, tagged(each, 0)) or each.endswith(frame[12:]) for each in net.received[target])


def test_a_refused_packet_does_not_pass_alone_nor_tagged_and_others_do() -> None:
    net = reads(denies_tcp(22))
    everybody_reaches_everybody(net)
    for port, passes in ((22, False), (80, True)):
        frame = tcp_frame(1, 2, port)
        assert got(net, "ha", "hb", frame) is passes
        for tag in tags(net, "ha", "hb"):
            assert got(net, "ha", "hb", tagged(frame, tag)) is passes
    net.run(3)
    assert net.controller.acl.counted.packets[1] == 3
    assert not net.codes()


def test_neighbour_packets_pass_a_list_that_refuses_all_else() -> None:
    net = reads(Acl((AclEntry(Action.DENY, protocol=Protocol.ICMP),), Action.DENY))
    assert not got(net, "ha", "hb", tcp_frame(1, 2, 80))
    assert got(net, "ha", "hb", arp(mac(1), "10.0.0.1", "10.0.0.2"), 2)
    assert got(net, "ha", "hb", solicitation(mac(1), "2001:db8::1", "2001:db8::2"), 2)


def test_a_changed_list_is_in_force_within_a_second_and_no_refused_packet_passes_meanwhile() -> None:
    both = (*denies_tcp(22).entries, *denies_tcp(23).entries)
    net = reads(Acl(both))
    for acl in (denies_tcp(22), Acl(both), Acl((), Action.PERMIT), Acl(both)):
        net.controller.set_acl(net.now, acl)
        refused = not acl.permits_all
        for each in net.received.values():
            each.clear()
        for _ in range(200):
            net.send("ha", tcp_frame(1, 2, 80))
            if refused and acl.entries[0] in both and len(acl.entries) == 1:
                net.send("ha", tcp_frame(1, 2, 22))
            net.run(0.005)
        # Those under way arrive.
        net.run(0.2)
        seen = net.received["hb"]
        assert seen.count(tcp_frame(1, 2, 80)) == 200
        assert tcp_frame(1, 2, 22) not in seen
        assert got(net, "ha", "hb", tcp_frame(1, 2, 22)) is not refused
        assert got(net, "ha", "hb", tcp_frame(1, 2, 23)) is not (len(acl.entries) == 2)


def test_a_restarted_controller_keeps_the_list_and_heals_it() -> None:
    net = reads(denies_tcp(22))
    before = {key for key, rule in net.switches[1].rules.items() if rules.is_of_list(rule)}
    net.restart_controller()
    for _ in range(100):
        assert not got(net, "ha", "hb", tcp_frame(1, 2, 22), 0.05)
    assert {key for key, rule in net.switches[1].rules.items() if rules.is_of_list(rule)} == before
    # Somebody deletes it.
    for key in before:
        list(net.switches[1].handle(net.now, DeleteRule(key)))
    net.run(32)
    assert {key for key, rule in net.switches[1].rules.items() if rules.is_of_list(rule)} == before


def test_numbers_are_not_asked_for_where_switches_have_to_read_packets() -> None:
    net = reads(Acl())
    assert net.controller.handle_shim("hb", wanted=True)
    net.controller.set_acl(net.now, denies_tcp(22))
    assert not net.controller.distributor.shims
    assert not net.controller.handle_shim("hb", wanted=True)


def test_numbers_are_asked_for_once_no_switch_refuses_them_any_more() -> None:
    """Switches follow a list that does not read packets a little later, and the list before would drop these."""
    net = reads(denies_tcp(22))
    net.controller.set_acl(net.now, Acl((AclEntry(Action.DENY, End(mac=MACS[2])),)))
    waited = 0
    while not net.controller.handle_shim("hb", wanted=True):
        waited += 1
        assert waited < 30
        net.run(0.1)
    hiding = [rule for switch in net.switches.values() for rule in switch.rules.values() if rules.decides(rule)]
    assert not [rule for rule in hiding if not is_of_list(rule)]


# Decisions on packets between two hosts.


def found(acl: Acl, one: HostEnd, other: HostEnd) -> list[tuple[int, str, str]]:
    return [(each.number, each.action.value, each.concerns) for each in explained(acl, one, other)]


def networks(*texts: str) -> Iterable[End]:
    return (End(network=ipaddress.ip_network(text)) for text in texts)


def test_an_explanation_ends_at_the_entry_that_decides_all() -> None:
    one = HostEnd(mac(1), frozenset({"10.0.0.1"}), frozenset({HERE}))
    other = HostEnd(mac(2), frozenset({"10.0.0.2"}), frozenset({ELSEWHERE}))
    inside, far = networks("10.0.0.0/24", "10.9.0.0/16")
    acl = Acl(
        (
            AclEntry(Action.DENY, inside, protocol=Protocol.TCP, ports=(22, 22)),
            AclEntry(Action.DENY, far),
            AclEntry(Action.PERMIT, inside, End(place=ELSEWHERE)),
            AclEntry(Action.DENY, inside),
        )
    )
    assert found(acl, one, other) == [(1, "deny", "tcp to port 22"), (3, "permit", "")]
    assert found(acl, other, one) == [(1, "deny", "tcp to port 22"), (4, "deny", "")]
    assert found(Acl(), one, other) == [(0, "permit", "")]


# A configuration that is read anew.


def test_a_reload_takes_the_list_or_keeps_the_one_before(tmp_path: Path) -> None:
    told: list[Event] = []

    def bad() -> Config:
        raise ConfigError("fabric.toml: acl 1.action: is missing")

    def config(acl: Acl, **more: object) -> Config:
        return Config(replace(Settings(secrets.token_bytes(16), acl=acl), **more))  # type: ignore[arg-type]

    async def story() -> None:
        service = Service(config(denies_tcp(22)), tmp_path, told.append)
        service.reload(bad)
        assert service.controller.acl.acl == denies_tcp(22)
        assert [each.code for each in problems(service.controller, 1.0)] == ["reload-refused"]
        service.reload(lambda: config(denies_tcp(23)))
        assert service.controller.acl.acl == denies_tcp(23)
        assert not problems(service.controller, 1.0)
        # A list that is the same changes nothing.
        service.reload(lambda: config(denies_tcp(23), failover=False))
        assert service.controller.acl.acl == denies_tcp(23)
        # A leader that begins anew has the list that was read last.
        assert service._new_controller().acl.acl == denies_tcp(23)
        service.stop()

    asyncio.run(story())
    assert [(each.name, each.warning) for each in told] == [
        ("reload-refused", True),
        ("reloaded", False),
        ("reloaded", False),
    ]
    assert told[0].fields == {"text": "fabric.toml: acl 1.action: is missing"}
    assert told[1].fields == {"taken": "acl", "acl": "entries 1, default permit"}
    assert told[2].fields == {"taken": "failover"}


@pytest.mark.parametrize("place", [Place(switch="B"), Place(switch="B", port="hb"), Place(edge="hb")], ids=str)
def test_a_place_stays_where_it_is_while_its_switch_has_lost_the_controller(place: Place) -> None:
    """The switch still brings packets to its hosts."""
    net = reads(Acl((AclEntry(Action.DENY, target=End(place=place), protocol=Protocol.TCP),)))
    net.disconnect("B")
    for _ in range(10):
        assert not got(net, "ha", "hb", tcp_frame(1, 2, 22))
    assert got(net, "ha", "hb", frame(mac(1), mac(2)))
    assert "acl-place-unknown" not in net.codes()
    net.connect("B")
    net.run(3)
    assert not got(net, "ha", "hb", tcp_frame(1, 2, 22))


def test_a_place_that_is_not_connected_is_named_and_metrics_have_every_entry() -> None:
    lost = AclEntry(Action.DENY, End(place=Place(switch="A", port="gone")))
    named = AclEntry(Action.PERMIT, protocol=Protocol.TCP, ports=(80, 80), name='"the web"')
    net = reads(Acl((*denies_tcp(22).entries, lost, named)))
    (problem,) = problems(net.controller, net.now)
    assert (problem.code, problem.subject) == ("acl-place-unknown", "entry 2")
    assert not got(net, "ha", "hb", tcp_frame(1, 2, 22))
    assert got(net, "ha", "hb", tcp_frame(1, 2, 80))
    net.run(3)
    told = exposition(net.controller, net.now)
    assert 'braid_fabric_acl_packets_total{entry="1",action="deny"} 1\n' in told
    assert 'braid_fabric_acl_packets_total{entry="2",action="deny"} 0\n' in told
    assert 'braid_fabric_acl_packets_total{entry="\\"the web\\"",action="permit"} 1\n' in told
    assert "braid_fabric_acl_refused_packets_total 1\n" in told
    shown = acl_report(net.controller, net.now)
    assert [each["known"] for each in shown["entries"]] == [True, False, True]
    assert {each["switch"] for each in shown["switches"]} == {"A", "B"}


def test_packets_before_a_host_is_learned_at_a_place_are_counted() -> None:
    """The list's rules are others from then on."""
    there = AclEntry(Action.DENY, target=End(place=Place(switch="B", port="hb")), protocol=Protocol.UDP)
    net = reads(Acl((*denies_tcp(22).entries, there)))
    net.run(3)
    for number in range(1, 4):
        for _ in range(4):
            assert not got(net, "ha", "hb", tcp_frame(1, 2, 22), 0.05)
        net.send("hb", frame(mac(70 + number), "ff:ff:ff:ff:ff:ff", b"new"))
        net.run(5)
        assert net.controller.acl.counted.packets[1] == 4 * number


def test_a_switch_that_is_restored_with_the_list_before_leaves_its_rules_to_nobody() -> None:
    """It lists its rules after a reload, and before the plan that follows it."""
    switch, placement = Switch(), AclPlacement(denies_tcp(22))
    placement.follow(switch.target, {}, AROUND)
    placement.change(denies_tcp(80))
    for message in placement.restore(SWITCH, switch.target, ()):
        assert isinstance(message, AddRule)
        switch.installed[SWITCH][message.rule.key] = message.rule
        switch.send(message)
    assert switch.decides(of_tcp(22)) is Action.DENY
    switch.settle(placement)
    assert [switch.decides(of_tcp(port)) for port in (22, 80)] == [Action.PERMIT, Action.DENY]


def test_a_switch_that_is_restored_with_the_hosts_before_leaves_its_rules_to_nobody() -> None:
    switch, placement = Switch(), AclPlacement(Acl((AclEntry(Action.DENY, target=End(place=ELSEWHERE)),)))
    placement.follow(switch.target, {}, AROUND)
    to_another = replace(of_tcp(22), target=MACS[0])
    moved = replace(AROUND, hosts=[Host(MACS[0], PortId(2, 7))])
    placement.follow(switch.target, {}, moved, most=0)
    assert placement.is_behind
    placement.restore(SWITCH, switch.target, ())
    switch.settle(placement, moved)
    assert switch.decides(to_another) is Action.DENY
    assert switch.decides(of_tcp(22)) is Action.PERMIT


# Switches that refuse rules of a list, and that are slow.


def blocks_at(net: Network, dpid: int = 1) -> set[int]:
    return {rules.block_of(rule) for rule in net.switches[dpid].rules.values() if is_of_list(rule)}


@pytest.mark.parametrize("late", [0.0, 5.0], ids=["at-once", "late"])
def test_the_list_before_stays_while_a_switch_refuses_rules_of_the_next_one(late: float) -> None:
    net = reads(denies_tcp(22))
    (old,) = blocks_at(net)
    net.switches[1].refuses = lambda rule: rules.is_default(rule) and rules.block_of(rule) != old
    net.control[1] = late
    # All but this port is refused, once its default is there.
    net.controller.set_acl(net.now, denies_tcp(80, Action.PERMIT, default=Action.DENY))
    for _ in range(100):
        assert not got(net, "ha", "hb", tcp_frame(1, 2, 22), 0.25)
    assert old in blocks_at(net)
    net.switches[1].refuses = lambda _: False
    net.run(150)
    assert len(blocks_at(net)) == 1
    assert old not in blocks_at(net)
    assert not got(net, "ha", "hb", tcp_frame(1, 2, 23))
    assert got(net, "ha", "hb", tcp_frame(1, 2, 80))


def test_a_full_table_has_room_again_once_hosts_went() -> None:
    there = End(place=Place(switch="B", port="hb"))
    net = reads(Acl((AclEntry(Action.DENY, target=there, protocol=Protocol.TCP, ports=(22, 22)),)))
    here = net.switches[1]

    def listed() -> int:
        return sum(map(is_of_list, here.rules.values()))

    room = listed() + 20
    here.refuses = lambda rule: is_of_list(rule) and rule.key not in here.rules and listed() >= room
    for number in range(12):
        net.send("hb", frame(mac(1000 + number), "ff:ff:ff:ff:ff:ff", b"forged"))
        net.run(1)
    assert listed() == room
    for _ in range(90):
        net.send("hb", frame(mac(5), "ff:ff:ff:ff:ff:ff", b"here I am"))
        net.run(1)
    assert listed() < room
    assert not got(net, "ha", "hb", tcp_frame(1, 5, 22))


@pytest.mark.parametrize("pause", [0.0, 0.005, 0.02, 0.035])
def test_a_list_of_rules_from_before_a_reload_is_not_taken_for_one_from_after_it(pause: float) -> None:
    """Rules that were deleted meanwhile would count as there."""
    net = reads(denies_tcp(22))
    net.control = dict.fromkeys(net.switches, 0.05)
    net.run(35)
    refusing = denies_tcp(22, default=Action.DENY)
    net.controller.set_acl(net.now, refusing)
    net.run(0.022)
    net.controller.audit.soon(net.now, 1)
    net.run(0.005 + pause)
    net.controller.set_acl(net.now, Acl((*denies_tcp(22).entries, *denies_tcp(23).entries)))
    net.run(0.12)
    net.controller.set_acl(net.now, refusing)
    net.run(2)
    assert not got(net, "ha", "hb", tcp_frame(1, 2, 22))
    assert {key for key, rule in net.switches[1].rules.items() if is_of_list(rule)} == {
        key for key, rule in net.controller.updater.installed[1].items() if is_of_list(rule)
    }


def test_a_first_list_that_a_switch_has_in_part_stays_until_it_has_another_one_as_a_whole() -> None:
    """The switch took its default alone, which refuses all, and does not take that of the next one."""
    switch, placement = Switch(), AclPlacement(denies_tcp(22, Action.PERMIT, default=Action.DENY))
    for acl, takes in ((placement.acl, True), (denies_tcp(80, Action.PERMIT, default=Action.DENY), False)):
        placement.change(acl)
        change = placement.follow(switch.target, switch.installed, AROUND, has_whole_list=lambda _: False)
        for _, rule in change.added:
            if rules.is_default(rule) is takes or not is_of_list(rule):
                switch.installed[SWITCH][rule.key] = rule
                switch.send(AddRule(rule))
        for _, key in change.deleted:
            switch.send(DeleteRule(key))
        assert switch.decides(of_tcp(23)) is Action.DENY
    assert [switch.decides(of_tcp(port)) for port in (22, 80)] == [Action.DENY, Action.PERMIT]


def test_lists_that_a_switch_never_takes_as_a_whole_use_three_blocks_at_most() -> None:
    net = reads(denies_tcp(22))
    (old,) = blocks_at(net)
    net.switches[1].refuses = lambda rule: rules.is_default(rule) and rules.block_of(rule) != old
    for number in range(2 * rules.BLOCKS):
        net.controller.set_acl(net.now, denies_tcp(1000 + number, Action.PERMIT, default=Action.DENY))
        net.run(0.3)
        assert old in blocks_at(net)
        assert len(blocks_at(net)) <= 3
        assert not got(net, "ha", "hb", tcp_frame(1, 2, 22), 0.1)
    net.switches[1].refuses = lambda _: False
    net.run(100)
    assert len(blocks_at(net)) == 1
    assert not got(net, "ha", "hb", tcp_frame(1, 2, 23))


# Many switches, which follow another list a few in each turn.


def far_and_wide(count: int) -> Surroundings:
    """Switches with a link, ports of hosts, and an edge at the first one."""
    switches = range(1, count + 1)
    return replace(
        AROUND,
        links={switch: frozenset({LINK}) for switch in switches},
        ports=dict.fromkeys(switches, (LINK, HOST_PORT, OTHER_PORT, EDGE_PORT)),
    )


def install(installed: dict[int, Rules], added: Iterable[tuple[int, Rule]]) -> set[int]:
    """Take in what was sent; return the switches."""
    told = set()
    for switch, rule in added:
        installed[switch][rule.key] = rule
        told.add(switch)
    return told


def test_switches_follow_another_list_a_number_of_rules_at_a_time_each_as_a_whole() -> None:
    around, count = far_and_wide(6), 6
    target: dict[int, Rules] = {switch: {} for switch in range(1, count + 1)}
    installed: dict[int, Rules] = {switch: {} for switch in target}
    placement = AclPlacement(denies_tcp(22))
    # New ones get it at once, however many they are: they are told of all else after that.
    assert install(installed, placement.follow(target, installed, around, most=1).added) == set(target)
    assert not placement.is_behind
    placement.change(denies_tcp(23))
    told: list[int] = []
    while not told or placement.is_behind:
        (switch,) = install(installed, placement.follow(target, installed, around, most=1).added)
        told.append(switch)
        assert all(installed[switch][key] == rule for key, rule in target[switch].items())
    assert sorted(told) == sorted(target)
    assert placement.follow(target, installed, around, most=1).added == []


def test_the_first_lists_are_made_a_few_in_each_turn_before_switches_are_told_of_anything() -> None:
    around = far_and_wide(3)
    target: dict[int, Rules] = {switch: {} for switch in (1, 2, 3)}
    installed: dict[int, Rules] = {switch: {} for switch in target}
    placement = AclPlacement(denies_tcp(22))
    for switch in target:
        change = placement.follow(target, installed, around, most=1, is_told=False)
        assert install(installed, change.added) == {switch}
        assert placement.is_behind is (switch < 3)


def test_hosts_that_come_in_each_turn_keep_no_switch_from_following_the_list() -> None:
    around, count = far_and_wide(4), Counter[int]()
    target: dict[int, Rules] = {switch: {} for switch in range(1, 5)}
    installed: dict[int, Rules] = {switch: {} for switch in target}
    to_place = AclEntry(Action.DENY, target=End(place=ELSEWHERE), protocol=Protocol.UDP)
    placement = AclPlacement(Acl((*denies_tcp(22).entries, to_place)))
    for turn in range(24):
        if turn == 8:
            # None lacks a list, though all but one have others' hosts.
            assert not placement.has_unlisted
            placement.change(Acl((*denies_tcp(23).entries, to_place)))
        more = replace(around, hosts=[*HOSTS, Host(mac(500 + turn), PortId(2, 8))])
        change = placement.follow(target, installed, more, most=1, is_told=turn >= 8)
        assert placement.is_behind
        assert placement.has_unlisted is (turn < 3)
        count.update(install(installed, change.added))
    assert count == Counter({1: 6, 2: 6, 3: 6, 4: 6})
    assert all(any(rule.match.tcp_dst == 23 for rule in target[switch].values()) for switch in target)


def test_a_switch_with_another_edge_waits_for_no_other_one() -> None:
    around = far_and_wide(3)
    target: dict[int, Rules] = {switch: {} for switch in (1, 2, 3)}
    installed: dict[int, Rules] = {switch: {} for switch in target}
    placement = AclPlacement(denies_tcp(22))
    install(installed, placement.follow(target, installed, around).added)
    placement.change(denies_tcp(23))
    # Its tagged packets pass without a list until it has rules for them.
    more = replace(around, edges=(*around.edges, Edge("hc", PortId(3, EDGE_PORT))))
    assert install(installed, placement.follow(target, installed, more, most=1).added) == {1, 3}
    assert placement.is_behind


def test_counters_of_many_rules_are_read_a_part_at_a_time() -> None:
    around = far_and_wide(4)
    target: dict[int, Rules] = {switch: {} for switch in range(1, 5)}
    placement = AclPlacement(denies_tcp(22))
    placement.follow(target, {switch: {} for switch in target}, around)
    most = placement.rules_at(1) + placement.rules_at(2)
    assert [placement.poll_counted(most) for _ in range(3)] == [[1, 2], [3, 4], [1, 2]]
    assert [placement.poll_counted(1) for _ in range(3)] == [[3], [4], [1]]


def test_a_list_is_in_force_at_all_switches_though_each_turn_looks_at_few_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller, "MAX_LIST_RULES", 1)
    net = reads(denies_tcp(22))
    everybody_reaches_everybody(net)
    for port in (23, 22):
        net.controller.set_acl(net.now, denies_tcp(port))
        net.run(2)
        for source, target, number in (("ha", "hb", 1), ("hb", "ha", 2)):
            assert not got(net, source, target, tcp_frame(number, 3 - number, port))
            assert got(net, source, target, tcp_frame(number, 3 - number, 45 - port))
    assert not net.controller._has_rest
    net.restart_controller()
    for _ in range(100):
        assert not got(net, "ha", "hb", tcp_frame(1, 2, 22), 0.05)


@pytest.mark.parametrize("seen", [False, True], ids=["connected-first", "followed-before"])
def test_a_list_above_all_blocks_is_replaced_from_below_after_a_restart(seen: bool) -> None:
    """Its lowest rules go first: without its entry, packets would be decided by its default."""
    switch, old = Switch(), denies_tcp(22)
    top = rules.moved(rules.compiled(LocalAcl(old, tuple(rules.local_entries(old, PLACES, SWITCH, {})))), BLOCKS - 1)
    for rule in top:
        switch.send(AddRule(rule))
    # The next controller's list refuses the same packets, and others.
    placement = AclPlacement(Acl((*denies_tcp(80).entries, *old.entries)))
    placement.follow(switch.target, {SWITCH: {}} if seen else {}, AROUND)
    for message in placement.restore(SWITCH, switch.target, top):
        switch.send(message)
        assert switch.decides(of_tcp(22)) is Action.DENY
    # As the updater does.
    for key in sorted((rule.key for rule in top if rule.key not in switch.target[SWITCH]), key=lambda key: key[1]):
        switch.send(DeleteRule(key))
        assert switch.decides(of_tcp(22)) is Action.DENY
    assert switch.decides(of_tcp(80)) is Action.DENY
    assert not any(rules.block_of(rule) == BLOCKS - 1 for rule in switch.pipeline.rules.values() if is_of_list(rule))


def test_a_list_below_one_that_stays_is_where_it_was_at_the_next_audit() -> None:
    """The switch refused its default, and lists the one above yet."""
    old, placement, target = denies_tcp(22), AclPlacement(denies_tcp(80)), {SWITCH: Rules()}
    top = rules.moved(rules.compiled(LocalAcl(old, tuple(rules.local_entries(old, PLACES, SWITCH, {})))), BLOCKS - 1)
    placement.follow(target, {}, AROUND)
    told = [each.rule for each in placement.restore(SWITCH, target, top) if isinstance(each, AddRule)]
    taken = [rule for rule in told if not rules.is_default(rule)]
    again = placement.restore(SWITCH, target, [*top, *taken])
    assert again == [AddRule(rule) for rule in told if rules.is_default(rule)]


def test_without_a_list_switches_are_looked_at_once_and_again_when_one_is_new_or_a_list_comes() -> None:
    placement, target = AclPlacement(Acl()), {1: Rules(), 2: Rules()}
    nothing = Surroundings({}, {}, (), (), {})
    assert not placement.is_nowhere(target)
    placement.follow(target, {}, nothing)
    assert placement.is_nowhere(target)
    # It has left and is back.
    assert not placement.is_nowhere({**target, 1: Rules()})
    assert not placement.is_nowhere({**target, 3: Rules()})
    placement.change(Acl((), Action.DENY))
    assert not placement.is_nowhere(target)
    placement.follow(target, {}, nothing)
    placement.change(Acl())
    # The rules of the list are still to go.
    assert not placement.is_nowhere(target)
    placement.follow(target, {}, nothing)
    placement.follow(target, {}, nothing)
    assert placement.is_nowhere(target)

"""Policies of an operator: what they lead to, without loss, what is refused, and how they are kept."""

from __future__ import annotations

import asyncio
import json
import struct
import urllib.parse
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from braid_lab.fabric.shapes import Shape, Station, Wire, generated, two_paths
from braid_sdn.fabric.api import policy, report
from braid_sdn.fabric.api.events import Snapshot, changes
from braid_sdn.fabric.api.server import Api
from braid_sdn.fabric.cluster.file_store import POLICIES_FILE, FileStore
from braid_sdn.fabric.model import Arc, Graph, PortId
from braid_sdn.fabric.monitor.probe import tagged
from braid_sdn.fabric.plan.plan import Host, Plan
from braid_sdn.fabric.plan.planner import NetworkState, make
from braid_sdn.fabric.plan.policies import LinkEnd, PlacedHost, Policies, cut_off, link_of, parts, through
from braid_sdn.fabric.settings import HostSettings
from braid_sdn.fabric.tenants import NOBODY

from .virtual import Network, everybody_reaches_everybody, frame, mac, ready, tags

#: Nothing here is about paths that are measured.
pytestmark = pytest.mark.usefixtures("rare_probes")


def plain(shape: Shape) -> Shape:
    """A shape whose stations are hosts without an edge."""
    return replace(shape, stations=tuple(replace(each, edge=False) for each in shape.stations))


def ring(*names: str, ms: float = 1.0) -> Shape:
    """Switches in a ring, a host at each."""
    wires = tuple(Wire(one, other, 1000, ms) for one, other in zip(names, (*names[1:], names[0]), strict=True))
    return Shape(names, wires, tuple(Station(f"h{name}", name) for name in names))


def set_policy(net: Network, *words: str, **query: str) -> dict[str, Any]:
    """Send a request, as the command line does."""
    api = Api(net.controller, lambda: net.now)
    path = "/".join(urllib.parse.quote(word, safe="") for word in words)
    told = asyncio.run(api.change(f"POST /v1/fabric/{path}?{urllib.parse.urlencode(query)} HTTP/1.1"))
    assert told is not None
    answer = json.loads(told.body)
    if told.status != 200:
        raise policy.PolicyError(told.status, answer["error"])
    return dict(answer)


def refused(net: Network, *words: str, **query: str) -> tuple[int, str]:
    before = net.controller.policies
    with pytest.raises(policy.PolicyError) as error:
        set_policy(net, *words, **query)
    assert net.controller.policies == before
    return error.value.status, str(error.value)


def used(net: Network, source: str = "ha", target: str = "hb") -> list[tuple[int, ...]]:
    return [path.switches for path in net.controller.tables.pairs[source, target].selection.paths]


class Stream:
    """Frames from one host to another by the plain way, and over each path of their edges if they have some."""

    def __init__(self, net: Network, source: str = "ha", target: str = "hb") -> None:
        self.net, self.source, self.target = net, source, target
        self.sent: list[bytes] = []
        names = list(net.stations)
        self.ends = mac(names.index(source) + 1), mac(names.index(target) + 1)
        net.received[target].clear()

    def run(self, seconds: float) -> None:
        pair = (self.source, self.target)
        for _ in range(round(seconds / 0.001)):
            number = len(self.sent)
            data = frame(*self.ends, struct.pack("!I", number))
            tables = self.net.controller.tables.pairs
            both = [data]
            if pair in tables:
                slots = tables[pair].slots
                both.append(tagged(data, slots[number % len(slots)]))
            for each in both:
                self.net.send(self.source, each)
                self.sent.append(each)
            self.net.run(0.001)

    def check(self) -> None:
        """Nothing was lost, nothing came twice."""
        self.net.run(1)
        to = bytes.fromhex(self.ends[1].replace(":", ""))
        got = [each for each in self.net.received[self.target] if each[:6] == to]
        assert sorted(got) == sorted(self.sent)


def passing(net: Network, name: str) -> int:
    """Packets that a switch forwarded from links until now."""
    dpid = net.shape.dpid(name)
    switch = net.switches[dpid]
    links = {rule for rule in switch.rules if rule[0] == 0 and rule[2].in_port in linked(net, dpid)}
    return sum(switch.matched[key][0] for key in links)


def linked(net: Network, dpid: int) -> set[int]:
    return {port.port for port in net.peer if port.switch == dpid}


# Drain.


def test_a_drained_switch_carries_nothing_for_others_and_nothing_is_lost_until_then_and_after() -> None:
    net = ready(two_paths())
    stream = Stream(net)
    stream.run(0.5)
    assert {ways[1] for ways in used(net)} == {3, 4}
    assert "is being drained" in set_policy(net, "switches", "P", "drain")["text"]
    assert "draining" in net.codes()
    stream.run(3)
    assert used(net) == [(1, 4, 2)]
    assert net.codes() == {"drained"}
    before = passing(net, "P")
    stream.run(1)
    net.send("ha", frame(mac(1), "ff:ff:ff:ff:ff:ff", b"all"))
    net.run(1)
    # A flood still ends there, since there might be hosts.
    assert passing(net, "P") <= before + 1
    # It is taken down.
    net.disconnect("P")
    for other in ("A", "B"):
        net.unplug("P", other)
    stream.run(2)
    stream.check()


def test_an_undrained_switch_is_used_again_without_loss() -> None:
    net = ready(two_paths())
    set_policy(net, "switches", "P", "drain")
    net.run(4)
    stream = Stream(net)
    stream.run(0.2)
    assert set_policy(net, "switches", "P", "undrain") == {"changed": True, "text": "P is used again"}
    stream.run(4)
    stream.check()
    assert {ways[1] for ways in used(net)} == {3, 4}
    assert not net.codes()


def test_hosts_at_a_drained_switch_are_still_reached() -> None:
    net = ready(ring("A", "B", "C", "D"))
    told = set_policy(net, "switches", "B", "drain")
    assert told["changed"]
    net.run(4)
    everybody_reaches_everybody(net)
    (problem,) = report.problems(net.controller, net.now)
    assert (problem.code, problem.subject) == ("drained", "B")
    assert "1 hosts are at it" in problem.text
    assert all(tree.onward.get(1) != net.port_of("A", "B").port for root, tree in trees(net) if root != 2)


def trees(net: Network) -> list[tuple[int, Any]]:
    return sorted(net.controller.plan.trees.items())


@pytest.mark.parametrize("seed", range(6))
def test_no_path_leads_through_a_drained_switch_of_any_network_if_there_is_another(seed: int) -> None:
    net = ready(generated(9, seed=seed, more=1.0, hosts=9))
    for name in net.shape.switches:
        dpid = net.shape.dpid(name)
        try:
            set_policy(net, "switches", name, "drain")
        except policy.PolicyError as error:
            assert error.status == 409
            rest = parts(net.controller.graph, drained={dpid})
            assert len(rest) > 1
            continue
        net.run(4)
        assert through(net.controller.plan, net.controller.graph, dpid) == 0
        assert net.codes() == {"drained"}
        everybody_reaches_everybody(net)
        set_policy(net, "switches", name, "undrain")
        net.run(4)


def test_a_drained_switch_that_is_the_only_way_is_refused_and_by_force_still_carries() -> None:
    line = Shape(("A", "B", "C"), (Wire("A", "B"), Wire("B", "C")), (Station("ha", "A"), Station("hc", "C")))
    net = ready(line)
    status, text = refused(net, "switches", "B", "drain")
    assert status == 409
    assert text == "draining B would cut C off from the other switches; --force does it all the same"
    assert set_policy(net, "switches", "B", "drain", force="1")["changed"]
    stream = Stream(net, "ha", "hc")
    stream.run(4)
    stream.check()
    (problem,) = report.problems(net.controller, net.now)
    assert problem.code == "draining"
    assert "for want of another way" in problem.text


def test_edges_by_a_drained_switch_keep_their_paths_if_there_is_no_other() -> None:
    edges = (Station("ha", "A", edge=True), Station("hc", "C", edge=True))
    net = ready(Shape(("A", "B", "C"), (Wire("A", "B", 10), Wire("B", "C", 10)), edges))
    set_policy(net, "switches", "B", "drain", force="1")
    net.run(4)
    assert used(net, "ha", "hc") == [(1, 2, 3)]


def test_a_switch_that_is_drained_twice_or_unknown() -> None:
    net = ready(two_paths())
    set_policy(net, "switches", "P", "drain")
    assert set_policy(net, "switches", "P", "drain") == {"changed": False, "text": "P is drained already"}
    assert set_policy(net, "switches", "Q", "undrain") == {"changed": False, "text": "Q is not drained"}
    assert refused(net, "switches", "X", "drain") == (
        404,
        "X: no switch is known by that name or id; see braid sdn fabric status",
    )
    # By its id as well, and while it is away.
    net.disconnect("P")
    assert set_policy(net, "switches", f"{3:016x}", "undrain")["changed"]
    # The other one is the only way now, but for a switch that may be there still.
    assert "would cut" not in set_policy(net, "switches", "Q", "drain")["text"]


# Forbid.


def test_a_forbidden_link_carries_nothing_and_nothing_is_lost() -> None:
    net = ready(two_paths())
    stream = Stream(net)
    stream.run(0.3)
    told = set_policy(net, "links", "A", "P", "forbid")
    assert told == {"changed": True, "text": "A – P is forbidden: 1 link, in both directions"}
    stream.run(3)
    assert used(net) == [(1, 4, 2)]
    assert net.codes() == {"link-forbidden"}
    there = net.port_of("A", "P")
    before = sum(net.switches[1].counters[there.port])
    stream.run(0.5)
    # Discovery goes on.
    assert sum(net.switches[1].counters[there.port]) - before < 2000
    assert set_policy(net, "links", "P", "A", "permit")["changed"]
    stream.run(4)
    stream.check()
    assert {ways[1] for ways in used(net)} == {3, 4}
    assert not net.codes()


def test_the_far_edge_is_not_told_that_a_forbidden_path_is_dead() -> None:
    """Packets on the way by it arrive still, and are worth waiting for."""
    net = ready(two_paths())
    set_policy(net, "links", "A", "P", "forbid")
    net.run(0.1)
    assert net.controller.plan.pairs["ha", "hb"].path_withdrawn is False


def test_a_link_without_which_the_network_falls_apart_is_forbidden_by_force_alone() -> None:
    net = ready(two_paths())
    set_policy(net, "links", "A", "P", "forbid")
    net.run(2)
    status, text = refused(net, "links", "Q", "A", "forbid")
    assert status == 409
    assert text == "forbidding A – Q would cut A off from the other switches; --force does it all the same"
    assert set_policy(net, "links", "A", "Q", "forbid", force="1")["changed"]
    net.run(4)
    net.received["hb"].clear()
    net.send("ha", frame(mac(1), mac(2), b"apart"))
    net.run(1)
    assert not net.received["hb"]
    assert {"link-forbidden", "pair-unserved"} <= net.codes()


def test_one_of_two_links_is_forbidden_by_its_port() -> None:
    shape = Shape(("A", "B"), (Wire("A", "B", 10), Wire("A", "B", 10)), two_paths().stations)
    net = ready(shape)
    assert len(used(net)) == 2
    assert refused(net, "links", "A:nowhere", "B", "forbid")[0] == 404
    set_policy(net, "links", "A:A-B2", "B", "forbid")
    net.run(3)
    assert [path.steps[0] for path in net.controller.tables.pairs["ha", "hb"].paths] == [PortId(1, 1)]
    assert set_policy(net, "links", "B", "A:A-B2", "permit")["changed"]
    assert set_policy(net, "links", "A", "B", "permit") == {"changed": False, "text": "A – B is not forbidden"}
    assert refused(net, "links", "A", "X", "permit")[0] == 404
    everybody_reaches_everybody(net)


# Pin.


def test_a_pair_of_edges_keeps_to_the_path_it_is_pinned_to_and_nothing_is_lost() -> None:
    net = ready(two_paths())
    stream = Stream(net)
    stream.run(0.3)
    told = set_policy(net, "pairs", "ha", "hb", "pin", via="A,P,B")
    assert told["text"] == "ha – hb is pinned to A → P → B, in both directions"
    stream.run(3)
    assert used(net) == [(1, 3, 2)]
    assert used(net, "hb", "ha") == [(2, 3, 1)]
    assert not net.codes()
    steps = report.explain(net.controller, net.now, "ha", "hb")["steps"]
    assert "from edge ha to edge hb: A → P → B, to which the operator pinned them" in steps
    # It breaks: others are better than none.
    net.unplug("P", "B")
    net.run(3)
    assert used(net) == [(1, 4, 2)]
    assert "pin-unused" in net.codes()
    net.unplug("P", "B", up=True)
    net.run(8)
    assert used(net) == [(1, 3, 2)]
    stream = Stream(net)
    assert set_policy(net, "pairs", "hb", "ha", "unpin")["changed"]
    stream.run(3)
    stream.check()
    assert {ways[1] for ways in used(net)} == {3, 4}


def test_two_hosts_keep_to_the_path_they_are_pinned_to_and_nothing_is_lost() -> None:
    net = ready(ring("A", "B", "C", "D", ms=5))
    names = list(net.stations)
    ends = mac(names.index("hA") + 1), mac(names.index("hB") + 1)
    stream = Stream(net, "hA", "hB")
    stream.run(0.3)
    told = set_policy(net, "pairs", ends[0], ends[1], "pin", via="A,D,C,B")
    assert told["changed"]
    stream.run(2)
    before = passing(net, "D")
    stream.run(0.1)
    assert passing(net, "D") - before >= 90
    stream.check()
    assert report.explain(net.controller, net.now, *ends)["single"]["switches"] == ["A", "D", "C", "B"]
    assert report.explain(net.controller, net.now, *ends[::-1])["single"]["switches"] == ["B", "C", "D", "A"]
    everybody_reaches_everybody(net)
    stream = Stream(net, "hA", "hB")
    stream.run(0.1)
    assert set_policy(net, "pairs", ends[1], ends[0], "unpin")["changed"]
    stream.run(2)
    stream.check()
    before = passing(net, "D")
    stream.run(0.1)
    assert passing(net, "D") == before
    assert net.controller.plan.pinned == {}
    # A link of it is lost.
    set_policy(net, "pairs", ends[0], ends[1], "pin", via="A,D,C,B")
    net.run(2)
    net.unplug("D", "C")
    net.run(3)
    assert net.codes() == {"pin-unused", "link-unknown"}
    everybody_reaches_everybody(net)


@pytest.mark.parametrize(
    ("ends", "via", "status", "words"),
    [
        (("ha", "hx"), "A,P,B", 404, "hx: no edge or host is known by that"),
        (("ha", "hb"), "A,B", 404, "no link leads from A to B"),
        (("ha", "hb"), "A,P,A,Q,B", 409, "a switch comes twice"),
        (("ha", "hb"), "P,B", 409, "leads from A to B: name all its switches"),
        (("ha", "hb"), "A,X,B", 404, "X: no switch is known"),
        (("ha", mac(2)), "A,P,B", 409, "is behind the edge hb: pin the edge"),
    ],
)
def test_a_pin_that_makes_no_sense_is_refused(ends: tuple[str, str], via: str, status: int, words: str) -> None:
    net = ready(two_paths())
    told, text = refused(net, "pairs", *ends, "pin", via=via)
    assert told == status
    assert words in text


def test_to_undo_what_is_not_set_succeeds_and_unknown_names_are_refused() -> None:
    net = ready(two_paths())
    for words, text in (
        (("switches", "P", "undrain"), "P is not drained"),
        (("links", "A", "P", "permit"), "A – P is not forbidden"),
        (("pairs", "ha", "hb", "unpin"), "ha – hb is not pinned"),
        (("pairs", mac(98), mac(99), "unpin"), f"{mac(98)} – {mac(99)} is not pinned"),
        (("links", "A", "P", "unset-capacity"), "no capacity was set for A – P"),
        (("hosts", mac(9), "remove"), f"{mac(9)} was not added"),
    ):
        assert set_policy(net, *words) == {"changed": False, "text": text}
    for words in (
        ("switches", "X", "undrain"),
        ("links", "A", "X", "permit"),
        ("pairs", "ha", "nobody", "unpin"),
        ("links", "A", "X", "unset-capacity"),
    ):
        status, text = refused(net, *words)
        assert (status, "is known by that" in text) == (404, True), words


def test_a_drained_switch_wins_over_a_pin() -> None:
    net = ready(two_paths())
    set_policy(net, "pairs", "ha", "hb", "pin", via="A,P,B")
    set_policy(net, "switches", "P", "drain")
    net.run(4)
    assert used(net) == [(1, 4, 2)]
    assert net.codes() == {"drained", "pin-unused"}
    assert refused(net, "pairs", "ha", "hb", "pin", via="A,P,B")[0] == 409


# Hosts.


def test_a_host_that_is_added_is_known_stays_and_goes_again() -> None:
    net = ready(plain(two_paths()), host_lifetime=20.0)
    told = set_policy(net, "hosts", mac(9), "add", switch="B", port="hb", addresses="10.0.0.9")
    assert told == {"changed": True, "text": f"{mac(9)} stays at B:hb"}
    net.run(0.5)
    host = net.controller.find_host("10.0.0.9")
    assert host is not None
    assert (host.mac, host.port) == (mac(9), net.stations["hb"])
    # Its place is nobody else's, and it is not forgotten.
    net.send("ha", frame(mac(9), mac(2)))
    net.run(40)
    assert net.controller.hosts.known[mac(9)].port == net.stations["hb"]
    again = set_policy(net, "hosts", mac(9), "add", switch=f"{2:016x}", port="hb", addresses="10.0.0.9")
    assert again == {"changed": False, "text": f"{mac(9)} stays at B:hb already"}
    assert set_policy(net, "hosts", mac(9), "add", switch="A", port="ha")["changed"]
    net.run(0.5)
    assert net.controller.hosts.known[mac(9)].port == net.stations["ha"]
    net.restart_controller()
    net.run(3)
    assert net.controller.hosts.known[mac(9)].port == net.stations["ha"]
    assert set_policy(net, "hosts", mac(9), "remove")["text"] == f"{mac(9)} ages as others do from now on"
    net.run(25)
    assert mac(9) not in net.controller.hosts.known


def test_a_host_that_is_added_wins_over_the_configuration_until_it_is_removed() -> None:
    net = ready(plain(two_paths()), hosts=(HostSettings(mac(1), "A", "ha", frozenset({"10.0.0.1"})),))
    assert refused(net, "hosts", mac(1), "remove")[0] == 409
    told = set_policy(net, "hosts", mac(1), "add", switch="B", port="hb")
    assert told["text"] == f"{mac(1)} stays at B:hb, not where the configuration has it"
    net.run(0.5)
    assert net.controller.hosts.known[mac(1)].port == net.stations["hb"]
    set_policy(net, "hosts", mac(1), "remove")
    net.run(0.5)
    assert net.controller.hosts.known[mac(1)].port == net.stations["ha"]


@pytest.mark.parametrize(
    ("word", "query", "status", "words"),
    [
        ("printer", {"switch": "A", "port": "ha"}, 400, "must be the MAC address"),
        ("03:00:00:00:00:01", {"switch": "A", "port": "ha"}, 400, "must be the MAC address"),
        (mac(9), {"switch": "A"}, 400, "the query needs port"),
        (mac(9), {"switch": "X", "port": "ha"}, 404, "X: no switch is known"),
        (mac(9), {"switch": "A", "port": "hz"}, 404, "A:hz: the switch has no such port"),
        (mac(9), {"switch": "A", "port": "A-P"}, 409, "A:A-P is an end of a link"),
        (mac(9), {"switch": "A", "port": "ha", "addresses": "10.0.0"}, 400, "'10.0.0' is no IP address"),
        (mac(9), {"switch": "A", "port": "ha", "vid": "7"}, 400, "a vid is for a trunk"),
        (mac(9), {"switch": "A", "port": "ha", "addresses": "10.0.0.1"}, 409, f"is the address of {mac(1)} at A:ha"),
    ],
)
def test_a_host_that_cannot_be_there_is_refused(word: str, query: dict[str, str], status: int, words: str) -> None:
    net = ready(plain(two_paths()), hosts=(HostSettings(mac(1), "A", "ha", frozenset({"10.0.0.1"})),))
    told, text = refused(net, "hosts", word, "add", **query)
    assert told == status
    assert words in text


def test_no_more_addresses_are_taken_than_a_host_may_have() -> None:
    net = ready(plain(two_paths()))
    many = ",".join(f"10.0.1.{number}" for number in range(17))
    assert refused(net, "hosts", mac(9), "add", switch="A", port="ha", addresses=many)[0] == 400


def test_a_host_whose_port_goes_is_named_and_one_that_was_added_is_not_forgotten_by_command() -> None:
    net = ready(plain(two_paths()))
    set_policy(net, "hosts", mac(9), "add", switch="B", port="hb")
    net.run(0.5)
    status, text = refused(net, "hosts", mac(9), "forget")
    assert (status, text) == (
        409,
        f"{mac(9)}: was added by the operator; undo it by braid sdn fabric remove-host {mac(9)}",
    )
    # One at a switch that is away waits for it.
    net.disconnect("B")
    assert set_policy(net, "hosts", mac(8), "add", switch="B", port="hb")["changed"]
    assert "host-unknown" in net.codes()
    assert [each["used"] for each in report.policies(net.controller, net.now)["hosts"]] == [False, False]
    net.connect("B")
    net.run(3)
    assert "host-unknown" not in net.codes()
    assert [each["used"] for each in report.policies(net.controller, net.now)["hosts"]] == [True, True]


# Capacities.


def test_a_capacity_that_is_set_changes_shares_alone_and_loses_nothing() -> None:
    net = ready(two_paths())
    before = tags(net, "ha", "hb")
    stream = Stream(net)
    stream.run(0.2)
    told = set_policy(net, "links", "A", "P", "set-capacity", capacity_bit_s="5e6")
    assert told == {"changed": True, "text": "A – P has 5 Mbit/s in each direction: 1 link"}
    stream.run(0.5)
    assert used_shares(net) == {3: 0.33, 4: 0.67}
    assert tags(net, "ha", "hb") == before
    again = set_policy(net, "links", "P", "A", "set-capacity", capacity_bit_s="5000000")
    assert again == {"changed": False, "text": "A – P has 5 Mbit/s already"}
    # It outlives the controller.
    net.restart_controller()
    net.run(3)
    assert net.controller.traffic.configured[net.port_of("P", "A")] == 5e6
    assert set_policy(net, "links", "A", "P", "unset-capacity")["changed"]
    net.run(0.5)
    assert net.controller.traffic.configured[net.port_of("P", "A")] == 10e6
    stream.check()


def used_shares(net: Network) -> dict[int, float]:
    pair = net.controller.tables.pairs["ha", "hb"]
    both = zip(pair.paths, pair.selection.paths, strict=True)
    return {chosen.switches[1]: round(pair.share(path.tag), 2) for path, chosen in both}


def test_the_capacity_of_one_of_several_links_is_that_of_its_port() -> None:
    shape = Shape(("A", "B"), (Wire("A", "B", 10), Wire("A", "B", 10)), two_paths().stations)
    net = ready(shape, links=())
    set_policy(net, "links", "A", "B", "set-capacity", capacity_bit_s="20e6")
    set_policy(net, "links", "A:A-B2", "B", "set-capacity", capacity_bit_s="30e6")
    net.run(0.5)
    known = {str(port): rate for port, rate in net.controller.traffic.configured.items()}
    assert sorted(known.values()) == [20e6, 20e6, 30e6, 30e6]
    listed = report.policies(net.controller, net.now)["capacities"]
    assert [(each["between"], each["capacity_bit_s"], each["links"]) for each in listed] == [
        (["A", "B"], 20e6, 2),
        (["A:A-B2", "B"], 30e6, 1),
    ]


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "10 Mbit/s"])
def test_a_capacity_that_is_none_is_refused(text: str) -> None:
    net = ready(two_paths())
    status, told = refused(net, "links", "A", "P", "set-capacity", capacity_bit_s=text)
    assert (status, "must be a number of bit/s above 0" in told) == (400, True)


def test_a_capacity_of_no_link_is_set_by_force_and_named() -> None:
    net = ready(two_paths())
    assert refused(net, "links", "A", "B", "set-capacity", capacity_bit_s="1e6")[0] == 404
    assert set_policy(net, "links", "A", "B", "set-capacity", capacity_bit_s="1e6", force="1")["changed"]
    (problem,) = report.problems(net.controller, net.now)
    assert (problem.code, problem.subject) == ("link-unknown", "A – B")
    assert "braid sdn fabric unset-capacity A B" in problem.text


def test_hosts_and_capacities_leave_what_is_drained_alone() -> None:
    net = ready(two_paths())
    set_policy(net, "switches", "P", "drain")
    net.run(4)
    set_policy(net, "hosts", mac(9), "add", switch="B", port="hb")
    set_policy(net, "links", "A", "Q", "set-capacity", capacity_bit_s="5e6")
    assert net.codes() == {"drained"}
    net.run(1)
    assert net.codes() == {"drained"}


def test_hosts_and_capacities_are_told_as_events() -> None:
    net = ready(two_paths())
    before = Snapshot.of(net.controller, net.now)
    set_policy(net, "hosts", mac(9), "add", switch="B", port="hb", addresses="10.0.0.9")
    set_policy(net, "links", "A", "P:P-A", "set-capacity", capacity_bit_s="5e6")
    after = Snapshot.of(net.controller, net.now)
    assert [(each.name, dict(each.fields)) for each in changes(before, after)] == [
        ("host-learned", {"mac": mac(9), "port": "B:hb"}),
        ("host-added", {"mac": mac(9), "port": "B:hb", "addresses": "10.0.0.9"}),
        ("capacity-set", {"between": "A P:P-A", "capacity_bit_s": 5e6}),
    ]
    set_policy(net, "hosts", mac(9), "remove")
    set_policy(net, "links", "A", "P:P-A", "unset-capacity")
    gone = [each.name for each in changes(after, Snapshot.of(net.controller, net.now))]
    assert gone == ["host-removed", "capacity-unset"]


# Files, answers and events.


def test_policies_outlive_the_controller(tmp_path: Path) -> None:
    ends = LinkEnd(1, "A-P"), LinkEnd(3)
    host = PlacedHost(2, "hb", frozenset({"10.0.0.9"}), 30)
    wanted = Policies(frozenset({4}), frozenset({link_of(*ends)}), {}, {mac(9): host}, {link_of(*ends): 5e6})
    wanted = wanted.with_pin("hb", "ha", (2, 3, 1))
    assert Policies.stored(json.loads(json.dumps(wanted.store()))) == wanted
    assert wanted.pin_of("ha", "hb") == (1, 3, 2)
    store = FileStore(tmp_path)
    assert (store.standing.policies, store.standing.unread) == (Policies(), "")
    asyncio.run(store.keep(wanted))
    assert FileStore(tmp_path).standing.policies == wanted
    # Files from before there were hosts and capacities.
    older = {"drained": ["0000000000000004"], "forbidden": [], "pinned": []}
    assert Policies.stored(older) == Policies(frozenset({4}))
    capacity = {"between": wanted.store()["forbidden"][0], "capacity_bit_s": -1}
    for content in (
        "",
        "[]",
        '{"drained": ["x"]}',
        '{"drained": [], "forbidden": [[1]], "pinned": []}',
        json.dumps({**older, "hosts": [{"mac": mac(1)}]}),
        json.dumps({**older, "capacities": [capacity]}),
    ):
        (tmp_path / POLICIES_FILE).write_text(content)
        store = FileStore(tmp_path)
        assert store.standing.policies == Policies()
        assert str(tmp_path / POLICIES_FILE) in store.standing.unread
    net = ready(two_paths())
    set_policy(net, "switches", "P", "drain")
    net.run(4)
    net.restart_controller()
    net.run(1.2)
    stream = Stream(net)
    stream.run(4)
    stream.check()
    assert used(net) == [(1, 4, 2)]
    assert net.codes() == {"drained"}


def test_policies_that_cannot_be_read_are_named_with_those_that_are_followed() -> None:
    net = ready(two_paths())
    net.controller.policies_unread = "FILE: not policies"

    def told() -> str:
        (found,) = (each for each in policy.problems(net.controller) if each.code == "policies-unread")
        return found.text

    assert told() == "FILE: not policies: none is followed; mend it and restart, or set them again"
    set_policy(net, "switches", "P", "drain")
    assert told() == "FILE: not policies: those of before are followed; mend it and restart, or set them again"


def test_a_policy_that_cannot_be_kept_is_not_followed(tmp_path: Path) -> None:
    net = ready(two_paths())
    # Root may write anywhere, but not below a file.
    (tmp_path / "state").write_text("")
    api = Api(net.controller, lambda: net.now, keep=FileStore(tmp_path / "state").keep)
    answer = asyncio.run(api.change("POST /v1/fabric/switches/P/drain HTTP/1.1"))
    assert answer is not None
    assert answer.status == 500
    assert b"File exists" in answer.body
    assert net.controller.policies == Policies()
    assert asyncio.run(api.change("POST /v1/fabric/switches/P/wash HTTP/1.1")) is None


def test_changes_at_once_are_made_one_after_another() -> None:
    net = ready(two_paths())
    kept: list[Policies] = []

    async def keep(policies: Policies) -> None:
        await asyncio.sleep(0)
        kept.append(policies)

    async def story() -> None:
        api = Api(net.controller, lambda: net.now, keep=keep)
        forbidden = api.change("POST /v1/fabric/links/P/B/forbid HTTP/1.1")
        await asyncio.gather(api.change("POST /v1/fabric/switches/P/drain HTTP/1.1"), forbidden)

    asyncio.run(story())
    assert [(len(each.drained), len(each.forbidden)) for each in kept] == [(1, 0), (1, 1)]
    assert net.controller.policies == kept[-1]


def test_policies_are_listed_explained_and_told_as_events() -> None:
    net = ready(two_paths())
    before = Snapshot.of(net.controller, net.now)
    set_policy(net, "switches", "P", "drain")
    net.run(4)
    after = Snapshot.of(net.controller, net.now)
    told = list(changes(before, after))
    assert [event.fields["code"] for event in told if event.name == "problem"] == ["drained"]
    assert [event.fields["why"] for event in told if event.name == "paths-used"] == [
        f"{way} is left: a switch of it is drained by the operator" for way in ("A>P>B", "B>P>A")
    ]
    set_policy(net, "links", "P", "B", "forbid")
    set_policy(net, "pairs", "ha", "hb", "pin", via="A,Q,B")
    net.run(4)
    listed = report.policies(net.controller, net.now)
    assert [each["switch"] for each in listed["drained"] if each["done"]] == ["P"]
    assert listed["forbidden"] == [{"between": ["B", "P"]}]
    assert listed["pinned"] == [{"source": "ha", "target": "hb", "switches": ["A", "Q", "B"], "used": True}]
    steps = report.explain(net.controller, net.now, "ha", "hb")["steps"]
    assert "P is drained: paths avoid it" in steps
    assert "the link B – P is forbidden" in steps
    shown = report.status(net.controller, net.now)
    assert [each["name"] for each in shown["switches"] if each["drained"]] == ["P"]
    assert {each["source"] for each in shown["links"] if each["forbidden"]} == {"B:B-P", "P:P-B"}


def test_what_is_cut_off() -> None:
    wires = [(PortId(one, other), PortId(other, one)) for one, other in ((1, 2), (2, 3), (3, 4), (5, 6))]
    graph = Graph.of([Arc(*ends, 1e9) for wire in wires for ends in (wire, wire[::-1])])
    whole = parts(graph)
    assert whole == [frozenset({1, 2, 3, 4}), frozenset({5, 6})]
    assert cut_off(whole, parts(graph, drained={2})) == [frozenset({1})]
    assert cut_off(whole, parts(graph, drained={1})) == []
    forbidden = {wires[1], wires[1][::-1]}
    assert cut_off(whole, parts(graph, forbidden=forbidden)) == [frozenset({3, 4})]
    # It was apart before.
    assert cut_off(parts(graph, forbidden=forbidden), parts(graph, forbidden=forbidden, drained={5})) == []


def test_a_drained_switch_is_a_leaf_of_the_flood() -> None:
    wires = [(PortId(one, other), PortId(other, one)) for one, other in ((1, 2), (2, 3), (1, 3), (3, 4), (2, 4))]
    graph = Graph.of([Arc(*ends, 1e9) for wire in wires for ends in (wire, wire[::-1])])
    hosts = tuple(Host(mac(number), PortId(number, 9)) for number in (1, 3, 4))
    before = make(Plan(), NetworkState(graph, hosts))
    after = make(before, NetworkState(graph, hosts, policies=Policies(frozenset({2})), review=(1, 3, 4)))
    assert len(after.floods[NOBODY].ports[2]) == 1
    assert through(after, graph, 2) == 0


def test_paths_keep_their_tags_when_a_policy_does_not_concern_them() -> None:
    net = ready(two_paths())
    set_policy(net, "pairs", "ha", "hb", "pin", via="A,P,B")
    net.run(3)
    before = tags(net, "ha", "hb")
    set_policy(net, "links", "Q", "B", "forbid")
    net.run(3)
    assert tags(net, "ha", "hb") == before

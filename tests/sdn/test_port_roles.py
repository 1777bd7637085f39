"""Roles of ports, and rates by floods: worked out once for each change, and always as if anew."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.monitor.probe import Kind, Probe
from braid_sdn.fabric.plan.flood_rates import FloodRates
from braid_sdn.fabric.plan.plan import Flood
from braid_sdn.fabric.plan.port_roles import PortRoles
from braid_sdn.fabric.settings import FloodSettings
from braid_sdn.fabric.tenants import Tenant, Tenants
from braid_sdn.fabric.view.topology import Topology
from braid_sdn.openflow.messages import Port

from . import tenant_network

NAMES = {1: "A", 2: "B", 3: "C"}
LISTED = (
    Tenant("red", 100, 119, (("A", "one"), ("B", "2")), ((("C", "three"), 10),)),
    Tenant("blue", 200, 219, (("A", "two"), ("C", "1")), ((("C", "three"), 20),)),
)
LINKS = frozenset({frozenset({("A", "3"), ("B", "3")}), frozenset({("B", "two"), ("C", "4")})})


def port(number: int, name: str) -> Port:
    return Port(number, name, f"06:00:00:00:00:{number:02x}", True, 1e9)


def test_roles_are_those_that_are_worked_out_anew_whatever_has_changed() -> None:
    rng = random.Random(21)
    words = ("one", "two", "three", "four", "five")
    both = [Tenants(LISTED, LINKS), Tenants(LISTED[:1], LINKS, discovers_links=True)]
    topology, roles, tenants = Topology(names=NAMES), PortRoles(), both[0]
    ends = [PortId(switch, number) for switch in NAMES for number in range(1, 6)]
    answers = set()
    for step in range(600):
        dpid, number = rng.randint(1, 3), rng.randint(1, 5)
        match rng.randrange(7):
            case 0:
                topology.handle_switch(step, dpid, [port(each, rng.choice(words)) for each in range(1, 5)], "test")
            case 1:
                topology.handle_gone(step, dpid, "test")
            case 2 | 3:
                gone = rng.random() < 0.3
                topology.handle_port(step, dpid, port(number, rng.choice(words)), gone=gone)
            case 4:
                topology.lose_port(step, PortId(dpid, number))
            case 5:
                topology.handle_probe(step, Probe(Kind.LINK, rng.choice(ends), 0, 1, 0), rng.choice(ends), 0.001)
            case _:
                tenants = rng.choice(both)
        anew = PortRoles()
        assert roles.tenants_of_ports(tenants, topology) == anew.tenants_of_ports(tenants, topology)
        assert roles.trunks_of_switches(tenants, topology) == anew.trunks_of_switches(tenants, topology)
        pair = (rng.choice(ends), rng.choice(ends))
        may = roles.may_link(tenants, topology, *pair)
        assert may == anew.may_link(tenants, topology, *pair)
        answers.add(may)
    assert answers == {True, False}


def test_rates_are_those_that_are_worked_out_anew_whatever_has_changed() -> None:
    rng = random.Random(22)
    topology, rates, configured = Topology(names=NAMES), FloodRates(), dict[PortId, float]()
    for switch in NAMES:
        topology.handle_switch(0.0, switch, [port(each, str(each)) for each in range(1, 5)], "test")
    floods = dict[int, Flood]()
    ends = [PortId(switch, number) for switch in NAMES for number in range(1, 5)]
    seen = set()
    for step in range(400):
        match rng.randrange(5):
            case 0:
                ports = {each: frozenset(rng.sample(range(1, 5), 2)) for each in NAMES}
                floods = {**floods, rng.choice((1, 100, 200)): Flood(7, ports)}
            case 1:
                configured[rng.choice(ends)] = 1e6 * rng.randint(1, 300)
            case 2:
                topology.handle_probe(step, Probe(Kind.LINK, rng.choice(ends), 0, 1, 0), rng.choice(ends), 0.001)
            case 3:
                end = rng.choice(ends)
                faster = replace(topology.switches[end.switch].ports[end.port], speed=1e6 * rng.randint(1, 300))
                topology.handle_port(step, end.switch, faster, gone=False)
            case _:
                topology.lose_port(step, rng.choice(ends))
        told = rates.get(None, floods, topology, configured)
        assert told == FloodRates().get(None, floods, topology, configured)
        assert rates.get(None, floods, topology, configured) is told
        seen.add(tuple(told.values()))
    assert len(seen) > 50


def test_a_plan_after_which_no_port_has_changed_asks_no_tenant_and_looks_at_no_flood(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = tenant_network.settled(tenant_network.network(flood=FloodSettings(None)))
    asked: list[str] = []

    def counted(of: type, name: str) -> None:
        known = getattr(of, name)

        def call(self: object, *args: object) -> object:
            asked.append(name)
            return known(self, *args)

        monkeypatch.setattr(of, name, call)

    for name in ("is_listed", "has_link", "trunk"):
        counted(Tenants, name)
    counted(FloodRates, "_slowest")
    controller = net.controller
    before, planned = controller.plan, len(controller.planning)
    controller._throttle.change(net.now)
    controller.handle_timeout(net.now + 1.0)
    assert len(controller.planning) > planned
    assert controller.plan is not before
    assert not asked

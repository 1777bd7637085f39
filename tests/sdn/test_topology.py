"""When a link is believed in: what is heard over it, and what it brings."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.monitor.probe import Kind, Probe
from braid_sdn.fabric.view.topology import (
    BUSY_LINK_FACTOR,
    COUNTER_POLL_INTERVAL,
    LINK_CHECK_TIMEOUT,
    MAX_MISSED_FRAMES,
    Topology,
)
from braid_sdn.openflow.messages import Port, PortCounters

A, B = PortId(1, 1), PortId(2, 1)


def linked() -> Topology:
    """Two switches that have heard each other once, at second 0."""
    topology = Topology()
    for here in (A, B):
        port = Port(here.port, "p", "06:00:00:00:00:01", True, 1e9)
        topology.handle_switch(0.0, here.switch, [port], "somewhere")
    for source, target in ((A, B), (B, A)):
        topology.handle_probe(0.0, Probe(Kind.LINK, source, 0, 1, 0), target, 0.01)
    return topology


def counted(topology: Topology, now: float, received: int) -> None:
    topology.handle_counters(now, B.switch, [PortCounters(B.port, received, 0, 0, now)])


def asked(topology: Topology, counts: list[int]) -> bool:
    """Ask the link from A to B at second 1, count at its far end as often as it wants; whether it was lost."""
    topology.expire(0.9)
    topology.check_link(1.0, A)
    now = 1.0
    for count in counts:
        assert topology.due_counter_polls(now) == [B.switch]
        assert topology.due_counter_polls(now) == []
        counted(topology, now + 0.01, count)
        now += COUNTER_POLL_INTERVAL
    return topology.expire(1.0 + LINK_CHECK_TIMEOUT + 0.011)


def test_a_link_that_was_asked_and_is_silent_is_lost() -> None:
    assert asked(linked(), [])
    # Bytes from before the check prove nothing.
    topology = linked()
    counted(topology, 0.5, 1000)
    assert asked(topology, [9000, 9000, 9000])
    assert (A, B) not in topology.heard


def test_a_link_that_was_asked_and_brings_bytes_is_not() -> None:
    topology = linked()
    assert not asked(topology, [9000, 9000 + 1518])
    assert (A, B) in topology.heard
    assert topology.due_counter_polls(2.0) == []


@pytest.mark.parametrize("brings", [False, True])
def test_a_link_that_is_not_heard_is_old_later_while_it_brings_bytes(*, brings: bool) -> None:
    topology = linked()
    lost = []
    for tick in range(1, 300):
        now = tick / 10
        if tick % 10 == 0:
            for end in (A, B):
                topology.sent(end)
            topology.handle_probe(now, Probe(Kind.LINK, B, 0, tick, 0), A, 0.01)
            counted(topology, now, 1000 * tick if brings else 1000)
        if topology.expire(now + 0.05):
            lost.append(now)
    (second,) = lost
    assert second == pytest.approx(MAX_MISSED_FRAMES * (BUSY_LINK_FACTOR if brings else 1), abs=1)


@pytest.mark.parametrize("seed", range(10))
def test_links_and_neighbours_are_those_that_are_heard_whatever_is_lost(seed: int) -> None:
    rnd = random.Random(seed)
    topology, ends = Topology(), [PortId(switch, port) for switch in (1, 2, 3, 4) for port in (1, 2, 3)]
    for switch in (1, 2, 3, 4):
        ports = [Port(port, f"p{port}", "06:00:00:00:00:01", True, 1e9) for port in (1, 2, 3)]
        topology.handle_switch(0.0, switch, ports, "somewhere")
    for step in range(400):
        now, port = step / 10, rnd.choice(ends)
        chance = rnd.random()
        if chance < 0.7:
            # Mostly the same cables; some ports hear several others, or are heard alone.
            other = ends[ends.index(port) ^ 1] if rnd.random() < 0.8 else rnd.choice(ends)
            topology.handle_probe(now, Probe(Kind.LINK, port, 0, step, 0), other, 0.01)
        elif chance < 0.9:
            known = topology.switches[port.switch].ports[port.port]
            topology.handle_port(now, port.switch, replace(known, up=False), gone=False)
            topology.handle_port(now, port.switch, replace(known, up=True), gone=False)
        elif chance < 0.95:
            topology.lose_port(now, port)
        else:
            topology._forget(now, dict.fromkeys(rnd.sample([*topology.heard], min(2, len(topology.heard))), "a test"))
        links, around = topology.links(), topology.neighbours()
        topology._links = topology._around = None
        assert (links, around) == (topology.links(), topology.neighbours())

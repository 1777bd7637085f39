"""Times at which discovery frames are sent: what latencies are measured by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from braid_lab.fabric.shapes import Shape, parallel, two_paths
from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.view.discovery import (
    EARLY_FRAMES,
    EARLY_INTERVAL,
    FRAME_INTERVAL,
    SMALL_NETWORK_PORTS,
    DiscoverySchedule,
)
from braid_sdn.fabric.view.latency import LowestSamples

from .virtual import Network, ready


class OneProcess(Network):
    """Switches that are all one process, as bridges of one Open vSwitch: it takes one message or frame at a time."""

    #: Seconds that each takes.
    SERVICE = 0.0003

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self._idle_at = 0.0

    def _deliver(self, dpid: int, message: object) -> None:
        self._serve(lambda: super(OneProcess, self)._deliver(dpid, message))

    def _serve(self, work: Callable[[], None]) -> None:
        self._idle_at = max(self._idle_at, self.now) + self.SERVICE
        self.at(self._idle_at, work)


def test_frames_that_were_due_together_do_not_wait_for_one_another_for_ever() -> None:
    """Paths that had kept one another waiting for a millisecond were left out beside one that had come later."""
    net = OneProcess(parallel([(10, 0.2)] * 4))
    for name in net.stations:
        net.reflect.add(name)
    # All connect at once, so all ports and echoes are due at once.
    net.connect()
    net.run(20)
    latencies = [arc.latency for arc in net.controller.graph.arcs]
    assert max(latencies) - min(latencies) < 0.0001
    assert {len(pair.paths) for pair in net.controller.tables.pairs.values()} == {4}


@dataclass
class CountedSamples(LowestSamples):
    """Counts what it is given."""

    count: int = 0

    def add(self, now: float, value: float) -> None:
        self.count += 1
        super().add(now, value)


def test_a_link_that_is_back_is_measured_as_often_as_a_new_one() -> None:
    """Its port was up all the time: a single frame a second gave it a latency that waiting had made."""
    net = ready(two_paths(delay_ms=2))
    net.silence("A", "P")
    net.run_until(lambda: len(net.controller.topology.links()) == 6, within=10)
    net.silence("A", "P", on=False)
    net.run_until(lambda: len(net.controller.topology.links()) == 8, within=3)
    # The plan follows after a second of quiet.
    key = net.port_of("A", "P"), net.port_of("P", "A")
    counted = net.controller.topology.heard[key].whole = CountedSamples()
    net.run(1)
    assert counted.count >= EARLY_FRAMES / 2


def frames_of(ports: int, seconds: float) -> list[int]:
    """Return the number of frames that each port of a network sends, if all ports are found at second 0."""
    schedule, known = DiscoverySchedule(), [PortId(1, number) for number in range(ports)]
    for port in known:
        schedule.at_once(0.0, port)
    sent = dict.fromkeys(known, 0)
    while (now := schedule.poll_timeout()) is not None and now < seconds:
        for port in schedule.due(now)[0]:
            sent[port] += 1
    return [*sent.values()]


def test_new_ports_send_some_frames_at_once_and_in_a_large_network_two() -> None:
    several, one = frames_of(1, 5.0), frames_of(1, EARLY_FRAMES * EARLY_INTERVAL)
    assert one[0] >= EARLY_FRAMES - 1
    assert EARLY_FRAMES + 3 <= several[0] <= EARLY_FRAMES + 5
    early = frames_of(2 * SMALL_NETWORK_PORTS, FRAME_INTERVAL / 2)
    assert {*early[SMALL_NETWORK_PORTS:]} == {2}
    assert min(early[:SMALL_NETWORK_PORTS]) > 2


def test_ports_of_a_switch_that_has_left_send_nothing() -> None:
    schedule = DiscoverySchedule()
    for port in (PortId(1, 1), PortId(2, 1)):
        schedule.add_switch(0.0, port.switch)
        schedule.at_once(0.0, port)
    schedule.remove_switch(1)
    assert schedule.due(0.0) == ([PortId(2, 1)], [2])

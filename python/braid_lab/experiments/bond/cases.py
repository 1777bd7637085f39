"""Pairs and triples of links for the bond's experiments, and their theoretical goodput."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from braid_lab.net.links import LinkSpec

#: An emulated link counts Ethernet frames without their checksum.
FRAME_BYTES = 1514

#: The outer packet's IPv4 and UDP headers, and the overhead of a full inner packet: docs/protocol.md, *Data*.
BOND_BYTES = 20 + 8 + 32

#: Compressed IPv4 and TCP headers with timestamps, and IPv4 and UDP headers: docs/protocol.md, *Compressed headers*.
COMPRESSED_TCP_BYTES = 15
COMPRESSED_UDP_BYTES = 6

#: Extra header bytes of a repair packet (PARITY) over a data packet (DATA): segments leave room for them.
FEC_HEADER_BYTES = 6

MTU_BYTES = 1500


@dataclass(frozen=True)
class Sizes:
    """Inner packets of a flow as the bond carries them, headers compressed, and their payload, bytes."""

    packet: int
    payload: int


#: The largest inner packets that fill a frame before compression, and their payload; TCP uses timestamps.
FULL_BYTES = MTU_BYTES - BOND_BYTES
SEGMENT_BYTES = FULL_BYTES - FEC_HEADER_BYTES - 20 - 20 - 12
DATAGRAM_BYTES = FULL_BYTES - 20 - 8
TCP = Sizes(COMPRESSED_TCP_BYTES + SEGMENT_BYTES, SEGMENT_BYTES)
UDP = Sizes(COMPRESSED_UDP_BYTES + DATAGRAM_BYTES, DATAGRAM_BYTES)
#: Headers of QUIC's datagrams and of a STREAM frame, and the AEAD tag.
QUIC_HEADER_BYTES = (1 + 8 + 2) + (1 + 1 + 4 + 2) + 16
QUIC_BYTES = DATAGRAM_BYTES - FEC_HEADER_BYTES
QUIC = Sizes(COMPRESSED_UDP_BYTES + QUIC_BYTES, QUIC_BYTES - QUIC_HEADER_BYTES)


@dataclass(frozen=True)
class DelayWalk:
    """A one-way delay that changes continuously."""

    shortest_ms: float
    longest_ms: float
    #: Interval of changes, and the largest change.
    every_s: float = 0.25
    step_ms: float = 1.5

    def trace(self, generator: random.Random) -> Iterator[float]:
        """Yield an endless random walk between the two bounds, ms."""
        now = (self.shortest_ms + self.longest_ms) / 2
        while True:
            yield now
            step = generator.uniform(-self.step_ms, self.step_ms)
            now = min(self.longest_ms, max(self.shortest_ms, now + step))


@dataclass(frozen=True)
class Link:
    """A link of a case: one-way delay and loss, the same in both directions, as the rate is without `up_mbit`."""

    mbit: float
    delay_ms: float
    up_mbit: float | None = None
    loss: float = 0.0
    queue_ms: float = 100.0
    delay_walk: DelayWalk | None = None
    #: The delay is uniform within this of its mean. Packets keep their order unless `reorders`.
    jitter_ms: float = 0.0
    reorders: bool = False

    def line(self, seed: int) -> LinkSpec:
        """Return the emulated link."""
        return LinkSpec(
            rate=f"{self.mbit:g}Mbit/s",
            rate_up=f"{self.up_mbit:g}Mbit/s" if self.up_mbit else None,
            delay=f"{self.delay_ms:g}ms",
            loss=f"{100 * self.loss:g}%" if self.loss else None,
            jitter=f"{self.jitter_ms:g}ms" if self.jitter_ms else None,
            queue=f"{self.queue_ms:g}ms",
            seed=seed,
            extra=("--reorder",) if self.reorders else (),
        )


@dataclass(frozen=True)
class Case:
    """Links that are used together."""

    name: str
    links: Mapping[str, Link]

    def ceiling_mbit(self, sizes: Sizes) -> float:
        """Return the highest possible goodput of such packets through the bond, after headers and loss.

        Assumes frames with one inner packet each. Small packets (acknowledgements, reports) go the other way.
        """
        frame = FRAME_BYTES - MTU_BYTES + BOND_BYTES + sizes.packet
        return sum(link.mbit * (1 - link.loss) for link in self.links.values()) * sizes.payload / frame

    @property
    def best(self) -> str:
        """The best link for a single flow: the fastest of those without loss."""
        return max(self.links, key=lambda name: (self.links[name].loss == 0, self.links[name].mbit))

    @property
    def fastest(self) -> str:
        """The best link for a flow that ignores losses, as BBR does: the highest rate, less what is lost."""
        return max(self.links, key=lambda name: self.links[name].mbit * (1 - self.links[name].loss))


def _pair(name: str, one: Link, other: Link) -> Case:
    return Case(name, {"one": one, "two": other})


#: Named by their Mbit/s and by special properties.
CASES = (
    _pair("50_50", Link(50, 15), Link(50, 15)),
    _pair("80_20", Link(80, 15), Link(20, 15)),
    _pair("50_50_loss2", Link(50, 15), Link(50, 15, loss=0.02)),
    _pair("50_50_loss5", Link(50, 15), Link(50, 15, loss=0.05)),
    _pair("100_10", Link(100, 10), Link(10, 30)),
    # [l3b] §5.1: 64 Mbit/s with 13 ms, and about 60 Mbit/s with 25 to 45 ms, round trip.
    _pair("64_60", Link(64, 6.5), Link(60, 17.5, delay_walk=DelayWalk(12.5, 22.5))),
    _pair("20_20", Link(20, 15), Link(20, 15)),
    Case("50_20_10", {"one": Link(50, 15), "two": Link(20, 15), "three": Link(10, 15)}),
    _pair("50_50_queue300", Link(50, 15, queue_ms=300), Link(50, 15, queue_ms=300)),
    _pair("300_30", Link(300, 15), Link(30, 15)),
    # An acknowledgement for every second packet would fill them upwards.
    _pair("50_50_up1", Link(50, 10, up_mbit=1), Link(50, 20, up_mbit=1)),
    # Round trips of 20 and 320 ms, and LTE with a geostationary satellite.
    _pair("far", Link(50, 10), Link(50, 160)),
    _pair("geo", Link(40, 25), Link(20, 290, queue_ms=300)),
    _pair("jitter20", Link(50, 30, jitter_ms=20), Link(50, 30, jitter_ms=20)),
    _pair("reorder20", Link(50, 30, jitter_ms=20, reorders=True), Link(50, 30, jitter_ms=20, reorders=True)),
    _pair("dual_lte", Link(40, 30, jitter_ms=10, queue_ms=300), Link(25, 40, jitter_ms=15, queue_ms=300)),
    _pair("starlink", Link(40, 30, jitter_ms=10, queue_ms=300), Link(100, 30, loss=0.01, jitter_ms=25)),
)

BY_NAME = {case.name: case for case in CASES}

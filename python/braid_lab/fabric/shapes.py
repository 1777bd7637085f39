"""Networks as plain data: the paper's, two-path networks, fat trees, and generated ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Wire:
    """A link between two switches; values are per direction."""

    one: str
    other: str
    mbit: float = 1000.0
    delay_ms: float = 0.0
    #: Queue limit, as for `braid emulate`.
    queue: str = "100ms"
    #: Random loss, as for `braid emulate`; none if empty.
    loss: str = ""


@dataclass(frozen=True, slots=True)
class Station:
    """A host (or, with `edge`, an edge) and the switch it is plugged into."""

    name: str
    switch: str
    edge: bool = False


@dataclass(frozen=True)
class Shape:
    """A network."""

    switches: tuple[str, ...]
    wires: tuple[Wire, ...]
    stations: tuple[Station, ...] = ()

    def dpid(self, switch: str) -> int:
        """Return a switch's datapath id: its position, counted from 1."""
        return self.switches.index(switch) + 1

    def ports(self) -> list[tuple[str, str]]:
        """Return the two devices of each wire, named after both ends: `SHA-BEJ` is Shanghai's port to Beijing."""
        names: dict[str, int] = {}
        made = []
        for wire in self.wires:
            ends = (f"{wire.one}-{wire.other}", f"{wire.other}-{wire.one}")
            turn = names[ends[0]] = names[ends[1]] = names.get(ends[0], 0) + 1
            made.append(ends if turn == 1 else (f"{ends[0]}{turn}", f"{ends[1]}{turn}"))
        return made


def _with_stations(switches: tuple[str, ...], wires: tuple[Wire, ...], at: dict[str, str], *, edge: bool) -> Shape:
    return Shape(switches, wires, tuple(Station(name, switch, edge) for name, switch in at.items()))


def two_paths(*, mbit: float = 10.0, delay_ms: float = 25.0, other_ms: float | None = None) -> Shape:
    """Two paths of equal rate between two switches, each over a switch of its own: [mpsdn] Fig. 3 and 5."""
    other = delay_ms if other_ms is None else other_ms
    wires = (
        Wire("A", "P", mbit, delay_ms / 2),
        Wire("P", "B", mbit, delay_ms / 2),
        Wire("A", "Q", mbit, other / 2),
        Wire("Q", "B", mbit, other / 2),
    )
    return _with_stations(("A", "B", "P", "Q"), wires, {"ha": "A", "hb": "B"}, edge=True)


def parallel(paths: Sequence[tuple[float, float]], *, prefix: str = "", queue: str = "100ms") -> Shape:
    """Parallel paths between two switches, each over a switch of its own, by Mbit/s and one-way ms."""
    wires, middles = [], []
    a, b = f"{prefix}A", f"{prefix}B"
    for number, (mbit, delay_ms) in enumerate(paths, 1):
        middle = f"{prefix}P{number}"
        middles.append(middle)
        wires += [Wire(a, middle, mbit, delay_ms / 2, queue), Wire(middle, b, mbit, delay_ms / 2, queue)]
    at = {f"h{a.lower()}": a, f"h{b.lower()}": b}
    return _with_stations((a, b, *middles), tuple(wires), at, edge=True)


def beside(one: Shape, other: Shape) -> Shape:
    """Combine two unconnected networks."""
    return Shape(one.switches + other.switches, one.wires + other.wires, one.stations + other.stations)


#: Default queue of Mininet's lines: [mpsdn] §IV-A used Mininet and mentions no queue.
MININET_QUEUE = "1000p"


def east_asia(*, edges: tuple[str, ...] = ("BEJ", "HAW", "TOK", "SYD"), queue: str = "100ms") -> Shape:
    """The East Asia backbone, [mpsdn] Fig. 2 and Table II, with the rates as scaled down there.

    The paper gives only sums of delays: BEJ-SHA-TOK-HAW and BEJ-HKG-MAN-HAW 95 ms, TOK-SIN-SYD and TOK-SYD 60 ms.
    Their division among the links is ours, by distance.
    """
    wires = (
        Wire("BEJ", "SHA", 10, 15),
        Wire("SHA", "TOK", 10, 20),
        Wire("TOK", "HAW", 10, 60),
        Wire("BEJ", "HKG", 10, 20),
        Wire("HKG", "MAN", 10, 15),
        Wire("MAN", "HAW", 10, 60),
        Wire("TOK", "SIN", 10, 35),
        Wire("SIN", "SYD", 10, 25),
        Wire("TOK", "SYD", 20, 60),
    )
    switches = ("BEJ", "SHA", "TOK", "HAW", "HKG", "MAN", "SIN", "SYD")
    queued = tuple(replace(wire, queue=queue) for wire in wires)
    return _with_stations(switches, queued, {each.lower(): each for each in edges}, edge=True)


def fat_tree(arity: int = 4, *, mbit: float = 1000.0, hosts: int | None = None) -> Shape:
    """A fat tree of `arity` (even) pods: 5·arity²/4 switches; a host at each edge switch, or `hosts` in all."""
    half = arity // 2
    core = [f"c{number}" for number in range(half * half)]
    switches, wires = list(core), list[Wire]()
    at: dict[str, str] = {}
    for pod in range(arity):
        above = [f"a{pod}.{number}" for number in range(half)]
        below = [f"e{pod}.{number}" for number in range(half)]
        switches += above + below
        wires += [Wire(a, b, mbit) for a in above for b in below]
        wires += [Wire(a, core[number * half + up], mbit) for number, a in enumerate(above) for up in range(half)]
        at |= {f"h{pod}.{number}": each for number, each in enumerate(below)}
    if hosts is not None:
        below = list(at.values())
        at = {f"h{number}": below[number % len(below)] for number in range(hosts)}
    return _with_stations(tuple(switches), tuple(wires), at, edge=False)


def generated(switches: int, *, seed: int = 1, more: float = 1.0, hosts: int = 0) -> Shape:
    """A connected random network: a random tree, and `more` additional links per switch."""
    chance = random.Random(seed)
    names = [f"s{number}" for number in range(switches)]
    pairs = {(chance.randrange(number), number) for number in range(1, switches)}
    while len(pairs) < min(round(switches - 1 + more * switches), switches * (switches - 1) // 2):
        one, other = sorted(chance.sample(range(switches), 2))
        pairs.add((one, other))
    wires = tuple(
        Wire(names[a], names[b], chance.choice((10, 20, 100)), chance.choice((0.5, 2, 5, 10)))
        for a, b in sorted(pairs)
    )
    at = {f"h{number}": names[number * switches // max(1, hosts)] for number in range(hosts)}
    return _with_stations(tuple(names), wires, at, edge=False)

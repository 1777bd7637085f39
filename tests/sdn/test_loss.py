"""Loss by others' traffic: packets sent and received over a line whose full queue lets small probes through."""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.monitor.loss import CounterSample, Ledger
from braid_sdn.fabric.monitor.path_monitor import PROBE_INTERVAL, PathMonitor
from braid_sdn.fabric.plan.plan import TaggedPath

#: Seconds of a step; packets a second of a line of 10 Mbit/s; seconds of its latency.
STEP, LINE, LATENCY = 0.0005, 833.0, 0.02

#: Packets a second that somebody sends, by the time.
Rates = Callable[[float], float]


@dataclass
class Path:
    """A line with a queue of so many full frames, in which a probe always finds room."""

    queue: float
    lossy: float = 0.0
    dice: random.Random = field(default_factory=lambda: random.Random(1))
    sent: int = 0
    came: int = 0
    _due: dict[str, float] = field(default_factory=lambda: {"own": 0.0, "others": 0.0, "line": 0.0})
    _waiting: deque[tuple[str, float]] = field(default_factory=deque)
    _flying: deque[tuple[str, float, float]] = field(default_factory=deque)

    def _whole(self, who: str, rate: float) -> int:
        self._due[who] += rate * STEP
        whole = int(self._due[who])
        self._due[who] -= whole
        return whole

    def step(self, now: float, own: float, others: float, *, probe: bool) -> list[float]:
        """Let STEP pass; return when the probes were sent that came."""
        new = ["own"] * self._whole("own", own) + ["others"] * self._whole("others", others)
        self.sent += new.count("own")
        self.dice.shuffle(new)
        for who in new:
            if len(self._waiting) < self.queue and self.dice.random() >= self.lossy:
                self._waiting.append((who, now))
        if probe:
            self._waiting.append(("probe", now))
        for _ in range(self._whole("line", LINE)):
            while self._waiting:
                who, at = self._waiting.popleft()
                self._flying.append((who, at, now + LATENCY))
                if who != "probe":
                    break
        probes = []
        while self._flying and self._flying[0][2] <= now:
            who, at, _ = self._flying.popleft()
            self.came += who == "own"
            if who == "probe":
                probes.append(at)
        return probes


def left(own: Rates, others: Rates, *, seconds: float, path: Path, held: float = 0.0) -> float | None:
    """Send by two paths, of which others use the first; return when that was left.

    An edge tells what passed 2 ms after it was asked, and for `held` seconds in each the controller reads nothing.
    """
    monitor, other = PathMonitor(), Path(1e9)
    ways = [(TaggedPath(tag, (PortId(1, tag), PortId(2, 9))), ((PortId(1, tag), PortId(2, tag)),)) for tag in (7, 8)]
    monitor.set_targets(0.0, ways, [])
    told: deque[tuple[float, float, dict[int, int], dict[int, int]]] = deque()
    for number in range(round(seconds / STEP)):
        now = number * STEP
        probe = number % round(PROBE_INTERVAL / STEP) == 0
        lines = {7: path, 8: other}
        for tag, line in lines.items():
            # The other line is no narrow one.
            rate = own(now) if tag == 7 else min(own(now), LINE / 2)
            for sent in line.step(now, rate, others(now) if tag == 7 else 0.0, probe=probe):
                monitor.handle_path_probe(now, tag, now - sent)
        if now % 1 < held:
            continue
        while told and told[0][0] <= now:
            _, since, came, sent_by = told.popleft()
            monitor.handle_tx(now, since, sent_by, came)
            monitor.handle_rx(now, since, came, {7: 0.5, 8: 0.5})
        # As the controller looks at counters.
        if number % round(2 / STEP) == 0 or (probe and monitor.queued_paths(now)) or monitor.suspects(now):
            monitor.handle_polled(now, (7, 8))
            counts = {tag: line.came for tag, line in lines.items()}, {tag: line.sent for tag, line in lines.items()}
            told.append((now + 0.002, now, *counts))
        died, _ = monitor.judge(now)
        assert 8 not in died
        if died:
            return now
    return None


@dataclass
class Edge:
    """One that tells what passed a while after it was answered, and waits for the next answer then."""

    dice: random.Random
    came: dict[int, int]
    sent: dict[int, int]
    answered: float = 0.0
    counts_at: float = 0.0
    reads_at: float = float("inf")
    told: tuple[dict[int, int], dict[int, int]] | None = None

    def step(self, now: float) -> None:
        """Count, if it is time."""
        if self.told is None and now >= self.counts_at:
            self.told = dict(self.came), dict(self.sent)
            self.reads_at = now + self.dice.uniform(0.001, 0.06)


def left_by_a_busy_machine(seed: int, own: Rates, others: Rates, *, seconds: float, path: Path) -> float | None:
    """As `left`, by a controller that is held up again and again, and edges that tell late.

    What came meanwhile it reads at once, in any order. Edges tell whenever they are asked, for whatever pair.
    """
    dice, monitor, other = random.Random(seed), PathMonitor(), Path(1e9)
    ways = [(TaggedPath(tag, (PortId(1, tag), PortId(2, 9))), ((PortId(1, tag), PortId(2, tag)),)) for tag in (7, 8)]
    monitor.set_targets(0.0, ways, [])
    lines = {7: path, 8: other}
    edges = {name: Edge(random.Random(seed + 1), {}, {}) for name in ("source", "target")}
    probes: list[tuple[int, float]] = []
    held, asking = 0.0, 0.0
    for number in range(round(seconds / STEP)):
        now = number * STEP
        probe = now >= held and bool(monitor.due(now)[0])
        for tag, line in lines.items():
            rate = own(now) if tag == 7 else min(own(now), LINE / 2)
            probes += [(tag, sent) for sent in line.step(now, rate, others(now) if tag == 7 else 0.0, probe=probe)]
            edges["source"].sent[tag], edges["target"].came[tag] = line.sent, line.came
        for edge in edges.values():
            edge.step(now)
        if now < held:
            continue
        if dice.random() < 3 * STEP:
            held = now + dice.uniform(0.01, 0.2)
            continue

        for what in dice.sample(["probes", "source", "target"], 3):
            if what == "probes":
                for tag, sent in probes:
                    monitor.handle_path_probe(now, tag, now - sent)
                probes.clear()
                continue
            edge = edges[what]
            if edge.told is None or edge.reads_at > now:
                continue
            edge.reads_at = float("inf")
            if what == "source":
                monitor.handle_tx(now, edge.answered, edge.told[1], (7, 8))
            else:
                monitor.handle_rx(now, edge.answered, edge.told[0], {7: 0.5, 8: 0.5})
        if monitor.queued_paths(now) or monitor.suspects(now) or dice.random() < 5 * STEP or now - asking > 2:
            monitor.handle_polled(now, (7, 8))
            asking = now
            for edge in edges.values():
                if edge.told is not None and edge.reads_at == float("inf"):
                    edge.answered, edge.told = now, None
                    edge.counts_at = now + edge.dice.uniform(0.001, 0.03)
        died, _ = monitor.judge(now)
        if died:
            return now
    return None


def nobody(_: float) -> float:
    return 0.0


def flood(now: float) -> float:
    """Ten times what the line carries, from second 4 on."""
    return 10 * LINE if now >= 4 else 0.0


def windows(now: float, most: float = 2.0) -> float:
    """One that doubles, and then so many times what the line carries at once."""
    return 50 * 2 ** (2 * now) if now < 2 else LINE * (most if now % 2 < 1 else 0.7)


@pytest.mark.parametrize("rate", [200.0, 500.0, 820.0])
@pytest.mark.parametrize("queue", [40.0, 83.0])
def test_a_path_that_others_fill_is_left_although_probes_come(rate: float, queue: float) -> None:
    at = left(lambda _: rate, flood, seconds=6, path=Path(queue))
    assert at is not None
    # A queue of 83 packets takes 0.1 s to drain, and so does the probe that shows that nothing arrived.
    assert 4 < at < 4.35


def test_a_sender_that_soon_gives_way_is_believed_too() -> None:
    """It halves a while after its packets are lost, and again."""
    at = left(lambda now: 800.0 if now < 4.15 else 400.0 if now < 4.3 else 40.0, flood, seconds=6, path=Path(83))
    assert at is not None
    assert 4 < at < 4.35


@pytest.mark.parametrize("queue", [20.0, 83.0, 1000.0])
@pytest.mark.parametrize("most", [1.1, 2.0, 6.0])
def test_a_queue_of_the_flow_s_own_is_not_taken_for_others(queue: float, most: float) -> None:
    """A window that doubles loses half of it, one that is sent at once more; the line is as full as before."""

    assert left(functools.partial(windows, most=most), nobody, seconds=8, path=Path(queue)) is None


def test_a_flow_that_ends_or_pauses_loses_nothing() -> None:
    for share in range(10):
        ends = 3 + share / 190

        def own(now: float, ends: float = ends) -> float:
            return 900.0 if now % 4 < ends else 0.0

        assert left(own, nobody, seconds=7, path=Path(83)) is None


def test_single_losses_are_nobodys_flood() -> None:
    lossy = Path(83, lossy=0.05)
    assert left(lambda now: 700.0 if now % 1 < 0.7 else 900.0, nobody, seconds=6, path=lossy) is None


def test_a_neighbour_that_takes_half_is_shared_with() -> None:
    """As much again as the line carries: that is what a flow beside ours does."""
    assert left(lambda _: LINE, lambda now: LINE if now >= 3 else 0.0, seconds=6, path=Path(83)) is None


@pytest.mark.parametrize("held", [0.03, 0.1, 0.3])
def test_a_controller_that_is_held_up_takes_nobody_for_lost(held: float) -> None:
    """Edges' reports are old when they are read, and probes are not."""
    own = [700.0, 900.0]
    assert left(lambda now: own[int(now) % 2], nobody, seconds=6, path=Path(83), held=held) is None


def acknowledgements(now: float) -> float:
    """In bursts."""
    return 920.0 if now % 0.16 < 0.04 else 0.0


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("own", [acknowledgements, windows, lambda _: 800.0])
def test_a_busy_machine_takes_nobody_for_lost(seed: int, own: Rates) -> None:
    assert left_by_a_busy_machine(seed, own, nobody, seconds=8, path=Path(83)) is None


#: The last five were not left while what came was held against what the others left.
@pytest.mark.parametrize("seed", [0, 1, 2, 15, 132, 153, 160, 167])
def test_a_busy_machine_leaves_a_path_that_others_fill(seed: int) -> None:
    at = left_by_a_busy_machine(seed, lambda _: 500.0, flood, seconds=7, path=Path(83))
    assert at is not None
    assert 4 < at < 5


def test_counts_that_begin_anew_say_nothing() -> None:
    ledger = Ledger()
    for number in range(20):
        now = number / 20
        ledger.handle_probe(now, now - 0.02)
        # The edge at the end was started anew in the middle, and has not counted since.
        ledger.handle_tx(CounterSample(now, now, 1000 + 40 * number))
        ledger.handle_rx(CounterSample(now, now, 1000 + 40 * number if number < 10 else 0))
        if number <= 10:
            assert not ledger.is_losing(800.0)
    # Nothing has come for half a second, of 400 that were sent.
    assert ledger.is_losing(800.0)


#: Of a path whose packets all came, on a machine that stood still: when each was read; when its probes were sent, and
#: when the edges that told of packets had been answered.
PROBES = {
    -1100: -1145,
    -1087: -1126,
    -1072: -1105,
    -521: -1086,
    -464: -500,
    -126: -480,
    -89: -125,
    -72: -104,
    -44: -71,
}
PROBES |= {-38: -64, -13: -45, 7: -19}
SENT = {-1119: (-1121, 755), -1068: (-1086, 778), -516: (-519, 1237), -478: (-480, 1276), -123: (-125, 1489)}
SENT |= {-45: (-71, 1512), -3: (-4, 1535)}
CAME = {-477: (-480, 1237), -123: (-125, 1489), -13: (-71, 1511), -3: (-4, 1520)}


def test_a_machine_that_stood_still_lost_nothing() -> None:
    """Packets that came while no probe was sent are none that were lost before."""
    ledger = Ledger()
    for at in sorted(PROBES | SENT | CAME):
        if at in PROBES:
            ledger.handle_probe(at / 1000, PROBES[at] / 1000)
        for told, handle in ((SENT, ledger.handle_tx), (CAME, ledger.handle_rx)):
            if at in told:
                since, packets = told[at]
                handle(CounterSample(since / 1000, at / 1000, packets))
        assert not ledger.is_losing(594.0)

"""The largest packet that each link carries: found by padded frames, and named."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from braid_lab.fabric.shapes import parallel, two_paths
from braid_sdn.fabric.api import report
from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.monitor.frame_sizes import (
    FIRST_DELAY,
    FIRST_PACKET,
    FULL_PACKET,
    LINE_OVERHEAD,
    MAX_LINE_TIME,
    MAX_LOOKS_AT_ONCE,
    MAX_PACKET,
    MAX_TRIES_PER_SECOND,
    REPEAT_INTERVAL,
    RETRY_INTERVAL,
    SHORT_PACKET,
    SMALL_REPEAT_INTERVAL,
    SWITCH_INTERVAL,
    TRIES,
    FrameSizes,
    Line,
    limited_switches,
    uneven,
)
from braid_sdn.fabric.monitor.probe import (
    TAGGED_HEADER_BYTES,
    ForgedError,
    Kind,
    Probe,
    is_probe,
    open_frame,
    seal,
    tagged,
)
from braid_sdn.fabric.monitor.problems import Problems
from braid_sdn.fabric.plan.policies import Hop
from braid_sdn.fabric.tenants import TAGS
from braid_sdn.fabric.view.load import COUNTER_PERIOD, PortRates, Saturation
from braid_sdn.openflow.messages import PacketIn, PacketOut, Refused

from .virtual import KEY, Network, arp, frame, mac, ready, tags

HOP: Hop = (PortId(1, 1), PortId(2, 1))
BACK: Hop = (PortId(2, 1), PortId(1, 1))

DAY = 24 * 3600.0


class Simulated:
    """A direction of a link in virtual time: it answers tries, by its size and by `fate` of its frames.

    `fate` says of the number of a try which of short and long frame are lost, beside those that are too long. `rate`
    is what its line carries, bit/s, `late` what delays its frames on top, seconds.
    """

    def __init__(
        self,
        carries: int,
        fate: Callable[[int], tuple[bool, bool]] = lambda _: (False, False),
        rate: float = 1e9,
        late: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.sizes = FrameSizes()
        self.sizes.set_links(0.0, {HOP: 0.0})
        self.carries = carries
        self.fate = fate
        self.rate = rate
        self.late = late
        self.queued = 0.0
        self.line: Line | None = Line()
        self.now = 0.0
        #: Time and size of each try.
        self.tries: list[tuple[float, int]] = []
        #: Times that it was called small.
        self.falls = 0

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.sizes.poll_timeout()) is not None and due <= end:
            self.now = max(self.now, due)
            was_small = HOP in self.sizes.small
            made = self.sizes.poll_try(self.now, lambda _: self.line)
            self.falls += HOP in self.sizes.small and not was_small
            if made is None:
                continue
            assert made.source == HOP[0]
            assert made.packet_bytes > SHORT_PACKET, "a long frame is not taken for a short one"
            self.tries.append((self.now, made.packet_bytes))
            no_short, no_long = self.fate(made.number)
            if not no_short:
                self.sizes.handle_short(HOP, made.number, self.queued + self.late())
            if not no_long and made.packet_bytes <= self.carries:
                delay = self.queued + self.time_of(made.packet_bytes) + self.late()
                self.sizes.handle_long(self.now + delay, HOP, made.number, made.packet_bytes, delay)
        self.now = end

    def time_of(self, size: int) -> float:
        """Seconds that a long frame takes the line."""
        return 8 * (size + LINE_OVERHEAD) / self.rate

    @property
    def known(self) -> int | None:
        return self.sizes.known.get(HOP)


# The search.


@pytest.mark.parametrize(
    "carries", [SHORT_PACKET, 129, 575, 576, 1279, 1280, 1400, 1446, 1450, 1496, 1499, 1500, 1501, 1504, 2345, 8999]
)
def test_the_size_is_found_to_the_byte(carries: int) -> None:
    line = Simulated(carries)
    line.run(300)
    assert line.known == carries
    assert (HOP in line.sizes.small) == (carries < FULL_PACKET)


@pytest.mark.parametrize("carries", [9000, 9216, 65535])
def test_nothing_above_jumbo_frames_is_looked_for(carries: int) -> None:
    line = Simulated(carries)
    line.run(10)
    assert line.known == MAX_PACKET
    assert [size for _, size in line.tries] == [512, 1500, 1501, 9000], "four frames are enough"


def test_common_sizes_take_few_tries() -> None:
    for carries, most in ((1500, 2 + TRIES), (1496, 2 * TRIES + 3), (1450, 4 * TRIES + 2), (1400, 6 * TRIES + 2)):
        line = Simulated(carries)
        line.run(REPEAT_INTERVAL / 4)
        assert line.known == carries
        assert len([at for at, _ in line.tries if at < SMALL_REPEAT_INTERVAL]) <= most


def test_a_new_link_waits_and_tries_are_a_second_apart() -> None:
    line = Simulated(1450)
    line.run(SMALL_REPEAT_INTERVAL)
    times = [at for at, _ in line.tries]
    assert times[0] == FIRST_DELAY
    assert all(later - at >= 1.0 for at, later in itertools.pairwise(times))


# Slow lines.


@pytest.mark.parametrize("mbit", [0.064, 0.25, 0.4, 0.7, 1.0, 1.5, 2.0, 5.0, 6.0])
@pytest.mark.parametrize("is_configured", [False, True])
def test_no_frame_takes_a_slow_line_long(mbit: float, is_configured: bool) -> None:
    line = Simulated(MAX_PACKET, rate=1e6 * mbit)
    if is_configured:
        line.line = Line(1e6 * mbit)
    line.run(3600)
    assert all(line.time_of(size) <= MAX_LINE_TIME for _, size in line.tries if is_configured or size > FIRST_PACKET)
    assert not line.sizes.small, "nothing is said of sizes that were not tried"
    if mbit < 1:
        assert line.known is None
    elif mbit < 6:
        assert HOP in line.sizes.at_least
        assert FULL_PACKET <= (line.known or 0) < MAX_PACKET
    else:
        assert (line.known, line.sizes.at_least) == (MAX_PACKET, set())


def test_a_slow_line_of_small_packets_is_called_so() -> None:
    line = Simulated(1492, rate=1e6)
    line.run(60)
    assert (line.known, line.sizes.at_least, line.sizes.small) == (1492, set(), {HOP})


def test_frames_that_the_controller_delays_do_not_end_the_search() -> None:
    """Half of all frames are 3 ms late and more, as if the line were slow."""
    chance = random.Random(3)
    for _ in range(200):
        line = Simulated(MAX_PACKET, late=lambda: chance.choice((0.0, 0.003 + chance.expovariate(200))))
        line.run(60)
        assert line.known == MAX_PACKET or HOP in line.sizes.at_least
        line.run(REPEAT_INTERVAL * 3)
        assert line.known == MAX_PACKET


def test_a_line_that_becomes_slow_is_spared() -> None:
    line = Simulated(MAX_PACKET)
    line.run(10)
    line.rate, line.tries = 1e6, []
    line.run(3600)
    assert sum(line.time_of(size) > MAX_LINE_TIME for _, size in line.tries) == 1, "one frame shows it"
    assert line.known == MAX_PACKET


# Losses, queues and load.


def test_lost_frames_are_not_taken_for_a_small_link() -> None:
    """A link that loses a fifth of all frames, whatever their size, in 200 runs."""
    chance = random.Random(7)
    for _ in range(200):
        line = Simulated(MAX_PACKET, lambda _: (chance.random() < 0.2, chance.random() < 0.2))
        line.run(120)
        assert line.known == MAX_PACKET
        assert not line.sizes.small


def test_less_than_all_tries_show_nothing() -> None:
    line = Simulated(MAX_PACKET, lambda number: (False, number < TRIES))
    line.run(60)
    assert line.known == MAX_PACKET


def test_a_link_that_loses_ordinary_frames_decides_nothing() -> None:
    line = Simulated(1400, lambda _: (True, False))
    line.run(3600)
    assert line.known is None
    assert not line.sizes.small
    spaces = [later - at for (at, _), (later, _) in itertools.pairwise(line.tries)]
    assert spaces[1:6] == pytest.approx([1 + RETRY_INTERVAL * 2**n for n in range(5)])
    assert spaces[6:] == pytest.approx([1 + REPEAT_INTERVAL] * len(spaces[6:]))


def test_neither_does_one_with_a_queue_or_under_load() -> None:
    for queued, busy in ((0.05, False), (0.0, True)):
        line = Simulated(1400)
        line.queued, line.line = queued, Line(busy=busy)
        line.run(300)
        assert line.known is None
        line.queued, line.line = 0.0, Line()
        line.run(REPEAT_INTERVAL + 60)
        assert line.known == 1400


def test_a_frame_that_arrives_is_a_proof_whatever_the_load() -> None:
    line = Simulated(MAX_PACKET)
    line.line = Line(busy=True)
    line.run(10)
    assert line.known == MAX_PACKET


def test_a_late_frame_is_a_proof_too() -> None:
    line = Simulated(1496)
    line.run(FIRST_DELAY + TRIES + 1.5)
    assert line.tries[-1][1] == 1496, "1500 counts as lost"
    line.sizes.handle_long(line.now, HOP, 1 + TRIES, 1500, 1.5)
    line.carries = 1500
    line.run(60)
    assert line.known == 1500


def test_frames_of_another_try_or_link_count_for_nothing() -> None:
    sizes = FrameSizes()
    sizes.set_links(0.0, {HOP: 0.0})
    tries = [sizes.poll_try(now, lambda _: Line()) for now in range(2 * round(FIRST_DELAY + RETRY_INTERVAL))]
    assert len([made for made in tries if made is not None]) == 2
    for made in (made for made in tries if made is not None):
        assert made.packet_bytes == FIRST_PACKET
        sizes.handle_short(HOP, made.number - 1, 0.0)
        sizes.handle_short(BACK, made.number, 0.0)
        sizes.handle_long(3.0, BACK, made.number, 9000, 0.0)
    assert sizes.known == {}
    assert sizes._directions[HOP].queued is None


def test_copies_of_a_long_frame_change_nothing_and_cost_nothing() -> None:
    line = Simulated(MAX_PACKET)
    line.run(10)
    waiting, due = len(line.sizes._queue), line.sizes.poll_timeout()
    for number in range(20_000):
        line.sizes.handle_long(line.now + 1e-4 * number, HOP, line.sizes._number, MAX_PACKET, 0.0)
    assert (len(line.sizes._queue), line.sizes.poll_timeout()) == (waiting, due)


@pytest.mark.parametrize("seed", range(3))
def test_a_link_that_passes_one_in_ten_full_frames_changes_rarely(seed: int) -> None:
    chance = random.Random(seed)
    line = Simulated(FULL_PACKET)

    def fate(_: int) -> tuple[bool, bool]:
        line.carries = FULL_PACKET if chance.random() < 0.1 else 1400
        return False, False

    line.fate = fate
    line.run(DAY)
    assert line.falls <= 3


@pytest.mark.parametrize("error_rate", [1e-5, 2e-5, 5e-5, 1e-4])
def test_a_link_with_bit_errors_changes_rarely(error_rate: float) -> None:
    chance = random.Random(1)
    line = Simulated(MAX_PACKET)

    def is_lost(size: int) -> bool:
        return chance.random() > (1 - error_rate) ** (8 * (size + LINE_OVERHEAD))

    line.fate = lambda _: (is_lost(SHORT_PACKET), is_lost(line.sizes._directions[HOP].tried))
    line.run(DAY)
    assert line.falls <= 4
    assert line.sizes.changes <= 40


# Again.


def test_a_link_that_becomes_smaller_or_larger_is_noticed() -> None:
    line = Simulated(9000)
    line.run(10)
    for carries, within in (
        (1500, REPEAT_INTERVAL + 60),
        (1450, REPEAT_INTERVAL + 60),
        (1500, SMALL_REPEAT_INTERVAL + 60),
        # It is more careful now.
        (9000, 2 * REPEAT_INTERVAL + 60),
    ):
        line.carries = carries
        line.run(within)
        assert line.known == carries


def test_what_is_known_holds_while_it_is_measured_again() -> None:
    line = Simulated(1500)
    line.run(30)
    before, line.tries = line.sizes.changes, []
    for _ in range(600):
        line.run(2)
        assert line.known == 1500
    assert line.sizes.changes == before
    # One long frame that is lost, and one that comes, every five minutes.
    assert [size for _, size in line.tries] == [1501, 1500] * 4


def test_a_lost_frame_later_changes_nothing() -> None:
    line = Simulated(9000)
    line.run(10)
    last = len(line.tries)
    line.fate = lambda number: (False, number <= last + TRIES - 1)
    line.run(2 * REPEAT_INTERVAL)
    assert line.known == 9000


def test_a_link_that_is_found_anew_is_measured_anew() -> None:
    line = Simulated(1400)
    line.run(60)
    line.sizes.set_links(line.now, {})
    assert line.sizes.known == {}
    assert not line.sizes.small
    line.carries = 9000
    line.sizes.set_links(line.now, {HOP: line.now})
    line.run(10)
    assert line.known == 9000
    # Or was away for so short a time that only its age tells.
    line.carries = 1500
    line.sizes.set_links(line.now, {HOP: line.now})
    assert line.known is None
    line.run(10)
    assert line.known == 1500


# Many links.


def test_a_switch_that_is_away_is_asked_nothing() -> None:
    line = Simulated(1500)
    line.run(30)
    line.line, line.tries = None, []
    line.run(3600)
    assert (line.tries, line.known) == ([], 1500)
    line.line = Line()
    line.run(REPEAT_INTERVAL + 1)
    assert line.tries


def test_tries_at_one_switch_are_apart_and_none_waits_for_ever() -> None:
    """A switch with 100 others around it."""
    hops = [hop for number in range(1, 101) for hop in both(PortId(0, number), PortId(number, 1))]
    _, times, known = drive(hops, dict.fromkeys(hops, 1500), 3600)
    spaces = [later - at for (at, _), (later, _) in itertools.pairwise(times)]
    assert min(spaces) > 0.99 * SWITCH_INTERVAL
    assert known is not None
    assert known < 1.1 * 7 * len(hops) * SWITCH_INTERVAL


def both(one: PortId, other: PortId) -> tuple[Hop, Hop]:
    return (one, other), (other, one)


def drive(
    hops: list[Hop], carries: dict[Hop, int], seconds: float
) -> tuple[FrameSizes, list[tuple[float, Hop]], float | None]:
    """Measure links; return time and direction of each try, and when all were known."""
    by_source = {hop[0]: hop for hop in hops}
    sizes = FrameSizes()
    sizes.set_links(0.0, dict.fromkeys(hops, 0.0))
    now, sent = 0.0, list[tuple[float, Hop]]()
    whole = None
    while now < seconds:
        now = max(now, sizes.poll_timeout() or 0.0)
        before = len(sizes.known)
        made = sizes.poll_try(now, lambda _: Line())
        assert len(sizes.known) - before <= MAX_LOOKS_AT_ONCE, "one turn of the loop does not end all searches"
        if whole is None and len(sizes.known) == len(hops):
            whole = now
        if made is None:
            continue
        hop = by_source[made.source]
        sent.append((now, hop))
        sizes.handle_short(hop, made.number, 0.0)
        if made.packet_bytes <= carries[hop]:
            sizes.handle_long(now, hop, made.number, made.packet_bytes, 1e-4)
    assert sizes.known == carries
    return sizes, sent, whole


def test_the_rate_of_all_links_is_bounded_and_none_waits_for_ever() -> None:
    """1,000 switches with 6,000 directions of links, of which a tenth carry jumbo frames and one is small."""
    hops = [(PortId(one, port), PortId(one + port, 9)) for one in range(1000) for port in range(1, 7)]
    carries = {hop: 1400 if number == 77 else 9000 if number % 10 == 0 else 1500 for number, hop in enumerate(hops)}
    _, sent, whole = drive(hops, carries, 3600)
    assert min(later - at for (at, _), (later, _) in itertools.pairwise(sent)) >= 0.99 / MAX_TRIES_PER_SECOND
    last: dict[int, float] = {}
    for at, hop in sent:
        for end in hop:
            assert at - last.get(end.switch, -1.0) > 0.99 * SWITCH_INTERVAL
            last[end.switch] = at
    assert whole is not None
    assert whole < 900, "all are known within a quarter of an hour"
    later = [at for at, _ in sent if at > 1800]
    assert len(later) / 1800 < 0.6 * MAX_TRIES_PER_SECOND


# Frames.


def test_a_padded_frame_is_as_long_as_it_says_under_a_tag_and_sealed() -> None:
    for size in (SHORT_PACKET, 1500, MAX_PACKET):
        probe = Probe(Kind.PADDED, PortId(0xFFFFFFFFFFFFFFFF, 0xFFFFFF00), 0, 7, 10**9, size)
        made = seal(probe, KEY)
        assert len(made) == TAGGED_HEADER_BYTES + size
        assert made[12:18] == b"\x81\x00" + TAGS.start.to_bytes(2, "big") + b"\x88\xcc"
        assert open_frame(made, KEY, 10**9 + 1) == probe
        # A switch may hand on less than all of a frame (OFPCML, miss_send_len): its beginning says all.
        assert open_frame(made[:SHORT_PACKET], KEY, 10**9 + 1) == probe


def test_no_size_can_be_forged() -> None:
    made = seal(Probe(Kind.PADDED, PortId(1, 1), 0, 7, 10**9, 1400), KEY)
    place = made.index((1400).to_bytes(2, "big"))
    with pytest.raises(ForgedError):
        open_frame(made[:place] + (9000).to_bytes(2, "big") + made[place + 2 :], KEY, 10**9 + 1)
    with pytest.raises(ForgedError):
        open_frame(seal(Probe(Kind.PADDED, PortId(1, 1), 0, 7, 10**9, 1400), b"another key of sixteen"), KEY, 10**9)


def test_an_old_frame_is_refused_without_a_verdict_on_who_delayed_it() -> None:
    made = seal(Probe(Kind.PADDED, PortId(1, 1), 0, 7, 10**9, 1400), KEY)
    with pytest.raises(ForgedError, match=r"it is 5\.4 s old \(this machine or a switch stood still, or somebody"):
        open_frame(made, KEY, 10**9 + 5_400_000_000)


def test_a_frame_of_a_later_version_is_refused() -> None:
    kind: Kind = 9  # type: ignore[assignment]
    with pytest.raises(ForgedError, match="version"):
        open_frame(seal(Probe(kind, PortId(1, 1), 0, 7, 10**9), KEY), KEY, 10**9)


# The controller.


def sizes_of(net: Network) -> dict[tuple[str, str], int | None]:
    links = report.status(net.controller, net.now)["links"]
    return {(each["source_switch"], each["target_switch"]): each["frame_bytes"] for each in links}


def narrowed(net: Network, one: str, other: str, size: int) -> None:
    for end in (net.port_of(one, other), net.port_of(other, one)):
        net.carries[end] = size


def health(net: Network, code: str) -> dict[str, str]:
    return {each.subject: each.text for each in report.problems(net.controller, net.now) if each.code == code}


def test_sizes_are_shown_for_each_direction() -> None:
    net = Network(two_paths())
    net.carries[net.port_of("A", "P")] = 1500
    net.connect()
    net.run(1)
    assert set(sizes_of(net).values()) == {None}
    net.run(30)
    assert sizes_of(net) == {
        ("A", "P"): 1500,
        **dict.fromkeys((("P", "A"), ("A", "Q"), ("Q", "A"), ("P", "B"), ("B", "P"), ("Q", "B"), ("B", "Q")), 9000),
    }


@pytest.mark.usefixtures("rare_probes")
def test_a_link_without_room_for_a_tagged_full_frame_is_named_and_used_as_before() -> None:
    net = ready(two_paths())
    net.unplug("A", "P")
    # A box in between that takes the tag's bytes from the packet.
    narrowed(net, "A", "P", 1496)
    net.unplug("A", "P", up=True)
    net.run(40)
    assert health(net, "small-frames").keys() == {"A:A-P → P:P-A", "P:P-A → A:A-P"}
    assert "of at most 1496 bytes" in health(net, "small-frames")["A:A-P → P:P-A"]
    assert len(tags(net, "ha", "hb")) == 2
    # Mended, it is not named any more.
    narrowed(net, "A", "P", 1500)
    net.run(SMALL_REPEAT_INTERVAL + 30)
    assert not health(net, "small-frames")


@pytest.mark.parametrize(("most", "code"), [(1496, "small-frames"), (1500, "uneven-frames")])
def test_a_switch_whose_way_to_the_controller_is_limited_is_named_instead_of_its_links(most: int, code: str) -> None:
    net = Network(two_paths())
    limited, said = net.shape.dpid("Q"), net._said

    def hand_on(dpid: int, message: object) -> None:
        is_long = isinstance(message, PacketIn) and len(message.data) > most + TAGGED_HEADER_BYTES
        if dpid != limited or not is_long:
            said(dpid, message)

    net._said = hand_on  # type: ignore[method-assign]
    net.connect()
    net.run(60)
    assert health(net, code).keys() == {"Q"}
    assert f"at most {most} bytes" in health(net, code)["Q"]
    assert len([each for each in net.codes() if each.endswith("-frames")]) == 1


@pytest.mark.parametrize("mbit", [0.25, 0.5, 0.7, 1.0, 2.0])
def test_tries_kill_no_path_over_slow_links(mbit: float) -> None:
    """Paths are dead after 0.1 s without probes; a frame of 9,000 bytes takes 72 ms at 1 Mbit/s."""
    net = Network(two_paths(mbit=mbit))
    net.rate = dict.fromkeys(net.peer, 1e6 * mbit)
    dead = list[int]()
    judge = net.controller.path_monitor.judge

    def watched(now: float) -> tuple[list[int], bool]:
        judged = judge(now)
        dead.extend(judged[0])
        return judged

    net.controller.path_monitor.judge = watched  # type: ignore[method-assign]
    net.connect()
    net.run(40)
    assert dead == []
    assert not health(net, "small-frames")


def test_frames_that_are_lost_for_their_size_are_no_saturation() -> None:
    """A link of 10 Gbit/s that carried 0.6 Mbit/s, beside five frames of 9,000 bytes, counted as one of 0.6."""
    net = Network(two_paths(mbit=10), links=())
    for wire in net.shape.wires:
        narrowed(net, wire.one, wire.other, 1700)
    net.connect()
    net.run(3)
    for number, name in enumerate(net.stations, 1):
        net.send(name, frame(mac(number), "ff:ff:ff:ff:ff:ff"))
    for _ in range(900):
        net.send("ha", frame(mac(1), mac(2), bytes(1400)))
        net.run(0.02)
    assert not any(link.saturation.losing or link.saturation.limit for link in net.controller.topology.links())
    assert {arc.capacity for arc in net.controller.graph.arcs} == {10e9}


def test_a_switch_that_refuses_long_frames_refuses_no_rules() -> None:
    """Open vSwitch drops them; others answer with an error, and were named as if they refused what they are told."""
    net = Network(two_paths())
    tell, most = net.controller._tell, FULL_PACKET + TAGGED_HEADER_BYTES

    def telling(dpid: int, message: object) -> None:
        if isinstance(message, PacketOut) and dpid == net.shape.dpid("P") and len(message.data) > most:
            refused = Refused("error type 1 code 6", frame_bytes=len(message.data), frame_start=message.data[:24])
            net.at(net.now, lambda: net.controller.handle(net.now, dpid, refused))
        else:
            tell(dpid, message)  # type: ignore[arg-type]

    net.controller._tell = telling  # type: ignore[method-assign]
    net.connect()
    net.run(40)
    assert sizes_of(net)["P", "A"] == FULL_PACKET
    assert "refused" not in net.codes()
    # A host may pad its request for an address, which the controller passes on.
    asked = arp(mac(1), "10.0.0.1", "10.0.0.2").ljust(1514, b"\0")
    for data in (asked, tagged(asked, 7), asked[:100]):
        net.controller.problems = Problems()
        refused = Refused("error type 1 code 6", frame_bytes=len(data), frame_start=data[:24])
        net.controller.handle(net.now, net.shape.dpid("P"), refused)
        assert "refused" in net.codes()


@pytest.mark.parametrize("kind", Kind)
def test_a_probe_under_a_tag_is_known_by_what_a_switch_must_send_back_of_it(kind: Kind) -> None:
    data = seal(Probe(kind, PortId(1, 2), 7, 3, 4, 1000), bytes(16))
    assert is_probe(data[:24]) == (kind not in (Kind.LINK, Kind.EDGE))


def test_of_many_links_some_are_named_and_the_others_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MAX_NAMED_LINKS", 5)
    net = Network(parallel([(10, 25)] * 2))
    for end in net.peer:
        net.carries[end] = 1496
    net.connect()
    net.run(40)
    named = health(net, "small-frames")
    assert len(named) == report.MAX_NAMED_LINKS + 1
    assert named["further links"].startswith("3 more")


def test_a_link_is_busy_from_half_of_its_capacity_on_or_while_it_loses_packets() -> None:
    net = ready(two_paths(mbit=10))
    traffic, topology = net.controller.traffic, net.controller.topology
    link = topology.links()[0]
    for sent, losing, busy in ((4.9e6, False, False), (5.1e6, False, True), (0.0, True, True)):
        traffic.rates[link.source] = PortRates(0.0, sent, COUNTER_PERIOD)
        link.saturation = Saturation(losing=losing)
        assert traffic.is_busy(link, topology) == busy


@pytest.mark.usefixtures("rare_probes")
def test_a_split_over_links_of_different_sizes_is_named_until_hosts_packets_are_known() -> None:
    for need, code in ((None, {"uneven-frames"}), (1500, set()), (9000, {"small-frames"})):
        net = Network(two_paths(), frame_bytes=need)
        narrowed(net, "A", "P", 1500)
        net.connect()
        net.run(40)
        assert len(tags(net, "ha", "hb")) == 2
        assert {each for each in net.codes() if each.endswith("-frames")} == code
        for each in code:
            assert health(net, each).keys() == {"A:A-P → P:P-A", "P:P-A → A:A-P"}


def test_frames_that_hosts_send_prove_nothing() -> None:
    """A host that had the key of another fabric, or frames of this one from elsewhere, changes no size."""
    net = Network(two_paths())
    narrowed(net, "A", "P", 1400)
    net.connect()
    here = net.port_of("A", "P")
    place = net.stations["ha"]
    for number in range(400):
        probe = Probe(Kind.PADDED, here, 0, number, round(net.now * 1e9), 9000)
        frames = [seal(probe, b"another key of sixteen"), seal(probe, KEY)]
        for each in frames:
            net.controller.handle(net.now, place.switch, PacketIn(place.port, each))
        net.run(0.1)
    assert sizes_of(net)["A", "P"] == 1400


def test_a_link_whose_end_is_another_one_is_measured_anew() -> None:
    net = ready(two_paths())
    net.run(20)
    assert sizes_of(net)["A", "P"] == 9000
    net.unplug("A", "P")
    net.run(2)
    narrowed(net, "A", "P", 1500)
    net.unplug("A", "P", up=True)
    net.run(1)
    assert sizes_of(net)["A", "P"] is None
    net.run(20)
    assert sizes_of(net)["A", "P"] == 1500


@pytest.mark.usefixtures("rare_probes")
def test_links_of_a_switch_that_is_away_are_not_tried_and_keep_their_size() -> None:
    net = ready(two_paths())
    net.run(20)
    away, told = net.shape.dpid("P"), list[int]()
    tell = net.controller._tell

    def telling(dpid: int, message: object) -> None:
        if (
            isinstance(message, PacketOut)
            and message.data[12:14] == b"\x81\x00"
            and message.data[16:18] == b"\x88\xcc"
        ):
            told.extend((dpid, *(net.peer[PortId(dpid, port)].switch for port in message.ports)))
        tell(dpid, message)  # type: ignore[arg-type]

    net.controller._tell = telling  # type: ignore[method-assign]
    net.disconnect("P")
    net.run(2 * REPEAT_INTERVAL)
    assert told
    assert away not in told
    assert sizes_of(net)["A", "P"] == 9000
    assert "small-frames" not in net.codes()


# Sizes of several links.


def test_uneven_links_are_those_that_carry_less_than_another_path_of_a_pair() -> None:
    hops = [(PortId(number, 1), PortId(number, 2)) for number in range(5)]
    assert uneven(dict.fromkeys(hops, 1500), [[[hops[0]], [hops[1]]]]) == {}
    most = dict(zip(hops, (9000, 9000, 1500, 9000, 1500), strict=True))
    assert uneven(most, [[hops]]) == {}, "a link of ordinary packets beside large ones harms nobody"
    assert uneven(most, [[[hops[0]], [hops[1], hops[2]]]]) == {hops[2]: 9000}, "unless it is a part of a split"
    assert uneven(most, [[[hops[0]], [hops[2]]]], {hops[2]}) == {}, "a slow one may carry more than was tried"
    assert uneven(most, [[[hops[0], (PortId(9, 1), PortId(9, 2))], [hops[2]]]]) == {}, (
        "nothing is said of unknown ones"
    )


def test_a_limited_switch_has_links_that_carry_more_the_other_way() -> None:
    one, other = both(PortId(1, 1), PortId(9, 1)), both(PortId(2, 1), PortId(9, 2))
    inward, outward = (one[0], other[0]), (one[1], other[1])
    assert limited_switches({**dict.fromkeys(inward, 1496), **dict.fromkeys(outward, 1500)}) == {9: 1496}
    assert limited_switches({inward[0]: 1496, **dict.fromkeys(outward, 1500)}) == {}, "one direction shows nothing"
    assert limited_switches(dict.fromkeys((*inward, *outward), 1496)) == {}, "these are small both ways"
    assert limited_switches({inward[0]: 1496, inward[1]: 1492, **dict.fromkeys(outward, 1500)}) == {}

"""Races and the path cache of the host's controller, against a switch that is a list of messages."""

from __future__ import annotations

from collections import Counter
from ipaddress import ip_address

import dpkt  # type: ignore[import-untyped]
import pytest

from braid_sdn.host.flow_rules import ATTEMPT, COOKIE, IN, flow_of
from braid_sdn.host.forecast import Forecast
from braid_sdn.host.packets import ACK, RST, SYN, parse
from braid_sdn.host.path_cache import MAX_NETWORKS, PathCache
from braid_sdn.host.races import RACE_TIMEOUT
from braid_sdn.openflow.messages import (
    FlowStats,
    Match,
    PacketOut,
    Reserved,
    Rule,
    RuleCounters,
    RuleCountersReply,
)

from .test_host_balancer import DSL, INSIDE, LTE, Bridge, class_table, ends, ip4, tcp

SERVER = "198.51.100.1"
#: The sequence number after that of the helper's SYNs.
EXPECTED = 1001


def racing(method: str = "race", **changes: object) -> Bridge:
    return Bridge(classes=[class_table([0, 1], method=method)], **changes)


def answer(sent: PacketOut, flags: int = SYN | ACK, acknowledged: int = EXPECTED) -> bytes:
    """The server's segment to the address from which a SYN came."""
    (address, port), _ = ends(sent.data)
    segment = dpkt.tcp.TCP(sport=80, dport=port, seq=5000, ack=acknowledged, flags=flags)
    return ip4(6, segment, SERVER, address)


def attempts(bridge: Bridge) -> list[Rule]:
    return [rule for rule in bridge.rules.values() if rule.cookie == COOKIE | ATTEMPT]


def begin(bridge: Bridge, port: int = 40000, target: str = SERVER) -> dict[int, PacketOut]:
    """Open a connection; return the SYNs by port of the switch."""
    return {sent.ports[0]: sent for sent in bridge.receive(INSIDE, tcp(port, target=target))}


def test_a_syn_goes_out_by_all_uplinks_and_the_first_answer_wins() -> None:
    """[ofrp] §3.2; the losers are reset, and retransmitted answers of theirs as well."""
    bridge = racing()
    syns = begin(bridge)
    assert set(syns) == {DSL, LTE}
    assert [rule.lease for rule in attempts(bridge)] == [RACE_TIMEOUT] * 2
    assert bridge.uplinks() == []
    bridge.now += 0.02
    (passed,) = bridge.receive(LTE, answer(syns[LTE]))
    assert (passed.ports, passed.in_port) == ((Reserved.TABLE,), LTE)
    assert bridge.uplinks() == [1]
    # The winner's rule has replaced that of its attempt.
    (left,) = attempts(bridge)
    assert left.match.in_port == DSL
    assert any((flow_of(rule.cookie) or (0, 0))[1] == IN for rule in bridge.rules.values())
    for _ in range(2):
        bridge.now += 0.02
        (reset,) = bridge.receive(DSL, answer(syns[DSL]))
        segment = parse(reset.data)
        assert segment is not None
        assert (reset.ports, segment.tcp_flags, segment.sequence) == ((DSL,), RST, EXPECTED)
    assert bridge.balancer.reasons["race_lost"] == 2


def test_ports_of_a_race_are_given_back() -> None:
    bridge = racing()
    syns = begin(bridge)
    bridge.receive(LTE, answer(syns[LTE]))
    ports = bridge.balancer.table._by_port
    assert len(ports) == 2
    bridge.wait(RACE_TIMEOUT + 1)
    assert len(bridge.balancer.races) == 0
    assert [key[0] for key in ports] == [1]
    (number,) = bridge.balancer.table.flows
    bridge.balancer.handle_release(bridge.now, number, is_reset=True)
    assert ports == {}


def test_a_connection_that_is_over_is_told_so_beside_its_race() -> None:
    bridge = racing()
    syns = begin(bridge)
    bridge.receive(LTE, answer(syns[LTE]))
    (number,) = bridge.balancer.table.flows
    bridge.balancer.handle_release(bridge.now, number, is_reset=True)
    bridge.drain()
    # A loser's late answer does not open it again.
    (reset,) = bridge.receive(DSL, answer(syns[DSL]))
    assert (reset.ports, bridge.uplinks()) == ((DSL,), [])
    (told,) = bridge.receive(INSIDE, tcp(40000, flags=ACK))
    segment = parse(told.data)
    assert segment is not None
    assert (told.ports, segment.tcp_flags) == ((INSIDE,), RST)


def test_a_winners_answer_that_comes_twice_passes_twice() -> None:
    """A network may duplicate packets, and the flow's rules come after the second one."""
    bridge = racing()
    syns = begin(bridge)
    for _ in range(2):
        (passed,) = bridge.receive(LTE, answer(syns[LTE]))
        assert (passed.ports, passed.in_port) == ((Reserved.TABLE,), LTE)
    assert bridge.uplinks() == [1]


def test_only_the_last_refusal_wins() -> None:
    bridge = racing()
    syns = begin(bridge)
    assert bridge.receive(DSL, answer(syns[DSL], RST | ACK)) == []
    (passed,) = bridge.receive(LTE, answer(syns[LTE], RST | ACK))
    assert passed.ports == (Reserved.TABLE,)
    assert bridge.balancer.reasons["race_refused"] == 1


def test_an_answer_to_another_syn_wins_nothing() -> None:
    bridge = racing()
    syns = begin(bridge)
    (reset,) = bridge.receive(DSL, answer(syns[DSL], acknowledged=EXPECTED + 7))
    assert reset.ports == (DSL,)
    assert bridge.uplinks() == []


def test_a_repeated_syn_goes_to_all_that_have_not_refused() -> None:
    bridge = racing()
    syns = begin(bridge)
    bridge.receive(DSL, answer(syns[DSL], RST | ACK))
    bridge.now += 1.0
    (again,) = bridge.receive(INSIDE, tcp(40000))
    assert again.ports == (LTE,)
    assert ends(again.data) == ends(syns[LTE].data)
    # An uplink that dies meanwhile is no longer waited for, and the SYN after that finds none left.
    bridge.set(2, classes=[class_table([0, 1], method="race")], lte={"accepts_new": False})
    bridge.now += 2.0
    (told,) = bridge.receive(INSIDE, tcp(40000))
    segment = parse(told.data)
    assert told.ports == (INSIDE,)
    assert segment is not None
    assert segment.tcp_flags == RST | ACK


def test_rules_of_attempts_belong_to_no_uplinks_traffic_and_stand_for_no_other_rule() -> None:
    bridge = racing()
    begin(bridge)
    received = bridge.balancer.counts[0].rx.packets
    (one, *_) = (rule for rule in bridge.rules.values() if rule.cookie == COOKIE)
    bridge.rules.pop(one.key)
    bridge.now += 1.5
    bridge.balancer.handle_timeout(bridge.now)
    told = tuple(RuleCounters(rule.cookie, 5, 570) for rule in bridge.rules.values())
    bridge.balancer.handle(bridge.now, RuleCountersReply(told))
    bridge.drain()
    assert bridge.balancer.counts[0].rx.packets == received
    assert bridge.rules[one.key] == one


def test_a_new_controller_leaves_rules_of_attempts_and_of_others() -> None:
    """Late answers are to be reset, and rules that are not ours are not ours to delete."""
    before = racing()
    begin(before)
    foreign = Rule(5, 7, Match(in_port=3), (), cookie=0x77)
    rules = [*before.rules.values(), foreign]
    after = racing()
    after.rules = {rule.key: rule for rule in rules}
    after.connect(*(FlowStats(rule, 0, 0) for rule in rules))
    assert attempts(after) == attempts(before)
    assert after.rules[foreign.key] == foreign


def test_what_is_known_is_not_raced_until_it_is_silent() -> None:
    bridge = racing()
    syns = begin(bridge)
    for port, wait in ((LTE, 0.02), (DSL, 0.03)):
        bridge.now += wait
        bridge.receive(port, answer(syns[port]))
    (sent,) = bridge.receive(INSIDE, tcp(40001))
    assert sent.ports == (LTE,)
    assert next(reversed(bridge.balancer.table.flows.values())).choice == "remembered"
    bridge.now += 1.0
    again = bridge.receive(INSIDE, tcp(40001))
    assert {each.ports[0] for each in again} == {DSL, LTE}
    assert bridge.balancer.reasons["path_silent"] == 1


def test_a_fast_uplink_that_is_silent_is_not_the_only_one_worth_while() -> None:
    bridge = racing("fastest")
    loads = [
        {"id": number, "capacity": rate, "spare": rate, "busy": 0, "loss": 0}
        for number, rate in enumerate((10_000, 500))
    ]
    bridge.balancer.handle_forecasts(loads)
    assert set(begin(bridge)) == {DSL}
    bridge.now += 1.0
    syns = begin(bridge)
    assert set(syns) == {DSL, LTE}
    assert set(begin(bridge, 40001)) == {LTE}
    bridge.now += 0.02
    bridge.receive(DSL, answer(syns[DSL]))
    assert set(begin(bridge, 40002)) == {DSL}


def test_an_uplink_in_another_epoch_is_unknown() -> None:
    bridge = racing()
    syns = begin(bridge)
    for port in (DSL, LTE):
        bridge.receive(port, answer(syns[port]))
    bridge.set(2, classes=[class_table([0, 1], method="race")], dsl={"epoch": 2})
    assert len(bridge.receive(INSIDE, tcp(40001))) == 2


def test_a_late_answer_of_a_forgotten_race_is_reset() -> None:
    """A controller that was killed has left the rules of its attempts."""
    bridge = racing()
    syns = begin(bridge)
    after = racing()
    (reset,) = after.receive(DSL, answer(syns[DSL]))
    assert reset.ports == (DSL,)


@pytest.mark.parametrize("target", ["10.1.2.3", "192.168.1.1", "100.100.0.1"])
def test_private_destinations_are_not_raced(target: str) -> None:
    assert len(begin(racing(), target=target)) == 1


def test_races_have_a_budget() -> None:
    bridge = racing(race={"per_prefix": 2})
    for port in range(40000, 40004):
        begin(bridge, port)
    assert (bridge.balancer.reasons["race_begun"], bridge.balancer.reasons["race_over_rate"]) == (2, 2)


def test_fastest_waits_for_the_uplink_that_promises_more() -> None:
    bridge = racing("fastest")
    loads = [{"id": number, "capacity": 250, "spare": 250, "busy": 0, "loss": 0} for number in (0, 1)]
    bridge.balancer.handle_forecasts(loads)
    first, second = begin(bridge, 40000), begin(bridge, 40001)
    bridge.now += 0.02
    bridge.receive(DSL, answer(first[DSL]))
    # The first has a share of that uplink now; the second waits for the other one.
    (reset,) = bridge.receive(DSL, answer(second[DSL]))
    assert reset.ports == (DSL,)
    bridge.now += 0.03
    bridge.receive(LTE, answer(second[LTE]))
    assert bridge.uplinks() == [0, 1]


def test_equal_uplinks_take_turns() -> None:
    bridge = racing("fastest", race={"explore_one_in": 0})
    loads = [{"id": number, "capacity": 2500, "spare": 2500, "busy": 0, "loss": 0} for number in (0, 1)]
    bridge.balancer.handle_forecasts(loads)
    syns = begin(bridge)
    bridge.now += 0.02
    for port in (DSL, LTE):
        bridge.receive(port, answer(syns[port]))
    taken: list[int] = []
    for port in range(40001, 40005):
        taken += begin(bridge, port)
        # The flows before count no more.
        for _ in range(4):
            bridge.balancer.handle_forecasts(loads)
    assert taken == [LTE, DSL, LTE, DSL]


def test_the_cache_has_a_bound() -> None:
    cache = PathCache(Counter())
    for number in range(MAX_NETWORKS + 10):
        cache.note_rtt(1.0, ip_address(0x50000000 + 256 * number), 0, 20_000)
    told = cache.changes(1.0, all_of_it=False)
    assert sum(not each["paths"] for each in told) == 10
    again = PathCache(Counter())
    again.restore(1.0, [each for each in told if each["paths"]])
    assert again.fresh_rtt(1.0, ip_address("80.0.255.9"), 0) == 20_000


def test_forecasts_are_those_of_the_daemon() -> None:
    """Worked example of docs/race.md: 20 Mbit/s at 20 ms, idle, with a download, and with 3 % of loss."""
    idle, busy = Forecast(2500, 2500), Forecast(2500, 0, busy=1)
    assert idle.score(20_000) == 160_000 * 520_000
    assert busy.score(20_000) == 320_000 * 1_040_000
    # 516 kB/s.
    long, short = 120_000 + 1_000_000_000 // 516, 120_000 + 100_000_000 // 516
    assert Forecast(2500, 2500, loss=30_000).score(20_000) == pytest.approx(long * short, rel=0.01)

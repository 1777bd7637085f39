"""Hosts by port: the index against a plain search; and many that are silent at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.plan.plan import Host
from braid_sdn.fabric.view.hosts import (
    FIRST_LIFETIME,
    FLAPPING_WINDOW,
    HOST_LIFETIME,
    MAX_ADDRESSES_PER_HOST,
    MAX_MOVES,
    MAX_PROBES_AT_ONCE,
    Hosts,
)

from .virtual import mac

macs = st.integers(1, 6).map(mac)
ports = st.builds(PortId, st.integers(1, 2), st.integers(1, 3))
happenings = st.one_of(
    st.tuples(st.just("see"), macs, ports),
    st.tuples(st.just("adopt"), macs, ports),
    st.tuples(st.just("addressed"), macs, st.sampled_from(["10.0.0.1", "10.0.0.2"])),
    st.tuples(st.just("lose"), ports),
    st.tuples(st.just("forget"), macs),
    st.tuples(st.just("expire")),
)


@given(st.lists(happenings, max_size=40))
def test_who_is_at_a_port_is_known_whatever_happens(story: list[tuple[str, ...]]) -> None:
    hosts = Hosts()
    for number, (what, *words) in enumerate(story):
        before, changes = {mac: host.port for mac, host in hosts.known.items()}, hosts.changes
        match what, words:
            case "see", [one, port]:
                hosts.see(100.0 * number, one, port)  # type: ignore[arg-type]
            case "adopt", [one, port]:
                hosts.adopt(100.0 * number, [Host(one, port)])  # type: ignore[arg-type]
            case "addressed", [one, address]:
                hosts.learn_address(100.0 * number, one, address)
            case "forget", [one]:
                hosts.forget(one)
            case "expire", []:
                hosts.expire(100.0 * number, (), ())
            case "lose", [port]:
                hosts.lose_port(port)  # type: ignore[arg-type]
        for place in (PortId(switch, number) for switch in (1, 2) for number in (1, 2, 3)):
            assert hosts.at(place) == [host for _, host in sorted(hosts.known.items()) if host.port == place]
        moved = {mac: host.port for mac, host in hosts.known.items()} != before
        assert (hosts.changes > changes) == moved


def test_thousands_of_silent_hosts_are_all_asked_before_they_would_be_forgotten() -> None:
    hosts = Hosts()
    for number in range(5000):
        hosts.see(0.0, mac(number), PortId(number // 100, number % 100 + 1))
        hosts.learn_address(0.0, mac(number), f"10.0.{number // 250}.{number % 250}")
    now = 0.0
    while (due := hosts.poll_timeout()) is not None and due < 100.0:
        now = due
        hosts.expire(now, (), ())
        asked = hosts.due_probes(now)
        assert len(asked) <= MAX_PROBES_AT_ONCE
        for host in asked:
            hosts.see(now, host.mac, host.port)
    assert len(hosts.known) == 5000
    assert now > FIRST_LIFETIME


PLACES = [PortId(1, 1), PortId(2, 1)]


def named(hosts: Hosts, now: float) -> list[tuple[str, str]]:
    """The codes and the subjects of what is wrong with hosts."""
    return [(each.code, each.subject) for each in hosts.problems(now, str)]


def test_a_host_that_is_here_and_there_is_named_and_followed_again_once_that_is_over() -> None:
    hosts, now = Hosts(), 0.0
    hosts.see(now, mac(1), PLACES[0])
    for number in range(1, MAX_MOVES + 1):
        now = 0.1 * number
        assert hosts.see(now, mac(1), PLACES[number % 2])
    assert named(hosts, now) == []
    stays, other = PLACES[MAX_MOVES % 2], PLACES[1 - MAX_MOVES % 2]
    assert not hosts.see(now + 0.1, mac(1), other)
    assert named(hosts, now + 0.1) == [("host-flapping", mac(1))]
    assert hosts.at(stays) == [hosts.known[mac(1)]]
    assert hosts.at(other) == []
    now += 0.1 + FLAPPING_WINDOW
    assert named(hosts, now) == []
    assert hosts.see(now, mac(1), other)
    assert hosts.known[mac(1)].port == other


def test_the_oldest_of_many_addresses_of_a_host_gives_way() -> None:
    hosts = Hosts()
    hosts.see(0.0, mac(1), PLACES[0])
    hosts.see(0.0, mac(2), PLACES[0])
    hosts.learn_address(0.0, mac(2), "10.0.9.9")
    for number in range(MAX_ADDRESSES_PER_HOST + 1):
        hosts.learn_address(0.0, mac(1), f"10.0.0.{number}")
    assert hosts.known[mac(1)].addresses == {f"10.0.0.{number}" for number in range(1, MAX_ADDRESSES_PER_HOST + 1)}
    assert hosts.by_address("10.0.0.0") is None
    assert hosts.by_address("10.0.9.9") == hosts.known[mac(2)]


def test_a_host_that_moves_keeps_its_addresses_within_its_tenant_alone() -> None:
    hosts = Hosts(tenant_of=lambda port, _: port.switch)
    hosts.see(0.0, mac(1), PortId(1, 1))
    hosts.learn_address(0.0, mac(1), "10.0.0.1")
    assert hosts.see(1.0, mac(1), PortId(1, 2))
    assert hosts.by_address("10.0.0.1", 1) == hosts.known[mac(1)]
    assert hosts.see(2.0, mac(1), PortId(2, 1))
    assert (hosts.known[mac(1)].tenant, hosts.known[mac(1)].addresses) == (2, frozenset())
    assert hosts.by_address("10.0.0.1", 1) is None


def test_a_host_of_the_configuration_is_led_to_its_place_once_and_ages_when_it_is_none_any_more() -> None:
    hosts = Hosts()
    hosts.see(0.0, mac(1), PLACES[0])
    static = [Host(mac(1), PLACES[1], frozenset({"10.0.0.1"}))]
    assert hosts.set_static(1.0, static)
    assert (hosts.at(PLACES[0]), hosts.at(PLACES[1])) == ([], [hosts.known[mac(1)]])
    assert not hosts.set_static(2.0, static)
    hosts.expire(1000.0, (), ())
    assert hosts.by_address("10.0.0.1") == hosts.known[mac(1)]
    hosts.set_static(1000.0, [])
    hosts.expire(1001.0, (), ())
    assert mac(1) in hosts.known
    hosts.expire(1000.0 + HOST_LIFETIME, (), ())
    assert not hosts.known

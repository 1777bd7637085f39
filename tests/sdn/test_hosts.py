"""Hosts by port: the index against a plain search; and many that are silent at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.plan.plan import Host
from braid_sdn.fabric.view.hosts import FIRST_LIFETIME, MAX_PROBES_AT_ONCE, Hosts

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

"""Hosts by port: the index against a plain search."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from braid_sdn.fabric.model import PortId
from braid_sdn.fabric.plan.plan import Host
from braid_sdn.fabric.view.hosts import Hosts

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

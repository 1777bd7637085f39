"""The fake switch's tables: the rule that a frame matches, and no other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid_lab.fabric.classifier import Classifier, header_fields
from braid_lab.packets.codec import Flag, FragmentInfo, Packet, Raw, Tcp, Udp, encode
from braid_sdn.fabric.monitor.probe import mac_bytes, tagged
from braid_sdn.openflow.messages import TAGGED, UNTAGGED, Match, Rule

from .virtual import frame, mac, solicitation


def ipv4(target: str, body: Tcp | Udp | Raw, **more: Any) -> bytes:
    return frame(mac(1), mac(2), encode(Packet("10.0.0.1", target, body, **more)))


def tcp(source: int, target: int) -> Tcp:
    return Tcp(source, target, Flag.ACK)


TCP = ipv4("10.0.1.2", tcp(1024, 80))
UDP = ipv4("10.0.1.2", Udp(1024, 80))
IPV6 = solicitation(mac(1), "::2", "::1")
LATER = ipv4("10.0.1.2", Raw(6, b"\x00\x01\x00\x50" + bytes(20)), piece=FragmentInfo(40, more=False))


@pytest.mark.parametrize(
    ("match", "matching", "others"),
    [
        (Match(vlan=UNTAGGED), [TCP], [tagged(TCP, 7)]),
        (Match(vlan=TAGGED), [tagged(TCP, 7), tagged(TCP, 0)], [TCP]),
        (Match(vlan=(8, 0xFF8)), [tagged(TCP, 8), tagged(TCP, 15)], [TCP, tagged(TCP, 7), tagged(TCP, 16)]),
        (Match(vlan=(0, 0xFF8)), [tagged(TCP, 0), tagged(TCP, 7)], [TCP, tagged(TCP, 8)]),
        (Match(vlan=0), [tagged(TCP, 0)], [TCP, tagged(TCP, 7)]),
        (Match(vlan_pcp=0), [tagged(TCP, 7)], [TCP]),
        (Match(eth_type=0x0800), [TCP, tagged(UDP, 7)], [IPV6]),
        (
            Match(eth_dst=mac(2), eth_src=mac(1)),
            [TCP],
            [TCP.replace(mac_bytes(mac(each)), mac_bytes(mac(3))) for each in (1, 2)],
        ),
        (Match(eth_dst="01:00:00:00:00:00", eth_dst_mask="01:00:00:00:00:00"), [b"\x33" + TCP[1:]], [TCP]),
        (Match(ipv4_dst="10.0.0.0/255.255.254.0"), [TCP, UDP], [ipv4("10.0.2.2", tcp(1, 2)), IPV6]),
        (Match(ipv6_dst="::1"), [IPV6], [TCP, solicitation(mac(1), "::2", "::3")]),
        (Match(icmpv6_type=135), [IPV6], [TCP]),
        (Match(tcp_dst=80), [TCP], [UDP, ipv4("10.0.1.2", tcp(80, 81))]),
        (Match(udp_src=(1024, 0xFC00)), [UDP], [TCP, ipv4("10.0.1.2", Udp(2048, 80))]),
        # A later fragment has no ports: Open vSwitch has zeros there.
        (Match(tcp_dst=0), [LATER], [TCP]),
    ],
)
def test_a_match_takes_these_frames_and_no_others(match: Match, matching: list[bytes], others: list[bytes]) -> None:
    table, rule = Classifier(), Rule(0, 1, match)
    table.add(rule)
    for each in matching:
        assert table.find(header_fields(1, 0, each)) is rule
    for each in others:
        assert table.find(header_fields(1, 0, each)) is None
    table.remove(rule.key)
    assert all(table.find(header_fields(1, 0, each)) is None for each in matching)


def test_a_match_that_the_fake_switch_does_not_know_is_an_error() -> None:
    with pytest.raises(ValueError, match="arp_op"):
        Classifier().add(Rule(0, 1, Match(arp_op=1)))


small = st.one_of(st.none(), st.integers(0, 2))
matches = st.builds(
    Match,
    in_port=small,
    metadata=small,
    vlan=st.sampled_from([None, TAGGED, UNTAGGED, 1, 2]),
    tcp_dst=st.one_of(small, st.sampled_from([(0, 2), (2, 2), (0, 1)])),
)
rules = st.builds(Rule, st.just(0), st.integers(0, 9), matches)


@given(st.lists(st.tuples(st.booleans(), rules), max_size=30), small, small, st.integers(0, 2), st.integers(0, 3))
def test_the_highest_priority_counts_whatever_was_added_and_removed(
    changes: list[tuple[bool, Rule]], in_port: int | None, metadata: int | None, vlan: int, port: int
) -> None:
    table, known = Classifier(), dict[object, Rule]()
    for adds, rule in changes:
        if adds:
            table.add(rule)
            known[rule.key] = rule
        elif rule.key in known:
            table.remove(rule.key)
            del known[rule.key]
    sent = ipv4("10.0.1.2", tcp(1024, port))
    header = header_fields(in_port or 0, metadata or 0, tagged(sent, vlan) if vlan else sent)

    def alone(rule: Rule) -> bool:
        one = Classifier()
        one.add(rule)
        return one.find(header) is rule

    found = table.find(header)
    best = max((rule.priority for rule in known.values() if alone(rule)), default=None)
    assert (found and found.priority) == best
    assert found is None or alone(found)

"""The fake switch's tables: the rule that a frame matches, and no other."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid_lab.fabric.classifier import Classifier, header_fields
from braid_sdn.fabric.monitor.probe import tagged
from braid_sdn.openflow.messages import TAGGED, UNTAGGED, Match, Rule

from .virtual import mac


def ipv4(source: str, target: str, proto: int, *ports: int, fragment: int = 0) -> bytes:
    addresses = bytes(int(part) for part in f"{source}.{target}".split("."))
    header = struct.pack("!BBHHHBBH", 0x45, 0, 44, 1, fragment, 64, proto, 0) + addresses
    return ends() + b"\x08\x00" + header + struct.pack("!HH", *ports) + bytes(20)


def ends(target: int = 2, source: int = 1) -> bytes:
    return bytes.fromhex((mac(target) + mac(source)).replace(":", ""))


TCP = ipv4("10.0.0.1", "10.0.1.2", 6, 1024, 80)
UDP = ipv4("10.0.0.1", "10.0.1.2", 17, 1024, 80)
IPV6 = ends() + b"\x86\xdd" + struct.pack("!IHBB", 6 << 28, 24, 58, 255) + bytes(31) + b"\x01" + b"\x87" + bytes(23)


@pytest.mark.parametrize(
    ("match", "matching", "others"),
    [
        (Match(vlan=UNTAGGED), [TCP], [tagged(TCP, 7)]),
        (Match(vlan=TAGGED), [tagged(TCP, 7), tagged(TCP, 0)], [TCP]),
        (Match(vlan=0), [tagged(TCP, 0)], [TCP, tagged(TCP, 7)]),
        (Match(vlan_pcp=0), [tagged(TCP, 7)], [TCP]),
        (Match(eth_type=0x0800), [TCP, tagged(UDP, 7)], [IPV6]),
        (Match(eth_dst=mac(2), eth_src=mac(1)), [TCP], [ends(3) + TCP[12:], ends(2, 3) + TCP[12:]]),
        (Match(eth_dst="01:00:00:00:00:00", eth_dst_mask="01:00:00:00:00:00"), [b"\x33" + TCP[1:]], [TCP]),
        (Match(ipv4_dst="10.0.0.0/255.255.254.0"), [TCP, UDP], [ipv4("10.0.0.1", "10.0.2.2", 6, 1, 2), IPV6]),
        (Match(ipv6_dst="::1"), [IPV6], [TCP, IPV6[:53] + b"\x02" + IPV6[54:]]),
        (Match(icmpv6_type=135), [IPV6], [TCP]),
        (Match(tcp_dst=80), [TCP], [UDP, ipv4("10.0.0.1", "10.0.1.2", 6, 80, 81)]),
        (Match(udp_src=(1024, 0xFC00)), [UDP], [TCP, ipv4("10.0.0.1", "10.0.1.2", 17, 2048, 80)]),
        # A later fragment has no ports: Open vSwitch has zeros there.
        (Match(tcp_dst=0), [ipv4("10.0.0.1", "10.0.1.2", 6, 1, 80, fragment=5)], [TCP]),
    ],
)
def test_a_match_takes_these_frames_and_no_others(match: Match, matching: list[bytes], others: list[bytes]) -> None:
    table, rule = Classifier(), Rule(0, 1, match)
    table.add(rule)
    for frame in matching:
        assert table.find(header_fields(1, 0, frame)) is rule
    for frame in others:
        assert table.find(header_fields(1, 0, frame)) is None
    table.remove(rule.key)
    assert all(table.find(header_fields(1, 0, frame)) is None for frame in matching)


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
    frame = ipv4("10.0.0.1", "10.0.1.2", 6, 1024, port)
    header = header_fields(in_port or 0, metadata or 0, tagged(frame, vlan) if vlan else frame)

    def alone(rule: Rule) -> bool:
        one = Classifier()
        one.add(rule)
        return one.find(header) is rule

    found = table.find(header)
    best = max((rule.priority for rule in known.values() if alone(rule)), default=None)
    assert (found and found.priority) == best
    assert found is None or alone(found)

"""Sticky clients of the host's controller."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Any

import pytest

from braid_sdn.host.packets import ACK, SYN
from braid_sdn.host.sticky import (
    FTP_DATA_PORT,
    FTP_PORTS,
    FTP_SECONDS,
    MAX_EMBRYOS,
    MAX_STICKY,
    SITE_BITS,
    StickyClients,
    site_key,
)

from .test_host_balancer import INSIDE, LTE, Bridge, class_table, name, tcp

CONSTANTS = Path(__file__).parents[2] / "crates/braid-balance/bpf/constants.h"
HERE, THERE, ELSEWHERE = "198.51.100.1", "198.51.100.2", "203.0.113.1"


def sticky_bridge(**changes: Any) -> Bridge:
    return Bridge(classes=[class_table([0, 1], sticky=600)], **changes)


def opened(bridge: Bridge, port: int, target: str, to: int = 80, source: str = "192.0.0.8") -> int:
    """Open a connection; return its uplink."""
    bridge.receive(INSIDE, tcp(port, target=target, to=to, source=source))
    return next(reversed(bridge.balancer.table.flows.values())).uplink


def test_the_numbers_are_those_of_the_programs() -> None:
    """One configuration means the same on both datapaths."""
    text = CONSTANTS.read_text()

    def constant(word: str) -> int:
        found = re.search(rf"#define {word}\s+(\d+)", text)
        assert found is not None, word
        return int(found[1])

    assert {4: constant("SITE_BITS_V4"), 6: constant("SITE_BITS_V6")} == SITE_BITS
    assert (constant("MAX_STICKY"), constant("MAX_STICKY_EMBRYOS")) == (MAX_STICKY, MAX_EMBRYOS)
    assert (constant("FTP_PORT"), constant("FTPS_PORT")) == FTP_PORTS
    assert (constant("FTP_SECONDS"), constant("FTP_DATA_PORT")) == (FTP_SECONDS, FTP_DATA_PORT)


def test_a_client_keeps_its_uplink_for_a_site_for_a_time_since_its_last_new_flow() -> None:
    bridge = sticky_bridge()
    assert [opened(bridge, 40000 + at, target) for at, target in enumerate((HERE, THERE, HERE))] == [0, 0, 0]
    assert opened(bridge, 40010, ELSEWHERE) == 1
    # Another client has a choice of its own.
    assert opened(bridge, 40011, HERE, source="192.168.8.101") == 0
    assert opened(bridge, 40012, HERE, source="192.168.8.102") == 1
    bridge.now += 599
    assert opened(bridge, 40020, HERE) == 0
    bridge.now += 599
    assert opened(bridge, 40021, HERE) == 0
    choices = {flow.inner[1]: flow.choice for flow in bridge.balancer.table.flows.values()}
    assert (choices[40010], choices[40021]) == ("next_slot", "sticky")
    bridge.now += 601
    assert [opened(bridge, 40030 + at, HERE) for at in range(2)] == [0, 0]
    assert bridge.balancer.table.flows[max(bridge.balancer.table.flows) - 1].choice == "next_slot"


def test_an_uplink_that_takes_no_flows_is_left() -> None:
    bridge = sticky_bridge()
    assert opened(bridge, 40000, HERE) == 0
    bridge.count(tx=1, rx=1)
    bridge.set(2, classes=[class_table([1], sticky=600)], dsl={"accepts_new": False})
    assert opened(bridge, 40001, HERE) == 1
    bridge.count(tx=1, rx=1)
    bridge.set(3, classes=[class_table([0, 1], sticky=600)])
    # The answered flow there has replaced the choice.
    assert opened(bridge, 40002, HERE) == 1


def test_names_make_a_site_of_addresses() -> None:
    bridge = sticky_bridge()
    bridge.balancer.handle_names(bridge.now, 1, [name(HERE, 0), name(ELSEWHERE, 0)], [])
    assert (opened(bridge, 40000, HERE), opened(bridge, 40001, ELSEWHERE)) == (0, 0)
    assert opened(bridge, 40002, THERE) == 1


def test_data_of_ftp_follows_its_control_connection() -> None:
    bridge = Bridge(classes=[class_table([0, 1])])
    assert opened(bridge, 40000, HERE, to=80) == 0
    assert opened(bridge, 40001, HERE, to=21) == 1
    assert [opened(bridge, 40010 + at, HERE, to=50000) for at in range(3)] == [1, 1, 1]
    assert [opened(bridge, 40020 + at, HERE, to=443) for at in range(2)] == [0, 1]


def test_connections_that_race_at_once_stay_together() -> None:
    bridge = Bridge(classes=[class_table([0, 1], method="race", sticky=600)])
    for port in (40000, 40001):
        bridge.receive(INSIDE, tcp(port))
    races = {race.inner[1]: race for race in bridge.balancer.races}

    def answer(port: int, uplink: int) -> None:
        outer, number = races[port].attempts[uplink].outer
        frame = tcp(80, SYN | ACK, target=str(outer), to=number, source=HERE)
        # It acknowledges the SYN, whose number is 1000.
        frame = frame[:42] + (1001).to_bytes(4, "big") + frame[46:]
        bridge.receive(uplink + LTE - 1, frame)

    answer(40000, 1)
    answer(40001, 0)
    assert bridge.uplinks() == [1]
    answer(40001, 1)
    assert bridge.uplinks() == [1, 1]


def test_the_daemon_is_told_and_a_new_controller_takes_it_in() -> None:
    bridge = sticky_bridge()
    opened(bridge, 40000, HERE)
    bridge.now += 2
    told = bridge.balancer.sticky.changes(bridge.now, all_of_it=False)
    entry = {"client": "192.0.0.8", "site": "198.51.100.0", "class": 0, "uplink": 0, "age_ms": 2000}
    assert told == [entry]
    assert bridge.balancer.sticky.changes(bridge.now, all_of_it=False) == []
    assert bridge.balancer.sticky.changes(bridge.now, all_of_it=True) == [entry]
    other = sticky_bridge()
    other.balancer.sticky.restore(other.now, [{**entry, "uplink": 1}])
    assert [opened(other, 40000 + at, HERE) for at in range(2)] == [1, 1]
    other.balancer.sticky.forget([entry])
    assert opened(other, 40010, HERE) == 0


@pytest.mark.parametrize("answered", [False, True])
def test_a_flood_evicts_no_choice_that_was_answered(answered: bool) -> None:
    sticky, remote = StickyClients(), ipaddress.ip_address(HERE)
    first = site_key(ipaddress.ip_address("192.168.8.1"), remote, 0, 0)
    sticky.note(0.0, first, 1)
    if answered:
        sticky.keep(0.0, first, 1, 600, lambda _: True)
    for number in range(MAX_EMBRYOS):
        sticky.note(1.0, site_key(ipaddress.ip_address(0x0A000000 + number), remote, 0, 0), 0)
    assert sticky.find(1.0, first, 600, lambda _: True) == (1 if answered else None)


@pytest.mark.parametrize("answers", [0, 1])
def test_a_flow_that_is_answered_makes_its_choice_last(answers: int) -> None:
    bridge = sticky_bridge()
    opened(bridge, 40000, HERE)
    bridge.count(tx=1, rx=answers)
    key = site_key(ipaddress.ip_address("192.0.0.8"), ipaddress.ip_address(HERE), 0, 0)
    bridge.balancer.sticky.forget_embryo(key)
    assert opened(bridge, 40001, HERE) == (0 if answers else 1)

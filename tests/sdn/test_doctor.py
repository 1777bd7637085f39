"""Findings of the fabric's doctor in configurations of bridges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from braid_sdn.fabric.doctor.findings import Finding, Level, of_bridges, of_controller
from braid_sdn.fabric.doctor.open_vswitch import Bridge, Connection

TARGET = Connection("tcp:127.0.0.1:6653", connected=True)
GOOD = Bridge("A", "00000000000000a1", True, frozenset({"OpenFlow13"}), (), (TARGET,), {"A-P": 1500, "A-Q": 1500}, {})


def found(*bridges: Bridge, cluster: bool = False) -> list[Finding]:
    return list(of_bridges(bridges, 6653, cluster=cluster))


def test_nothing_is_wrong_with_a_bridge_as_the_documentation_has_it() -> None:
    assert [(each.code, each.level) for each in found(GOOD)] == [("bridge", Level.OK)]
    # Open vSwitch speaks all versions where none is named, and its own port is that of a target without one.
    as_default = replace(GOOD, protocols=frozenset(), controllers=(replace(TARGET, target="tcp:127.0.0.1"),))
    assert [each.code for each in found(as_default)] == ["bridge"]


AWAY = Connection("tcp:192.0.2.7:6653", connected=True)


@pytest.mark.parametrize(
    ("code", "changed", "level", "fix"),
    [
        ("fail-mode", {"secure": False}, Level.WARN, "ovs-vsctl set-fail-mode A secure"),
        (
            "openflow-version",
            {"protocols": frozenset({"OpenFlow10"})},
            Level.FAIL,
            "ovs-vsctl set bridge A protocols=OpenFlow13",
        ),
        (
            "spanning-tree",
            {"spanning_tree": ("rstp_enable",)},
            Level.WARN,
            "ovs-vsctl set bridge A rstp_enable=false",
        ),
        (
            "not-connected",
            {"controllers": (replace(TARGET, connected=False, error="Connection refused"),)},
            Level.WARN,
            "see that the controller runs and is reached from here",
        ),
        (
            "in-band",
            {"controllers": (AWAY,)},
            Level.WARN,
            "ovs-vsctl set bridge A other-config:disable-in-band=true",
        ),
        (
            "controllers",
            {"controllers": (TARGET, replace(TARGET, target="tcp:127.0.0.1:6633"))},
            Level.WARN,
            "ovs-vsctl set-controller A tcp:127.0.0.1:6653, or have them share [cluster]",
        ),
        (
            "mtu",
            {"mtu": {"A-P": 9000, "A-Q": 1500}},
            Level.WARN,
            "ip link set dev A-Q mtu 9000, or a smaller one at its hosts",
        ),
        ("port-error", {"errors": {"A-P": "could not open network device A-P"}}, Level.FAIL, ""),
    ],
)
def test_what_is_wrong_is_named_with_what_mends_it(
    code: str, changed: dict[str, Any], level: Level, fix: str
) -> None:
    (one,) = found(replace(GOOD, **changed))
    assert (one.code, one.level, one.fix) == (code, level, fix)
    assert one.text.startswith("A: ")


def test_what_the_controller_says_of_a_connection_is_newer_than_what_the_switch_notes() -> None:
    young = replace(GOOD, controllers=(replace(TARGET, connected=False),))
    assert [each.code for each in found(young)] == ["not-connected"]
    assert [each.code for each in of_bridges([young], 6653, cluster=False, served=[GOOD.datapath_id])] == ["bridge"]


def test_two_bridges_of_one_id_are_both_named() -> None:
    codes = [each.code for each in found(GOOD, replace(GOOD, name="B"))]
    assert codes == ["duplicate-id", "duplicate-id"]
    # Before they are there, all have none.
    young = replace(GOOD, datapath_id="")
    assert [each.code for each in found(young, replace(young, name="B"))] == ["bridge", "bridge"]


def test_controllers_of_one_cluster_and_addresses_of_ones_own_are_nothing_to_warn_of() -> None:
    two = replace(GOOD, controllers=(TARGET, replace(TARGET, target="ssl:[::1]:6653")))
    assert [each.code for each in found(two, cluster=True)] == ["bridge"]
    away = replace(GOOD, controllers=(replace(AWAY, in_band=False),))
    assert [each.code for each in found(away)] == ["bridge"]


@pytest.mark.parametrize("listener", ["ptcp:6657", "ptcp:6653:127.0.0.1", "pssl:", "punix:/run/a.sock"])
def test_a_port_at_which_a_switch_listens_for_tools_is_no_controller(listener: str) -> None:
    passive = Connection(listener, connected=False)
    # Open vSwitch lists a bridge's controllers in any order.
    for both in ((TARGET, passive), (passive, TARGET)):
        assert [each.code for each in found(replace(GOOD, controllers=both))] == ["bridge"]
    # Beside two controllers, one of these is named in what mends it.
    other = replace(TARGET, target="tcp:127.0.0.1:6633")
    (one,) = found(replace(GOOD, controllers=(passive, TARGET, other)))
    assert (one.code, one.text) == ("controllers", "A: has 2 controllers, which undo each other's rules")
    assert one.fix.startswith("ovs-vsctl set-controller A tcp:127.0.0.1:6653,")
    (alone,) = found(replace(GOOD, controllers=(passive,)))
    assert (alone.code, alone.level) == ("other-bridges", Level.OK)


def test_bridges_of_other_controllers_are_left_alone() -> None:
    target = replace(TARGET, target="tcp:127.0.0.1:6633")
    other = replace(GOOD, name="B", datapath_id="00000000000000b1", secure=False, controllers=(target,))
    (one, fine) = found(GOOD, other)
    assert (one.code, one.level) == ("other-bridges", Level.OK)
    assert one.text.endswith("bridge B")
    assert fine.code == "bridge"


def test_a_controller_that_does_not_run_can_where_its_port_is_free() -> None:
    (free,) = of_controller(None, "127.0.0.1:6653", "fabric.sock", "")
    assert free.level is Level.OK
    (taken,) = of_controller(None, "127.0.0.1:6653", "fabric.sock", "Address already in use")
    assert (taken.code, taken.level) == ("port", Level.FAIL)
    assert "sport = :6653" in taken.fix


def test_problems_of_a_controller_are_findings() -> None:
    status = {
        "switches": [{}],
        "health": [{"code": "silent-link", "subject": "A:A-P", "text": "hears nothing any more"}],
    }
    answers, problem = of_controller(status, "127.0.0.1:6653", "fabric.sock", "")
    assert answers.level is Level.OK
    assert (problem.code, problem.level, problem.text) == (
        "silent-link",
        Level.WARN,
        "A:A-P: hears nothing any more",
    )

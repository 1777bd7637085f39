"""What edges are told, and when: the far edge knows a tag before any packet has it."""

from __future__ import annotations

import pytest

from braid_lab.fabric.shapes import two_paths
from braid_sdn.fabric import report
from braid_sdn.fabric.telling import FOLLOWS, KNOWS

from .virtual import Network, frame, mac, ready


def outward(net: Network, edge: str) -> set[int]:
    """The tags that an edge is told to send by."""
    table = report.edge_table(net.controller, edge)
    assert table is not None
    return {tag for each in table["outward"] for tag in each["slots"]}


def inward(net: Network, edge: str) -> set[int]:
    """The tags that an edge is told to take."""
    table = report.edge_table(net.controller, edge)
    assert table is not None
    return {path["tag"] for each in table["inward"] for path in each["paths"]}


def asks(net: Network, edge: str) -> bool:
    """An edge has its table and asks for the next one; whether there is one."""
    return net.controller.handle_edge(net.now, edge, current=True)


def returning(*following: str) -> Network:
    """One of two paths comes back, under new tags, and these edges had asked since it had gone."""
    net = ready(two_paths())
    net.unplug("A", "P")
    net.run(2)
    for edge in following:
        assert not asks(net, edge)
    net.unplug("A", "P", up=True)
    net.run_until(lambda: len(inward(net, "hb")) == 2, within=5)
    return net


def test_edges_are_told_what_lines_carry_where_the_configuration_says_so() -> None:
    net = ready(two_paths(mbit=10))

    def ceilings() -> list[int]:
        table = report.edge_table(net.controller, "ha")
        assert table is not None
        return [each["ceiling_bit_s"] for each in table["outward"]]

    assert ceilings() == [20_000_000]
    net.unplug("A", "P")
    net.run(2)
    assert ceilings() == [10_000_000]


def test_what_ports_say_of_their_speed_is_no_word_on_what_lines_carry() -> None:
    net = ready(two_paths(mbit=10), links=())
    table = report.edge_table(net.controller, "ha")
    assert table is not None
    assert [each["ceiling_bit_s"] for each in table["outward"]] == [0]


def test_nobody_sends_by_new_tags_before_the_far_edge_follows() -> None:
    net = returning("ha", "hb")
    old = outward(net, "ha")
    assert len(old) == 1
    net.run(KNOWS / 5)
    assert outward(net, "ha") == old
    assert not asks(net, "hb")
    # The other direction's far edge is still to follow.
    assert outward(net, "ha") == old
    generation = net.controller.tables.generation
    assert asks(net, "ha")
    assert net.controller.tables.generation > generation
    assert outward(net, "ha") == inward(net, "hb") > old
    assert outward(net, "hb") == inward(net, "ha")
    # Old rules stay until both send so.
    assert not net.controller.changer.idle
    for edge in ("ha", "hb"):
        assert not asks(net, edge)
    net.run(1)
    assert net.controller.changer.idle


def test_an_edge_that_does_not_follow_is_waited_for_with_a_bound() -> None:
    net = returning("ha", "hb")
    assert not asks(net, "hb")
    took = net.run_until(lambda: len(outward(net, "ha")) == 2, within=1)
    assert took == pytest.approx(KNOWS, abs=0.05)


def test_an_edge_that_does_not_follow_is_waited_for_once_however_many_plans_there_are() -> None:
    net = returning("ha", "hb")
    assert not asks(net, "hb")
    began, number = net.now, 100
    while len(outward(net, "hb")) < 2:
        assert net.now - began < 2 * KNOWS
        # Somebody appears, so another plan is made.
        number += 1
        net.send("ha", frame(mac(number), "ff:ff:ff:ff:ff:ff", b"here I am"))
        net.run(KNOWS / 5)
    assert net.now - began >= 0.8 * KNOWS


def test_who_has_not_asked_for_long_is_not_waited_for() -> None:
    assert len(outward(returning(), "ha")) == 2
    net = ready(two_paths())
    for edge in ("ha", "hb"):
        asks(net, edge)
    net.run(FOLLOWS + 1)
    net.unplug("A", "P")
    net.run(2)
    net.unplug("A", "P", up=True)
    net.run_until(lambda: len(inward(net, "hb")) == 2, within=5)
    assert len(outward(net, "ha")) == 2


def test_a_path_that_is_gone_is_left_without_waiting_for_anybody() -> None:
    net = ready(two_paths())
    for edge in ("ha", "hb"):
        asks(net, edge)
    net.run(0.1)
    net.unplug("A", "P")
    assert net.run_until(lambda: len(outward(net, "ha")) == 1, within=1) <= 0.05


def gave_up(net: Network, edge: str) -> list[bool]:
    """Whether an edge is told not to wait for what paths that are gone have not brought."""
    table = report.edge_table(net.controller, edge)
    assert table is not None
    return [each["gave_up"] for each in table["inward"]]


def test_that_a_path_was_given_up_is_told_until_the_far_edge_has_heard_it() -> None:
    net = ready(two_paths())
    for edge in ("ha", "hb"):
        asks(net, edge)
    assert gave_up(net, "hb") == [False]
    net.unplug("A", "P")
    net.run_until(lambda: len(inward(net, "hb")) == 1, within=1)
    assert gave_up(net, "hb") == [True]
    # It is slow to ask, and other plans are made meanwhile.
    plans = len(net.controller.planning)
    net.run_until(lambda: len(net.controller.planning) > plans + 1, within=10)
    assert gave_up(net, "hb") == [True]
    asks(net, "hb")
    plans = len(net.controller.planning)
    net.run_until(lambda: len(net.controller.planning) > plans + 1, within=10)
    assert gave_up(net, "hb") == [False]
    assert gave_up(net, "ha") == [True]

"""The steps of a change, and whom each waits for."""

from __future__ import annotations

from dataclasses import replace

from braid_sdn.fabric.change import BARRIER_PATIENCE, Changer, Step
from braid_sdn.fabric.rules import PATHS
from braid_sdn.openflow.messages import AddRule, Barrier, DeleteRule, Match, Output, Rule

OLD = Rule(PATHS, 10, Match(vlan=7), (Output(1),))
NEW = Rule(PATHS, 10, Match(vlan=8), (Output(2),))


def changing() -> Changer:
    """One switch that has one path's rule and is to have another's; its barrier is answered."""
    changer = Changer(drain=0.5)
    changer.handle_rules(0.0, 1, [OLD])
    changer.want(1.0, {1: {NEW.key: NEW}})
    add, barrier = (message for _, message in changer.poll_messages())
    assert add == AddRule(NEW)
    assert isinstance(barrier, Barrier)
    changer.handle_barrier(1.1, 1, barrier.token)
    assert changer.poll_announce()
    return changer


def at(changer: Changer) -> Step:
    return changer.step


def deletes(changer: Changer) -> list[object]:
    return [message for _, message in changer.poll_messages() if isinstance(message, DeleteRule)]


def test_old_rules_stay_until_all_edges_follow_and_packets_have_left() -> None:
    changer = changing()
    changer.announced(1.1, ["ha", "hb"])
    changer.handle_confirmed(1.2, "ha")
    changer.handle_timeout(2.0)
    assert at(changer) is Step.SWITCH
    changer.handle_confirmed(2.1, "hb")
    assert at(changer) is Step.DRAIN
    changer.handle_timeout(2.5)
    assert deletes(changer) == []
    changer.handle_timeout(2.61)
    assert deletes(changer) == [DeleteRule(OLD.key)]
    assert changer.idle


def test_an_edge_that_does_not_follow_is_waited_for_with_a_bound() -> None:
    changer = changing()
    changer.announced(1.1, ["ha"])
    changer.handle_timeout(1.1 + BARRIER_PATIENCE)
    assert at(changer) is Step.DRAIN
    changer.handle_confirmed(9.0, "ha")
    assert at(changer) is Step.DRAIN


def test_rules_with_a_lease_are_not_looked_after() -> None:
    """They come and go by themselves: one that a switch lists is neither missing nor too much."""
    changer = Changer()
    changer.handle_rules(0.0, 1, [OLD])
    changer.want(0.0, {1: {OLD.key: OLD}})
    assert changer.poll_announce()
    changer.handle_rules(30.0, 1, [OLD, replace(NEW, lease=15)])
    assert changer.idle
    assert not changer.poll_announce()
    assert changer.poll_messages() == []
    assert changer.has == {1: {OLD.key: OLD}}


def test_without_edges_nobody_is_waited_for() -> None:
    changer = changing()
    changer.announced(1.1, [])
    assert at(changer) is Step.DRAIN


def test_edges_are_told_of_a_plan_that_changes_no_rule() -> None:
    changer = Changer()
    changer.handle_rules(0.0, 1, [OLD])
    changer.want(0.0, {1: {OLD.key: OLD}})
    assert changer.idle
    assert changer.poll_announce()
    assert not changer.poll_announce()
    # But not for nothing.
    changer.announced(0.0, ["ha"])
    changer.handle_timeout(5.0)
    assert not changer.poll_announce()
    assert changer.idle


def test_edges_are_waited_for_also_after_a_switch_that_was_not() -> None:
    changer = Changer(drain=0.5)
    changer.handle_rules(0.0, 1, [OLD])
    changer.want(1.0, {1: {NEW.key: NEW}})
    # Its barrier stays unanswered.
    late = 1.0 + BARRIER_PATIENCE
    changer.handle_timeout(late)
    assert changer.slow == {1}
    assert changer.poll_announce()
    assert at(changer) is Step.SWITCH
    changer.announced(late, ["ha"])
    assert at(changer) is Step.SWITCH
    changer.handle_confirmed(late + 0.1, "ha")
    assert at(changer) is Step.DRAIN


def test_a_switch_that_answers_no_barrier_holds_nothing_up_for_ever() -> None:
    changer = Changer(drain=0.5)
    changer.handle_rules(0.0, 1, [OLD])
    changer.want(1.0, {1: {NEW.key: NEW}})
    now = 1.0
    while not changer.idle:
        due = changer.poll_timeout()
        assert due is not None
        assert due > now or changer.step is Step.PREPARE
        now = due
        changer.handle_timeout(now)
    assert now <= 1.0 + 2 * BARRIER_PATIENCE + 0.5
    assert deletes(changer) == [DeleteRule(OLD.key)]

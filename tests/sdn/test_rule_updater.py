"""The steps of a change, and whom each waits for."""

from __future__ import annotations

from dataclasses import replace

from braid_sdn.fabric.switches.rules import PATHS
from braid_sdn.fabric.switches.updater import BARRIER_TIMEOUT, RuleUpdater, Step
from braid_sdn.openflow.messages import AddRule, Barrier, DeleteRule, Match, Output, Rule

OLD = Rule(PATHS, 10, Match(vlan=7), (Output(1),))
NEW = Rule(PATHS, 10, Match(vlan=8), (Output(2),))


def changing() -> RuleUpdater:
    """One switch that has one path's rule and is to have another's; its barrier is answered."""
    updater = RuleUpdater(drain=0.5)
    updater.handle_rules(0.0, 1, [OLD])
    updater.set_target(1.0, {1: {NEW.key: NEW}})
    add, barrier = (message for _, message in updater.poll_messages())
    assert add == AddRule(NEW)
    assert isinstance(barrier, Barrier)
    updater.handle_barrier(1.1, 1, barrier.token)
    assert updater.poll_publish()
    return updater


def at(updater: RuleUpdater) -> Step:
    return updater.step


def deletes(updater: RuleUpdater) -> list[object]:
    return [message for _, message in updater.poll_messages() if isinstance(message, DeleteRule)]


def test_old_rules_stay_until_all_edges_follow_and_packets_have_left() -> None:
    updater = changing()
    updater.handle_published(1.1, ["ha", "hb"])
    updater.handle_confirmed(1.2, "ha")
    updater.handle_timeout(2.0)
    assert at(updater) is Step.SWITCH
    updater.handle_confirmed(2.1, "hb")
    assert at(updater) is Step.DRAIN
    updater.handle_timeout(2.5)
    assert deletes(updater) == []
    updater.handle_timeout(2.61)
    assert deletes(updater) == [DeleteRule(OLD.key)]
    assert updater.idle


def test_an_edge_that_does_not_follow_is_waited_for_with_a_bound() -> None:
    updater = changing()
    updater.handle_published(1.1, ["ha"])
    updater.handle_timeout(1.1 + BARRIER_TIMEOUT)
    assert at(updater) is Step.DRAIN
    updater.handle_confirmed(9.0, "ha")
    assert at(updater) is Step.DRAIN


def test_rules_with_a_lease_are_not_looked_after() -> None:
    """They come and go by themselves: one that a switch lists is neither missing nor too much."""
    updater = RuleUpdater()
    updater.handle_rules(0.0, 1, [OLD])
    updater.set_target(0.0, {1: {OLD.key: OLD}})
    assert updater.poll_publish()
    updater.handle_rules(30.0, 1, [OLD, replace(NEW, lease=15)])
    assert updater.idle
    assert not updater.poll_publish()
    assert updater.poll_messages() == []
    assert updater.installed == {1: {OLD.key: OLD}}


def test_without_edges_nobody_is_waited_for() -> None:
    updater = changing()
    updater.handle_published(1.1, [])
    assert at(updater) is Step.DRAIN


def test_edges_are_told_of_a_plan_that_changes_no_rule() -> None:
    updater = RuleUpdater()
    updater.handle_rules(0.0, 1, [OLD])
    updater.set_target(0.0, {1: {OLD.key: OLD}})
    assert updater.idle
    assert updater.poll_publish()
    assert not updater.poll_publish()
    # But not for nothing.
    updater.handle_published(0.0, ["ha"])
    updater.handle_timeout(5.0)
    assert not updater.poll_publish()
    assert updater.idle


def test_edges_are_waited_for_also_after_a_switch_that_was_not() -> None:
    updater = RuleUpdater(drain=0.5)
    updater.handle_rules(0.0, 1, [OLD])
    updater.set_target(1.0, {1: {NEW.key: NEW}})
    # Its barrier stays unanswered.
    late = 1.0 + BARRIER_TIMEOUT
    updater.handle_timeout(late)
    assert updater.slow == {1}
    assert updater.poll_publish()
    assert at(updater) is Step.SWITCH
    updater.handle_published(late, ["ha"])
    assert at(updater) is Step.SWITCH
    updater.handle_confirmed(late + 0.1, "ha")
    assert at(updater) is Step.DRAIN


def test_a_switch_that_answers_no_barrier_holds_nothing_up_for_ever() -> None:
    updater = RuleUpdater(drain=0.5)
    updater.handle_rules(0.0, 1, [OLD])
    updater.set_target(1.0, {1: {NEW.key: NEW}})
    now = 1.0
    while not updater.idle:
        due = updater.poll_timeout()
        assert due is not None
        assert due > now or updater.step is Step.PREPARE
        now = due
        updater.handle_timeout(now)
    assert now <= 1.0 + 2 * BARRIER_TIMEOUT + 0.5
    assert deletes(updater) == [DeleteRule(OLD.key)]


def test_rules_of_an_order_are_changed_one_rank_after_another() -> None:
    updater = RuleUpdater(rank=lambda switch, _key: switch)
    changed = {switch: Rule(PATHS, 10, Match(vlan=7), (Output(9),)) for switch in (1, 2)}
    for switch in (2, 1):
        updater.handle_rules(0.0, switch, [OLD])
    updater.set_target(1.0, {switch: {rule.key: rule} for switch, rule in changed.items()})
    for switch in (1, 2):
        (at_first, add), (at_last, barrier) = updater.poll_messages()
        assert (at_first, add, at_last) == (switch, AddRule(changed[switch]), switch)
        assert isinstance(barrier, Barrier)
        assert not updater.poll_publish()
        updater.handle_barrier(1.1, switch, barrier.token)
    assert updater.poll_publish()


def test_only_keys_that_were_changed_are_sent() -> None:
    updater = changing()
    updater.handle_published(1.2, [])
    updater.handle_timeout(2.0)
    assert deletes(updater) == [DeleteRule(OLD.key)]
    other = Rule(PATHS, 10, Match(vlan=9), (Output(3),))
    updater.set_target(3.0, {1: {OLD.key: OLD, other.key: other}}, {1: [OLD.key]})
    assert [message for _, message in updater.poll_messages()][:-1] == [AddRule(OLD)]
    assert updater.tags_in_use() == {7, 8}


def test_updates_that_follow_each_other_do_not_prolong_the_wait_for_a_switch_that_is_silent() -> None:
    """Rules that are changed in an order wait for it, and others are not held up for ever."""
    first = Rule(PATHS, 10, Match(vlan=9), (Output(1),))
    updater = RuleUpdater(rank=lambda switch, _: switch)
    for switch in (1, 2):
        updater.handle_rules(0.0, switch, [])
    target = {1: {first.key: first}, 2: {OLD.key: OLD}}
    updater.set_target(0.0, target)
    assert {switch for switch, _ in updater.poll_messages()} == {1}
    now = 0.0
    while now < 2 * BARRIER_TIMEOUT:
        now += BARRIER_TIMEOUT / 4
        other = Rule(PATHS, 10, Match(vlan=100 + int(10 * now)), (Output(3),))
        target[2][other.key] = other
        updater.set_target(now, target, {2: [other.key]})
        due = updater.poll_timeout()
        if due is not None and due <= now:
            updater.handle_timeout(now)
    assert (2, AddRule(OLD)) in updater.poll_messages()
    assert 1 in updater.slow

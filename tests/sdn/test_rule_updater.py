"""The steps of a change, and whom each waits for."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from braid_sdn.fabric.switches import updater as module
from braid_sdn.fabric.switches.rules import DESTINATIONS, PATHS, buckets_of, detour_group, tag_of
from braid_sdn.fabric.switches.updater import (
    BARRIER_TIMEOUT,
    MAX_REFUSED_RETRY,
    MAX_RETIRED,
    MAX_SENT,
    REFUSED_RETRY,
    RuleUpdater,
    Step,
)
from braid_sdn.openflow.messages import (
    MAX_BARRIER_TOKEN,
    AddRule,
    Barrier,
    DeleteGroup,
    DeleteRule,
    Match,
    Output,
    Refused,
    Rule,
    RuleKey,
    SetFailoverGroup,
    ToGroup,
    ToSwitch,
)
from braid_sdn.openflow.wire import HEADER, VERSION, Session

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


def test_a_late_reply_to_a_barrier_of_the_updater_before_is_none_of_this_ones() -> None:
    def waiting(last_barrier: int) -> tuple[RuleUpdater, int]:
        updater = RuleUpdater(drain=0.5, last_barrier=last_barrier)
        updater.handle_rules(0.0, 1, [OLD])
        updater.set_target(1.0, {1: {NEW.key: NEW}})
        _, barrier = (message for _, message in updater.poll_messages())
        assert isinstance(barrier, Barrier)
        return updater, barrier.token

    before, late = waiting(0)
    updater, own = waiting(before.last_barrier)
    updater.handle_barrier(1.1, 1, late)
    assert at(updater) is Step.PREPARE
    updater.handle_barrier(1.2, 1, own)
    assert at(updater) is Step.SWITCH
    # Tokens are half of the transaction ids, and begin anew once all were used.
    assert waiting(MAX_BARRIER_TOKEN)[1] == 1


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


class Ranked:
    """Switches 1 to 4 with rules of two tags, and an update whose next rank waits for the first of them."""

    def __init__(self) -> None:
        #: Ranks by switch and tag.
        self.ranks = {(1, 7): 1}
        self.barriers: dict[int, int] = {}
        self.updater = RuleUpdater(rank=lambda switch, key: self.ranks.get((switch, tag_of(key) or 0), 0))
        self.target: dict[int, dict[RuleKey, Rule]] = {}
        for switch in (1, 2, 3, 4):
            has = [Rule(PATHS, 10, Match(vlan=tag), (Output(1),)) for tag in (7, 8)]
            self.target[switch] = {rule.key: rule for rule in has}
            self.updater.handle_rules(0.0, switch, has)
        self.updater.set_target(0.0, self.target)
        follow(self.updater, 0.0)
        assert self.change((1, 7, 2)) == [(1, 7)]

    def change(self, *rules: tuple[int, int, int]) -> list[tuple[int, int]]:
        """Have switches send a tag out of other ports; return the switches and tags of the rules that are sent."""
        changed: dict[int, list[RuleKey]] = {}
        for switch, tag, port in rules:
            rule = Rule(PATHS, 10, Match(vlan=tag), (Output(port),))
            self.target[switch][rule.key] = rule
            changed.setdefault(switch, []).append(rule.key)
        self.updater.set_target(1.0, self.target, changed)
        return self.sent()

    def sent(self) -> list[tuple[int, int]]:
        """Return the switches and tags of the rules that are sent, and confirm none of them."""
        told = self.updater.poll_messages()
        self.barriers |= {switch: each.token for switch, each in told if isinstance(each, Barrier)}
        return [(switch, tag_of(each.rule.key) or 0) for switch, each in told if isinstance(each, AddRule)]

    def confirm(self, switch: int) -> list[tuple[int, int]]:
        """Have a switch confirm the rules that were sent last; return those that are sent next."""
        self.updater.handle_barrier(1.1, switch, self.barriers[switch])
        return self.sent()


def test_a_rule_that_waits_without_an_order_gets_one_when_its_tree_is_repaired() -> None:
    net = Ranked()
    assert net.change((3, 8, 2)) == []
    net.ranks |= {(2, 8): 1, (3, 8): 2}
    assert net.change((2, 8, 2)) == []
    assert net.confirm(1) == [(2, 8)]
    assert net.confirm(2) == [(3, 8)]


def test_rules_that_wait_stay_in_their_order_when_those_of_another_tag_are_added() -> None:
    net = Ranked()
    net.ranks |= {(2, 8): 1, (3, 8): 2}
    assert net.change((3, 8, 2), (2, 8, 2)) == []
    net.ranks[4, 9] = 3
    assert net.change((4, 9, 2)) == []
    assert net.confirm(1) == [(2, 8)]
    assert net.confirm(2) == [(3, 8)]
    assert net.confirm(3) == [(4, 9)]


def test_what_a_switch_refused_and_is_forgiven_is_sent_with_the_next_update() -> None:
    net = Ranked()
    net.ranks[3, 8] = 2
    assert net.change((2, 9, 1), (3, 8, 2)) == []
    # Rules without an order go with the first rank.
    assert net.confirm(1) == [(2, 9), (3, 8)]
    net.updater.handle_refused(1.1, 2, net.target[2][next(key for key in net.target[2] if tag_of(key) == 9)])
    net.updater.forgive(2)
    assert net.change((4, 10, 1)) == []
    assert sorted(net.confirm(3)) == [(2, 9), (4, 10)]


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


def follow(updater: RuleUpdater, now: float) -> list[ToSwitch]:
    """Have switches and edges confirm all that they are told, until nothing more comes; return what that was."""
    told = []
    while sent := updater.poll_messages():
        told += [message for _, message in sent]
        for switch, message in sent:
            if isinstance(message, Barrier):
                updater.handle_barrier(now, switch, message.token)
        if updater.poll_publish():
            updater.handle_published(now, [])
    return told


def test_rules_are_deleted_in_their_time_although_updates_follow_each_other() -> None:
    """Else a network in which something changes all the time would keep every rule that it ever had."""
    updater = RuleUpdater(drain=0.5)
    updater.handle_rules(0.0, 1, [])
    now = 0.0
    for number in range(100):
        now += 0.1
        rule = Rule(PATHS, 10, Match(vlan=100 + number), (Output(1),))
        updater.set_target(now, {1: {rule.key: rule}})
        follow(updater, now)
        due = updater.poll_timeout()
        if due is not None and due <= now:
            updater.handle_timeout(now)
        assert len(updater.tags_in_use()) <= 1 + 0.5 / 0.1 + 1


def test_many_rules_are_deleted_over_some_turns() -> None:
    updater = RuleUpdater(drain=0.5)
    many = [Rule(PATHS, 10, Match(vlan=1 + number), (Output(1),)) for number in range(3 * MAX_RETIRED)]
    updater.handle_rules(0.0, 1, many)
    updater.set_target(1.0, {1: {}})
    updater.handle_published(1.0, [])
    turns = 0
    while not updater.idle:
        updater.handle_timeout(2.0)
        assert 0 < len(deletes(updater)) <= MAX_RETIRED
        turns += 1
    assert turns == 3
    assert not updater.tags_in_use()


def test_a_rule_that_is_wanted_again_is_not_deleted_when_its_time_comes() -> None:
    updater = changing()
    updater.handle_published(1.1, [])
    assert at(updater) is Step.DRAIN
    updater.set_target(1.2, {1: {OLD.key: OLD, NEW.key: NEW}})
    updater.handle_timeout(5.0)
    assert deletes(updater) == []
    assert updater.idle


def test_where_a_switch_refuses_to_change_a_rule_the_old_one_goes_at_once() -> None:
    """It leads packets to where they should not go, and the next audit may be half a minute away."""
    before = Rule(DESTINATIONS, 30, Match(eth_dst="02:00:00:00:00:01"), (Output(1),))
    after = replace(before, actions=(Output(2),))
    updater = RuleUpdater(drain=0.5)
    updater.handle_rules(0.0, 1, [before])
    updater.set_target(1.0, {1: {after.key: after}})
    add, first = (message for _, message in updater.poll_messages())
    assert add == AddRule(after)
    updater.handle_refused(1.1, 1, after)
    deleted, again, second = (message for _, message in updater.poll_messages())
    assert (deleted, again) == (DeleteRule(before.key), AddRule(after))
    assert isinstance(first, Barrier)
    assert isinstance(second, Barrier)
    updater.handle_barrier(1.1, 1, first.token)
    # The switch has not said yet whether it takes it now.
    assert not updater.poll_publish() or at(updater) is Step.SWITCH
    assert at(updater) is Step.SWITCH
    updater.handle_barrier(1.2, 1, second.token)
    updater.handle_published(1.2, [])
    assert updater.idle
    assert updater.installed[1] == {after.key: after}
    assert not updater.refusals()


def test_a_rule_that_a_switch_refuses_for_ever_is_tried_ever_less_often() -> None:
    updater = RuleUpdater(drain=0.0)
    updater.handle_rules(0.0, 1, [])
    updater.set_target(0.0, {1: {NEW.key: NEW}})
    now, tries = 0.0, list[float]()
    while now < 20 * MAX_REFUSED_RETRY:
        for switch, message in updater.poll_messages():
            if isinstance(message, AddRule):
                tries.append(now)
                updater.handle_refused(now, switch, message.rule)
            elif isinstance(message, Barrier):
                updater.handle_barrier(now, switch, message.token)
        if updater.poll_publish():
            updater.handle_published(now, [])
        assert updater.refusals() == {1: 1}
        due = updater.poll_timeout()
        assert due is not None
        assert due > now or updater.step is not Step.IDLE
        now = max(now, due)
        updater.handle_timeout(now)
    assert tries[:3] == [0.0, REFUSED_RETRY, 3 * REFUSED_RETRY]
    assert tries[-1] - tries[-2] == MAX_REFUSED_RETRY
    # It takes it in the end.
    follow(updater, now)
    assert not updater.refusals()
    assert updater.installed[1] == {NEW.key: NEW}


def test_hosts_do_not_wait_for_a_switch_that_left_a_barrier_unanswered() -> None:
    hosts = [Rule(DESTINATIONS, 30, Match(eth_dst=f"02:00:00:00:00:{number:02x}"), (Output(1),)) for number in (1, 2)]
    updater = RuleUpdater(drain=0.5)
    for switch in (1, 2):
        updater.handle_rules(0.0, switch, [])
    target = {switch: {hosts[0].key: hosts[0]} for switch in (1, 2)}
    updater.set_target(0.0, target)

    def answer(now: float) -> None:
        for switch, message in updater.poll_messages():
            if switch == 1 and isinstance(message, Barrier):
                updater.handle_barrier(now, switch, message.token)
        if updater.poll_publish():
            updater.handle_published(now, [])

    answer(0.0)
    assert updater.is_waiting
    updater.handle_timeout(BARRIER_TIMEOUT)
    answer(BARRIER_TIMEOUT)
    assert updater.slow == {2}
    for switch in (1, 2):
        target[switch][hosts[1].key] = hosts[1]
    updater.set_target(3.0, target, {switch: [hosts[1].key] for switch in (1, 2)})
    answer(3.0)
    assert not updater.is_waiting


def test_a_group_is_there_before_the_rule_that_leads_to_it_and_goes_after_it() -> None:
    number = detour_group(1, 2, turning=False)
    assert number is not None
    by_group = replace(NEW, actions=(ToGroup(number),))
    updater = RuleUpdater(drain=0.5)
    updater.handle_rules(0.0, 1, [OLD], {})
    updater.set_target(1.0, {1: {OLD.key: OLD, NEW.key: by_group}})
    sent = [message for _, message in updater.poll_messages()]
    created = SetFailoverGroup(number, buckets_of(number) or (), is_new=True)
    # The switch may do things in another order up to the next barrier.
    assert sent[:3] == [created, Barrier(updater.last_barrier), AddRule(by_group)]
    confirm(updater, 1.1, sent)
    assert updater.idle
    # One more rule with it needs no second one.
    more = replace(by_group, match=Match(vlan=9))
    updater.set_target(2.0, {1: {OLD.key: OLD, NEW.key: by_group, more.key: more}})
    sent = [message for _, message in updater.poll_messages()]
    assert sent[0] == AddRule(more)
    confirm(updater, 2.1, sent)
    updater.set_target(3.0, {1: {OLD.key: OLD, NEW.key: NEW}})
    sent = [message for _, message in updater.poll_messages()]
    assert sent[0] == AddRule(NEW)
    confirm(updater, 3.1, sent)
    assert not any(isinstance(message, DeleteGroup) for _, message in updater.poll_messages())
    updater.handle_timeout(3.7)
    # The barrier keeps it apart from one that is created next.
    gone = [DeleteRule(more.key), DeleteGroup(number), Barrier(updater.last_barrier)]
    assert [message for _, message in updater.poll_messages()] == gone
    assert updater.groups == {1: set()}


def test_the_reply_to_one_groups_barrier_confirms_no_rule_behind_it() -> None:
    updater, session = RuleUpdater(), Session()
    updater.handle_rules(0.0, 1, [], {})
    wanted = {}
    for vlan in (8, 9):
        number = detour_group(1, vlan, turning=False)
        assert number is not None
        rule = replace(NEW, match=Match(vlan=vlan), actions=(ToGroup(number),))
        wanted[rule.key] = rule
    updater.set_target(1.0, {1: wanted})
    sent = [(message, session.encode(message)) for _, message in updater.poll_messages()]
    rules = [(each.rule, data) for each, data in sent if isinstance(each, AddRule)]
    barriers = [data for each, data in sent if isinstance(each, Barrier)]
    assert (len(rules), len(barriers)) == (2, 3)
    session.decode(HEADER.pack(VERSION, 21, 8, HEADER.unpack_from(barriers[0])[3]))
    for rule, data in rules:
        error = HEADER.pack(VERSION, 1, 12, HEADER.unpack_from(data)[3]) + b"\x00\x05\x00\x01"
        assert session.decode(error) == Refused("table-full", rule)


def test_an_update_waits_for_what_the_one_before_it_sent() -> None:
    """It counts on that: here on a new path's rule at a switch where it changes nothing itself."""
    updater = RuleUpdater(drain=0.0)
    for switch in (1, 2):
        updater.handle_rules(0.0, switch, [OLD])
    barriers = []
    for target in ({1: {NEW.key: NEW}, 2: {OLD.key: OLD}}, {1: {NEW.key: NEW}, 2: {NEW.key: NEW}}):
        updater.set_target(1.0, target)
        barriers += [(to, message) for to, message in updater.poll_messages() if isinstance(message, Barrier)]
    assert [to for to, _ in barriers] == [1, 2]
    for switch, barrier in reversed(barriers):
        assert at(updater) is Step.PREPARE
        assert not updater.poll_publish()
        updater.handle_barrier(1.1, switch, barrier.token)
    assert updater.poll_publish()


def confirm(updater: RuleUpdater, now: float, sent: list[ToSwitch]) -> None:
    for message in sent:
        if isinstance(message, Barrier):
            updater.handle_barrier(now, 1, message.token)
    assert updater.poll_publish()
    updater.handle_published(now, [])


def test_a_switch_that_leaves_a_barrier_unanswered_keeps_its_groups() -> None:
    """Its rules may lead there still, and a switch deletes them with the group."""
    number = detour_group(1, 2, turning=True)
    assert number is not None
    by_group = replace(NEW, actions=(ToGroup(number),))
    updater = RuleUpdater(drain=0.5)
    updater.handle_rules(0.0, 1, [by_group], {number: buckets_of(number)})
    updater.set_target(1.0, {1: {NEW.key: NEW}})
    assert updater.poll_messages()[0] == (1, AddRule(NEW))
    updater.handle_timeout(1.0 + BARRIER_TIMEOUT)
    assert updater.slow == {1}
    assert updater.poll_publish()
    updater.handle_published(4.0, [])
    assert updater.idle
    assert updater.poll_messages() == []
    # It lists its rules at last, and no one leads there.
    updater.slow.clear()
    updater.handle_rules(30.0, 1, [NEW], {number: buckets_of(number)})
    assert updater.poll_messages()[0] == (1, DeleteGroup(number))


def switches_of(messages: list[tuple[int, ToSwitch]]) -> list[int]:
    return [switch for switch, message in messages if isinstance(message, AddRule)]


def test_many_rules_are_sent_some_switches_at_a_time_and_no_step_begins_before_all_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_SENT", 2)
    leading = Rule(DESTINATIONS, 30, Match(eth_dst="02:00:00:00:00:01"), goto=PATHS)
    updater = RuleUpdater()
    for switch in range(1, 6):
        updater.handle_rules(0.0, switch, [])
    updater.set_target(1.0, {switch: {NEW.key: NEW, leading.key: leading} for switch in range(1, 6)})
    for step in (NEW, leading):
        sent: list[int] = []
        while len(sent) < 5:
            messages = updater.poll_messages()
            assert {message.rule for _, message in messages if isinstance(message, AddRule)} == {step}
            assert 1 <= len(switches_of(messages)) <= 2
            sent += switches_of(messages)
            # They answer before the others are told.
            for switch, message in messages:
                if isinstance(message, Barrier):
                    updater.handle_barrier(1.0, switch, message.token)
            if len(sent) < 5:
                assert updater.poll_messages() == []
                assert updater.poll_timeout() == 1.0
                updater.handle_timeout(1.0)
        assert sent == [1, 2, 3, 4, 5]
        if updater.poll_publish():
            updater.handle_published(1.0, ())
    assert at(updater) is Step.IDLE


def test_a_switch_that_leaves_while_others_are_told_is_not_told() -> None:
    updater = RuleUpdater()
    many = {each.key: each for each in (replace(NEW, match=Match(vlan=vlan)) for vlan in range(2, 2 + MAX_SENT))}
    for switch in (1, 2, 3):
        updater.handle_rules(0.0, switch, [])
    updater.set_target(1.0, dict.fromkeys((1, 2, 3), many))
    assert {*switches_of(updater.poll_messages())} == {1}
    updater.handle_gone(1.0, 2)
    updater.handle_timeout(1.0)
    messages = updater.poll_messages()
    assert {*switches_of(messages)} == {3}
    for switch in (1, 3):
        updater.handle_barrier(1.0, switch, updater._sent[switch])
    assert at(updater) is Step.SWITCH


def test_an_update_goes_on_if_the_last_switch_leaves_before_it_is_told() -> None:
    updater = RuleUpdater()
    many = {each.key: each for each in (replace(NEW, match=Match(vlan=vlan)) for vlan in range(2, 2 + MAX_SENT))}
    for switch in (1, 2):
        updater.handle_rules(0.0, switch, [])
    updater.set_target(1.0, {1: many, 2: many})
    updater.handle_barrier(1.0, 1, updater._sent[1])
    assert at(updater) is Step.PREPARE
    updater.handle_gone(1.0, 2)
    assert at(updater) is Step.SWITCH


def test_many_changes_are_sent_in_a_turn_of_their_own() -> None:
    updater = RuleUpdater()
    updater.handle_rules(0.0, 1, [OLD])
    target = {1: {OLD.key: OLD}}
    updater.set_target(1.0, target)
    many = [replace(NEW, match=Match(vlan=vlan)) for vlan in range(100, 101 + MAX_SENT)]
    target[1] |= {each.key: each for each in many}
    updater.set_target(2.0, target, {1: {each.key for each in many}})
    assert updater.poll_messages() == []
    assert at(updater) is Step.PREPARE
    assert updater.poll_timeout() == 2.0
    updater.handle_timeout(2.0)
    assert len(switches_of(updater.poll_messages())) == len(many)


def test_a_change_looks_at_no_rule_that_was_sent_for_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    updater = RuleUpdater()
    updater.handle_rules(0.0, 1, [])
    many = [replace(NEW, match=Match(vlan=vlan)) for vlan in range(100, 1000)]
    target = {1: {each.key: each for each in many}}
    updater.set_target(1.0, target)
    assert len(switches_of(updater.poll_messages())) == len(many)
    differ, looks = module._differ, 0

    def counted(one: Rule | None, other: Rule | None) -> bool:
        nonlocal looks
        looks += 1
        return differ(one, other)

    monkeypatch.setattr(module, "_differ", counted)
    # The switch has not confirmed these yet.
    target[1][NEW.key] = NEW
    updater.set_target(1.1, target, {1: {NEW.key}})
    assert switches_of(updater.poll_messages()) == [1]
    assert looks < 10


@pytest.mark.parametrize("seed", range(10))
def test_whatever_changes_each_difference_is_open_as_what_it_is_and_none_is_deleted_that_is_wanted(seed: int) -> None:
    rnd = random.Random(seed)
    made = [
        Rule(table, 10, Match(vlan=tag), (Output(port),))
        for table in (DESTINATIONS, PATHS)
        for tag in range(2, 8)
        for port in (1, 2)
    ]
    updater, now = RuleUpdater(drain=0.5), 0.0
    target: dict[int, dict[RuleKey, Rule]] = {switch: {} for switch in (1, 2, 3)}
    deleted = 0
    for _ in range(200):
        now += rnd.choice([0.0, 0.1, 0.3])
        chance, switch = rnd.random(), rnd.choice((1, 2, 3))
        if chance < 0.1:
            updater.handle_rules(now, switch, rnd.sample(made, 6))
        elif chance < 0.13:
            updater.handle_gone(now, switch)
        elif chance < 0.2:
            updater.handle_refused(now, switch, rnd.choice(made))
        elif chance < 0.6:
            changed: dict[int, set[RuleKey]] = {}
            for _ in range(rnd.randrange(4)):
                each, rule = rnd.choice((1, 2, 3)), rnd.choice(made)
                if rnd.random() < 0.5:
                    target[each].pop(rule.key, None)
                else:
                    target[each][rule.key] = rule
                changed.setdefault(each, set()).add(rule.key)
            updater.set_target(now, target, None if rnd.random() < 0.1 else changed)
        else:
            updater.handle_timeout(now)
        if updater.poll_publish():
            updater.handle_published(now, [])
        for each, message in updater.poll_messages():
            if isinstance(message, Barrier) and rnd.random() < 0.9:
                updater.handle_barrier(now, each, message.token)
            elif isinstance(message, DeleteRule):
                # Some take the place of others that a switch would not change.
                deleted += message.key not in target[each]
        for each, has in updater.installed.items():
            if each in updater._compared:
                wanted = target[each]
                assert {key for key in wanted if has.get(key) != wanted[key]} <= updater._open.get(each, {}).keys()
                assert has.keys() - wanted.keys() <= updater._open_surplus.get(each, {}).keys()
        assert all(at >= updater._retire_at for at in updater._retiring.values())
        assert (updater.poll_timeout() is not None) or updater.idle
    assert deleted
    for each in (1, 2, 3):
        updater.handle_rules(now, each, [])
    now += MAX_REFUSED_RETRY
    updater.set_target(now, target)
    for _ in range(20):
        now += 0.5
        updater.handle_timeout(now)
        if updater.poll_publish():
            updater.handle_published(now, [])
        for each, message in updater.poll_messages():
            if isinstance(message, Barrier):
                updater.handle_barrier(now, each, message.token)
    assert updater.installed == target

"""Rates of meters: which a switch has while it may refuse the one that it was told."""

from __future__ import annotations

from braid_sdn.fabric.switches import rules
from braid_sdn.fabric.switches.meter_rates import MeterRates, RefusedRate
from braid_sdn.fabric.switches.updater import REFUSED_RETRY, RuleUpdater
from braid_sdn.openflow.messages import AddRule, Barrier, Match, Rule, SetMeter

OLD, NEW, NEWER = (SetMeter(7, rate, 100, by_bits=True) for rate in (1000, 2000, 3000))


def test_a_rate_counts_once_the_switch_has_answered_for_it() -> None:
    rates = MeterRates()
    assert rates.get(1, 7, OLD) == OLD
    rates.tell(1, 7, OLD, NEW)
    assert rates.get(1, 7, NEW) == OLD
    rates.handle_confirmed(1)
    assert rates.get(1, 7, NEW) == NEW
    assert not rates._told


def test_the_rate_before_the_refused_one_stays_whatever_was_told_since() -> None:
    rates = MeterRates()
    rates.tell(1, 7, OLD, NEW)
    rates.tell(1, 7, NEW, NEWER)
    assert rates.handle_refused(1, NEW, "why")
    assert rates.last(1, 7) == NEWER
    assert rates.handle_refused(1, NEWER, "why else")
    assert rates.last(1, 7) == OLD
    assert rates.refused == {1: {7: RefusedRate(NEWER, "why else")}}
    # It took neither.
    rates.handle_confirmed(1)
    assert rates.refused
    rates.tell(1, 7, OLD, NEW)
    rates.handle_confirmed(1)
    assert not rates.refused


def test_nobody_knows_the_rate_of_a_meter_that_was_taken_over() -> None:
    rates = MeterRates()
    rates.tell(1, 7, None, NEW)
    assert rates.get(1, 7, NEW) is None
    assert not rates.handle_refused(1, OLD, "never told")
    assert not rates.handle_refused(2, NEW, "another switch")
    assert rates.handle_refused(1, NEW, "why")
    assert rates.last(1, 7) is None
    rates.keep(1, {7: NEW}, (8,))
    assert not rates.refused
    assert not rates._told


def test_of_a_rate_that_was_told_twice_the_later_one_is_refused() -> None:
    rates = MeterRates()
    rates.tell(1, 7, OLD, NEW)
    rates.tell(1, 7, NEW, OLD)
    assert rates.handle_refused(1, OLD, "why")
    assert rates.last(1, 7) == NEW


def test_a_list_of_rules_on_its_way_does_not_keep_a_rate_from_being_confirmed() -> None:
    updater = RuleUpdater()
    rule = Rule(rules.DESTINATIONS, 1, Match(in_port=3), (), rules.TREES, rules.COOKIE, meter=7)
    updater.target = {1: {rule.key: rule}}
    updater.handle_rules(0.0, 1, [rule])
    for now, meter in enumerate((OLD, NEW)):
        updater.set_meters({1: {7: meter}})
        updater.poll_messages()
        (barrier,) = (each for _, each in updater.poll_rates() if isinstance(each, Barrier))
        # It was asked for before.
        updater.handle_rules(now + 0.01, 1, [rule])
        updater.handle_barrier(now + 0.02, 1, barrier.token)
        assert updater.meter_at(1, 7) == meter


def test_a_meter_that_a_switch_refused_to_make_is_made_with_the_rule_that_is_tried_again() -> None:
    updater = RuleUpdater()
    rule = Rule(rules.DESTINATIONS, 1, Match(in_port=3), (), rules.TREES, rules.COOKIE, meter=7)
    updater.set_meters({1: {7: OLD}})
    updater.handle_rules(0.0, 1, [])
    updater.set_target(0.0, {1: {rule.key: rule}})

    def sent() -> list[object]:
        return [each for _, each in updater.poll_messages() if isinstance(each, SetMeter | AddRule)]

    updater.handle_published(0.0, [])
    assert sent() == [OLD, AddRule(rule)]
    updater.handle_refused_meter(1, 7)
    updater.handle_refused(0.1, 1, rule)
    assert updater.meter_at(1, 7) is None
    updater.handle_barrier(0.1, 1, updater._waiting[1])
    for now in (1.0, 2.0, REFUSED_RETRY + 1.0):
        updater.handle_timeout(now)
        updater.handle_published(now, [])
    assert sent() == [OLD, AddRule(rule)]

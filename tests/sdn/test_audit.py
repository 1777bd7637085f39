"""Audits of switches' rules: a few at a time, and all in turn."""

from __future__ import annotations

from braid_sdn.fabric.switches.audit import AUDIT_INTERVAL, LEASE_RENEWAL, MAX_AUDITS_AT_ONCE, REPLY_TIMEOUT, Audit


def audited(switches: int) -> Audit:
    """As many switches as that, all of which listed their rules at second 0."""
    audit = Audit()
    for switch in range(switches):
        audit.ask(0.0, switch, 0)
        assert audit.answered(0.0, switch, 0, known=False)
    return audit


def test_switches_that_are_due_at_once_are_asked_one_after_another() -> None:
    audit = audited(5)
    now = AUDIT_INTERVAL
    seen = []
    while due := audit.due(now, idle=True):
        assert len(due) <= MAX_AUDITS_AT_ONCE
        for switch in due:
            audit.ask(now, switch, 0)
        assert audit.due(now, idle=True) == []
        # Nothing is to be done until one answers.
        assert audit.poll_timeout(idle=True) == now + REPLY_TIMEOUT
        for switch in due:
            assert audit.answered(now, switch, 0, known=True)
        seen += due
    assert sorted(seen) == list(range(5))


def test_switches_that_do_not_answer_hold_up_nobody_for_long() -> None:
    audit = audited(MAX_AUDITS_AT_ONCE + 1)
    now = AUDIT_INTERVAL
    mute = audit.due(now, idle=True)
    for switch in mute:
        audit.ask(now, switch, 0)
    asked = set()
    for _ in range(3):
        now += REPLY_TIMEOUT
        for switch in audit.due(now, idle=True):
            audit.ask(now, switch, 0)
            asked.add(switch)
    assert asked - set(mute), "the one that answers is asked as well"


def test_a_list_that_changes_have_made_stale_is_asked_for_anew_before_the_next_audit() -> None:
    audit = audited(1)
    audit.ask(AUDIT_INTERVAL, 0, 7)
    assert not audit.answered(AUDIT_INTERVAL, 0, 8, known=True)
    assert audit.due(AUDIT_INTERVAL + LEASE_RENEWAL - 0.1, idle=True) == []
    assert audit.due(AUDIT_INTERVAL + LEASE_RENEWAL, idle=True) == [0]


def test_a_switch_whose_rules_seem_wrong_is_asked_at_once() -> None:
    audit = audited(2)
    audit.soon(1.0, 1)
    audit.soon(2.0, 1)
    assert audit.poll_timeout(idle=True) == 1.0
    assert audit.due(2.0, idle=True) == [1]


def test_a_switch_that_has_left_is_asked_for_nothing_and_takes_nobodys_place() -> None:
    audit = audited(MAX_AUDITS_AT_ONCE + 1)
    audit.plan(0.0, [0])
    gone = audit.due(AUDIT_INTERVAL, idle=True)
    for switch in gone:
        audit.ask(AUDIT_INTERVAL, switch, 0)
    for switch in gone:
        audit.forget(switch)
    (left,) = set(range(MAX_AUDITS_AT_ONCE + 1)) - set(gone)
    assert audit.poll_timeout(idle=True) == AUDIT_INTERVAL
    assert audit.due(AUDIT_INTERVAL + REPLY_TIMEOUT, idle=True) == [left]
    assert audit.renewals(AUDIT_INTERVAL) == []

"""Consistent updates of switches' rules (Reitblatt et al., 2012): no packet is lost or loops during a change.

Make before break, in four steps; each begins when the previous one is done on all switches:

1. prepare: add rules of new tags, which no packet carries yet, and of delivery; a barrier on every changed switch.
           Rules that are changed in an order are sent rank by rank: each rank waits for the one before, and is not
           sent if a switch of that does not follow.
2. switch:  change the rules that tag packets (tables 0 to 3), with barriers, and distribute new slot tables to edges.
           Pins that are not wanted any more are deleted.
3. drain:   wait for packets with old tags.
4. retire:  delete switch rules that are not needed any more.

Groups and meters are created before the first rule that leads to them, with a barrier in between, and deleted once an
update is at its end and no rule of a switch leads to them: with a group or a meter, a switch deletes the rules that
lead to it. A meter whose rule a switch lists is there; its rate is not listed, so it is given anew. Each barrier has
a token of its own, since a reply confirms the rules that were sent before the barrier alone.

The state of a switch is its last listing plus all messages since. Only keys that may differ from the target are
looked at, so an update costs what it changes. An update may be aborted at any point in favour of another target,
which waits for what it has sent. A rule is deleted only when an update that does without it has come as far as drain,
and packets had time to leave; the next update may be under way then. Those by which an access control list decides
packets stay until the switch has said that it has all rules of the list that takes over, and refused none. Then they
are deleted in the order of their priorities, the lowest first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache
from itertools import islice

from braid_sdn.fabric.switches import acl
from braid_sdn.fabric.switches.meter_rates import MeterRates, RefusedRate
from braid_sdn.fabric.switches.rules import INGRESS, PATHS, Rules, buckets_of, groups_of, is_ours, is_pin, tag_of
from braid_sdn.openflow.messages import (
    MAX_BARRIER_TOKEN,
    AddRule,
    Barrier,
    Bucket,
    DeleteGroup,
    DeleteMeter,
    DeleteRule,
    Rule,
    RuleKey,
    SetFailoverGroup,
    SetMeter,
    ToSwitch,
)

#: Seconds for packets with an old tag to leave the network.
DRAIN = 0.5

#: Seconds to wait for a barrier reply; after that the switch is reported as slow and the update continues.
BARRIER_TIMEOUT = 2.0

#: Rules sent at once, but all of one switch; and rules deleted at once. The others have the next turns.
MAX_SENT = 2000
MAX_RETIRED = 1000

#: Seconds after which a refused rule is tried again; twice as long each time that it is refused anew, up to a bound.
REFUSED_RETRY = 30.0
MAX_REFUSED_RETRY = 1800.0


class Step(IntEnum):
    """Step of an update."""

    IDLE = 0
    PREPARE = 1
    SWITCH = 2
    DRAIN = 3


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rule that a switch refuses."""

    #: Times in a row.
    count: int
    #: Time of the next try; infinite while the switch has not said whether it takes it this time.
    retry_at: float


@dataclass
class RuleUpdater:
    """Updates switches from installed rules to the target. Times are seconds of a monotonic clock."""

    drain: float = DRAIN
    #: Rules of each switch, as far as known. A switch that is missing here is not touched.
    installed: dict[int, Rules] = field(default_factory=dict)
    target: Mapping[int, Rules] = field(default_factory=dict)
    #: Our groups at each switch, as far as known.
    groups: dict[int, set[int]] = field(default_factory=dict)
    #: Our meters at each switch by their numbers, as far as known, as they were told last; None for a rate that is
    #: not known.
    meters: dict[int, dict[int, SetMeter | None]] = field(default_factory=dict)
    #: Those that rules of the target lead to.
    wanted_meters: Mapping[int, Mapping[int, SetMeter]] = field(default_factory=dict)
    #: Place of a rule of paths in the order of changes, from 1; 0 for those that need none.
    rank: Callable[[int, RuleKey], int] = lambda _switch, _key: 0
    step: Step = Step.IDLE
    #: Switches that left a barrier unanswered in the last update.
    slow: set[int] = field(default_factory=set)
    #: Tags of which a switch left a change in an order unanswered, or refused it. It may do as before, so those that
    #: would follow are not told: packets could go round. The next plan is to use others.
    doubtful: set[int] = field(default_factory=set)
    #: Number of updates.
    changes: int = 0
    #: Token of the last barrier. An updater that follows another one at the same connections goes on from there: a
    #: late reply to a barrier of the other is none of its own.
    last_barrier: int = 0
    #: Rules that are deleted at these times: those that a completed update does without.
    _retiring: dict[tuple[int, RuleKey], float] = field(default_factory=dict)
    #: No earlier than this; and true if some of them may be wanted again, or gone.
    _retire_at: float = math.inf
    _is_retiring_old: bool = False
    #: Rules that were sent in place of others with their key, until a barrier shows that the switch took them.
    _replaced: dict[int, set[RuleKey]] = field(default_factory=dict)
    #: Keys at which a switch may differ from the target, in the order in which they were changed: of rules that it
    #: lacks, and of those that it has and the target does without.
    _open: dict[int, dict[RuleKey, None]] = field(default_factory=dict)
    _open_surplus: dict[int, dict[RuleKey, None]] = field(default_factory=dict)
    #: Switches that were compared with the target as a whole.
    _compared: set[int] = field(default_factory=set)
    #: Number of rules at all switches with each tag.
    _tags: Counter[int] = field(default_factory=Counter)
    #: Switches that may have groups or meters which no rule leads to.
    _spare: set[int] = field(default_factory=set)
    #: The last barrier that each switch was sent.
    _sent: dict[int, int] = field(default_factory=dict)
    #: Rules of this step that are not sent yet, by switch, and when the last ones were.
    _unsent: dict[int, list[Rule]] = field(default_factory=dict)
    _sent_at: float = 0.0
    #: True while the first rules of an update are not sent yet.
    _is_put_off: bool = False
    #: Switches that were sent rules of an access control list since the last barrier that they answered.
    _unproven: set[int] = field(default_factory=set)
    #: Rules of such lists that switches lack, as where these refused them.
    _gaps: dict[int, set[RuleKey]] = field(default_factory=dict)
    #: Switches and the barriers that are waited for.
    _waiting: dict[int, int] = field(default_factory=dict)
    #: Those of them for which the next rank waits, with the tags concerned.
    _ordered: dict[int, set[int]] = field(default_factory=dict)
    #: Switches and keys of rules of the first step that wait for their turn, by their ranks; the tags of all that
    #: have waited here; and false where others, or another order, are to be looked for.
    _ranked: dict[int, list[tuple[int, RuleKey]]] = field(default_factory=dict)
    _ranked_tags: set[int] = field(default_factory=set)
    _is_ranked: bool = False
    _deadline: float = 0.0
    _refused: dict[tuple[int, RuleKey], Refusal] = field(default_factory=dict)
    _out: list[tuple[int, ToSwitch]] = field(default_factory=list)
    #: Meters whose other rates are not sent yet, by switch and number, as they are.
    _unsent_rates: dict[tuple[int, int], SetMeter | None] = field(default_factory=dict)
    _rates: MeterRates = field(default_factory=MeterRates)
    #: The last barrier after other rates that each switch was sent.
    _sent_rates: dict[int, int] = field(default_factory=dict)
    _publish: bool = False
    #: Edges that have not acknowledged their new tables.
    _unconfirmed: set[str] = field(default_factory=set)
    _published: bool = False

    def handle_rules(
        self,
        now: float,
        switch: int,
        rules: Iterable[Rule],
        groups: Mapping[int, tuple[Bucket, ...] | None] | None = None,
    ) -> None:
        """Take in a switch's rules, after it connected and at every audit; and its groups, if they are known."""
        self._forget(switch)
        if groups is not None:
            self._handle_groups(switch, groups)
        has = self.installed[switch] = {}
        for rule in rules:
            if rule.lease == 0:
                self._put(has, rule)
        self._handle_meters(switch, has.values())
        self._compare(switch)
        if self._open.get(switch) or self._open_surplus.get(switch):
            self._waiting.pop(switch, None)
            # The rules that it misses now were not ranked.
            self._is_ranked = False
            self._begin(now)
        elif self.idle:
            self._delete_spare()
        else:
            # Nothing may be left to be sent.
            self._advance(now)

    def _handle_groups(self, switch: int, groups: Mapping[int, tuple[Bucket, ...] | None]) -> None:
        """Take in a switch's groups; those of ours that were changed are put right, others' are left alone."""
        ours = {number: made for number in groups if (made := buckets_of(number)) is not None}
        self.groups[switch] = set(ours)
        self._spare.add(switch)
        for number, made in ours.items():
            if groups[number] != made:
                self._out.append((switch, SetFailoverGroup(number, made, is_new=False)))

    def _handle_meters(self, switch: int, rules: Iterable[Rule]) -> None:
        """Take in which meters a switch has, by its rules that lead to them."""
        before = self.meters.get(switch, {})
        found = {rule.meter for rule in rules if rule.meter is not None and is_ours(rule)}
        self.meters[switch] = {number: before.get(number) for number in found}
        self._rates.keep(switch, self.wanted_meters.get(switch, {}), found)
        if found:
            self._spare.add(switch)
            self._change_rates(switch)

    def set_meters(self, wanted: Mapping[int, Mapping[int, SetMeter]]) -> None:
        """Set the meters that the next target's rules lead to; those that are there are given other rates."""
        before, self.wanted_meters = self.wanted_meters, wanted
        for switch in self.meters:
            if wanted.get(switch) is not before.get(switch):
                self._change_rates(switch)

    def _change_rates(self, switch: int) -> None:
        wanted = self.wanted_meters.get(switch, {})
        for number, has in self.meters[switch].items():
            meter = wanted.get(number)
            if meter is not None and meter != has:
                self.meters[switch][number] = meter
                self._unsent_rates.setdefault((switch, number), has)

    def meter_at(self, switch: int, number: int) -> SetMeter | None:
        """Return the meter that a switch has, with another rate once it is confirmed; None if nobody knows."""
        key, last = (switch, number), self.meters.get(switch, {}).get(number)
        return self._rates.get(*key, self._unsent_rates.get(key, last))

    def refused_rates(self) -> Mapping[int, Mapping[int, RefusedRate]]:
        """Return the rates that switches refused to give their meters, by the meters' numbers."""
        return self._rates.refused

    def handle_refused_rate(self, switch: int, meter: SetMeter, reason: str) -> bool:
        """Take in that a switch refused to give a meter another rate: it has the one before, until it is told again.

        False if that is not one of ours that is known.
        """
        told = replace(meter, is_new=True)
        if meter.is_new or not self._rates.handle_refused(switch, told, reason):
            return False
        key, last = (switch, meter.number), self._rates.last(switch, meter.number)
        if key in self._unsent_rates:
            self._unsent_rates[key] = last
        elif meter.number in self.meters.get(switch, {}):
            self.meters[switch][meter.number] = last
        return True

    def handle_refused_meter(self, switch: int, number: int) -> None:
        """Take in that a switch refused to make a meter: it is made before the next rule that leads to it."""
        self.meters.get(switch, {}).pop(number, None)
        self._rates.keep(switch, self.wanted_meters.get(switch, {}), self.meters.get(switch, {}))
        self._unsent_rates.pop((switch, number), None)

    def handle_gone(self, now: float, switch: int) -> None:
        """Forget a switch that is no longer connected."""
        # It goes on by the rules that it has: those that would follow a change that it was not told of are not told.
        self.doubtful |= {
            tag_of(key) or 0
            for key in self._open.get(switch, ())
            if self._missing(switch, key) is not None and self.rank(switch, key)
        }
        self._forget(switch)
        self.groups.pop(switch, None)
        self.meters.pop(switch, None)
        self._rates.keep(switch, {}, ())
        self._sent_rates.pop(switch, None)
        self._unsent_rates = {key: has for key, has in self._unsent_rates.items() if key[0] != switch}
        self._spare.discard(switch)
        self._refused = {each: refusal for each, refusal in self._refused.items() if each[0] != switch}
        self.slow.discard(switch)
        if switch in self._waiting:
            self._doubt([switch])
            del self._waiting[switch]
        self._advance(now)

    def handle_barrier(self, now: float, switch: int, token: int) -> None:
        """Take in that a switch has done all that was sent before this barrier."""
        self.slow.discard(switch)
        if self._sent_rates.get(switch) == token:
            del self._sent_rates[switch]
            self._rates.handle_confirmed(switch)
        if self._sent.get(switch) == token:
            # It has taken all that it was sent, and did not refuse.
            self._replaced.pop(switch, None)
            self._refused = {
                each: refusal
                for each, refusal in self._refused.items()
                if each[0] != switch or not math.isinf(refusal.retry_at)
            }
            if switch in self._unproven:
                self._unproven.discard(switch)
                # An update that has not come that far deletes them itself.
                due = self._new_surplus([switch]) if not self.is_waiting else []
                if due:
                    self.changes += 1
                    self._retire_later(now, due)
                    self.step = Step.DRAIN
        if self._waiting.get(switch) == token:
            del self._waiting[switch]
            self._advance(now)

    def handle_confirmed(self, now: float, edge: str) -> None:
        """Take in that an edge has acknowledged its new table."""
        if edge in self._unconfirmed:
            self._unconfirmed.discard(edge)
            self._advance(now)

    def handle_refused(self, now: float, switch: int, rule: Rule) -> None:
        """Take in that a switch refused a rule.

        Where it was to replace another one, that one is still there, and leads packets to where they should not go:
        it is deleted, and the rule sent once more. One that is refused without an old one is tried again later.
        """
        has = self.installed.get(switch)
        if has is None:
            return
        key = rule.key
        self._is_ranked = False
        if rule.meter is not None and not rule.lease:
            # It was created before the rule.
            self._spare.add(switch)
        if has.get(key) == rule:
            self._drop(switch, key)
            self._open.setdefault(switch, {})[key] = None
            if acl.decides(rule):
                self._gaps.setdefault(switch, set()).add(key)
            if key in self._replaced.get(switch, ()):
                self._replaced[switch].discard(key)
                self._out.append((switch, DeleteRule(key)))
                self._send_again(switch, rule)
                return
        if self.rank(switch, key):
            self.doubtful.add(tag_of(key) or 0)
        known = self._refused.get((switch, key))
        count = known.count + 1 if known is not None else 1
        pause = min(REFUSED_RETRY * 2 ** min(count - 1, 16), MAX_REFUSED_RETRY)
        self._refused[switch, key] = Refusal(count, now + pause)

    def forgive(self, switch: int) -> None:
        """Forget which rules a switch refused: others take their place."""
        self._is_ranked = False
        self._refused = {each: refusal for each, refusal in self._refused.items() if each[0] != switch}

    def handle_lost_groups(self, now: float, switch: int, rule: Rule | None) -> bool:
        """Take in that a switch does not have a group that it was told of, and refused this rule for that.

        All groups are created anew before the next rules that lead to them, and the rule is tried again at once.
        False if it was refused in spite of that.
        """
        self.groups.pop(switch, None)
        if rule is None:
            return True
        self.handle_refused(now, switch, rule)
        refusal = self._refused.get((switch, rule.key))
        if refusal is not None:
            self._refused[switch, rule.key] = Refusal(refusal.count, min(refusal.retry_at, now))
        return refusal is None or refusal.count == 1

    def refusals(self) -> Mapping[int, int]:
        """Return the switches that refuse rules of the target, and how many."""
        return Counter(switch for switch, key in self._refused if key in self.target.get(switch, {}))

    def set_target(
        self, now: float, wanted: Mapping[int, Rules], changed: Mapping[int, Collection[RuleKey]] | None = None
    ) -> None:
        """Set a new target; an update towards another one is aborted.

        With `changed`, the target differs from the last one, which may be the same object, at these keys alone.
        """
        self.target = wanted
        self.doubtful &= self._tags.keys()
        if changed is None:
            self._compared.clear()
        is_new = changed is None or any(changed.values())
        self._compared &= wanted.keys()
        opened: list[tuple[int, RuleKey]] = []
        if changed is None or any(tag_of(key) in self._ranked_tags for keys in changed.values() for key in keys):
            # With another rule of a tag, the order of those that wait may be another one.
            self._is_ranked = False
        for switch in self.installed:
            if switch not in self._compared:
                is_new, self._is_ranked = True, False
                self._compare(switch)
            elif changed is not None and switch in changed:
                opened += ((switch, key) for key in self._compare_some(switch, changed[switch]))
        if is_new or self.step is Step.IDLE:
            # To find many changes, and to send them, are a turn each.
            is_large = changed is not None and sum(len(keys) for keys in changed.values()) > MAX_SENT
            self._begin(now, opened, is_put_off=is_large)

    def add(self, switch: int, rule: Rule) -> None:
        """Send a rule of the target at once: one that leads to nothing but what is in place on all switches."""
        has = self.installed.get(switch)
        if has is not None and has.get(rule.key) != rule:
            self._add(switch, rule)

    def confirm(self, switches: Iterable[int]) -> None:
        """Have switches say that they have done all that they were sent by `add`."""
        for switch in switches:
            barrier = self.new_barrier()
            self._out.append((switch, barrier))
            self._sent[switch] = barrier.token

    def has_whole_list(self, switch: int) -> bool:
        """Return true if a switch has said that it has all rules of an access control list that it was sent."""
        wanted = self.target.get(switch, {})
        return switch not in self._unproven and not any(key in wanted for key in self._gaps.get(switch, ()))

    def handle_timeout(self, now: float) -> None:
        """Do what is due. The current time, not the deadline's, is passed; early and late calls are harmless."""
        if self.step is Step.DRAIN:
            self._advance(now)
            return
        self._retire(now)
        if self.has_unsent:
            self._is_put_off = False
            self._send_some(now)
            self._advance(now)
        elif self.step is Step.IDLE:
            if any(refusal.retry_at <= now for refusal in self._refused.values()):
                self._retry(now)
        elif now >= self._deadline:
            self.slow |= set(self._waiting)
            self._doubt(self._waiting)
            self._waiting.clear()
            if self.step is Step.SWITCH:
                self._unconfirmed.clear()
                self._published = True
            self._advance(now)

    def _retry(self, now: float) -> None:
        """Try rules again that were refused, and are still wanted."""
        self._refused = {
            each: refusal
            for each, refusal in self._refused.items()
            if refusal.retry_at > now or self._missing(*each) is not None
        }
        self._begin(now)
        if self.step is Step.IDLE:
            # Such as those of a tree that is to be replaced.
            late = {each: refusal for each, refusal in self._refused.items() if refusal.retry_at <= now}
            self._refused |= {each: Refusal(old.count, now + REFUSED_RETRY) for each, old in late.items()}

    def _doubt(self, switches: Iterable[int]) -> None:
        for switch in switches:
            self.doubtful |= self._ordered.get(switch, set())

    @property
    def idle(self) -> bool:
        """True if no update is in progress."""
        return self.step is Step.IDLE

    @property
    def is_waiting(self) -> bool:
        """True if switches or edges have not confirmed all that they are to use: another update would abort this."""
        return self.step in (Step.PREPARE, Step.SWITCH)

    @property
    def has_unsent(self) -> bool:
        """True if the next call of `handle_timeout`, which is due at once, sends more rules."""
        return bool(self._unsent) or self._is_put_off

    def poll_timeout(self) -> float | None:
        """Return when to call `handle_timeout`, or None if nothing waits."""
        due = [self._retire_at] if self._retiring else []
        if self.has_unsent:
            due.append(self._sent_at)
        elif self.is_waiting:
            due.append(self._deadline)
        elif self.step is Step.IDLE:
            due += [refusal.retry_at for refusal in self._refused.values() if math.isfinite(refusal.retry_at)]
        return min(due, default=None)

    def poll_messages(self) -> list[tuple[int, ToSwitch]]:
        """Return messages to send with their switches, in this order; those of `poll_rates` come after them."""
        out, self._out = self._out, []
        return out

    def poll_rates(self) -> list[tuple[int, ToSwitch]]:
        """Return messages that give meters other rates. Rules that lead around a failure do not wait for them."""
        if self.has_unsent:
            return []
        told, self._unsent_rates = self._unsent_rates, {}
        out: list[tuple[int, ToSwitch]] = []
        for (switch, number), before in told.items():
            meter = self.meters.get(switch, {}).get(number)
            if meter is not None:
                self._rates.tell(switch, number, before, meter)
                out.append((switch, _another_rate(meter)))
        # A switch that refuses one says so before it answers this.
        for switch in dict.fromkeys(switch for switch, _ in out):
            barrier = self.new_barrier()
            out.append((switch, barrier))
            self._sent_rates[switch] = barrier.token
        return out

    def poll_publish(self) -> bool:
        """Return true, once, when edges may get their new slot tables: all new tags' rules are in place.

        Call `handle_published` when the edges can fetch them.
        """
        due, self._publish = self._publish, False
        return due

    def handle_published(self, now: float, edges: Iterable[str]) -> None:
        """Edges can fetch new tables; wait, with a limit, until those named here acknowledge them."""
        self._unconfirmed |= set(edges)
        self._published = True
        if self.step is Step.SWITCH:
            self._advance(now)

    def _begin(self, now: float, opened: Iterable[tuple[int, RuleKey]] = (), *, is_put_off: bool = False) -> None:
        """Begin an update. Where missing rules are ranked already, `opened` are the keys of those that are not."""
        self._is_ranked &= self.step is Step.PREPARE
        if self._is_ranked:
            unsent = [(switch, rule.key) for switch, some in self._unsent.items() for rule in some]
            self._rank([*unsent, *(each for each in opened if each[1][0] >= PATHS)])
        # Rules of the update before may be under way still. This one counts on them as on its own, and those that
        # were sent in an order stand before those that are sent now.
        self._ordered = {switch: tags for switch, tags in self._ordered.items() if switch in self._waiting}
        self._unconfirmed.clear()
        # They are still open.
        self._unsent.clear()
        self._is_put_off = False
        self.step = Step.IDLE
        # Edges' tables may change although no rule does.
        self._publish = True
        # Other rules of the target were looked at one by one.
        if self._is_retiring_old or self._unproven or any(self._gaps.values()):
            self._is_retiring_old = False
            self._retiring = {each: at for each, at in self._retiring.items() if self._is_surplus(*each)}
        if self._is_behind(now) or self._waiting:
            self.changes += 1
            self.step = Step.PREPARE
            self._publish = self._published = False
            if not self._waiting:
                # Else it is that of the barriers under way: an update that follows does not prolong it.
                self._deadline = now + BARRIER_TIMEOUT
            if is_put_off:
                self._is_put_off, self._sent_at = True, now
            else:
                self._advance(now)
        elif self._retiring:
            self.step = Step.DRAIN

    def _advance(self, now: float) -> None:
        """Go on to the next step if nothing is waited for."""
        while not self.has_unsent:
            if self.step is Step.PREPARE:
                if self._ranked or not self._is_ranked:
                    if self._ordered.keys() & self._waiting.keys():
                        return
                    self._prepare(now)
                    continue
                if self._waiting:
                    return
                self.step = Step.SWITCH
                self._publish = True
                self._send(
                    now,
                    list(self._each_missing(now, prepare=False)),
                    self._new_surplus(is_wanted=is_pin),
                )
            elif self._waiting:
                return
            elif self.step is Step.SWITCH:
                if not self._published or self._unconfirmed:
                    return
                self._retire_later(now, self._new_surplus())
                self.step = Step.DRAIN
            elif self.step is Step.DRAIN:
                self._retire(now)
                if self._retiring:
                    return
                self.step = Step.IDLE
                self._delete_spare()
            else:
                return

    def _retire_later(self, now: float, keys: Iterable[tuple[int, RuleKey]]) -> None:
        at = now + self.drain
        self._retiring |= dict.fromkeys(keys, at)
        self._retire_at = min(self._retire_at, at)

    def _retire(self, now: float) -> None:
        """Delete rules that are due: here, and nowhere else, a switch rule is deleted that it was to have."""
        if now < self._retire_at:
            return
        due = (each for each, at in self._retiring.items() if at <= now)
        for each in list(islice(due, MAX_RETIRED)):
            del self._retiring[each]
            if self._is_surplus(*each):
                switch, key = each
                self._drop(switch, key)
                self._out.append((switch, DeleteRule(key)))
        self._retire_at = min(self._retiring.values(), default=math.inf)

    def _prepare(self, now: float) -> None:
        """Send the missing rules of paths and delivery that are next in order, and all that need no order."""
        if not self._is_ranked:
            self._ranked, self._is_ranked, self._ranked_tags = {}, True, set()
            self._rank((switch, rule.key) for switch, rule in self._each_missing(now, prepare=True))
        sent = self._of_rank(now, 0)
        self._ordered = {}
        while self._ranked and not self._ordered:
            next_ones = self._of_rank(now, min(self._ranked))
            for switch, rule in next_ones:
                self._ordered.setdefault(switch, set()).add(tag_of(rule.key) or 0)
            sent += next_ones
        self._send(now, sent)

    def _rank(self, keys: Iterable[tuple[int, RuleKey]]) -> None:
        """Have rules sent when it is their turn."""
        for switch, key in keys:
            self._ranked.setdefault(self.rank(switch, key), []).append((switch, key))
            if (tag := tag_of(key)) is not None:
                self._ranked_tags.add(tag)

    def _of_rank(self, now: float, rank: int) -> list[tuple[int, Rule]]:
        """Return the rules whose turn it is, as far as switches still miss them, and may be told of them."""
        found: list[tuple[int, Rule]] = []
        for switch, key in self._ranked.pop(rank, ()):
            # The target may have changed since then, or one of the rank before may not have followed.
            rule = self._missing(switch, key)
            if rule is not None and self._may_be_sent(now, switch, key):
                found.append((switch, rule))
        return found

    def _send(self, now: float, rules: list[tuple[int, Rule]], deleted: Iterable[tuple[int, RuleKey]] = ()) -> None:
        """Send rules, delete others, and send a barrier after the last of each switch."""
        for switch, rule in rules:
            self._unsent.setdefault(switch, []).append(rule)
        touched: dict[int, bool] = {}
        for switch, key in deleted:
            self._drop(switch, key)
            self._out.append((switch, DeleteRule(key)))
            touched[switch] = True
        if touched:
            self._send_barriers(self.new_barrier(), touched)
        self._send_some(now)

    def _send_some(self, now: float) -> None:
        """Send the rules of some more switches."""
        barrier = self.new_barrier()
        touched: dict[int, bool] = {}
        count = 0
        while self._unsent and count < MAX_SENT:
            switch = next(iter(self._unsent))
            has, wanted = self.installed[switch], self.target.get(switch, {})
            # Later tables first: a packet is not sent on to a table that has no rule for it yet.
            for rule in sorted(self._unsent.pop(switch), key=lambda each: -each.table):
                key = rule.key
                # The target may do without it since then, as where a switch is not to know a host any more.
                if wanted.get(key) is rule and _differ(has.get(key), rule):
                    self._add(switch, rule)
                    touched[switch] = touched.get(switch, False) or tag_of(key) is not None
                    count += 1
        self._send_barriers(barrier, touched)
        self._sent_at = now
        self._deadline = now + BARRIER_TIMEOUT

    def _send_barriers(self, barrier: Barrier, touched: Mapping[int, bool]) -> None:
        """Send a barrier to each switch that was sent something; true stands for rules of a tag among it."""
        for switch, has_tags in touched.items():
            self._out.append((switch, barrier))
            self._sent[switch] = barrier.token
            # Rules of hosts alone are not worth waiting for a switch that left a barrier unanswered: packets to these
            # are flooded meanwhile.
            if has_tags or switch not in self.slow:
                self._waiting[switch] = barrier.token

    def _send_again(self, switch: int, rule: Rule) -> None:
        """Send a rule once more, with a barrier in place of one that is waited for."""
        barrier = self.new_barrier()
        self._add(switch, rule)
        self._out.append((switch, barrier))
        self._sent[switch] = barrier.token
        if switch in self._waiting:
            self._waiting[switch] = barrier.token

    def new_barrier(self) -> Barrier:
        """Return a barrier with a token that no other one has."""
        self.last_barrier = self.last_barrier % MAX_BARRIER_TOKEN + 1
        return Barrier(self.last_barrier)

    def _add(self, switch: int, rule: Rule) -> None:
        has, key = self.installed[switch], rule.key
        before = has.get(key)
        if before is not None:
            self._replaced.setdefault(switch, set()).add(key)
            if _leads_on(before):
                self._spare.add(switch)
        refusal = self._refused.get((switch, key)) if self._refused else None
        if refusal is not None:
            self._refused[switch, key] = Refusal(refusal.count, math.inf)
        self._add_groups(switch, rule)
        self._add_meter(switch, rule)
        self._put(has, rule)
        self._out.append((switch, AddRule(rule)))
        if not _differ(rule, self.target.get(switch, {}).get(key)):
            # One that is refused is opened anew.
            self._close(switch, key)
        if acl.decides(rule):
            self._unproven.add(switch)

    def _add_groups(self, switch: int, rule: Rule) -> None:
        """Create the groups that a rule leads to, and that a switch does not have yet."""
        for number in groups_of(rule):
            known = self.groups.setdefault(switch, set())
            buckets = buckets_of(number)
            if number not in known and buckets is not None:
                known.add(number)
                self._out.append((switch, SetFailoverGroup(number, buckets, is_new=True)))
                # A switch may carry out messages in another order (OpenFlow 1.3 §6.2).
                self._out.append((switch, self.new_barrier()))

    def _add_meter(self, switch: int, rule: Rule) -> None:
        """Create the meter that a rule leads to, if a switch does not have it yet."""
        if rule.meter is None or rule.meter in (known := self.meters.setdefault(switch, {})):
            return
        # All that it lacks: one barrier is enough for them.
        missing = [each for number, each in self.wanted_meters.get(switch, {}).items() if number not in known]
        for meter in missing:
            known[meter.number] = meter
            self._out.append((switch, meter))
        if missing:
            self._out.append((switch, self.new_barrier()))

    def _delete_spare(self) -> None:
        """Delete groups and meters that no rule leads to, where switches have taken all that they were sent."""
        for switch in [each for each in self._spare if each not in self.slow and each not in self._replaced]:
            self._spare.discard(switch)
            known = (self.installed.get(switch, {}), self.target.get(switch, {}))
            used = {number for has in known for rule in has.values() for number in groups_of(rule)}
            metered = {rule.meter for has in known for rule in has.values() if rule.meter is not None}
            spare = sorted(self.groups.get(switch, set()) - used)
            for number in spare:
                self.groups[switch].discard(number)
                self._out.append((switch, DeleteGroup(number)))
            spare_meters = sorted(self.meters.get(switch, {}).keys() - metered)
            for number in spare_meters:
                del self.meters[switch][number]
            if spare_meters:
                self._rates.keep(switch, self.wanted_meters.get(switch, {}), self.meters[switch])
            for number in spare_meters:
                self._out.append((switch, DeleteMeter(number)))
            if spare or spare_meters:
                # Else one of them that is created anew could be deleted after that.
                self._out.append((switch, self.new_barrier()))

    # Installed rules, and the keys at which they may differ from the target.

    def tags_in_use(self) -> frozenset[int]:
        """Return the tags that rules of some switch still know."""
        return frozenset(self._tags)

    def _put(self, has: Rules, rule: Rule) -> None:
        key = rule.key
        tag = tag_of(key)
        if tag is not None and key not in has:
            self._tags[tag] += 1
        has[key] = rule

    def _drop(self, switch: int, key: RuleKey) -> None:
        gone = self.installed[switch].pop(key, None)
        if key not in self.target.get(switch, {}):
            self._close(switch, key)
        if gone is not None:
            self._untag(key)
            if _leads_on(gone):
                self._spare.add(switch)

    def _untag(self, key: RuleKey) -> None:
        tag = tag_of(key)
        if tag is not None:
            self._tags[tag] -= 1
            if not self._tags[tag]:
                del self._tags[tag]

    def _forget(self, switch: int) -> None:
        for key in self.installed.pop(switch, {}):
            self._untag(key)
        for known in (self._open, self._open_surplus, self._replaced, self._sent, self._unsent, self._gaps):
            known.pop(switch, None)
        self._is_retiring_old = True
        self._compared.discard(switch)
        self._unproven.discard(switch)
        for each, refusal in self._refused.items():
            if each[0] == switch and math.isinf(refusal.retry_at):
                # The list that follows shows whether it took it.
                self._refused[each] = Refusal(refusal.count, 0.0)

    def _compare(self, switch: int) -> None:
        """Find all keys at which a switch differs from the target."""
        self._open.pop(switch, None)
        self._open_surplus.pop(switch, None)
        self._is_retiring_old = True
        wanted = self.target.get(switch)
        if wanted is None:
            return
        self._compared.add(switch)
        has = self.installed[switch]
        missing = {key: None for key, rule in wanted.items() if _differ(has.get(key), rule)}
        if missing:
            self._open[switch] = missing
        surplus = {key: None for key in has if key not in wanted}
        if surplus:
            self._open_surplus[switch] = surplus
        if missing or surplus:
            self._gaps[switch] = {key for key in missing if acl.decides(wanted[key])}

    def _compare_some(self, switch: int, keys: Iterable[RuleKey]) -> list[RuleKey]:
        """Return those of these keys at which a switch differs from the target."""
        has, wanted = self.installed[switch], self.target.get(switch, {})
        missing, surplus = self._open.setdefault(switch, {}), self._open_surplus.setdefault(switch, {})
        differing = []
        for key in keys:
            rule = wanted.get(key)
            if _differ(has.get(key), rule):
                (surplus if rule is None else missing)[key] = None
                (missing if rule is None else surplus).pop(key, None)
                differing.append(key)
            elif key in missing or key in surplus:
                self._close(switch, key)
            if self._retiring and (rule is not None or key not in has):
                self._retiring.pop((switch, key), None)
        return differing

    def _close(self, switch: int, key: RuleKey) -> None:
        """Take in that a switch does not differ from the target at a key any more."""
        self._open.get(switch, {}).pop(key, None)
        self._open_surplus.get(switch, {}).pop(key, None)
        self._gaps.get(switch, set()).discard(key)

    def _is_behind(self, now: float) -> bool:
        """Return true if there is a rule to add, to change or to delete."""
        some = (self._each_missing(now, prepare=prepare) for prepare in (True, False))
        return any(True for each in some for _ in each) or any(
            True for _ in self._each_new_surplus(self._open_surplus)
        )

    def _each_missing(self, now: float, *, prepare: bool) -> Iterator[tuple[int, Rule]]:
        """Yield missing and differing rules: of paths and delivery if `prepare`, else of the tables before."""
        for switch, keys in self._open.items():
            for key in keys:
                if (key[0] >= PATHS) is not prepare:
                    continue
                rule = self._missing(switch, key)
                if rule is not None and self._may_be_sent(now, switch, key):
                    yield switch, rule

    def _may_be_sent(self, now: float, switch: int, key: RuleKey) -> bool:
        """Return true unless a switch refused a rule just now, or one that is before it in order does not follow."""
        if self._refused and (refusal := self._refused.get((switch, key))) is not None and refusal.retry_at > now:
            return False
        return not (self.doubtful and tag_of(key) in self.doubtful and self.rank(switch, key))

    def _missing(self, switch: int, key: RuleKey) -> Rule | None:
        """Return the target's rule with a key, if the switch is there and does not have it."""
        has, rule = self.installed.get(switch), self.target.get(switch, {}).get(key)
        return rule if has is not None and rule is not None and _differ(has.get(key), rule) else None

    def _new_surplus(
        self, switches: Iterable[int] | None = None, *, is_wanted: Callable[[RuleKey], bool] | None = None
    ) -> list[tuple[int, RuleKey]]:
        """Return the rules that the target does without, and that are not about to be deleted."""
        some = self._open_surplus if switches is None else switches
        return sorted(self._each_new_surplus(some, is_wanted), key=_turn)

    def _each_new_surplus(
        self, switches: Iterable[int], is_wanted: Callable[[RuleKey], bool] | None = None
    ) -> Iterator[tuple[int, RuleKey]]:
        for switch in switches:
            keys: Iterable[RuleKey] = self._open_surplus.get(switch, ())
            if is_wanted is not None:
                keys = [key for key in keys if is_wanted(key)]
            for key in self._surplus(switch, keys) if keys else ():
                if (switch, key) not in self._retiring:
                    yield switch, key

    def _is_surplus(self, switch: int, key: RuleKey) -> bool:
        return bool(self._surplus(switch, (key,)))

    def _surplus(self, switch: int, keys: Iterable[RuleKey]) -> list[RuleKey]:
        """Return those of these rules that a switch has, and the target does without.

        Those of an access control list are left out as long as the list that takes over may have gaps.
        """
        has, wanted = self.installed.get(switch), self.target.get(switch)
        if has is None or wanted is None:
            return []
        found = [key for key in keys if key in has and key not in wanted]
        if any(key[0] == INGRESS and acl.decides(has[key]) for key in found) and not self.has_whole_list(switch):
            return [key for key in found if not acl.decides(has[key])]
        return found


@lru_cache(maxsize=4096)
def _another_rate(meter: SetMeter) -> SetMeter:
    """Return the message that gives a meter its rate where it is there already: many switches have the same."""
    return replace(meter, is_new=False)


def _leads_on(rule: Rule) -> bool:
    """Return true if a rule leads to a group or a meter."""
    return rule.meter is not None or bool(groups_of(rule))


def _turn(each: tuple[int, RuleKey]) -> int:
    """Return what orders rules that are to be deleted: access control lists' by priority, all others as they are."""
    table, priority, _ = each[1]
    return priority if table == INGRESS and priority >= acl.FIRST_PRIORITY else 0


def _differ(one: Rule | None, other: Rule | None) -> bool:
    # Most are the same object, and a comparison field by field takes a microsecond.
    return one is not other and one != other

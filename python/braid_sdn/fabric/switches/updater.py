"""From the rules that switches have to those they should have, without a moment in which packets are lost or loop.

Make before break, in four steps, each begun only when the one before is done everywhere:

1. prepare: new tags' rules, which no packet carries yet, and delivery to hosts; a barrier on every switch touched.
2. switch:  what puts tags on packets (tables 0 to 2), barriers, and the edges' new slot tables, until they follow.
3. drain:   packets with old tags finish their way.
4. retire:  what nobody needs any more is deleted.

What a switch has is what it last listed, changed by what it was sent since. A change may be broken off at any point
and begun anew towards another goal; deletions happen only at the end of one that was not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from braid_sdn.fabric.switches.rules import PATHS, Rules
from braid_sdn.openflow.messages import AddRule, Barrier, DeleteRule, Rule, RuleKey, ToSwitch

#: Seconds that packets with an old tag get to leave the network.
DRAIN = 0.5

#: Seconds that a switch gets to answer a barrier; after that its name is reported and the others go on.
BARRIER_TIMEOUT = 2.0

#: Seconds after which a rule that a switch refused is tried again.
REFUSED_RETRY = 30.0


class Step(IntEnum):
    """Where a change is."""

    IDLE = 0
    PREPARE = 1
    SWITCH = 2
    DRAIN = 3


@dataclass
class RuleUpdater:
    """Brings switches from what they have to what is wanted. Times are seconds of a monotonic clock."""

    drain: float = DRAIN
    #: What each switch has, as far as we know. A switch that is not here is not touched.
    installed: dict[int, Rules] = field(default_factory=dict)
    target: dict[int, Rules] = field(default_factory=dict)
    step: Step = Step.IDLE
    #: Switches that left a barrier unanswered in the last change.
    slow: set[int] = field(default_factory=set)
    #: How often rules were changed, for the reader.
    changes: int = 0
    _waiting: dict[int, int] = field(default_factory=dict)
    _deadline: float = 0.0
    _token: int = 0
    _refused: dict[tuple[int, RuleKey], float] = field(default_factory=dict)
    _out: list[tuple[int, ToSwitch]] = field(default_factory=list)
    _announce: bool = False
    #: Edges that do not follow their new tables yet.
    _unconfirmed: set[str] = field(default_factory=set)
    _announced: bool = False

    def handle_rules(self, now: float, switch: int, rules: Iterable[Rule]) -> None:
        """Take in what a switch has: after it connected, and at every audit."""
        self.installed[switch] = {rule.key: rule for rule in rules if rule.lease == 0}
        if self.installed[switch] != self.target.get(switch, self.installed[switch]):
            self._waiting.pop(switch, None)
            self._begin(now)

    def handle_gone(self, now: float, switch: int) -> None:
        """Forget a switch that is no longer connected."""
        self.installed.pop(switch, None)
        self.slow.discard(switch)
        if self._waiting.pop(switch, None) is not None:
            self._advance(now)

    def handle_barrier(self, now: float, switch: int, token: int) -> None:
        """A switch has done all it was sent before this barrier."""
        self.slow.discard(switch)
        if self._waiting.get(switch) == token:
            del self._waiting[switch]
            self._advance(now)

    def handle_confirmed(self, now: float, edge: str) -> None:
        """An edge follows its new table."""
        if edge in self._unconfirmed:
            self._unconfirmed.discard(edge)
            self._advance(now)

    def handle_refused(self, now: float, switch: int, rule: Rule) -> None:
        """A switch did not take a rule: it does not have it, and is not asked again for a while."""
        self.installed.get(switch, {}).pop(rule.key, None)
        self._refused[switch, rule.key] = now + REFUSED_RETRY

    def set_target(self, now: float, wanted: Mapping[int, Rules]) -> None:
        """Set a new goal; a change that is under way to another is broken off."""
        same = self.step is not Step.IDLE and self.target == wanted
        self.target = dict(wanted)
        if not same:
            self._begin(now)

    def handle_timeout(self, now: float) -> None:
        """Do what is due. The current time, not the deadline's, is passed; early and late calls are harmless."""
        lapsed = [key for key, until in self._refused.items() if until <= now]
        for key in lapsed:
            del self._refused[key]
        if self.step is Step.IDLE:
            if lapsed:
                self._begin(now)
        elif now >= self._deadline:
            self.slow |= set(self._waiting)
            self._waiting.clear()
            if self.step is Step.SWITCH:
                self._unconfirmed.clear()
                self._announced = True
            self._advance(now)

    @property
    def idle(self) -> bool:
        """Whether no change is under way."""
        return self.step is Step.IDLE

    def poll_timeout(self) -> float | None:
        """Return when to call `handle_timeout`, or None if nothing waits."""
        if self.step is not Step.IDLE:
            return self._deadline
        return min(self._refused.values(), default=None)

    def poll_messages(self) -> list[tuple[int, ToSwitch]]:
        """Return what to send, and to whom, in this order."""
        out, self._out = self._out, []
        return out

    def poll_announce(self) -> bool:
        """Whether edges are to be told their new slot tables now: all new tags' rules are in place.

        If so, `announced` is to be called once they can read them.
        """
        announce, self._announce = self._announce, False
        return announce

    def announced(self, now: float, edges: Iterable[str]) -> None:
        """Edges have new tables to read; those named here are waited for until they follow them, with a bound."""
        self._unconfirmed |= set(edges)
        self._announced = True
        if self.step is Step.SWITCH:
            self._advance(now)

    def _begin(self, now: float) -> None:
        self._waiting.clear()
        self._unconfirmed.clear()
        self.step = Step.IDLE
        # What edges do may change although no rule does.
        self._announce = True
        if self._missing(now, prepare=True) or self._missing(now, prepare=False) or self._surplus():
            self.changes += 1
            self.step = Step.PREPARE
            self._announce = self._announced = False
            self._send(now, self._missing(now, prepare=True))

    def _advance(self, now: float) -> None:
        """Go on to the next step if nothing is waited for."""
        while not self._waiting:
            if self.step is Step.PREPARE:
                self.step = Step.SWITCH
                self._announce = True
                self._send(now, self._missing(now, prepare=False), always=False)
            elif self.step is Step.SWITCH:
                if not self._announced or self._unconfirmed:
                    return
                self.step = Step.DRAIN
                self._deadline = now + (self.drain if self._surplus() else 0.0)
                if self._deadline > now:
                    return
            elif self.step is Step.DRAIN:
                if now < self._deadline:
                    return
                for switch, key in self._surplus():
                    del self.installed[switch][key]
                    self._out.append((switch, DeleteRule(key)))
                self.step = Step.IDLE
            else:
                return

    def _send(self, now: float, rules: list[tuple[int, Rule]], *, always: bool = True) -> None:
        """Send rules, and a barrier after the last of each switch."""
        self._token += 1
        touched: dict[int, None] = {}
        for switch, rule in rules:
            self.installed[switch][rule.key] = rule
            self._out.append((switch, AddRule(rule)))
            touched[switch] = None
        for switch in touched:
            self._out.append((switch, Barrier(self._token)))
            self._waiting[switch] = self._token
        self._deadline = now + BARRIER_TIMEOUT
        if always:
            self._advance(now)

    def _missing(self, now: float, *, prepare: bool) -> list[tuple[int, Rule]]:
        """What a switch lacks or has otherwise, of paths and delivery, or of all before."""
        return [
            (switch, rule)
            for switch, has in self.installed.items()
            for key, rule in self.target.get(switch, {}).items()
            if (rule.table >= PATHS) is prepare
            and has.get(key) != rule
            and self._refused.get((switch, key), 0.0) <= now
        ]

    def _surplus(self) -> list[tuple[int, RuleKey]]:
        return [
            (switch, key)
            for switch, has in self.installed.items()
            if switch in self.target
            for key in has
            if key not in self.target[switch]
        ]

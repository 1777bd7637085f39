"""Consistent updates of switches' rules (Reitblatt et al., 2012): no packet is lost or loops during a change.

Make before break, in four steps; each begins when the previous one is done on all switches:

1. prepare: add rules of new tags, which no packet carries yet, and of delivery; a barrier on every changed switch.
2. switch:  change the rules that tag packets (tables 0 to 2), with barriers, and distribute new slot tables to edges.
3. drain:   wait for packets with old tags.
4. retire:  delete switch rules that are not needed any more.

The state of a switch is its last listing plus all messages since. An update may be aborted at any point in favour of
another target; rules are deleted only at the end of a completed update.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from braid_sdn.fabric.switches.rules import PATHS, Rules
from braid_sdn.openflow.messages import AddRule, Barrier, DeleteRule, Rule, RuleKey, ToSwitch

#: Seconds for packets with an old tag to leave the network.
DRAIN = 0.5

#: Seconds to wait for a barrier reply; after that the switch is reported as slow and the update continues.
BARRIER_TIMEOUT = 2.0

#: Seconds after which a refused rule is tried again.
REFUSED_RETRY = 30.0


class Step(IntEnum):
    """Step of an update."""

    IDLE = 0
    PREPARE = 1
    SWITCH = 2
    DRAIN = 3


@dataclass
class RuleUpdater:
    """Updates switches from installed rules to the target. Times are seconds of a monotonic clock."""

    drain: float = DRAIN
    #: Rules of each switch, as far as known. A switch that is missing here is not touched.
    installed: dict[int, Rules] = field(default_factory=dict)
    target: dict[int, Rules] = field(default_factory=dict)
    step: Step = Step.IDLE
    #: Switches that left a barrier unanswered in the last update.
    slow: set[int] = field(default_factory=set)
    #: Number of updates.
    changes: int = 0
    _waiting: dict[int, int] = field(default_factory=dict)
    _deadline: float = 0.0
    _token: int = 0
    _refused: dict[tuple[int, RuleKey], float] = field(default_factory=dict)
    _out: list[tuple[int, ToSwitch]] = field(default_factory=list)
    _publish: bool = False
    #: Edges that have not acknowledged their new tables.
    _unconfirmed: set[str] = field(default_factory=set)
    _published: bool = False

    def handle_rules(self, now: float, switch: int, rules: Iterable[Rule]) -> None:
        """Take in a switch's rules, after it connected and at every audit."""
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
        """Take in that a switch has done all that was sent before this barrier."""
        self.slow.discard(switch)
        if self._waiting.get(switch) == token:
            del self._waiting[switch]
            self._advance(now)

    def handle_confirmed(self, now: float, edge: str) -> None:
        """Take in that an edge has acknowledged its new table."""
        if edge in self._unconfirmed:
            self._unconfirmed.discard(edge)
            self._advance(now)

    def handle_refused(self, now: float, switch: int, rule: Rule) -> None:
        """Take in that a switch refused a rule; it is tried again after REFUSED_RETRY."""
        self.installed.get(switch, {}).pop(rule.key, None)
        self._refused[switch, rule.key] = now + REFUSED_RETRY

    def set_target(self, now: float, wanted: Mapping[int, Rules]) -> None:
        """Set a new target; an update towards another one is aborted."""
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
                self._published = True
            self._advance(now)

    @property
    def idle(self) -> bool:
        """True if no update is in progress."""
        return self.step is Step.IDLE

    def poll_timeout(self) -> float | None:
        """Return when to call `handle_timeout`, or None if nothing waits."""
        if self.step is not Step.IDLE:
            return self._deadline
        return min(self._refused.values(), default=None)

    def poll_messages(self) -> list[tuple[int, ToSwitch]]:
        """Return messages to send with their switches, in this order."""
        out, self._out = self._out, []
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

    def _begin(self, now: float) -> None:
        self._waiting.clear()
        self._unconfirmed.clear()
        self.step = Step.IDLE
        # Edges' tables may change although no rule does.
        self._publish = True
        if self._missing(now, prepare=True) or self._missing(now, prepare=False) or self._surplus():
            self.changes += 1
            self.step = Step.PREPARE
            self._publish = self._published = False
            self._send(now, self._missing(now, prepare=True))

    def _advance(self, now: float) -> None:
        """Go on to the next step if nothing is waited for."""
        while not self._waiting:
            if self.step is Step.PREPARE:
                self.step = Step.SWITCH
                self._publish = True
                self._send(now, self._missing(now, prepare=False), always=False)
            elif self.step is Step.SWITCH:
                if not self._published or self._unconfirmed:
                    return
                self.step = Step.DRAIN
                self._deadline = now + (self.drain if self._surplus() else 0.0)
                if self._deadline > now:
                    return
            elif self.step is Step.DRAIN:
                if now < self._deadline:
                    return
                # Here, and nowhere else, a switch rule is deleted.
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
        """Missing and differing rules: of paths and delivery if `prepare`, else of the tables before."""
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

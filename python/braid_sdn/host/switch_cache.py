"""The switch's cache of decisions, which follows its rules a moment later.

Open vSwitch decides on most packets by a cache. Its threads compare that with the rules after each change, and twice
a second. A connection could begin by former rules in between, so what must not be followed by one waits for the
cache.

A barrier says that the rules are there. Then the switch is asked to answer once its threads have finished a
comparison (`revalidator/wait`): the one that ends first may have begun before the change, so it is asked twice. If
they have compared already when the question comes, they are idle, and the answer would come half a second later:
until it comes, a rule is written again from time to time, which has them compare.
"""

from __future__ import annotations

from braid_sdn.host.connections import Command
from braid_sdn.openflow.messages import AddRule, Barrier, Rule, ToSwitch

#: The question.
WAIT = Command("revalidator/wait", ())
#: Number of comparisons that have to end.
COMPARISONS = 2
#: Seconds after the question at which a rule is written again; the time doubles with each.
NUDGE_DELAY = 0.002


class SwitchCache:
    """The changes of rules, and those of them that the cache follows."""

    def __init__(self) -> None:
        """Create it, without changes."""
        self.changes = 0
        self.followed = 0
        #: Changes that the barrier or the question under way is about; None if there is none.
        self._goal: int | None = None
        #: Comparisons that have ended since the barrier; None before it.
        self._ended: int | None = None
        self._nudge: float | None = None
        self._nudge_delay = NUDGE_DELAY
        self._commands: list[Command] = []

    # Inputs.

    def handle_switch(self) -> None:
        """The switch has connected, and has an empty cache: forget what was under way."""
        self.followed, self._goal, self._nudge = self.changes, None, None

    def note_change(self) -> list[ToSwitch]:
        """Note that rules have been changed by the messages before those that are returned."""
        self.changes += 1
        return self._begin()

    def handle_barrier(self, now: float, token: int) -> None:
        """Handle the switch's answer to a barrier."""
        if token == self._goal and self._ended is None:
            self._ended = 0
            self._ask(now)

    def handle_compared(self, now: float) -> list[ToSwitch]:
        """Handle the answer to the question."""
        if self._goal is None or self._ended is None:
            return []
        self._ended += 1
        if self._ended < COMPARISONS:
            self._ask(now)
            return []
        return self.handle_refusal()

    def handle_refusal(self) -> list[ToSwitch]:
        """Take the cache for one that follows: it does, or the switch does not tell."""
        if self._goal is None:
            return []
        self.followed, self._goal, self._nudge = self._goal, None, None
        return self._begin() if self.followed < self.changes else []

    def handle_timeout(self, now: float, rule: Rule) -> list[ToSwitch]:
        """Have the switch compare again if it is time: it is told a rule that it has."""
        if self._nudge is None or now < self._nudge:
            return []
        self._nudge_delay *= 2
        self._nudge = now + self._nudge_delay
        return [AddRule(rule)]

    # Outputs.

    def poll_commands(self) -> list[Command]:
        """Return the questions to ask now."""
        commands, self._commands = self._commands, []
        return commands

    def poll_timeout(self) -> float | None:
        """Return the time of the next `handle_timeout`."""
        return self._nudge

    def _begin(self) -> list[ToSwitch]:
        if self._goal is not None:
            return []
        self._goal, self._ended = self.changes, None
        return [Barrier(self.changes)]

    def _ask(self, now: float) -> None:
        self._commands.append(WAIT)
        self._nudge_delay = NUDGE_DELAY
        self._nudge = now + self._nudge_delay

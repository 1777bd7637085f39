"""Answers of name servers that wait until their addresses are known.

A client connects as soon as it has an address. So an answer comes here first, and goes inside once the daemon has
judged it and the switch follows the names in it.

Limits, and why:

- No answer is held for longer than `HOLD_TIME`, whatever the daemon does. One that is late once has all further
  answers pass at once, until it judges again: a daemon that hangs costs a client one such time.
- A client has few answers here (`MAX_CLIENT_HELD`), and few a second come here at all (`CLIENT_RATE`): then the flows
  that bring more bypass the controller for a while, so a client whose accomplice sends it answers slows down nobody
  else's.
- Whatever has no room passes at once. Its address is known a moment after its client has it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from braid_sdn.host.desired import ClientKey

#: Longest time for which an answer is held, seconds. Clients ask again after a second or more.
HOLD_TIME = 0.5
#: Most answers that are held, of all clients and of one.
MAX_HELD, MAX_CLIENT_HELD = 1024, 64
#: Answers of one client in a second after which the flows that bring more bypass the controller, and for how many
#: seconds they do.
CLIENT_RATE, BYPASS_TIME = 100, 10.0

#: Bytes of a DNS message's header; the first bit of its third byte is set in answers, and the number of records
#: in the answer is at this place (RFC 1035 §4.1.1).
_HEADER, _FLAGS, _IS_ANSWER, _RECORDS = 12, 2, 0x80, slice(6, 8)


def has_records(message: bytes) -> bool:
    """Return True for a DNS message that answers with something."""
    return len(message) >= _HEADER and message[_FLAGS] & _IS_ANSWER != 0 and any(message[_RECORDS])


@dataclass(slots=True)
class HeldAnswer:
    """An answer, as the frame that goes inside."""

    client: ClientKey
    frame: bytes
    #: Time at which it goes inside in any case.
    due: float
    #: Number of changes that the switch has to follow before; None until the daemon has judged the answer.
    change: int | None = None


class HeldAnswers:
    """The answers that are held, the oldest first."""

    def __init__(self) -> None:
        """Create it, without any."""
        self._held: dict[int, HeldAnswer] = {}
        self._by_client: Counter[ClientKey] = Counter()
        self._next_number = 0
        #: True after the daemon was late, until it judges again.
        self.is_late = False
        #: Answers of each client since a time.
        self._counted: Counter[ClientKey] = Counter()
        self._counted_since = 0.0

    def __len__(self) -> int:
        return len(self._held)

    # Inputs.

    def exceeds_rate(self, now: float, client: ClientKey) -> bool:
        """Count an answer that has come; return True if its client gets too many."""
        if now - self._counted_since >= 1:
            self._counted.clear()
            self._counted_since = now
        self._counted[client] += 1
        return self._counted[client] > CLIENT_RATE

    def hold(self, now: float, client: ClientKey, frame: bytes) -> tuple[int, bool]:
        """Return the number of an answer for the daemon to judge, and True if it is held meanwhile."""
        self._next_number += 1
        number = self._next_number
        has_room = len(self._held) < MAX_HELD and self._by_client[client] < MAX_CLIENT_HELD
        is_held = has_room and not self.is_late
        if is_held:
            self._held[number] = HeldAnswer(client, frame, now + HOLD_TIME)
            self._by_client[client] += 1
        return number, is_held

    def handle_judged(self, number: int, change: int) -> None:
        """Note that the daemon has judged an answer and told its names, which are in the rules with this change."""
        self.is_late = False
        answer = self._held.get(number)
        if answer is not None:
            answer.change = change

    def start_anew(self) -> list[bytes]:
        """Return all that is held: another daemon judges from now on, or none."""
        self.is_late = False
        return self._take(list(self._held))

    # Outputs.

    def take_due(self, now: float, followed: int) -> list[bytes]:
        """Return the frames that go inside: the switch follows the changes up to this one, or their time is over."""
        numbers, has_waited = [], False
        for number, answer in self._held.items():
            is_over = answer.due <= now
            has_waited |= is_over and answer.change is None
            if is_over or (answer.change is not None and answer.change <= followed):
                numbers.append(number)
        self.is_late |= has_waited
        return self._take(numbers)

    def poll_timeout(self) -> float | None:
        """Return the time at which the next answer's time is over."""
        return next((answer.due for answer in self._held.values()), None)

    def _take(self, numbers: list[int]) -> list[bytes]:
        frames = []
        for number in numbers:
            answer = self._held.pop(number)
            frames.append(answer.frame)
            self._by_client[answer.client] -= 1
            if not self._by_client[answer.client]:
                del self._by_client[answer.client]
        return frames

"""What the travel service remembers and how it answers, without any I/O.

A wish is what the traveller asks for, and some words in it have a meaning, so that an input decides what happens:

- `none-left`: refused for good, with a kind such as `CarUnavailable`.
- `fails-once`: the first call with a key is refused for the moment; the next one is granted.
- `slow-8000`: decided at once, but the answer takes 8000 ms. A repeat of a booking is answered at once.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Literal

from msgspec import Struct

Verb = Literal["book", "cancel"]

# What a service sells: the letter of its booking numbers, and the kind of its refusal.
UNAVAILABLE = {
    "flights": "FlightUnavailable",
    "hotels": "HotelUnavailable",
    "cars": "CarUnavailable",
    "receipts": "ReceiptUnavailable",
}

SLOW = re.compile(r"\bslow-(\d{1,6})\b")


class Call(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One call as it came in. Everything but the key and the token is for the record."""

    service: str
    verb: Verb
    key: str
    """The idempotency key: the same for every attempt of one action."""
    cancels: str = ""
    """Of a cancel: the key of the booking that it undoes."""
    token: int
    """The fencing token of the attempt."""
    job: str
    step: str
    attempt: int
    agent_pid: int
    wish: str = ""


class Answer(Struct, frozen=True, kw_only=True):
    """How a call was answered, and whether it changed anything."""

    status: int
    effect: bool = False
    booking: str = ""
    kind: str = ""
    message: str = ""
    delay_ms: int = 0
    """How long the service takes to say it."""


class Bookings:
    """The rules of the service: what is booked, by which key.

    Args:
        deduplication: Whether keys are remembered. Without it a repeat books again and a cancel keeps no late booking
            out: what a careless service does.
        fencing: Whether a token below the newest one of its job and step is refused.
    """

    def __init__(self, *, deduplication: bool, fencing: bool) -> None:
        self._deduplication = deduplication
        self._fencing = fencing
        self._live: defaultdict[str, list[str]] = defaultdict(list)
        self._first: dict[str, str] = {}
        self._cancelled: set[str] = set()
        self._put_off: set[str] = set()
        self._newest: dict[tuple[str, str], int] = {}
        self._numbers: defaultdict[str, int] = defaultdict(lambda: 1000)

    def answer(self, call: Call) -> Answer:
        """Answer a call; its effect, if it has one, is remembered."""
        if call.service not in UNAVAILABLE:
            return _refusal(404, "NoSuchService", f"there is no {call.service!r}; there are {', '.join(UNAVAILABLE)}")
        newest = self._newest.get((call.job, call.step), 0)
        if self._fencing and call.token < newest:
            return _refusal(409, "StaleToken", f"token {call.token} is older than {newest}, which was here before")
        self._newest[call.job, call.step] = max(call.token, newest)
        return self._book(call) if call.verb == "book" else self._cancel(call)

    def recall(self, call: Call, answer: Answer) -> None:
        """Take up a call that an earlier process answered, as its record has it."""
        self._newest[call.job, call.step] = max(call.token, self._newest.get((call.job, call.step), 0))
        if call.verb == "cancel":
            self._undo(call.cancels)
        elif answer.effect:
            self._numbers[call.service] += 1
            self._keep(call.key, answer.booking)
        elif answer.status == 503:
            self._put_off.add(call.key)

    def _book(self, call: Call) -> Answer:
        if self._deduplication and call.key in self._cancelled:
            return _refusal(410, "Cancelled", f"{call.key} was cancelled before; nothing is booked for it any more")
        if self._deduplication and call.key in self._first:
            return Answer(status=200, booking=self._first[call.key])
        slow = SLOW.search(call.wish)
        delay_ms = int(slow[1]) if slow else 0
        if "none-left" in call.wish:
            return _refusal(409, UNAVAILABLE[call.service], f"no {call.service} are left", delay_ms)
        if "fails-once" in call.wish and call.key not in self._put_off:
            self._put_off.add(call.key)
            return _refusal(503, "TryLater", f"{call.service} are being counted; try again", delay_ms)
        self._numbers[call.service] += 1
        booking = f"{call.service[0].upper()}-{self._numbers[call.service]}"
        self._keep(call.key, booking)
        return Answer(status=200, effect=True, booking=booking, delay_ms=delay_ms)

    def _cancel(self, call: Call) -> Answer:
        """Cancel what a key has booked. Nothing booked is no mistake: an undo may be of a step that never happened."""
        undone = self._undo(call.cancels)
        return Answer(status=200, effect=bool(undone), booking=", ".join(undone))

    def _keep(self, key: str, booking: str) -> None:
        self._live[key].append(booking)
        self._first.setdefault(key, booking)

    def _undo(self, key: str) -> list[str]:
        self._cancelled.add(key)
        return self._live.pop(key, [])


def _refusal(status: int, kind: str, message: str, delay_ms: int = 0) -> Answer:
    return Answer(status=status, kind=kind, message=message, delay_ms=delay_ms)

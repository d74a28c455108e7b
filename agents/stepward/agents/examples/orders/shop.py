"""What a shop's services remember and how they answer, without any I/O.

Stock, shipments and notices know idempotency keys: a repeat is answered with what is there. Payments do not: every
request to charge is a new charge. But they can be asked which charges there are under a key. All of them refuse a token
below the newest of its job and step. Some words in a wish have a meaning, so that an input decides what happens:

- `sold-out`, `declined`, `no-courier`: refused for good.
- `answer-lost`: the first charge with a key takes effect, and its answer never comes.
- `request-lost`: the first charge with a key never takes effect, and no answer comes either.
- `late-9000`: the first shipment with a key is on its way for 9000 ms before it is decided.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Literal

from msgspec import Struct

Verb = Literal["reserve", "release", "charge", "find", "refund", "ship", "recall", "send"]

# What each service does and undoes, the first letter of its numbers, and which word in a wish it refuses as what.
DOES: dict[str, Verb] = {"stock": "reserve", "payments": "charge", "shipments": "ship", "notices": "send"}
UNDOES: dict[str, Verb] = {"stock": "release", "payments": "refund", "shipments": "recall"}
LETTERS = {"stock": "R", "payments": "C", "shipments": "P", "notices": "N"}
REFUSES = {
    "stock": ("sold-out", "SoldOut"),
    "payments": ("declined", "CardDeclined"),
    "shipments": ("no-courier", "NoCourier"),
}

# An answer that never comes comes when nobody waits for it any more.
NEVER_MS = 60_000

LATE = re.compile(r"\blate-(\d{1,6})\b")


class Call(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One call as it came in. Everything but the key and the token is for the record."""

    service: str
    verb: Verb
    key: str
    """The idempotency key of the attempt."""
    of: str = ""
    """Of an undo: the key of what it undoes."""
    token: int
    """The fencing token of the attempt."""
    job: str
    step: str
    attempt: int
    agent_pid: int
    wish: str = ""
    cents: int = 0


class Answer(Struct, frozen=True, kw_only=True):
    """How a call was answered, and whether it changed anything."""

    status: int
    effect: bool = False
    number: str = ""
    kind: str = ""
    message: str = ""
    delay_ms: int = 0
    """How long the service takes to say it."""


class Entry(Struct, frozen=True, kw_only=True):
    """One line of the shop's record."""

    at_ms: int
    call: Call
    answer: Answer


class Shop:
    """The rules."""

    def __init__(self) -> None:
        self._standing: defaultdict[str, list[str]] = defaultdict(list)
        self._undone: set[str] = set()
        self._seen: set[str] = set()
        self._held: set[str] = set()
        self._newest: dict[tuple[str, str], int] = {}
        self._numbers: defaultdict[str, int] = defaultdict(lambda: 1000)

    def hold_ms(self, call: Call) -> int:
        """How long a call is still on its way before it can be answered. Asked once, when it comes in."""
        late = LATE.search(call.wish)
        if late is None or call.verb != "ship" or call.key in self._held:
            return 0
        self._held.add(call.key)
        return int(late[1])

    def answer(self, call: Call) -> Answer:
        """Answer a call; its effect, if it has one, is remembered."""
        if call.verb == "find" and call.service == "payments":
            # Who only asks changes nothing, whatever his token is.
            return Answer(status=200, number=", ".join(self._standing.get(call.key, [])))
        if call.verb not in (DOES.get(call.service), UNDOES.get(call.service)):
            return _refusal(404, "NoSuchCall", f"{call.service!r} cannot {call.verb}")
        newest = self._newest.get((call.job, call.step), 0)
        if call.token < newest:
            return _refusal(409, "StaleToken", f"token {call.token} is older than {newest}, which was here before")
        self._newest[call.job, call.step] = call.token
        return self._undo(call) if call.verb == UNDOES.get(call.service) else self._do(call)

    def recall(self, call: Call, answer: Answer) -> None:
        """Take up a call that an earlier process answered: the same calls in the same order have the same effects."""
        self.hold_ms(call)
        assert self.answer(call) == answer, f"the record does not fit these rules at {call}"

    def _do(self, call: Call) -> Answer:
        if call.key in self._undone:
            return _refusal(410, "Undone", f"{call.key} was undone before; nothing is done for it any more")
        if call.service != "payments" and self._standing[call.key]:
            return Answer(status=200, number=self._standing[call.key][0])
        word, kind = REFUSES.get(call.service, ("", ""))
        if word and word in call.wish:
            return _refusal(409, kind, f"{call.wish!r} was refused")
        first = call.key not in self._seen
        self._seen.add(call.key)
        if first and "request-lost" in call.wish:
            return Answer(status=503, kind="Lost", message="the request was lost", delay_ms=NEVER_MS)
        self._numbers[call.service] += 1
        number = f"{LETTERS[call.service]}-{self._numbers[call.service]}"
        self._standing[call.key].append(number)
        lost = first and "answer-lost" in call.wish
        return Answer(status=200, effect=True, number=number, delay_ms=NEVER_MS if lost else 0)

    def _undo(self, call: Call) -> Answer:
        """Nothing there is no mistake: an undo may be of a step that never happened."""
        self._undone.add(call.of)
        undone = self._standing.pop(call.of, [])
        return Answer(status=200, effect=bool(undone), number=", ".join(undone))


def _refusal(status: int, kind: str, message: str) -> Answer:
    return Answer(status=status, kind=kind, message=message)

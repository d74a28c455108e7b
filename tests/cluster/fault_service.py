"""A service that records what was really done: the outside world of the fault matrix, in a process of its own.

    python -m tests.cluster.fault_service --port 0 --ledger deeds.jsonl

`keyed` is a careful service: a key takes effect once, a token that is older than the newest of its step is refused.
`plain` remembers neither, so whatever is done twice there is done twice. Both can be asked what became of a key.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from stepward.agents.examples import http_service
from stepward.agents.examples.ledger import Ledger

if TYPE_CHECKING:
    import argparse

MODULE = "tests.cluster.fault_service"

SLOW_ONCE = re.compile(r"slow-once-(\d{1,5})")


class Call(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One call as it came in."""

    service: Literal["keyed", "plain"]
    verb: Literal["do", "undo", "ask"]
    key: str
    about: str = ""
    """Of an undo and of a question: the key of the deed that it is about."""
    wish: str = ""
    """What is to go wrong: `fails-once`, `none-left`, or `slow-once-MS`, which is done and answered late."""
    token: int
    job: str
    step: str
    attempt: int
    agent_pid: int


class Answer(Struct, frozen=True, kw_only=True):
    """How a call was answered, and whether it changed anything."""

    status: int
    effect: bool = False
    happened: bool = False
    """To a question: whether the deed stands."""
    kind: str = ""
    message: str = ""
    delay_ms: int = 0


class Entry(Struct, frozen=True, kw_only=True):
    """One line of the record."""

    at_ms: int
    """Wall clock of the service."""
    call: Call
    answer: Answer


class Deeds:
    """What was done, by key, without any I/O."""

    def __init__(self) -> None:
        self._standing: defaultdict[str, int] = defaultdict(int)
        self._undone: set[str] = set()
        self._heard: set[str] = set()
        self._newest: dict[tuple[str, str], int] = {}

    def answer(self, call: Call) -> Answer:
        """Answer a call; its effect, if it has one, is remembered."""
        place = (call.job, call.step)
        if call.verb == "ask":
            return Answer(status=200, happened=self._standing[call.about] > 0)
        newest = self._newest.get(place, 0)
        if call.service == "keyed" and call.token < newest:
            return Answer(status=409, kind="StaleToken", message=f"token {call.token} is older than {newest}")
        self._newest[place] = max(newest, call.token)
        first = call.key not in self._heard
        self._heard.add(call.key)
        if "none-left" in call.wish:
            return Answer(status=409, kind="NoneLeft", message="there is nothing left")
        if first and "fails-once" in call.wish:
            return Answer(status=503, kind="TryLater", message="not now")
        slow = SLOW_ONCE.search(call.wish) if first else None
        delay_ms = int(slow[1]) if slow else 0
        effect = self._undo(call) if call.verb == "undo" else self._do(call)
        return Answer(status=200, effect=effect, delay_ms=delay_ms)

    def _do(self, call: Call) -> bool:
        if call.service == "keyed" and (self._standing[call.key] or call.key in self._undone):
            return False
        self._standing[call.key] += 1
        return True

    def _undo(self, call: Call) -> bool:
        """Nothing done is no mistake: an undo may be of what never happened. It keeps a late deed out."""
        self._undone.add(call.about)
        return self._standing.pop(call.about, 0) > 0


def entry(at_ms: int, call: Call, answer: Answer) -> Entry:
    """One line of the record."""
    return Entry(at_ms=at_ms, call=call, answer=answer)


async def run(arguments: argparse.Namespace) -> None:
    """Serve until it is told to end."""
    record = Ledger(arguments.ledger)
    service = http_service.HttpService(
        "the recording service", world=Deeds().answer, kind=Call, record=record, entry=entry
    )
    await http_service.run(service, record, arguments)


if __name__ == "__main__":
    asyncio.run(run(http_service.parser(MODULE, __doc__, port=0, ledger="stepward-deeds.jsonl").parse_args()))

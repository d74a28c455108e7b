"""What the cloud remembers and how it answers, without any I/O.

It keeps five kinds of things: addresses, volumes, machines, keys and names. A thing is created under the idempotency
key of its step, so a repeat finds it, and is deleted by that key, for good: what comes late for a deleted key is
refused. A machine is installed part by part. Some words in a wish have a meaning, so that an input decides what
happens:

- `taken`: refused for good, with the kind `NameTaken` (for names) or `NoneLeft`.
- `locked`: it is created, and cannot be deleted until somebody has unlocked it.
- `slow-300`: decided at once, but the answer takes 300 ms.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

Verb = Literal["create", "install", "delete", "unlock"]

# What there is, and the first letter of its ids.
KINDS = {"addresses": "A", "volumes": "V", "machines": "M", "keys": "K", "names": "N"}

SLOW = re.compile(r"\bslow-(\d{1,6})\b")


class Call(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One call as it came in. `job`, `step`, `attempt` and `agent_pid` say who asks; a person who unlocks has none."""

    service: str
    """What it is about, such as "volumes"."""
    verb: Verb
    key: str
    """The idempotency key of the attempt."""
    of: str = ""
    """The key under which the thing was created, where that is another one."""
    part: int = 0
    """Of an install: which part, from 1."""
    token: int = 0
    """The fencing token of the attempt."""
    job: str = ""
    step: str = ""
    attempt: int = 0
    agent_pid: int = 0
    wish: str = ""


class Answer(Struct, frozen=True, kw_only=True):
    """How a call was answered, and whether it changed anything."""

    status: int
    effect: bool = False
    id: str = ""
    kind: str = ""
    message: str = ""
    delay_ms: int = 0
    """How long the cloud takes to say it."""


class Entry(Struct, frozen=True, kw_only=True):
    """One line of the cloud's record."""

    at_ms: int
    call: Call
    answer: Answer


@dataclass
class Thing:
    """Something that exists."""

    id: str
    locked: bool = False
    parts: int = 0


class Cloud:
    """The rules."""

    def __init__(self) -> None:
        self._things: dict[str, Thing] = {}
        self._deleted: set[str] = set()
        self._newest: dict[tuple[str, str], int] = {}
        self._numbers: defaultdict[str, int] = defaultdict(lambda: 1000)

    def answer(self, call: Call) -> Answer:
        """Answer a call; its effect, if it has one, is remembered."""
        if call.service not in KINDS:
            return _refusal(404, "NoSuchKind", f"there are no {call.service!r}; there are {', '.join(KINDS)}")
        if call.verb == "unlock":
            return self._unlock(call)
        newest = self._newest.get((call.job, call.step), 0)
        if call.token < newest:
            return _refusal(409, "StaleToken", f"token {call.token} is older than {newest}, which was here before")
        self._newest[call.job, call.step] = call.token
        match call.verb:
            case "create":
                return self._create(call)
            case "install":
                return self._install(call)
            case "delete":
                return self._delete(call)

    def recall(self, call: Call, answer: Answer) -> None:
        """Take up a call that an earlier process answered: the same calls in the same order have the same effects."""
        assert self.answer(call) == answer, f"the record does not fit these rules at {call}"

    def _create(self, call: Call) -> Answer:
        if call.key in self._deleted:
            return _refusal(410, "Deleted", f"{call.key} was deleted before; nothing is created for it any more")
        if call.key in self._things:
            return Answer(status=200, id=self._things[call.key].id)
        delay_ms = _delay_ms(call.wish)
        if "taken" in call.wish:
            kind = "NameTaken" if call.service == "names" else "NoneLeft"
            return _refusal(409, kind, f"{call.wish!r} cannot be had", delay_ms)
        self._numbers[call.service] += 1
        thing = Thing(f"{KINDS[call.service]}-{self._numbers[call.service]}", locked="locked" in call.wish)
        self._things[call.key] = thing
        return Answer(status=200, effect=True, id=thing.id, delay_ms=delay_ms)

    def _install(self, call: Call) -> Answer:
        thing = self._things.get(call.key)
        if thing is None:
            return _refusal(410, "Deleted", f"there is no machine under {call.key}")
        if call.part > thing.parts + 1:
            return _refusal(409, "PartMissing", f"part {call.part} needs part {call.part - 1}; {thing.parts} are there")
        effect = call.part == thing.parts + 1
        thing.parts = max(thing.parts, call.part)
        return Answer(status=200, effect=effect, id=thing.id, delay_ms=_delay_ms(call.wish) if effect else 0)

    def _delete(self, call: Call) -> Answer:
        """Nothing there is no mistake: an undo may be of a step that never happened."""
        thing = self._things.get(call.of)
        if thing is not None and thing.locked:
            return _refusal(423, "Locked", f"{thing.id} is locked by its owner; it must be unlocked first")
        self._deleted.add(call.of)
        self._things.pop(call.of, None)
        return Answer(status=200, effect=thing is not None, id=thing.id if thing else "")

    def _unlock(self, call: Call) -> Answer:
        thing = self._things.get(call.of)
        if thing is None:
            return _refusal(404, "NoSuchThing", f"there is nothing under {call.of}")
        effect, thing.locked = thing.locked, False
        return Answer(status=200, effect=effect, id=thing.id)


def _delay_ms(wish: str) -> int:
    slow = SLOW.search(wish)
    return int(slow[1]) if slow else 0


def _refusal(status: int, kind: str, message: str, delay_ms: int = 0) -> Answer:
    return Answer(status=status, kind=kind, message=message, delay_ms=delay_ms)

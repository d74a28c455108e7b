"""How the steps of a definition are repeated, bounded, undone and asked about. Each is checked where it is made.

Words such as "non_idempotent" are those of definition files. A duration is a `timedelta`, a text such as "500ms" or
"1h30m", or a number of seconds, in whole milliseconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from stepward.client.definition_file import UINT32_MAX, enum_words
from stepward.client.durations import DURATION_MS_MAX, format_duration, parse_duration
from stepward.client.errors import DefinitionError
from stepward.client.yaml_nodes import suggestion
from stepward.v1 import definition_pb2

if TYPE_CHECKING:
    from google.protobuf.message import Message

Duration: TypeAlias = timedelta | str | float
Effect: TypeAlias = Literal["idempotent", "non_idempotent", "pivot", "irreversible"]
UndoEffect: TypeAlias = Literal["idempotent", "non_idempotent"]
StartMode: TypeAlias = Literal["on_offer", "on_accept"]
OnUnknown: TypeAlias = Literal["escalate", "compensate"]
OnExhausted: TypeAlias = Literal["compensate", "escalate", "continue", "fail"]
Reassign: TypeAlias = Literal["any_agent", "avoid_same_agent"]
Approval: TypeAlias = Literal["not_required", "required"]
OnDeadline: TypeAlias = Literal["cancel", "compensate", "fail"]

NAME_CHARS_MAX = 128
FACTOR_MAX = 100.0

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How failed attempts are repeated. What is left out has the server's default.

    The wait before attempt n+1 is drawn evenly from zero to min(initial x factor^(n-1), cap).

    Args:
        attempts_max: How many attempts may start in all, from 1.
        initial: The first wait.
        factor: By what each wait grows, 1 to 100.
        cap: The longest wait.
        non_retryable_kinds: Kinds of failures that are not repeated.
        time_max: No attempt starts later than this after the first became ready.

    Raises:
        DefinitionError: One of them is out of its bounds.
    """

    attempts_max: int | None = None
    initial: Duration | None = None
    factor: float | None = None
    cap: Duration | None = None
    non_retryable_kinds: Sequence[str] = ()
    time_max: Duration | None = None

    def __post_init__(self) -> None:
        self.to_proto()

    def to_proto(self) -> definition_pb2.RetryPolicy:
        """The contract's message."""
        policy = definition_pb2.RetryPolicy()
        if self.attempts_max is not None:
            policy.attempts_max = _attempts_max(self.attempts_max)
        if self.factor is not None:
            policy.factor = _factor(self.factor)
        set_duration(policy.initial, self.initial, "Retry: initial", at_least_ms=0)
        set_duration(policy.cap, self.cap, "Retry: cap", at_least_ms=0)
        set_duration(policy.time_max, self.time_max, "Retry: time_max", at_least_ms=1)
        if self.initial is not None and self.cap is not None:
            at_most(policy.initial, policy.cap, "Retry: initial", "cap")
        policy.non_retryable_kinds.extend(_kinds(self.non_retryable_kinds))
        return policy


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """How long things may take. What is left out has the server's default, or no bound.

    Args:
        start_to_close: From the start of an attempt to its outcome.
        queue: From ready to the start of an attempt.
        heartbeat: The longest time between two signs of life of a started attempt; any progress report is one.
        schedule_to_close: From first ready to the outcome, over all attempts and the waits between them.

    Raises:
        DefinitionError: One of them is no duration above zero.
    """

    start_to_close: Duration | None = None
    queue: Duration | None = None
    heartbeat: Duration | None = None
    schedule_to_close: Duration | None = None

    def __post_init__(self) -> None:
        self.to_proto()

    def to_proto(self) -> definition_pb2.Timeouts:
        """The contract's message."""
        timeouts = definition_pb2.Timeouts()
        for name in ("start_to_close", "queue", "heartbeat", "schedule_to_close"):
            set_duration(getattr(timeouts, name), getattr(self, name), f"Timeouts: {name}", at_least_ms=1)
        for name, longer in (
            ("heartbeat", "start_to_close"),
            ("start_to_close", "schedule_to_close"),
            ("queue", "schedule_to_close"),
        ):
            if getattr(self, name) is not None and getattr(self, longer) is not None:
                at_most(getattr(timeouts, name), getattr(timeouts, longer), f"Timeouts: {name}", longer)
        return timeouts


@dataclass(frozen=True)
class Undo:
    """How a step is compensated.

    Args:
        action: What handler undoes it. Its input has "input", "output", "outcome" and "idempotency_keys".
        queue: Which agents may take it. Left out: the step's.
        retry: How failed attempts are repeated.
        timeouts: How long things may take.
        effect: Whether the undo may be repeated without harm.

    Raises:
        DefinitionError: One of them is wrong.
    """

    action: str
    queue: str | None = None
    retry: Retry | None = None
    timeouts: Timeouts | None = None
    effect: UndoEffect | None = None

    def __post_init__(self) -> None:
        self.to_proto()

    def to_proto(self) -> definition_pb2.Undo:
        """The contract's message."""
        undo = definition_pb2.Undo(action=checked_name(self.action, "Undo: action"))
        if self.queue is not None:
            undo.queue = checked_name(self.queue, "Undo: queue")
        set_options(undo, self.retry, self.timeouts, "Undo")
        set_word(undo, "effect", self.effect, "Undo: effect")
        return undo


@dataclass(frozen=True)
class Verify:
    """How the remote service is asked what became of an attempt of unknown outcome.

    Args:
        action: What handler asks. Its input has "input" and "idempotency_key"; its output says in "happened" whether it
            happened (true, with the step's output in "output"; false; null when it cannot tell).
        queue: Which agents may take it. Left out: the step's.
        retry: How failed attempts are repeated.
        timeouts: How long things may take.

    Raises:
        DefinitionError: One of them is wrong.
    """

    action: str
    queue: str | None = None
    retry: Retry | None = None
    timeouts: Timeouts | None = None

    def __post_init__(self) -> None:
        self.to_proto()

    def to_proto(self) -> definition_pb2.Verify:
        """The contract's message."""
        verify = definition_pb2.Verify(action=checked_name(self.action, "Verify: action"))
        if self.queue is not None:
            verify.queue = checked_name(self.queue, "Verify: queue")
        set_options(verify, self.retry, self.timeouts, "Verify")
        return verify


def checked_name(name: object, place: str) -> str:
    """A name, if the contract allows it.

    Raises:
        DefinitionError: It does not.
    """
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise DefinitionError(f"{place} is {name!r}; it must be 1 to {NAME_CHARS_MAX} of A-Z a-z 0-9 . _ -")


def set_options(message: Any, retry: object, timeouts: object, place: str) -> None:
    """Set what steps, undos and verifies have alike.

    Raises:
        DefinitionError: One of them is something else.
    """
    for name, kind, value in (("retry", Retry, retry), ("timeouts", Timeouts, timeouts)):
        if value is None:
            continue
        if not isinstance(value, kind):
            raise DefinitionError(f"{place}: {name} is {value!r}; write {kind.__name__}(...)")
        getattr(message, name).CopyFrom(value.to_proto())
        getattr(message, name).SetInParent()


def set_word(message: Message, field: str, word: str | None, place: str) -> None:
    """Set an enum by the word that definition files have for it.

    Raises:
        DefinitionError: There is no such word.
    """
    if word is None:
        return
    # Any, because the stubs give a descriptor two unrelated types.
    descriptor: Any = message.DESCRIPTOR.fields_by_name[field]
    words = enum_words(descriptor)
    if word not in words:
        raise DefinitionError(f"{place} is {word!r}{suggestion(str(word), list(words))}")
    setattr(message, field, words[word])


def set_duration(message: Any, duration: Duration | None, place: str, *, at_least_ms: int) -> None:
    """Set a duration.

    Raises:
        DefinitionError: It is none, is too short or too long, or is finer than a millisecond.
    """
    if duration is None:
        return
    duration_ms = _milliseconds(duration, place)
    if not at_least_ms <= duration_ms <= DURATION_MS_MAX:
        raise DefinitionError(f"{place} is {duration_ms} ms; it must be between {at_least_ms} and {DURATION_MS_MAX} ms")
    message.FromMilliseconds(duration_ms)


def at_most(duration: Any, longer: Any, place: str, name: str) -> None:
    """Check a duration against another one that was given beside it.

    Raises:
        DefinitionError: It is longer.
    """
    if duration.ToTimedelta() > longer.ToTimedelta():
        told = format_duration(duration.ToTimedelta())
        raise DefinitionError(f"{place} is {told}; it must be at most {name}, {format_duration(longer.ToTimedelta())}")


def _milliseconds(duration: object, place: str) -> int:
    match duration:
        case timedelta():
            microseconds = duration // timedelta(microseconds=1)
            total_ms = Decimal(microseconds) / 1_000
        case str():
            try:
                return parse_duration(duration) // timedelta(milliseconds=1)
            except ValueError as error:
                raise DefinitionError(f"{place}: {error}") from None
        case bool():
            raise DefinitionError(_no_duration(duration, place))
        case int():
            return duration * 1_000
        case float() if math.isfinite(duration):
            # By its shortest digits: 0.1 s is 100 ms, although the float is not quite a tenth.
            total_ms = Decimal(repr(duration)) * 1_000
        case _:
            raise DefinitionError(_no_duration(duration, place))
    if total_ms != int(total_ms):
        raise DefinitionError(f"{place} is {duration!r}, which is finer than a millisecond")
    return int(total_ms)


def _no_duration(duration: object, place: str) -> str:
    return f'{place} is {duration!r}; write a timedelta, a text such as "30s" or "500ms", or a number of seconds'


def _attempts_max(attempts_max: object) -> int:
    if isinstance(attempts_max, bool) or not isinstance(attempts_max, int) or not 1 <= attempts_max <= UINT32_MAX:
        raise DefinitionError(
            f"Retry: attempts_max is {attempts_max!r}; it must be a whole number from 1 (nothing is repeated) to "
            f"{UINT32_MAX}"
        )
    return attempts_max


def _factor(factor: object) -> float:
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= FACTOR_MAX:
        raise DefinitionError(f"Retry: factor is {factor!r}; it must be a number between 1 and {FACTOR_MAX:g}")
    return float(factor)


def _kinds(kinds: Iterable[object]) -> list[str]:
    if isinstance(kinds, str) or not isinstance(kinds, list | tuple | set | frozenset):
        raise DefinitionError(f"Retry: non_retryable_kinds is {kinds!r}; write a list of names")
    # A set has no order of its own, and equal definitions are to have equal bytes.
    ordered = sorted(map(str, kinds)) if isinstance(kinds, set | frozenset) else list(kinds)
    for kind in ordered:
        if not isinstance(kind, str) or not kind:
            raise DefinitionError(f"Retry: non_retryable_kinds has {kind!r}; a kind is a short name")
    return [str(kind) for kind in ordered]

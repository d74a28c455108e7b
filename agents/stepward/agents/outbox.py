"""Reports that wait: for the next message, or for their answer.

A report is kept until it is answered and is sent again on a new stream; an answer names its attempt and comes in the
order of the reports, so the oldest report of that attempt is the one that it answers. What the cluster could not record
rests here for a while and is sent again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from stepward.agents.attempts import AttemptKey
from stepward.v1 import agent_service_pb2 as wire

# One message carries reports up to about this size, or a single larger one. gRPC refuses messages above 4 MiB.
REPORT_BYTES_MAX: Final = 1 << 20

# And at most so many: the cluster takes no more in one message.
REPORT_ATTEMPTS_MAX: Final = 1_000

# How long a report rests that the cluster could not record: the first time, and at most, doubling in between.
REST_INITIAL_MS: Final = 1_000
REST_MS_MAX: Final = 30_000

# And how often it is sent again: over two minutes, in which a leader can be replaced.
REPEATS_MAX: Final = 8

# What an attempt's last word makes superfluous.
PRELUDES: Final = frozenset({"accepted", "started"})


class Pending(msgspec.Struct, frozen=True):
    """A report that waits."""

    key: AttemptKey
    event: str
    report: wire.AttemptReport
    progress: wire.AttemptReport | None
    """Goes before it, once: what the next attempt may read."""
    repeats: int = 0
    """How often the cluster could not record it."""


class Outbox:
    """Reports in the order in which they were made."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[AttemptKey, str], Pending] = {}
        self._sent: dict[tuple[AttemptKey, str], Pending] = {}
        self._sent_events: dict[AttemptKey, list[str]] = {}
        self._resting: dict[tuple[AttemptKey, str], tuple[int, Pending]] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sent) + len(self._resting)

    def add(self, report: wire.AttemptReport, *, progress: wire.AttemptReport | None = None) -> None:
        """Take a report. The same one again, while the first is not answered, is the first."""
        event = report.WhichOneof("event")
        assert event is not None
        key = AttemptKey.of(report.attempt)
        place = (key, event)
        if place in self._sent or place in self._waiting or place in self._resting:
            return
        if event not in PRELUDES:
            self._drop_preludes(key)
        self._waiting[key, event] = Pending(key, event, report, progress)

    def _drop_preludes(self, key: AttemptKey) -> None:
        for event in PRELUDES:
            self._waiting.pop((key, event), None)

    def take(self) -> Iterator[wire.Report]:
        """Messages with all that waits. From now on they wait for their answers."""
        message, size = wire.Report(), 0
        for pending in list(self._waiting.values()):
            length = pending.report.ByteSize()
            if message.attempts and (size + length > REPORT_BYTES_MAX or len(message.attempts) >= REPORT_ATTEMPTS_MAX):
                yield message
                message, size = wire.Report(), 0
            if pending.progress is not None:
                message.attempts.append(pending.progress)
            message.attempts.append(pending.report)
            size += length
            self._mark_sent(pending)
        if message.attempts:
            yield message

    def _mark_sent(self, pending: Pending) -> None:
        del self._waiting[pending.key, pending.event]
        self._sent[pending.key, pending.event] = pending
        self._sent_events.setdefault(pending.key, []).append(pending.event)

    def answered(self, key: AttemptKey) -> Pending | None:
        """The report that is answered now, done with. None: nothing of that attempt waits for an answer."""
        events = self._sent_events.get(key)
        if not events:
            return None
        event = events.pop(0)
        if not events:
            del self._sent_events[key]
        return self._sent.pop((key, event))

    def rest(self, pending: Pending, now_ms: int) -> bool:
        """Keep a report that the cluster could not record, to be sent again. False: that was tried often enough."""
        if pending.repeats >= REPEATS_MAX:
            return False
        due_at_ms = now_ms + min(REST_MS_MAX, REST_INITIAL_MS << pending.repeats)
        again = msgspec.structs.replace(pending, repeats=pending.repeats + 1)
        self._resting[pending.key, pending.event] = (due_at_ms, again)
        return True

    def wake(self, now_ms: int) -> None:
        """Let go what has rested long enough."""
        for place, (due_at_ms, pending) in list(self._resting.items()):
            if now_ms >= due_at_ms:
                del self._resting[place]
                self._waiting[place] = pending

    def stream_closed(self) -> None:
        """What was not answered is sent again, without what a later report of the same attempt says anyway."""
        again = {**self._sent, **self._waiting}
        spoken = {key for key, event in (*again, *self._resting) if event not in PRELUDES}
        self._waiting = {
            place: pending
            for place, pending in again.items()
            if pending.event not in PRELUDES or pending.key not in spoken
        }
        self._sent.clear()
        self._sent_events.clear()

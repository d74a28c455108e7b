"""Reports that wait: for the next message, or for their answer.

A report is kept until it is answered and is sent again on a new stream; an answer names its attempt and comes in the
order of the reports, so the oldest report of that attempt is the one that it answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from stepward.agents.attempts import AttemptKey
from stepward.v1 import agent_service_pb2 as wire

# One message carries reports up to about this size, or a single larger one. gRPC refuses messages above 4 MiB.
REPORT_BYTES_MAX: Final = 1 << 20

# And at most so many: the cluster takes no more in one message.
REPORT_ATTEMPTS_MAX: Final = 1_000

# What an attempt's last word makes superfluous.
_PRELUDES: Final = frozenset({"accepted", "started"})


@dataclass(frozen=True, slots=True)
class _Pending:
    key: AttemptKey
    event: str
    report: wire.AttemptReport
    progress: wire.AttemptReport | None
    """Goes before it, once: what the next attempt may read."""


class Outbox:
    """Reports in the order in which they were made."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[AttemptKey, str], _Pending] = {}
        self._sent: dict[tuple[AttemptKey, str], _Pending] = {}
        self._sent_events: dict[AttemptKey, list[str]] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sent)

    def add(self, report: wire.AttemptReport, *, progress: wire.AttemptReport | None = None) -> None:
        """Take a report. The same one again, while the first is not answered, is the first."""
        event = report.WhichOneof("event")
        assert event is not None
        key = AttemptKey.of(report.attempt)
        if (key, event) in self._sent or (key, event) in self._waiting:
            return
        if event not in _PRELUDES:
            self._drop_preludes(key)
        self._waiting[key, event] = _Pending(key, event, report, progress)

    def _drop_preludes(self, key: AttemptKey) -> None:
        for event in _PRELUDES:
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

    def _mark_sent(self, pending: _Pending) -> None:
        del self._waiting[pending.key, pending.event]
        self._sent[pending.key, pending.event] = pending
        self._sent_events.setdefault(pending.key, []).append(pending.event)

    def answered(self, key: AttemptKey) -> str | None:
        """The event whose report is answered now, done with. None: nothing of that attempt waits for an answer."""
        events = self._sent_events.get(key)
        if not events:
            return None
        event = events.pop(0)
        if not events:
            del self._sent_events[key]
        del self._sent[key, event]
        return event

    def stream_closed(self) -> None:
        """What was not answered is sent again, without what a later report of the same attempt says anyway."""
        again = {**self._sent, **self._waiting}
        spoken = {key for key, event in again if event not in _PRELUDES}
        self._waiting = {
            place: pending
            for place, pending in again.items()
            if pending.event not in _PRELUDES or pending.key not in spoken
        }
        self._sent.clear()
        self._sent_events.clear()

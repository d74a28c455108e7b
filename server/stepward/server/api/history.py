"""What happened to a job, in pages of events.

One row holds what one batch did, which may be many events, so a place in a history is a sequence and a number of
events of that row that come before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stepward.server.api import convert, pages
from stepward.server.core import keys, rows, views
from stepward.v1 import job_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepward.server.core.rows import DefinitionBody, History, Job
    from stepward.server.shard import Reading


class Place(NamedTuple):
    """Behind the first `skipped` events of the row `sequence`; before that row when none are skipped."""

    sequence: int
    skipped: int = 0

    def text(self) -> str:
        """As a page token holds it."""
        return f"{self.sequence}.{self.skipped}"


START = Place(0)
# A sequence has 48 bits in a token of an assignment.
_DIGITS_MAX = 15


def parse_place(text: str) -> Place:
    """The place in a page token of ours; the start for an empty one."""
    if not text:
        return START
    sequence, _, skipped = text.partition(".")
    if not (_is_number(sequence) and _is_number(skipped)):
        raise pages.not_of_this_list()
    return Place(int(sequence), int(skipped))


def _is_number(text: str) -> bool:
    """Whether it is a number that a sequence can be; a digest is no secret, so a token may have been made up."""
    return text.isdecimal() and len(text) <= _DIGITS_MAX


def behind(revision: int) -> Place:
    """The place of everything newer than a revision."""
    return Place(revision + 1)


class Page(NamedTuple):
    """Some events, and where the next ones begin; None when there are none."""

    events: list[job_pb2.HistoryEvent]
    next: Place | None
    submitted_wall_ms: int


def page(reader: Reading, job_id: str, *, at: Place, count_max: int) -> Page | None:
    """Events of a job from a place on, the oldest first. None: there is no such job."""
    job = reader.get(keys.job(job_id))
    if job is None:
        return None
    assert isinstance(job, rows.Job)
    body = _body(reader, job)
    found: list[job_pb2.HistoryEvent] = []
    # Each row holds one event at least.
    entries = views.history(reader, job_id, after_sequence=max(0, at.sequence - 1), count_max=count_max + 1)
    for sequence, entry in entries:
        skipped = at.skipped if sequence == at.sequence else 0
        for number, event in enumerate(_events(sequence, entry, body)):
            if number < skipped:
                continue
            if len(found) == count_max:
                return Page(found, Place(sequence, number), job.submitted_wall_ms)
            found.append(event)
    return Page(found, None, job.submitted_wall_ms)


def _body(reader: Reading, job: Job) -> DefinitionBody:
    body = reader.get(keys.definition_body(job.definition_hash))
    assert isinstance(body, rows.DefinitionBody)
    return body


def _events(sequence: int, entry: History, body: DefinitionBody) -> Iterator[job_pb2.HistoryEvent]:
    """What one batch did to a job, outwards."""
    for event in entry.events:
        yield job_pb2.HistoryEvent(
            revision=sequence,
            at=convert.timestamp(entry.wall_ms),
            type=event.type.name,
            step_id="" if event.ordinal < 0 else body.steps[event.ordinal].id,
            attempt=event.attempt,
            token=event.token,
            session_id=event.session_id,
            detail=event.detail,
            led_time_ms=entry.led_ms,
            log_time_ms=entry.log_ms,
            due_in=convert.duration(event.due_in_ms) if event.due_in_ms else None,
            actor=event.actor,
        )

"""What happened to a job, in pages of events.

One row holds what one batch did, which may be many events, so a place in a history is a sequence and how much of that
row comes before it: its events, then the steps that moved without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from stepward.server.api import convert, pages
from stepward.server.core import keys, rows, views
from stepward.v1 import job_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepward.server.core.rows import DefinitionBody, Event, History, Job
    from stepward.server.reading import Reading


class Place(NamedTuple):
    """Behind the first `skipped` of what the row `sequence` tells; before that row when nothing is skipped."""

    sequence: int
    skipped: int = 0

    def text(self) -> str:
        """As a page token holds it."""
        return f"{self.sequence}.{self.skipped}"


START = Place(0)
# All that a page says. An event may say why with some KiB, a page may have a thousand events, and a client takes 4 MiB.
BYTES_MAX: Final = 2 << 20
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


class Told(NamedTuple):
    """The place before it, the position of its step (-1: the job itself), and an event outwards.

    None stands for a step that has changed its state without one.
    """

    place: Place
    ordinal: int
    event: job_pb2.HistoryEvent | None


def page(reader: Reading, job_id: str, *, at: Place, count_max: int) -> Page | None:
    """Events of a job from a place on, the oldest first. None: there is no such job.

    At most `count_max` events, and as many as fit into `BYTES_MAX`, but one at least.
    """
    job = reader.get(keys.job(job_id))
    if job is None:
        return None
    assert isinstance(job, rows.Job)
    found: list[job_pb2.HistoryEvent] = []
    size_bytes = 0
    for told in events(reader, job_id, _body(reader, job), at):
        if told.event is None:
            continue
        size_bytes += told.event.ByteSize()
        if len(found) == count_max or (found and size_bytes > BYTES_MAX):
            return Page(found, told.place, job.submitted_wall_ms)
        found.append(told.event)
    return Page(found, None, job.submitted_wall_ms)


def _body(reader: Reading, job: Job) -> DefinitionBody:
    body = reader.get(keys.definition_body(job.definition_hash))
    assert isinstance(body, rows.DefinitionBody)
    return body


def events(reader: Reading, job_id: str, body: DefinitionBody, at: Place) -> Iterator[Told]:
    """What happened to a job from a place on, outwards, read as it is taken."""
    for sequence, entry in views.history(reader, job_id, after_sequence=max(0, at.sequence - 1)):
        skipped = at.skipped if sequence == at.sequence else 0
        for number, event in enumerate(entry.events[skipped:], skipped):
            yield Told(Place(sequence, number), event.ordinal, _event(sequence, entry, event, body))
        for number, ordinal in enumerate(entry.moved, len(entry.events)):
            if number >= skipped:
                yield Told(Place(sequence, number), ordinal, None)


def _event(sequence: int, entry: History, event: Event, body: DefinitionBody) -> job_pb2.HistoryEvent:
    return job_pb2.HistoryEvent(
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

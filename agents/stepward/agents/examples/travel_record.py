"""Judge the travel service's record: what was sold to whom, and was it right?

The record is kept by the other side, so it knows what stepward cannot know about itself. All of this is pure: entries
and the final states of jobs go in, a report comes out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from stepward.agents.examples.ledger import Entry

# What a trip that took place has booked, and a trip that did not has not.
STEPS = ("flight", "hotel", "car", "receipt")

COMPLETED = "COMPLETED"


@dataclass(frozen=True, kw_only=True)
class Booking:
    """Something that was sold and not cancelled since."""

    key: str
    job: str
    step: str
    number: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a record shows. Everything in `breaches` is wrong; the rest is for the reader."""

    live: dict[str, int]
    """How many bookings stand, by key."""
    calls: int
    repeats: int
    """Calls with a key that had booked before: answered with the first booking."""
    stale_refused: int
    """Calls that were refused for their old token."""
    booked_twice: tuple[str, ...]
    """Keys that took effect more than once, also when one of the bookings was cancelled later."""
    double_bookings: tuple[str, ...]
    """Job and step with more than one booking that stands."""
    orphaned_charges: tuple[str, ...]
    """Job and step whose booking stands although the job did not complete."""
    missing: tuple[str, ...]
    """Job and step of a completed job without a booking."""
    tokens_went_back: tuple[str, ...]
    """Job and step in which an older token took effect after a newer one."""

    @property
    def breaches(self) -> list[str]:
        """One sentence for each thing that is wrong. Empty: all is well."""
        sentences = {
            "booked_twice": "took effect more than once",
            "double_bookings": "has more than one booking that stands",
            "orphaned_charges": "has a booking although the trip did not complete",
            "missing": "has no booking although the trip completed",
            "tokens_went_back": "took effect with an older token after a newer one",
        }
        assert sentences.keys() <= {field.name for field in fields(self)}
        return [f"{subject} {sentence}" for name, sentence in sentences.items() for subject in getattr(self, name)]


def check(entries: Iterable[Entry], states: Mapping[str, str], *, steps: tuple[str, ...] = STEPS) -> Report:
    """Judge a record.

    Args:
        entries: In the order of the record.
        states: The final state of every job that may stand in it, by id. A booking of a job that is not here is
            orphaned: nobody knows what it is for.
        steps: What a completed job must have booked.
    """
    entries = list(entries)
    effects = [entry for entry in entries if entry.answer.effect]
    live = _live(effects)
    by_step = Counter((booking.job, booking.step) for booking in live)
    booked = Counter(entry.call.key for entry in effects if entry.call.verb == "book")
    return Report(
        live=dict(Counter(booking.key for booking in live)),
        calls=len(entries),
        repeats=sum(_is_repeat(entry) for entry in entries),
        stale_refused=sum(entry.answer.kind == "StaleToken" for entry in entries),
        booked_twice=tuple(sorted(key for key, count in booked.items() if count > 1)),
        double_bookings=_names(place for place, count in by_step.items() if count > 1),
        orphaned_charges=_names(place for place in by_step if states.get(place[0]) != COMPLETED),
        missing=_names(
            (job, step)
            for job, state in states.items()
            for step in steps
            if state == COMPLETED and (job, step) not in by_step
        ),
        tokens_went_back=_names(_went_back(effects)),
    )


def _live(effects: list[Entry]) -> list[Booking]:
    """What stands after all bookings and cancels; a cancel takes back all that its key has booked so far."""
    standing: defaultdict[str, list[Booking]] = defaultdict(list)
    for entry in effects:
        call = entry.call
        if call.verb == "cancel":
            standing.pop(call.cancels, None)
        else:
            booking = Booking(key=call.key, job=call.job, step=call.step, number=entry.answer.booking)
            standing[call.key].append(booking)
    return [booking for bookings in standing.values() for booking in bookings]


def _went_back(effects: list[Entry]) -> set[tuple[str, str]]:
    newest: dict[tuple[str, str], int] = {}
    found = set()
    for entry in effects:
        place = (entry.call.job, entry.call.step)
        if entry.call.token < newest.get(place, 0):
            found.add(place)
        newest[place] = max(entry.call.token, newest.get(place, 0))
    return found


def _is_repeat(entry: Entry) -> bool:
    return entry.call.verb == "book" and entry.answer.status == 200 and not entry.answer.effect


def _names(places: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(sorted(f"{job}/{step}" for job, step in places))

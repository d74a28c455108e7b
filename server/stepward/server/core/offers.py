"""Who gets what: ready steps go to sessions with free slots, the oldest first.

Free slots are derived: a session's slots minus its assignment rows. Nothing counts up and down.
"""

from __future__ import annotations

import heapq
from itertools import islice
from typing import TYPE_CHECKING

from stepward.server.core import advance, breakers, keys, leases, rows, states
from stepward.server.core.rows import Effect, JobState, Part, StartMode

if TYPE_CHECKING:
    from stepward.server.core.batch import Batch
    from stepward.server.core.rows import Progress, Step, StepSpec

# Namespace and queue: which ready steps a session looks at.
Place = tuple[str, str]


class _Bidder:
    """A session with free slots, for the length of one batch."""

    __slots__ = ("actions", "free", "name", "session_id")

    def __init__(self, session_id: str, name: str, actions: frozenset[str], free: int) -> None:
        self.session_id = session_id
        self.name = name
        self.actions = actions
        self.free = free


def make_offers(batch: Batch) -> None:
    """Offer ready steps while there are free slots, at most `offers_max` in a batch.

    Places share these evenly, and what some leave goes to the others. Which one comes first moves on with every batch,
    so that none starves, even where there are more places than offers.
    """
    if next(iter(batch.draft.keys(keys.READY)), None) is None:
        return
    bidders = _bidders(batch)
    left = batch.limits.offers_max
    hungry = _rotated(list(bidders), by=batch.moment.sequence)
    # Each round ends it, or shares what some have left among those who took all that they were given.
    while left and hungry:
        share, still_hungry = max(1, left // len(hungry)), []
        for place in hungry:
            made = _fill_place(batch, place, bidders[place], min(share, left))
            left -= made
            if made == share:
                still_hungry.append(place)
        hungry = still_hungry


def _rotated(places: list[Place], *, by: int) -> list[Place]:
    """The same places, beginning with another one."""
    start = by % len(places) if places else 0
    return places[start:] + places[:start]


def _bidders(batch: Batch) -> dict[Place, list[_Bidder]]:
    """Sessions that may be offered something, by namespace and queue."""
    found: dict[Place, list[_Bidder]] = {}
    for key in list(batch.draft.keys(keys.SESSION)):
        session = batch.draft.require(key, rows.Session)
        if not session.connected or session.draining or session.ending or session.full:
            continue
        if not leases.heard_lately(session, led_ms=batch.moment.led_ms):
            continue
        session_id = key[1:].decode()
        free = session.slots - batch.draft.count(keys.assignments(session_id))
        if free > 0:
            bidder = _Bidder(session_id, session.name, frozenset(session.actions), free)
            found.setdefault((session.namespace, session.queue), []).append(bidder)
    return found


def _fill_place(batch: Batch, place: Place, bidders: list[_Bidder], offers_max: int) -> int:
    """Go through the ready steps of one queue in order. Returns how many offers were made."""
    room = min(offers_max, sum(bidder.free for bidder in bidders))
    if not room:
        return 0
    actions, guarded = sorted({a for b in bidders for a in b.actions}), breakers.any_is_there(batch)
    # An action whose breaker is not closed has room for a probe at most.
    rooms = {action: breakers.room(batch, *place, action, wanted=room) if guarded else room for action in actions}
    lanes = [
        _lane(batch, place, action, [b for b in bidders if action in b.actions], rooms[action])
        for action in actions
        if rooms[action]
    ]
    made = 0
    for _, job_id, ordinal, action, avoided in heapq.merge(*lanes):
        able = [b for b in bidders if b.free > 0 and action in b.actions and b.name != avoided]
        if able:
            # The one with the most room: work spreads over agents as they have slots.
            chosen = max(able, key=lambda bidder: bidder.free)
            chosen.free -= 1
            step = _offer(batch, chosen.session_id, job_id, ordinal)
            if guarded:
                breakers.offered(batch, job_id, ordinal, step)
            made += 1
        if made >= offers_max or not any(bidder.free > 0 for bidder in bidders):
            break
    return made


def _lane(
    batch: Batch, place: Place, action: str, able: list[_Bidder], room: int
) -> list[tuple[int, str, int, str, str | None]]:
    """The oldest ready steps of one action, at most as many as there is room for, each with the agent that it avoids.

    They are held in a list, since offers are written while they are gone through. Those of a job that is stopping are
    still there until the walk over its steps has come to them; at most so many are looked at.
    """
    prefix = keys.lane(*place, action)
    found: list[tuple[int, str, int, str, str | None]] = []
    for key in islice(batch.draft.keys(prefix), batch.limits.offers_max + room):
        if len(found) == room:
            break
        order, job_id, ordinal = keys.parse_ready(key, prefix)
        if not _may_be_offered(batch.progress(job_id)):
            continue
        avoided = _avoided(batch, job_id, ordinal)
        # One that waits for another agent must not stand before those that do not.
        if avoided is None or any(bidder.name != avoided for bidder in able):
            found.append((order, job_id, ordinal, action, avoided))
    return found


def _avoided(batch: Batch, job_id: str, ordinal: int) -> str | None:
    """The name of the agent that a ready step is not to be offered to as things stand, if there is one."""
    avoid = batch.require_step(job_id, ordinal).avoid
    return None if avoid is None or avoid.until_log_ms <= batch.moment.log_ms else avoid.agent


def _start(spec: StepSpec, part: Part) -> StartMode:
    """When a handler starts. What may be repeated with its key starts at once."""
    if part is Part.ACTION:
        return spec.start
    once = part is Part.UNDO and spec.undo is not None and spec.undo.effect is Effect.NON_IDEMPOTENT
    return StartMode.ON_ACCEPT if once else StartMode.ON_OFFER


def _may_be_offered(progress: Progress) -> bool:
    """Whether what stands in a lane of a job may leave it, and does not only wait for a walk to come to it."""
    return not (progress.state is JobState.PAUSED or progress.terminating or advance.is_stopping(progress))


def _offer(batch: Batch, session_id: str, job_id: str, ordinal: int) -> Step:
    """Grant a step to a session: the token is the batch's."""
    step = batch.step(job_id, ordinal)
    assert step is not None
    phase = states.phase(step.state)
    advance.unready(batch, job_id, ordinal, step)
    token = batch.moment.token
    assert token > step.token, (job_id, ordinal, token, step.token)
    assignment = rows.Assignment(phase.part, _start(batch.spec(job_id, ordinal), phase.part), batch.moment.led_ms)
    batch.draft.put(keys.assignment(session_id, token, job_id, ordinal), assignment)
    deadline = batch.led_in(batch.limits.accept_deadline_ms)
    step = batch.move(job_id, ordinal, step, phase.offered, deadline, token=token, session_id=session_id)
    batch.event(
        job_id, phase.was_offered, ordinal=ordinal, attempt=step.attempts + 1, token=token, session_id=session_id
    )
    return step

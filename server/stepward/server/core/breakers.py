"""Circuit breakers: an action whose attempts go wrong again and again is not offered for a while.

One for each action on a queue. It opens when too many of its outcomes within a window were bad; it stays open for a
time; then one probe at a time is let through, and a few that end well close it, or a window in which none ends badly.
So a service that is down is not called by the retries of every job, and no job uses up its attempts on it.

Bad is what may pass by itself: a failure that may be tried again, a timeout, an outcome that nobody knows. A failure
that is final, or says when to come back, is an answer, so it counts as good: the service works. Of a lost session one
outcome counts for each action that it had at work, since an agent that dies with a hundred steps says no more than one
that dies with one.

There is no row while all is well, and no cost but to look that there is none.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from stepward.server.core import keys, states
from stepward.server.core.breaker_rows import Breaker, Outcomes, Probe
from stepward.server.core.limits import cut
from stepward.server.core.parts import Trouble

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepward.server.core.batch import Batch
    from stepward.server.core.reader import Reader
    from stepward.server.core.rows import Failure, Step

# Parts of the window: an outcome counts for at least five of six of it.
_PARTS: Final = 6
# An agent was stopped, or forgot: that says nothing about the action.
_OF_THE_AGENT: Final = frozenset({"STOPPED", "INTERRUPTED", "NOT_HELD"})


def succeeded(batch: Batch, job_id: str, ordinal: int, step: Step) -> None:
    """An attempt has ended well."""
    if any_is_there(batch):
        _note(batch, job_id, ordinal, step, bad=False, told="")


def ended(
    batch: Batch, job_id: str, ordinal: int, step: Step, trouble: Trouble, failure: Failure, *, asked_later: bool
) -> None:
    """An attempt has ended without success. Those of a lost session are counted by `lost`.

    `asked_later`: the agent says when to come back. That is an answer, and it is asked again no sooner anyway.
    """
    if trouble is Trouble.LEASE_LOST or failure.kind in _OF_THE_AGENT:
        return
    retry = batch.policy(job_id, ordinal, states.phase(step.state)).retry
    bad = failure.retryable and not asked_later and failure.kind not in retry.non_retryable_kinds
    if bad or any_is_there(batch):
        _note(batch, job_id, ordinal, step, bad=bad, told=failure.told)


def lost(batch: Batch, session_id: str) -> None:
    """A session is lost with what it has at work: one bad outcome for each action, of the first so many attempts."""
    by_lane: dict[bytes, tuple[str, int, Step]] = {}
    for key in islice(batch.draft.keys(keys.assignments(session_id)), batch.limits.sweep_subjects_max):
        _, token, job_id, ordinal = keys.parse_assignment(key)
        step = batch.step(job_id, ordinal)
        if step is not None and step.token == token and step.state in states.HELD:
            by_lane.setdefault(_lane_of(batch, job_id, ordinal, step), (job_id, ordinal, step))
    for job_id, ordinal, step in by_lane.values():
        _note(batch, job_id, ordinal, step, bad=True, told=f"LEASE_LOST: session {session_id} was not heard from")


def any_is_there(batch: Batch) -> bool:
    """Whether there is any breaker; counted from memory."""
    return batch.draft.count(keys.BREAKER) > 0


def _lane_of(batch: Batch, job_id: str, ordinal: int, step: Step) -> bytes:
    policy = batch.policy(job_id, ordinal, states.phase(step.state))
    return keys.breaker(batch.job(job_id).namespace, policy.queue, policy.action)


def _note(batch: Batch, job_id: str, ordinal: int, step: Step, *, bad: bool, told: str) -> None:
    key = _lane_of(batch, job_id, ordinal, step)
    row = batch.draft.read(key, Breaker)
    if row is None:
        if bad:
            batch.draft.put(key, _counted(batch, Breaker(), bad=True, told=told))
    elif not row.until_led_ms:
        batch.draft.put(key, _counted(batch, row, bad=bad, told=told))
    elif row.probe == Probe(job_id, ordinal, step.token):
        _probe_ended(batch, key, row, bad=bad, told=told)


def _counted(batch: Batch, row: Breaker, *, bad: bool, told: str) -> Breaker:
    """Count an outcome, and open when too many were bad."""
    led_ms, limits = batch.moment.led_ms, batch.limits
    part_ms = limits.breaker_window_ms // _PARTS
    from_led_ms = led_ms - led_ms % part_ms
    recent = [part for part in row.outcomes if part.from_led_ms > led_ms - limits.breaker_window_ms]
    last = recent.pop() if recent and recent[-1].from_led_ms == from_led_ms else Outcomes(from_led_ms, 0, 0)
    recent.append(replace(last, good=last.good + (not bad), bad=last.bad + bad))
    failed, total = sum(part.bad for part in recent), sum(part.good + part.bad for part in recent)
    row = replace(row, outcomes=tuple(recent))
    if total < limits.breaker_outcomes_min or 100 * failed < limits.breaker_bad_percent_min * total:
        return row
    text = f"{failed} of {total} attempts within {limits.breaker_window_ms} ms ended badly; the last: {told}"
    return _opened(batch, text)


def _opened(batch: Batch, text: str) -> Breaker:
    reason = cut(text, batch.limits.breaker_reason_bytes_max)
    return Breaker(until_led_ms=batch.moment.led_ms + batch.limits.breaker_open_ms, reason=reason)


def _probe_ended(batch: Batch, key: bytes, row: Breaker, *, bad: bool, told: str) -> None:
    successes = row.successes + 1
    if bad:
        batch.draft.put(key, _opened(batch, f"a probe ended badly: {told}"))
    elif successes >= batch.limits.breaker_successes:
        batch.draft.delete(key)
    else:
        batch.draft.put(key, replace(row, successes=successes, probe=None))


def room(batch: Batch, namespace: str, queue: str, action: str, *, wanted: int) -> int:
    """How many steps of an action may be offered now, at most so many as are wanted."""
    row = batch.draft.read(keys.breaker(namespace, queue, action), Breaker)
    if row is None or not row.until_led_ms:
        return wanted
    if batch.moment.led_ms < row.until_led_ms or _is_at_work(batch, row.probe):
        return 0
    return min(wanted, 1)


def _is_at_work(batch: Batch, probe: Probe | None) -> bool:
    """Whether a probe is out. One that was handed back, or whose job has ended, has told nothing."""
    if probe is None:
        return False
    step = batch.step(probe.job_id, probe.ordinal)
    return step is not None and step.token == probe.token and step.state in states.HELD


def offered(batch: Batch, job_id: str, ordinal: int, step: Step) -> None:
    """A step was offered: where a breaker is half open it is the probe."""
    key = _lane_of(batch, job_id, ordinal, step)
    row = batch.draft.read(key, Breaker)
    if row is not None and row.until_led_ms:
        batch.draft.put(key, replace(row, probe=Probe(job_id, ordinal, step.token)))


def forget(batch: Batch) -> None:
    """Delete what has nothing to say any more. Called with a beat, so it costs no batch.

    That is a closed one that has counted nothing bad for a window, and one that was half open for a window in which no
    probe ended badly: perhaps nobody needs the action any more, and it would warn of that for ever; or an attempt takes
    hours, and one after the other would be days. What comes then is counted anew.
    """
    since_led_ms = batch.moment.led_ms - batch.limits.breaker_window_ms
    for key in list(batch.draft.keys(keys.BREAKER)):
        row = batch.draft.require(key, Breaker)
        if row.until_led_ms:
            is_over = row.until_led_ms <= since_led_ms
        else:
            is_over = not any(part.bad for part in row.outcomes if part.from_led_ms > since_led_ms)
        if is_over:
            batch.draft.delete(key)


class Standing(NamedTuple):
    """A breaker that is not closed. `probes_in_ms` 0: it is half open."""

    namespace: str
    queue: str
    action: str
    reason: str
    probes_in_ms: int


def standing(reader: Reader, *, led_ms: int) -> Iterator[Standing]:
    """The breakers that are not closed, at an instant of led time."""
    for key in reader.scan(keys.BREAKER):
        row = reader.get(key)
        assert isinstance(row, Breaker), key
        if row.until_led_ms:
            yield Standing(*keys.parse_breaker(key), row.reason, max(0, row.until_led_ms - led_ms))


def of_action(reader: Reader, namespace: str, queue: str, action: str, *, led_ms: int) -> Standing | None:
    """The breaker of one action, unless it is closed."""
    row = reader.get(keys.breaker(namespace, queue, action))
    if not isinstance(row, Breaker) or not row.until_led_ms:
        return None
    return Standing(namespace, queue, action, row.reason, max(0, row.until_led_ms - led_ms))

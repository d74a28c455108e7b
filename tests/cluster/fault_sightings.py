"""What was seen of a fault in one job, and whether that is as it must be. Pure: no process is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

from tests.cluster.fault_cells import KILL_GRACE_MS, TTL_MS, Bound, Cell, Fault, Kind
from tests.cluster.fault_service import Entry

STEP = "deed"

# Events that say that an attempt went wrong: where nothing is to be noticed, there is none of them.
WRONG = ("Lost", "TimedOut", "Unknown", "AttemptFailed")
# An agent is heard of again, about an attempt that had ended for the cluster.
HEARD = frozenset({"StaleReportObserved", "StepAttemptConfirmedStopped"})
# What may not begin beside an attempt that can still act.
FENCED = frozenset({"VerifyOffered", "UndoOffered"})


class Event(Struct, frozen=True, kw_only=True):
    """One event of a job's history."""

    type: str
    step_id: str
    at_ms: int
    """Wall clock of the node."""
    led_ms: int
    log_ms: int
    token: int
    detail: str


class Began(Struct, frozen=True, kw_only=True):
    """When a fault began, by each clock that counts something. `slack_ms`: how much later it may have been."""

    at_ms: int
    led_ms: int = 0
    log_ms: int = 0
    slack_ms: int = 0


class Sighting(Struct, frozen=True, kw_only=True):
    """All that was seen of one cell."""

    cell: Cell
    job_id: str
    history: tuple[Event, ...]
    step: str
    job: str
    entries: tuple[Entry, ...]
    """The service's record of this job."""
    shown: tuple[str, ...]
    """What `stepward job show` says in the end."""
    began: Began
    ended_at_ms: int
    """When the job had ended, or waited for a person."""
    ttl_ms: int = TTL_MS
    """How long leases last there."""
    away_ms: tuple[int, int] = (0, 0)
    """From when until when there was no server, by the wall clock. Its start comes after that."""
    back_at_ms: int = 0
    """When the server said that it was back."""
    blocked_pid: int = 0
    """The process that was blocked."""
    exit_codes: tuple[int, ...] = ()
    """With which codes workers ended that their parent started again."""

    @property
    def noticed(self) -> Event | None:
        """The event that tells of the fault, if it is there."""
        return next((event for event in self.history if event.type == self.cell.must.noticed), None)

    @property
    def noticed_after_ms(self) -> int | None:
        """From the beginning of the fault to that event, by the clock that decides. None: it is not there."""
        event = self.noticed
        if event is None:
            return None
        match self.cell.given.begins:
            case "injected":
                return event.led_ms - self.began.led_ms
            case "started" | "ready":
                return event.log_ms - self.began.log_ms
            case "back":
                # It serves some moments before it says so.
                return max(0, event.at_ms - self.back_at_ms)
            case _:
                return event.at_ms - self.began.at_ms

    @property
    def ended_after_ms(self) -> int:
        """From the beginning of the fault to the end of the job."""
        return self.ended_at_ms - self.began.at_ms

    @property
    def standing(self) -> int:
        """How often the deed stands at the service."""
        standing: Counter[str] = Counter()
        for entry in self.entries:
            if entry.answer.effect and entry.call.verb == "do":
                standing[entry.call.key] += 1
            elif entry.answer.effect:
                standing[entry.call.about] = 0
        return sum(standing.values())

    @property
    def stale_refused(self) -> int:
        """Calls that the service refused for their old token."""
        return sum(entry.answer.kind == "StaleToken" for entry in self.entries)


def breaches(sighting: Sighting) -> list[str]:
    """One sentence for each thing that is not as it must be."""
    return [
        *_noticing(sighting),
        *_deciding(sighting),
        *_ending(sighting),
        *_doing(sighting.entries),
        *_fencing(sighting),
        *_own(sighting),
    ]


def _noticing(sighting: Sighting) -> Iterable[str]:
    must, bound = sighting.cell.must, sighting.cell.bound
    if bound is Bound.NOT_NOTICED:
        wrong = [event.type for event in sighting.history if event.type.endswith(WRONG)]
        wrong = [type_ for type_ in wrong if sighting.cell.kind is not Kind.UNDOING or type_ != "StepAttemptFailed"]
        if wrong:
            yield f"nothing was to be noticed, and there are {wrong}"
        return
    after_ms = sighting.noticed_after_ms
    if after_ms is None:
        yield f"{must.noticed} is not in the history"
        return
    least_ms, most_ms = bound.ms_min(sighting.ttl_ms), bound.ms(sighting.ttl_ms)
    if not least_ms <= after_ms <= most_ms + sighting.began.slack_ms:
        yield f"{must.noticed} came after {after_ms} ms, not within {least_ms} to {most_ms} ms"


def _deciding(sighting: Sighting) -> Iterable[str]:
    types = [event.type for event in sighting.history]
    must = sighting.cell.must
    rest = iter(types[types.index(must.noticed) + 1 :] if must.noticed in types else types)
    missing = [wanted for wanted in must.decided if wanted not in rest]
    if missing:
        yield f"{missing[0]} does not follow as it must: {types}"


def _ending(sighting: Sighting) -> Iterable[str]:
    end = sighting.cell.must.end
    if sighting.step != end.step:
        yield f"the step is {sighting.step}, not {end.step}"
    if sighting.job != end.job:
        yield f"the job is {sighting.job}, not {end.job}"
    if sighting.standing != end.standing:
        yield f"the deed stands {sighting.standing} times, not {end.standing}"


def _doing(entries: Iterable[Entry]) -> Iterable[str]:
    """Nothing takes effect twice under one key, and nothing after something newer."""
    effects = [entry.call for entry in entries if entry.answer.effect]
    for key, count in Counter(call.key for call in effects).items():
        if count > 1:
            yield f"{key} took effect {count} times"
    newest = 0
    for call in effects:
        if call.token < newest:
            yield f"{call.key} took effect with token {call.token} after {newest}"
        newest = max(newest, call.token)


def _fencing(sighting: Sighting) -> Iterable[str]:
    """Whoever asks or undoes waits until no attempt can still act: its agent said so, or its time is over."""
    noticed = sighting.noticed
    if noticed is None or not noticed.type.endswith(("Lost", "TimedOut")):
        return
    after = sighting.history[sighting.history.index(noticed) + 1 :]
    next_ = next((event for event in after if event.type in FENCED), None)
    if next_ is None:
        return
    heard = any(event.type in HEARD and event.token == noticed.token for event in after[: after.index(next_) + 1])
    fence_led_ms = noticed.led_ms + sighting.ttl_ms + KILL_GRACE_MS
    if noticed.type.endswith("TimedOut") and not heard:
        yield f"{next_.type} did not wait for the word of the agent that was told to stop"
    elif not heard and next_.led_ms < fence_led_ms:
        yield f"{next_.type} came {fence_led_ms - next_.led_ms} ms before the lost attempt could not act any more"


def _own(sighting: Sighting) -> Iterable[str]:
    """What is to be seen of one fault only."""
    types = {event.type for event in sighting.history}
    match sighting.cell.fault:
        case Fault.AGENT_PAUSED:
            noticed = sighting.noticed
            late = [event for event in sighting.history if event.type == "StaleReportObserved"]
            if noticed is None or [event.token for event in late] != [noticed.token]:
                yield f"the late report is not in the history, once and with its old token: {late}"
            if sighting.cell.kind in (Kind.REPEATABLE, Kind.UNDOING) and not sighting.stale_refused:
                yield "the service refused no old token, although the handler acted once more"
        case Fault.AGENT_BLOCKED:
            if 70 not in sighting.exit_codes:
                yield f"the worker did not end with 70 when it had its interpreter back, but {sighting.exit_codes}"
        case Fault.AGENT_BLOCKED_BEFORE:
            attempt = "undo" if sighting.cell.kind is Kind.UNDOING else "do"
            calls = [entry.call for entry in sighting.entries if entry.call.verb == attempt]
            if any(call.agent_pid == sighting.blocked_pid for call in calls):
                yield "the agent began what it was offered, although its lease was over when it could"
        case Fault.HANDLER_HANGS | Fault.HANDLER_SILENT | Fault.HANDLER_PROCESS_BLOCKED:
            if "StepAttemptConfirmedStopped" not in types:
                yield "the agent did not say that the handler has stopped"
        case Fault.SERVER_KILLED | Fault.SERVER_PAUSED | Fault.SERVER_KILLED_AT_WORK:
            since_ms, until_ms = sighting.away_ms
            if until_ms - since_ms < Bound.LEASE.ms(sighting.ttl_ms):
                yield f"the server was away for {until_ms - since_ms} ms only; leases would not have ended"
            within = [event.type for event in sighting.history if since_ms < event.at_ms < until_ms]
            if within:
                yield f"{within} happened while there was no server"
        case _:
            pass

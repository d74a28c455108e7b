"""One idempotency key and the job of it, as a thing that is submitted, read, listed and cancelled.

No agent takes its step, so that it runs until it is cancelled, and is cancelled at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple


@dataclass(frozen=True)
class Submit:
    """With the key."""


@dataclass(frozen=True)
class Get:
    job_id: str


@dataclass(frozen=True)
class Cancel:
    job_id: str


@dataclass(frozen=True)
class ListRunning:
    """Ids of the jobs of the key that run."""


class Submitted(NamedTuple):
    job_id: str
    duplicate: bool
    cancelled: bool


class Seen(NamedTuple):
    """What a read of the job showed. `found` False: that there is none."""

    found: bool
    cancelled: bool = False


class Cancelled(NamedTuple):
    """The job is cancelled; `already`: it was before."""

    already: bool


class Listed(NamedTuple):
    job_ids: tuple[str, ...]


class State(NamedTuple):
    """The job of the key. `job_id` is ABSENT before the first submission, UNKNOWN when that one was not answered."""

    job_id: str
    cancelled: bool


ABSENT: Final = ""
UNKNOWN: Final = "?"


class Jobs:
    """How the calls follow from each other.

    A node may send a call on a second time when it does not know what became of the first, so an answer may say
    "duplicate" or "already" to the very call that did it. It must never say the opposite.
    """

    initial: Final = State(ABSENT, cancelled=False)

    def after(self, state: State, call: object, answer: object | None) -> State | None:
        """See `checker.Model`."""
        match call, answer:
            case Submit(), None:
                return state if state.job_id else State(UNKNOWN, cancelled=False)
            case Submit(), Submitted():
                return self._submitted(state, answer)
            case Get(job_id), Seen(found, cancelled):
                known = self._known(state, job_id)
                return state if found == known and (not found or cancelled == state.cancelled) else None
            case Cancel(job_id), None:
                return State(job_id, cancelled=True) if self._known(state, job_id) else state
            case Cancel(job_id), Cancelled(already):
                if not self._known(state, job_id) or (state.cancelled and not already):
                    return None
                return State(job_id, cancelled=True)
            case ListRunning(), Listed(job_ids):
                return self._listed(state, job_ids)
        raise AssertionError(f"{call!r} cannot be answered by {answer!r}")

    @staticmethod
    def _known(state: State, job_id: str) -> bool:
        return state.job_id in (job_id, UNKNOWN)

    def _submitted(self, state: State, answer: Submitted) -> State | None:
        if state.job_id == ABSENT:
            return None if answer.cancelled else State(answer.job_id, cancelled=False)
        if not self._known(state, answer.job_id) or not answer.duplicate or answer.cancelled != state.cancelled:
            return None
        return State(answer.job_id, cancelled=state.cancelled)

    def _listed(self, state: State, job_ids: tuple[str, ...]) -> State | None:
        if state.job_id == ABSENT or state.cancelled:
            return state if not job_ids else None
        if len(job_ids) != 1 or not self._known(state, job_ids[0]):
            return None
        return State(job_ids[0], cancelled=False)

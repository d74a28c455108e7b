"""WatchJob: one job as it is, and then each change of it, from committed rows.

A watcher is only woken, and reads for itself: the job as it is now, and what happened since the revision that was
sent last, from history rows. So nothing is missed or told twice, and one that is slow skips to the newest state
without holding anything in memory but what is being written to it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from stepward.server.api import convert, history, job_steps, lookup
from stepward.server.core import views
from stepward.server.core.rejections import Reason, Refused, refuse
from stepward.server.core.rows import JOB_STATES_FINAL, StepState
from stepward.v1 import job_service_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any

    from stepward.server.core.limits import Limits
    from stepward.server.core.views import JobView
    from stepward.server.gateway import Gateway
    from stepward.server.reading import Reading
    from stepward.server.watchers import Watcher
    from stepward.v1 import job_pb2

# Events of one message: what happened while nobody watched may be much.
EVENTS_MAX: Final = 1_000
# What is said of them. Beside them there is room for the steps of a job, and for what a job is without them.
EVENTS_BYTES_MAX: Final = 768 << 10


class _News(NamedTuple):
    """A message to send, if there is one. `more`: there is more already; `ended`: there never will be."""

    message: job_service_pb2.WatchJobResponse | None
    more: bool = False
    ended: bool = False


class JobWatch:
    """Follows jobs for callers."""

    def __init__(self, gateway: Gateway, limits: Limits) -> None:
        self._gateway = gateway
        self._limits = limits

    def follow(self, job_id: str, from_revision: int, context: Any) -> AsyncIterator[job_service_pb2.WatchJobResponse]:
        """The job behind a revision, then each change, until it has ended.

        Whoever follows keeps his place until his call is over, which is later than the last response: one who does
        not read cannot come again and again, each time leaving a response unread.

        Raises:
            Refused: JOB_NOT_FOUND; OVERLOADED; and, later, REVISION_COMPACTED; NO_LEADER; NODE_DRAINING.
        """
        lookup.require_job_id(job_id)
        watcher = self._gateway.watchers.of_job(job_id)
        context.add_done_callback(lambda _: self._gateway.watchers.forget(watcher))
        return self._responses(job_id, from_revision, watcher)

    async def _responses(
        self, job_id: str, from_revision: int, watcher: Watcher
    ) -> AsyncIterator[job_service_pb2.WatchJobResponse]:
        following = Following(job_id, from_revision, self._limits)
        async with self._gateway.reading() as reader:
            _require_past(from_revision, reader.head().sequence)
            news = following.news(reader)
        while True:
            if news.message is not None:
                yield news.message
            if news.ended and not news.more:
                return
            if not news.more:
                await watcher.wait()
            if watcher.closed:
                raise Refused(watcher.closed)
            # This node has told the job's beginning, so what it applies is what comes next.
            with self._gateway.own_rows() as reader:
                news = following.news(reader)


class Following:
    """What one watcher was told of a job: everything before a place in its history.

    While all steps fit into a message, every message has them. From the first on into which they do not fit, a message
    has those that its events changed; their states are kept, a byte a step, to count them without reading them all.
    """

    def __init__(self, job_id: str, from_revision: int, limits: Limits) -> None:
        self._job_id = job_id
        self._limits = limits
        self._at = history.behind(from_revision) if from_revision else history.START
        self._states: bytearray | None = None
        self._counts: Counter[StepState] = Counter()

    def news(self, reader: Reading) -> _News:
        """What there is to tell.

        Raises:
            Refused: JOB_NOT_FOUND.
        """
        view = views.job_view(reader, self._job_id, self._limits, with_steps=self._states is None)
        if view is None:
            raise lookup.job_not_found(self._job_id)
        revision, ended = view.progress.revision, view.progress.state in JOB_STATES_FINAL
        if revision < self._at.sequence:
            return _News(None, ended=ended)
        message = job_service_pb2.WatchJobResponse(job=convert.job(view, reader.head()))
        if self._states is None:
            self._add_all_steps(message, reader, view)
        end = self._add_events(message, reader, view)
        if self._states is not None:
            del message.job.step_counts[:]
            message.job.step_counts.extend(job_steps.counts(self._counts))
        self._at = end or history.behind(revision)
        if end is not None:
            # Whoever resumes from here must be told the rest.
            message.job.revision = end.sequence - 1
        return _News(message, more=end is not None, ended=ended)

    def _add_all_steps(self, message: job_service_pb2.WatchJobResponse, reader: Reading, view: JobView) -> None:
        if job_steps.add(message.job, reader, view, self._limits):
            return
        states = [job_steps.state_of(step) for step in view.steps]
        self._states, self._counts = bytearray(states), Counter(states)
        if self._at != history.START:
            # One who has been told of the job before is told what has changed since.
            del message.job.steps[:]

    def _add_events(
        self, message: job_service_pb2.WatchJobResponse, reader: Reading, view: JobView
    ) -> history.Place | None:
        """Add what happened, with the steps that changed when not all are there; where to go on if not all fits."""
        added = set(range(len(message.job.steps)))
        size_bytes = 0
        for number, told in enumerate(history.events(reader, self._job_id, view.body, self._at)):
            step = None
            if self._states is not None and told.ordinal >= 0 and told.ordinal not in added:
                step = self._changed_step(reader, view, told.ordinal)
            size_bytes += sum(part.ByteSize() for part in (told.event, step) if part is not None)
            if number == EVENTS_MAX or (number and size_bytes > EVENTS_BYTES_MAX):
                return told.place
            if told.event is not None:
                message.events.append(told.event)
            if step is not None:
                added.add(told.ordinal)
                message.job.steps.append(step)
        return None

    def _changed_step(self, reader: Reading, view: JobView, ordinal: int) -> job_pb2.JobStep:
        """A step that something happened to, counted in the state that it has now."""
        assert self._states is not None
        found = views.step_view(reader, self._job_id, view.body, ordinal, self._limits)
        state = job_steps.state_of(found.step)
        self._counts[StepState(self._states[ordinal])] -= 1
        self._counts[state] += 1
        self._states[ordinal] = state
        return convert.step(view.body, found, reader.head())


def _require_past(from_revision: int, newest: int) -> None:
    """Refuse to resume from what has never been: it would wait, and then leave out what happened meanwhile."""
    if from_revision > newest:
        raise refuse(
            Reason.REVISION_COMPACTED,
            f"from_revision is {from_revision}, and the newest revision here is {newest}: what was seen then is not a "
            "part of this history, perhaps since a restore; follow the job from its beginning, with from_revision 0",
            newest_revision=str(newest),
        )

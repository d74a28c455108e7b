"""WatchJob: one job as it is, and then each change of it, from committed rows.

A watcher is only woken, and reads for itself: the job as it is now, and what happened since the revision that was
sent last, from history rows. So nothing is missed or told twice, and one that is slow skips to the newest state
without holding anything in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from stepward.server.api import convert, history, validate
from stepward.server.core import views
from stepward.server.core.rejections import Reason, refuse
from stepward.server.core.rows import JOB_STATES_FINAL
from stepward.server.gateway import draining
from stepward.server.job_ids import is_job_id
from stepward.v1 import job_service_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stepward.server.core.limits import Limits
    from stepward.server.gateway import Gateway

# Events of one message: what happened while nobody watched may be much.
EVENTS_MAX: Final = 1_000


class _News(NamedTuple):
    """A message to send, if there is one, and where the next begins. `more`: there is more already."""

    message: job_service_pb2.WatchJobResponse | None
    next: history.Place
    more: bool
    ended: bool


class JobWatch:
    """Follows jobs for callers."""

    def __init__(self, gateway: Gateway, limits: Limits) -> None:
        self._gateway = gateway
        self._limits = limits

    async def follow(self, job_id: str, from_revision: int) -> AsyncIterator[job_service_pb2.WatchJobResponse]:
        """The job behind a revision, then each change, until it has ended.

        Raises:
            Refused: JOB_NOT_FOUND; NO_LEADER; NODE_DRAINING.
        """
        if not is_job_id(job_id):
            raise refuse(Reason.JOB_NOT_FOUND, f"there is no job {validate.shown(job_id)}", job_id=job_id)
        watcher = self._gateway.register_watcher(job_id)
        try:
            at = history.behind(from_revision) if from_revision else history.START
            while True:
                news = self._news(job_id, at)
                if news.message is not None:
                    yield news.message
                at = news.next
                if news.more:
                    continue
                if news.ended:
                    return
                await watcher.wait()
                if watcher.closed:
                    raise draining(job_id)
        finally:
            self._gateway.forget_watcher(job_id, watcher)

    def _news(self, job_id: str, at: history.Place) -> _News:
        """What there is to send from a place in the job's history on."""
        with self._gateway.read() as reader:
            view = views.job_view(reader, job_id, self._limits, with_steps=True)
            if view is None:
                raise refuse(Reason.JOB_NOT_FOUND, f"there is no job {validate.shown(job_id)}", job_id=job_id)
            revision, ended = view.progress.revision, view.progress.state in JOB_STATES_FINAL
            if revision < at.sequence:
                return _News(None, at, more=False, ended=ended)
            page = history.page(reader, job_id, at=at, count_max=EVENTS_MAX)
            assert page is not None
            message = job_service_pb2.WatchJobResponse(job=convert.job(view, reader.head()), events=page.events)
        if page.next is not None:
            return _News(message, page.next, more=True, ended=ended)
        return _News(message, history.behind(revision), more=False, ended=ended)

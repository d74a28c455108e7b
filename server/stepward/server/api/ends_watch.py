"""WatchJobs: the ends of all jobs of one caller, in the order of batches, from committed rows.

As who follows one job, a watcher is only woken, and reads what ended behind his place. So he costs no memory however
far behind he is, and on any node he can go on where he was on another.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from stepward.server.api import convert, validate
from stepward.server.api.slices import Slice
from stepward.server.core import caller_ends, views
from stepward.server.core.rejections import Reason, Refused, Violation, refuse
from stepward.server.core.rows import JOB_STATES_AWAITED
from stepward.v1 import job_service_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any

    from stepward.server.core.limits import Limits
    from stepward.server.gateway import Gateway
    from stepward.server.reading import Reading
    from stepward.server.watchers import Watcher

# There is one shard in this version.
SHARD: Final = 0
# Ends in one message, and what is said of them: one more may come above the bytes, which is less than a MiB.
ENDS_MAX: Final = 1_000
ENDS_BYTES_MAX: Final = 1 << 20
# A caller of whose jobs none ends is told this often where to resume, so that his place does not grow old.
PLACE_EVERY_S: Final = 60.0


class EndsWatch:
    """Tells callers of the ends of their jobs."""

    def __init__(self, gateway: Gateway, limits: Limits) -> None:
        self._gateway = gateway
        self._limits = limits

    def follow(
        self, request: job_service_pb2.WatchJobsRequest, context: Any
    ) -> AsyncIterator[job_service_pb2.WatchJobsResponse]:
        """The ends behind a place, or from now on, until the caller has enough.

        Raises:
            Refused: INVALID_ARGUMENT; OVERLOADED; and, later, REVISION_COMPACTED; NO_LEADER; NODE_DRAINING.
        """
        place = read_place(request, self._limits)
        watcher = self._gateway.watchers.of_caller(request.caller_id)
        context.add_done_callback(lambda _: self._gateway.watchers.forget(watcher))
        return self._responses(request.caller_id, place, watcher)

    async def _responses(
        self, caller_id: str, place: int | None, watcher: Watcher
    ) -> AsyncIterator[job_service_pb2.WatchJobsResponse]:
        async with self._gateway.reading() as reader:
            newest = reader.head().sequence
            following = EndsFollowed(caller_id, newest if place is None else place, self._limits)
            if following.place > newest:
                raise _never_been(following.place, newest)
            message = following.news(reader)
        # At once, and even if it is empty: it says where to resume from, and that nothing is missed from now on.
        yield message
        while True:
            is_due = False
            if not following.has_more:
                is_due = not await _woken(watcher)
            if watcher.closed:
                raise Refused(watcher.closed)
            with self._gateway.own_rows() as reader:
                message = following.news(reader)
            if message.jobs or is_due:
                yield message
            else:
                await asyncio.sleep(0)


async def _woken(watcher: Watcher) -> bool:
    """Wait until something has ended. False: nothing has for so long that the caller is told of his place."""
    try:
        async with asyncio.timeout(PLACE_EVERY_S):
            await watcher.wait()
    except TimeoutError:
        return False
    return True


def read_place(request: job_service_pb2.WatchJobsRequest, limits: Limits) -> int | None:
    """Behind which batch to begin. None: behind the newest.

    Raises:
        Refused: INVALID_ARGUMENT.
    """
    found = list(validate.text("caller_id", request.caller_id, limits.name_chars_max))
    if not request.caller_id:
        found.append(
            Violation("caller_id", "is empty; it must be that of the submissions: jobs of nobody are not told")
        )
    places = getattr(request, "from")
    if len(places) > 1:
        found.append(Violation("from", f"has {len(places)} entries; it must have one for each shard, which is 1"))
    elif places and places[0].shard != SHARD:
        found.append(Violation("from[0].shard", f"is {places[0].shard}; this cluster has shard {SHARD} only"))
    validate.require(found)
    return int(places[0].revision) if places else None


class EndsFollowed:
    """What one caller has been told: all that ended up to a place, and some of the next batch that ended anything."""

    def __init__(self, caller_id: str, place: int, limits: Limits) -> None:
        self._caller_id = caller_id
        self._limits = limits
        # Jobs that were told of a batch behind the place: not all of it has fitted into a message.
        self._told: set[str] = set()
        self.place = place
        self.has_more = False

    def news(self, reader: Reading) -> job_service_pb2.WatchJobsResponse:
        """The next message; empty when nothing is to be told. `has_more`: another follows at once.

        Raises:
            Refused: REVISION_COMPACTED.
        """
        gone = caller_ends.gone_sequence(reader)
        if gone > self.place:
            raise _compacted(self.place, gone)
        message = job_service_pb2.WatchJobsResponse()
        self.has_more = not self._add(message, reader)
        if not self.has_more:
            self._passed(reader.head().sequence)
        message.revisions.add(shard=SHARD, revision=self.place)
        return message

    def _add(self, message: job_service_pb2.WatchJobsResponse, reader: Reading) -> bool:
        """Add what ended, as much as fits and a slice of time allows. True: that is all."""
        taken, size_bytes, looked_at = Slice(), 0, 0
        for ends in caller_ends.behind(reader, self._caller_id, self.place):
            for job_id in ends.job_ids:
                if job_id in self._told:
                    continue
                if len(message.jobs) == ENDS_MAX or size_bytes >= ENDS_BYTES_MAX or (looked_at and taken.is_over):
                    return False
                looked_at += 1
                self._told.add(job_id)
                view = views.job_view(reader, job_id, self._limits, with_steps=False)
                assert view is not None, job_id
                # One that waited for a person then may go on by now; its end is told when it comes.
                if view.progress.state in JOB_STATES_AWAITED:
                    job = convert.ended_job(view)
                    size_bytes += job.ByteSize()
                    message.jobs.append(job)
            self._passed(ends.sequence)
        return True

    def _passed(self, sequence: int) -> None:
        self.place = sequence
        self._told.clear()


def _compacted(place: int, gone: int) -> Refused:
    return refuse(
        Reason.REVISION_COMPACTED,
        f"from is {place}, and some jobs that ended up to revision {gone} are removed by now, as ended jobs are in "
        "time: look for those that you wait for, and watch from now on, with no from",
        gone_revision=str(gone),
    )


def _never_been(place: int, newest: int) -> Refused:
    return refuse(
        Reason.REVISION_COMPACTED,
        f"from is {place}, and the newest revision here is {newest}: what was seen then is not a part of this history, "
        "perhaps since a restore; look for those that you wait for, and watch from now on, with no from",
        newest_revision=str(newest),
    )

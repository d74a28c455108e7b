"""Where calls meet shards: routes a call to its shard, admits it, and lets it wait for what becomes of a job.

A waiter registers first, then reads the row, then waits: whatever happens in between is seen. Everything that is told
comes from rows that are committed.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from stepward.server.core import keys
from stepward.server.core.commands import JobSubmitted
from stepward.server.core.rejections import Reason, Refused, Rejection, refuse
from stepward.server.core.rows import JOB_STATES_FINAL, JobState, Progress
from stepward.server.shard import changed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stepward.server.clock import Clock
    from stepward.server.config import NodeConfig
    from stepward.server.core.commands import Answer, AnyCommand, SubmitJob
    from stepward.server.job_ids import JobIds
    from stepward.server.logbook.replica import Applied
    from stepward.server.observe import Counters
    from stepward.server.shard import Reading, Shard

A = TypeVar("A")

# At these a caller who waits for a job has his answer: it has ended, or it waits for a person.
AWAITED_STATES: Final = JOB_STATES_FINAL | {JobState.ESCALATED}

# How old an answer about the free disk may be.
_FREE_BYTES_AGE_MS: Final = 1_000


class Watcher:
    """Somebody who follows one job: only told that it has changed, and reads for himself what it is now.

    So a slow one skips to the newest state, and holds no memory however much happens meanwhile.
    """

    __slots__ = ("_changed", "closed")

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self.closed = False

    def wake(self) -> None:
        """The job has changed."""
        self._changed.set()

    async def wait(self) -> None:
        """Until the job has changed since the last return."""
        await self._changed.wait()
        self._changed.clear()


class Gateway:
    """The way from calls to shards. There is one shard in this version, and this node hosts it."""

    def __init__(
        self,
        shard: Shard,
        *,
        job_ids: JobIds,
        clock: Clock,
        config: NodeConfig,
        counters: Counters,
        free_bytes: Callable[[], int],
    ) -> None:
        """`free_bytes`: how much can be written before the disk is full, as well as that is known."""
        self._shard = shard
        self._job_ids = job_ids
        self._clock = clock
        self._config = config
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._submissions = 0
        self._submission_bytes = 0
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._waiters_count = 0
        self._watchers: dict[str, list[Watcher]] = {}
        self._watchers_count = 0
        self._draining = False
        self._free_bytes = free_bytes
        self._free_bytes_asked_ms = -_FREE_BYTES_AGE_MS
        self._disk_has_room = True
        shard.on_applied(self._on_applied)

    def draw_job_id(self) -> str:
        """An id for a new job: the shard that it will live in, and where it stands in time."""
        return self._job_ids.draw(self._clock.wall_ms())

    # Commands.

    async def submit(self, command: SubmitJob) -> JobSubmitted:
        """Have a job stored, or find the first one of its key.

        Raises:
            Refused: By admission, or by the rules.
        """
        answer = await self._propose_submission(command)
        if isinstance(answer, JobSubmitted):
            return answer
        raise _refusal(answer)

    async def submit_all(self, submissions: Sequence[SubmitJob | Rejection]) -> list[JobSubmitted | Rejection]:
        """Have many jobs stored, each granted or refused on its own; those refused before stay where they are."""
        waiting: list[asyncio.Future[Answer] | Rejection] = []
        for one in submissions:
            if isinstance(one, Rejection):
                waiting.append(one)
                continue
            try:
                waiting.append(self._propose_submission(one))
            except Refused as refused:
                waiting.append(refused.rejection)
        answers: list[JobSubmitted | Rejection] = []
        for future in waiting:
            answer = future if isinstance(future, Rejection) else await future
            assert isinstance(answer, JobSubmitted | Rejection), answer
            answers.append(answer)
        return answers

    def _propose_submission(self, command: SubmitJob) -> asyncio.Future[Answer]:
        """Admit a submission. New work is what is shed first; everything else always gets in."""
        size_bytes = len(command.input.data)
        config = self._config
        self._require_room_on_disk()
        if (
            self._submissions >= config.submissions_waiting_max
            or self._submission_bytes + size_bytes > config.submission_bytes_waiting_max
        ):
            self._counters.shed += 1
            raise Refused(
                Rejection(
                    Reason.OVERLOADED,
                    f"{self._submissions} submissions of {self._submission_bytes} bytes wait for a decision; at most "
                    f"{config.submissions_waiting_max} of {config.submission_bytes_waiting_max} bytes may; come back",
                    retry_after_ms=config.overload_retry_after_ms,
                )
            )
        self._submissions += 1
        self._submission_bytes += size_bytes
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._shard.propose(command, _SubmissionTicket(future, self, size_bytes), size_bytes=size_bytes)
        return future

    def _require_room_on_disk(self) -> None:
        """Refuse new work while the disk is nearly full: what is left is for jobs that exist."""
        now_ms, least = self._clock.steady_ms(), self._config.free_bytes_for_submissions_min
        if now_ms - self._free_bytes_asked_ms >= _FREE_BYTES_AGE_MS:
            self._free_bytes_asked_ms = now_ms
            self._disk_has_room = self._free_bytes() >= least
        if not self._disk_has_room:
            self._counters.shed += 1
            text = f"less than {least} bytes of disk are free; running jobs go on, and new ones are refused: free some"
            raise Refused(Rejection(Reason.DISK_FULL, text, retry_after_ms=_FREE_BYTES_AGE_MS))

    def submission_decided(self, size_bytes: int) -> None:
        """A submission waits no longer, whoever has gone away meanwhile."""
        self._submissions -= 1
        self._submission_bytes -= size_bytes

    async def call(self, command: AnyCommand, answer_type: type[A]) -> A:
        """The answer to a command of a known kind.

        Raises:
            Refused: By the rules, or for want of a leader.
        """
        answer = await self._shard.call(command)
        if isinstance(answer, answer_type):
            return answer
        raise _refusal(answer)

    # Reads.

    @contextmanager
    def read(self, *, stale: bool = False) -> Iterator[Reading]:
        """Committed rows; unless stale ones will do, with everything that was acknowledged before.

        Raises:
            Refused: NO_LEADER, when this node cannot know what was acknowledged.
        """
        if not stale:
            self._require_leader()
        with self._shard.committed() as reader:
            yield reader
        if not stale:
            # The process may have been paused while it read, and another node may have begun to lead.
            self._require_leader()

    def _require_leader(self) -> None:
        if not self._shard.leads:
            raise Refused(
                Rejection(Reason.NO_LEADER, "this node knows no leader of shard 0; ask again", retry_after_ms=200)
            )

    # Waiting for the end of a job.

    @property
    def waiters(self) -> int:
        """How many calls wait for the end of a job."""
        return self._waiters_count

    def register_waiter(self, job_id: str) -> asyncio.Future[None]:
        """A future that is set when the job has ended or waits for a person. Give it back with `forget_waiter`.

        Raises:
            Refused: OVERLOADED, when too many wait; NODE_DRAINING, when the node is going down.
        """
        if self._draining:
            raise draining(job_id)
        if self._waiters_count >= self._config.waiters_max:
            self._counters.shed += 1
            raise Refused(
                Rejection(
                    Reason.OVERLOADED,
                    f"{self._waiters_count} calls wait for the end of a job, which is the most; submit, and ask later",
                    retry_after_ms=self._config.overload_retry_after_ms,
                )
            )
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiters.setdefault(job_id, []).append(future)
        self._waiters_count += 1
        return future

    def forget_waiter(self, job_id: str, future: asyncio.Future[None]) -> None:
        """Wait no longer. Safe when the future was set."""
        waiting = self._waiters.get(job_id)
        if waiting is not None and future in waiting:
            self._waiters_count -= 1
            waiting.remove(future)
            if not waiting:
                del self._waiters[job_id]

    def register_watcher(self, job_id: str) -> Watcher:
        """Somebody to wake whenever the job changes. Give him back with `forget_watcher`.

        Raises:
            Refused: OVERLOADED, when too many watch.
        """
        if self._watchers_count >= self._config.watchers_max:
            self._counters.shed += 1
            raise Refused(
                Rejection(
                    Reason.OVERLOADED,
                    f"{self._watchers_count} callers follow a job, which is the most; ask for the job now and then",
                    retry_after_ms=self._config.overload_retry_after_ms,
                )
            )
        watcher = Watcher()
        self._watchers.setdefault(job_id, []).append(watcher)
        self._watchers_count += 1
        return watcher

    def forget_watcher(self, job_id: str, watcher: Watcher) -> None:
        """Wake him no more."""
        watching = self._watchers[job_id]
        watching.remove(watcher)
        self._watchers_count -= 1
        if not watching:
            del self._watchers[job_id]

    def drain(self) -> None:
        """The node is going down: end all waits, naming the job, so that callers ask another node."""
        self._draining = True
        for job_id, waiting in list(self._waiters.items()):
            for future in waiting:
                if not future.done():
                    future.set_exception(draining(job_id))
        for watching in self._watchers.values():
            for watcher in watching:
                watcher.closed = True
                watcher.wake()

    def _on_applied(self, applied: Applied) -> None:
        if not self._waiters and not self._watchers:
            return
        for key, row in changed(applied, keys.PROGRESS):
            if not isinstance(row, Progress):
                continue
            job_id = keys.progress_job_id(key)
            if row.state in AWAITED_STATES and job_id in self._waiters:
                waiting = self._waiters.pop(job_id)
                self._waiters_count -= len(waiting)
                for future in waiting:
                    if not future.done():
                        future.set_result(None)
            for watcher in self._watchers.get(job_id, ()):
                watcher.wake()


class _SubmissionTicket:
    """A submission that was admitted; gives its room back when it is decided."""

    __slots__ = ("_future", "_gateway", "_size_bytes")

    def __init__(self, future: asyncio.Future[Answer], gateway: Gateway, size_bytes: int) -> None:
        self._future = future
        self._gateway = gateway
        self._size_bytes = size_bytes

    def answered(self, answer: Answer) -> None:
        """See `Ticket`."""
        self._gateway.submission_decided(self._size_bytes)
        # One that has gone away is not told.
        if not self._future.done():
            self._future.set_result(answer)


def draining(job_id: str) -> Refused:
    """The refusal of a wait that the end of this node cuts short. The job goes on."""
    return refuse(
        Reason.NODE_DRAINING, f"this node is shutting down; job {job_id} goes on: ask another node", job_id=job_id
    )


def _refusal(answer: Answer) -> Refused:
    assert isinstance(answer, Rejection), answer
    return Refused(answer)

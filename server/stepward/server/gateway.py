"""Where calls meet shards: routes a call to its shard, admits it, and lets it wait for what becomes of a job.

A waiter registers first, then reads the row, then waits: whatever happens in between is seen. Everything that is told
comes from rows that are committed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from stepward.server.core import keys
from stepward.server.core.commands import DefinitionApplied, JobSubmitted
from stepward.server.core.rejections import Reason, Refused, Rejection, refuse
from stepward.server.core.rows import JOB_STATES_AWAITED, Progress
from stepward.server.reading import changed
from stepward.server.reads import CurrentRows
from stepward.server.tickets import FutureTicket
from stepward.server.watchers import Watchers

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable
    from contextlib import AbstractContextManager

    from stepward.server.admission import Admission
    from stepward.server.clock import Clock
    from stepward.server.config import NodeConfig
    from stepward.server.core.commands import Answer, AnyCommand, ApplyDefinition, SubmitJob
    from stepward.server.job_ids import JobIds
    from stepward.server.logbook.replica import Applied
    from stepward.server.reading import Reading
    from stepward.server.shard import Shard

A = TypeVar("A")

# What a command costs in memory beside the payloads that it carries.
_COMMAND_BYTES: Final = 1_000


class Gateway:
    """The way from calls to shards. There is one shard in this version, and this node hosts it."""

    def __init__(
        self,
        shard: Shard,
        *,
        job_ids: JobIds,
        clock: Clock,
        config: NodeConfig,
        admission: Admission,
    ) -> None:
        self._shard = shard
        self._job_ids = job_ids
        self._clock = clock
        self._config = config
        self._admission = admission
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._waiters_count = 0
        self.watchers = Watchers(config.watchers_max, admission.overloaded)
        self._draining = False
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
        return _expected(await self._propose_submission(command), JobSubmitted)

    def require_room(self, namespace: str, payload_bytes: int, *, jobs: int = 1) -> None:
        """Refuse submissions of a namespace that would be shed, before it costs anything to look at them.

        Raises:
            Refused: OVERLOADED; DISK_FULL.
        """
        self._admission.require_room(namespace, jobs * _COMMAND_BYTES + payload_bytes, jobs=jobs)

    def want_of_disk(self) -> str:
        """Why this node would refuse new work for want of disk; empty: it would not."""
        return self._admission.want_of_disk()

    async def submit_all(self, submissions: AsyncIterable[SubmitJob | Rejection]) -> list[JobSubmitted | Rejection]:
        """Have many jobs stored, each granted or refused on its own; those refused before stay where they are."""
        waiting: list[asyncio.Future[Answer] | Rejection] = []
        async for one in submissions:
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

    async def apply_definition(self, command: ApplyDefinition) -> DefinitionApplied:
        """Have a definition stored. It is new work as a job is, and may be as large as many.

        Raises:
            Refused: By admission, or by the rules.
        """
        answer = await self._propose_new(command, command.namespace, _COMMAND_BYTES + 2 * len(command.body.source))
        return _expected(answer, DefinitionApplied)

    def _propose_submission(self, command: SubmitJob) -> asyncio.Future[Answer]:
        size_bytes = _COMMAND_BYTES + len(command.input.data)
        for key, value in command.labels.items():
            size_bytes += len(key) + len(value)
        return self._propose_new(command, command.namespace, size_bytes)

    def _propose_new(self, command: AnyCommand, namespace: str, size_bytes: int) -> asyncio.Future[Answer]:
        """Admit new work, which is what is shed first; everything else always gets in."""
        self._admission.admit(namespace, size_bytes)
        future: asyncio.Future[Answer] = self._loop.create_future()
        ticket = _NewWorkTicket(future, self._admission, namespace, size_bytes)
        self._shard.propose(command, ticket, share=namespace)
        return future

    async def call(self, command: AnyCommand, answer_type: type[A]) -> A:
        """The answer to a command of a known kind.

        Raises:
            Refused: By the rules, or for want of a leader.
        """
        return _expected(await self._shard.call(command), answer_type)

    # Reads.

    def reading(self) -> CurrentRows:
        """Rows that hold everything that was acknowledged before, for `async with`; nothing is awaited inside.

        Raises:
            Refused: NO_LEADER, when nobody can tell what was acknowledged.
        """
        return CurrentRows(self._shard)

    def own_rows(self) -> AbstractContextManager[Reading]:
        """Rows as they are here: for what this node has just been answered, or told by a batch, and for stale reads."""
        return self._shard.committed()

    @property
    def staleness_ms(self) -> int:
        """So long ago everything that was committed had reached this node, if not later."""
        return 0 if self._shard.forwarding is None else self._shard.forwarding.readers.staleness_ms

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
            raise self._admission.overloaded(
                f"{self._waiters_count} calls wait for the end of a job, which is the most; submit, and ask later"
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

    def drain(self) -> None:
        """The node is going down: end all waits, naming the job, so that callers ask another node."""
        self._draining = True
        self._end_waits(draining)

    def send_away(self, why: Rejection) -> None:
        """This node cannot tell any more what becomes of jobs: end all waits, so that callers ask another node."""

        def naming(job_id: str) -> Refused:
            text = f"{why.message}; {_goes_on(job_id)}"
            return Refused(Rejection(why.reason, text, {**why.metadata, **_named(job_id)}, (), why.retry_after_ms))

        self._end_waits(naming)

    def start_over(self) -> None:
        """Rows of another node are here, and no batch told what led to them: look for what waits is for."""
        with self._shard.committed() as reader:
            for job_id in list(self._waiters):
                row = reader.get(keys.progress(job_id))
                if isinstance(row, Progress) and row.state in JOB_STATES_AWAITED:
                    self._wake_waiters(job_id)
        self.watchers.wake_all()

    def _wake_waiters(self, job_id: str) -> None:
        waiting = self._waiters.pop(job_id)
        self._waiters_count -= len(waiting)
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _end_waits(self, refusal: Callable[[str], Refused]) -> None:
        for job_id, waiting in list(self._waiters.items()):
            for future in waiting:
                if not future.done():
                    future.set_exception(refusal(job_id))
                    # Its call may be over before it looks, when its submission has failed for the same reason.
                    future.exception()
        self.watchers.close_all(refusal)

    def _is_awaited(self, key: bytes) -> bool:
        return self.watchers.is_followed(key) or (
            key[:1] == keys.PROGRESS and keys.progress_job_id(key) in self._waiters
        )

    def _on_applied(self, applied: Applied) -> None:
        if not self._waiters and not self.watchers.count:
            return
        for key, row in changed(applied, keys.PROGRESS + keys.CALLER_ENDS, self._is_awaited):
            if row is None:
                continue
            self.watchers.wake(key)
            if isinstance(row, Progress) and row.state in JOB_STATES_AWAITED:
                job_id = keys.progress_job_id(key)
                if job_id in self._waiters:
                    self._wake_waiters(job_id)


class _NewWorkTicket(FutureTicket):
    """New work that was admitted; gives its room back when it is decided."""

    __slots__ = ("_admission", "_namespace", "_size_bytes")

    def __init__(self, future: asyncio.Future[Answer], admission: Admission, namespace: str, size_bytes: int) -> None:
        super().__init__(future)
        self._admission = admission
        self._namespace = namespace
        self._size_bytes = size_bytes

    def answered(self, answer: Answer) -> None:  # type: ignore[explicit-override]  # `override` is of 3.12
        """See `Ticket`."""
        self._admission.decided(self._namespace, self._size_bytes)
        super().answered(answer)


def draining(job_id: str) -> Refused:
    """The refusal of a wait that the end of this node cuts short. The job goes on; empty: all of a caller do."""
    text = f"this node is shutting down; {_goes_on(job_id)}: ask another node"
    return refuse(Reason.NODE_DRAINING, text, **_named(job_id))


def _goes_on(job_id: str) -> str:
    return f"job {job_id} goes on" if job_id else "jobs go on, and their ends are told behind the last revisions seen"


def _named(job_id: str) -> dict[str, str]:
    return {"job_id": job_id} if job_id else {}


def _expected(answer: Answer, answer_type: type[A]) -> A:
    """An answer of the kind that was asked for.

    Raises:
        Refused: It is a rejection.
    """
    if isinstance(answer, answer_type):
        return answer
    assert isinstance(answer, Rejection), answer
    raise Refused(answer)

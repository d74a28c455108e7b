"""The node's own agent, for canaries: jobs that go through everything, to see that all of it works.

A canary comes by the public path, and is worked on by the rules of any agent: a session, an offer, a report. So that an
idle cluster pays nothing for it, the session is opened when a canary waits, and drained when there is none.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Final

from stepward.server import observe
from stepward.server.core import keys
from stepward.server.core.commands import DrainSession
from stepward.server.core.rejections import Reason, Refused, Rejection
from stepward.server.core.system import CANARY_ACTION, CANARY_QUEUE, SYSTEM_NAMESPACE
from stepward.v1 import agent_service_pb2 as pb

if TYPE_CHECKING:
    from stepward.server.agent_calls import AgentCalls
    from stepward.server.logbook.outbox import Applied
    from stepward.server.observe import Counters
    from stepward.server.shard import Shard

# How long one call waits for a canary. With the first one that brings nothing the session ends.
WAIT_MS: Final = 2_000
# Canaries that are worked on at once. One comes every few seconds.
SLOTS: Final = 4
# What a node that stops waits for the word that nothing more is to be offered here.
STOP_S_MAX: Final = 1.0
# How long to wait after a refusal that passes, and how many of them in a row are taken.
REFUSED_WAIT_S: Final = 0.5
REFUSALS_MAX: Final = 20
# How long to wait before a canary that is still ready is tried with another session, when one has ended in trouble.
TROUBLE_WAIT_S: Final = 2.0

_LANE: Final = keys.lane(SYSTEM_NAMESPACE, CANARY_QUEUE, CANARY_ACTION)
# What passes: there is no leader, or another one, or no room at present.
_PASSING: Final = frozenset(
    {Reason.NOT_LEADER, Reason.NO_LEADER, Reason.COMMIT_UNKNOWN, Reason.OVERLOADED, Reason.DISK_FULL}
)

_log = observe.logger("canary")


class CanaryAgent:
    """Works on canaries while there are any. Belongs to the loop."""

    def __init__(self, shard: Shard, calls: AgentCalls, *, node_id: str, version: str, counters: Counters) -> None:
        self._shard = shard
        self._calls = calls
        self._node_id = node_id
        self._version = version
        self._counters = counters
        self._work: asyncio.Task[None] | None = None
        self._session: _Session | None = None
        self._again: asyncio.TimerHandle | None = None
        self._stopped = False
        shard.on_applied(self._on_applied)

    async def stop(self) -> None:
        """Work no more, and have nothing more offered. What it holds goes to another node when the lease is over."""
        self._stopped = True
        if self._again is not None:
            self._again.cancel()
        work, session = self._work, self._session
        if work is None:
            return
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        if session is None:
            return
        try:
            async with asyncio.timeout(STOP_S_MAX):
                await self._drain(session)
        except (TimeoutError, Refused) as failed:
            _log.info("canary_session_left", why=str(failed))

    @property
    def is_at_work(self) -> bool:
        """Whether its session is open."""
        return self._work is not None

    def _on_applied(self, applied: Applied) -> None:
        """Begin when a canary is ready."""
        if self._work is not None or self._stopped:
            return
        ready = applied.rows_by_kind.get(keys.READY[0], ())
        if any(row is not None and key.startswith(_LANE) for key, row in ready):
            self._begin()

    def _begin(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        self._work = asyncio.create_task(self._serve())
        self._work.add_done_callback(self._ended)

    def _ended(self, work: asyncio.Task[None]) -> None:
        """Begin anew if a canary has become ready since it last looked: no batch will tell of that once more."""
        self._work = self._session = None
        in_trouble = not work.cancelled() and work.exception() is not None
        if in_trouble and not isinstance(work.exception(), Refused):
            self._counters.call_failures += 1
            _log.error("canary_agent_failed", exc_info=work.exception())
        if self._stopped:
            return
        if in_trouble:
            self._again = asyncio.get_running_loop().call_later(TROUBLE_WAIT_S, self._look_again)
        else:
            self._look_again()

    def _look_again(self) -> None:
        self._again = None
        if self._work is not None:
            return
        with self._shard.committed() as reader:
            is_ready = next(iter(reader.scan(_LANE)), None) is not None
        if is_ready:
            self._begin()

    async def _serve(self) -> None:
        """Work until there is nothing to do, and then until nothing is left of the session.

        Raises:
            Refused: In a way that does not pass, or too often.
        """
        self._session = session = _Session(self._calls, node_id=self._node_id, version=self._version)
        draining, refusals = False, 0
        while True:
            try:
                done = await session.work_once(wait_ms=0 if draining else WAIT_MS)
                self._counters.canaries += done
                refusals = 0
                if not done and draining:
                    return
                if not done:
                    await self._drain(session)
                    # What was offered before that is still to be done.
                    draining = True
            except Refused as refused:
                refusals += 1
                if refused.rejection.reason not in _PASSING or refusals == REFUSALS_MAX:
                    _log.info("canary_session_over", message=refused.rejection.message)
                    raise
                await asyncio.sleep(REFUSED_WAIT_S)

    async def _drain(self, session: _Session) -> None:
        """Let nothing more be offered to a session.

        Raises:
            Refused: By the rules, or for want of a leader.
        """
        answer = await self._shard.call(DrainSession(session.session_id, session.generation))
        if isinstance(answer, Rejection):
            raise Refused(answer)


class _Session:
    """One session of this agent."""

    def __init__(self, calls: AgentCalls, *, node_id: str, version: str) -> None:
        self._calls = calls
        self._node_id = node_id
        self._version = version
        self.session_id = f"canary-{secrets.token_hex(12)}"
        self.generation = 0

    async def work_once(self, *, wait_ms: int) -> int:
        """Wait for work and do it; how much there was.

        Raises:
            Refused: By the rules, or for want of a leader.
        """
        hello = pb.Hello(
            protocol_version=1,
            session_id=self.session_id,
            namespace=SYSTEM_NAMESPACE,
            queue=CANARY_QUEUE,
            actions=[CANARY_ACTION],
            slots=SLOTS,
            name=f"canary@{self._node_id}",
            library=f"stepward-server {self._version}",
            generation=self.generation,
        )
        answer = await self._calls.lease_work(pb.LeaseWorkRequest(hello=hello), wait_ms_max=wait_ms)
        self.generation = answer.welcome.generation
        done = [
            pb.AttemptReport(attempt=one.attempt, succeeded=pb.Succeeded(output=one.input)) for one in answer.offers
        ]
        # What is withdrawn was never begun: it takes no time, so nothing of it is left when the next call comes.
        done += [pb.AttemptReport(attempt=one.attempt, refused=pb.Refused()) for one in answer.cancels]
        if done:
            report = pb.ReportAttemptsRequest(
                session_id=self.session_id, generation=self.generation, report=pb.Report(attempts=done)
            )
            await self._calls.report_attempts(report)
        return len(done)

"""An agent without streaming, made of nothing but generated stubs: a loop that asks for work, does it and reports."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from typing import Any

import grpc.aio
from google.protobuf.duration_pb2 import Duration

from stepward.v1 import agent_service_pb2 as pb
from stepward.v1 import job_service_pb2
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, Stubs, refusal, submission
from tests.server.plain_agent import Handler, digest, named, succeeds

WAIT = Duration(seconds=5)
NO_WAIT = Duration()

# What passes: the node is away, or has just come back.
PASSING = frozenset({"NODE_DRAINING", "NOT_LEADER", "NO_LEADER", "COMMIT_UNKNOWN", "OVERLOADED", ""})


class UnaryAgent:
    """One session. What was told stands in lists; `held` is what is not answered for yet."""

    def __init__(self, stubs: Stubs, *actions: str, session_id: str = "", slots: int = 10, name: str = "unary") -> None:
        self._stubs = stubs
        self._hello: dict[str, Any] = {"protocol_version": 1, "actions": actions, "slots": slots, "name": name}
        self.session_id = session_id or f"session-{secrets.token_hex(8)}"
        self.generation = 0
        self.welcome = pb.Welcome()
        self.held: dict[tuple[str, str, int], pb.Offer] = {}
        self.cancelled: dict[tuple[str, str, int], pb.Cancel] = {}
        self.again = 0
        """How often something was told that was known before."""

    def hello(self, **change: Any) -> pb.Hello:
        """What it says of itself."""
        held = [offer.attempt for offer in self.held.values()]
        fields = {**self._hello, "session_id": self.session_id, "generation": self.generation, "held": held} | change
        return pb.Hello(**fields)

    async def lease(self, wait: Duration = WAIT, **change: Any) -> pb.LeaseWorkResponse:
        """Ask for work once."""
        cancelled = [cancel.attempt for cancel in self.cancelled.values()]
        request = pb.LeaseWorkRequest(hello=self.hello(**change), wait_max=wait, cancelled=cancelled)
        answer = await self._stubs.agents.LeaseWork(request, timeout=CALL_S_MAX)
        self.take(answer)
        return answer

    def take(self, answer: pb.LeaseWorkResponse) -> list[pb.Offer]:
        """Note what was told. Returns the offers that are new: the others are known by job, step and token."""
        self.welcome = answer.welcome
        self.generation = max(self.generation, answer.welcome.generation)
        new = [offer for offer in answer.offers if named(offer.attempt) not in self.held]
        self.again += len(answer.offers) - len(new)
        self.held |= {named(offer.attempt): offer for offer in new}
        self.cancelled |= {named(cancel.attempt): cancel for cancel in answer.cancels}
        return new

    async def renew(self, number: int = 1, *, held: Iterable[pb.AttemptRef] | None = None) -> pb.RenewSessionResponse:
        """Say that it lives."""
        beat = pb.Heartbeat(number=number, held_digest=digest(self.held), busy_slots=len(self.held))
        if held is not None:
            beat.held.extend(held)
            beat.held_is_complete = True
        request = pb.RenewSessionRequest(session_id=self.session_id, generation=self.generation, heartbeat=beat)
        return await self._stubs.agents.RenewSession(request, timeout=CALL_S_MAX)

    async def report(self, *reports: pb.AttemptReport, **change: Any) -> list[pb.ReportAnswer]:
        """Report what became of attempts; what is answered for is no longer held."""
        fields: dict[str, Any] = {"session_id": self.session_id, "generation": self.generation} | change
        request = pb.ReportAttemptsRequest(report=pb.Report(attempts=reports), **fields)
        answer = await self._stubs.agents.ReportAttempts(request, timeout=CALL_S_MAX)
        outcomes = {
            named(report.attempt) for report in reports if report.WhichOneof("event") not in ("started", "progress")
        }
        for one in answer.answers.answers:
            if named(one.attempt) in outcomes:
                self.held.pop(named(one.attempt), None)
                self.cancelled.pop(named(one.attempt), None)
        return list(answer.answers.answers)

    async def serve(self, handler: Handler = succeeds, *, until: Callable[[], bool]) -> None:
        """Ask, work and report until told to end, whatever passes meanwhile. Work that is cancelled is not begun.

        Raises:
            grpc.aio.AioRpcError: The session is over.
        """
        unreported: list[pb.AttemptReport] = []
        while not until():
            try:
                if unreported:
                    await self.report(*unreported)
                    unreported = []
                answer = await self._ask()
            except grpc.aio.AioRpcError as failed:
                if _reason(failed) not in PASSING:
                    raise
                await asyncio.sleep(0.02)
                continue
            reports = [handler(offer) for offer in answer]
            unreported += [report for report in reports if report is not None]

    async def _ask(self) -> list[pb.Offer]:
        cancelled = [cancel.attempt for cancel in self.cancelled.values()]
        request = pb.LeaseWorkRequest(hello=self.hello(), wait_max=WAIT, cancelled=cancelled)
        return self.take(await self._stubs.agents.LeaseWork(request, timeout=CALL_S_MAX))


def _reason(failed: grpc.aio.AioRpcError) -> str:
    """Why a call was refused; empty when no node answered."""
    details = dict(failed.trailing_metadata() or ())
    return refusal(failed).reason if "grpc-status-details-bin" in details else ""


async def submit(stubs: Stubs, name: str = "one", data: bytes = b"{}") -> str:
    request = job_service_pb2.SubmitJobRequest(job=submission(name, data))
    return (await stubs.jobs.SubmitJob(request, timeout=CALL_S_MAX)).job_id


async def cancel(stubs: Stubs, job_id: str) -> None:
    await stubs.jobs.CancelJob(job_service_pb2.CancelJobRequest(job_id=job_id), timeout=CALL_S_MAX)


async def state(stubs: Stubs, job_id: str) -> int:
    return (await stubs.jobs.GetJob(job_service_pb2.GetJobRequest(job_id=job_id), timeout=CALL_S_MAX)).job.state


async def listed(stubs: Stubs) -> list[pb.Agent]:
    return list((await stubs.agents.ListAgents(pb.ListAgentsRequest(), timeout=CALL_S_MAX)).agents)


async def listens(stubs: Stubs, count: int = 1) -> None:
    """Wait until so many sessions can be offered work."""

    async def connected() -> bool:
        return sum(one.connected for one in await listed(stubs)) == count

    await nodes.eventually(connected)

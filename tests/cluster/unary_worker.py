"""A trip agent in a process of its own that knows nothing but the generated stubs, and does not stream.

    python -m tests.cluster.unary_worker SERVER TRAVEL SLOTS

What somebody would write whose language or network has no streams: one task asks for work, one renews, and each step
that is taken has a task, which reports until it is answered.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import time
import urllib.error
import urllib.request
from typing import Any

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration

from stepward.v1 import agent_service_pb2 as pb
from stepward.v1 import agent_service_pb2_grpc, common_pb2

# Where each action of the trip is served.
PATHS = {
    "book-flight": "/flights/book",
    "book-hotel": "/hotels/book",
    "book-car": "/cars/book",
    "send-receipt": "/receipts/book",
    "cancel-flight": "/flights/cancel",
    "cancel-hotel": "/hotels/cancel",
    "cancel-car": "/cars/cancel",
}
CALL_S_MAX = 10.0
PAUSE_S = 0.05
# The contract: a handler that still runs after this says that it has started.
START_TOLD_S = 0.5

Key = tuple[str, str, int]


class SessionEndedError(Exception):
    """The session is over: begin with a new one."""


class Session:
    """One session: what it holds, and until when its lease runs."""

    def __init__(self, stubs: agent_service_pb2_grpc.AgentServiceAsyncStub, travel: str, slots: int) -> None:
        self._stubs = stubs
        self._travel = travel
        self._slots = slots
        self._id = f"worker-{secrets.token_hex(8)}"
        self._welcome = pb.Welcome()
        self._held: dict[Key, pb.AttemptRef] = {}
        self._cancelled: dict[Key, pb.AttemptRef] = {}
        self._lease_ends_at = 0.0
        self._room = asyncio.Event()
        self._number = 0

    async def serve(self) -> None:
        """Work until the session is over; what has begun is reported all the same, as the token decides."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._ask())
                tasks.create_task(self._renew())
        except* SessionEndedError:
            pass

    async def _ask(self) -> None:
        while True:
            if len(self._held) >= self._slots:
                self._room.clear()
                await self._room.wait()
                continue
            sent_at = time.monotonic()
            hello = pb.Hello(
                protocol_version=1,
                session_id=self._id,
                queue="trip",
                actions=list(PATHS),
                slots=self._slots,
                held=self._held.values(),
                name=f"unary:{os.getpid()}",
                generation=self._welcome.generation,
            )
            request = pb.LeaseWorkRequest(
                hello=hello, wait_max=Duration(seconds=5), cancelled=list(self._cancelled.values())
            )
            answer = await self._call(self._stubs.LeaseWork, request)
            if answer is None:
                continue
            self._welcome = answer.welcome
            self._renewed(sent_at)
            self._cancel(answer.cancels)
            for offer in answer.offers:
                self._take(offer)

    def _take(self, offer: pb.Offer) -> None:
        """Start what is new, while the lease runs; what is dropped is told again."""
        key = named(offer.attempt)
        if key not in self._held and time.monotonic() < self._lease_ends_at:
            self._held[key] = offer.attempt
            self._tasks.create_task(self._work(key, offer))

    def _cancel(self, cancels: Any) -> None:
        """What is at work goes on to its outcome, which is an answer, too; what is not here was never started."""
        for cancel in cancels:
            key = named(cancel.attempt)
            if key in self._cancelled:
                continue
            self._cancelled[key] = cancel.attempt
            if key not in self._held:
                never = pb.AttemptReport(attempt=cancel.attempt, refused=pb.Refused())
                self._tasks.create_task(self._report(key, never))

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._welcome.heartbeat_interval.ToMilliseconds() / 1_000 or PAUSE_S)
            if not self._welcome.generation:
                continue
            sent_at = time.monotonic()
            self._number += 1
            beat = pb.Heartbeat(number=self._number, busy_slots=len(self._held))
            request = pb.RenewSessionRequest(session_id=self._id, generation=self._welcome.generation, heartbeat=beat)
            answer = await self._call(self._stubs.RenewSession, request)
            if answer is not None:
                self._renewed(sent_at)
                self._cancel(answer.cancels)

    def _renewed(self, sent_at: float) -> None:
        self._lease_ends_at = max(self._lease_ends_at, sent_at + self._welcome.ttl.ToMilliseconds() / 1_000)

    async def _work(self, key: Key, offer: pb.Offer) -> None:
        booking = asyncio.create_task(asyncio.to_thread(self._book, offer))
        done, _ = await asyncio.wait((booking,), timeout=START_TOLD_S)
        if not done:
            await self._report(key, pb.AttemptReport(attempt=offer.attempt, started=pb.Started()))
        await self._report(key, await booking)
        del self._held[key]
        self._room.set()

    async def _report(self, key: Key, report: pb.AttemptReport) -> None:
        """Report until it is answered."""
        while True:
            request = pb.ReportAttemptsRequest(
                session_id=self._id, generation=self._welcome.generation, report=pb.Report(attempts=[report])
            )
            answer = await self._call(self._stubs.ReportAttempts, request)
            if answer is not None and answer.answers.answers[0].result != pb.REPORT_RESULT_INTERNAL:
                if report.WhichOneof("event") != "started":
                    self._cancelled.pop(key, None)
                return

    async def _call(self, method: Any, request: Any) -> Any:
        """The answer, or None when the call is to be made again."""
        try:
            return await method(request, timeout=CALL_S_MAX)
        except grpc.aio.AioRpcError as failed:
            if failed.code() is grpc.StatusCode.FAILED_PRECONDITION:
                raise SessionEndedError from None
            if failed.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise
            await asyncio.sleep(PAUSE_S)
            return None

    def _book(self, offer: pb.Offer) -> pb.AttemptReport:
        """One call of the travel service, as the handlers of the trip do it."""
        ref, given = offer.attempt, json.loads(offer.input.data or b"{}")
        body = {
            "key": offer.idempotency_key,
            "token": ref.token,
            "job": ref.job_id,
            "step": ref.step_id,
            "attempt": offer.attempt_number,
            "agent_pid": os.getpid(),
        }
        if offer.undo:
            body["cancels"] = offer.idempotency_key.removesuffix("/undo")
        else:
            body["wish"] = given.get("wish") or f"{given['traveller']}: {', '.join(given['bookings'])}"
        request = urllib.request.Request(f"http://{self._travel}{PATHS[offer.action]}", json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=CALL_S_MAX) as response:
                booking = json.load(response)["booking"]
        except urllib.error.HTTPError as refused:
            kind = json.load(refused)["kind"]
            return pb.AttemptReport(attempt=ref, failed=pb.Failed(kind=kind, retryable=True))
        output = common_pb2.Payload(data=json.dumps({"booking": booking}).encode())
        return pb.AttemptReport(attempt=ref, succeeded=pb.Succeeded(output=output))


def named(ref: pb.AttemptRef) -> Key:
    """An assignment's name as a value."""
    return ref.job_id, ref.step_id, ref.token


async def work(server: str, travel: str, slots: int) -> None:
    """One session after another."""
    async with grpc.aio.insecure_channel(server) as channel:
        stubs = agent_service_pb2_grpc.AgentServiceStub(channel)
        while True:
            await Session(stubs, travel, slots).serve()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2], int(sys.argv[3])))

"""An agent as a greenlet: one session on a bidirectional stream, whose work takes a drawn time and never goes wrong.

It keeps the promises of the contract: a heartbeat every sixth of a TTL, reports that are sent again until they are
answered, and work that it knows by job, step and token, so that what is offered again is not done again.
"""

from __future__ import annotations

import random
import secrets
import time
from typing import Any

import gevent
import grpc
from gevent.queue import Queue
from locust import task
from locust.runners import STATE_CLEANUP, STATE_STOPPED, STATE_STOPPING
from typing_extensions import override

from loadtest.fake_session import Session
from loadtest.routes import Route
from loadtest.shapes import OUTPUT_BYTES, REFUSE
from loadtest.users import Caller, CallFailedError, fire
from stepward.client.answers import error_from
from stepward.v1 import agent_service_pb2 as pb
from stepward.v1 import agent_service_pb2_grpc
from stepward.v1.common_pb2 import Payload

# How long work takes.
WORK_S_MAX = 0.02
# A stream that breaks is made anew after this.
AGAIN_S = 0.1
# How long an agent looks for work that is still open when the run is over, at each look.
LOOK_EVERY_S = 0.2

# Locust may stop a user in the middle of a call; the jobs that it leaves are done all the same.
LINGER_S = 3.0
STOPPING = (STATE_STOPPING, STATE_CLEANUP, STATE_STOPPED)


class FakeAgent(Caller):
    """Serves the queue of the users."""

    @override
    def on_start(self) -> None:
        super().on_start()
        self.session = Session()
        self.route = Route(self.host or "", first=secrets.randbelow(1 << 16))
        self.given_at = time.perf_counter()
        # Of the stream that stands, or stood last.
        self.outgoing: Queue[pb.WorkRequest | None] = Queue()

    @override
    def on_stop(self) -> None:
        self.route.close()
        super().on_stop()

    @task
    def serve(self) -> None:
        """Until nobody submits any more and nothing is open."""
        lost_at: float | None = None
        while not self._over():
            began_at = time.perf_counter()
            failure = self._stream(lost_at)
            lost_at = lost_at or time.perf_counter()
            if failure is not None:
                fire(self, "session", (time.perf_counter() - began_at) * 1000, failure)
                self.session = Session()
            gevent.sleep(AGAIN_S)
            self.route.go_on()

    def _over(self) -> bool:
        runner = self.environment.runner
        stopping = runner is not None and runner.state in STOPPING and not self.ledger.open
        return stopping and not self.session.held and time.perf_counter() - self.given_at > LINGER_S

    def _stream(self, lost_at: float | None) -> CallFailedError | None:
        """One stream, to its end. Returns why the session is over, when it is."""
        outgoing = self.outgoing = Queue()
        outgoing.put(self.session.hello())
        stub = agent_service_pb2_grpc.AgentServiceStub(self.route.channel)
        call = stub.Work(iter(outgoing.get, None))
        helpers = [gevent.spawn(self._end_when_over, call)]
        try:
            for message in call:
                self._take(message, helpers, lost_at)
        except grpc.RpcError as failed:
            error = error_from(failed, self.route.address)
            return CallFailedError(error.reason) if error.reason == "SESSION_ENDED" else None
        finally:
            gevent.killall(helpers)
            outgoing.put(None)
            call.cancel()
        return None

    def _take(self, message: pb.WorkResponse, helpers: list[gevent.Greenlet], lost_at: float | None) -> None:
        match message.WhichOneof("message"):
            case "welcome":
                fire(self, "open session", 0.0 if lost_at is None else (time.perf_counter() - lost_at) * 1000)
                self.session.generation = message.welcome.generation
                self._report(self.session.unreported())
                interval_s = message.welcome.heartbeat_interval.ToMilliseconds() / 1_000
                helpers.append(gevent.spawn(self._beat, self.outgoing, interval_s))
            case "offers":
                self.given_at = time.perf_counter()
                for offer in self.session.taken(message.offers):
                    gevent.spawn_later(random.uniform(0, WORK_S_MAX), self._work, self.session, offer)
            case "answers":
                self.session.answered(message.answers)
            case "cancels":
                self._report(self.session.unknown(message.cancels))
            case "heartbeat":
                self.session.send_held = message.heartbeat.send_held

    def _beat(self, outgoing: Queue[Any], interval_s: float) -> None:
        number = 0
        while True:
            number += 1
            outgoing.put(self.session.heartbeat(number))
            gevent.sleep(interval_s)

    def _end_when_over(self, call: Any) -> None:
        while not self._over():
            gevent.sleep(LOOK_EVERY_S)
        call.cancel()

    def _work(self, session: Session, offer: pb.Offer) -> None:
        """What the handler does. The report is said again on the next stream if this one is gone meanwhile."""
        if session is not self.session:
            # The lease is over: another may have been given the step.
            return
        self.ledger.ran(offer.idempotency_key)
        if offer.action == REFUSE:
            failure = pb.Failed(kind="NoneLeft", message="there is none left")
            report = pb.AttemptReport(attempt=offer.attempt, failed=failure)
        else:
            output = Payload(data=OUTPUT_BYTES, encoding="json/utf-8")
            report = pb.AttemptReport(attempt=offer.attempt, succeeded=pb.Succeeded(output=output))
        session.done(report)
        self._report([report])

    def _report(self, reports: list[pb.AttemptReport]) -> None:
        if reports:
            self.outgoing.put(pb.WorkRequest(report=pb.Report(attempts=reports)))

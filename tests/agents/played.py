"""A session that is played by hand: messages in, short lines out, and time that moves when told.

A line names an attempt as `step#token`. Heartbeats and openings are left out unless asked for.
"""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from stepward.agents.attempts import AttemptKey
from stepward.agents.directives import (
    CancelHandler,
    ChangeNode,
    Directive,
    EndProcess,
    Finish,
    KillHandler,
    OpenedSession,
    SetLeaseLost,
    StartHandler,
)
from stepward.agents.memory import Memory
from stepward.agents.outcomes import Outcome, Succeeded
from stepward.agents.session import Profile, Session
from stepward.v1 import agent_service_pb2 as wire
from stepward.v1 import common_pb2

TTL_MS = 9_000
HEARTBEAT_MS = TTL_MS // 6
KILL_GRACE_MS = 2_000
DRAIN_MS = 30_000
TICK_MS = 50

ON_OFFER = wire.OFFER_START_ON_OFFER
ON_ACCEPT = wire.OFFER_START_ON_ACCEPT

RESULTS = {
    "RECORDED": wire.REPORT_RESULT_RECORDED,
    "STALE_TOKEN": wire.REPORT_RESULT_STALE_TOKEN,
    "CANCELLED": wire.REPORT_RESULT_CANCELLED,
    "NOT_FOUND": wire.REPORT_RESULT_NOT_FOUND,
    "TOO_LARGE": wire.REPORT_RESULT_TOO_LARGE,
    "INTERNAL": wire.REPORT_RESULT_INTERNAL,
}

DONE = Succeeded(b"1")


def duration(ms: int) -> Duration:
    value = Duration()
    value.FromMilliseconds(ms)
    return value


def ref(step: str, token: int, job: str = "0-job") -> wire.AttemptRef:
    return wire.AttemptRef(job_id=job, step_id=step, token=token)


def offer(
    step: str,
    token: int,
    *,
    start: wire.OfferStart.ValueType = ON_OFFER,
    idempotent: bool = True,
    start_to_close_ms: int = 600_000,
    action: str = "work",
    input: bytes = b"{}",
    job: str = "0-job",
    heartbeat_timeout_ms: int = 0,
) -> wire.Offer:
    return wire.Offer(
        attempt=ref(step, token, job),
        action=action,
        input=common_pb2.Payload(data=input),
        attempt_number=1,
        idempotency_key=f"{job}/{step}/1",
        start=start,
        start_to_close=duration(start_to_close_ms),
        idempotent=idempotent,
        definition_name="trip",
        heartbeat_timeout=duration(heartbeat_timeout_ms) if heartbeat_timeout_ms else None,
    )


def welcome(session_id: str, generation: int, *, payload_bytes_max: int = 262_144) -> wire.WorkResponse:
    return wire.WorkResponse(
        welcome=wire.Welcome(
            session_id=session_id,
            generation=generation,
            ttl=duration(TTL_MS),
            heartbeat_interval=duration(HEARTBEAT_MS),
            kill_grace=duration(KILL_GRACE_MS),
            payload_bytes_max=payload_bytes_max,
            node_id="n1",
        )
    )


class Played:
    """One session and the hands that play it."""

    def __init__(
        self,
        *,
        slots: int = 4,
        actions: tuple[str, ...] = ("work",),
        killable: tuple[str, ...] = (),
        memory: Memory | None = None,
    ) -> None:
        profile = Profile(
            namespace="default",
            queue="trip",
            actions=actions,
            slots=slots,
            name="test",
            library="test/0",
            killable=killable,
        )
        self.session = Session(profile, "session-1", drain_timeout_ms=DRAIN_MS, memory=memory)
        self.now_ms = 1_000_000
        self.generation = 0
        self.messages: list[wire.WorkRequest] = []
        """Everything that was sent, as messages."""
        self.heartbeats: list[wire.Heartbeat] = []
        """Those that were sent and not answered on this stream."""

    # What the node does.

    def connect(self) -> None:
        self.session.connected(self.now_ms)

    def welcome(self, *, generation: int | None = None, payload_bytes_max: int = 262_144) -> None:
        self.generation = self.generation + 1 if generation is None else generation
        message = welcome(self.session.session_id, self.generation, payload_bytes_max=payload_bytes_max)
        self.session.received(self.now_ms, message)

    def open(self) -> list[str]:
        """A stream, welcomed at once, with its first heartbeat acknowledged."""
        self.connect()
        self.out()
        self.welcome()
        lines = self.out()
        self.acknowledge()
        return lines

    def offer(self, step: str, token: int, **kinds: object) -> list[str]:
        return self.offers(offer(step, token, **kinds))  # type: ignore[arg-type]  # kinds are those of `offer`

    def offers(self, *offers: wire.Offer) -> list[str]:
        self.session.received(self.now_ms, wire.WorkResponse(offers=wire.Offers(offers=offers)))
        return self.out()

    def cancel(
        self, step: str, token: int, reason: wire.CancelReason.ValueType = wire.CANCEL_REASON_JOB_ENDING
    ) -> list[str]:
        cancels = wire.Cancels(cancels=[wire.Cancel(attempt=ref(step, token), reason=reason)])
        self.session.received(self.now_ms, wire.WorkResponse(cancels=cancels))
        return self.out()

    def answer(self, step: str, token: int, result: str = "RECORDED") -> list[str]:
        answer = wire.ReportAnswer(attempt=ref(step, token), result=RESULTS[result])
        self.session.received(self.now_ms, wire.WorkResponse(answers=wire.ReportAnswers(answers=[answer])))
        return self.out()

    def acknowledge(self, *, send_held: bool = False) -> None:
        """Answer the newest heartbeat."""
        if self.heartbeats:
            answer = wire.HeartbeatAnswer(number=self.heartbeats[-1].number, send_held=send_held)
            self.heartbeats.clear()
            self.session.received(self.now_ms, wire.WorkResponse(heartbeat=answer))

    def lose_stream(self) -> None:
        self.session.disconnected()
        self.heartbeats.clear()

    # What handlers do.

    def ended(self, step: str, token: int, outcome: Outcome = DONE) -> list[str]:
        self.session.handler_ended(AttemptKey("0-job", step, token), outcome)
        return self.out()

    # What time does.

    def passes(self, ms: int, *, acknowledged: bool = True) -> list[str]:
        """Time passes in ticks; heartbeats are acknowledged at once, or not at all."""
        lines: list[str] = []
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            self.now_ms = min(end_ms, self.now_ms + TICK_MS)
            self.session.tick(self.now_ms)
            lines += self.out()
            if acknowledged:
                self.acknowledge()
                lines += self.out()
        return lines

    def jumps(self, ms: int) -> list[str]:
        """The process stood still: one tick after a long time."""
        self.now_ms += ms
        self.session.tick(self.now_ms)
        return self.out()

    # What came of it.

    def out(self, *, all_lines: bool = False) -> list[str]:
        outputs = self.session.take()
        self.messages += outputs.messages
        self.heartbeats += [one.heartbeat for one in outputs.messages if one.WhichOneof("message") == "heartbeat"]
        lines = [line for message in outputs.messages for line in _message_lines(message)]
        lines += [_directive_line(directive) for directive in outputs.directives]
        quiet = ("heartbeat", "opened")
        return [line for line in lines if all_lines or not line.startswith(quiet)]


def name(key: AttemptKey | wire.AttemptRef) -> str:
    return f"{key.step_id}#{key.token}"


def _message_lines(message: wire.WorkRequest) -> list[str]:
    match message.WhichOneof("message"):
        case "hello":
            held = " ".join(sorted(name(one) for one in message.hello.held))
            return [f"hello {message.hello.session_id} held=[{held}]"]
        case "heartbeat":
            held = " ".join(sorted(name(one) for one in message.heartbeat.held))
            return [f"heartbeat {message.heartbeat.number} held=[{held}]"]
        case "drain":
            return ["drain"]
        case _:
            return [_report_line(report) for report in message.report.attempts]


def _report_line(report: wire.AttemptReport) -> str:
    event = report.WhichOneof("event")
    line = f"report {event} {name(report.attempt)}"
    match event:
        case "refused" if report.refused.handed_back:
            return line + " handed_back"
        case "stopped" if report.stopped.draining:
            return line + " draining"
        case "failed":
            return line + f" {report.failed.kind} retryable={report.failed.retryable}"
        case "progress":
            return line + f" {report.progress.details.data.decode() or 'alive'}"
        case _:
            return line


def _directive_line(directive: Directive) -> str:
    match directive:
        case StartHandler(key=key):
            return f"start {name(key)}"
        case CancelHandler(key=key, reason=reason):
            return f"cancel {name(key)} {reason}"
        case KillHandler(key=key):
            return f"kill {name(key)}"
        case SetLeaseLost(key=key, lost=lost):
            return f"lease {'lost' if lost else 'back'} {name(key)}"
        case OpenedSession(session_id=session_id):
            return f"opened {session_id}"
        case ChangeNode(addresses=addresses):
            return " ".join(["change node", *addresses])
        case EndProcess(exit_code=exit_code):
            return f"end process {exit_code}"
        case Finish(exit_code=exit_code):
            return f"finish {exit_code}"

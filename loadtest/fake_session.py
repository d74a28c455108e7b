"""What an agent of the load with locust knows of its work, without any I/O.

Work is known by job, step and token, so what is offered again is not done again; outcomes are kept until they are
acknowledged.
"""

from __future__ import annotations

import hashlib
import secrets

from loadtest.shapes import ACTIONS, QUEUE
from stepward.v1 import agent_service_pb2 as pb

SLOTS = 256

Ref = tuple[str, str, int]


class Session:
    """What an agent knows, without any I/O."""

    def __init__(self) -> None:
        self.session_id = f"session-{secrets.token_hex(8)}"
        self.generation = 0
        # Whose outcome is not acknowledged: taken, and what is to be reported once it is known.
        self.held: dict[Ref, pb.AttemptReport | None] = {}
        self.send_held = False

    def hello(self) -> pb.WorkRequest:
        """Opens the session, or goes on with it."""
        return pb.WorkRequest(
            hello=pb.Hello(
                protocol_version=1,
                session_id=self.session_id,
                queue=QUEUE,
                actions=ACTIONS,
                slots=SLOTS,
                held=[_attempt(ref) for ref in self.held],
                name="greenlet",
                library="stepward-loadtest",
                generation=self.generation,
            )
        )

    def taken(self, offers: pb.Offers) -> list[pb.Offer]:
        """The offers that are new."""
        new = [offer for offer in offers.offers if _ref(offer.attempt) not in self.held]
        self.held |= {_ref(offer.attempt): None for offer in new}
        return new

    def done(self, report: pb.AttemptReport) -> None:
        """The outcome of what is held."""
        self.held[_ref(report.attempt)] = report

    def answered(self, answers: pb.ReportAnswers) -> None:
        """What was reported need not be said again, unless the server asks for it."""
        for answer in answers.answers:
            if answer.result != pb.REPORT_RESULT_INTERNAL:
                self.held.pop(_ref(answer.attempt), None)

    def unknown(self, cancels: pb.Cancels) -> list[pb.AttemptReport]:
        """Answers to the cancels of what was never begun. What was begun ends soon, and says so then."""
        return [
            pb.AttemptReport(attempt=cancel.attempt, refused=pb.Refused())
            for cancel in cancels.cancels
            if _ref(cancel.attempt) not in self.held
        ]

    def unreported(self) -> list[pb.AttemptReport]:
        """All outcomes that nobody has acknowledged."""
        return [report for report in self.held.values() if report is not None]

    def heartbeat(self, number: int) -> pb.WorkRequest:
        """A sign of life."""
        lines = "\n".join(sorted("/".join(map(str, ref)) for ref in self.held))
        digest = int.from_bytes(hashlib.sha256(lines.encode()).digest()[:8], "big")
        beat = pb.Heartbeat(number=number, held_digest=digest, busy_slots=len(self.held))
        if self.send_held:
            beat.held.extend(_attempt(ref) for ref in self.held)
            beat.held_is_complete = True
            self.send_held = False
        return pb.WorkRequest(heartbeat=beat)


def _ref(attempt: pb.AttemptRef) -> Ref:
    return attempt.job_id, attempt.step_id, attempt.token


def _attempt(ref: Ref) -> pb.AttemptRef:
    return pb.AttemptRef(job_id=ref[0], step_id=ref[1], token=ref[2])

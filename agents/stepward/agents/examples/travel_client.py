"""How a handler calls the travel service, and what it makes of an answer that does not come.

Whether the request has left or not, it is tried again, since the key makes a repeat safe. But when no try is left, only
a step that may have happened is undone: so `http_call` says which it was.
"""

from __future__ import annotations

from msgspec import Struct

from stepward.agents import Context, Permanent, StepFailed
from stepward.agents.examples.bookings import Answer
from stepward.agents.examples.http_call import Service

# The travel service is on this machine; what takes longer has failed.
ANSWER_S_MAX = 25.0

# Refusals that no further try of this attempt changes: a newer attempt or the undo was there before it.
OVERTAKEN = frozenset({"StaleToken", "Cancelled"})


class Booking(Struct, frozen=True):
    """What a step gives: the number under which the service keeps it."""

    booking: str


class Travel(Service):
    """The travel service at an address."""

    def __init__(self, address: str) -> None:
        super().__init__("travel service", address, unreachable="TravelUnreachable")

    async def book(self, ctx: Context, service: str, wish: str) -> Booking:
        """Book. All attempts of the step get the same booking.

        Raises:
            StepFailed: Refused, or the service was not reached. The kind is the service's, such as `CarUnavailable`.
            Unknown: It may have been booked.
        """
        answer = await self._call(ctx, f"/{service}/book", {"wish": wish})
        return Booking(answer.booking)

    async def cancel(self, ctx: Context, service: str) -> Booking:
        """Undo what the step may have booked. Whether anything was, is for the service to know.

        Raises:
            StepFailed: The service was not reached.
            Unknown: It may have been cancelled.
        """
        answer = await self._call(ctx, f"/{service}/cancel", {"cancels": ctx.idempotency_key.removesuffix("/undo")})
        return Booking(answer.booking)

    async def _call(self, ctx: Context, path: str, fields: dict[str, object]) -> Answer:
        answer = await self.post(ctx, path, fields, Answer, seconds_max=ANSWER_S_MAX)
        if answer.status == 200:
            return answer
        refusal = Permanent if answer.kind in OVERTAKEN else StepFailed
        raise refusal(answer.message, kind=answer.kind)

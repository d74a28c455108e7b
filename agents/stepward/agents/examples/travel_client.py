"""How a handler calls the travel service, and what it makes of an answer that does not come.

What a handler raises must be true: before the request has left, nothing has happened, and the step may fail; once it
has left and no answer came, nobody can tell. Both are tried again, since the key makes a repeat safe. But when no try
is left, only a step that may have happened is undone.
"""

from __future__ import annotations

import asyncio
import os

import msgspec
from msgspec import Struct

from stepward.agents import Context, Permanent, StepFailed, Unknown
from stepward.agents.examples.bookings import Answer

# The travel service is on this machine; what takes longer has failed.
CONNECT_S_MAX = 5.0
ANSWER_S_MAX = 25.0
ANSWER_BYTES_MAX = 64 * 1024

# Refusals that no further try of this attempt changes: a newer attempt or the undo was there before it.
OVERTAKEN = frozenset({"StaleToken", "Cancelled"})


class Booking(Struct, frozen=True):
    """What a step gives: the number under which the service keeps it."""

    booking: str


class Travel:
    """The travel service at an address."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._host = host
        self._port = int(port)

    @property
    def address(self) -> str:
        return f"{self._host}:{self._port}"

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

    async def answers(self) -> bool:
        """Whether a travel service is there."""
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(self._host, self._port), CONNECT_S_MAX)
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True

    async def _call(self, ctx: Context, path: str, fields: dict[str, str]) -> Answer:
        body = msgspec.json.encode(
            {
                "key": ctx.idempotency_key,
                "token": ctx.token,
                "job": ctx.job_id,
                "step": ctx.step_id,
                "attempt": ctx.attempt,
                "agent_pid": os.getpid(),
                **fields,
            }
        )
        answer = await self._exchange(path, body, seconds_max=min(ANSWER_S_MAX, ctx.remaining_seconds))
        if answer.status == 200:
            return answer
        refusal = Permanent if answer.kind in OVERTAKEN else StepFailed
        raise refusal(answer.message, kind=answer.kind)

    async def _exchange(self, path: str, body: bytes, *, seconds_max: float) -> Answer:
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                reader, writer = await asyncio.open_connection(self._host, self._port, limit=ANSWER_BYTES_MAX)
        except (OSError, TimeoutError) as error:
            raise StepFailed(f"no travel service at {self.address}: {error}", kind="TravelUnreachable") from error
        try:
            async with asyncio.timeout(seconds_max):
                writer.write(_request(path, self.address, body))
                await writer.drain()
                await reader.readuntil(b"\r\n\r\n")
                return msgspec.json.decode(await reader.read(-1), type=Answer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, msgspec.MsgspecError) as error:
            raise Unknown(f"POST {path} was sent and no whole answer came: {error!r}", kind="NoAnswer") from error
        finally:
            writer.close()


def _request(path: str, host: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body

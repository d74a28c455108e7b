"""How a handler calls the shop's services, and what it makes of their refusals and of their silence."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from stepward.agents import Context, Permanent, StepFailed
from stepward.agents.examples.http_call import Service
from stepward.agents.examples.orders.shop import Answer, Verb

# The shop is on this machine; what takes longer has failed. Payments are not waited for long, since they can be asked.
ANSWER_S_MAX = 20.0
PAYMENT_S_MAX = 2.0

# Refusals that no further try of this attempt changes: a newer attempt or the undo was there before it.
OVERTAKEN = frozenset({"StaleToken", "Undone"})


class Done(Struct, frozen=True):
    """What a step gives: the number under which the service keeps it."""

    number: str


class Found(Struct, frozen=True):
    """What became of an attempt of unknown outcome, in the form that a verify has."""

    happened: bool
    output: Done | None = None


class ShopClient(Service):
    """The shop at an address."""

    def __init__(self, address: str) -> None:
        super().__init__("shop", address, unreachable="ShopUnreachable")

    async def do(self, ctx: Context, service: str, verb: Verb, wish: str) -> Done:
        """Have it done. All attempts of the step get the same.

        Raises:
            StepFailed: Refused, or the shop was not reached.
            Unknown: It may have been done.
        """
        answer = await self._call(ctx, f"/{service}/{verb}", {"wish": wish}, seconds_max=ANSWER_S_MAX)
        return Done(answer.number)

    async def charge(self, ctx: Context, wish: str, cents: int) -> Done:
        """Charge a card. A repeat would be a second charge.

        Raises:
            StepFailed: Declined, or the shop was not reached.
            Unknown: It may have been charged.
        """
        fields: dict[str, object] = {"wish": wish, "cents": cents}
        return Done((await self._call(ctx, "/payments/charge", fields, seconds_max=PAYMENT_S_MAX)).number)

    async def find_charge(self, ctx: Context) -> Found:
        """Ask whether there is a charge under the key of the step.

        Raises:
            StepFailed: The shop was not reached.
            Unknown: It did not say.
        """
        answer = await self._call(ctx, "/payments/find", {}, seconds_max=ANSWER_S_MAX)
        return Found(happened=True, output=Done(answer.number)) if answer.number else Found(happened=False)

    async def undo(self, ctx: Context, service: str, verb: Verb, keys: Sequence[str]) -> None:
        """Undo what the step may have done, under any of its keys. Whether anything was, the shop knows.

        Raises:
            StepFailed: The shop was not reached.
            Unknown: It may have been undone.
        """
        for key in keys:
            await self._call(ctx, f"/{service}/{verb}", {"of": key}, seconds_max=ANSWER_S_MAX)

    async def _call(self, ctx: Context, path: str, fields: dict[str, object], *, seconds_max: float) -> Answer:
        answer = await self.post(ctx, path, fields, Answer, seconds_max=seconds_max)
        if answer.status == 200:
            return answer
        refusal = Permanent if answer.kind in OVERTAKEN else StepFailed
        raise refusal(answer.message, kind=answer.kind)

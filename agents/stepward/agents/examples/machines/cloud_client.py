"""How a handler calls the cloud, and what it makes of its refusals."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from stepward.agents import Context, Permanent, StepFailed
from stepward.agents.examples.http_call import Service
from stepward.agents.examples.machines.cloud import Answer

# The cloud is on this machine; what takes longer has failed.
ANSWER_S_MAX = 10.0

# Refusals that no further try of this attempt changes: a newer attempt or the undo was there before it.
OVERTAKEN = frozenset({"StaleToken", "Deleted"})


class Created(Struct, frozen=True):
    """What a step gives: the id under which the cloud keeps it."""

    id: str


class CloudClient(Service):
    """The cloud at an address."""

    def __init__(self, address: str) -> None:
        super().__init__("cloud", address, unreachable="CloudUnreachable")

    async def create(self, ctx: Context, kind: str, wish: str) -> Created:
        """Create something. All attempts of the step get the same thing.

        Raises:
            StepFailed: Refused, or the cloud was not reached.
            Unknown: It may have been created.
        """
        return Created((await self._call(ctx, f"/{kind}/create", {"wish": wish})).id)

    async def install(self, ctx: Context, part: int, wish: str) -> None:
        """Install a part of the machine of this step, once the parts before it are there; one that is there stays.

        Raises:
            StepFailed: Refused, or the cloud was not reached.
            Unknown: It may have been installed.
        """
        await self._call(ctx, "/machines/install", {"part": part, "wish": wish})

    async def delete(self, ctx: Context, kind: str, keys: Sequence[str]) -> None:
        """Delete what the step may have created, under any of its keys. Whether anything is there, the cloud knows.

        Raises:
            StepFailed: Refused, or the cloud was not reached. The kind is the cloud's, such as `Locked`.
            Unknown: It may have been deleted.
        """
        for key in keys:
            await self._call(ctx, f"/{kind}/delete", {"of": key})

    async def _call(self, ctx: Context, path: str, fields: dict[str, object]) -> Answer:
        answer = await self.post(ctx, path, fields, Answer, seconds_max=ANSWER_S_MAX)
        if answer.status == 200:
            return answer
        refusal = Permanent if answer.kind in OVERTAKEN else StepFailed
        raise refusal(answer.message, kind=answer.kind)

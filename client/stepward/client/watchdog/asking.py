"""Asks the nodes how they are: all at the same time, each with a deadline of its own, none in the way of another."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import grpc
import grpc.aio

from stepward.client import calls
from stepward.client.answers import error_from
from stepward.client.channels import CHANNEL_OPTIONS, credentials_of
from stepward.client.errors import StepwardError, Unreachable
from stepward.client.tls import why_refused
from stepward.client.watchdog.sights import Sight, sight_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepward.client.tls import TlsFiles

# gRPC ends a call at its deadline; this is for the day on which it does not.
_BEYOND_DEADLINE_S: Final = 1.0
# Finding out whether certificates are the reason makes a connection of its own.
_DIAGNOSIS_EVERY_S: Final = 60.0
_DIAGNOSIS_S_MAX: Final = 5.0
ERROR_CHARACTERS_MAX: Final = 300


class Asker:
    """One node: the connection to it, and what it last said."""

    def __init__(self, address: str, *, tls: TlsFiles | None, answer_s_max: float) -> None:
        """Connect to nothing yet.

        Raises:
            TlsFilesWrong: A file cannot be used.
        """
        self.address = address
        self.sight: Sight | None = None
        self.asked = 0
        self.failed = 0
        self._tls = tls
        self._answer_s_max = answer_s_max
        self._diagnosed_at_s = -_DIAGNOSIS_EVERY_S
        self._diagnosis = ""
        credentials = credentials_of(tls, None)
        self._channel = (
            grpc.aio.secure_channel(address, credentials, CHANNEL_OPTIONS)
            if credentials is not None
            else grpc.aio.insecure_channel(address, CHANNEL_OPTIONS)
        )

    async def ask(self) -> Sight:
        """Ask once. Ends within the deadline and a moment, whatever the node does."""
        self.asked += 1
        call = calls.get_status()
        send = self._channel.unary_unary(
            call.rpc.path, type(call.request).SerializeToString, call.rpc.answer.FromString
        )
        try:
            async with asyncio.timeout(self._answer_s_max + _BEYOND_DEADLINE_S):
                answer = await send(call.request, timeout=self._answer_s_max)
        except grpc.RpcError as failed:
            self.sight = await self._failed(error_from(failed, self.address))
        except TimeoutError:
            self.sight = await self._failed(Unreachable(f"{self.address}: gRPC did not end the call at its deadline"))
        else:
            self._diagnosis = ""
            self.sight = sight_of(self.address, time.monotonic(), call.read(answer))
        return self.sight

    async def run(self, interval_s: float) -> None:
        """Ask again and again, at most once an interval."""
        while True:
            began_s = time.monotonic()
            await self.ask()
            await asyncio.sleep(max(0.0, began_s + interval_s - time.monotonic()))

    async def close(self) -> None:
        await self._channel.close()

    async def _failed(self, error: StepwardError) -> Sight:
        self.failed += 1
        at_s = time.monotonic()
        if isinstance(error, Unreachable) and at_s - self._diagnosed_at_s >= _DIAGNOSIS_EVERY_S:
            self._diagnosed_at_s = at_s
            self._diagnosis = await self._certificates()
        why = self._diagnosis or error.message
        # One line, and not a page that something else than a node has answered with.
        return Sight(address=self.address, at_s=at_s, error=" ".join(why.split())[:ERROR_CHARACTERS_MAX])

    async def _certificates(self) -> str:
        """What is wrong with certificates, which gRPC does not say; empty: nothing, or nobody knows."""
        try:
            async with asyncio.timeout(_DIAGNOSIS_S_MAX):
                return await asyncio.to_thread(why_refused, self.address, self._tls)
        except TimeoutError:
            return ""


async def ask_all(askers: Sequence[Asker]) -> list[Sight]:
    """Ask all once, and wait for the slowest, which is bounded."""
    return list(await asyncio.gather(*(asker.ask() for asker in askers)))

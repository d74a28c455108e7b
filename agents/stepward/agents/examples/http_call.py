"""How the examples' handlers call a service on this machine, and what they make of an answer that does not come.

What a handler raises must be true: before the request has left, nothing has happened, and the step may fail; once it
has left and no answer came, nobody can tell.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec
from msgspec import Struct

from stepward.agents import AgentError, Context, StepFailed, Unknown

CONNECT_S_MAX = 5.0
ANSWER_BYTES_MAX = 64 * 1024

# Starting Python takes most of it.
SERVICE_READY_S_MAX = 20.0

AnswerT = TypeVar("AnswerT", bound=Struct)


class Service:
    """A service at an address, by a name for people."""

    def __init__(self, name: str, address: str, *, unreachable: str) -> None:
        """`unreachable` is the kind of the failure when it cannot be reached."""
        host, _, port = address.rpartition(":")
        self._name = name
        self._host = host
        self._port = int(port)
        self._unreachable = unreachable

    @property
    def address(self) -> str:
        return f"{self._host}:{self._port}"

    async def answers(self) -> bool:
        """Whether something is there."""
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(self._host, self._port), CONNECT_S_MAX)
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True

    async def post(
        self, ctx: Context, path: str, fields: dict[str, object], kind: type[AnswerT], *, seconds_max: float
    ) -> AnswerT:
        """One call of an attempt: with its key, its token, and what the record wants to know of it.

        Raises:
            StepFailed: The service was not reached: nothing has happened.
            Unknown: The request has left and no whole answer came.
        """
        attempt: dict[str, object] = {
            "key": ctx.idempotency_key,
            "token": ctx.token,
            "job": ctx.job_id,
            "step": ctx.step_id,
            "attempt": ctx.attempt,
            "agent_pid": os.getpid(),
        }
        body = msgspec.json.encode(attempt | fields)
        return await self._exchange(path, body, kind, seconds_max=min(seconds_max, ctx.remaining_seconds))

    async def _exchange(self, path: str, body: bytes, kind: type[AnswerT], *, seconds_max: float) -> AnswerT:
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                reader, writer = await asyncio.open_connection(self._host, self._port, limit=ANSWER_BYTES_MAX)
        except (OSError, TimeoutError) as error:
            raise StepFailed(f"no {self._name} at {self.address}: {error}", kind=self._unreachable) from error
        try:
            async with asyncio.timeout(seconds_max):
                writer.write(_request(path, self.address, body))
                await writer.drain()
                await reader.readuntil(b"\r\n\r\n")
                return msgspec.json.decode(await reader.read(-1), type=kind)
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


@asynccontextmanager
async def running(service: Service, module: str, name: str) -> AsyncIterator[None]:
    """Have a service for as long as the agent runs; one that answers there already is used as it is.

    It ends when its standard input does, so it is gone also when this process is killed.
    """
    if await service.answers():
        yield
        return
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, "--end-with-input"),
        *("--port", service.address.rpartition(":")[2]),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        ready = await asyncio.wait_for(process.stdout.readline(), SERVICE_READY_S_MAX)
        # Two agents may start at once; the port belongs to one of their services.
        if not ready and not await service.answers():
            raise AgentError(f"the {name} at {service.address} could not be started; see what it said above")
        yield
    finally:
        process.stdin.close()
        await process.wait()

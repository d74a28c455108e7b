"""A road to a node that can begin to swallow everything, as a dead host does: no answer, no end, no reset.

New connections are taken by the kernel and never read, so whoever connects waits for the first word for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

CHUNK_BYTES = 65_536


class Road:
    """Forwards TCP between callers and one node, on the running loop."""

    def __init__(self, to_address: str) -> None:
        self._to_host, _, port = to_address.rpartition(":")
        self._to_port = int(port)
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._travellers: set[asyncio.Task[None]] = set()
        self.address = ""
        self.callers = 0
        """How many have connected."""

    def swallow(self) -> None:
        """From now on nothing arrives, in either direction."""
        self._open.clear()

    def give_back(self) -> None:
        """What was swallowed arrives late, as after a repaired network."""
        self._open.set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._travel, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{port}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._travellers:
            task.cancel()
        await asyncio.gather(*self._travellers, return_exceptions=True)

    async def _travel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._travellers.add(task)
        self.callers += 1
        try:
            await self._open.wait()
            there, back = await asyncio.open_connection(self._to_host, self._to_port)
            try:
                await asyncio.gather(self._carry(reader, back), self._carry(there, writer))
            finally:
                back.close()
        except (OSError, asyncio.CancelledError):
            # An end of the road is gone, or the test is over.
            pass
        finally:
            writer.close()
            self._travellers.discard(task)

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while chunk := await source.read(CHUNK_BYTES):
            await self._open.wait()
            target.write(chunk)
            await target.drain()
        await self._open.wait()
        with suppress(OSError):
            target.write_eof()


@asynccontextmanager
async def road(to_address: str) -> AsyncIterator[Road]:
    """A road that is closed at the end."""
    one = Road(to_address)
    await one.start()
    try:
        yield one
    finally:
        await one.stop()

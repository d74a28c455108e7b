"""A wire between two nodes that a test can cut, or fill with silence."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

_CHUNK_BYTES = 1 << 16


class Relay:
    """Hands bytes on in both directions, as long as nothing is wrong with it."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self.address = ""
        self.connections = 0
        self.chunks = 0
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    def swallow(self) -> None:
        """Let nothing more through, in either direction, and tell nobody: no connection is closed."""
        self._open.clear()

    def heal(self) -> None:
        """Go on as before. Connections that waited go on, too."""
        self._open.set()

    def cut(self) -> None:
        """Reset every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            await self._open.wait()
            onward = await asyncio.open_connection(*self._target)
            self._writers.add(onward[1])
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._pump(reader, onward[1]))
                ways.create_task(self._pump(onward[0], writer))
        except OSError:
            writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(_CHUNK_BYTES):
                await self._open.wait()
                self.chunks += 1
                writer.write(chunk)
                await writer.drain()
        writer.close()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Called by asyncio for each connection."""
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)

    async def stop(self) -> None:
        """End all connections."""
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def relay(address: str, *, port: int = 0) -> AsyncIterator[Relay]:
    """A wire to an address, on an address of its own."""
    wire = Relay(address)
    server = await asyncio.start_server(wire.accept, "127.0.0.1", port)
    wire.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield wire
    finally:
        await wire.stop()
        server.close()

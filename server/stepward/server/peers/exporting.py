"""Gives all rows to a node that is too far behind for the log.

They are read on the thread of the event loop, a little at a time: beside a busy loop a thread of its own was slower by
a hundred times, since it gives the interpreter away with every row. The next piece is read when the one before has
left, so a slow reader costs the memory of one, and a busy node sends slowly.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from typing import TYPE_CHECKING, Final, Protocol

from stepward.internal.v1 import peer_service_pb2 as pb
from stepward.server import observe
from stepward.server.core.rejections import Reason, Refused, Rejection
from stepward.server.peers import chunks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from stepward.server.interceptor import Context
    from stepward.server.observe import Counters
    from stepward.server.store.interface import Export

# A piece: less than a millisecond of the loop.
CHUNK_BYTES: Final = 128 << 10
# Nodes that are given rows at once. With more than two behind there is no majority, and nothing to do but this.
EXPORTS_MAX: Final = 2
# When one that found no place should come back.
RETRY_AFTER_MS: Final = 5_000
# While rows are read no space that is freed on this disk can be used again. So who reads more slowly than this is sent
# away, after a time that is for everybody.
BYTES_PER_S_MIN: Final = 1 << 20
LASTING_MS_MIN: Final = 60_000
# How long the log is kept from where the rows stood, after they have left: they still are to be installed there.
PINNED_MS: Final = 60_000
# How often it is looked whether there is still room on the disk.
_ROOM_LOOKS_BYTES: Final = 8 << 20

_log = observe.logger("exporting")


class Source(Protocol):
    """Whose rows these are: the shard."""

    @property
    def leads(self) -> bool:
        """Whether this node is the one that gives its rows now."""
        ...

    def exporting(self, node_id: str) -> contextlib.AbstractContextManager[Export]:
        """All rows; the log is kept from there on for this node, until `exported`."""
        ...

    def exported(self, node_id: str) -> None:
        """The log need not be kept for this node any more. Does nothing when it is not."""
        ...


class _Reader:
    """A node that is given rows."""

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        self.replaced = False


class Exporting:
    """Serves `ExportRows`. Belongs to the thread of the event loop.

    Args:
        source: Whose rows these are.
        admit: Raises `Refused` for who is no node of this cluster.
        free_bytes: Of the disk.
        free_bytes_min: With less it stops: what is written meanwhile must find room.
        counters: Of this node.
    """

    def __init__(
        self,
        source: Source,
        *,
        admit: Callable[[pb.Hello, Context], None],
        free_bytes: Callable[[], int],
        free_bytes_min: int,
        counters: Counters,
    ) -> None:
        self._source = source
        self._admit = admit
        self._free_bytes = free_bytes
        self._free_bytes_min = free_bytes_min
        self._counters = counters
        self._readers: dict[str, _Reader] = {}
        self._unpins: dict[str, asyncio.TimerHandle] = {}

    async def export_rows(
        self, request: pb.ExportRowsRequest, context: Context
    ) -> AsyncGenerator[pb.ExportRowsResponse, None]:
        """All rows, in pieces. A node that asks again replaces its own older call, of which nobody may read any more.

        Raises:
            Refused: It is no node of this cluster, this node does not lead, or others are being served.
        """
        self._admit(request.hello, context)
        reader = self._take(request)
        began = time.monotonic()
        try:
            with self._source.exporting(reader.node_id) as export:
                _log.info("export_began", node_id=reader.node_id, rows=export.rows, applied_index=export.applied_index)
                async with contextlib.aclosing(self._pieces(export, reader)) as pieces:
                    async for piece in pieces:
                        yield piece
            self._counters.exports += 1
            _log.info("export_ended", node_id=reader.node_id, s=round(time.monotonic() - began, 1))
        finally:
            if self._readers.get(reader.node_id) is reader:
                del self._readers[reader.node_id]
                self._unpin_later(reader.node_id)

    def stop(self) -> None:
        """This node stops: nothing is to be done later."""
        for handle in self._unpins.values():
            handle.cancel()
        self._unpins.clear()

    def _take(self, request: pb.ExportRowsRequest) -> _Reader:
        node_id = request.hello.node_id
        if request.shard != 0:
            raise Refused(Rejection(Reason.INVALID_ARGUMENT, f"shard is {request.shard}; there is only shard 0"))
        if not self._source.leads:
            raise Refused(Rejection(Reason.NOT_LEADER, "rows are given by the node that leads; this one does not"))
        older = self._readers.get(node_id)
        if older is not None:
            older.replaced = True
        elif len(self._readers) >= EXPORTS_MAX:
            text = f"{EXPORTS_MAX} nodes are given rows, which is the most; come back"
            raise Refused(Rejection(Reason.OVERLOADED, text, retry_after_ms=RETRY_AFTER_MS))
        unpin = self._unpins.pop(node_id, None)
        if unpin is not None:
            unpin.cancel()
        reader = self._readers[node_id] = _Reader(node_id)
        return reader

    async def _pieces(self, export: Export, reader: _Reader) -> AsyncGenerator[pb.ExportRowsResponse, None]:
        yield pb.ExportRowsResponse(
            head=pb.ExportHead(
                head=export.head,
                applied_index=export.applied_index,
                applied_term=export.applied_term,
                rows=export.rows,
                size_bytes=export.size_bytes,
            )
        )
        lasting_s = max(LASTING_MS_MIN / 1_000, export.size_bytes / BYTES_PER_S_MIN)
        ends_at = asyncio.get_running_loop().time() + lasting_s
        digest, count, unlooked_bytes = hashlib.sha256(), 0, _ROOM_LOOKS_BYTES
        for chunk in export.chunks(CHUNK_BYTES):
            piece = chunks.encode(chunk)
            digest.update(piece.rows)
            count += len(chunk)
            unlooked_bytes += len(piece.rows)
            if unlooked_bytes >= _ROOM_LOOKS_BYTES:
                unlooked_bytes = 0
                self._check_room()
            self._check_reader(reader, ends_at=ends_at, lasting_s=lasting_s)
            self._counters.rows_exported += len(chunk)
            yield pb.ExportRowsResponse(chunk=piece)
        yield pb.ExportRowsResponse(end=pb.ExportEnd(rows=count, hash=digest.digest()))

    def _check_reader(self, reader: _Reader, *, ends_at: float, lasting_s: float) -> None:
        if reader.replaced:
            raise Refused(Rejection(Reason.NODE_STATE, f"{reader.node_id} has asked again; that call goes on"))
        if asyncio.get_running_loop().time() > ends_at:
            text = f"the rows were not read within {lasting_s:.0f} s, which is the most for so many; begin again"
            raise Refused(Rejection(Reason.WATCH_TOO_SLOW, text))

    def _check_room(self) -> None:
        free_bytes = self._free_bytes()
        if free_bytes < self._free_bytes_min:
            text = f"{free_bytes} bytes are free on the disk of this node, and giving rows needs {self._free_bytes_min}"
            raise Refused(Rejection(Reason.DISK_FULL, text, retry_after_ms=RETRY_AFTER_MS))

    def _unpin_later(self, node_id: str) -> None:
        def unpin() -> None:
            del self._unpins[node_id]
            self._source.exported(node_id)

        self._unpins[node_id] = asyncio.get_running_loop().call_later(PINNED_MS / 1_000, unpin)

"""Gets all rows of the node that leads, when this one is too far behind for the log.

They go into an environment beside the rows of this node, on a thread of its own, since a flush must not stop the loop.
Nothing of them counts before the last one has come and everything fits together; what fails is thrown away and begun
anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import grpc
import grpc.aio

from stepward.internal.v1 import peer_service_pb2 as pb
from stepward.internal.v1 import peer_service_pb2_grpc as rpc
from stepward.server import observe
from stepward.server.core import rows as core_rows
from stepward.server.logbook.outbox import Fetched
from stepward.server.peers import chunks
from stepward.server.peers.chunks import ChunkUnreadable
from stepward.server.store import facts
from stepward.server.store.errors import IncomingFailed, StoreCorrupt

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable
    from concurrent.futures import Future

    from stepward.server.observe import Counters
    from stepward.server.store.interface import Incoming

T = TypeVar("T")

# Nothing for so long: the other node has gone without a word.
SILENCE_MS_MAX: Final = 15_000
# Between attempts: each time twice as long, spread by half around that.
BACKOFF_MS_MIN: Final = 250
BACKOFF_MS_MAX: Final = 15_000
# How often the log says how far it is.
_PROGRESS_S: Final = 5.0

_log = observe.logger("fetching")


class Target(Protocol):
    """Where the rows go: the shard."""

    @property
    def fetching_from(self) -> str:
        """The node whose rows this one needs to go on; empty: none."""
        ...

    @property
    def head(self) -> core_rows.Head:
        """The last batch that this node holds."""
        ...

    @property
    def applied_index(self) -> int:
        """The last entry of the log that the rows of this node hold."""
        ...

    def on_fetching(self, listener: Callable[[str], None]) -> None:
        """Tell `listener` whenever `fetching_from` changes."""
        ...

    def incoming(self, size_bytes: int) -> Incoming:
        """See `store.interface.Store`. Any thread may call it."""
        ...

    def install(self, fetched: Fetched) -> bool:
        """Go on from these rows. False: this node holds as much itself, and they are of no use."""
        ...


class FetchFailed(Exception):  # noqa: N818 - what happened, named as such
    """Rows did not come, or cannot be gone on with; it is tried again."""


class _Head:
    """Where the rows that come stand. Raises `FetchFailed` for a head that cannot be gone on with."""

    def __init__(self, head: pb.ExportHead, target: Target) -> None:
        try:
            batch = facts.decode_head(head.head)
        except StoreCorrupt as error:
            raise FetchFailed(str(error)) from error
        # Also when the node that leads has said that it cannot help, before it heard of the rows that are here.
        if batch.sequence < target.head.sequence or head.applied_index <= target.applied_index:
            raise FetchFailed(
                f"the rows stand at batch {batch.sequence} and entry {head.applied_index}, and those of this node at "
                f"{target.head.sequence} and {target.applied_index}"
            )
        self.message = head
        self.sequence = batch.sequence


class Fetching:
    """Fetches whenever the shard says from whom. Belongs to the thread of the event loop.

    Args:
        target: Where the rows go.
        channel: The connection to a node by its id; raises KeyError when nobody knows where it is.
        hello: What this node says of itself to another.
        rng: Spreads attempts.
        counters: Of this node.
    """

    def __init__(
        self,
        target: Target,
        *,
        channel: Callable[[str], grpc.aio.Channel],
        hello: Callable[[str], pb.Hello],
        rng: random.Random,
        counters: Counters,
    ) -> None:
        self._target = target
        self._channel = channel
        self._hello = hello
        self._rng = rng
        self._counters = counters
        self._changed = asyncio.Event()
        self._attempt: asyncio.Task[None] | None = None
        self._attempt_from = ""
        self._runner: asyncio.Task[None] | None = None
        # A write transaction belongs to the thread that began it.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="fetching")
        self.fetched = self.total = 0
        target.on_fetching(self._on_fetching)

    def start(self) -> asyncio.Task[None]:
        """Begin to look whether rows are needed; who does it, which ends only when told to."""
        self._runner = asyncio.create_task(self._run(), name="fetching")
        return self._runner

    async def stop(self) -> None:
        """Leave off, and leave nothing behind. The store may be closed after it, and not before."""
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
        await asyncio.to_thread(self._worker.shutdown)

    def _on_fetching(self, node_id: str) -> None:
        """Another node leads: what it has is newer than what comes. That nobody leads is no reason to leave off."""
        self._changed.set()
        if self._attempt is not None and node_id not in ("", self._attempt_from):
            self._attempt.cancel()

    async def _run(self) -> None:
        failures = 0
        while True:
            self._changed.clear()
            node_id = self._target.fetching_from
            if not node_id:
                failures = 0
                await self._changed.wait()
                continue
            if await self._try(node_id):
                failures = 0
                continue
            failures += 1
            # Another leader is asked at once.
            with contextlib.suppress(TimeoutError):
                # `wait_for` would forget the request to stop when something changes in the same moment.
                async with asyncio.timeout(self._backoff_s(failures)):
                    await self._changed.wait()

    def _backoff_s(self, failures: int) -> float:
        delay_ms = min(BACKOFF_MS_MAX, BACKOFF_MS_MIN << min(failures - 1, 16))
        return delay_ms * self._rng.uniform(0.5, 1.5) / 1_000

    async def _try(self, node_id: str) -> bool:
        """Fetch once. Whether this node can go on."""
        self._attempt_from = node_id
        attempt = self._attempt = asyncio.ensure_future(self._fetch(node_id))
        try:
            await asyncio.wait((attempt,))
        finally:
            attempt.cancel()
            await asyncio.gather(attempt, return_exceptions=True)
            self._attempt = None
            self.fetched = self.total = 0
        if attempt.cancelled():
            why = f"{self._target.fetching_from} leads now"
        elif (error := attempt.exception()) is None:
            self._counters.fetches += 1
            return True
        elif isinstance(error, grpc.aio.AioRpcError):
            why = f"{error.code().name}: {error.details()}"
        elif isinstance(error, FetchFailed | ChunkUnreadable | IncomingFailed):
            why = str(error)
        else:
            raise error
        self._counters.fetches_failed += 1
        _log.warning("fetch_failed", node_id=node_id, reason=why)
        return False

    async def _fetch(self, node_id: str) -> None:
        began = time.monotonic()
        try:
            channel = self._channel(node_id)
        except KeyError:
            raise FetchFailed(f"the configuration does not say where {node_id} is") from None
        call = rpc.PeerServiceStub(channel).ExportRows(pb.ExportRowsRequest(hello=self._hello(node_id)))
        made: Future[Incoming] | None = None
        is_installed = False
        try:
            messages = _messages(call)
            head = _Head((await anext(messages, pb.ExportRowsResponse())).head, self._target)
            self.total = head.message.rows
            _log.info("fetch_began", node_id=node_id, rows=self.total, sequence=head.sequence)
            made = self._worker.submit(self._target.incoming, head.message.size_bytes)
            incoming = await asyncio.wrap_future(made)
            await self._fill(incoming, messages)
            at = head.message
            is_installed = self._target.install(Fetched(incoming, at.head, at.applied_index, at.applied_term))
            if not is_installed:
                raise FetchFailed("this node holds as much by now")
            _log.info("fetch_ended", node_id=node_id, rows=self.fetched, s=round(time.monotonic() - began, 1))
        finally:
            call.cancel()
            if made is not None and not is_installed:
                # Behind whatever still runs there, also when this was cancelled in the middle of it.
                self._worker.submit(_discard, made)

    async def _fill(self, incoming: Incoming, messages: AsyncIterator[pb.ExportRowsResponse]) -> None:
        """Put all rows in, and see that they are all, and those that were sent.

        While one piece is written the next comes, and no more: memory holds two.
        """
        digest, after, told_at = hashlib.sha256(), b"", time.monotonic()
        async for message in messages:
            if message.HasField("end"):
                if (message.end.rows, message.end.hash) != (self.fetched, digest.digest()):
                    raise FetchFailed(
                        f"{message.end.rows} rows were sent and {self.fetched} came, or others than those"
                    )
                await self._on_worker(incoming.commit)
                return
            rows = chunks.decode(message.chunk, after=after)
            digest.update(message.chunk.rows)
            after = rows[-1][0]
            await self._on_worker(incoming.put, rows)
            self.fetched += len(rows)
            self._counters.rows_fetched += len(rows)
            if time.monotonic() - told_at >= _PROGRESS_S:
                told_at = time.monotonic()
                _log.info("fetch_goes_on", rows=self.fetched, rows_total=self.total)
        raise FetchFailed("the rows ended without a word")

    async def _on_worker(self, function: Callable[..., T], *arguments: Any) -> T:
        """Whatever becomes of who asked: what has begun runs to its end, and what comes next runs after it."""
        return await asyncio.wrap_future(self._worker.submit(function, *arguments))


def _discard(made: Future[Incoming]) -> None:
    """Throw away what came, if it ever began to."""
    if not made.cancelled() and made.exception() is None:
        made.result().discard()


async def _messages(call: Any) -> AsyncIterator[pb.ExportRowsResponse]:
    """What the other node sends.

    Raises:
        FetchFailed: It has sent nothing for too long.
    """
    while True:
        try:
            async with asyncio.timeout(SILENCE_MS_MAX / 1_000):
                message = await call.read()
        except TimeoutError:
            raise FetchFailed(f"nothing has come for {SILENCE_MS_MAX} ms") from None
        if message is grpc.aio.EOF:
            return
        yield message

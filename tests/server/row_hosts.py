"""Nodes that give and get all rows: the shipped service over the wire, a store, and a twin of the shard."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc.aio

from stepward.internal.v1 import peer_service_pb2 as pb
from stepward.server.config import NodeConfig
from stepward.server.core import rows
from stepward.server.interceptor import CallShell, Rooms
from stepward.server.logbook.outbox import Fetched
from stepward.server.observe import Counters
from stepward.server.peers.exporting import Exporting
from stepward.server.peers.fetching import Fetching
from stepward.server.store import facts
from stepward.server.store.interface import Export, Incoming, Store
from stepward.server.store.lmdb_store import LmdbStore
from tests.server.host import admission
from tests.store.standing import stand

S = 30.0
PEER_SERVICE = pb.DESCRIPTOR.services_by_name["PeerService"]


class RowShard:
    """What a shard is to those who give and get rows."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.leads = True
        self.fetching_from = ""
        self.pins: dict[str, int] = {}
        self.installed = 0
        self.something = asyncio.Event()
        self._listener: Callable[[str], None] = lambda node_id: None

    # Giving.

    @contextlib.contextmanager
    def exporting(self, node_id: str) -> Iterator[Export]:
        with self.store.export() as export:
            self.pins[node_id] = export.applied_index
            yield export

    def exported(self, node_id: str) -> None:
        self.pins.pop(node_id, None)
        self.something.set()

    # Getting.

    @property
    def head(self) -> rows.Head:
        return facts.read_head(self.store)

    @property
    def applied_index(self) -> int:
        return facts.read_applied(self.store)[0]

    def on_fetching(self, listener: Callable[[str], None]) -> None:
        self._listener = listener

    def incoming(self, size_bytes: int) -> Incoming:
        return self.store.incoming(size_bytes)

    def install(self, fetched: Fetched) -> bool:
        if fetched.applied_index <= self.applied_index:
            return False
        applied = facts.encode_applied(fetched.applied_index, fetched.applied_term)
        beside = {facts.HEAD: fetched.head, facts.APPLIED: applied}
        self.store.install(fetched.incoming, facts=beside, entries=[(fetched.applied_index, b"applied")])
        self.installed += 1
        self.need("")
        return True

    # What a test does.

    def need(self, node_id: str) -> None:
        """All rows of that node are needed, or none any more."""
        self.fetching_from = node_id
        self._listener(node_id)
        self.something.set()

    async def until(self, condition: Callable[[], object], *, within_s: float = S) -> None:
        """Wait for something that rows do."""
        async with asyncio.timeout(within_s):
            while not condition():
                self.something.clear()
                with contextlib.suppress(TimeoutError):
                    # What nobody tells of, such as counters, is looked at now and then.
                    await asyncio.wait_for(self.something.wait(), 0.01)


class Servicer:
    """The service, as far as rows go. `change` may make something else of what is sent."""

    def __init__(self, exporting: Exporting) -> None:
        self._exporting = exporting
        self.change: Callable[[pb.ExportRowsResponse], list[pb.ExportRowsResponse]] = lambda response: [response]
        self.hold: asyncio.Event | None = None
        self.sent = 0

    async def export_rows(self, request: pb.ExportRowsRequest, context: Any) -> AsyncIterator[pb.ExportRowsResponse]:
        async with contextlib.aclosing(self._exporting.export_rows(request, context)) as responses:
            async for response in responses:
                for changed in self.change(response):
                    self.sent += 1
                    yield changed
                if self.hold is not None and self.sent >= 3:
                    await self.hold.wait()

    def __getattr__(self, name: str) -> Any:
        """All other calls; nobody makes them."""
        return lambda request, context: None


class Giver:
    """A node that gives rows."""

    def __init__(self, store: Store, **options: Any) -> None:
        self.shard = RowShard(store)
        self.counters = Counters()
        self.free_bytes = 1 << 40
        self.exporting = Exporting(
            self.shard,
            admit=lambda hello, context: None,
            free_bytes=lambda: self.free_bytes,
            free_bytes_min=1_000,
            counters=self.counters,
        )
        self.servicer = Servicer(self.exporting)
        config = NodeConfig(data=Path("data"), **options)
        shell = CallShell(self.counters, Rooms(config), admission(config), stalled_ms_max=config.stalled_ms_max)
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers([shell.serve(PEER_SERVICE, self.servicer)])
        self.port = self._server.add_insecure_port("127.0.0.1:0")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[grpc.aio.Channel]:
        """Serve; gives a connection."""
        await self._server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{self.port}") as channel:
                yield channel
        finally:
            await self._server.stop(0)
            self.exporting.stop()


class Getter:
    """A node that gets rows, from others by name."""

    def __init__(self, store: Store, **channels: grpc.aio.Channel) -> None:
        self.shard = RowShard(store)
        self.counters = Counters()
        self.fetching = Fetching(
            self.shard,
            channel=channels.__getitem__,
            hello=lambda node_id: pb.Hello(node_id="getter", to_node_id=node_id),
            rng=random.Random(1),
            counters=self.counters,
        )


@contextlib.asynccontextmanager
async def getting(store: Store, **channels: grpc.aio.Channel) -> AsyncIterator[Getter]:
    """A node that gets rows whenever it needs them."""
    getter = Getter(store, **channels)
    getter.fetching.start()
    try:
        yield getter
    finally:
        await getter.fetching.stop()


def filled(directory: Path, *, sequence: int, index: int, count: int, value_bytes: int = 200) -> LmdbStore:
    """A store with so many rows."""
    store = LmdbStore(directory, create=True)
    stand(store, sequence=sequence, index=index, term=3)
    store.apply(((b"O%08d" % number, b"%d" % number + bytes(value_bytes)) for number in range(count)), [])
    store.commit()
    return store

"""All rows go from one node to another, over the wire, and whatever fails on the way leaves nothing behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from stepward.internal.v1 import peer_service_pb2 as pb
from stepward.internal.v1 import peer_service_pb2_grpc as rpc
from stepward.server.peers import chunks, exporting, fetching
from stepward.server.store import facts, incoming
from stepward.server.store.lmdb_store import LmdbStore
from stepward.server.store.memory import MemoryStore
from tests.server.row_hosts import Getter, Giver, S, filled, getting
from tests.store.standing import content, head_of, stand

ROWS = 3_000
Response = pb.ExportRowsResponse


@pytest_asyncio.fixture
async def giver(tmp_path: Path) -> AsyncIterator[Giver]:
    """The node that leads: three thousand rows, at batch 7."""
    giver = Giver(filled(tmp_path / "giver", sequence=7, index=70, count=ROWS))
    yield giver
    giver.shard.store.close()


@pytest_asyncio.fixture
async def channel(giver: Giver) -> AsyncIterator[grpc.aio.Channel]:
    async with giver.running() as channel:
        yield channel


@pytest_asyncio.fixture
async def getter(tmp_path: Path, channel: grpc.aio.Channel) -> AsyncIterator[Getter]:
    """The node that is behind: at batch 2. It knows two that may lead, which are one."""
    store = filled(tmp_path / "getter", sequence=2, index=20, count=10)
    async with getting(store, giver=channel, other=channel) as getter:
        yield getter
    store.close()


def folders(getter: Getter) -> list[str]:
    assert isinstance(getter.shard.store, LmdbStore)
    return [path.name for path in getter.shard.store._directory.iterdir() if path.is_dir()]


async def test_all_rows_arrive(giver: Giver, getter: Getter) -> None:
    getter.shard.need("giver")
    await getter.shard.until(lambda: getter.counters.fetches)

    assert content(getter.shard.store)[0] == content(giver.shard.store)[0]
    assert getter.shard.head == head_of(7)
    assert facts.read_applied(getter.shard.store) == (70, 3)
    assert (getter.counters.rows_fetched, getter.counters.fetches, getter.counters.fetches_failed) == (ROWS, 1, 0)
    await giver.shard.until(lambda: giver.counters.exports == 1)
    assert giver.counters.rows_exported == ROWS
    assert folders(getter) == []


async def test_stores_in_memory_do_it_alike() -> None:
    theirs, ours = MemoryStore(), MemoryStore()
    for store, sequence in ((theirs, 7), (ours, 2)):
        stand(store, sequence=sequence, index=10 * sequence, term=3)
        store.commit()
    theirs.apply([(b"Oa", b"1")], [])
    theirs.commit()
    giver = Giver(theirs)
    async with giver.running() as channel, getting(ours, giver=channel) as getter:
        getter.shard.need("giver")
        await getter.shard.until(lambda: getter.shard.installed)

    assert content(ours)[0] == {b"Oa": b"1"}


async def test_node_without_rows_gives_none(tmp_path: Path) -> None:
    giver = Giver(filled(tmp_path / "giver", sequence=7, index=70, count=0))
    store = filled(tmp_path / "getter", sequence=2, index=20, count=10)
    async with giver.running() as channel, getting(store, giver=channel) as getter:
        getter.shard.need("giver")
        await getter.shard.until(lambda: getter.shard.installed)

    assert content(store)[0] == {}


async def test_it_is_done_again_when_it_is_needed_again(giver: Giver, getter: Getter) -> None:
    for sequence in (7, 8):
        stand(giver.shard.store, sequence=sequence, index=10 * sequence, term=3)
        giver.shard.store.commit()
        getter.shard.need("giver")
        await getter.shard.until(lambda: not getter.shard.fetching_from)

    assert getter.shard.installed == 2
    assert getter.shard.head == head_of(8)


async def test_h075_older_rows_after_newer_ones_are_refused(giver: Giver, getter: Getter) -> None:
    """An old leader that knows nothing of a new one gives what this node has passed: nothing is taken back."""
    stand(getter.shard.store, sequence=8, index=80, term=4)
    getter.shard.store.commit()
    before = content(getter.shard.store)
    getter.shard.need("giver")
    await getter.shard.until(lambda: getter.counters.fetches_failed)

    assert (getter.shard.installed, content(getter.shard.store), getter.shard.head) == (0, before, head_of(8))
    # It is seen before they come.
    assert getter.counters.rows_fetched == 0
    assert folders(getter) == []


async def test_h075_node_that_passes_the_rows_meanwhile_does_not_take_them(giver: Giver, getter: Getter) -> None:
    """They were newer when they began to come; when all are there, the log has brought more."""
    giver.servicer.hold = asyncio.Event()
    getter.shard.need("giver")
    await getter.shard.until(lambda: giver.servicer.sent >= 3)
    stand(getter.shard.store, sequence=8, index=80, term=4)
    getter.shard.store.commit()
    giver.servicer.hold.set()
    await getter.shard.until(lambda: getter.counters.fetches_failed)

    assert (getter.shard.installed, getter.counters.fetches, getter.shard.head) == (0, 0, head_of(8))


async def test_rows_that_are_here_are_not_fetched_again(giver: Giver, getter: Getter) -> None:
    """The node that leads may have asked for it before it heard that they were installed."""
    stand(getter.shard.store, sequence=7, index=70, term=3)
    getter.shard.store.commit()
    getter.shard.need("giver")
    await getter.shard.until(lambda: getter.counters.fetches_failed)

    assert (getter.shard.installed, getter.counters.rows_fetched) == (0, 0)


async def test_rows_at_the_same_batch_may_still_be_needed(giver: Giver, getter: Getter) -> None:
    """Entries that are no batches lie between: the log of the node that leads begins behind them."""
    stand(getter.shard.store, sequence=7, index=69, term=3)
    getter.shard.store.commit()
    getter.shard.need("giver")
    await getter.shard.until(lambda: getter.shard.installed)

    assert facts.read_applied(getter.shard.store) == (70, 3)


def drop(response: Response) -> list[Response]:
    return []


def twice(response: Response) -> list[Response]:
    return [response, response]


def flip(response: Response) -> list[Response]:
    """One bit of one row, as a broken machine might."""
    response.chunk.rows = response.chunk.rows[:-1] + bytes([response.chunk.rows[-1] ^ 1])
    return [response]


def other(response: Response) -> list[Response]:
    """Another value under a right checksum."""
    rows = chunks.decode(response.chunk, after=b"")
    return [Response(chunk=chunks.encode([(key, b"other") for key, _ in rows]))]


def nothing(response: Response) -> list[Response]:
    return [Response()]


@pytest.mark.parametrize(
    ("piece", "change", "why"),
    [
        ("head", drop, "the head cannot be read"),
        ("head", twice, "cannot be read"),
        ("head", nothing, "the head cannot be read"),
        ("chunk", drop, "rows were sent and 0 came"),
        ("chunk", twice, "out of order"),
        ("chunk", flip, "a checksum does not fit"),
        ("chunk", other, "or others than those"),
        ("chunk", nothing, "cannot be read"),
        ("end", drop, "ended without a word"),
        ("end", nothing, "cannot be read"),
    ],
)
async def test_what_is_wrong_is_thrown_away_and_begun_anew(
    giver: Giver,
    getter: Getter,
    piece: str,
    change: Callable[[Response], list[Response]],
    why: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing of it is installed; the next attempt, with what is right, begins with the first row."""
    before = content(getter.shard.store)
    told: list[str] = []
    log = fetching._log
    giver.servicer.change = lambda response: change(response) if response.HasField(piece) else [response]  # type: ignore[arg-type]  # one of the three
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetching, "_log", Told(log, told))
        getter.shard.need("giver")
        await getter.shard.until(lambda: getter.counters.fetches_failed)
        assert why in told[0]
        assert (getter.shard.installed, content(getter.shard.store)) == (0, before)
        giver.servicer.change = lambda response: [response]
        await getter.shard.until(lambda: getter.shard.installed)

    assert content(getter.shard.store)[0] == content(giver.shard.store)[0]
    assert folders(getter) == []


class Told:
    """A log that remembers why something failed."""

    def __init__(self, log: object, told: list[str]) -> None:
        self._log = log
        self._told = told

    def warning(self, event: str, *, reason: str, **fields: object) -> None:
        self._told.append(reason)

    def __getattr__(self, name: str) -> object:
        return getattr(self._log, name)


async def test_node_that_does_not_lead_gives_nothing(giver: Giver, getter: Getter) -> None:
    giver.shard.leads = False
    getter.shard.need("giver")
    await getter.shard.until(lambda: getter.counters.fetches_failed)
    assert giver.counters.calls_by_code["stepward.internal.v1.PeerService/ExportRows"] == {"NOT_LEADER": 1}
    giver.shard.leads = True

    await getter.shard.until(lambda: getter.shard.installed)


async def test_nobody_knows_where_it_is(getter: Getter) -> None:
    getter.shard.need("stranger")
    await getter.shard.until(lambda: getter.counters.fetches_failed)
    getter.shard.need("giver")

    await getter.shard.until(lambda: getter.shard.installed)


async def test_another_leader_is_asked_at_once(giver: Giver, getter: Getter) -> None:
    """What an older one sends is left."""
    giver.servicer.hold = asyncio.Event()
    getter.shard.need("other")
    await getter.shard.until(lambda: giver.servicer.sent >= 3)
    giver.servicer.hold = None
    getter.shard.need("giver")
    await getter.shard.until(lambda: getter.shard.installed)

    assert getter.counters.fetches_failed == 1
    assert folders(getter) == []


async def test_rows_go_on_while_nobody_is_known_to_lead(giver: Giver, getter: Getter) -> None:
    """The node that gives them has them, whoever will lead."""
    giver.servicer.hold = asyncio.Event()
    getter.shard.need("giver")
    await getter.shard.until(lambda: giver.servicer.sent >= 3)
    getter.shard.need("")
    giver.servicer.hold.set()
    await getter.shard.until(lambda: getter.shard.installed)

    assert getter.counters.fetches_failed == 0


async def test_node_that_falls_silent_is_left(giver: Giver, getter: Getter, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told so, in case that it hears it."""
    monkeypatch.setattr(fetching, "SILENCE_MS_MAX", 200)
    monkeypatch.setattr(fetching, "BACKOFF_MS_MIN", 3_000)
    giver.servicer.hold = asyncio.Event()
    getter.shard.need("giver")
    await getter.shard.until(lambda: getter.counters.fetches_failed)
    assert getter.shard.installed == 0
    await getter.shard.until(lambda: not giver.exporting._readers)
    giver.servicer.hold = None

    await getter.shard.until(lambda: getter.shard.installed)


async def test_stopping_in_the_middle_leaves_nothing(tmp_path: Path, giver: Giver, channel: grpc.aio.Channel) -> None:
    store = filled(tmp_path / "getter", sequence=2, index=20, count=10)
    async with getting(store, giver=channel) as getter:
        giver.servicer.hold = asyncio.Event()
        getter.shard.need("giver")
        await getter.shard.until(lambda: getter.counters.rows_fetched)
        assert folders(getter) != []

    assert folders(getter) == []
    store.close()


@pytest.mark.parametrize("turns", range(5))
async def test_stopping_is_not_forgotten(giver: Giver, getter: Getter, turns: int) -> None:
    """Also when something changes right before it, while an attempt is waited for."""
    giver.shard.leads = False
    getter.shard.need("giver")
    await getter.shard.until(lambda: getter.counters.fetches_failed)
    getter.shard.need("")
    for _ in range(turns):
        await asyncio.sleep(0)

    async with asyncio.timeout(S):
        await getter.fetching.stop()


async def test_leaving_off_while_a_piece_is_written_waits_for_it(
    giver: Giver, getter: Getter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write on the other thread cannot be stopped; what it writes to must be there until it is done."""
    store = getter.shard.store
    assert isinstance(store, LmdbStore)
    order: list[str] = []
    make = store.incoming

    def slow(size_bytes: int = 0) -> object:
        order.append("making")
        time.sleep(0.2)
        coming = make(size_bytes)
        order.append("made")
        discard = coming.discard
        coming.discard = lambda: (order.append("discarded"), discard())  # type: ignore[assignment, func-returns-value]  # a spy
        return coming

    monkeypatch.setattr(store, "incoming", slow)
    getter.shard.need("other")
    await getter.shard.until(lambda: order)
    monkeypatch.setattr(store, "incoming", make)
    getter.shard.need("giver")
    await getter.shard.until(lambda: getter.shard.installed)

    assert order == ["making", "made", "discarded"]
    assert folders(getter) == []


async def test_h078_disk_without_room_is_asked_again(giver: Giver, getter: Getter) -> None:
    """H078: nothing half-way is left, it is tried again and again, and done when there is room."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(incoming, "FREE_BYTES_LEFT_MIN", 1 << 60)
        getter.shard.need("giver")
        await getter.shard.until(lambda: getter.counters.fetches_failed >= 2)
        assert getter.shard.installed == 0
        assert folders(getter) == []

    await getter.shard.until(lambda: getter.shard.installed)


# The side that gives.


def ask(channel: grpc.aio.Channel, node_id: str, shard: int = 0) -> Any:
    """A call of a node."""
    request = pb.ExportRowsRequest(hello=pb.Hello(node_id=node_id), shard=shard)
    return rpc.PeerServiceStub(channel).ExportRows(request)


async def read_all(call: Any) -> None:
    async with asyncio.timeout(S):
        while await call.read() is not grpc.aio.EOF:
            pass


async def ended(call: Any) -> grpc.aio.AioRpcError:
    """Why a call ended."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_all(call)
    return caught.value


@pytest.fixture
def huge(giver: Giver) -> Giver:
    """More than any buffer between two nodes holds."""
    giver.shard.store.apply(((b"P%03d" % number, bytes(1 << 20)) for number in range(64)), [])
    giver.shard.store.commit()
    return giver


async def test_so_many_at_once(huge: Giver, channel: grpc.aio.Channel) -> None:
    """One more is sent away and told when to come back; when one has left there is a place."""
    calls = [ask(channel, f"n{number}") for number in range(exporting.EXPORTS_MAX)]
    for call in calls:
        await call.read()
    error = await ended(ask(channel, "late"))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.details() == "2 nodes are given rows, which is the most; come back"
    calls[0].cancel()
    await huge.shard.until(lambda: len(huge.exporting._readers) < exporting.EXPORTS_MAX)

    assert (await ask(channel, "late").read()).head.rows == ROWS + 64


async def test_node_that_asks_again_replaces_its_older_call(huge: Giver, channel: grpc.aio.Channel) -> None:
    """Nobody reads that any more: its connection broke, and this side has not heard of it."""
    first = ask(channel, "n1")
    await first.read()
    second = ask(channel, "n1")
    assert (await second.read()).head.rows == ROWS + 64
    error = await ended(first)

    assert error.details() == "n1 has asked again; that call goes on"
    assert list(huge.exporting._readers) == ["n1"]
    assert huge.shard.pins == {"n1": 70}


async def test_slow_reader_costs_the_memory_of_a_piece(huge: Giver, channel: grpc.aio.Channel) -> None:
    """What is not read is not made: only what fits between the two is on its way."""
    call = ask(channel, "n1")
    for read in range(64):
        await call.read()
        # Nearly all are pieces of a MiB.
        assert huge.servicer.sent <= read + 40
    call.cancel()


async def test_reader_that_is_too_slow_is_sent_away(
    huge: Giver, channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it reads, space on this disk cannot be used again."""
    monkeypatch.setattr(exporting, "LASTING_MS_MIN", 0)
    monkeypatch.setattr(exporting, "BYTES_PER_S_MIN", 1 << 40)
    call = ask(channel, "n1")
    await call.read()
    error = await ended(call)

    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "the rows were not read within 0 s" in str(error.details())


@pytest.mark.parametrize(("free_bytes", "is_given"), [(1_000, True), (999, False)])
async def test_disk_that_is_full_gives_no_rows(
    giver: Giver, channel: grpc.aio.Channel, free_bytes: int, is_given: bool
) -> None:
    giver.free_bytes = free_bytes
    call = ask(channel, "n1")
    await call.read()
    if is_given:
        assert (await call.read()).chunk.rows
        return
    error = await ended(call)

    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.details() == "999 bytes are free on the disk of this node, and giving rows needs 1000"


async def test_there_is_one_shard(channel: grpc.aio.Channel) -> None:
    error = await ended(ask(channel, "n1", shard=1))

    assert (error.code(), error.details()) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "shard is 1; there is only shard 0",
    )


async def test_log_is_kept_until_the_rows_are_installed(
    giver: Giver, channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From where the rows stand, while they go and for some time after: else the node would be too far behind again."""
    monkeypatch.setattr(exporting, "PINNED_MS", 100)
    giver.servicer.hold = asyncio.Event()
    call = ask(channel, "n1")
    await giver.shard.until(lambda: giver.servicer.sent >= 3)
    assert giver.shard.pins == {"n1": 70}
    giver.servicer.hold.set()
    await read_all(call)
    assert giver.shard.pins == {"n1": 70}

    await giver.shard.until(lambda: not giver.shard.pins)


async def test_log_stays_kept_for_a_node_that_asks_again(
    giver: Giver, channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the first time must not let go of what the second needs."""
    monkeypatch.setattr(exporting, "PINNED_MS", 100)
    loop = asyncio.get_running_loop()
    await read_all(ask(channel, "n1"))
    unpinned_at = loop.time() + 0.1
    giver.servicer.hold, giver.servicer.sent = asyncio.Event(), 0
    again = ask(channel, "n1")
    await giver.shard.until(lambda: giver.servicer.sent >= 3 and loop.time() > unpinned_at)

    assert giver.shard.pins == {"n1": 70}
    again.cancel()

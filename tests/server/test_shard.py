"""The host of a replica, and admission in front of it; on a store in memory."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from stepward.server.core import keys
from stepward.server.core.commands import (
    Answer,
    CloseStream,
    Command,
    RenewSession,
    StreamClosed,
    SubmitJob,
)
from stepward.server.core.decide import Decision, Moment
from stepward.server.core.reader import Reader
from stepward.server.core.rejections import Reason, Refused, Rejection
from stepward.server.core.rows import Beat, Payload
from stepward.server.counted_store import CountedStore
from stepward.server.flush_guard import FlushGuard
from stepward.server.logbook.identity import create_cluster, known_identity
from stepward.server.logbook.outbox import Applied, Frame, Outbox
from stepward.server.observe import Counters
from stepward.server.store.live import CommittedRows
from stepward.server.store.lmdb_store import LmdbStore
from stepward.server.tickets import FutureTicket
from tests.logbook import toy
from tests.server.host import Host, S
from tests.store.logged import abandon, log_of


class Noting:
    """Rules that note what they are asked, and answer all the same; `writes`: each batch puts a row."""

    def __init__(self, *, writes: bool = False) -> None:
        self.batches: list[list[Command]] = []
        self._writes = writes

    def __call__(self, reader: Reader, commands: Sequence[Command], moment: Moment, /) -> Decision:
        self.batches.append(list(commands))
        row = Beat(moment.epoch, moment.sequence, 0, 0, 0, 0, 0)
        answers: list[Answer] = [StreamClosed() for _ in commands]
        return Decision({b"B": row} if self._writes else {}, answers, [])


def close(number: int) -> CloseStream:
    return CloseStream(f"session-{number}", number)


def submit(data: bytes = b"1") -> SubmitJob:
    return SubmitJob("0-" + "0" * 32, "default", "x", 0, Payload(data), "", {}, "", b"")


async def test_what_comes_together_is_decided_together() -> None:
    """One batch and one flush for all of it, in order, but renewals first."""
    rules = Noting()
    shard = await Host(rules).lead()
    renewal = RenewSession("session-0", 1, 0)
    renewed: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    calls = [asyncio.ensure_future(shard.call(close(number))) for number in range(3)]
    await asyncio.sleep(0)
    shard.renew(renewal, FutureTicket(renewed))
    async with asyncio.timeout(S):
        await asyncio.gather(*calls, renewed)
    shard.stop()

    assert rules.batches == [[renewal, close(0), close(1), close(2)]]


async def test_step_that_is_begun_when_the_node_stops_is_finished_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it decided is on its way. A second time there would be nothing that may be flushed, or anybody to tell."""
    host = Host(Noting(writes=True))
    shard = await host.lead()
    replica, finished = shard._replica, list[bool]()
    begin, finish = replica.begin, replica.finish

    def finish_noted() -> Outbox:
        finished.append(shard._stopped)
        return finish()

    # As if there were another node to which something leaves before the flush.
    monkeypatch.setattr(replica, "begin", lambda now, inbox: [*begin(now, inbox), Frame("n2", b"")])
    monkeypatch.setattr(replica, "finish", finish_noted)
    shard.on_frames(lambda _: None, lambda _: None)
    async with asyncio.timeout(S):
        call = asyncio.ensure_future(shard.call(close(1)))
        while shard._open_step is None:  # noqa: ASYNC110 - a shard sets no event for what lasts one turn of the loop
            await asyncio.sleep(0)
        finished.clear()
        shard.stop()
        assert isinstance(await call, StreamClosed)
        for _ in range(3):
            await asyncio.sleep(0)

    assert finished == [False]


async def test_what_exists_goes_before_what_is_new() -> None:
    """Outcomes and timers do not wait behind a flood of submissions."""
    rules = Noting()
    host = Host(rules)
    shard = await host.lead()
    gateway = host.gateway()

    submitted = [asyncio.ensure_future(gateway.submit(submit())) for _ in range(3)]
    other = asyncio.ensure_future(gateway.call(close(1), StreamClosed))
    async with asyncio.timeout(S):
        await asyncio.gather(other, *submitted, return_exceptions=True)
    shard.stop()

    assert [type(command) for command in rules.batches[0]] == [CloseStream, SubmitJob, SubmitJob, SubmitJob]


async def test_listeners_hear_batches_in_order_and_each_for_itself() -> None:
    """One that raises is counted, and hides nothing from the others."""
    host = Host(Noting(writes=True))
    heard: list[int] = []

    def broken(applied: Applied) -> None:
        raise ValueError(applied.sequence)

    host.shard.on_applied(broken)
    host.shard.on_applied(lambda applied: heard.append(applied.sequence))
    shard = await host.lead()
    async with asyncio.timeout(S):
        for number in range(3):
            await shard.call(close(number))
    shard.stop()

    # The first one opens the epoch.
    assert heard == [1, 2, 3, 4]
    assert host.counters.delivery_failures == host.counters.batches == 4


async def test_replica_that_raises_is_never_asked_again() -> None:
    """The node is told why, and whoever waits that nobody knows what became of his command."""

    def rules(reader: Reader, commands: Sequence[Command], moment: Moment, /) -> Decision:
        raise MemoryError("no room")

    host = Host(rules)
    shard = await host.lead()

    async with asyncio.timeout(S):
        answer = await shard.call(close(1))
        later = await shard.call(close(2))

    assert isinstance(answer, Rejection)
    assert answer.reason is Reason.COMMIT_UNKNOWN
    assert isinstance(later, Rejection)
    assert later.reason is Reason.NODE_DRAINING
    assert host.fatal == ["the replica stopped: no room"]
    assert not shard.leads


async def test_stop_answers_everybody() -> None:
    """What no step has taken was never proposed. Safe to repeat."""
    shard = await Host(Noting()).lead()
    waiting = asyncio.ensure_future(shard.call(close(1)))
    await asyncio.sleep(0)

    shard.stop()
    shard.stop()

    answer = await waiting
    assert isinstance(answer, Rejection)
    assert answer.reason is Reason.NODE_DRAINING


async def test_caller_who_has_gone_away_is_not_missed() -> None:
    """The command is decided all the same."""
    rules = Noting()
    shard = await Host(rules).lead()
    gone = asyncio.ensure_future(shard.call(close(1)))
    await asyncio.sleep(0)
    gone.cancel()

    async with asyncio.timeout(S):
        await shard.call(close(2))
    shard.stop()

    assert rules.batches == [[close(1), close(2)]]


GUARD = """
import time
from stepward.server.flush_guard import FlushGuard
guard = FlushGuard(200)
guard.start()
guard.enter()
{then}
"""


@pytest.mark.parametrize(
    ("then", "code"),
    [
        # A flush that does not come back.
        ("time.sleep(20)", 71),
        # One that comes back, and another.
        ("time.sleep(0.1); guard.leave(); guard.enter(); time.sleep(0.1); guard.leave(); time.sleep(0.3)", 0),
    ],
)
def test_hanging_flush_ends_the_process(then: str, code: int) -> None:
    """With a last line for whoever looks for the reason."""
    command = [sys.executable, "-c", GUARD.format(then=then)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=15, check=False)

    assert ended.returncode == code
    assert ("flush_hangs" in ended.stderr) is (code == 71)


def test_only_flushes_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long decision is no disk that is gone: ending the process for it would only repeat it."""
    create_cluster(tmp_path, "n1")
    guard = FlushGuard(1_000)
    seen: list[bool] = []
    store = CountedStore(tmp_path, Counters(), guard)
    flush = LmdbStore._flush

    def flush_and_look(looked_at: LmdbStore, work: Callable[[], None]) -> None:
        seen.append(guard.looking)
        flush(looked_at, work)

    monkeypatch.setattr(LmdbStore, "_flush", flush_and_look)
    store.put_fact(b"fact", b"1")
    seen.append(guard.looking)
    store.commit()
    seen.append(guard.looking)
    # The data, which names a log from now on, and before that the file of the log.
    assert seen == [False, True, True, False]
    store.put_fact(b"fact", b"2")
    seen.clear()
    flush_beside = store.commit_apart()
    assert flush_beside is not None
    seen.append(guard.looking)
    flush_beside()
    store.commit()
    seen.append(guard.looking)

    assert seen == [False, True, False]
    store.close()


def test_rows_of_a_batch_stand_in_the_log_of_a_node_once(tmp_path: Path) -> None:
    """As the entry; whoever finds the directory after a kill reads them from there."""
    create_cluster(tmp_path, "n1")
    store = CountedStore(tmp_path, Counters(), FlushGuard(1_000))
    replica = toy.start(store)
    for place in range(20):
        replica.step(toy.at(800 + place), toy.proposals(toy.Add(rows_written=1, row_bytes=100)))
    counter = toy.count(CommittedRows(store))
    assert counter > 1
    standing = log_of(tmp_path).count(counter.to_bytes(8, "big") + b"." * 92)
    assert standing == 1
    abandon(store)

    assert known_identity(tmp_path) is not None
    store = CountedStore(tmp_path, Counters(), FlushGuard(1_000))
    assert toy.count(CommittedRows(store)) == counter
    assert len(list(store.scan(keys.OUTPUT))) == counter
    store.close()


async def test_submissions_are_shed_at_their_bound() -> None:
    """At its bound the last one gets in; one more is told when to come back; everything else still gets in."""
    rules = Noting()
    host = Host(rules, submissions_waiting_max=4, overload_retry_after_ms=700, overload_retry_ms_max=700)
    shard = await host.lead()
    gateway = host.gateway()

    waiting = [asyncio.ensure_future(gateway.submit(submit())) for _ in range(3)]
    other = asyncio.ensure_future(shard.call(close(1)))
    async with asyncio.timeout(S):
        done = await asyncio.gather(*waiting, other, return_exceptions=True)
    shard.stop()

    refused = done[2]
    assert isinstance(refused, Refused)
    assert refused.rejection.reason is Reason.OVERLOADED
    assert 350 <= refused.rejection.retry_after_ms <= 700
    assert isinstance(done[3], StreamClosed)
    assert len(rules.batches[0]) == 3
    assert host.counters.shed == 1


async def refused_before() -> AsyncIterator[SubmitJob | Rejection]:
    yield Rejection(Reason.INVALID_ARGUMENT, "no")


async def test_room_is_given_back_when_the_caller_has_gone_away() -> None:
    """His submission is decided all the same, and waits no longer."""
    host = Host(Noting(), submissions_waiting_max=2)
    shard = await host.lead()
    gateway = host.gateway()

    first = asyncio.ensure_future(gateway.submit(submit()))
    await asyncio.sleep(0)
    with pytest.raises(Refused) as caught:
        await gateway.submit(submit())
    first.cancel()
    async with asyncio.timeout(S):
        await shard.call(close(1))
        answers = await gateway.submit_all(refused_before())
        again = await gateway._propose_submission(submit())
    shard.stop()

    assert caught.value.rejection.reason is Reason.OVERLOADED
    assert answers == [Rejection(Reason.INVALID_ARGUMENT, "no")]
    assert isinstance(again, StreamClosed)


@pytest.mark.parametrize(("free_bytes", "refused"), [(1_000, False), (999, True)])
async def test_submissions_are_refused_when_the_disk_is_nearly_full(free_bytes: int, refused: bool) -> None:
    """New work first; everything else still gets in."""
    host = Host(Noting(), free_bytes_for_submissions_min=1_000)
    shard = await host.lead()
    gateway = host.gateway()
    host.free_bytes = free_bytes

    submitted, other = asyncio.ensure_future(gateway.submit(submit())), asyncio.ensure_future(shard.call(close(1)))
    async with asyncio.timeout(S):
        done = await asyncio.gather(submitted, other, return_exceptions=True)
    shard.stop()

    assert isinstance(done[1], StreamClosed)
    assert (isinstance(done[0], Refused) and done[0].rejection.reason is Reason.DISK_FULL) is refused


async def test_node_that_does_not_lead_knows_nothing_for_sure() -> None:
    """It answers only reads that may be old, and is caught when it stops leading while it reads."""
    host = Host(Noting())
    gateway = host.gateway()

    with pytest.raises(Refused) as before:
        async with gateway.reading():
            pass
    with gateway.own_rows() as reader:
        old = reader.head().sequence
    shard = await host.lead()
    async with gateway.reading() as reader:
        fresh = reader.head().sequence
    with pytest.raises(Refused) as after:
        async with gateway.reading():
            shard.stop()

    assert before.value.rejection.reason is after.value.rejection.reason is Reason.NO_LEADER
    assert (old, fresh) == (0, 1)


async def test_waits_are_shed_at_their_bound() -> None:
    """One that ends makes room."""
    host = Host(Noting(), waiters_max=1)
    gateway = host.gateway()
    first = gateway.register_waiter("0-1")

    with pytest.raises(Refused) as caught:
        gateway.register_waiter("0-2")
    gateway.forget_waiter("0-1", first)
    second = gateway.register_waiter("0-2")
    gateway.forget_waiter("0-2", second)
    gateway.forget_waiter("0-2", second)
    gateway.register_waiter("0-3")
    host.shard.stop()

    assert caught.value.rejection.reason is Reason.OVERLOADED


async def test_watchers_are_shed_at_their_bound() -> None:
    """Of all jobs together. One that goes makes room."""
    host = Host(Noting(), watchers_max=2)
    gateway = host.gateway()
    first = gateway.watchers.of_job("0-1")
    gateway.watchers.of_job("0-2")

    with pytest.raises(Refused) as caught:
        gateway.watchers.of_job("0-1")
    gateway.watchers.forget(first)
    gateway.watchers.of_job("0-3")
    host.shard.stop()

    assert caught.value.rejection.reason is Reason.OVERLOADED
    assert host.counters.shed == 1


@pytest.mark.parametrize("part", ["standing", "installed"])
async def test_step_that_cannot_be_told_is_the_last_one(part: str) -> None:
    """Without a step that follows the node would only look alive: it ends, says why, and leaves nobody waiting."""
    host = Host(Noting(writes=True))
    shard = await host.lead()

    def broken(*said: object) -> None:
        raise ValueError("no such row")

    if part == "standing":
        shard.on_standing(broken)
        shard._standing = shard._standing._replace(leader_id="n9")
    else:
        shard.rows.on_installed(broken)
        shard._replica._installed = True
    async with asyncio.timeout(S):
        answer = await shard.call(close(1))
        while not host.fatal:  # noqa: ASYNC110 - what is waited for happens in the shard, which sets no event
            await asyncio.sleep(0.001)

    assert host.fatal == ["what came of a step could not be told: no such row"]
    assert shard.stopped
    assert isinstance(answer, Rejection | StreamClosed)

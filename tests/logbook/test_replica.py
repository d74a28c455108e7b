"""The replica in a cluster of one: epochs, batches, answers, bounds."""

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from typing_extensions import override

from stepward.server.core import epoch_rows, keys, rows
from stepward.server.core.commands import Command
from stepward.server.core.decide import Decision, Moment
from stepward.server.core.reader import Reader
from stepward.server.core.rejections import Rejection
from stepward.server.logbook import batch as batches
from stepward.server.logbook.errors import BatchUnreadable, Diverged, ReplicaStopped
from stepward.server.logbook.frames import REGULAR
from stepward.server.logbook.outbox import Proposal, ReplicaLimits
from stepward.server.logbook.replica import Replica
from stepward.server.store import facts
from stepward.server.store.live import CommittedRows
from stepward.server.store.memory import MemoryStore
from tests.logbook import toy
from tests.logbook.toy import Add, Ask, Counted, Fail, Name, answers, at, proposals


def test_first_step_opens_an_epoch() -> None:
    """A cluster of one leads at once, and says so with a batch that tells when."""
    outbox = toy.start(toy.new_store()).step(at(0), [])

    assert outbox.standing.leads
    assert (outbox.standing.epoch, outbox.standing.term, outbox.standing.head.sequence) == (1, 1, 1)
    opened = (keys.EPOCH, keys.encode_row(epoch_rows.Epoch(epoch=1, log_ms=0, led_ms=0)))
    assert [(one.sequence, one.epoch, one.puts, one.deletes) for one in outbox.applied] == [(1, 1, [opened], [])]


def test_commands_of_the_first_step_are_decided_in_it() -> None:
    outbox = toy.start(toy.new_store()).step(at(0), proposals(Add(), Add()))

    assert answers(outbox) == {0: Counted(1, 2), 1: Counted(2, 2)}
    assert [one.sequence for one in outbox.applied] == [1, 2]
    assert outbox.standing.head.epoch == 1


def test_answers_leave_with_their_batch() -> None:
    replica = toy.start(toy.new_store())
    replica.step(at(0), [])
    outbox = replica.step(at(10), proposals(Add(rows_written=2), Ask(), Add()))

    assert answers(outbox) == {0: Counted(1, 2), 1: Counted(1, 2), 2: Counted(2, 2)}
    assert {answered.sequence for answered in outbox.answers} == {2}
    (applied,) = outbox.applied
    assert applied.changes is not None
    assert applied.changes[toy.COUNTER] == rows.Beat(1, 2, at(10).wall_ms, 10, outbox.standing.head.log_ms, 0, 0)
    assert dict(applied.puts) == {key: keys.encode_row(row) for key, row in applied.changes.items() if row}


def test_what_changes_nothing_is_not_proposed() -> None:
    """Its answers were decided on rows that are applied, and leave at once."""
    replica = toy.start(toy.new_store())
    replica.step(at(0), proposals(Add()))
    outbox = replica.step(at(10), proposals(Ask()))

    assert [(one.token, toy.counted(one.answer).counter, one.sequence) for one in outbox.answers] == [(0, 1, 2)]
    assert outbox.applied == []
    assert outbox.standing.head.sequence == 2


def test_outbox_is_durable() -> None:
    """The rule of the whole: what was answered survives a crash that follows at once."""
    store = toy.new_store()
    replica = toy.start(store)
    for number in range(5):
        replica.step(at(number), proposals(Add(rows_written=3)))
        store.lose_uncommitted()
        # Not through the replica, which has in memory what a crash would take from it.
        committed = CommittedRows(store)
        assert toy.count(committed) == number + 1
        assert committed.head() == replica.standing.head


def test_restart_goes_on_with_a_new_epoch() -> None:
    store = toy.new_store()
    first = toy.start(store)
    first.step(at(0), proposals(Add(), Add()))
    head = first.standing.head
    first.close()
    outbox = toy.start(store, now=at(500)).step(at(500), proposals(Add()))

    assert answers(outbox) == {0: Counted(3, 4)}
    assert (outbox.standing.epoch, outbox.standing.term) == (2, 2)
    assert outbox.standing.head.log_ms - head.log_ms == 500
    assert outbox.standing.head.led_ms == head.led_ms


@pytest.mark.parametrize(
    ("boot_id", "steady_ms", "wall_ms", "gap_ms"),
    [
        # The same boot: exact, whatever the wall clock says.
        (toy.BOOT, 5_000, -99, 5_000),
        # Another boot: the wall clock's difference.
        ("boot-2", -900, 7_000, 7_000),
        ("boot-2", 90_000, -7_000, 0),
    ],
)
def test_gap_without_a_leader(boot_id: str, steady_ms: int, wall_ms: int, gap_ms: int) -> None:
    store = toy.new_store()
    first = toy.start(store)
    first.step(at(0), [])
    head = first.standing.head
    now = at(0)._replace(steady_ms=toy.START.steady_ms + steady_ms, wall_ms=toy.START.wall_ms + wall_ms)
    after = toy.start(store, now=now, boot_id=boot_id).step(now, []).standing.head

    assert after.log_ms - head.log_ms == gap_ms
    assert after.led_ms == head.led_ms
    assert after.boot_id == boot_id


def test_pause_moves_led_time_by_a_bounded_step() -> None:
    replica = toy.start(toy.new_store())
    before = replica.step(at(0), proposals(Add())).standing.head
    after = replica.step(at(60_000), proposals(Add())).standing.head

    assert after.led_ms - before.led_ms == 2_000
    assert after.log_ms - before.log_ms == 60_000


def test_rules_see_a_moment_of_the_next_batch() -> None:
    seen: list[Moment] = []

    def decide(reader: Reader, commands: Sequence[Command], moment: Moment, /) -> Decision:
        seen.append(moment)
        return toy.decide(reader, commands, moment)

    replica = toy.start(toy.new_store(), decider=decide)
    replica.step(at(0), [])
    head = replica.step(at(40), proposals(Add())).standing.head

    (moment,) = seen
    assert (moment.sequence, moment.epoch, moment.incarnation, moment.steady_ms) == (2, 1, 1, at(40).steady_ms)
    assert (moment.led_ms, moment.log_ms, moment.wall_ms) == (head.led_ms, head.log_ms, head.wall_ms)


def test_failures_are_told() -> None:
    told: list[object] = []
    replica = toy.start(toy.new_store(), on_failure=lambda command, error: told.append((command, str(error))))
    outbox = replica.step(at(0), proposals(Add(), Fail()))

    assert told == [(Fail(), "a rule raised")]
    assert toy.reasons(outbox.answers) == {1: "INTERNAL"}
    assert answers(outbox)[0] == Counted(1, 2)


def test_idle_step_flushes_nothing_and_asks_to_be_woken_late() -> None:
    store = toy.new_store()
    replica = toy.start(store)
    replica.step(at(0), [])
    commits: list[bool] = []
    store.commit = lambda: commits.append(any(space.pending for space in store._spaces()))  # type: ignore[method-assign]  # only looks
    outbox = replica.step(at(100), [])

    assert commits == [False]
    assert outbox.wake_at_ms == at(200).steady_ms
    assert (outbox.answers, outbox.applied) == ([], [])


def test_small_gathering_wakes_at_once() -> None:
    """More commands than one batch takes: the rest is decided in the next steps, in order."""
    replica = toy.start(toy.new_store(), limits=ReplicaLimits(commands_max=2))
    first = replica.step(at(0), proposals(*[Add()] * 5))
    second = replica.step(at(0), [])
    third = replica.step(at(0), [])

    assert [list(answers(outbox)) for outbox in (first, second, third)] == [[0, 1], [2, 3], [4]]
    assert [outbox.wake_at_ms - at(0).steady_ms for outbox in (first, second, third)] == [0, 0, 100]
    assert answers(third)[4] == Counted(5, 4)


@pytest.mark.parametrize(("waiting", "overloaded"), [(10, 0), (11, 1)])
def test_waiting_is_bounded(waiting: int, overloaded: int) -> None:
    replica = toy.start(toy.new_store(), limits=ReplicaLimits(waiting_max=10))
    outbox = replica.step(at(0), proposals(*[Add()] * waiting))

    assert toy.reasons(outbox.answers) == {10 + place: "OVERLOADED" for place in range(overloaded)}
    assert len(outbox.answers) == waiting


def sizes(outbox: Any) -> list[int]:
    return [len(one.puts) for one in outbox.applied if one.puts]


def test_batch_that_came_out_too_large_is_decided_again_for_fewer() -> None:
    """Deciding changes nothing, so it may be done twice."""
    limits = ReplicaLimits(gathered_bytes_max=10_000)
    replica = toy.start(toy.new_store(), limits=limits)
    outboxes = [replica.step(at(0), proposals(*[Add(rows_written=1, row_bytes=1_000)] * 20))]
    while outboxes[-1].wake_at_ms == at(0).steady_ms:
        outboxes.append(replica.step(at(0), []))

    found = {token: answer for outbox in outboxes for token, answer in answers(outbox).items()}
    assert [toy.counted(found[place]).counter for place in range(20)] == list(range(1, 21))
    assert all(sum(len(value) for _, value in one.puts) <= 10_000 for box in outboxes for one in box.applied)
    assert len(outboxes) <= 4


def test_after_a_batch_that_was_too_large_fewer_are_tried() -> None:
    """Deciding again is work for nothing, so it does not happen with every batch; and it is forgotten soon."""
    tried: list[int] = []

    def decide(reader: Reader, commands: Sequence[Command], moment: Moment, /) -> Decision:
        tried.append(len(commands))
        return toy.decide(reader, commands, moment)

    limits = ReplicaLimits(gathered_bytes_max=10_000, commands_max=64)
    replica = toy.start(toy.new_store(), limits=limits, decider=decide)
    replica.step(at(0), proposals(*[Add(rows_written=1, row_bytes=1_000)] * 32))
    # Two on trial, which say that nine fit.
    assert tried == [2, 9]
    for _ in range(3):
        replica.step(at(0), [])
    assert tried[2:] == [9, 9, 5]
    replica.step(at(0), proposals(*[Add()] * 60))
    replica.step(at(0), [])
    replica.step(at(0), [])

    assert tried[5:] == [9, 2, 18, 3, 33]


@pytest.mark.parametrize("cheap", [0, 100])
def test_no_step_decides_much_more_than_fits(cheap: int) -> None:
    """Whatever the last commands cost, and however many wait: a lease ends while a long step goes on."""
    decided: list[int] = []

    def decide(reader: Reader, commands: Sequence[Command], moment: Moment, /) -> Decision:
        decided.append(sum(isinstance(command, Add) and command.row_bytes > 10 for command in commands))
        return toy.decide(reader, commands, moment)

    limits = ReplicaLimits()
    replica = toy.start(toy.new_store(), limits=limits, decider=decide)
    replica.step(at(0), proposals(*[Add()] * 2_000))
    replica.step(at(0), proposals(*[Add()] * cheap, *[Add(rows_written=1, row_bytes=96_000)] * 1_000))
    fits = limits.gathered_bytes_max // 96_000
    for step in range(5):
        before = len(decided)
        token = f"renewal {step}"
        outbox = replica.step(at(step), [Proposal(token, Ask(), urgent=True)])

        assert token in answers(outbox)
        assert sum(decided[before:]) <= 3 * fits
    assert sum(decided) <= 6 * 3 * fits


def test_urgent_ones_are_decided_first() -> None:
    """Also in front of what has waited since an earlier step."""
    replica = toy.start(toy.new_store(), limits=ReplicaLimits(commands_max=2))
    replica.step(at(0), proposals(*[Add()] * 5))
    outbox = replica.step(at(0), [Proposal("later", Add()), Proposal("renewal", Ask(), urgent=True)])

    assert list(answers(outbox)) == ["renewal", 2]


@pytest.mark.parametrize(
    ("row_bytes", "reasons"),
    # Above what is gathered, but below what can be written: alone it goes through. A header of 100 bytes is around it.
    [(50_000, {}), (99_700, {}), (100_000, {0: "PAYLOAD_TOO_LARGE"})],
)
def test_one_command_may_need_a_large_batch(row_bytes: int, reasons: dict[int, str]) -> None:
    limits = ReplicaLimits(gathered_bytes_max=10_000, batch_bytes_max=100_000)
    replica = toy.start(toy.new_store(), limits=limits)
    outbox = replica.step(at(0), proposals(Add(rows_written=1, row_bytes=row_bytes), Add()))
    outbox_after = replica.step(at(0), [])

    assert toy.reasons(outbox.answers) == reasons
    assert toy.counted(answers(outbox_after)[1]).counter == 2 - len(reasons)


@pytest.mark.parametrize(("key_bytes", "refused"), [(511, False), (512, True)])
def test_key_that_no_store_can_hold(key_bytes: int, refused: bool) -> None:
    """Refused when it is decided, alone: writing it would stop every replica."""
    replica = toy.start(toy.new_store())
    found: dict[object, Any] = {}
    for inbox in (proposals(Add(), Name(key_bytes=key_bytes), Add(), Add()), [], [], [], []):
        found |= answers(replica.step(at(0), inbox))

    assert len(found) == 4
    assert isinstance(found[1], Rejection) is refused
    assert [toy.counted(found[place]).counter for place in (0, 2, 3)] == [1, 2, 3]


class FullDisk(MemoryStore):
    """A disk on which little is free."""

    free = 0

    @override
    def free_bytes(self) -> int:
        return self.free


@pytest.mark.parametrize(("free", "reasons"), [(1_000, {}), (999, {0: "DISK_FULL", 1: "DISK_FULL"})])
def test_nothing_is_decided_on_a_full_disk(free: int, reasons: dict[int, str]) -> None:
    store = toy.founded(FullDisk())
    store.free = free
    replica = toy.start(store, limits=ReplicaLimits(free_bytes_min=1_000))
    outbox = replica.step(at(0), proposals(Add(), Add()))

    assert toy.reasons(outbox.answers) == reasons
    assert outbox.standing.leads


def test_space_that_was_freed_is_noticed() -> None:
    store = toy.founded(FullDisk())
    replica = toy.start(store, limits=ReplicaLimits(free_bytes_min=1_000))
    replica.step(at(0), proposals(Add()))
    store.free = 1_000

    assert toy.reasons(replica.step(at(99), proposals(Add())).answers) == {0: "DISK_FULL"}
    assert toy.reasons(replica.step(at(100), proposals(Add())).answers) == {}


def test_every_proposal_is_answered_once() -> None:
    """Whatever is asked, in whatever mixture and size."""
    kinds = [Add(), Add(rows_written=3, row_bytes=400), Ask(), Fail(), Name(key_bytes=600), Name(key_bytes=20)]
    for chance in toy.seeds(20):
        limits = ReplicaLimits(commands_max=chance.randrange(1, 8), gathered_bytes_max=1_000, waiting_max=30)
        replica = toy.start(toy.new_store(), limits=limits)
        asked, answered = 0, []
        for ms in range(200):
            inbox = [Proposal(asked + place, chance.choice(kinds)) for place in range(chance.choice([0, 0, 1, 12]))]
            asked += len(inbox)
            answered += replica.step(at(ms), inbox).answers
        for ms in range(200, 300):
            answered += replica.step(at(ms), []).answers
        assert sorted(one.token for one in answered) == list(range(asked))


def entry(store: MemoryStore, body: bytes) -> None:
    """Put an entry into the journal that no leader of ours decided."""
    journal = toy.journal(store)
    journal.add(REGULAR + body, journal[-1][1] + 1, journal[-1][2])
    store.commit()


def batch_on(head: rows.Head, **other: Any) -> bytes:
    batch = batches.Batch(
        sequence=head.sequence + 1,
        parent=head.hash,
        epoch=9,
        incarnation=1,
        led_ms=0,
        log_ms=0,
        wall_ms=0,
        decided_steady_ms=0,
        boot_id="b",
        puts=[(b"Ofar", keys.encode_row(rows.Output(rows.Payload(b"away"))))],
        deletes=[],
    )
    return batches.encode(replace(batch, **other))


def test_inherited_batch_is_applied_before_the_epoch_opens() -> None:
    """What an earlier leader left is told in bytes, since nobody here decoded it."""
    store = toy.new_store()
    entry(store, batch_on(facts.read_head(store)))
    outbox = toy.start(store).step(at(0), proposals(Add()))

    assert [(one.sequence, one.epoch) for one in outbox.applied] == [(1, 9), (2, 10), (3, 10)]
    assert outbox.applied[0].changes is None
    assert [key for key, _ in outbox.applied[0].puts] == [b"Ofar"]
    assert store.get(b"Ofar") is not None
    assert outbox.standing.epoch == 10


def test_stale_batch_is_skipped() -> None:
    store = toy.new_store()
    entry(store, batch_on(facts.read_head(store), sequence=0))
    outbox = toy.start(store).step(at(0), [])

    assert [(one.sequence, one.epoch) for one in outbox.applied] == [(1, 1)]
    assert store.get(b"Ofar") is None


@pytest.mark.parametrize("other", [{"sequence": 2}, {"parent": b"another"}])
def test_divergence_stops_the_replica_and_keeps_its_files(other: dict[str, Any]) -> None:
    store = toy.new_store()
    entry(store, batch_on(facts.read_head(store), **other))
    before = dict(store.entries())
    replica = toy.start(store)
    with pytest.raises(Diverged) as caught:
        replica.step(at(0), proposals(Add()))
    with pytest.raises(ReplicaStopped):
        replica.step(at(10), [])
    replica.close()

    assert (caught.value.index, caught.value.head.sequence) == (2, 0)
    assert dict(store.entries()) == before
    assert store.get(b"Ofar") is None


@pytest.mark.parametrize(
    "content",
    [
        b"\xc1",
        # Of a newer version: it is neither skipped nor guessed at.
        msgspec.msgpack.encode([2, 1, b"parent", 1, 1, 0, 0, 0, 0, "boot", [], []]),
    ],
)
def test_h083_batch_that_cannot_be_read_stops_the_replica(content: bytes) -> None:
    """H083: with a message that says why; the rows stay where they were, and so does the entry."""
    store = toy.new_store()
    entry(store, content)
    before, head = dict(store.entries()), facts.read_head(store)
    replica = toy.start(store)

    with pytest.raises(BatchUnreadable, match=r"entry 2 is not a batch this version can read .* by a newer one\?"):
        replica.step(at(0), [])
    with pytest.raises(ReplicaStopped):
        replica.step(at(10), [])
    assert before.items() <= dict(store.entries()).items()
    assert facts.read_head(store) == head


class FailingStore(MemoryStore):
    """A disk that fails once."""

    fails = False

    @override
    def commit(self) -> None:
        if self.fails:
            raise OSError("the disk is gone")
        super().commit()


def test_replica_that_could_not_write_stops() -> None:
    """What is in its memory may be ahead of the disk, so it must not answer any more."""
    store = toy.founded(FailingStore())
    replica = toy.start(store)
    replica.step(at(0), [])
    store.fails = True
    with pytest.raises(OSError, match="gone"):
        replica.step(at(1), proposals(Add()))
    store.fails = False

    with pytest.raises(ReplicaStopped):
        replica.step(at(2), [])


def test_journal_is_compacted_while_it_grows() -> None:
    store = toy.new_store()
    limits = ReplicaLimits(journal_entries_max=50)
    for start in range(0, 2_000, 500):
        replica = toy.start(store, now=at(start), limits=limits)
        for ms in range(start, start + 500):
            replica.step(at(ms), proposals(Add()))
            assert len(replica._journal) <= 50
        replica.close()
    outbox = toy.start(store, now=at(5_000), limits=limits).step(at(5_000), proposals(Ask()))

    assert toy.counted(answers(outbox)[0]).counter == 2_000


def test_journal_is_bounded_by_bytes_too() -> None:
    replica = toy.start(toy.new_store(), limits=ReplicaLimits(journal_bytes_max=100_000))
    for ms in range(100):
        replica.step(at(ms), proposals(Add(rows_written=1, row_bytes=10_000)))

    assert 7 <= len(replica._journal) <= 10


def test_python_without_assertions_is_refused() -> None:
    """They are what stops a node that is wrong."""
    program = "from tests.logbook import toy; toy.start(toy.new_store())"
    done = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, text=True, check=False)

    assert "AssertionsOff" in done.stderr


def test_second_batch_waits_for_the_first() -> None:
    replica: Replica = toy.start(toy.new_store())
    replica.step(at(0), [])
    head = replica.standing.head
    replica._in_flight = object()  # type: ignore[assignment]  # anything at all

    with pytest.raises(AssertionError):
        replica._propose(at(0), batches.decode(batch_on(head)), batch_on(head), changes={}, answers=())

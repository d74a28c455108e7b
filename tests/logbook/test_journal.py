"""The journal: what pysyncobj writes into it is there again, and nothing that was acknowledged can leave it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepward.server.logbook import batch as batches
from stepward.server.logbook import journal as journals
from stepward.server.logbook.errors import BatchUnreadable, JournalCorrupt
from stepward.server.logbook.journal import StoreJournal
from stepward.server.store import facts
from stepward.server.store.interface import Store
from stepward.server.store.lmdb_store import LmdbStore
from stepward.server.store.memory import MemoryStore
from tests.logbook import toy


@pytest.fixture(params=["memory", "lmdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store = MemoryStore() if request.param == "memory" else LmdbStore(tmp_path / "data", create=True)
    journals.found(made)
    made.commit()
    yield made
    made.close()


def filled(store: Store, last: int, **bounds: Any) -> StoreJournal:
    """A journal with entries up to `last`, all of them applied."""
    journal = toy.journal(store, **bounds)
    for index in range(2, last + 1):
        journal.add(b"\x00%d" % index, index, 1)
        journal.mark_applied(index)
    return journal


def indices(journal: StoreJournal) -> list[int]:
    return [entry.index for entry in journal[:]]


def test_new_journal_holds_the_entry_that_all_agree_on(store: Store) -> None:
    journal = toy.journal(store)

    assert journal[:] == [(b"\x01", 1, 0, None)]
    assert (journal.applied, journal.getCurrentTerm(), journal.getVotedForNodeId()) == (1, 0, None)


def test_entries_are_there_again(store: Store) -> None:
    journal = toy.journal(store)
    journal.add(b"\x00two", 2, 4)
    journal.add(b"\x01", 3, 5)
    journal.mark_applied(2)
    journal.setCurrentTerm(6, "n2")
    store.commit()
    again = toy.journal(store)

    assert again[:] == [(b"\x01", 1, 0, None), (b"\x00two", 2, 4, 0), (b"\x01", 3, 5, 0)]
    assert (again.applied, again.getCurrentTerm(), again.getVotedForNodeId()) == (2, 6, "n2")
    assert again[-1] == (b"\x01", 3, 5, 0)
    assert len(again) == 3


def test_commit_index_at_start_is_what_the_rows_hold(store: Store) -> None:
    """A stored one may be ahead of the journal, and a node that trusted it acknowledged alone."""
    journal = filled(store, 5)
    journal.add(b"\x00six", 6, 1)
    journal.setRaftCommitIndex(100)
    store.commit()

    assert toy.journal(store).getRaftCommitIndex() == 5


def test_term_of(store: Store) -> None:
    journal = toy.journal(store)
    journal.add(b"\x00two", 2, 4)

    assert [journal.term_of(index) for index in (0, 1, 2, 3)] == [None, 0, 4, None]


def test_conflicting_tail_is_replaced(store: Store) -> None:
    journal = filled(store, 3)
    for index in (4, 5, 6):
        journal.add(b"\x00doomed", index, 1)
    journal.deleteEntriesFrom(3)
    journal.add(b"\x00better", 4, 2)
    store.commit()

    assert indices(toy.journal(store)) == [1, 2, 3, 4]
    assert toy.journal(store)[-1] == (b"\x00better", 4, 2, 0)


def test_truncated_bytes_do_not_count() -> None:
    journal = filled(toy.new_store(), 3, bytes_max=1_000)
    for _ in range(20):
        journal.add(bytes(900), 4, 1)
        journal.deleteEntriesFrom(3)
    journal.compact()

    assert indices(journal) == [1, 2, 3]


def test_applied_entries_are_never_truncated(store: Store) -> None:
    """Where pysyncobj only logs it. Rows cannot be taken back."""
    journal = filled(store, 5)

    with pytest.raises(AssertionError):
        journal.deleteEntriesFrom(4)


def test_entries_come_one_behind_the_other(store: Store) -> None:
    journal = filled(store, 5)

    with pytest.raises(AssertionError):
        journal.add(b"\x00", 7, 1)


def test_applying_goes_one_by_one(store: Store) -> None:
    journal = filled(store, 5)

    with pytest.raises(AssertionError):
        journal.mark_applied(7)


def test_term_never_falls(store: Store) -> None:
    journal = toy.journal(store)
    journal.setCurrentTerm(5, None)

    with pytest.raises(AssertionError):
        journal.setCurrentTerm(4, None)


@pytest.mark.parametrize("call", ["clear", "deleteEntriesTo"])
def test_pysyncobj_compacts_nothing_by_itself(store: Store, call: str) -> None:
    """Its compaction is not atomic: it clears, then adds again."""
    journal = filled(store, 5)

    with pytest.raises(AssertionError):
        journal.clear() if call == "clear" else journal.deleteEntriesTo(3)
    assert indices(journal) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("entries", "kept"),
    [
        # At the bound nothing happens.
        (16, list(range(1, 17))),
        # One past it, down to seven eighths.
        (17, list(range(4, 18))),
    ],
)
def test_entries_are_bounded(store: Store, entries: int, kept: list[int]) -> None:
    journal = filled(store, entries, entries_max=16)
    journal.compact()
    store.commit()

    assert indices(journal) == kept
    assert toy.journal(store)[:] == journal[:]


@pytest.mark.parametrize(("size", "kept"), [(99, [1, 2, 3, 4]), (102, [3, 4])])
def test_bytes_are_bounded(store: Store, size: int, kept: list[int]) -> None:
    journal = toy.journal(store, bytes_max=300)
    for index in range(2, 5):
        journal.add(bytes(size), index, 1)
        journal.mark_applied(index)
    journal.compact()

    assert indices(journal) == kept


def test_compaction_takes_small_bites(store: Store) -> None:
    journal = filled(store, 2_000)
    store.commit()
    small = toy.journal(store, entries_max=100)
    small.compact()
    assert len(small) == 2_000 - 256
    for _ in range(20):
        small.compact()

    assert len(small) <= 100
    assert indices(small)[-1] == journal[-1][1]


def test_compaction_keeps_what_is_not_applied(store: Store) -> None:
    """An entry that is only appended is the one copy of what it says."""
    journal = toy.journal(store, entries_max=2)
    for index in range(2, 30):
        journal.add(b"\x00", index, 1)
    for index in range(2, 11):
        journal.mark_applied(index)
    for _ in range(5):
        journal.compact()

    # The entry before the last applied one is what the next one is checked against.
    assert indices(journal) == list(range(9, 30))


def test_compaction_keeps_two_entries(store: Store) -> None:
    """The engine reads the last one always, and the one before it when it sends."""
    journal = filled(store, 30, entries_max=1)
    for _ in range(5):
        journal.compact()

    assert indices(journal) == [29, 30]


def test_crash_in_the_middle_of_compaction_changes_nothing(store: Store) -> None:
    journal = filled(store, 30, entries_max=10)
    store.commit()
    before = toy.journal(store)[:]
    journal.compact()
    assert len(journal) < 30
    if isinstance(store, MemoryStore):
        store.lose_uncommitted()
        assert toy.journal(store)[:] == before
    with store.snapshot() as snapshot:
        assert facts.read_applied(snapshot) == (30, 1)


def test_damaged_entry_is_found(store: Store) -> None:
    filled(store, 3)
    value = dict(store.entries())[3]
    store.delete_entries(3, 3)
    store.put_entry(3, value[:-1] + bytes([value[-1] ^ 1]))

    with pytest.raises(JournalCorrupt, match="entry 3"):
        toy.journal(store)


def test_entry_under_the_key_of_another_is_found(store: Store) -> None:
    filled(store, 3)
    value = dict(store.entries())[2]
    store.delete_entries(3, 3)
    store.put_entry(3, value)

    with pytest.raises(JournalCorrupt, match="entry 3"):
        toy.journal(store)


@pytest.mark.parametrize(
    ("first", "last"),
    [
        # A hole.
        (3, 3),
        # Nothing at all.
        (1, 5),
        # Compacted beyond what the rows hold: pysyncobj would wait in silence for entries that are gone.
        (1, 4),
    ],
)
def test_journal_with_something_missing_is_refused(store: Store, first: int, last: int) -> None:
    journal = filled(store, 4)
    journal.add(b"\x00five", 5, 1)
    store.delete_entries(first, last)

    with pytest.raises(JournalCorrupt):
        toy.journal(store)


@pytest.mark.parametrize("applied", [0, 6])
def test_rows_that_the_journal_does_not_reach_are_refused(store: Store, applied: int) -> None:
    filled(store, 5)
    store.put_fact(facts.APPLIED, facts.encode_applied(applied, 1))

    with pytest.raises(JournalCorrupt, match=f"entry {applied} was applied last"):
        toy.journal(store)


def test_rows_that_hold_another_entry_are_refused(store: Store) -> None:
    """Same index, other term: another leader's entry, which these rows do not hold."""
    filled(store, 5)
    store.put_fact(facts.APPLIED, facts.encode_applied(5, 2))

    with pytest.raises(JournalCorrupt, match="entry 5 was applied with term 2, but in the journal it has term 1"):
        toy.journal(store)


def test_journal_begins_anew_on_rows_of_another_node(store: Store) -> None:
    """With the one entry that they hold last, in its term; term and vote of this node stay what they are."""
    journal = filled(store, 5)
    journal.setCurrentTerm(7, "n2")
    store.commit()
    incoming = store.incoming()
    incoming.commit()
    index, entry = journals.foundation(90, 6)
    beside = {facts.TERM: store.fact(facts.TERM) or b"", facts.APPLIED: facts.encode_applied(90, 6)}
    store.install(incoming, facts=beside, entries=[(index, entry)])
    journal.reload()

    assert (journal.applied, journal.term_of(90), journal.term_of(5), len(journal)) == (90, 6, None, 1)
    assert (journal.getCurrentTerm(), journal.getVotedForNodeId()) == (7, "n2")
    journal.add(b"\x00next", 91, 7)
    assert toy.journal(store)[-1] == (b"\x00next", 91, 7, 0)


@pytest.mark.parametrize("value", [b"", msgspec.msgpack.encode("five")])
def test_term_that_cannot_be_read(store: Store, value: bytes) -> None:
    store.put_fact(facts.TERM, value)

    with pytest.raises(JournalCorrupt):
        toy.journal(store)


def pinned(entries: int, **bounds: int) -> StoreJournal:
    """A journal that would keep 10 entries, of which someone needs those from 21 on."""
    journal = filled(toy.new_store(), entries, entries_max=10, **bounds)
    journal.pin("n2", 21)
    return journal


def compacted(journal: StoreJournal) -> list[int]:
    for _ in range(10):
        journal.compact()
    return indices(journal)


def test_what_is_pinned_is_kept() -> None:
    """Who fetches all rows needs what came behind them."""
    journal = pinned(100)
    journal.pin("n3", 31)

    assert compacted(journal)[0] == 21
    journal.unpin("n2")
    assert compacted(journal)[0] == 31
    journal.unpin("n3")
    journal.unpin("n3")
    assert len(compacted(journal)) <= 10


@pytest.mark.parametrize(("entries", "first"), [(40, 21), (80, 21), (81, 30)])
def test_pinned_entries_are_bounded(entries: int, first: int) -> None:
    """At the bound they are kept; one past it he has to begin anew, and the journal shrinks below it."""
    journal = pinned(20, pinned_entries_max=60)
    for index in range(21, entries + 1):
        journal.add(b"\x00", index, 1)
        journal.mark_applied(index)
        # As in every step: what nobody needs is gone long before.
        journal.compact()

    assert indices(journal)[0] == first


@pytest.mark.parametrize(("size", "kept"), [(100, True), (101, False)])
def test_pinned_bytes_are_bounded(size: int, kept: bool) -> None:
    journal = pinned(40, pinned_bytes_max=20 * 3 + 10 * 100)
    assert compacted(journal)[0] == 21
    for index in range(41, 51):
        journal.add(bytes(size), index, 1)
        journal.mark_applied(index)
        journal.compact()

    assert (21 in indices(journal)) is kept


@pytest.mark.parametrize(("held", "first"), [(17, 1), (18, 4), (40, 26)])
def test_of_what_every_voter_holds_a_little_is_kept(held: int, first: int) -> None:
    """At the bound all of it; one past it seven eighths of the bound, and what somebody may still ask for."""
    journal = filled(toy.new_store(), 40, held_entries_max=16)
    journal.note_held(held)

    assert compacted(journal) == list(range(first, 41))


def test_who_is_told_less_later_keeps_no_more() -> None:
    """A leader that has just been elected has heard of nobody yet."""
    journal = filled(toy.new_store(), 40, held_entries_max=16)
    journal.note_held(18)
    journal.note_held(0)

    assert compacted(journal)[0] == 4


def test_held_entries_that_are_pinned_are_kept() -> None:
    journal = filled(toy.new_store(), 100, held_entries_max=16)
    journal.pin("n2", 21)
    journal.note_held(100)

    assert compacted(journal)[0] == 21
    journal.unpin("n2")
    assert compacted(journal)[0] == 86


def test_held_entries_that_are_not_applied_are_kept(store: Store) -> None:
    """Whatever a leader says: the rows do not hold them."""
    journal = filled(store, 30, held_entries_max=4)
    for index in range(31, 51):
        journal.add(b"\x00", index, 1)
    journal.note_held(1 << 61)

    assert compacted(journal) == list(range(29, 51))


def test_own_entries_are_decided_when_they_are_added(store: Store) -> None:
    journal = toy.journal(store)
    journal.now_ms = 1_234
    journal.add(b"\x00two", 2, 1)
    journal.now_ms = 5_678
    store.commit()

    assert journal.decided_at_ms(2) == toy.journal(store).decided_at_ms(2) == 1_234


def test_entries_of_others_keep_their_age(store: Store) -> None:
    """On this node's clock, on which they may have been decided before it began."""
    journal = toy.journal(store)
    journal.add(*journals.Entry(b"\x00two", 2, 1, -500))
    journal.add(*journals.Entry(b"\x00three", 3, 1, None))
    store.commit()
    again = toy.journal(store)

    assert [again.decided_at_ms(index) for index in (1, 2, 3, 4)] == [None, -500, None, None]


def test_instants_of_another_boot_are_forgotten(store: Store) -> None:
    """Its clock began anew, so they would say anything."""
    journal = toy.journal(store)
    journal.now_ms = 1_234
    journal.add(b"\x00two", 2, 1)
    store.commit()

    assert toy.journal(store, boot_id="boot-2").decided_at_ms(2) is None


@pytest.mark.parametrize(
    ("first", "bytes_max", "entries_max", "last"),
    [
        # Entries 2 to 5 have 10 bytes each, entry 6 has 50, entry 7 has 10.
        (2, 40, 9, 5),
        (2, 39, 9, 4),
        (2, 41, 9, 5),
        (2, 90, 9, 6),
        (2, 1_000, 9, 7),
        (2, 1_000, 3, 4),
        # One goes always, as long as any bytes may.
        (2, 1, 9, 2),
        (6, 49, 9, 6),
        (7, 10, 9, 7),
        (2, 0, 9, 1),
        (2, -5, 9, 1),
        # There is no more.
        (8, 100, 9, 7),
    ],
)
def test_last_fitting(first: int, bytes_max: int, entries_max: int, last: int) -> None:
    journal = toy.journal(toy.new_store())
    for index in range(2, 8):
        journal.add(bytes(50 if index == 6 else 10), index, 1)

    assert journal.last_fitting(first, bytes_max, entries_max) == last


def test_bytes_between() -> None:
    journal = filled(toy.new_store(), 30, entries_max=10)
    for index in range(31, 34):
        journal.add(bytes(index), index, 1)
    before = journal.bytes_between(31, 34)
    compacted(journal)

    assert before == journal.bytes_between(31, 34) == 31 + 32 + 33
    assert journal.bytes_between(33, 33) == journal.bytes_between(34, 33) == 0
    # What is gone has none.
    assert journal.bytes_between(1, journal.first_index) == 0
    assert [entry.index for entry in journal.between(31, 33)] == [31, 32]


def test_rows_of_an_entry_are_those_of_its_batch(store: Store) -> None:
    """Whatever replaces them in the log of a store; a damaged one, and one that is no batch, have none."""
    batch = batches.Batch(1, b"parent", 1, 1, 2, 3, 4, 5, "boot", [(b"Oa", b"1"), (b"Ob", b"2")], [b"Oc"])
    journal = toy.journal(store)
    journal.add(b"\x00" + batches.encode(batch), 2, 4)
    journal.add(b"\x01", 3, 4)
    journal.add(b"\x00no batch", 4, 4)
    values = dict(store.entries())

    assert journals.rows_of_entry(2, values[2]) == ([(b"Oa", b"1"), (b"Ob", b"2")], [b"Oc"])
    with pytest.raises(JournalCorrupt, match="entry 3 of the journal was applied to rows, but is no batch"):
        journals.rows_of_entry(3, values[3])
    with pytest.raises(BatchUnreadable):
        journals.rows_of_entry(4, values[4])
    with pytest.raises(JournalCorrupt, match="entry 2 of the journal is damaged"):
        journals.rows_of_entry(2, values[2][:-1] + b"x")

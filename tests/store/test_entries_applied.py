"""A log in which the rows of an entry stand once, as the entry: what is taken over is what was applied."""

import shutil
from pathlib import Path

import pytest

from stepward.server.store import write_ahead
from stepward.server.store.errors import StoreCorrupt
from stepward.server.store.lmdb_store import LmdbStore
from stepward.server.store.write_ahead import LOG_FILE, EntriesDeleted, EntryApplied, EntryPut, RowsChanged
from tests.store.logged import LOG_BYTES, abandon, log_of, names, put

ROW = b"a row that is long enough to be found" * 4


def said(index: int, value: bytes) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
    """The rows of an entry of this toy: a name to put, a name to delete, and the row."""
    assert index > 0
    return [(b"O" + value[:1], value[2:])], [b"O" + value[1:2]]


def opened(directory: Path, log_bytes: int = LOG_BYTES) -> LmdbStore:
    return LmdbStore(directory, create=True, log_bytes=log_bytes, rows_of_entry=said)


def begun(directory: Path) -> LmdbStore:
    """One whose log is written to."""
    store = opened(directory)
    put(store, "a")
    return store


def enter(store: LmdbStore, index: int, value: bytes) -> None:
    store.put_entry(index, value)
    store.commit()


def apply(store: LmdbStore, index: int, value: bytes) -> None:
    store.apply(*said(index, value), entry=index)
    store.put_fact(b"applied", b"%d" % index)
    store.commit()


def test_rows_of_an_entry_are_taken_over_from_it_and_stand_in_the_log_once(tmp_path: Path) -> None:
    """In the order in which they were applied, between what was written otherwise; the entry may be gone later."""
    store = begun(tmp_path)
    enter(store, 1, b"ba" + ROW)
    apply(store, 1, b"ba" + ROW)
    put(store, "a", b"again")
    enter(store, 2, b"cb" + ROW)
    store.apply(*said(2, b"cb" + ROW), entry=2)
    store.delete_entries(1, 1)
    store.commit()
    assert (names(store), log_of(tmp_path).count(ROW)) == ("ac", 2)
    abandon(store)

    store = opened(tmp_path, 0)
    assert (store.get(b"Oa"), store.get(b"Oc"), names(store)) == (b"again", ROW, "ac")
    assert list(store.entries()) == [(2, b"cb" + ROW)]
    store.close()


def test_what_is_left_to_the_next_flush_comes_behind_its_entry(tmp_path: Path) -> None:
    """Rows that were only applied, and the end of their entry, come with the next entry, or are lost together."""
    store = begun(tmp_path / "flushed")
    enter(store, 1, b"ba" + ROW)
    with store.applying():
        apply(store, 1, b"ba" + ROW)
    store.delete_entries(1, 1)
    store.commit()
    shutil.copytree(tmp_path / "flushed", tmp_path / "lost")
    enter(store, 2, b"cb" + ROW)
    assert log_of(tmp_path / "flushed").count(ROW) == 2
    abandon(store)

    for name, there, entries in (("lost", "a", [1]), ("flushed", "b", [2])):
        store = opened(tmp_path / name)
        assert (names(store), [index for index, _ in store.entries()]) == (there, entries)
        store.close()


def test_entry_may_stand_in_the_data_that_the_log_is_ahead_of(tmp_path: Path) -> None:
    store = begun(tmp_path)
    enter(store, 1, b"ba" + ROW)
    with store.snapshot():
        pass
    apply(store, 1, b"ba" + ROW)
    store.delete_entries(1, 1)
    store.put_fact(b"f", b"1")
    store.commit()
    abandon(store)

    store = opened(tmp_path)
    assert (store.get(b"Ob"), names(store), list(store.entries())) == (ROW, "b", [])
    store.close()


def test_entry_that_was_replaced_before_it_was_applied_counts_as_the_newer(tmp_path: Path) -> None:
    """A leader of a later term has other entries at the same places."""
    store = begun(tmp_path)
    enter(store, 1, b"ba" + ROW)
    store.delete_entries(1, 1)
    enter(store, 1, b"ca" + ROW)
    apply(store, 1, b"ca" + ROW)
    abandon(store)

    store = opened(tmp_path)
    assert names(store) == "c"
    store.close()


def test_each_record_is_applied_whole_or_not_at_all_wherever_a_crash_cuts(tmp_path: Path) -> None:
    """Between an entry and its rows, and between these and the end of the entry."""
    directory = tmp_path / "node"
    store = begun(directory)
    enter(store, 1, b"ba" + ROW)
    ends = [store._log.end_bytes]
    apply(store, 1, b"ba" + ROW)
    ends.append(store._log.end_bytes)
    store.delete_entries(1, 1)
    store.put_fact(b"f", b"1")
    store.commit()
    ends.append(store._log.end_bytes)
    abandon(store)

    left = []
    for end in (ends[0] - 1, *ends[:-1], ends[1] + 1, ends[2]):
        copy = tmp_path / str(end)
        shutil.copytree(directory, copy)
        (copy / LOG_FILE).write_bytes(log_of(directory)[:end])
        for _ in range(2):
            store = opened(copy, 0)
            left.append((names(store), store.fact(b"applied"), [index for index, _ in store.entries()]))
            store.close()

    none: list[int] = []
    without, entered, applied, ended = ("a", None, none), ("a", None, [1]), ("b", b"1", [1]), ("b", b"1", none)
    assert left == [state for state in (without, entered, applied, applied, ended) for _ in range(2)]


def test_who_cannot_read_entries_keeps_their_rows(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, create=True, log_bytes=LOG_BYTES)
    put(store, "a")
    enter(store, 1, b"ba" + ROW)
    apply(store, 1, b"ba" + ROW)
    assert log_of(tmp_path).count(ROW) == 2
    abandon(store)

    store = opened(tmp_path)
    assert names(store) == "b"
    store.close()


def test_log_without_rows_is_refused_by_who_cannot_read_entries(tmp_path: Path) -> None:
    """It would go on without them. Nothing is changed, so who can read them still does."""
    store = begun(tmp_path)
    enter(store, 1, b"ba" + ROW)
    apply(store, 1, b"ba" + ROW)
    abandon(store)
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match="has applied entry 1, which cannot be read by what has opened it"):
            LmdbStore(tmp_path)

    store = opened(tmp_path)
    assert names(store) == "b"
    store.close()


def test_entry_that_the_log_counts_on_and_is_missing_is_told(tmp_path: Path) -> None:
    store = begun(tmp_path)
    apply(store, 7, b"ba" + ROW)
    abandon(store)

    with pytest.raises(StoreCorrupt, match="has applied entry 7, which is missing"):
        opened(tmp_path)


def test_earlier_kinds_of_changes_are_read_as_they_were_written() -> None:
    """The numbers stand in files; a log of before has the first four."""
    changes = [RowsChanged([(b"k", b"v")], [b"d"]), EntryPut(1, b"e"), EntriesDeleted(1, 2), EntryApplied(3)]

    assert write_ahead._encode(
        changes
    ).hex() == "949301919 2c4016bc40176 91c40164 9303 01c40165 930401 02 920503".replace(" ", "")
    assert write_ahead._decode(write_ahead._encode(changes)) == changes

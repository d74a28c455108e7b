"""A store with a log in front of its data: what was committed is there after any end, and nothing else."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from stepward.server.store import facts, lmdb_store, write_ahead
from stepward.server.store.environment import Environment
from stepward.server.store.errors import IncomingFailed, StoreCorrupt, StoreFailed
from stepward.server.store.lmdb_store import FREE_BYTES_LOG_MIN, LmdbStore, strangers
from stepward.server.store.write_ahead import ID_BYTES, LOG_FILE, RowsChanged
from tests.store.logged import LOG_BYTES, abandon, log_of, logged, names, put
from tests.store.standing import head_of, stand

ID = bytes(range(ID_BYTES))


def test_what_was_committed_is_there_after_a_kill(tmp_path: Path) -> None:
    """Of every kind, in the order in which it was written, and nothing that was not committed."""
    store = logged(tmp_path)
    put(store, "a")
    stand(store, sequence=3, index=2, term=1)
    for index in (1, 2, 3):
        store.put_entry(index, b"%d" % index)
    store.apply([(b"Ob", b"1"), (b"Oc", b"1")], [b"Oa"])
    store.apply([(b"Oa", b"again")], [b"Oc"])
    store.delete_entries(1, 2)
    store.commit()
    store.put_fact(b"f", b"lost")
    put_uncommitted = [(b"Od", b"1")]
    store.apply(put_uncommitted, [])
    abandon(store)

    store = LmdbStore(tmp_path)
    assert (store.get(b"Oa"), names(store), list(store.entries())) == (b"again", "ab", [(3, b"3")])
    assert (facts.read_head(store), facts.read_applied(store), store.fact(b"f")) == (head_of(3), (2, 1), None)
    store.close()


def test_what_follows_from_an_entry_is_flushed_with_what_comes_next(tmp_path: Path) -> None:
    """By itself it needs nothing of the disk. What a kill takes of it is never more than all of it."""
    store = logged(tmp_path)
    put(store, "a")
    put(store, "b")
    end_bytes = store._log.end_bytes

    def apply(name: str) -> None:
        with store.applying():
            store.apply([(b"O" + name.encode(), b"1")], [])
            store.put_fact(b"f", name.encode())
        store.commit()

    apply("c")
    assert (store.commit_apart(), store._log.end_bytes) == (None, end_bytes)
    store.put_entry(1, b"1")
    store.commit()
    apply("d")
    store.delete_entries(1, 1)
    store.commit()
    assert names(store) == "abcd"
    abandon(store)

    store = logged(tmp_path)
    assert (names(store), store.fact(b"f"), list(store.entries())) == ("abc", b"c", [(1, b"1")])
    # A node that is stopped leaves nothing to do again.
    put(store, "e")
    put(store, "g")
    with store.applying():
        store.apply([(b"Oh", b"1")], [])
    store.close()
    store = LmdbStore(tmp_path)
    assert names(store) == "abcegh"
    store.close()


def test_nothing_waits_for_the_next_commit_where_there_is_little_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits needs room later."""
    store = logged(tmp_path)
    put(store, "a")
    put(store, "b")
    monkeypatch.setattr(lmdb_store, "disk_free_bytes", lambda _: FREE_BYTES_LOG_MIN - 1)
    store.free_bytes()
    with store.applying():
        store.apply([(b"Oc", b"1")], [])
    store.commit()
    abandon(store)

    monkeypatch.undo()
    store = LmdbStore(tmp_path)
    assert names(store) == "abc"
    store.close()


def test_commit_is_one_write_and_one_flush_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this order, before it returns; the data is not touched."""
    store = logged(tmp_path)
    put(store, "a")
    put(store, "b")
    done: list[str] = []
    pwrite, fdatasync = os.pwrite, os.fdatasync

    def note_write(descriptor: int, content: bytes, begin: int) -> int:
        done.append("write")
        return pwrite(descriptor, content, begin)

    def note_flush(descriptor: int) -> None:
        assert str(Path(f"/proc/self/fd/{descriptor}").readlink()) == str(tmp_path / LOG_FILE)
        done.append("flush")
        fdatasync(descriptor)

    monkeypatch.setattr(os, "pwrite", note_write)
    monkeypatch.setattr(os, "fdatasync", note_flush)
    before = (tmp_path / "data.mdb").read_bytes(), len(log_of(tmp_path))
    put(store, "c")

    assert done == ["write", "flush"]
    assert ((tmp_path / "data.mdb").read_bytes(), len(log_of(tmp_path))) == before
    store.close()


def test_file_that_grows_is_flushed_with_its_size_and_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = logged(tmp_path, 1 << 20)
    put(store, "a")
    done: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: done.append("size"))
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: done.append("record"))
    put(store, "b", bytes(300 << 10))
    size_bytes = len(log_of(tmp_path))
    put(store, "c")

    assert done == ["size", "record", "record"]
    assert (size_bytes, len(log_of(tmp_path))) == (512 << 10, 512 << 10)
    store.close()


def test_name_of_the_log_is_durable_before_the_data_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut leaves data that misses its log, and nobody knows whether there was anything in it."""
    store = logged(tmp_path)
    flushed: list[tuple[str, bool]] = []

    def fsync(descriptor: int) -> None:
        with store._environment.lmdb.begin() as transaction:
            named = transaction.get(facts.LOG, db=store._facts) is not None
        flushed.append((Path(f"/proc/self/fd/{descriptor}").readlink().name, named))

    monkeypatch.setattr(os, "fsync", fsync)
    put(store, "a")

    assert flushed == [(LOG_FILE, False), (tmp_path.name, False)]
    store.close()


def test_what_the_data_holds_is_not_done_again(tmp_path: Path) -> None:
    """The id that stands in the data changes with it, so what was logged before it was written counts no more."""
    store = logged(tmp_path)
    put(store, "a")
    put(store, "b")
    store.apply([], [b"Ob"])
    with pytest.raises(AssertionError, match="not committed"), store.snapshot():
        pass
    store.commit()
    before = store.fact(facts.LOG)
    with store.snapshot() as snapshot:
        assert list(snapshot.scan(b"O")) == [b"Oa"]
    assert store.fact(facts.LOG) != before
    # What it replaces is still in the file.
    assert before is not None
    assert log_of(tmp_path).count(before[1:]) == 2
    put(store, "c")
    abandon(store)

    store = LmdbStore(tmp_path)
    assert names(store) == "ac"
    store.close()


def test_taking_over_may_be_cut_off_and_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data and what it says of the log change in one commit."""
    store = logged(tmp_path)
    for name in "abc":
        put(store, name)
    store.apply([], [b"Oa"])
    store.commit()
    abandon(store)
    log = log_of(tmp_path)

    def fail(store: LmdbStore, work: Callable[[], None]) -> None:
        raise StoreFailed("the machine ends here")

    with monkeypatch.context() as patched:
        patched.setattr(LmdbStore, "_flush", fail)
        for _ in range(2):
            with pytest.raises(StoreFailed):
                LmdbStore(tmp_path)
    store = LmdbStore(tmp_path)
    assert names(store) == "bc"
    abandon(store)
    # A crash may bring the file back, which counts no more.
    (tmp_path / LOG_FILE).write_bytes(log)
    store = logged(tmp_path)
    assert names(store) == "bc"
    store.close()


def test_log_that_is_missing_is_told(tmp_path: Path) -> None:
    """Whoever copies a directory file by file may forget it; nothing goes on without what it held."""
    store = logged(tmp_path)
    put(store, "a")
    abandon(store)
    (tmp_path / LOG_FILE).unlink()
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match=f"{LOG_FILE} is missing, which holds what was written last"):
            LmdbStore(tmp_path)


def test_log_of_a_newer_version_is_told(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, create=True)
    store.put_fact(facts.LOG, b"\x02" + ID)
    store.commit()
    store.close()

    with pytest.raises(StoreCorrupt, match=r"the log of .* cannot be read; was it written by a newer version"):
        LmdbStore(tmp_path)


def raw_facts(directory: Path) -> dict[bytes, bytes]:
    """The facts as a version reads them that knows of no log."""
    environment = Environment(directory, map_bytes=1 << 30, durable=False)
    with environment.lmdb.begin() as transaction:
        there = dict(transaction.cursor(environment.facts))
    environment.close()
    return there


def test_older_version_refuses_data_that_a_log_is_ahead_of(tmp_path: Path) -> None:
    """It would go on without what the log holds. Where the node was ended there is nothing that it would miss."""
    store = logged(tmp_path)
    for sequence in (1, 2):
        stand(store, sequence=sequence, index=sequence, term=1)
        store.commit()
    assert facts.read_head(store) == head_of(2)
    abandon(store)

    with pytest.raises(StoreCorrupt, match="was it written by a newer version"):
        facts.decode_head(raw_facts(tmp_path)[facts.HEAD])
    store = logged(tmp_path)
    with store.export() as export:
        assert facts.decode_head(export.head) == head_of(2)
    stand(store, sequence=3, index=3, term=1)
    store.commit()
    with store.snapshot() as snapshot:
        assert facts.read_head(snapshot) == head_of(3)
    store.close()
    left = raw_facts(tmp_path)
    assert facts.decode_head(left[facts.HEAD]) == head_of(3)
    assert facts.LOG not in left
    assert not (tmp_path / LOG_FILE).exists()


def test_log_is_no_stranger(tmp_path: Path) -> None:
    (tmp_path / LOG_FILE).write_bytes(b"")

    assert strangers(tmp_path) == []


def test_log_is_for_its_owner_only(tmp_path: Path) -> None:
    store = logged(tmp_path)
    put(store, "a")

    assert (tmp_path / LOG_FILE).stat().st_mode & 0o777 == 0o600
    store.close()


# Bounds.


@pytest.mark.parametrize(("beyond", "end_bytes"), [(0, LOG_BYTES), (1, 0)])
def test_record_that_does_not_fit_goes_to_the_data(tmp_path: Path, beyond: int, end_bytes: int) -> None:
    """With all that came before it; the file never outgrows its bound."""
    store = logged(tmp_path)
    put(store, "a")
    put(store, "b")
    header = store._log.end_bytes - len(write_ahead._encode([RowsChanged([(b"Ob", b"1")], [])]))
    room = (
        LOG_BYTES - store._log.end_bytes - header - len(write_ahead._encode([RowsChanged([(b"Oc", bytes(300))], [])]))
    )
    put(store, "c", bytes(300 + room + beyond))

    assert store._log.end_bytes == end_bytes
    assert len(log_of(tmp_path)) == LOG_BYTES
    abandon(store)
    store = LmdbStore(tmp_path)
    assert names(store) == "abc"
    store.close()


@pytest.mark.parametrize(("beyond", "is_logged"), [(0, True), (1, False)])
def test_data_is_written_after_so_many_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beyond: int, is_logged: bool
) -> None:
    monkeypatch.setattr(lmdb_store, "CHANGES_AHEAD_MAX", 9)
    store = logged(tmp_path)
    put(store, "a")
    store.apply([(b"Ob", b"1"), (b"Oc", b"1")], [b"Oa"])
    store.put_fact(b"f", b"1")
    store.put_entry(1, b"1")
    store.delete_entries(1, 4 + beyond)
    store.commit()

    assert (store._log.end_bytes > 0) is is_logged
    assert names(store) == "bc"
    store.close()


@pytest.mark.parametrize(("short", "is_logged"), [(0, True), (1, False)])
def test_disk_with_little_room_has_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: int, is_logged: bool
) -> None:
    """What a log puts off must find room; so every commit goes to the data, until there is room again."""
    disk = SimpleNamespace(f_bavail=FREE_BYTES_LOG_MIN - short, f_frsize=1)
    monkeypatch.setattr(os, "statvfs", lambda directory: disk)
    store = logged(tmp_path)
    put(store, "a")
    put(store, "b")
    assert (store._log.end_bytes > 0) is is_logged
    disk.f_bavail = FREE_BYTES_LOG_MIN
    put(store, "c")
    put(store, "d")

    assert store._log.end_bytes > 0
    store.close()


def test_disk_that_others_fill_meanwhile_ends_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as anybody sees it, while there is still room for what it has put off; its own bytes are free then."""
    disk = SimpleNamespace(f_bavail=FREE_BYTES_LOG_MIN, f_frsize=1)
    monkeypatch.setattr(os, "statvfs", lambda directory: disk)
    store = logged(tmp_path)
    put(store, "a")
    put(store, "b")
    disk.f_bavail -= 1
    store.free_bytes()
    put(store, "c")

    assert not (tmp_path / LOG_FILE).exists()
    abandon(store)
    store = LmdbStore(tmp_path)
    assert names(store) == "abc"
    store.close()


def test_what_the_log_puts_off_counts_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An estimate from below must know of pages that are still to be written, and of the file that may still grow."""
    disk = SimpleNamespace(f_bavail=1 << 30, f_frsize=1)
    monkeypatch.setattr(os, "statvfs", lambda directory: disk)
    store = logged(tmp_path, 1 << 20)
    put(store, "a")
    free_bytes = store.free_bytes()
    put(store, "b")
    after_bytes = store.free_bytes()

    assert free_bytes == (1 << 30) - (1 << 20)
    # Two pages, and the record; and the file has grown by a piece, which is on the disk now.
    assert after_bytes == free_bytes - 2 * 4_096 - store._log.end_bytes + (256 << 10)
    disk.f_bavail = 1
    assert store.free_bytes() == 0
    store.close()


# A disk that fails.


def test_failed_flush_is_never_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may have dropped what it could not write, so a second flush that succeeds says nothing."""
    store = logged(tmp_path)
    put(store, "a")
    flushes: list[int] = []

    def fail(descriptor: int) -> None:
        flushes.append(descriptor)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(StoreFailed, match=f"{LOG_FILE} did not take a write .Input/output error.; see that its disk"):
        put(store, "b")
    with pytest.raises(AssertionError, match="after the disk has failed"):
        put(store, "c")
    store.close()

    assert len(flushes) == 1
    # Nobody was told of it: it may be there or not. What was told is.
    store = LmdbStore(tmp_path)
    assert names(store) in ("a", "ab")
    store.close()


# Snapshots and rows of another node.


def test_another_thread_sees_the_data_as_it_was_written(tmp_path: Path) -> None:
    store = logged(tmp_path)
    put(store, "a")
    put(store, "b")
    seen: list[list[bytes]] = []

    def read() -> None:
        with store.snapshot() as snapshot:
            seen.append(list(snapshot.scan(b"O")))

    for _ in range(2):
        other = threading.Thread(target=read)
        other.start()
        other.join()
        with store.snapshot():
            pass

    assert seen == [[b"Oa"], [b"Oa", b"Ob"]]
    store.close()


def test_snapshot_waits_for_the_commit_that_another_thread_has_in_hand(tmp_path: Path) -> None:
    store = logged(tmp_path)
    put(store, "a")
    store.apply([(b"Ob", b"1")], [])
    assert store.commit_apart() is not None
    with store.snapshot() as snapshot:
        assert list(snapshot.scan(b"O")) == [b"Oa", b"Ob"]
    store.commit()
    abandon(store)

    store = LmdbStore(tmp_path)
    assert names(store) == "ab"
    store.close()


@pytest.mark.parametrize("then", ["close", "kill"])
def test_log_ends_with_the_data_that_it_was_ahead_of(tmp_path: Path, then: str) -> None:
    """Rows of another node have come: what the log holds was written before, on top of others."""
    store = logged(tmp_path)
    put(store, "a")
    put(store, "b")
    coming = store.incoming()
    coming.put([(b"Ox", b"1")])
    coming.commit()
    store.install(coming, facts={b"f": b"1"}, entries=[])
    assert names(store) == "x"
    put(store, "y")
    put(store, "z")
    (store.close if then == "close" else lambda: abandon(store))()

    store = LmdbStore(tmp_path)
    assert (names(store), store.fact(b"f")) == ("xyz", b"1")
    store.close()


def test_rows_of_another_node_that_find_no_room_leave_the_log(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, create=True, map_bytes=1 << 30, log_bytes=LOG_BYTES)
    put(store, "a")
    put(store, "b")
    store._map_bytes = 2 << 20
    coming = store.incoming()
    with pytest.raises(IncomingFailed):
        store.install(coming, facts={b"f": bytes(4 << 20)}, entries=[])
    coming.discard()
    put(store, "c")
    abandon(store)

    store = LmdbStore(tmp_path)
    assert names(store) == "abc"
    store.close()

"""What only a store on disk can do wrong while its rows are exchanged: room, files, maps, threads."""

import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from stepward.server.store import environment
from stepward.server.store import incoming as incoming_module
from stepward.server.store.environment import Environment
from stepward.server.store.errors import IncomingFailed, StoreFailed, StoreInUse
from stepward.server.store.incoming import FREE_BYTES_LEFT_MIN, LmdbIncoming
from stepward.server.store.lmdb_store import LmdbStore, strangers
from tests.store.standing import stand

# More than what is committed at once.
MANY = [(b"O%05d" % number, bytes(1_000)) for number in range(10_000)]


def our_store(directory: Path) -> LmdbStore:
    store = LmdbStore(directory, create=True)
    stand(store, sequence=2, index=20, term=1)
    store.apply([(b"O0", b"ours")], [])
    store.commit()
    return store


def fill(store: LmdbStore, rows: list[tuple[bytes, bytes]] = MANY) -> LmdbIncoming:
    coming = store.incoming()
    coming.put(rows)
    coming.commit()
    return coming


def free(monkeypatch: pytest.MonkeyPatch, free_bytes: int) -> None:
    """Let all disks have so much room."""
    monkeypatch.setattr(os, "statvfs", lambda directory: SimpleNamespace(f_bavail=free_bytes, f_frsize=1))


def folders(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if path.is_dir()]


@pytest.mark.parametrize(("short_bytes", "fits"), [(0, True), (1, False)])
def test_room_is_asked_for_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_bytes: int, fits: bool
) -> None:
    """What they take, and what the store itself needs to go on."""
    store = our_store(tmp_path)
    free(monkeypatch, 1_000_000 + FREE_BYTES_LEFT_MIN - short_bytes)
    if fits:
        store.incoming(1_000_000)
    else:
        with pytest.raises(IncomingFailed, match=r"has no room for the rows .* free some space there"):
            store.incoming(1_000_000)
        assert folders(tmp_path) == []
        # It is tried again later.
        free(monkeypatch, 1 << 40)
        store.incoming(1_000_000)
    store.close()


def test_disk_that_fills_on_the_way_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours go on; what came is thrown away, and there is room again."""
    store = our_store(tmp_path)
    coming = store.incoming()
    coming.put(MANY[:10])
    free(monkeypatch, FREE_BYTES_LEFT_MIN - 1)
    with pytest.raises(IncomingFailed, match="has no room"):
        coming.put(MANY[10:])
    coming.discard()

    assert folders(tmp_path) == []
    store.put_fact(b"f", b"1")
    store.commit()
    store.close()


def test_map_that_fills_on_the_way_is_told(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, create=True, map_bytes=2 << 20)
    coming = store.incoming()
    with pytest.raises(IncomingFailed, match="rows of another node were not taken"):
        coming.put(MANY)

    assert not coming.complete
    with pytest.raises(AssertionError, match="not committed"):
        store.install(coming, facts={}, entries=[])
    coming.discard()
    store.close()


def test_facts_that_find_no_room_leave_everything_as_it_was(tmp_path: Path) -> None:
    """Also for the thread that brought the rows, and throws them away: LMDB would let it wait for this one."""
    store = LmdbStore(tmp_path, create=True, map_bytes=2 << 20)
    store.put_fact(b"f", b"1")
    store.commit()
    coming = store.incoming()
    with pytest.raises(IncomingFailed, match="rows of another node were not taken"):
        store.install(coming, facts={b"f": bytes(4 << 20)}, entries=[])
    other = threading.Thread(target=coming.discard, daemon=True)
    other.start()
    other.join(10)

    assert not other.is_alive()
    assert store.fact(b"f") == b"1"
    store.install(fill(store, MANY[:10]), facts={}, entries=[])
    store.close()


def test_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    store = our_store(tmp_path)
    (tmp_path / "incoming-1").mkdir()
    with pytest.raises(IncomingFailed, match=r"incoming-1 .*exists"):
        store.incoming()

    store.incoming().discard()
    store.close()


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    """Each few MiB are committed, whoever puts them."""
    store = our_store(tmp_path)
    coming = store.incoming()
    open_after = []
    for first in range(0, len(MANY), 100):
        coming.put(MANY[first : first + 100])
        open_after.append(not coming.complete)

    # Two commits on the way, each behind 4 MiB of keys and values.
    assert open_after.count(False) == 2
    store.close()


def test_leftovers_are_removed_at_the_start(tmp_path: Path) -> None:
    """From whatever moment: with files, half a file, or nothing in them."""
    our_store(tmp_path).close()
    (tmp_path / "incoming-1").mkdir()
    (tmp_path / "incoming-17").mkdir()
    (tmp_path / "incoming-17" / "data.mdb").write_bytes(b"half")
    store = LmdbStore(tmp_path)

    assert folders(tmp_path) == []
    assert store.get(b"O0") == b"ours"
    store.close()


def test_leftovers_are_ours(tmp_path: Path) -> None:
    """A directory in which only they are left is not taken for one that somebody else uses."""
    (tmp_path / "incoming-1").mkdir()
    (tmp_path / "incoming.txt").touch()

    assert strangers(tmp_path) == ["incoming.txt"]


def test_closing_removes_what_is_unfinished(tmp_path: Path) -> None:
    store = our_store(tmp_path)
    store.incoming().put(MANY[:10])
    store.close()

    assert folders(tmp_path) == []


def test_closing_does_not_wait_for_a_thread_that_writes(tmp_path: Path) -> None:
    """LMDB would, for ever. What is left is removed at the next start."""
    store = our_store(tmp_path)
    coming = store.incoming()
    other = threading.Thread(target=lambda: coming.put(MANY[:10]))
    other.start()
    other.join()
    store.close()
    assert folders(tmp_path) == ["incoming-1"]
    LmdbStore(tmp_path).close()

    assert folders(tmp_path) == []


def open_files(directory: Path) -> list[str]:
    """Descriptors and maps of this process in a directory."""
    links = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    maps = [line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    return sorted(name for name in links + maps if name.startswith(str(directory)))


def test_files_and_maps_are_closed(tmp_path: Path) -> None:
    """However often; what only a reader still needs, with that reader."""
    store = our_store(tmp_path)
    before = open_files(tmp_path)
    for _ in range(3):
        store.install(fill(store), facts={}, entries=[])
        fill(store).discard()
    assert open_files(tmp_path) == before
    with store.snapshot(), store.snapshot():
        store.install(fill(store), facts={}, entries=[])
        assert len(open_files(tmp_path)) == 2 * len(before) - 1

    # The lock on the directory is not exchanged.
    assert open_files(tmp_path) == before
    store.close()
    assert open_files(tmp_path) == []


def test_directory_stays_locked(tmp_path: Path) -> None:
    store = our_store(tmp_path)
    store.install(fill(store), facts={}, entries=[])
    with pytest.raises(StoreInUse):
        LmdbStore(tmp_path)
    store.close()

    LmdbStore(tmp_path).close()


def test_rows_come_in_on_another_thread(tmp_path: Path) -> None:
    """While the store writes: neither waits for the other."""
    store = our_store(tmp_path)
    store.put_fact(b"f", b"1")
    came: list[LmdbIncoming] = []
    other = threading.Thread(target=lambda: came.append(fill(store)))
    other.start()
    other.join(60)
    store.commit()
    store.install(came[0], facts={}, entries=[])

    assert store.count(b"O") == len(MANY)
    store.close()


def test_reading_begins_at_any_moment(tmp_path: Path) -> None:
    """Threads that read all the while see the old rows or the new, and none fails."""
    store = our_store(tmp_path)
    store.install(fill(store, MANY[:100]), facts={}, entries=[])
    ended, counts, failures = threading.Event(), set[int](), list[BaseException]()

    def read() -> None:
        try:
            while not ended.is_set():
                with store.snapshot() as snapshot:
                    counts.add(snapshot.count(b"O"))
        except AssertionError as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(40):
        store.install(fill(store, MANY[: 100 + number % 2]), facts={}, entries=[])
    ended.set()
    for reader in readers:
        reader.join()

    assert failures == []
    assert counts <= {100, 101}
    store.close()


def test_reader_that_begins_holds_off_the_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between taking the environment that there is and counting as its reader, nobody may close it."""
    store = our_store(tmp_path)
    coming = fill(store)
    begins, installed, failures = threading.Event(), threading.Event(), list[AssertionError]()
    hold = Environment.hold

    def slow_hold(environment: Environment) -> None:
        begins.set()
        # As long as it is held off this is in vain.
        installed.wait(0.3)
        hold(environment)

    def read() -> None:
        try:
            with store.snapshot() as snapshot:
                snapshot.count(b"")
        except AssertionError as error:
            failures.append(error)

    monkeypatch.setattr(Environment, "hold", slow_hold)
    reader = threading.Thread(target=read)
    reader.start()
    assert begins.wait(60)
    store.install(coming, facts={}, entries=[])
    installed.set()
    reader.join()

    assert failures == []
    store.close()


def test_failure_while_the_files_change_ends_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows what a restart would find, so nothing more may be promised."""
    store = our_store(tmp_path)
    coming = fill(store)

    def fail(folders: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(incoming_module, "flush_names", fail)
    with pytest.raises(StoreFailed, match=r"could not take the place .*the disk is gone"):
        store.install(coming, facts={}, entries=[])
    store.close()


def mapped_bytes() -> int:
    """Pages of files that count as memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssFile"))


def test_walk_over_everything_does_not_fill_the_memory(tmp_path: Path) -> None:
    """What was read for another node is unmapped as it goes, also of rows that were installed."""
    store = our_store(tmp_path)
    rows = [(b"O%06d" % number, bytes(10_000)) for number in range(6_000)]
    store.install(fill(store, rows), facts={}, entries=[])
    stand(store, sequence=3, index=21, term=1)
    store.commit()
    before, most, total = mapped_bytes(), 0, 0
    with store.export() as export:
        for chunk in export.chunks(1 << 20):
            total += sum(len(value) for _, value in chunk)
            most = max(most, mapped_bytes())

    assert total == 60_000_000
    assert most - before < 30_000_000
    assert mapped_bytes() - before < 5_000_000
    store.close()


def test_nothing_is_unmapped_after_closing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who still walks over rows then must not touch memory that is somebody else's by now: it would be emptied."""
    store = our_store(tmp_path)
    touched: list[object] = []
    monkeypatch.setattr(environment, "_LIBC", SimpleNamespace(madvise=lambda *range_: touched.append(range_)))
    with store.export() as export:
        chunks = export.chunks(1 << 20)
        assert next(chunks) == [(b"O0", b"ours")]
        store.close()
        assert list(chunks) == []

    assert touched == []

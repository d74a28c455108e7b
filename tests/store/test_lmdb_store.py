"""What only a store on disk can do wrong: directories, locks, threads, full disks."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import lmdb
import pytest

from stepward.server.core import keys, rows
from stepward.server.store import facts
from stepward.server.store.errors import StoreAbsent, StoreCorrupt, StoreFailed, StoreFull, StoreInUse
from stepward.server.store.lmdb_store import LmdbStore
from stepward.server.store.memory import MemoryStore

HOLDER = """
import sys
from pathlib import Path
from stepward.server.store.lmdb_store import LmdbStore
store = LmdbStore(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
"""


def test_empty_directory_is_refused(tmp_path: Path) -> None:
    """A node whose disk was replaced must not begin anew as if nothing had been."""
    with pytest.raises(StoreAbsent) as caught:
        LmdbStore(tmp_path)

    assert caught.value.directory == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_second_opening_is_refused(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, create=True)
    with pytest.raises(StoreInUse):
        LmdbStore(tmp_path)
    store.close()

    LmdbStore(tmp_path).close()


def test_other_process_is_named(tmp_path: Path) -> None:
    # Left behind by a process with a longer number.
    (tmp_path / "node.lock").write_text("12345678901")
    LmdbStore(tmp_path, create=True).close()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(StoreInUse) as caught:
            LmdbStore(tmp_path)
        holder.kill()

    assert caught.value.pid == holder.pid
    # Whatever its end was, the next one gets in.
    LmdbStore(tmp_path).close()


def test_write_transaction_belongs_to_one_thread(tmp_path: Path) -> None:
    """LMDB does not say so: the next transaction would hang."""
    store = LmdbStore(tmp_path, create=True)
    store.put_fact(b"f", b"1")
    raised: list[AssertionError] = []

    def commit() -> None:
        try:
            store.commit()
        except AssertionError as error:
            raised.append(error)

    other = threading.Thread(target=commit)
    other.start()
    other.join()

    assert len(raised) == 1
    store.close()


def test_snapshots_are_for_all_threads(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, create=True)
    store.apply([(b"Oa", b"1")], [])
    store.commit()
    seen: list[bytes | None] = []

    def read() -> None:
        with store.snapshot() as snapshot:
            seen.append(snapshot.get(b"Oa"))

    store.apply([(b"Oa", b"2")], [])
    other = threading.Thread(target=read)
    other.start()
    other.join()

    assert seen == [b"1"]
    store.close()


def test_full_map_fails_the_write(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, create=True, map_bytes=1 << 20)
    with pytest.raises(StoreFailed):
        store.apply([(b"Oa", bytes(2 << 20))], [])
    store.close()


@pytest.mark.parametrize(("free_bytes", "starts"), [(1 << 20, True), ((1 << 20) - 1, False)])
def test_full_disk_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_bytes: int, starts: bool
) -> None:
    """In words that name the directory, instead of a write that fails somewhere."""
    LmdbStore(tmp_path, create=True).close()
    disk = SimpleNamespace(f_bavail=free_bytes, f_frsize=1)
    monkeypatch.setattr(os, "statvfs", lambda directory: disk)
    if starts:
        LmdbStore(tmp_path).close()
        return
    with pytest.raises(StoreFull, match=f"the disk of {tmp_path} is full: {free_bytes} bytes are free"):
        LmdbStore(tmp_path)


def test_store_that_cannot_be_made_lets_go_of_its_directory(tmp_path: Path) -> None:
    """So that the next one can be, when there is room."""
    with pytest.raises(StoreFailed, match=f"the store in {tmp_path} did not take a write"):
        LmdbStore(tmp_path, create=True, map_bytes=8 << 10)

    LmdbStore(tmp_path, create=True).close()


def test_directory_that_is_gone_fails(tmp_path: Path) -> None:
    """Whatever is asked next would be written nowhere."""
    store = LmdbStore(tmp_path / "d", create=True)
    shutil.rmtree(tmp_path / "d")
    with pytest.raises(StoreFailed, match=f"{tmp_path / 'd'} cannot be reached"):
        store.free_bytes()
    store.close()


def test_free_bytes_shrink(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, create=True, map_bytes=8 << 20)
    before = store.free_bytes()
    store.apply([(b"Oa", bytes(2 << 20))], [])
    store.commit()

    assert before <= 8 << 20
    assert before - store.free_bytes() >= 2 << 20
    store.close()


def test_file_that_is_no_data_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"something else" * 1_000)
    with pytest.raises(StoreCorrupt):
        LmdbStore(tmp_path)
    # The refusal lets go of the directory, so the next one says the same.
    with pytest.raises(StoreCorrupt):
        LmdbStore(tmp_path)

    assert (tmp_path / "data.mdb").read_bytes().startswith(b"something else")


def test_names_of_new_folders_are_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder whose name is not flushed may be gone after a power cut, with everything in it."""
    flushed: set[str] = set()

    def fsync(descriptor: int) -> None:
        flushed.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    monkeypatch.setattr(os, "fsync", fsync)
    LmdbStore(tmp_path / "a" / "b", create=True).close()

    assert flushed == {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")}


def test_data_is_for_its_owner_only(tmp_path: Path) -> None:
    LmdbStore(tmp_path, create=True).close()

    assert (tmp_path / "data.mdb").stat().st_mode & 0o777 == 0o600


def test_closing_twice(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, create=True)
    store.put_fact(b"f", b"1")
    store.close()
    store.close()


@pytest.mark.parametrize(("durable", "flags"), [(True, (True, True)), (False, (False, False))])
def test_flushes(tmp_path: Path, durable: bool, flags: tuple[bool, bool]) -> None:
    """Both flushes, of the data and of the page that makes it count: what a power cut shows, seen from inside."""
    store = LmdbStore(tmp_path, create=True, durable=durable)
    environment: lmdb.Environment = store._environment.lmdb

    assert (environment.flags()["sync"], environment.flags()["metasync"]) == flags
    assert store.durable is durable
    store.close()


def test_head_is_read_back() -> None:
    store = MemoryStore()
    head = rows.Head(3, b"h", 2, 1, 10, 20, 30, 40, "boot")
    store.put_fact(facts.HEAD, facts.encode_head(head))

    assert facts.read_head(store) == head


@pytest.mark.parametrize(
    "value",
    [
        # There is none.
        None,
        # A format of the future.
        keys.encode_row(rows.Ready(part=rows.Part.ACTION)),
        b"",
    ],
)
def test_head_that_cannot_be_read(value: bytes | None) -> None:
    store = MemoryStore()
    if value is not None:
        store.put_fact(facts.HEAD, value)

    with pytest.raises(StoreCorrupt):
        facts.read_head(store)

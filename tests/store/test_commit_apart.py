"""Commits that another thread has in hand."""

import os
import shutil
import threading
from pathlib import Path

import pytest

from stepward.server.store.errors import StoreFailed
from stepward.server.store.lmdb_store import LmdbStore
from tests.store.logged import LOG_BYTES, abandon, logged, names, put


def test_commit_apart_is_read_at_once_and_durable_when_it_is_done(tmp_path: Path) -> None:
    store = logged(tmp_path)
    put(store, "a")
    store.apply([(b"Ob", b"1")], [])
    work = store.commit_apart()
    assert work is not None
    assert names(store) == "ab"
    shutil.copytree(tmp_path, tmp_path / "before")
    other = threading.Thread(target=work)
    other.start()
    other.join()
    store.commit()
    shutil.copytree(tmp_path, tmp_path / "after", ignore=shutil.ignore_patterns("before"))
    store.close()

    for copy, there in (("before", "a"), ("after", "ab")):
        left = LmdbStore(tmp_path / copy)
        assert names(left) == there
        left.close()


def test_commit_does_what_nobody_has_done(tmp_path: Path) -> None:
    """And what somebody is doing it waits for; it is done once."""
    store = logged(tmp_path)
    put(store, "a")
    store.apply([(b"Ob", b"1")], [])
    work = store.commit_apart()
    assert work is not None
    store.commit()
    end_bytes = store._log.end_bytes
    work()
    assert store._log.end_bytes == end_bytes
    abandon(store)

    store = LmdbStore(tmp_path)
    assert names(store) == "ab"
    store.close()


def test_nothing_is_written_before_the_commit_before_has_ended(tmp_path: Path) -> None:
    store = logged(tmp_path)
    put(store, "a")
    store.apply([(b"Ob", b"1")], [])
    assert store.commit_apart() is not None
    with pytest.raises(AssertionError, match="before the commit before has ended"):
        store.put_fact(b"f", b"1")
    with pytest.raises(AssertionError, match="the commit before has not ended"):
        store.commit_apart()
    store.commit()
    store.put_fact(b"f", b"1")
    store.close()


def test_nothing_to_put_off(tmp_path: Path) -> None:
    """Nothing was written, or it goes to the data, which belongs to this thread."""
    store = logged(tmp_path)
    assert store.commit_apart() is None
    store.apply([(b"Oa", b"1")], [])
    assert store.commit_apart() is None
    store.commit()
    store.apply([(b"Ob", bytes(LOG_BYTES))], [])
    assert store.commit_apart() is None
    store.commit()
    assert names(store) == "ab"
    store.close()


def test_failure_on_another_thread_is_told_to_who_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = logged(tmp_path)
    put(store, "a")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", fail)
    store.apply([(b"Ob", b"1")], [])
    work = store.commit_apart()
    assert work is not None
    with pytest.raises(StoreFailed, match="No space left on device"):
        work()
    with pytest.raises(StoreFailed, match="No space left on device"):
        store.commit()
    store.close()

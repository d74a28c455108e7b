"""What a store shows when it is opened is safe, whatever the one before it had got done."""

from pathlib import Path

import pytest

from stepward.server.store.lmdb_store import LmdbStore
from tests.faults.powercut import PowerCutDisk
from tests.store.logged import LOG_BYTES, abandon


def write(directory: Path, content: bytes, *, flushed: bool, log_bytes: int) -> None:
    """What a process leaves that is killed: flushed, or before that. The system has it in either case."""
    store = LmdbStore(directory, create=True, durable=flushed, log_bytes=log_bytes)
    store.put_fact(b"begins", b"the log")
    store.commit()
    store.apply([(b"key", content)], [])
    store.commit()
    abandon(store)


@pytest.mark.root
@pytest.mark.parametrize("log_bytes", [0, LOG_BYTES])
def test_what_is_read_at_the_start_survives_a_power_cut(tmp_path: Path, log_bytes: int) -> None:
    """A node promises what it has read, and nothing is written between the two that would be flushed."""
    with PowerCutDisk(tmp_path, mebibytes=512) as disk:
        directory = disk.folder / "data"
        write(directory, b"old", flushed=True, log_bytes=log_bytes)
        write(directory, b"new", flushed=False, log_bytes=log_bytes)
        store = LmdbStore(directory)
        promised = store.get(b"key")
        disk.cut()
        store.close()
        disk.restore()
        store = LmdbStore(directory)
        found = store.get(b"key")
        store.close()

    assert promised == b"new"
    assert found == promised

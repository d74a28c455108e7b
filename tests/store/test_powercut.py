"""What a store shows when it is opened is safe, whatever the one before it had got done."""

from pathlib import Path

import pytest

from stepward.server.store.lmdb_store import LmdbStore
from tests.faults.powercut import PowerCutDisk


def write(directory: Path, content: bytes, *, flushed: bool) -> None:
    """What a process leaves: flushed, or killed before that. The system has it in either case."""
    store = LmdbStore(directory, create=True, durable=flushed)
    store.apply([(b"key", content)], [])
    store.commit()
    store.close()


@pytest.mark.root
def test_what_is_read_at_the_start_survives_a_power_cut(tmp_path: Path) -> None:
    """A node promises what it has read, and nothing is written between the two that would be flushed."""
    with PowerCutDisk(tmp_path, mebibytes=64) as disk:
        directory = disk.folder / "data"
        write(directory, b"old", flushed=True)
        write(directory, b"new", flushed=False)
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

"""Stores with a log in front of the data, and what a kill leaves of one."""

from pathlib import Path

from stepward.server.store.lmdb_store import LmdbStore
from stepward.server.store.write_ahead import LOG_FILE

LOG_BYTES = 64 << 10


def logged(directory: Path, log_bytes: int = LOG_BYTES, *, durable: bool = True) -> LmdbStore:
    """A store with a log, which is written to from the second commit on."""
    return LmdbStore(directory, create=True, log_bytes=log_bytes, durable=durable)


def abandon(store: LmdbStore) -> None:
    """End a store as a kill of its process does: nothing more is written."""
    store._log.close()
    store._environment.close()
    store._lock.release()


def put(store: LmdbStore, name: str, value: bytes = b"1") -> None:
    """One commit."""
    store.apply([(b"O" + name.encode(), value)], [])
    store.commit()


def names(store: LmdbStore) -> str:
    """The names of all that was put."""
    return "".join(key[1:].decode() for key in store.scan(b"O"))


def log_of(directory: Path) -> bytes:
    """What lies in the file of the log."""
    return (directory / LOG_FILE).read_bytes()

"""What a store of rows gives: bytes under keys, in key order, changed in one write transaction at a time.

Three spaces lie side by side and change in the same transaction, so that one flush covers them all: *rows* (what
batches put and delete), *entries* (the journal of the logbook, by index) and *facts* (the head, term and vote,
identity; small values by name).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    # Puts and deletes of the journal entry that has this index and this value. What it raises is a `ServerError`.
    RowsOfEntry = Callable[[int, bytes], tuple[Sequence[tuple[bytes, bytes]], Sequence[bytes]]]

# LMDB cannot hold longer keys; every store refuses them alike.
KEY_BYTES_MAX: Final = 511


class Rows(Protocol):
    """Rows that can be read: the store itself, or a snapshot of it."""

    def get(self, key: bytes) -> bytes | None:
        """The value under `key`."""
        ...

    def scan(self, prefix: bytes, *, after: bytes = b"", before: bytes = b"", reverse: bool = False) -> Iterator[bytes]:
        """The keys that begin with `prefix`, in order, lazily.

        `after` leaves out keys up to and including it, `before` leaves out keys from it on; empty means no bound.
        Nothing may be written while the iterator is in use.
        """
        ...

    def count(self, prefix: bytes) -> int:
        """How many keys begin with `prefix`, by walking over them."""
        ...

    def fact(self, name: bytes) -> bytes | None:
        """The small value stored under `name`."""
        ...


class Export(Protocol):
    """All rows as they are at one moment, with where they stand. Belongs to one thread at a time."""

    @property
    def head(self) -> bytes:
        """The last batch that they hold, as it stands beside them."""
        ...

    @property
    def applied_index(self) -> int:
        """The last journal entry that they hold."""
        ...

    @property
    def applied_term(self) -> int:
        """The term of that entry."""
        ...

    @property
    def rows(self) -> int:
        """How many there are."""
        ...

    @property
    def size_bytes(self) -> int:
        """What they take on a disk, near enough to ask for room."""
        ...

    def chunks(self, bytes_max: int) -> Iterator[list[tuple[bytes, bytes]]]:
        """All rows in the order of their keys, lazily. A chunk ends with the row that brings it to `bytes_max`."""
        ...


class Incoming(Protocol):
    """All rows of another node on their way in. They count for nothing until the store installs them.

    Belongs to one thread until `commit`, which need not be that of the store; another one would wait for ever. Every
    method may raise `IncomingFailed`: there is no room, or the disk does not take it; then it is to be discarded.
    """

    def put(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Add rows behind all others. Commits from time to time, so that memory does not grow."""
        ...

    def commit(self) -> None:
        """Make all of it durable."""
        ...

    def discard(self) -> None:
        """Remove it, with all that it holds. Safe to repeat. On the thread that put, unless all is committed."""
        ...


class Store(Rows, Protocol):
    """Rows, entries and facts of one replica. Belongs to the thread that made it, but for `snapshot` and `export`.

    What is read is what was written last, committed or not. What is there when it is opened is durable: also what a
    process that was killed in the middle of a commit had written and not flushed.
    """

    @property
    def durable(self) -> bool:
        """Whether what `commit` wrote survives a power cut."""
        ...

    def apply(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes], *, entry: int | None = None) -> None:
        """Write rows in the open transaction. Deleting what is not there does nothing.

        `entry`: the journal entry, put before, that says exactly these; so they need not be kept twice.
        """
        ...

    def applying(self) -> AbstractContextManager[None]:
        """Rows and facts that are written inside follow from an entry of the journal: who loses them applies it again.

        So they need no flush of their own. A `commit` for which there is nothing else leaves them to the next one.
        """
        ...

    def put_fact(self, name: bytes, value: bytes) -> None:
        """Write a small value in the open transaction."""
        ...

    def put_entry(self, index: int, value: bytes) -> None:
        """Write a journal entry behind all others in the open transaction."""
        ...

    def delete_entries(self, first: int, last: int) -> None:
        """Delete the entries from `first` to `last`, both included, in the open transaction.

        This needs no flush of its own, either: who loses it has entries that nobody asks for, or deletes them again.
        """
        ...

    def entries(self) -> Iterator[tuple[int, bytes]]:
        """All entries by rising index."""
        ...

    def commit(self) -> None:
        """Make everything written so far durable, at once and whole; does nothing when nothing of it needs that."""
        ...

    def commit_apart(self) -> Callable[[], None] | None:
        """Begin a `commit`, and give what waits for the disk, for another thread. None: nothing can be put off.

        `commit` ends it, and does that work itself if nobody has. Until then nothing may be written. What the work
        raises, `commit` raises, too.
        """
        ...

    def snapshot(self) -> AbstractContextManager[Rows]:
        """The rows as the last commit left them, unmoved by later ones. Any thread may ask for one.

        What the commit found nothing to flush for is in it, too.

        With a log in front of the data this has all of it written on the thread of the store, on which nothing may be
        uncommitted then. Another thread sees the data as it was written last, which may be some MiB of changes ago.
        """
        ...

    def export(self) -> AbstractContextManager[Export]:
        """All rows as the last commit left them, for another node; as with `snapshot`.

        While it is open no space that is freed can be used again, so it must not last.
        """
        ...

    def incoming(self, size_bytes: int = 0) -> Incoming:
        """Begin to take in all rows of another node, of about this size. Any thread may; one at a time.

        Raises:
            IncomingFailed: There is no room for them.
        """
        ...

    def install(
        self, incoming: Incoming, *, facts: Mapping[bytes, bytes], entries: Iterable[tuple[int, bytes]]
    ) -> None:
        """Replace all rows, facts and entries, at once and whole, durably when this returns.

        Snapshots that are open go on with what they see. Nothing may be written and not committed before, and what was
        read of entries and facts is to be read anew. Which of two is newer is the caller's business.

        Raises:
            IncomingFailed: The disk did not take the facts and entries. Everything is as it was.
            StoreFailed: It failed in the middle; the process must end.
        """
        ...

    def free_bytes(self) -> int:
        """How much can be written before the disk or the map is full; an estimate from below."""
        ...

    def close(self) -> None:
        """Let go of the files. What was not committed is lost. Safe to repeat."""
        ...


def successor(prefix: bytes) -> bytes | None:
    """The smallest key behind all keys that begin with `prefix`; None when nothing is behind them."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None


def key_too_long(keys: Sequence[bytes]) -> bytes | None:
    """The longest key, if no store can hold it."""
    longest = max(keys, key=len, default=b"")
    return longest if len(longest) > KEY_BYTES_MAX else None

"""Stores that stand somewhere, and all that a store holds."""

from stepward.server.core import rows
from stepward.server.store import facts
from stepward.server.store.interface import Store

Content = tuple[dict[bytes, bytes], list[tuple[int, bytes]]]


def head_of(sequence: int) -> rows.Head:
    """A head that differs with the sequence in more than that."""
    return rows.Head(sequence, b"hash %d" % sequence, 1, 1, sequence, sequence, sequence, sequence, "boot")


def stand(store: Store, *, sequence: int, index: int, term: int) -> None:
    """Write where the rows stand, without committing it."""
    store.put_fact(facts.HEAD, facts.encode_head(head_of(sequence)))
    store.put_fact(facts.APPLIED, facts.encode_applied(index, term))


def content(store: Store) -> Content:
    """All rows and entries."""
    rows_there = {}
    for key in store.scan(b""):
        value = store.get(key)
        assert value is not None
        rows_there[key] = value
    return rows_there, list(store.entries())

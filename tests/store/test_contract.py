"""One contract for whatever holds rows: all stores, the cache of a leader above each, and a snapshot."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typing_extensions import override

from stepward.server.core import keys, rows
from stepward.server.core.reader import Reader
from stepward.server.store.interface import KEY_BYTES_MAX, Store, key_too_long, successor
from stepward.server.store.live import CommittedRows, LiveRows
from stepward.server.store.lmdb_store import LmdbStore
from stepward.server.store.memory import MemoryStore
from tests.simulation.disk import Device, PageStore
from tests.store.logged import abandon, logged
from tests.store.standing import stand

Keys = list[bytes]


def output(content: bytes) -> rows.Row:
    """A row of any kind; only its bytes matter here."""
    return rows.Output(rows.Payload(content))


class Shelf(ABC):
    """Something that rows are written to and read from; the reader sees what was written last."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def write(self, **changes: bytes | None) -> None:
        """Write rows of jobs by name; None deletes."""
        self.change(
            {
                keys.OUTPUT + name.encode(): None if content is None else output(content)
                for name, content in changes.items()
            }
        )

    def change(self, changes: dict[bytes, rows.Row | None]) -> None:
        """Write and delete rows, as a batch does."""
        puts = [(key, keys.encode_row(row)) for key, row in changes.items() if row is not None]
        self.store.apply(puts, [key for key, row in changes.items() if row is None])

    @abstractmethod
    def reader(self) -> Reader:
        """Who reads."""


class StoreShelf(Shelf):
    """A store, its rows decoded."""

    @override
    def reader(self) -> Reader:
        return CommittedRows(self.store)


class LiveShelf(Shelf):
    """A leader's cache, small enough to forget."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.live = LiveRows(store, rows_max=3, payload_bytes_max=100, definitions_max=1)

    @override
    def change(self, changes: dict[bytes, rows.Row | None]) -> None:
        super().change(changes)
        self.live.applied(changes)

    @override
    def reader(self) -> Reader:
        return self.live


class SnapshotShelf(Shelf):
    """A new snapshot after each commit."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.open = store.snapshot()
        self.snapshot = self.open.__enter__()

    @override
    def reader(self) -> Reader:
        self.store.commit()
        self.close()
        self.open = self.store.snapshot()
        self.snapshot = self.open.__enter__()
        return CommittedRows(self.snapshot)

    def close(self) -> None:
        self.open.__exit__(None, None, None)


@pytest.fixture(params=["memory", "lmdb", "logged", "pages"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    makes: dict[str, Callable[[], Store]] = {
        "memory": MemoryStore,
        "lmdb": lambda: LmdbStore(tmp_path / "data", create=True),
        "logged": lambda: logged(tmp_path / "data"),
        "pages": lambda: PageStore(Device(random.Random(1))),
    }
    made = makes[request.param]()
    yield made
    made.close()


@pytest.fixture(params=[StoreShelf, LiveShelf, SnapshotShelf])
def shelf(request: pytest.FixtureRequest, store: Store) -> Iterator[Shelf]:
    made: Shelf = request.param(store)
    yield made
    if isinstance(made, SnapshotShelf):
        made.close()


def names(found: Iterator[bytes]) -> list[str]:
    return [key[1:].decode() for key in found]


def test_row_is_read_back(shelf: Shelf) -> None:
    shelf.write(a=b"one")

    assert shelf.reader().get(b"Oa") == output(b"one")
    assert shelf.reader().get(b"Ob") is None


def test_row_is_overwritten(shelf: Shelf) -> None:
    shelf.write(a=b"one")
    assert shelf.reader().get(b"Oa") == output(b"one")
    shelf.write(a=b"two")

    assert shelf.reader().get(b"Oa") == output(b"two")
    assert shelf.reader().count(b"O") == 1


def test_row_is_deleted(shelf: Shelf) -> None:
    shelf.write(a=b"one", b=b"two")
    assert shelf.reader().get(b"Oa") == output(b"one")
    shelf.write(a=None)

    assert shelf.reader().get(b"Oa") is None
    assert names(shelf.reader().scan(b"O")) == ["b"]


def test_deleting_nothing_does_nothing(shelf: Shelf) -> None:
    shelf.write(a=None)

    assert shelf.reader().get(b"Oa") is None
    assert shelf.reader().count(b"O") == 0


@pytest.mark.parametrize(
    ("prefix", "after", "before", "expected"),
    [
        # The whole kind, in key order.
        (b"O", b"", b"", ["a", "a/1", "a/2", "b", "c"]),
        # Nothing of another kind, before or behind.
        (b"P", b"", b"", ["z"]),
        # Keys of a prefix, the prefix itself included.
        (b"Oa", b"", b"", ["a", "a/1", "a/2"]),
        (b"Oa/", b"", b"", ["a/1", "a/2"]),
        # Behind a key that is there, that is not there, that is before the prefix, that is behind everything.
        (b"O", b"Oa/1", b"", ["a/2", "b", "c"]),
        (b"O", b"Oa/10", b"", ["a/2", "b", "c"]),
        (b"O", b"A", b"", ["a", "a/1", "a/2", "b", "c"]),
        (b"O", b"Oz", b"", []),
        # Before a key that is there, that is not there, that is behind the prefix, that is before everything.
        (b"O", b"", b"Ob", ["a", "a/1", "a/2"]),
        (b"O", b"", b"Oaa", ["a", "a/1", "a/2"]),
        (b"O", b"", b"Z", ["a", "a/1", "a/2", "b", "c"]),
        (b"O", b"", b"A", []),
        # Both bounds are left out themselves.
        (b"O", b"Oa", b"Ob", ["a/1", "a/2"]),
        (b"O", b"Ob", b"Oa", []),
        # Nothing has this prefix.
        (b"Ox", b"", b"", []),
    ],
)
def test_scan(shelf: Shelf, prefix: bytes, after: bytes, before: bytes, expected: list[str]) -> None:
    """Keys of a prefix between two bounds, in order, and in reverse order."""
    shelf.write(**{"c": b"3", "a/2": b"2", "a": b"0", "b": b"2", "a/1": b"1"})
    shelf.change({b"Nn": rows.DefinitionHead(1, b""), b"Pz": rows.Output(rows.Payload())})
    reader = shelf.reader()

    assert names(reader.scan(prefix, after=after, before=before)) == expected
    assert names(reader.scan(prefix, after=after, before=before, reverse=True)) == expected[::-1]


def test_scan_of_the_last_prefix_there_is(shelf: Shelf) -> None:
    shelf.change({b"\xff\xff": output(b""), b"\xff\xffa": output(b""), b"\xfe": output(b"")})

    assert list(shelf.reader().scan(b"\xff\xff", reverse=True)) == [b"\xff\xffa", b"\xff\xff"]
    assert list(shelf.reader().scan(b"\xff\xff")) == [b"\xff\xff", b"\xff\xffa"]


def test_scan_is_stopped_by_its_caller(shelf: Shelf) -> None:
    """Who needs one key asks for one; then writing goes on."""
    shelf.write(a=b"1", b=b"2", c=b"3")
    found = shelf.reader().scan(b"O")
    assert next(found) == b"Oa"
    shelf.write(d=b"4", a=None)

    assert names(shelf.reader().scan(b"O")) == ["b", "c", "d"]


def test_count(shelf: Shelf) -> None:
    shelf.write(**{"a": b"1", "a/1": b"1", "b": b"1"})

    assert [shelf.reader().count(prefix) for prefix in (b"O", b"Oa", b"Oa/", b"Ox")] == [3, 2, 1, 0]


def test_assignments_of_a_session_are_counted(shelf: Shelf) -> None:
    """What frees and takes slots: counted for each session alone, whatever is put or deleted twice."""
    grant = rows.Assignment(part=rows.Part.ACTION, start=rows.StartMode.ON_OFFER, offered_led_ms=1)
    first, second, other = (keys.assignment(who, token, "1-j", 0) for who, token in (("s", 1), ("s", 2), ("s2", 1)))
    shelf.change({first: grant, second: grant, other: grant})
    shelf.change({first: grant})
    assert shelf.reader().count(keys.assignments("s")) == 2
    shelf.change({second: None, other: None})
    shelf.change({second: None})

    assert [shelf.reader().count(keys.assignments(who)) for who in ("s", "s2", "s3")] == [1, 0, 0]
    assert shelf.reader().count(keys.ASSIGNMENT) == 1


def test_readers_agree_with_a_dict(shelf: Shelf, only_seed: int | None) -> None:
    """Any history of writes gives what a dict would give, whatever the cache forgot in between."""
    seed = random.randrange(1 << 32) if only_seed is None else only_seed
    print(f"--seed {seed}")
    chance = random.Random(seed)
    model: dict[bytes, rows.Row] = {}
    for _ in range(100):
        changes: dict[bytes, rows.Row | None] = {}
        for _ in range(chance.randrange(4)):
            key = chance.choice([keys.OUTPUT, keys.DEFINITION_BODY]) + bytes(chance.choices(b"ab/\xff", k=2))
            changes[key] = output(chance.randbytes(chance.randrange(60))) if chance.random() < 0.7 else None
        if any(key[0] == keys.DEFINITION_BODY[0] for key in changes):
            # The content of a definition is its key; it never changes.
            changes = {key: row and (model.get(key) or as_kind(key, row)) for key, row in changes.items()}
        shelf.change(changes)
        model = {key: row for key, row in (model | changes).items() if row is not None}
        check_some(shelf.reader(), model, chance)


def as_kind(key: bytes, row: rows.Row) -> rows.Row:
    return rows.DefinitionBody(key.hex(), (), b"", b"") if key[:1] == keys.DEFINITION_BODY else row


def check_some(reader: Reader, model: dict[bytes, rows.Row], chance: random.Random) -> None:
    for kind in (keys.OUTPUT, keys.DEFINITION_BODY):
        key = kind + bytes(chance.choices(b"ab/\xff", k=2))
        assert reader.get(key) == model.get(key)
        after, before = sorted(kind + bytes(chance.choices(b"ab/\xff", k=2)) for _ in range(2))
        prefix = key[: chance.randrange(1, 3)]
        expected = sorted(k for k in model if k.startswith(prefix) and after < k < before)
        assert list(reader.scan(prefix, after=after, before=before)) == expected
        assert list(reader.scan(prefix, after=after, before=before, reverse=True)) == expected[::-1]
        assert reader.count(prefix) == len([k for k in model if k.startswith(prefix)])


# What only the stores do.


def test_snapshot_does_not_see_what_is_not_committed(store: Store) -> None:
    store.apply([(b"Oa", b"1")], [])
    store.put_fact(b"f", b"1")
    store.commit()
    store.apply([(b"Ob", b"2")], [b"Oa"])
    store.put_fact(b"f", b"2")

    with store.snapshot() as snapshot:
        assert snapshot.get(b"Oa") == b"1"
        assert list(snapshot.scan(b"O")) == [b"Oa"]
        assert snapshot.fact(b"f") == b"1"
    assert store.get(b"Oa") is None
    assert list(store.scan(b"O")) == [b"Ob"]
    assert store.fact(b"f") == b"2"


def test_snapshot_does_not_move(store: Store) -> None:
    store.apply([(b"Oa", b"1")], [])
    store.commit()

    with store.snapshot() as snapshot:
        store.apply([(b"Ob", b"2")], [b"Oa"])
        store.commit()

        assert list(snapshot.scan(b"O")) == [b"Oa"]


def test_entries_lie_in_order(store: Store) -> None:
    for index in (9, 10, 300):
        store.put_entry(index, b"%d" % index)

    assert list(store.entries()) == [(9, b"9"), (10, b"10"), (300, b"300")]


def test_entries_are_deleted_at_both_ends(store: Store) -> None:
    for index in range(1, 8):
        store.put_entry(index, b"%d" % index)
    store.commit()
    store.delete_entries(1, 2)
    store.delete_entries(6, 9)
    store.put_entry(6, b"again")

    assert list(store.entries()) == [(3, b"3"), (4, b"4"), (5, b"5"), (6, b"again")]


@pytest.mark.parametrize("index", [4, 5])
def test_entry_goes_behind_all_others(store: Store, index: int) -> None:
    """An entry that would overwrite another one is a mistake of ours."""
    store.put_entry(5, b"five")

    with pytest.raises(AssertionError):
        store.put_entry(index, b"other")


def test_entries_facts_and_rows_do_not_mix(store: Store) -> None:
    store.put_entry(1, b"entry")
    store.put_fact(b"name", b"fact")
    store.apply([(b"name", b"row")], [])

    assert store.get(b"name") == b"row"
    assert store.fact(b"name") == b"fact"
    assert list(store.entries()) == [(1, b"entry")]
    assert store.count(b"") == 1


def test_values_may_be_large_and_empty(store: Store) -> None:
    store.apply([(b"Oa", b""), (b"Ob", bytes(3 << 20))], [])
    store.commit()

    assert store.get(b"Oa") == b""
    assert store.get(b"Ob") == bytes(3 << 20)


def test_longest_key_fits(store: Store) -> None:
    key = bytes(KEY_BYTES_MAX)
    store.apply([(key, b"1")], [])

    assert store.get(key) == b"1"
    assert key_too_long([b"a", key]) is None


def test_longer_key_is_found_before_it_is_written() -> None:
    longer = bytes(KEY_BYTES_MAX + 1)

    assert key_too_long([b"a", longer]) == longer


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [(b"a", b"b"), (b"ab", b"ac"), (b"a\xff", b"b"), (b"\xff", None), (b"\xff\xff", None), (b"", None)],
)
def test_successor(prefix: bytes, expected: bytes | None) -> None:
    """Where the keys of a prefix end."""
    assert successor(prefix) == expected


@pytest.fixture(params=["memory", "lmdb", "logged"])
def reopening(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Store | None], Store]:
    """Opens a store, or ends one without warning and opens it again."""

    def memory(before: Store | None) -> Store:
        store = before or MemoryStore()
        store.close()
        return store

    def on_disk(before: Store | None) -> Store:
        if before is not None:
            before.close()
        return LmdbStore(tmp_path / "data", create=True)

    def behind_a_log(before: Store | None) -> Store:
        if isinstance(before, LmdbStore):
            abandon(before)
            return logged(tmp_path / "data")
        store = logged(tmp_path / "data")
        # The first commit begins the log.
        store.put_fact(b"g", b"1")
        store.commit()
        return store

    if request.param == "logged":
        return behind_a_log
    return memory if request.param == "memory" else on_disk


def test_commit_is_whole_or_not_at_all(reopening: Callable[[Store | None], Store]) -> None:
    """Rows, entries and facts of one commit are there together; those of none are not."""
    store = reopening(None)
    store.apply([(b"Oa", b"1")], [])
    store.put_entry(1, b"1")
    store.put_fact(b"f", b"1")
    store.commit()
    store.apply([(b"Oa", b"2")], [])
    store.put_entry(2, b"2")
    store.put_fact(b"f", b"2")
    store = reopening(store)

    assert (store.get(b"Oa"), store.fact(b"f"), list(store.entries())) == (b"1", b"1", [(1, b"1")])
    store.close()


def test_commit_of_nothing(store: Store) -> None:
    store.commit()
    store.commit()

    assert store.count(b"") == 0


def test_store_says_what_is_free(store: Store) -> None:
    assert store.free_bytes() > 1 << 20
    assert store.durable


def test_what_follows_from_an_entry_is_read_before_anything_flushes_it(store: Store) -> None:
    """Also by a snapshot and by another node, behind the commit that had nothing to flush; and an install ends it."""
    stand(store, sequence=3, index=2, term=1)
    store.put_entry(1, b"1")
    store.put_entry(2, b"2")
    store.commit()
    with store.applying():
        store.apply([(b"Oa", b"1")], [])
        store.put_fact(b"f", b"1")
    store.delete_entries(1, 1)
    store.commit()

    assert (store.get(b"Oa"), store.fact(b"f"), list(store.entries())) == (b"1", b"1", [(2, b"2")])
    with store.snapshot() as snapshot:
        assert (snapshot.get(b"Oa"), list(snapshot.scan(b"O")), snapshot.fact(b"f")) == (b"1", [b"Oa"], b"1")
    with store.applying():
        store.apply([(b"Ob", b"2")], [b"Oa"])
    store.commit()
    with store.export() as export:
        assert list(export.chunks(1 << 20)) == [[(b"Ob", b"2")]]
    with store.applying():
        store.apply([(b"Oc", b"3")], [])
    store.commit()
    incoming = store.incoming()
    incoming.put([(b"Od", b"4")])
    incoming.commit()
    store.install(incoming, facts={}, entries=[])
    store.put_fact(b"g", b"1")
    store.commit()
    assert list(store.scan(b"O")) == [b"Od"]

"""All rows of another node take the place of a store's own: one contract for both stores."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stepward.server.core import rows
from stepward.server.store import facts
from stepward.server.store.errors import StoreCorrupt
from stepward.server.store.interface import Incoming, Store
from stepward.server.store.lmdb_store import LmdbStore
from stepward.server.store.memory import MemoryStore
from tests.store.logged import logged
from tests.store.standing import content, head_of, stand

Make = Callable[[str], Store]


@pytest.fixture(params=["memory", "lmdb", "logged"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes stores by name; asked again for the same name it ends the one of that name, and opens it again."""
    made: dict[str, Store] = {}

    def opened(name: str) -> Store:
        if name in made:
            made[name].close()
        if request.param == "logged":
            made[name] = logged(tmp_path / name)
        elif request.param == "lmdb" or name not in made:
            made[name] = MemoryStore() if request.param == "memory" else LmdbStore(tmp_path / name, create=True)
        return made[name]

    yield opened
    for store in made.values():
        store.close()


@pytest.fixture
def theirs(make: Make) -> Store:
    """The store of a leader, with ten rows."""
    store = make("theirs")
    stand(store, sequence=7, index=70, term=3)
    store.apply([(b"O%d" % number, b"their %d" % number) for number in range(10)], [])
    store.commit()
    return store


@pytest.fixture
def ours(make: Make) -> Store:
    """The store of a follower, which has rows of its own."""
    store = make("ours")
    stand(store, sequence=2, index=20, term=1)
    store.put_fact(b"own", b"1")
    store.apply([(b"O0", b"ours"), (b"Zz", b"ours")], [])
    for index in (19, 20):
        store.put_entry(index, b"entry")
    store.commit()
    return store


def fetch(theirs: Store, ours: Store, bytes_max: int = 20) -> Incoming:
    incoming = ours.incoming()
    with theirs.export() as export:
        for chunk in export.chunks(bytes_max):
            incoming.put(chunk)
    incoming.commit()
    return incoming


def install(theirs: Store, ours: Store) -> None:
    incoming = fetch(theirs, ours)
    with theirs.export() as export:
        beside = {
            facts.HEAD: export.head,
            facts.APPLIED: facts.encode_applied(export.applied_index, export.applied_term),
            b"own": b"1",
        }
    ours.install(incoming, facts=beside, entries=[(70, b"seventy")])


def test_export_says_where_the_rows_stand(theirs: Store) -> None:
    with theirs.export() as export:
        assert export.head == facts.encode_head(head_of(7))
        assert (export.applied_index, export.applied_term, export.rows) == (70, 3, 10)
        assert export.size_bytes > 0


def test_export_holds_what_is_committed_and_does_not_move(theirs: Store) -> None:
    theirs.apply([(b"Oa", b"late")], [b"O0"])
    with theirs.export() as export:
        theirs.commit()
        stand(theirs, sequence=8, index=71, term=3)
        theirs.commit()
        found = [row for chunk in export.chunks(1 << 20) for row in chunk]

        assert found == [(b"O%d" % number, b"their %d" % number) for number in range(10)]
        assert export.applied_index == 70


@pytest.mark.parametrize(
    ("bytes_max", "sizes"),
    [
        # A row is two bytes of key and seven of value.
        (1, [1] * 10),
        (9, [1] * 10),
        (10, [2] * 5),
        (27, [3, 3, 3, 1]),
        (1 << 20, [10]),
    ],
)
def test_chunk_ends_where_it_is_large_enough(theirs: Store, bytes_max: int, sizes: list[int]) -> None:
    with theirs.export() as export:
        assert [len(chunk) for chunk in export.chunks(bytes_max)] == sizes


def test_nothing_gives_no_chunk(make: Make) -> None:
    store = make("empty")
    stand(store, sequence=0, index=1, term=0)
    store.commit()

    with store.export() as export:
        assert (export.rows, list(export.chunks(100))) == (0, [])


def test_store_without_a_head_has_nothing_to_give(make: Make) -> None:
    with pytest.raises(StoreCorrupt, match="the head is missing"), make("new").export():
        pass


def test_rows_that_come_in_count_for_nothing(theirs: Store, ours: Store) -> None:
    before = content(ours)
    fetch(theirs, ours)

    assert content(ours) == before


def test_rows_of_another_take_the_place_of_ours(theirs: Store, ours: Store) -> None:
    """Rows, facts and entries: nothing of before is left."""
    install(theirs, ours)
    expected = {b"O%d" % number: b"their %d" % number for number in range(10)}

    assert content(ours) == (expected, [(70, b"seventy")])
    assert facts.read_head(ours) == head_of(7)
    assert facts.read_applied(ours) == (70, 3)
    assert ours.fact(b"own") == b"1"
    assert ours.fact(facts.TERM) is None
    with ours.snapshot() as snapshot:
        assert snapshot.get(b"O3") == b"their 3"
        assert snapshot.get(b"Zz") is None


def test_what_was_installed_is_there_after_a_crash(theirs: Store, ours: Store, make: Make) -> None:
    install(theirs, ours)
    after = content(ours)
    ours.apply([(b"Oa", b"lost")], [])

    assert content(make("ours")) == after


def test_what_was_not_installed_is_gone_after_a_crash(theirs: Store, ours: Store, make: Make) -> None:
    before = content(ours)
    fetch(theirs, ours)
    again = make("ours")

    assert content(again) == before
    # Nothing of it is in the way of the next.
    install(theirs, again)
    assert again.get(b"O3") == b"their 3"


def test_store_goes_on_after_the_change(theirs: Store, ours: Store, make: Make) -> None:
    install(theirs, ours)
    ours.apply([(b"Oa", b"new")], [b"O0"])
    ours.put_entry(71, b"next")
    stand(ours, sequence=8, index=71, term=3)
    ours.commit()
    again = make("ours")

    assert (again.get(b"Oa"), again.get(b"O0"), list(again.entries())[-1]) == (b"new", None, (71, b"next"))
    assert facts.read_head(again) == head_of(8)


def test_readers_go_on_with_what_they_see(theirs: Store, ours: Store) -> None:
    """A call that was reading when the rows changed reads the old ones to its end; the next reads the new ones."""
    with ours.snapshot() as old:
        install(theirs, ours)
        ours.apply([(b"O3", b"newer")], [])
        ours.commit()
        with ours.snapshot() as new:
            assert new.get(b"O3") == b"newer"

        assert (list(old.scan(b"")), old.get(b"O0"), old.get(b"O3")) == ([b"O0", b"Zz"], b"ours", None)
        assert facts.read_head(old) == head_of(2)


def test_rows_are_installed_again_and_again(theirs: Store, ours: Store) -> None:
    """With one that was thrown away between."""
    for number in range(3):
        theirs.apply([(b"Oa", b"%d" % number)], [])
        theirs.commit()
        fetch(theirs, ours).discard()
        install(theirs, ours)

        assert ours.get(b"Oa") == b"%d" % number


def test_large_and_empty_values_arrive(theirs: Store, ours: Store) -> None:
    theirs.apply([(b"Oa", b""), (b"Ob", bytes(9 << 20))], [])
    theirs.commit()
    install(theirs, ours)

    assert (ours.get(b"Oa"), ours.get(b"Ob")) == (b"", bytes(9 << 20))


@pytest.mark.parametrize("key", [b"", b"O1", b"O0"])
def test_rows_come_in_order(ours: Store, key: bytes) -> None:
    """Also from one call to the next: what is out of order would be lost, or found in the wrong place."""
    incoming = ours.incoming()
    incoming.put([(b"O1", b"1")])

    with pytest.raises(AssertionError, match="order"):
        incoming.put([(key, b"again")])
    incoming.discard()


def test_rows_that_are_not_committed_are_not_installed(ours: Store) -> None:
    incoming = ours.incoming()
    incoming.put([(b"O1", b"1")])

    with pytest.raises(AssertionError, match="not committed"):
        ours.install(incoming, facts={}, entries=[])
    incoming.discard()


def test_nothing_is_installed_over_what_is_not_committed(theirs: Store, ours: Store) -> None:
    incoming = fetch(theirs, ours)
    ours.put_fact(b"own", b"2")

    with pytest.raises(AssertionError, match="written and not committed"):
        ours.install(incoming, facts={}, entries=[])
    assert ours.get(b"O0") == b"ours"


def test_rows_thrown_away_are_not_installed(theirs: Store, ours: Store) -> None:
    incoming = fetch(theirs, ours)
    incoming.discard()
    incoming.discard()

    with pytest.raises(AssertionError, match="thrown away"):
        ours.install(incoming, facts={}, entries=[])


def test_one_at_a_time(ours: Store) -> None:
    ours.incoming()

    with pytest.raises(AssertionError, match="already"):
        ours.incoming()


@pytest.mark.parametrize("value", [b"", (70).to_bytes(8, "big"), b"\x92\x01\xc0"])
def test_applied_entry_that_cannot_be_read(value: bytes) -> None:
    store = MemoryStore()
    store.put_fact(facts.APPLIED, value)

    with pytest.raises(StoreCorrupt, match="applied last"):
        facts.read_applied(store)


def test_head_is_a_head() -> None:
    """The tests compare whole heads."""
    assert isinstance(head_of(1), rows.Head)
    assert head_of(1) != head_of(2)
